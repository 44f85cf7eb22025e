//! What the user chooses and may change while the cache is being served.

use std::fmt;
use std::str::FromStr;

use flaz_codec::CodecSpec;
use serde::Serialize;

use crate::policy::PolicyKind;

/// How writes and reads use the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A write is acknowledged when the origin has it; the cache is filled as well.
    #[default]
    WriteThrough,
    /// A write is acknowledged when the cache device has it; the cleaner brings it to the origin later.
    WriteBack,
    /// A write is acknowledged when the origin has it; a cached copy is dropped.
    WriteAround,
    /// The cache is neither read nor filled; writes drop cached copies, so that it can be used again later.
    PassThrough,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteThrough => "write-through",
            Self::WriteBack => "write-back",
            Self::WriteAround => "write-around",
            Self::PassThrough => "pass-through",
        })
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [
            Self::WriteThrough,
            Self::WriteBack,
            Self::WriteAround,
            Self::PassThrough,
        ]
        .into_iter()
        .find(|mode| mode.to_string() == text)
        .ok_or_else(|| {
            format!("unknown mode '{text}': expected write-through, write-back, write-around or pass-through")
        })
    }
}

/// What a start after a crash finds. Chosen at each opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfterCrash {
    /// The cache, but for stripes that were being written to: costs an intent before the first write of a stripe.
    #[default]
    Warm,
    /// Nothing.
    Cold,
}

/// What can be changed while the cache is being served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// How writes and reads use the cache.
    pub mode: Mode,
    /// Admission and reclaim.
    pub policy: PolicyKind,
    /// Codec for new blocks.
    pub codec: CodecSpec,
    /// Reads of a sequential stream beyond this many bytes are not admitted; 0 admits all.
    pub sequential_cutoff: u64,
    /// Most of the cache device that dirty blocks may take, in percent of what holds data: 1 to
    /// [`DIRTY_PERCENT_MAX`].
    pub dirty_percent: u8,
}

/// Most that [`Settings::dirty_percent`] may be. Reclaim can always go on with what is left.
pub const DIRTY_PERCENT_MAX: u8 = 50;
/// What [`Settings::dirty_percent`] is unless chosen.
pub const DIRTY_PERCENT_DEFAULT: u8 = 25;
