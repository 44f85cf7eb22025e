//! What can end the demo early, and what to do about it.

use std::io;
use std::path::PathBuf;

use flaz_nbd::client::ClientError;

use crate::oracle::Mismatch;
use flaz_control::size::HumanBytes;

/// Why the demo stopped.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// SIGINT or SIGTERM came. Everything has been cleaned up.
    #[error("interrupted")]
    Interrupted,
    /// An option that does not go together with another one or with this machine.
    #[error("{0}")]
    Usage(String),
    /// A system call on a file or folder failed.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried, as a verb: "create", "read".
        action: &'static str,
        /// What it was tried on.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Not enough room for the image, its copy and the cache.
    #[error(
        "{} has {} free, the demo needs {}: use a directory with more space (--dir), or a smaller --size",
        path.display(), HumanBytes(*free), HumanBytes(*needed)
    )]
    NoSpace {
        /// Folder looked at.
        path: PathBuf,
        /// Bytes available to this user.
        free: u64,
        /// Bytes the demo would use at most.
        needed: u64,
    },
    /// Too little to read.
    #[error(
        "found {} in readable files of 4 KiB and more under {places}, the demo needs at least {}: choose a \
         directory with more data (--data DIR), or use --data random",
        HumanBytes(*found), HumanBytes(*needed)
    )]
    NoData {
        /// Where it looked.
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
        /// Exit status or what did not happen.
        reason: String,
        /// The end of what it said, on lines of its own; empty when it said nothing.
        log: String,
    },
    /// The server answered with an error or not at all.
    #[error("client {client}: {source}")]
    Client {
        /// Number of the client, from 0.
        client: u32,
        /// What the protocol client said.
        source: ClientError,
    },
    /// The data read is not the data written. The gravest thing a cache can do.
    #[error("WRONG DATA during {during}: {mismatch}")]
    WrongData {
        /// Which run and phase.
        during: String,
        /// Which block, and what it should be.
        mismatch: Mismatch,
    },
    /// The counters of the cache could not be read.
    #[error("cannot parse the output of `flaz status`: {0}")]
    Status(String),
}

impl DemoError {
    /// Attaches what was tried on which path: for `map_err`.
    pub fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}
