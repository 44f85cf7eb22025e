//! The control socket: how a running cache is asked and told.
//!
//! One Unix socket a daemon, mode 0600, apart from the data. A client sends JSON lines and gets one line for
//! each ([`protocol`]); the daemon answers only root and its own user. Invariants:
//!
//! - nothing that a client sends or leaves out makes the daemon wait for ever or grow: lines, clients and
//!   idle time have limits ([`server`]);
//! - a socket file is replaced only when nobody listens on it.

pub mod client;
pub mod place;
pub mod protocol;
pub mod server;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

pub use client::Client;
pub use protocol::{Reply, Request};
pub use server::{ControlHandler, Server};

/// How long a daemon may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Connects to a Unix socket, waiting at most [`CONNECT`] for a place in its queue. A daemon that hangs with a
/// full queue is [`io::ErrorKind::WouldBlock`].
fn connect(path: &Path) -> io::Result<UnixStream> {
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

/// Why a running cache could not be asked, or its socket not be made.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens there.
    #[error("no daemon listens on {}: start one with `flaz serve`, or correct --control PATH", path.display())]
    NotRunning {
        /// The socket.
        path: PathBuf,
    },
    /// The socket is another user's.
    #[error(
        "{}: permission denied: only root and the user of the daemon may control it",
        path.display()
    )]
    Denied {
        /// The socket.
        path: PathBuf,
    },
    /// Who listens is neither root nor this user nor the file's owner.
    #[error(
        "{}: the socket belongs to user {uid}, which is neither root nor the current user: not trusted",
        path.display()
    )]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// User at the other end.
        uid: u32,
    },
    /// Talking failed.
    #[error("communicating with the daemon on {}", path.display())]
    Talk {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No answer in time.
    #[error("the daemon on {} did not answer within {seconds} s{advice}", path.display())]
    TimedOut {
        /// The socket.
        path: PathBuf,
        /// How long was waited.
        seconds: f64,
        /// What to do, or nothing.
        advice: &'static str,
    },
    /// The connection ended without an answer.
    #[error("the daemon on {} closed the connection without a reply: see its log", path.display())]
    HungUp {
        /// The socket.
        path: PathBuf,
    },
    /// The answer makes no sense.
    #[error(
        "the daemon on {} sent an invalid reply, possibly from another version ({detail})",
        path.display()
    )]
    Garbled {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The daemon says no, or that it could not.
    #[error("the daemon reports: {message}")]
    Refused {
        /// In the daemon's words.
        message: String,
    },
    /// Another daemon listens there already.
    #[error(
        "{0}: another daemon listens on this control socket: stop it with `flaz stop --control {0}`, or use \
         another path with --control",
        path.display()
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// A file that is no socket is in the way.
    #[error(
        "{}: expected a socket or no file: remove the file, or use another --control PATH",
        path.display()
    )]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The path does not fit into a socket address.
    #[error(
        "{}: socket paths have at most {max} bytes, this one has {len}: use a shorter --control PATH",
        path.display()
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The runtime directory is not safe.
    #[error(
        "{}: expected a directory of user {uid} that others cannot write to, found {found}: remove it, or set \
         FLAZ_RUNTIME_DIR",
        path.display()
    )]
    UnsafeDirectory {
        /// The directory.
        path: PathBuf,
        /// Who should own it.
        uid: u32,
        /// What is wrong with it.
        found: String,
    },
    /// The socket could not be made.
    #[error("cannot {what} {}", path.display())]
    Make {
        /// What was being done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}
