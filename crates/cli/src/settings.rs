//! The choices a user makes: mode, policy, codec, addresses, emulation. Text form, JSON form and type, once.
//!
//! Command line, control protocol and status report all use these types, so a word that one of them accepts
//! or prints is the same word everywhere.

use std::fmt;

use clap::ValueEnum;
use flaz_codec::{CodecSpec, SpecError};
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::DIRTY_PERCENT_MAX;
use serde::{Deserialize, Serialize};

use crate::size::{self, SizeError};

/// When a write is acknowledged, and what becomes of the cached copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Acknowledge when the origin has it; the cache is filled as well
    WriteThrough,
    /// Acknowledge when the cache device has it; the origin gets it later
    WriteBack,
    /// Acknowledge when the origin has it; the cached copy is dropped
    WriteAround,
    /// The cache is not used at all
    PassThrough,
}

/// Which blocks the cache takes, and which survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Two rings, probation and main: the best hit ratio on real workloads
    S3Fifo,
    /// Admit a block at its second miss: writes a third to a half as much to the SSD
    SecondTouch,
    /// Admit every block, drop the oldest; nothing is written to the SSD twice
    Fifo,
}

/// What is left of the cache after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AfterCrash {
    /// Everything but what was being written to
    Warm,
    /// Nothing
    Cold,
}

impl From<AfterCrash> for flaz_engine::settings::AfterCrash {
    fn from(choice: AfterCrash) -> Self {
        match choice {
            AfterCrash::Warm => Self::Warm,
            AfterCrash::Cold => Self::Cold,
        }
    }
}

impl From<Mode> for flaz_engine::settings::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::WriteThrough => Self::WriteThrough,
            Mode::WriteBack => Self::WriteBack,
            Mode::WriteAround => Self::WriteAround,
            Mode::PassThrough => Self::PassThrough,
        }
    }
}

impl From<flaz_engine::settings::Mode> for Mode {
    fn from(mode: flaz_engine::settings::Mode) -> Self {
        use flaz_engine::settings::Mode as Engine;
        match mode {
            Engine::WriteThrough => Self::WriteThrough,
            Engine::WriteBack => Self::WriteBack,
            Engine::WriteAround => Self::WriteAround,
            Engine::PassThrough => Self::PassThrough,
        }
    }
}

impl From<Policy> for PolicyKind {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::S3Fifo => Self::S3Fifo,
            Policy::SecondTouch => Self::SecondTouch,
            Policy::Fifo => Self::Fifo,
        }
    }
}

impl From<PolicyKind> for Policy {
    fn from(policy: PolicyKind) -> Self {
        match policy {
            PolicyKind::S3Fifo => Self::S3Fifo,
            PolicyKind::SecondTouch => Self::SecondTouch,
            PolicyKind::Fifo => Self::Fifo,
        }
    }
}

/// A made-up slow device in place of the real one, for demonstrations and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Emulation {
    /// Hard disk: 12.6 ms, 100 MB/s read, 90 MB/s written
    Hdd,
    /// SATA SSD: 0.17 ms, 277 MB/s read, 202 MB/s written
    Ssd,
    /// Cloud network volume: 1 ms, 125 MB/s, 3,000 IOPS
    NetworkVolume,
}

macro_rules! text_of_value_enum {
    ($($type:ty),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.to_possible_value() {
                    Some(value) => f.pad(value.get_name()),
                    None => Ok(()),
                }
            }
        }
    )*};
}
text_of_value_enum!(Mode, Policy, Emulation);

/// Where NBD clients connect: the server's own type, so that what it would refuse is refused before a device is opened.
pub use flaz_nbd::NbdAddress;

/// Why a text is not a setting.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// No such codec or level.
    #[error("codec: {0}")]
    Codec(#[from] SpecError),
    /// Not a dirty limit.
    #[error(
        "dirty-limit '{0}': expected 1 to {DIRTY_PERCENT_MAX} percent of the cache device, as in dirty-limit=25"
    )]
    DirtyLimit(String),
    /// Not `KEY=VALUE`.
    #[error("'{0}': expected KEY=VALUE, as in mode=write-around; keys are {KEYS}")]
    AssignmentForm(String),
    /// A key that cannot be set.
    #[error("'{0}' cannot be set while the cache runs; keys are {KEYS}")]
    UnknownKey(String),
    /// The same key twice.
    #[error("'{0}' is given twice: give it once")]
    Twice(String),
    /// A value that is none of those possible.
    #[error("{key}={value}: expected one of {possible}")]
    Value {
        /// Key as given.
        key: String,
        /// Value as given.
        value: String,
        /// Values that would do, separated by commas.
        possible: String,
    },
    /// A size that is none.
    #[error("{key}: {source}")]
    Size {
        /// Key as given.
        key: String,
        /// What is wrong with it.
        source: SizeError,
    },
}

const KEYS: &str = "mode, policy (or admission), codec, sequential-cutoff, dirty-limit";

/// What can be changed while the cache runs; a field left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SettingsPatch {
    /// New mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// New policy of admission and reclaim.
    #[serde(default, alias = "admission", skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Codec for blocks that come from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codec: Option<CodecSpec>,
    /// Sequential runs longer than this many bytes are not admitted; 0 admits all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequential_cutoff: Option<u64>,
    /// Most of the cache device that dirty blocks may take, in percent: 1 to 50.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "dirty_limit"
    )]
    pub dirty_limit: Option<u8>,
}

impl SettingsPatch {
    /// Whether nothing would change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads `KEY=VALUE` texts, as `flaz set` takes them.
    ///
    /// # Errors
    /// A form, key or value that is none, or a key given twice.
    pub fn parse<S: AsRef<str>>(assignments: &[S]) -> Result<Self, SettingError> {
        let mut patch = Self::default();
        for assignment in assignments {
            let assignment = assignment.as_ref();
            let (key, value) = assignment
                .split_once('=')
                .ok_or_else(|| SettingError::AssignmentForm(assignment.to_owned()))?;
            let twice = match key {
                "mode" => patch.mode.replace(parse_word(key, value)?).is_some(),
                "policy" | "admission" => patch.policy.replace(parse_word(key, value)?).is_some(),
                "codec" => patch.codec.replace(value.parse::<CodecSpec>()?).is_some(),
                "sequential-cutoff" => {
                    let bytes = size::parse(value).map_err(|source| SettingError::Size {
                        key: key.to_owned(),
                        source,
                    })?;
                    patch.sequential_cutoff.replace(bytes).is_some()
                }
                "dirty-limit" => patch.dirty_limit.replace(parse_dirty_limit(value)?).is_some(),
                _ => return Err(SettingError::UnknownKey(key.to_owned())),
            };
            if twice {
                return Err(SettingError::Twice(key.to_owned()));
            }
        }
        Ok(patch)
    }
}

/// Reads a dirty limit: a number of percent, with or without its sign.
///
/// # Errors
/// It is none, or not 1 to 50.
pub fn parse_dirty_limit(text: &str) -> Result<u8, SettingError> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<u8>();
    number
        .ok()
        .filter(|percent| (1..=DIRTY_PERCENT_MAX).contains(percent))
        .ok_or_else(|| SettingError::DirtyLimit(text.to_owned()))
}

fn dirty_limit<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u8>, D::Error> {
    let percent = Option::<u64>::deserialize(from)?;
    percent
        .map(|percent| parse_dirty_limit(&percent.to_string()).map_err(serde::de::Error::custom))
        .transpose()
}

fn parse_word<T: ValueEnum>(key: &str, value: &str) -> Result<T, SettingError> {
    T::from_str(value, false).map_err(|_| SettingError::Value {
        key: key.to_owned(),
        value: value.to_owned(),
        possible: T::value_variants()
            .iter()
            .filter_map(|variant| Some(variant.to_possible_value()?.get_name().to_owned()))
            .collect::<Vec<_>>()
            .join(", "),
    })
}

/// The settings a running cache has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Settings {
    /// When writes are acknowledged.
    pub mode: Mode,
    /// Admission and reclaim.
    pub policy: Policy,
    /// Codec for new blocks.
    pub codec: CodecSpec,
    /// Sequential runs longer than this many bytes are not admitted; 0 admits all.
    pub sequential_cutoff_bytes: u64,
    /// Most of the cache device that dirty blocks may take, in percent.
    pub dirty_limit_percent: u8,
}

impl From<&Settings> for flaz_engine::settings::Settings {
    fn from(settings: &Settings) -> Self {
        Self {
            mode: settings.mode.into(),
            policy: settings.policy.into(),
            codec: settings.codec,
            sequential_cutoff: settings.sequential_cutoff_bytes,
            dirty_percent: settings.dirty_limit_percent,
        }
    }
}

impl From<&flaz_engine::settings::Settings> for Settings {
    fn from(settings: &flaz_engine::settings::Settings) -> Self {
        Self {
            mode: settings.mode.into(),
            policy: settings.policy.into(),
            codec: settings.codec,
            sequential_cutoff_bytes: settings.sequential_cutoff,
            dirty_limit_percent: settings.dirty_percent,
        }
    }
}

impl Settings {
    /// These settings with what `patch` changes.
    #[must_use]
    pub fn patched(&self, patch: &SettingsPatch) -> Self {
        Self {
            mode: patch.mode.unwrap_or(self.mode),
            policy: patch.policy.unwrap_or(self.policy),
            codec: patch.codec.unwrap_or(self.codec),
            sequential_cutoff_bytes: patch.sequential_cutoff.unwrap_or(self.sequential_cutoff_bytes),
            dirty_limit_percent: patch.dirty_limit.unwrap_or(self.dirty_limit_percent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_become_a_patch() {
        let patch = SettingsPatch::parse(&[
            "mode=write-around",
            "admission=fifo",
            "codec=zstd:3",
            "sequential-cutoff=4M",
            "dirty-limit=10%",
        ])
        .unwrap();
        assert_eq!(patch.mode, Some(Mode::WriteAround));
        assert_eq!(patch.policy, Some(Policy::Fifo));
        assert_eq!(
            patch.codec.map(|codec| codec.to_string()).as_deref(),
            Some("zstd:3")
        );
        assert_eq!(patch.sequential_cutoff, Some(4 << 20));
        assert_eq!(patch.dirty_limit, Some(10));
        let json = serde_json::to_string(&patch).unwrap();
        assert_eq!(serde_json::from_str::<SettingsPatch>(&json).unwrap(), patch);
        assert!(SettingsPatch::parse::<&str>(&[]).unwrap().is_empty());
    }

    #[test]
    fn wrong_assignments_say_what_is_possible() {
        let message = |texts: &[&str]| SettingsPatch::parse(texts).unwrap_err().to_string();
        assert!(message(&["mode"]).contains("expected KEY=VALUE"));
        assert!(
            message(&["mode=write-behind"]).contains("write-through, write-back, write-around, pass-through")
        );
        assert!(message(&["dirty-limit=0"]).contains("1 to 50"));
        assert!(message(&["dirty-limit=51%"]).contains("1 to 50"));
        assert!(message(&["threads=3"]).contains("keys are mode, policy"));
        assert!(message(&["codec=lz4", "codec=none"]).contains("twice"));
        assert!(message(&["codec=lz5"]).contains("zstd"));
        assert!(message(&["codec=zstd:20"]).contains("-7 to 19"));
        assert!(message(&["policy=fifo", "admission=fifo"]).contains("twice"));
        assert!(message(&["sequential-cutoff=lots"]).contains("sequential-cutoff"));
    }

    #[test]
    fn words_are_those_of_the_engine() {
        for mode in Mode::value_variants() {
            assert_eq!(
                flaz_engine::settings::Mode::from(*mode).to_string(),
                mode.to_string()
            );
            assert_eq!(Mode::from(flaz_engine::settings::Mode::from(*mode)), *mode);
        }
        for policy in Policy::value_variants() {
            assert_eq!(PolicyKind::from(*policy).to_string(), policy.to_string());
            assert_eq!(Policy::from(PolicyKind::from(*policy)), *policy);
        }
        assert_eq!(Policy::value_variants().len(), PolicyKind::ALL.len());
    }

    #[test]
    fn unknown_keys_and_values_in_json_are_refused() {
        for percent in ["0", "51", "200", "1000", "-1", "\"25\""] {
            let json = format!(r#"{{"dirty-limit":{percent}}}"#);
            assert!(serde_json::from_str::<SettingsPatch>(&json).is_err(), "{json}");
        }
        let patch: SettingsPatch = serde_json::from_str(r#"{"dirty-limit":50}"#).unwrap();
        assert_eq!(patch.dirty_limit, Some(50));
        assert!(serde_json::from_str::<SettingsPatch>(r#"{"moed":"write-around"}"#).is_err());
        assert!(serde_json::from_str::<SettingsPatch>(r#"{"codec":"lz9"}"#).is_err());
    }
}
