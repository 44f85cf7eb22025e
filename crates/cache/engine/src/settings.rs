//! The settings of a cache that may change while it is served.

use flaz_codec::CodecChoice;
use serde::{Deserialize, Serialize};

use crate::choice::choice;
use crate::policy::PolicyKind;
use crate::write_budget::WriteBudget;

/// How writes and reads use the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A write is acknowledged when the origin has it; the cache is filled as well.
    #[default]
    WriteThrough,
    /// A write is acknowledged when the cache device has it; the writeback worker brings it to the origin later.
    WriteBack,
    /// A write is acknowledged when the origin has it; a cached copy is dropped.
    WriteAround,
    /// The cache is neither read nor filled; writes drop cached copies, so that it can be used again later.
    PassThrough,
}

choice!(Mode, "mode", {
    WriteThrough => "write-through",
    WriteBack => "write-back",
    WriteAround => "write-around",
    PassThrough => "pass-through",
});

/// State of the cache after a crash. Chosen at each opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterCrash {
    /// All blocks except those of stripes that were being written. Costs an intent before the first write to a stripe.
    #[default]
    Warm,
    /// No blocks.
    Cold,
}

choice!(AfterCrash, "after-crash", {
    Warm => "warm",
    Cold => "cold",
});

/// Whether a flush waits for the mark that records how far the log is stable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StrictFlush {
    /// As `Always` if the cache device has no volatile write cache, else as `Never`.
    #[default]
    Auto,
    /// The mark is stable before the flush is answered.
    Always,
    /// The mark follows the answer within milliseconds.
    Never,
}

choice!(StrictFlush, "strict-flush", {
    Auto => "auto",
    Always => "always",
    Never => "never",
});

/// The settings that can be changed while the cache is served. Reports and the control protocol contain them in this form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Settings {
    /// How writes and reads use the cache.
    pub mode: Mode,
    /// Admission and replacement policy.
    pub policy: PolicyKind,
    /// Codec for new blocks.
    #[schemars(with = "String")]
    pub codec: CodecChoice,
    /// Reads of a sequential stream beyond this many bytes are not cached; 0 caches all.
    #[serde(rename = "sequential_cutoff_bytes")]
    pub sequential_cutoff: u64,
    /// Maximum share of the cache device for dirty blocks, in percent of the space for data: 1 to [`DIRTY_PERCENT_MAX`].
    #[serde(rename = "dirty_limit_percent")]
    pub dirty_percent: u8,
    /// When the mark of a flush is stable.
    #[serde(default)]
    pub strict_flush: StrictFlush,
    /// How much may be written to the cache device.
    #[serde(default)]
    pub write_budget: WriteBudget,
}

/// The defaults of `flaz serve`.
impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            policy: PolicyKind::default(),
            codec: CodecChoice::default(),
            sequential_cutoff: 0,
            dirty_percent: DIRTY_PERCENT_DEFAULT,
            strict_flush: StrictFlush::default(),
            write_budget: WriteBudget::default(),
        }
    }
}

/// Settings that were chosen for a cache and are stored in it, for its next openings. A missing one was not chosen. (The
/// superblock has a codec in any case.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredSettings {
    /// See [`Settings::mode`].
    pub mode: Option<Mode>,
    /// See [`Settings::policy`].
    pub policy: Option<PolicyKind>,
    /// See [`Settings::sequential_cutoff`].
    pub sequential_cutoff: Option<u64>,
    /// See [`Settings::dirty_percent`].
    pub dirty_percent: Option<u8>,
    /// See [`Settings::strict_flush`].
    pub strict_flush: Option<StrictFlush>,
    /// See [`Settings::write_budget`].
    pub write_budget: Option<WriteBudget>,
}

impl StoredSettings {
    /// The settings of an opening that chooses none: these, else the defaults.
    #[must_use]
    pub fn with_codec(&self, codec: CodecChoice) -> Settings {
        let defaults = Settings::default();
        Settings {
            mode: self.mode.unwrap_or(defaults.mode),
            policy: self.policy.unwrap_or(defaults.policy),
            codec,
            sequential_cutoff: self.sequential_cutoff.unwrap_or(defaults.sequential_cutoff),
            dirty_percent: self.dirty_percent.unwrap_or(defaults.dirty_percent),
            strict_flush: self.strict_flush.unwrap_or(defaults.strict_flush),
            write_budget: self.write_budget.unwrap_or(defaults.write_budget),
        }
    }
}

/// Maximum of [`Settings::dirty_percent`]. Reclaim can always continue with the rest.
pub const DIRTY_PERCENT_MAX: u8 = 50;
/// Default of [`Settings::dirty_percent`].
pub const DIRTY_PERCENT_DEFAULT: u8 = 25;

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Display};
    use std::str::FromStr;

    use flaz_codec::CodecSpec;

    use serde::de::DeserializeOwned;

    use super::*;
    use crate::choice::{Choice, UnknownChoice};

    fn reads_back<T>()
    where
        T: Choice + Debug + Default + Display + PartialEq + Serialize + DeserializeOwned,
        T: FromStr<Err = UnknownChoice>,
    {
        assert_eq!(T::ALL.first(), Some(&T::default()));
        for value in T::ALL {
            assert_eq!(value.to_string(), value.name());
            assert_eq!(value.name().parse(), Ok(*value));
            let json = serde_json::to_string(value).expect("a name");
            assert_eq!(json, format!("{:?}", value.name()));
            assert_eq!(serde_json::from_str::<T>(&json).expect("the same name"), *value);
        }
    }

    #[test]
    fn every_value_reads_back_from_its_name() {
        reads_back::<Mode>();
        reads_back::<AfterCrash>();
        reads_back::<PolicyKind>();
        reads_back::<StrictFlush>();
    }

    #[test]
    fn unknown_names_are_answered_with_the_known_ones() {
        let expected = "expected one of write-through, write-back, write-around, pass-through";
        let found = "write-behind".parse::<Mode>().expect_err("no such mode");
        assert_eq!(found.to_string(), expected);
        let policy = "lru".parse::<PolicyKind>().expect_err("there is no LRU");
        assert_eq!(policy.to_string(), "expected one of s3-fifo, second-touch, fifo");
        // A JSON error has no other place for the name of the setting.
        let json = serde_json::from_str::<Mode>("\"write-behind\"").expect_err("no such mode");
        let expected = format!("mode 'write-behind': {expected}");
        assert!(json.to_string().starts_with(&expected), "{json}");
    }

    /// Programs read these names in reports and send them over the control socket.
    #[test]
    fn json_names_are_stable() {
        let settings = Settings {
            mode: Mode::WriteBack,
            policy: PolicyKind::SecondTouch,
            codec: CodecSpec::ZSTD.into(),
            sequential_cutoff: 4096,
            dirty_percent: 10,
            strict_flush: StrictFlush::Always,
            write_budget: WriteBudget::None,
        };
        let json = r#"{"mode":"write-back","policy":"second-touch","codec":"zstd:1","sequential_cutoff_bytes":4096,"dirty_limit_percent":10,"strict_flush":"always","write_budget":"none"}"#;
        assert_eq!(serde_json::to_string(&settings).expect("JSON"), json);
        assert_eq!(
            serde_json::from_str::<Settings>(json).expect("the same"),
            settings
        );
    }
}
