//! Why a study could not be made.

use std::io;
use std::path::PathBuf;

use super::options::{CODECS_MAX, FILES_MAX};

/// A study that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// A path that was named.
    #[error("cannot {action} {}", path.display())]
    Path {
        /// What was tried: "read", "list".
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Neither file nor directory nor block device.
    #[error("{} is not a file, a directory or a block device", .0.display())]
    Kind(PathBuf),
    /// Nothing in it.
    #[error("nothing to study in {places}: found no readable file with contents{skipped}")]
    Nothing {
        /// The paths.
        places: String,
        /// What was left out, if anything, with a separator in front.
        skipped: String,
    },
    /// Too many files to keep their names.
    #[error("more than {} files: name fewer directories, or their device", FILES_MAX)]
    TooManyFiles,
    /// Too many codecs.
    #[error("{0} codecs: the maximum is {CODECS_MAX}")]
    TooManyCodecs(usize),
    /// Not one window could be read.
    #[error("no part of {places} could be read; the first error: {first}")]
    Unreadable {
        /// The paths.
        places: String,
        /// The first failure.
        first: String,
    },
}
