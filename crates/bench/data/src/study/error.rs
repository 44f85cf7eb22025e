//! Errors of a study.

use std::io;
use std::path::PathBuf;

use super::options::{CODECS_MAX, FILES_MAX};

/// Why a study failed.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// A path that was specified.
    #[error("cannot {action} {}", path.display())]
    Path {
        /// The failed action: "read", "list".
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is not a file, a directory or a block device.
    #[error("{} is not a file, a directory or a block device", .0.display())]
    Kind(PathBuf),
    /// There is no data.
    #[error("nothing to study in {places}: found no readable file with contents{skipped}")]
    Nothing {
        /// The paths.
        places: String,
        /// What was skipped, if anything, with a separator in front.
        skipped: String,
    },
    /// Too many files to keep their names.
    #[error("more than {} files: name fewer directories, or their device", FILES_MAX)]
    TooManyFiles,
    /// Too many codecs.
    #[error("{0} codecs: the maximum is {CODECS_MAX}")]
    TooManyCodecs(usize),
    /// No window could be read.
    #[error("no part of {places} could be read; the first error: {first}")]
    Unreadable {
        /// The paths.
        places: String,
        /// The first error.
        first: String,
    },
}
