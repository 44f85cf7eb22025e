//! Connects to a socket whose daemon may hang, and identifies the user at the other end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use flaz_runtime::peer::peer;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// How long a daemon may take to accept a connection.
pub const CONNECT: Duration = Duration::from_secs(5);

/// Connects to a Unix socket, waiting at most [`CONNECT`] for a place in its queue. A daemon that hangs with a full
/// queue is [`io::ErrorKind::WouldBlock`].
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket: OwnedFd = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Send, Some(CONNECT))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// The user at the other end.
///
/// # Errors
/// The system does not report it.
pub fn peer_uid(stream: &impl AsFd) -> io::Result<u32> {
    Ok(peer(stream)?.uid)
}
