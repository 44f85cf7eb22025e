//! The requested data: family, level, chunk size, share of duplicates, seed.

use std::fmt;
use std::sync::Arc;

use crate::distribution::Distribution;
use crate::layout::CELL_BYTES;
use crate::level::{Level, Seed};

/// Minimum chunk size: a sector.
pub const CHUNK_BYTES_MIN: u64 = 512;
/// Maximum chunk size; the generator keeps a unit of at most that size per thread.
pub const CHUNK_BYTES_MAX: u64 = 16 << 20;
/// Maximum share of duplicates: the first chunk is never one.
pub const DEDUP_PERCENT_MAX: f64 = 99.0;
/// Default distance of copies.
pub const DISTANCE_BYTES_DEFAULT: u64 = 256;
/// Minimum distance of copies: matching codecs skip ahead in random data and miss closer ones.
pub const DISTANCE_BYTES_MIN: u64 = 16;

/// A kind of compressible data.
#[derive(Clone, Debug, PartialEq)]
pub enum Family {
    /// A run of one byte in each 4 KiB, of calibrated length, the rest random.
    Run,
    /// Copies of random bytes at a distance.
    Copies {
        /// Distance from the copy back to the original, in bytes.
        distance_bytes: u64,
    },
    /// Bytes of unequal frequency, without repetition: only an entropy coder saves space.
    Alphabet,
    /// Chunks drawn from a measured distribution.
    Replay(Arc<Distribution>),
    /// The data that IOzone writes for a percentage.
    Iozone,
    /// Zeroes.
    Zeros,
    /// Random bytes.
    Random,
    /// A level drawn for each chunk, from 0 to 100 percent, reached by a run.
    RandomLevel,
}

impl Family {
    /// Names of all families on the command line.
    pub const NAMES: [&'static str; 8] = [
        "run",
        "copies",
        "alphabet",
        "replay",
        "iozone",
        "zeros",
        "random",
        "random-level",
    ];

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Copies { .. } => "copies",
            Self::Alphabet => "alphabet",
            Self::Replay(_) => "replay",
            Self::Iozone => "iozone",
            Self::Zeros => "zeros",
            Self::Random => "random",
            Self::RandomLevel => "random-level",
        }
    }

    /// Whether the family uses the level.
    #[must_use]
    pub fn has_level(&self) -> bool {
        matches!(
            self,
            Self::Run | Self::Copies { .. } | Self::Alphabet | Self::Iozone
        )
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A specification of data.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSpec {
    /// Kind of data.
    pub family: Family,
    /// Requested savings; some families ignore them.
    pub level: Level,
    /// Unit of duplicates, of drawn levels and of IOzone's records: a power of two from 512 bytes to 16 MiB.
    pub chunk_bytes: u64,
    /// Share of duplicate chunks.
    pub dedup: Level,
    /// Seed.
    pub seed: Seed,
}

/// Data that cannot be generated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Chunk size.
    #[error("a chunk of {0} bytes: expected a power of two from 512 bytes to 16 MiB")]
    Chunk(u64),
    /// Too many duplicates.
    #[error("{0} duplicates: expected at most 99%, because the first chunk of each kind is not a duplicate")]
    Dedup(String),
    /// Copies whose source is outside of the chunk.
    #[error(
        "copies at a distance of {distance_bytes} bytes in chunks of {chunk_bytes}: expected a distance from \
         16 bytes to half a chunk; a larger chunk allows a larger one"
    )]
    Distance {
        /// Requested distance.
        distance_bytes: u64,
        /// Requested chunk size.
        chunk_bytes: u64,
    },
    /// A distribution measured at other chunk sizes.
    #[error(
        "the distribution was measured at chunks of {measured} bytes, not of {chunk_bytes}: use one of its \
         sizes"
    )]
    Replay {
        /// Sizes in the file.
        measured: String,
        /// Requested chunk size.
        chunk_bytes: u64,
    },
}

impl DataSpec {
    /// Data of a family, in chunks of 4 KiB without duplicates, of the first run of the first campaign.
    #[must_use]
    pub fn new(family: Family, level: Level) -> Self {
        Self {
            family,
            level,
            chunk_bytes: CELL_BYTES as u64,
            dedup: Level::ZERO,
            seed: Seed::default(),
        }
    }

    /// Checks whether such data can be generated.
    ///
    /// # Errors
    /// The first problem.
    pub fn check(&self) -> Result<(), SpecError> {
        let chunk_bytes = self.chunk_bytes;
        if !chunk_bytes.is_power_of_two() || !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk_bytes) {
            return Err(SpecError::Chunk(chunk_bytes));
        }
        if self.dedup.percent() > DEDUP_PERCENT_MAX {
            return Err(SpecError::Dedup(self.dedup.to_string()));
        }
        match &self.family {
            Family::Copies { distance_bytes }
                if !(DISTANCE_BYTES_MIN..=chunk_bytes / 2).contains(distance_bytes) =>
            {
                Err(SpecError::Distance {
                    distance_bytes: *distance_bytes,
                    chunk_bytes,
                })
            }
            Family::Replay(distribution) if distribution.size(chunk_bytes).is_none() => {
                Err(SpecError::Replay {
                    measured: distribution.sizes_text(),
                    chunk_bytes,
                })
            }
            _ => Ok(()),
        }
    }
}
