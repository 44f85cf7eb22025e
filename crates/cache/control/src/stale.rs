//! Stale sockets of killed daemons.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

/// Removes a socket of this user that no process has open, unless a daemon is starting in its directory.
pub(crate) fn remove(path: &Path) {
    match try_remove(path) {
        Ok(true) => tracing::debug!("removed the socket {} of a killed daemon", path.display()),
        Ok(false) => {}
        Err(error) => tracing::debug!("the socket {} stays: {error}", path.display()),
    }
}

fn try_remove(path: &Path) -> io::Result<bool> {
    let Some(directory) = path.parent() else {
        return Ok(false);
    };
    // A starting daemon holds this lock from the check of an old socket until its own socket is bound.
    let lock = std::fs::File::open(directory)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    let metadata = std::fs::symlink_metadata(path)?;
    let is_own = metadata.file_type().is_socket() && metadata.uid() == geteuid().as_raw();
    if !is_own || is_in_use(path)? {
        return Ok(false);
    }
    std::fs::remove_file(path)?;
    Ok(true)
}

/// Whether a process has the socket open, even if it does not listen yet. Connecting a datagram socket to it fails with EPROTOTYPE if a
/// process has it open, and with ECONNREFUSED if none has. The process does not notice.
fn is_in_use(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(Errno::PROTOTYPE) | Ok(()) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
