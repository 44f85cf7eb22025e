//! The kinds of data that distinguish devices.

use std::fmt;

use serde::{Serialize, Serializer};

/// Distances of copies, in bytes. A device detects them only if it compresses units of at least twice this size with a
/// window of at least this size.
pub const COPY_DISTANCES_BYTES: [u64; 6] = [2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];

/// A kind of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// Random bytes: no gain is possible.
    Random,
    /// Data of which compression saves this percentage, in each 4 KiB.
    Level(u8),
    /// Zeros.
    Zeros,
    /// Bytes of 16 values, without repetition: only an entropy coder saves half.
    Alphabet,
    /// The second half of each unit repeats the first, rotated, so that no block equals another. A device that
    /// compresses units of twice the distance saves half.
    Copy {
        /// The distance in bytes.
        distance_bytes: u64,
    },
    /// As above, shifted by the distance, so that each aligned unit of twice the distance contains a copy and the
    /// original of another. Only a device with larger units gains. Distinguishes a short unit from a short window.
    Across {
        /// The distance in bytes.
        distance_bytes: u64,
    },
    /// Random blocks of 4 KiB, each repeated many times, in random order and far apart: only deduplication gains.
    Duplicates,
}

impl Pattern {
    /// All of them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Random,
            Self::Level(25),
            Self::Level(50),
            Self::Level(75),
            Self::Zeros,
            Self::Alphabet,
            Self::Duplicates,
        ];
        all.extend(COPY_DISTANCES_BYTES.map(|distance_bytes| Self::Copy { distance_bytes }));
        all.extend(COPY_DISTANCES_BYTES.map(|distance_bytes| Self::Across { distance_bytes }));
        all
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => f.pad("random"),
            Self::Level(percent) => f.pad(&format!("{percent} %")),
            Self::Zeros => f.pad("zeros"),
            Self::Alphabet => f.pad("4-bit alphabet"),
            Self::Copy { distance_bytes } => f.pad(&format!("copies, {} KiB", distance_bytes >> 10)),
            Self::Across { distance_bytes } => {
                f.pad(&format!("copies across units, {} KiB", distance_bytes >> 10))
            }
            Self::Duplicates => f.pad("duplicates"),
        }
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
