//! The unit of a measured number, and the parsing and formatting of rates.
//!
//! `kB`, `MB`, .. are powers of 1000; `KiB`, `MiB`, .. are powers of 1024. An ambiguous unit (`M`) or one in bits
//! (`Mb`) is refused, because vendors use both to exaggerate.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum Unit {
    /// Bytes per second.
    #[serde(rename = "bytes-per-s")]
    BytesPerSecond,
    /// Operations per second, each of the size of the record.
    #[serde(rename = "ops-per-s")]
    OperationsPerSecond,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::BytesPerSecond => "bytes per second",
            Self::OperationsPerSecond => "operations per second",
        })
    }
}

/// Whether higher or lower values are better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Higher is faster.
    #[default]
    HigherIsBetter,
    /// Lower is faster.
    LowerIsBetter,
}

impl Direction {
    /// Whether a change of the logarithm by `difference` is an improvement.
    #[must_use]
    pub fn improves(self, difference: f64) -> bool {
        match self {
            Self::HigherIsBetter => difference > 0.0,
            Self::LowerIsBetter => difference < 0.0,
        }
    }
}

/// A number with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Rate {
    /// How many.
    pub value: f64,
    /// Of what.
    pub unit: Unit,
}

impl Rate {
    /// The same rate in another unit, with this many bytes per operation.
    #[must_use]
    pub fn convert(self, unit: Unit, record_bytes: u64) -> Self {
        let record_bytes = record_bytes as f64;
        let value = match (self.unit, unit) {
            (Unit::BytesPerSecond, Unit::OperationsPerSecond) => self.value / record_bytes,
            (Unit::OperationsPerSecond, Unit::BytesPerSecond) => self.value * record_bytes,
            _ => self.value,
        };
        Self { value, unit }
    }
}

/// Four significant digits: `253.8 MiB/s`, `95.01k IOPS`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (step, names): (f64, &[&str]) = match self.unit {
            Unit::BytesPerSecond => (1024.0, &[" B/s", " KiB/s", " MiB/s", " GiB/s", " TiB/s"]),
            Unit::OperationsPerSecond => (1000.0, &[" IOPS", "k IOPS", "M IOPS", "G IOPS"]),
        };
        let mut value = self.value;
        let mut names = names.iter();
        let mut name = names.next().unwrap_or(&"");
        while value >= step * 0.99995 {
            let Some(next) = names.next() else { break };
            name = next;
            value /= step;
        }
        f.pad(&format!("{}{name}", four_digits(value)))
    }
}

fn four_digits(value: f64) -> String {
    match value {
        v if v < 9.9995 => format!("{v:.3}"),
        v if v < 99.995 => format!("{v:.2}"),
        v if v < 999.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Why a text is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// It does not begin with a positive number.
    #[error(
        "'{0}' is not a rate: expected a positive number with a unit, for example 275MB/s, 1.5GiB/s or \
         95000IOPS"
    )]
    Number(String),
    /// The number is followed by an unknown unit.
    #[error(
        "'{text}' has the unknown unit '{unit}': expected kB/s .. TB/s (powers of 1000), KiB/s .. TiB/s (powers of \
         1024), B/s, IOPS or kIOPS"
    )]
    Unit {
        /// The text.
        text: String,
        /// The text after the number.
        unit: String,
    },
    /// A lower-case b.
    #[error("'{0}' is in bits: use bytes, for example 275MB/s, with a capital B")]
    Bits(String),
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let trimmed = text.trim();
        let number_len = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(number_len);
        let number: f64 = number
            .parse()
            .ok()
            .filter(|number: &f64| *number > 0.0 && number.is_finite())
            .ok_or_else(|| RateError::Number(text.to_owned()))?;
        let unit = unit.trim();
        let unknown = || RateError::Unit {
            text: text.to_owned(),
            unit: unit.to_owned(),
        };
        let (factor, unit) = if let Some(prefix) = without_operations(unit) {
            let factor = match prefix {
                "" => 1.0,
                "k" | "K" => 1e3,
                "M" | "m" => 1e6,
                _ => return Err(unknown()),
            };
            (factor, Unit::OperationsPerSecond)
        } else {
            let bytes = unit.strip_suffix("/s").unwrap_or(unit).trim_end();
            if bytes.ends_with('b') || bytes.ends_with("bit") {
                return Err(RateError::Bits(text.to_owned()));
            }
            let prefix = bytes.strip_suffix('B').ok_or_else(unknown)?;
            (prefix_factor(prefix).ok_or_else(unknown)?, Unit::BytesPerSecond)
        };
        Ok(Self {
            value: number * factor,
            unit,
        })
    }
}

fn without_operations(unit: &str) -> Option<&str> {
    ["IOPS", "iops", "ops/s"]
        .iter()
        .find_map(|name| unit.strip_suffix(name))
        .map(str::trim_end)
}

/// The factor of `k`, `Ki`, `M`, `Mi`, ..
fn prefix_factor(prefix: &str) -> Option<f64> {
    let (letter, step) = match prefix.strip_suffix('i') {
        Some(letter) => (letter, 1024.0f64),
        None => (prefix, 1000.0),
    };
    let power = match letter {
        "" => 0,
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return None,
    };
    (power > 0 || prefix.is_empty()).then(|| step.powi(power))
}

/// A number of bytes in the largest unit that gives an integer: `4 KiB`, `1 MiB`, `1000 B`.
#[derive(Clone, Copy, Debug)]
pub struct WholeBytes(pub u64);

impl fmt::Display for WholeBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
        let power = (self.0.trailing_zeros() as usize / 10).min(UNITS.len() - 1);
        let power = if self.0 == 0 { 0 } else { power };
        f.pad(&format!("{} {}", self.0 >> (10 * power), UNITS[power]))
    }
}

/// Parses a record size: an integer with `B` (or nothing), `KiB`, `MiB`, `GiB`; `K`, `M`, `G` mean the same.
///
/// # Errors
/// What is expected.
pub fn parse_record(text: &str) -> Result<u64, String> {
    let expected =
        || format!("'{text}' is not a record size: expected a size, for example 4096, 4KiB or 1MiB");
    let trimmed = text.trim();
    let number_len = trimmed
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(number_len);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(expected()),
    };
    let number: u64 = number.parse().map_err(|_| expected())?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(value: f64) -> Rate {
        Rate {
            value,
            unit: Unit::BytesPerSecond,
        }
    }

    fn operations(value: f64) -> Rate {
        Rate {
            value,
            unit: Unit::OperationsPerSecond,
        }
    }

    #[test]
    fn rates_of_every_form() {
        for (text, rate) in [
            ("275MB/s", bytes(275e6)),
            ("275 MB/s", bytes(275e6)),
            ("275MB", bytes(275e6)),
            ("1.5GiB/s", bytes(1.5 * 1_073_741_824.0)),
            ("800 B/s", bytes(800.0)),
            ("64kB/s", bytes(64e3)),
            ("64KiB/s", bytes(65_536.0)),
            ("95000IOPS", operations(95e3)),
            ("95k IOPS", operations(95e3)),
            ("1.2MIOPS", operations(1.2e6)),
            ("300 ops/s", operations(300.0)),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
        }
    }

    #[test]
    fn ambiguous_units_are_refused() {
        let refused = |text: &str| text.parse::<Rate>().unwrap_err();
        for text in ["", "fast", "-5MB/s", "0MB/s", "1.2.3MB/s"] {
            assert!(matches!(refused(text), RateError::Number(_)), "{text}");
        }
        for text in [
            "275",
            "275M",
            "275 M/s",
            "5EB/s",
            "275MB/min",
            "275iB/s",
            "3xIOPS",
        ] {
            assert!(matches!(refused(text), RateError::Unit { .. }), "{text}");
        }
        for text in ["275Mb/s", "3Gb", "6Gbit/s"] {
            assert!(matches!(refused(text), RateError::Bits(_)), "{text}");
        }
    }

    #[test]
    fn rates_and_sizes_are_formatted() {
        assert_eq!(bytes(266_103_910.4).to_string(), "253.8 MiB/s");
        assert_eq!(bytes(1_073_741_800.0).to_string(), "1.000 GiB/s");
        assert_eq!(bytes(12.0).to_string(), "12.00 B/s");
        assert_eq!(operations(95_010.0).to_string(), "95.01k IOPS");
        for (bytes, text) in [(4096, "4 KiB"), (1 << 20, "1 MiB"), (1000, "1000 B"), (0, "0 B")] {
            assert_eq!(WholeBytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn operations_are_bytes_by_the_record() {
        let rate = operations(1000.0).convert(Unit::BytesPerSecond, 4096);
        assert_eq!(rate, bytes(4_096_000.0));
        assert_eq!(rate.convert(Unit::OperationsPerSecond, 4096), operations(1000.0));
        assert_eq!(rate.convert(Unit::BytesPerSecond, 4096), rate);
    }

    #[test]
    fn record_sizes() {
        assert_eq!(parse_record("4KiB"), Ok(4096));
        assert_eq!(parse_record("1M"), Ok(1 << 20));
        assert_eq!(parse_record("512"), Ok(512));
        for text in ["", "0", "4kB", "x", "1.5MiB", "99999999999G"] {
            assert!(parse_record(text).is_err(), "{text}");
        }
    }
}
