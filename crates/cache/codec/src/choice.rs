//! What a cache compresses with, as users write it: a codec, or `auto`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::codec::CodecId;
use crate::registry::choices;
use crate::spec::{CodecSpec, SpecError};

/// The level of zstd at which `auto` compresses blocks that stay. Lower ones leave 3 to 5 % of the capacity (`docs/compression.md`).
/// Decompression takes the same time at each level.
const SECOND_LEVEL: i8 = 6;
/// The level with high effort, without a dictionary and with one: the lowest that is within 2 % of the highest one.
const HIGH_LEVELS: [i8; 2] = [13, 16];
/// The name of [`CodecChoice::Auto`].
const AUTO: &str = "auto";

/// How much processor time a block that stays is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// About 50 us.
    #[default]
    Usual,
    /// About 400 us, to save up to 7 % more. For idle processors.
    High,
}

/// What a cache compresses with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CodecChoice {
    /// One codec for all blocks.
    One(CodecSpec),
    /// LZ4 for new blocks, and zstd for those that stay for long, where that pays; for new ones, too, while processors have time to spare.
    Auto,
}

impl CodecChoice {
    /// The number of [`Self::Auto`] on disk, in place of that of a codec. No fragment has it.
    const AUTO_ID: CodecId = CodecId(254);

    /// Every block is stored raw.
    pub const NONE: Self = Self::One(CodecSpec::NONE);

    /// The choice of number `id` at `level`, or at the default level; choices without levels take 0.
    ///
    /// # Errors
    /// If there is no such choice.
    pub fn new(id: CodecId, level: Option<i8>) -> Result<Self, SpecError> {
        match (id, level) {
            (Self::AUTO_ID, None | Some(0)) => Ok(Self::Auto),
            _ => CodecSpec::new(id, level).map(Self::One),
        }
    }

    /// The number on disk.
    #[must_use]
    pub fn id(self) -> CodecId {
        match self {
            Self::One(codec) => codec.id(),
            Self::Auto => Self::AUTO_ID,
        }
    }

    /// The level; 0 if there are none.
    #[must_use]
    pub fn level(self) -> i8 {
        match self {
            Self::One(codec) => codec.level(),
            Self::Auto => 0,
        }
    }

    /// The codec for new blocks.
    #[must_use]
    pub fn first(self) -> CodecSpec {
        match self {
            Self::One(codec) => codec,
            Self::Auto => CodecSpec::LZ4,
        }
    }

    /// The codec for blocks that stay for long, and for new ones while processors have time to spare, if that is another one.
    #[must_use]
    pub fn second(self, effort: Effort, has_dictionary: bool) -> Option<CodecSpec> {
        let level = match effort {
            Effort::Usual => SECOND_LEVEL,
            Effort::High => HIGH_LEVELS[usize::from(has_dictionary)],
        };
        match self {
            Self::One(_) => None,
            Self::Auto => CodecSpec::new(CodecId::ZSTD, Some(level)).ok(),
        }
    }

    /// Whether `codec` is the second codec, at any effort. It uses the dictionary of the cache.
    #[must_use]
    pub fn is_second(self, codec: CodecSpec) -> bool {
        self.second(Effort::Usual, false)
            .is_some_and(|second| second.id() == codec.id())
    }

    /// Whether blocks are compressed with `codec`.
    #[must_use]
    pub fn uses(self, codec: CodecSpec) -> bool {
        self.first() == codec || self.is_second(codec)
    }

    /// All choices, for a sentence.
    #[must_use]
    pub fn choices() -> String {
        format!("{AUTO} (lz4, and zstd where that pays), {}", choices())
    }
}

impl Default for CodecChoice {
    fn default() -> Self {
        Self::One(CodecSpec::default())
    }
}

impl From<CodecSpec> for CodecChoice {
    fn from(codec: CodecSpec) -> Self {
        Self::One(codec)
    }
}

impl fmt::Display for CodecChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(codec) => codec.fmt(f),
            Self::Auto => f.pad(AUTO),
        }
    }
}

impl FromStr for CodecChoice {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text == AUTO {
            return Ok(Self::Auto);
        }
        CodecSpec::parse_among(text, &Self::choices()).map(Self::One)
    }
}

impl TryFrom<String> for CodecChoice {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<CodecChoice> for String {
    fn from(choice: CodecChoice) -> Self {
        choice.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_read_back_from_their_names_and_numbers() {
        for text in ["auto", "none", "lz4", "zstd:-3", "zlib:6", "lzo"] {
            let choice: CodecChoice = text.parse().expect("a choice");
            assert_eq!(choice.to_string(), text);
            assert_eq!(CodecChoice::new(choice.id(), Some(choice.level())), Ok(choice));
            assert!(choice.uses(choice.first()));
            for (effort, dictionary) in [
                (Effort::Usual, false),
                (Effort::High, false),
                (Effort::High, true),
            ] {
                let second = choice.second(effort, dictionary);
                assert_eq!(second.is_some(), text == "auto");
                assert!(second.is_none_or(|codec| choice.uses(codec) && choice.is_second(codec)));
            }
            assert!(!choice.is_second(choice.first()));
        }
        assert_eq!(CodecChoice::default(), CodecSpec::LZ4.into());
        assert!(CodecChoice::new(CodecChoice::AUTO_ID, Some(3)).is_err());
        assert!(
            CodecSpec::new(CodecChoice::AUTO_ID, None).is_err(),
            "no fragment has it"
        );
    }

    #[test]
    fn wrong_choices_list_the_right_ones() {
        let message = |text: &str| text.parse::<CodecChoice>().unwrap_err().to_string();
        assert!(
            message("gzip").contains("expected auto (lz4, and zstd"),
            "{}",
            message("gzip")
        );
        assert!(message("auto:3").contains("expected auto"));
        assert!(message("zstd:20").contains("expected -7 to 19"));
    }
}
