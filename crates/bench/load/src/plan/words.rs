//! Choices in a plan, with the same words in a campaign file and in options.

use flaz_bench::unit::parse_record;
use serde::{Deserialize, Serialize};

/// Family of the data for percentage levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FamilyWord {
    /// A run of one byte in each 4 KiB.
    #[default]
    Run,
    /// Copies at a distance of 256 bytes.
    Copies,
    /// Bytes of unequal frequency.
    Alphabet,
    /// The data that IOzone writes.
    Iozone,
    /// Chunks drawn from a distribution that `flaz study` measured; it has no percentages, and its level is `replay`.
    Replay,
}

/// Whether the time includes the flush after writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flush {
    /// The time includes it.
    #[default]
    Timed,
    /// The time excludes it, as in IOzone without `-e` and `-c`.
    After,
}

/// The I/O engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineWord {
    /// System calls, one at a time.
    Sync,
    /// io_uring.
    #[serde(rename = "io_uring")]
    IoUring,
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
