//! The choices a user makes: mode, policy, codec, addresses, emulation. Text form, JSON form and type, once.
//!
//! Command line, control protocol and status report all use these types, so a word that one of them accepts
//! or prints is the same word everywhere.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::size::{self, SizeError};

/// When a write is acknowledged, and what becomes of the cached copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Acknowledge when the origin has it; the cache is filled as well
    WriteThrough,
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
    /// Admit every block, reclaim the oldest
    Fifo,
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

/// The codec for new blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// LZ4, the default: fastest.
    Lz4,
    /// Zstandard at a level of [`ZSTD_LEVEL_MIN`] to [`ZSTD_LEVEL_MAX`].
    Zstd(i32),
    /// Deflate.
    Zlib,
    /// LZO1X.
    Lzo,
    /// Blocks are stored as they are.
    None,
}

/// Lowest (fastest) zstd level.
pub const ZSTD_LEVEL_MIN: i32 = -7;
/// Highest (densest) zstd level.
pub const ZSTD_LEVEL_MAX: i32 = 19;
/// The level of a plain `zstd`.
pub const ZSTD_LEVEL_DEFAULT: i32 = 1;

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lz4 => f.pad("lz4"),
            Self::Zstd(level) => f.pad(&format!("zstd:{level}")),
            Self::Zlib => f.pad("zlib"),
            Self::Lzo => f.pad("lzo"),
            Self::None => f.pad("none"),
        }
    }
}

/// Why a text is not a setting.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// No such codec.
    #[error("unknown codec '{0}': expected lz4, zstd, zstd:LEVEL, zlib, lzo or none")]
    UnknownCodec(String),
    /// A level on a codec that has none.
    #[error("codec '{0}' takes no level: only zstd does, as in zstd:3")]
    NoLevel(String),
    /// The level is no number in the codec's range.
    #[error("zstd level '{0}': expected a whole number from {ZSTD_LEVEL_MIN} (fast) to {ZSTD_LEVEL_MAX} (small)")]
    Level(String),
    /// An address for NBD that is neither form.
    #[error("'{0}': expected unix:PATH or tcp:HOST:PORT, as in unix:/run/flaz/disk.sock or tcp:127.0.0.1:10809")]
    NbdForm(String),
    /// A TCP port that is none.
    #[error("'{0}': expected a port number from 1 to 65535 after the host, as in tcp:127.0.0.1:10809")]
    NbdPort(String),
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

const KEYS: &str = "mode, policy (or admission), codec, sequential-cutoff";

impl FromStr for Codec {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let codec = match name {
            "lz4" => Self::Lz4,
            "zstd" => {
                let level = match level {
                    None => ZSTD_LEVEL_DEFAULT,
                    Some(text) => text
                        .parse()
                        .ok()
                        .filter(|level| (ZSTD_LEVEL_MIN..=ZSTD_LEVEL_MAX).contains(level))
                        .ok_or_else(|| SettingError::Level(text.to_owned()))?,
                };
                return Ok(Self::Zstd(level));
            }
            "zlib" => Self::Zlib,
            "lzo" => Self::Lzo,
            "none" => Self::None,
            _ => return Err(SettingError::UnknownCodec(text.to_owned())),
        };
        if level.is_some() {
            return Err(SettingError::NoLevel(name.to_owned()));
        }
        Ok(codec)
    }
}

impl Serialize for Codec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Codec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Where NBD clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// A Unix socket, created with mode 0600.
    Unix(PathBuf),
    /// A TCP port; the host may be a name, resolved when the socket is bound.
    Tcp {
        /// Host name or address, without brackets.
        host: String,
        /// Port, never 0.
        port: u16,
    },
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

impl FromStr for NbdAddress {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let form = || SettingError::NbdForm(text.to_owned());
        match text.split_once(':').ok_or_else(form)? {
            ("unix", path) if !path.is_empty() => Ok(Self::Unix(PathBuf::from(path))),
            ("tcp", rest) => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(form)?;
                let host = match host.strip_prefix('[') {
                    Some(inner) => inner.strip_suffix(']').ok_or_else(form)?,
                    None if host.contains(':') => return Err(form()),
                    None => host,
                };
                if host.is_empty() {
                    return Err(form());
                }
                let port = port
                    .parse()
                    .ok()
                    .filter(|port| *port != 0)
                    .ok_or_else(|| SettingError::NbdPort(text.to_owned()))?;
                Ok(Self::Tcp { host: host.to_owned(), port })
            }
            _ => Err(form()),
        }
    }
}

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
    pub codec: Option<Codec>,
    /// Sequential runs longer than this many bytes are not admitted; 0 admits all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequential_cutoff: Option<u64>,
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
                "codec" => patch.codec.replace(value.parse()?).is_some(),
                "sequential-cutoff" => {
                    let bytes = size::parse(value)
                        .map_err(|source| SettingError::Size { key: key.to_owned(), source })?;
                    patch.sequential_cutoff.replace(bytes).is_some()
                }
                _ => return Err(SettingError::UnknownKey(key.to_owned())),
            };
            if twice {
                return Err(SettingError::Twice(key.to_owned()));
            }
        }
        Ok(patch)
    }
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
    pub codec: Codec,
    /// Sequential runs longer than this many bytes are not admitted; 0 admits all.
    pub sequential_cutoff_bytes: u64,
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codecs_read_back_as_printed() {
        for text in ["lz4", "zstd:-7", "zstd:19", "zlib", "lzo", "none"] {
            assert_eq!(text.parse::<Codec>().unwrap().to_string(), text);
        }
        assert_eq!("zstd".parse(), Ok(Codec::Zstd(ZSTD_LEVEL_DEFAULT)));
    }

    #[test]
    fn wrong_codecs_say_what_is_expected() {
        let message = |text: &str| text.parse::<Codec>().unwrap_err().to_string();
        assert!(message("lz5").contains("expected lz4, zstd"));
        assert!(message("zstd:20").contains("from -7 (fast) to 19"));
        assert!(message("zstd:").contains("zstd level ''"));
        assert!(message("lz4:3").contains("takes no level"));
    }

    #[test]
    fn nbd_addresses_read_back_as_printed() {
        for text in ["unix:/run/a b.sock", "tcp:127.0.0.1:10809", "tcp:[::1]:10809", "tcp:localhost:1"] {
            assert_eq!(text.parse::<NbdAddress>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "/run/x", "tcp:host", "tcp:::1:10809", "tcp::10809", "udp:a:1", "tcp:[::1:10809"] {
            assert_eq!(text.parse::<NbdAddress>(), Err(SettingError::NbdForm(text.to_owned())), "{text}");
        }
        for text in ["tcp:a:0", "tcp:a:65536", "tcp:a:nbd"] {
            assert_eq!(text.parse::<NbdAddress>(), Err(SettingError::NbdPort(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn assignments_become_a_patch() {
        let patch =
            SettingsPatch::parse(&["mode=write-around", "admission=fifo", "codec=zstd:3", "sequential-cutoff=4M"])
                .unwrap();
        assert_eq!(patch.mode, Some(Mode::WriteAround));
        assert_eq!(patch.policy, Some(Policy::Fifo));
        assert_eq!(patch.codec, Some(Codec::Zstd(3)));
        assert_eq!(patch.sequential_cutoff, Some(4 << 20));
        let json = serde_json::to_string(&patch).unwrap();
        assert_eq!(serde_json::from_str::<SettingsPatch>(&json).unwrap(), patch);
        assert!(SettingsPatch::parse::<&str>(&[]).unwrap().is_empty());
    }

    #[test]
    fn wrong_assignments_say_what_is_possible() {
        let message = |texts: &[&str]| SettingsPatch::parse(texts).unwrap_err().to_string();
        assert!(message(&["mode"]).contains("expected KEY=VALUE"));
        assert!(message(&["mode=write-back"]).contains("write-through, write-around, pass-through"));
        assert!(message(&["threads=3"]).contains("keys are mode, policy"));
        assert!(message(&["codec=lz4", "codec=none"]).contains("twice"));
        assert!(message(&["policy=fifo", "admission=fifo"]).contains("twice"));
        assert!(message(&["sequential-cutoff=lots"]).contains("sequential-cutoff"));
    }

    #[test]
    fn unknown_keys_in_json_are_refused() {
        assert!(serde_json::from_str::<SettingsPatch>(r#"{"moed":"write-around"}"#).is_err());
        assert!(serde_json::from_str::<SettingsPatch>(r#"{"codec":"lz9"}"#).is_err());
    }
}
