//! A codec and its level as users write them: `lz4`, `zstd:3`, `zstd:-5`, `zlib:6`, `lzo`, `none`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::codec::{Codec, CodecId, Encoder};
use crate::dictionary::Dictionary;
use crate::registry::{by_id, by_name, choices};
use crate::{lz4, none, zlib, zstd};

/// The codec to compress with, and its level.
///
/// Invariant: the codec is registered and the level is valid for it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CodecSpec {
    id: CodecId,
    level: i8,
}

impl CodecSpec {
    /// Every block is stored raw.
    pub const NONE: Self = Self {
        id: CodecId::RAW,
        level: 0,
    };
    /// LZ4.
    pub const LZ4: Self = Self {
        id: CodecId::LZ4,
        level: 0,
    };
    /// zstd at its default level.
    pub const ZSTD: Self = Self {
        id: CodecId::ZSTD,
        level: zstd::LEVEL_DEFAULT,
    };
    /// zlib at its default level.
    pub const ZLIB: Self = Self {
        id: CodecId::ZLIB,
        level: zlib::LEVEL_DEFAULT,
    };

    /// The codec of number `id` at `level`, or at its default level; codecs without levels take 0.
    ///
    /// # Errors
    /// If no codec has this number, or the codec has no such level.
    pub fn new(id: CodecId, level: Option<i8>) -> Result<Self, SpecError> {
        let codec = by_id(id).ok_or_else(|| SpecError::unknown(&id.to_string(), &choices()))?;
        match (&codec.levels, level) {
            (None, None | Some(0)) => Ok(Self { id, level: 0 }),
            (Some(levels), None) => Ok(Self {
                id,
                level: levels.default,
            }),
            (Some(levels), Some(level)) if levels.range.contains(&level) => Ok(Self { id, level }),
            (_, Some(level)) => Err(SpecError::level(codec, &level.to_string())),
        }
    }

    /// The number on disk.
    #[must_use]
    pub fn id(self) -> CodecId {
        self.id
    }

    /// The level; 0 where a codec has none.
    #[must_use]
    pub fn level(self) -> i8 {
        self.level
    }

    /// As written by users. `choices` is what an unknown name is answered with.
    pub(crate) fn parse_among(text: &str, choices: &str) -> Result<Self, SpecError> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let codec = by_name(name).ok_or_else(|| SpecError::unknown(text, choices))?;
        match level {
            None => Self::new(codec.id, None),
            Some(_) if codec.levels.is_none() => Err(SpecError::level(codec, text)),
            Some(level) => {
                let level = level.parse().map_err(|_| SpecError::level(codec, level))?;
                Self::new(codec.id, Some(level))
            }
        }
    }

    fn codec(self) -> &'static Codec {
        by_id(self.id).unwrap_or(if self.id == CodecId::RAW {
            &none::CODEC
        } else {
            &lz4::CODEC
        })
    }
}

impl Default for CodecSpec {
    fn default() -> Self {
        Self::LZ4
    }
}

impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codec = self.codec();
        match codec.levels {
            Some(_) => f.pad(&format!("{}:{}", codec.name, self.level)),
            None => f.pad(codec.name),
        }
    }
}

impl fmt::Debug for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CodecSpec({self})")
    }
}

impl FromStr for CodecSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::parse_among(text, &choices())
    }
}

impl TryFrom<String> for CodecSpec {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<CodecSpec> for String {
    fn from(spec: CodecSpec) -> Self {
        spec.to_string()
    }
}

/// A codec or level that does not exist; the message lists those that do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(String);

impl SpecError {
    fn unknown(found: &str, choices: &str) -> Self {
        Self(format!("unknown codec {found:?}: expected {choices}"))
    }

    fn level(codec: &Codec, found: &str) -> Self {
        Self(match &codec.levels {
            Some(levels) => {
                let (low, high) = (levels.range.start(), levels.range.end());
                format!(
                    "{} has no level {found:?}: expected {low} to {high}, for example {}:{}",
                    codec.name, codec.name, levels.default
                )
            }
            None => format!(
                "{} has no levels: expected {:?}, found {found:?}",
                codec.name, codec.name
            ),
        })
    }
}

/// An encoder for `spec`. It keeps tables of up to a few hundred KiB (a few MiB for the high levels of zstd): create
/// one per thread.
#[must_use]
pub fn encoder(spec: CodecSpec) -> Box<dyn Encoder + Send> {
    (spec.codec().encoder)(spec.level())
}

/// An encoder for `spec` that uses a dictionary. `None`: the codec has none, or the contents are only good for decoding.
#[must_use]
pub fn encoder_with(dictionary: &Dictionary, spec: CodecSpec) -> Option<Box<dyn Encoder + Send>> {
    if spec.id() != CodecId::ZSTD {
        return None;
    }
    zstd::encoder_with(dictionary, spec.level())
}
