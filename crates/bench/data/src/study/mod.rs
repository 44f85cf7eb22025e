//! `flaz study`: what real data would gain from compression, by sampling or in full.
//!
//! The files are laid end to end, each padded to 4 KiB, as a file system lays them on a device; windows of 1 MiB of
//! that are drawn at random without replacement, and each is compressed in chunks of 4 KiB, 64 KiB and 1 MiB.
//! Neighbouring chunks are alike, so a window counts as one observation: intervals come from the variance between
//! windows, which is honest about clusters where counting chunks is not.
//!
//! | module | what it holds |
//! |---|---|
//! | [`population`] | what there is to study, and reading a window of it |
//! | [`window`] | what is measured of a window |
//! | [`sample`] | which windows, by how many threads, until when |
//! | [`estimate`] | from windows to shares with intervals |
//! | [`duplicates`] | how many blocks repeat others, as far as a sample can tell |
//! | [`outlook`] | what a flaz cache would hold, what a compressing SSD would gain |
//! | [`report`], [`page`] | the result, as JSON and on a page |

pub mod duplicates;
pub mod estimate;
pub mod outlook;
pub mod page;
pub mod population;
pub mod report;
pub mod sample;
pub mod window;

use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use flaz_codec::CodecSpec;
pub use report::StudyReport;
pub use sample::{Progress, study};

/// What to study and how.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyOptions {
    /// Files, directories, block devices, images.
    pub paths: Vec<PathBuf>,
    /// Read everything instead of a sample.
    pub exact: bool,
    /// Codecs; LZ4 and zstd:1 are needed for the distribution and are added.
    pub codecs: Vec<CodecSpec>,
    /// Size of a flaz cache to assess, in bytes.
    pub cache_bytes: Option<u64>,
    /// Half of the 95 % interval, in points, at which a sample is large enough.
    pub within_points: f64,
    /// Most windows of 1 MiB that are sampled.
    pub windows_max: u64,
    /// What decides which windows are drawn.
    pub seed: u64,
    /// Threads that read and compress.
    pub threads: NonZeroUsize,
}

/// Half-width of the interval at which a sample is large enough, if none is named, in points.
pub const WITHIN_POINTS_DEFAULT: f64 = 1.0;
/// Most windows sampled, if no number is named: 8 GiB.
pub const WINDOWS_MAX_DEFAULT: u64 = 8192;
/// Most windows that may be sampled; more than that is better read in full.
pub const WINDOWS_MAX: u64 = 1 << 20;
/// Most codecs of a study.
pub const CODECS_MAX: usize = 8;

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
    #[error("{} is neither a file nor a directory nor a block device", .0.display())]
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
    #[error(
        "more than {} files: name fewer directories, or the device that they are on",
        population::FILES_MAX
    )]
    TooManyFiles,
    /// Too many codecs.
    #[error("{0} codecs: expected at most {CODECS_MAX}")]
    TooManyCodecs(usize),
    /// Not one window could be read.
    #[error("no part of {places} could be read; the first failure: {first}")]
    Unreadable {
        /// The paths.
        places: String,
        /// The first failure.
        first: String,
    },
}
