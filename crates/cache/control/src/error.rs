//! Why a daemon cannot be asked, and messages with their causes.

use std::error::Error;
use std::path::PathBuf;

/// The message of `error` with its causes, each said once.
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
