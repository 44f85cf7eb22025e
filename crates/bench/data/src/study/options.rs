//! Options of a study, and their limits.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use flaz_codec::CodecSpec;

/// Options of a study.
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
    /// Maximum half-width of the 95 % interval, in points; the sample grows until then.
    pub within_points: f64,
    /// Maximum number of sampled windows of 1 MiB.
    pub windows_max: u64,
    /// Seed for the choice of windows.
    pub seed: u64,
    /// Threads that read and compress.
    pub threads: NonZeroUsize,
}

/// Default of `within_points`.
pub const WITHIN_POINTS_DEFAULT: f64 = 1.0;

/// Default of `windows_max`: 8 GiB.
pub const WINDOWS_MAX_DEFAULT: u64 = 8192;

/// Maximum of `windows_max`: beyond this, reading everything is better.
pub const WINDOWS_MAX: u64 = 1 << 20;

/// Maximum number of codecs.
pub const CODECS_MAX: usize = 8;

/// Maximum number of files; their names are kept in memory.
pub const FILES_MAX: usize = 4_000_000;
