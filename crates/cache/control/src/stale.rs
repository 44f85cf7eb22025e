//! Sockets that daemons have left because they were killed.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

/// Removes a socket of this user that no process has. While a daemon starts in its directory, it stays.
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
    // A daemon holds this lock from its look at an old socket until it has its own.
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

/// Whether a process has the socket, even one that does not listen yet: it refuses a datagram by its type, and a file without a
/// process refuses it as a connection. The process does not notice.
fn is_in_use(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(Errno::PROTOTYPE) | Ok(()) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
