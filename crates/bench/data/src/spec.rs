//! What data is asked for: family, level, chunk size, dedup share, seed.

use std::fmt;
use std::sync::Arc;

use crate::distribution::Distribution;
use crate::layout::CELL_BYTES;
use crate::level::{Level, Seed};

/// Smallest chunk: a sector.
pub const CHUNK_BYTES_MIN: u64 = 512;
/// Largest chunk; the generator keeps a unit of at most that size a thread.
pub const CHUNK_BYTES_MAX: u64 = 16 << 20;
/// Most duplicates: some chunk has to be first.
pub const DEDUP_PERCENT_MAX: f64 = 99.0;
/// Distance of copies if none is named.
pub const DISTANCE_BYTES_DEFAULT: u64 = 256;
/// Smallest distance of copies: matching codecs skip ahead in random data and miss closer ones.
pub const DISTANCE_BYTES_MIN: u64 = 16;

/// A way to make data that compresses.
#[derive(Clone, Debug, PartialEq)]
pub enum Family {
    /// A run of one byte in each 4 KiB, of calibrated length, the rest random.
    Run,
    /// Copies of random bytes at a distance.
    Copies {
        /// How far back the copies are taken from, in bytes.
        distance_bytes: u64,
    },
    /// Bytes of unequal frequency, without repetition: only an entropy coder gains.
    Alphabet,
    /// Chunks drawn from a measured distribution.
    Replay(Arc<Distribution>),
    /// As IOzone fills its records when asked for a percentage.
    Iozone,
    /// Zeroes.
    Zeros,
    /// Random bytes.
    Random,
    /// A level drawn for each chunk, from 0 to 100 percent, reached by a run.
    RandomLevel,
}

impl Family {
    /// Names of all families, as a user gives them.
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

    /// Whether the level that is asked for means anything to it.
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

/// What data is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSpec {
    /// How it is made.
    pub family: Family,
    /// Share of space to be saved; some families have none.
    pub level: Level,
    /// Unit of duplication, of drawn levels and of IOzone's records: a power of two from 512 bytes to 16 MiB.
    pub chunk_bytes: u64,
    /// Share of the chunks that repeat an earlier one.
    pub dedup: Level,
    /// What it is a function of.
    pub seed: Seed,
}

/// Data that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Chunk size.
    #[error("a chunk of {0} bytes: expected a power of two from 512 bytes to 16 MiB")]
    Chunk(u64),
    /// Too many duplicates.
    #[error("{0} duplicates: expected at most 99%, because the first chunk of each kind is not a duplicate")]
    Dedup(String),
    /// Copies from outside of the chunk.
    #[error(
        "copies at a distance of {distance_bytes} bytes in chunks of {chunk_bytes}: expected a distance from \
         16 bytes to half a chunk; a larger chunk allows a larger one"
    )]
    Distance {
        /// Distance asked for.
        distance_bytes: u64,
        /// Chunk size asked for.
        chunk_bytes: u64,
    },
    /// A distribution that was measured at other sizes.
    #[error(
        "the distribution was measured at chunks of {measured} bytes, not of {chunk_bytes}: use one of its \
         sizes"
    )]
    Replay {
        /// Sizes in the file.
        measured: String,
        /// Chunk size asked for.
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

    /// Says whether such data can be made.
    ///
    /// # Errors
    /// The first thing that is wrong.
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
