//! Choices in a plan, with the same words in a campaign file and in options.

use flaz_bench::unit::parse_record;
use serde::Deserialize;

use crate::word::words;

words! {
    /// Family of the data for percentage levels.
    #[derive(Default)]
    pub enum FamilyWord {
        /// A run of one byte in each 4 KiB.
        #[default]
        Run => "run",
        /// Copies at a distance of 256 bytes.
        Copies => "copies",
        /// Bytes of unequal frequency.
        Alphabet => "alphabet",
        /// The data that IOzone writes.
        Iozone => "iozone",
        /// Chunks drawn from a distribution that `flaz study` measured; it has no percentages, and its level is `replay`.
        Replay => "replay",
    }
}

words! {
    /// Whether the time includes the flush after writes.
    #[derive(Default)]
    pub enum Flush {
        /// The time includes it.
        #[default]
        Timed => "timed",
        /// The time excludes it, as in IOzone without `-e` and `-c`.
        After => "after",
    }
}

words! {
    /// The I/O engine.
    pub enum EngineWord {
        /// System calls, one at a time.
        Sync => "sync",
        /// io_uring.
        IoUring => "io_uring",
    }
}

/// A number of bytes: plain, or as `4KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a size, for example 4096 or \"4KiB\"")]
        enum Raw {
            Number(u64),
            Text(String),
        }
        match Raw::deserialize(deserializer)? {
            Raw::Number(bytes) => Ok(Self(bytes)),
            Raw::Text(text) => parse_record(&text).map(Self).map_err(serde::de::Error::custom),
        }
    }
}
