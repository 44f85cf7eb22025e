//! Errors that end the demo early, and what to do about them.

use std::io;
use std::path::PathBuf;

use flaz_nbd::client::ClientError;

use crate::oracle::Mismatch;
use flaz_control::size::HumanBytes;

/// Why the demo stopped.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// SIGINT or SIGTERM arrived. Everything was cleaned up.
    #[error("interrupted")]
    Interrupted,
    /// An option that is not valid with another one or on this machine.
    #[error("{0}")]
    Usage(String),
    /// A system call on a file or directory failed.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The failed action, as a verb: "create", "read".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Not enough space for the image, its copy and the cache.
    #[error(
        "{} has {} free, the demo needs {}: use a directory with more space (--dir), or a smaller --size",
        path.display(), HumanBytes(*free), HumanBytes(*needed)
    )]
    NoSpace {
        /// Directory.
        path: PathBuf,
        /// Bytes available to this user.
        free: u64,
        /// Maximum number of bytes that the demo needs.
        needed: u64,
    },
    /// Not enough data.
    #[error(
        "found {} in readable files of 4 KiB and more under {places}, the demo needs at least {}: choose a \
         directory with more data (--data DIR), or use --data random",
        HumanBytes(*found), HumanBytes(*needed)
    )]
    NoData {
        /// The directories.
        places: String,
        /// Bytes in whole blocks found.
        found: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// A `flaz` command that the demo started failed.
    #[error("`{command}` failed: {reason}{log}")]
    Child {
        /// The command line.
        command: String,
        /// Exit status, or the step that failed.
        reason: String,
        /// The end of its output, on separate lines; empty if there was none.
        log: String,
    },
    /// The server replied with an error or not at all.
    #[error("client {client}: {source}")]
    Client {
        /// Number of the client, from 0.
        client: u32,
        /// The error of the NBD client.
        source: ClientError,
    },
    /// The data read differs from the data written: the worst error of a cache.
    #[error("WRONG DATA during {during}: {mismatch}")]
    WrongData {
        /// The run and phase.
        during: String,
        /// The block, and its expected contents.
        mismatch: Mismatch,
    },
    /// The counters of the cache could not be read.
    #[error("cannot parse the output of `flaz status`: {0}")]
    Status(String),
}

impl DemoError {
    /// Adds action and path to an error, for `map_err`.
    pub fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}
