//! Errors of requests to a daemon, and messages with their causes.

use std::error::Error;
use std::path::PathBuf;

use crate::shell::quoted;

/// The message of `error` with its causes, each mentioned once.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.ends_with(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}

/// Why a running cache could not be reached, or its socket not be created.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nothing listens there.
    #[error("no daemon listens on {}: start one with `flaz serve`, or correct --control PATH", path.display())]
    NotRunning {
        /// The socket.
        path: PathBuf,
    },
    /// The socket belongs to another user.
    #[error(
        "{}: permission denied: only root and the user of the daemon may control it",
        path.display()
    )]
    Denied {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon runs as a user other than root, the current user and the owner of the cache.
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
        /// The system's error.
        source: std::io::Error,
    },
    /// No reply in time.
    #[error("the daemon on {} did not answer within {seconds} s{advice}", path.display())]
    TimedOut {
        /// The socket.
        path: PathBuf,
        /// How long the client waited.
        seconds: f64,
        /// Advice to the user, or empty.
        advice: &'static str,
    },
    /// The connection ended without a reply.
    #[error("the daemon on {} closed the connection without a reply: see its log", path.display())]
    HungUp {
        /// The socket.
        path: PathBuf,
    },
    /// The reply is invalid.
    #[error(
        "the daemon on {} sent an invalid reply, possibly from another version ({detail})",
        path.display()
    )]
    Garbled {
        /// The socket.
        path: PathBuf,
        /// Details.
        detail: String,
    },
    /// The daemon refused the request, or failed.
    #[error("the daemon reports: {message}")]
    Refused {
        /// The daemon's message.
        message: String,
    },
    /// The client does not wait any longer.
    #[error("interrupted")]
    Interrupted,
    /// A server of NBD listens there.
    #[error("{}: this is an NBD address, not a control socket: omit --control, or see `flaz list`", path.display())]
    Nbd {
        /// The socket.
        path: PathBuf,
    },
    /// Another daemon already listens there.
    #[error(
        "{}: another daemon listens on this control socket: stop it with `flaz stop --control {}`, or use \
         another path with --control",
        path.display(), quoted(path)
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// A file that is not a socket exists there.
    #[error("{} is not a socket: use another --control PATH", path.display())]
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
        /// The user who should own it.
        uid: u32,
        /// What was found.
        found: String,
    },
    /// The socket could not be created.
    #[error("cannot {what} {}", path.display())]
    Make {
        /// The failed action.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}
