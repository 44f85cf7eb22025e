//! The words of a plan: each a choice that a campaign file and the options name alike.

use flaz_bench::unit::parse_record;
use serde::{Deserialize, Serialize};

/// How data of a percentage is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FamilyWord {
    /// A run of one byte in each 4 KiB.
    #[default]
    Run,
    /// Copies from 256 bytes before.
    Copies,
    /// Bytes of unequal frequency.
    Alphabet,
    /// As IOzone fills its records.
    Iozone,
    /// Chunks drawn from a distribution that `flaz study` measured; it has no percentage, and its level is `replay`.
    Replay,
}

/// Where the flush after writes is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flush {
    /// In the time.
    #[default]
    Timed,
    /// After it, as IOzone does without `-e` and `-c`.
    After,
}

/// How operations reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineWord {
    /// System calls, one at a time.
    Sync,
    /// io_uring.
    #[serde(rename = "io_uring")]
    IoUring,
}

/// A number of bytes: as such, or as `4KiB`.
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
