//! What to study and how, with the limits.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use flaz_codec::CodecSpec;

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

/// Most files of a study; their names are kept.
pub const FILES_MAX: usize = 4_000_000;
