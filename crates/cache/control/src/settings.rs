//! Changes of the settings of a running cache, written as `KEY=VALUE` or as JSON.
//!
//! Mode, policy, codec and the settings themselves are types of the engine, so their names are the same everywhere.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

use flaz_codec::{CodecChoice, SpecError};
use flaz_engine::choice::{self, Choice, UnknownChoice};
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{DIRTY_PERCENT_MAX, Mode, Settings, StoredSettings, StrictFlush};
use flaz_engine::write_budget::{DWPD_THOUSANDTHS_MAX, WriteBudget};
use serde::{Deserialize, Serialize};

use crate::size::{self, SizeError};

/// An emulated slow device, for demonstrations and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Emulation {
    /// Hard disk.
    Hdd,
    /// SATA SSD.
    Ssd,
    /// Cloud network volume.
    NetworkVolume,
}

impl Choice for Emulation {
    const SETTING: &'static str = "emulation";
    const ALL: &'static [Self] = &[Self::Hdd, Self::Ssd, Self::NetworkVolume];

    fn name(self) -> &'static str {
        match self {
            Self::Hdd => "hdd",
            Self::Ssd => "ssd",
            Self::NetworkVolume => "network-volume",
        }
    }
}

impl fmt::Display for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why the value of a setting is invalid. The message does not name the setting: whoever reports it knows how the user named that, an
/// option, a key of a configuration or of `flaz set`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not one of the names.
    #[error(transparent)]
    Choice(#[from] UnknownChoice),
    /// Unknown codec or level.
    #[error(transparent)]
    Codec(#[from] SpecError),
    /// Not a size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// Not a dirty limit.
    #[error("expected 1 to {DIRTY_PERCENT_MAX} percent of the cache device, such as 25")]
    DirtyLimit,
    /// Not a write budget.
    #[error(
        "expected none, bytes per day such as 40GB/day or 20GiB, or drive writes per day such as 0.5DWPD (0.001 to 1000)"
    )]
    WriteBudget,
}

/// Why an argument of `flaz set` is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// Not `KEY=VALUE`.
    #[error("'{0}': expected KEY=VALUE, for example mode=write-around; keys are {KEYS}")]
    AssignmentForm(String),
    /// A key that cannot be changed while running.
    #[error("'{0}' cannot be set while the cache is running; keys are {KEYS}")]
    UnknownKey(String),
    /// The same key twice.
    #[error("'{0}' is given twice")]
    Twice(String),
    /// Not a valid value.
    #[error("{assignment}: {why}")]
    Value {
        /// `KEY=VALUE` as given.
        assignment: String,
        /// Why. The message contains it, so it is no source.
        why: ValueError,
    },
}

const KEYS: &str = "mode, policy (or admission), codec, sequential-cutoff, dirty-limit, strict-flush, \
                    write-budget";

/// Settings that can be changed while the cache is running; a missing field is left unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SettingsPatch {
    /// New mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// New admission and replacement policy.
    #[serde(default, alias = "admission", skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyKind>,
    /// Codec for new blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codec: Option<CodecChoice>,
    /// Sequential runs longer than this many bytes are not cached; 0 caches all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequential_cutoff: Option<u64>,
    /// Maximum share of the cache device for dirty blocks, in percent: 1 to 50.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "dirty_limit"
    )]
    pub dirty_limit: Option<u8>,
    /// When the mark of a flush is made stable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict_flush: Option<StrictFlush>,
    /// How much may be written to the cache device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_budget: Option<WriteBudget>,
}

impl SettingsPatch {
    /// Whether the patch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Parses `KEY=VALUE` texts, as given to `flaz set`.
    ///
    /// # Errors
    /// A text without `=`, an unknown key, an invalid value, or a key given twice.
    pub fn parse<S: AsRef<str>>(assignments: &[S]) -> Result<Self, SettingError> {
        let mut patch = Self::default();
        for assignment in assignments {
            let assignment = assignment.as_ref();
            let (key, value) = assignment
                .split_once('=')
                .ok_or_else(|| SettingError::AssignmentForm(assignment.to_owned()))?;
            let twice = patch.set(key, value).map_err(|why| SettingError::Value {
                assignment: assignment.to_owned(),
                why,
            })?;
            let twice = twice.ok_or_else(|| SettingError::UnknownKey(key.to_owned()))?;
            if twice {
                return Err(SettingError::Twice(key.to_owned()));
            }
        }
        Ok(patch)
    }

    /// Sets one key; returns whether it was set before. `None`: there is no such key.
    fn set(&mut self, key: &str, value: &str) -> Result<Option<bool>, ValueError> {
        Ok(Some(match key {
            "mode" => self.mode.replace(choice::parse(value)?).is_some(),
            "policy" | "admission" => self.policy.replace(choice::parse(value)?).is_some(),
            "codec" => self.codec.replace(value.parse()?).is_some(),
            "sequential-cutoff" => self.sequential_cutoff.replace(size::parse(value)?).is_some(),
            "dirty-limit" => self.dirty_limit.replace(parse_dirty_limit(value)?).is_some(),
            "strict-flush" => self.strict_flush.replace(choice::parse(value)?).is_some(),
            "write-budget" => self.write_budget.replace(parse_write_budget(value)?).is_some(),
            _ => return Ok(None),
        }))
    }

    /// `settings` with the changes of this patch.
    #[must_use]
    pub fn applied_to(&self, settings: &Settings) -> Settings {
        Settings {
            mode: self.mode.unwrap_or(settings.mode),
            policy: self.policy.unwrap_or(settings.policy),
            codec: self.codec.unwrap_or(settings.codec),
            sequential_cutoff: self.sequential_cutoff.unwrap_or(settings.sequential_cutoff),
            dirty_percent: self.dirty_limit.unwrap_or(settings.dirty_percent),
            strict_flush: self.strict_flush.unwrap_or(settings.strict_flush),
            write_budget: self.write_budget.unwrap_or(settings.write_budget),
        }
    }
}

impl SettingsPatch {
    /// `before`, the settings that a cache has stored, with the changes of this patch. Its codec is stored elsewhere.
    #[must_use]
    pub fn stored_over(&self, before: StoredSettings) -> StoredSettings {
        StoredSettings {
            mode: self.mode.or(before.mode),
            policy: self.policy.or(before.policy),
            sequential_cutoff: self.sequential_cutoff.or(before.sequential_cutoff),
            dirty_percent: self.dirty_limit.or(before.dirty_percent),
            strict_flush: self.strict_flush.or(before.strict_flush),
            write_budget: self.write_budget.or(before.write_budget),
        }
    }

    /// Stored settings as a patch, without a codec.
    #[must_use]
    pub fn of_stored(stored: &StoredSettings) -> Self {
        Self {
            mode: stored.mode,
            policy: stored.policy,
            codec: None,
            sequential_cutoff: stored.sequential_cutoff,
            dirty_limit: stored.dirty_percent,
            strict_flush: stored.strict_flush,
            write_budget: stored.write_budget,
        }
    }

    /// The keys that this patch changes.
    #[must_use]
    pub fn keys(&self) -> Vec<&'static str> {
        [
            ("mode", self.mode.is_some()),
            ("policy", self.policy.is_some()),
            ("codec", self.codec.is_some()),
            ("sequential-cutoff", self.sequential_cutoff.is_some()),
            ("dirty-limit", self.dirty_limit.is_some()),
            ("strict-flush", self.strict_flush.is_some()),
            ("write-budget", self.write_budget.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, changes)| changes.then_some(key))
        .collect()
    }
}

/// Parses a dirty limit: a percentage, with or without `%`.
///
/// # Errors
/// Not a number from 1 to 50.
pub fn parse_dirty_limit(text: &str) -> Result<u8, ValueError> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<u8>();
    number
        .ok()
        .filter(|percent| (1..=DIRTY_PERCENT_MAX).contains(percent))
        .ok_or(ValueError::DirtyLimit)
}

/// Parses a write budget: `none`, bytes per day (`40GB/day`, `20GiB`), or drive writes per day (`0.5DWPD`).
///
/// # Errors
/// None of these, zero, or more than 1000 drive writes.
pub fn parse_write_budget(text: &str) -> Result<WriteBudget, ValueError> {
    let lower = text.trim().to_ascii_lowercase();
    if lower == "none" {
        return Ok(WriteBudget::None);
    }
    let found = match lower.strip_suffix("dwpd") {
        Some(number) => thousandths(number.trim_end()).map(WriteBudget::DwpdThousandths),
        None => {
            let bytes = size::parse(lower.strip_suffix("/day").unwrap_or(&lower));
            bytes.ok().and_then(NonZeroU64::new).map(WriteBudget::BytesPerDay)
        }
    };
    found.ok_or(ValueError::WriteBudget)
}

/// A decimal number with at most three digits after the point, in thousandths.
fn thousandths(text: &str) -> Option<NonZeroU32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 3 {
        return None;
    }
    let fraction = format!("{fraction:0<3}").parse::<u32>().ok()?;
    let thousandths = whole
        .parse::<u32>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(fraction)?;
    NonZeroU32::new(thousandths).filter(|_| thousandths <= DWPD_THOUSANDTHS_MAX)
}

/// A write budget in words.
#[must_use]
pub fn budget_text(budget: WriteBudget) -> String {
    match budget {
        WriteBudget::None => "none".to_owned(),
        WriteBudget::BytesPerDay(bytes) => format!("{} per day", size::HumanBytes(bytes.get())),
        WriteBudget::DwpdThousandths(thousandths) => {
            format!("{} DWPD", f64::from(thousandths.get()) / 1000.0)
        }
    }
}

fn dirty_limit<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u8>, D::Error> {
    let percent = Option::<u64>::deserialize(from)?;
    let parsed = |percent: u64| {
        let invalid = |why| serde::de::Error::custom(format_args!("dirty-limit '{percent}': {why}"));
        parse_dirty_limit(&percent.to_string()).map_err(invalid)
    };
    percent.map(parsed).transpose()
}

/// Settings on one line. Lists the settings of write-back only in that mode.
#[must_use]
pub fn text(settings: &Settings) -> String {
    text_after(settings, &SettingsPatch::default())
}

/// Settings after a change. Lists a changed setting even if the current mode does not use it.
#[must_use]
pub fn text_after(settings: &Settings, patch: &SettingsPatch) -> String {
    let cutoff = match settings.sequential_cutoff {
        0 => "off".to_owned(),
        bytes => size::HumanBytes(bytes).to_string(),
    };
    let mut text = format!(
        "{}, {}, codec {}, sequential cut-off {cutoff}",
        settings.mode, settings.policy, settings.codec
    );
    let is_used = settings.mode == Mode::WriteBack;
    let condition = if is_used { "" } else { " (in write-back)" };
    if is_used || patch.dirty_limit.is_some() {
        text += &format!(", dirty limit {} %{condition}", settings.dirty_percent);
    }
    if is_used || patch.strict_flush.is_some() {
        text += &format!(", strict flush {}{condition}", settings.strict_flush);
    }
    if settings.write_budget != WriteBudget::None || patch.write_budget.is_some() {
        text += &format!(", write budget {}", budget_text(settings.write_budget));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulations_have_one_name_everywhere() {
        for emulation in Emulation::ALL {
            let json = serde_json::to_string(emulation).unwrap();
            assert_eq!(json, format!("\"{emulation}\""));
            assert_eq!(
                choice::parse::<Emulation>(emulation.name()).as_ref(),
                Ok(emulation)
            );
        }
    }

    #[test]
    fn assignments_become_a_patch() {
        let patch = SettingsPatch::parse(&[
            "mode=write-around",
            "admission=fifo",
            "codec=zstd:3",
            "sequential-cutoff=4M",
            "dirty-limit=10%",
            "strict-flush=always",
            "write-budget=0.5DWPD",
        ])
        .unwrap();
        assert_eq!(patch.mode, Some(Mode::WriteAround));
        assert_eq!(patch.policy, Some(PolicyKind::Fifo));
        assert_eq!(
            patch.codec.map(|codec| codec.to_string()).as_deref(),
            Some("zstd:3")
        );
        assert_eq!(patch.sequential_cutoff, Some(4 << 20));
        assert_eq!(patch.dirty_limit, Some(10));
        assert_eq!(patch.strict_flush, Some(StrictFlush::Always));
        assert_eq!(patch.write_budget.map(budget_text).as_deref(), Some("0.5 DWPD"));
        let json = serde_json::to_string(&patch).unwrap();
        assert_eq!(serde_json::from_str::<SettingsPatch>(&json).unwrap(), patch);
        let keys: serde_json::Map<_, _> = serde_json::from_str(&json).unwrap();
        let keys: std::collections::BTreeSet<_> = keys.keys().map(String::as_str).collect();
        assert_eq!(
            patch
                .keys()
                .into_iter()
                .collect::<std::collections::BTreeSet<_>>(),
            keys
        );
        let stored = patch.stored_over(StoredSettings::default());
        assert_eq!(
            stored.with_codec(patch.codec.unwrap()),
            patch.applied_to(&Settings::default())
        );
        let without_codec = SettingsPatch { codec: None, ..patch };
        assert_eq!(SettingsPatch::of_stored(&stored), without_codec);
        assert_eq!(
            SettingsPatch::default().stored_over(stored),
            stored,
            "others stay"
        );
        assert!(SettingsPatch::parse::<&str>(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_write_budget_is_bytes_or_drive_writes_per_day() {
        for (text, shown) in [
            ("none", "none"),
            ("40GB/day", "37.3 GiB per day"),
            ("20GiB", "20.0 GiB per day"),
            ("1.5tib/DAY", "1.50 TiB per day"),
            ("0.5DWPD", "0.5 DWPD"),
            ("0.125 dwpd", "0.125 DWPD"),
            ("1000DWPD", "1000 DWPD"),
        ] {
            assert_eq!(parse_write_budget(text).map(budget_text), Ok(shown.to_owned()));
        }
        for text in [
            "",
            "0",
            "0/day",
            "0DWPD",
            "0.0001DWPD",
            "1000.001DWPD",
            "DWPD",
            ".5DWPD",
            "1.DWPD",
            "-1DWPD",
            "40GB/week",
            "half",
        ] {
            let error = parse_write_budget(text).unwrap_err().to_string();
            assert!(error.contains("40GB/day"), "{error}");
        }
    }

    #[test]
    fn invalid_assignments_list_the_valid_values() {
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

    /// Each front end has its own name for a setting, and names it once.
    #[test]
    fn an_invalid_value_is_named_once_by_whoever_reports_it() {
        for (key, value) in [
            ("mode", "write-behind"),
            ("policy", "lru"),
            ("codec", "lz5"),
            ("sequential-cutoff", "lots"),
            ("dirty-limit", "51"),
            ("strict-flush", "maybe"),
            ("write-budget", "half"),
        ] {
            let why = SettingsPatch::default().set(key, value).unwrap_err();
            // A codec is also named where it is not a setting.
            let why = why.to_string();
            assert!(key == "codec" || !why.contains(key), "{why}");
            let assignment = format!("{key}={value}");
            let message = SettingsPatch::parse(&[&assignment]).unwrap_err().to_string();
            assert_eq!(message, format!("{assignment}: {why}"));
        }
        let json = serde_json::from_str::<SettingsPatch>(r#"{"dirty-limit":51}"#).unwrap_err();
        assert!(
            json.to_string()
                .starts_with("dirty-limit '51': expected 1 to 50 percent"),
            "{json}"
        );
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
