//! The compressibility level, and the seed of the data.

use std::fmt;
use std::str::FromStr;

use flaz_random::{Key, mix};
use serde::{Deserialize, Serialize};

/// A percentage, 0 to 100: of saved space, or of duplicate chunks.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "f64", into = "f64")]
pub struct Level(f64);

/// A number or text that is not a percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a percentage: expected a number from 0 to 100, for example 50% or 2.5")]
pub struct LevelError(String);

impl Level {
    /// Nothing.
    pub const ZERO: Self = Self(0.0);
    /// One half.
    pub const HALF: Self = Self(50.0);

    /// The level `percent`.
    ///
    /// # Errors
    /// It is not from 0 to 100.
    pub fn new(percent: f64) -> Result<Self, LevelError> {
        if (0.0..=100.0).contains(&percent) {
            Ok(Self(percent))
        } else {
            Err(LevelError(percent.to_string()))
        }
    }

    /// In percent, 0 to 100.
    #[must_use]
    pub fn percent(self) -> f64 {
        self.0
    }

    /// As a number from 0 to 1.
    #[must_use]
    pub fn share(self) -> f64 {
        self.0 / 100.0
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}%", self.0))
    }
}

impl FromStr for Level {
    type Err = LevelError;

    fn from_str(text: &str) -> Result<Self, LevelError> {
        let trimmed = text.trim();
        let number = trimmed.strip_suffix('%').unwrap_or(trimmed).trim_end();
        number
            .parse()
            .ok()
            .and_then(|percent| Self::new(percent).ok())
            .ok_or_else(|| LevelError(text.to_owned()))
    }
}

impl TryFrom<f64> for Level {
    type Error = LevelError;

    fn try_from(percent: f64) -> Result<Self, LevelError> {
        Self::new(percent)
    }
}

impl From<Level> for f64 {
    fn from(level: Level) -> Self {
        level.0
    }
}

/// The seed of the data. Another campaign or run has different data, so that repeated runs do not deduplicate against
/// each other unless they have the same numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Seed {
    /// Number of the campaign.
    pub campaign: u64,
    /// Number of the run in the campaign.
    pub run: u64,
}

impl Seed {
    /// The key from which everything is derived.
    #[must_use]
    pub fn key(self) -> Key {
        Key::new(mix(self.campaign), self.run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_parse_in_every_form() {
        for (text, percent) in [
            ("50%", 50.0),
            ("50", 50.0),
            (" 2.5 % ", 2.5),
            ("0", 0.0),
            ("100%", 100.0),
        ] {
            assert_eq!(text.parse::<Level>().map(Level::percent), Ok(percent), "{text}");
        }
        for text in ["", "%", "101", "-1", "half", "NaN", "50%%", "inf"] {
            assert!(text.parse::<Level>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_distribution_file_is_validated() {
        assert_eq!(serde_json::from_str::<Level>("12.5").unwrap().percent(), 12.5);
        assert!(serde_json::from_str::<Level>("120").is_err());
    }
}
