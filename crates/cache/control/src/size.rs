//! Parses and formats sizes (`64KiB`, `10G`, `1.5GiB`, `4096`) and formats numbers.
//!
//! Suffixes follow coreutils: `K`, `M`, `G`, `T`, `P`, `E` and `KiB`, `MiB`, .. are powers of 1024; `kB` (or `KB`),
//! `MB`, .. are powers of 1000; `B` or nothing means bytes. Case is ignored. Fractions are rounded down to whole bytes.

use std::fmt;
use std::time::Duration;

/// Maximum size in bytes: the maximum Linux file offset.
pub const SIZE_MAX_BYTES: u64 = i64::MAX as u64;

/// Number of digits used after the decimal point; more would not change a size of 8 EiB.
const FRACTION_DIGITS_MAX: usize = 18;

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Nothing there.
    #[error("the size is empty: expected a number with an optional unit, for example 4096, 64KiB or 10G")]
    Empty,
    /// Not a number.
    #[error("'{0}' is not a size: expected a number with an optional unit, for example 4096, 64KiB or 10G")]
    NotANumber(String),
    /// A minus sign.
    #[error("'{0}' is negative: expected zero or more")]
    Negative(String),
    /// A number followed by an unknown unit.
    #[error(
        "'{text}' has the unknown unit '{unit}': expected B, K, M, G, T, P or KiB .. PiB (powers of 1024) \
         or kB .. PB (powers of 1000)"
    )]
    Unit {
        /// Size as given.
        text: String,
        /// The text after the number.
        unit: String,
    },
    /// Less than one byte, but not zero.
    #[error("'{0}' is less than one byte")]
    BelowOne(String),
    /// Over [`SIZE_MAX_BYTES`].
    #[error("'{0}' is too large: the maximum is below 8 EiB")]
    TooLarge(String),
}

/// Parses a size in bytes.
///
/// # Errors
/// The text is not a size, or exceeds [`SIZE_MAX_BYTES`].
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(SizeError::Empty);
    }
    let negative = trimmed.strip_prefix(['-', '−']);
    if negative.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return Err(SizeError::Negative(text.to_owned()));
    }
    let number_len = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(number_len);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let dangling = number.contains('.') && fraction.is_empty();
    if whole.is_empty() || dangling || fraction.contains('.') {
        return Err(SizeError::NotANumber(text.to_owned()));
    }
    let unit = unit.trim_start();
    let unit_bytes = unit_bytes(unit).ok_or_else(|| SizeError::Unit {
        text: text.to_owned(),
        unit: unit.to_owned(),
    })?;
    let too_large = || SizeError::TooLarge(text.to_owned());
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let bytes = u128::from(whole) * u128::from(unit_bytes) + fraction_bytes(fraction, unit_bytes);
    if bytes > u128::from(SIZE_MAX_BYTES) {
        return Err(too_large());
    }
    if bytes == 0 && number.contains(|c: char| ('1'..='9').contains(&c)) {
        return Err(SizeError::BelowOne(text.to_owned()));
    }
    u64::try_from(bytes).map_err(|_| too_large())
}

/// The digits after the point, in bytes, rounded down.
fn fraction_bytes(digits: &str, unit_bytes: u64) -> u128 {
    let digits = &digits[..digits.len().min(FRACTION_DIGITS_MAX)];
    let mut scale = 1u128;
    let mut value = 0u128;
    for digit in digits.bytes() {
        value = value * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    value * u128::from(unit_bytes) / scale
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let lower = unit.to_ascii_lowercase();
    if lower.is_empty() || lower == "b" {
        return Some(1);
    }
    let power = 1 + "kmgtpe".find(lower.chars().next()?)? as u32;
    match lower.get(1..)? {
        "" | "ib" | "i" => Some(1 << (10 * power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}

/// Formats bytes: `512 B`, `4.00 KiB`, `1.50 GiB`; three significant digits.
#[derive(Clone, Copy, Debug)]
pub struct HumanBytes(pub u64);

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        f.pad(&format!("{} {}", three_digits(value), UNITS[unit]))
    }
}

/// Formats a count with separators: `1,234,567`.
#[derive(Clone, Copy, Debug)]
pub struct HumanCount(pub u64);

impl fmt::Display for HumanCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::with_capacity(digits.len() + digits.len() / 3);
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

/// A count with its noun: `1 block`, `1,234 blocks`.
#[must_use]
pub fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", HumanCount(count), if count == 1 { one } else { many })
}

/// Formats a latency given in microseconds: `0.85 us`, `12.3 us`, `1.24 ms`, `3.00 s`.
#[derive(Clone, Copy, Debug)]
pub struct HumanMicros(pub f64);

impl fmt::Display for HumanMicros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            us if !us.is_finite() => "-".to_owned(),
            us if us < 999.5 => format!("{} us", three_digits(us)),
            us if us < 999_500.0 => format!("{} ms", three_digits(us / 1e3)),
            us => format!("{} s", three_digits(us / 1e6)),
        };
        f.pad(&text)
    }
}

/// Formats a duration: `0.42 s`, `42 s`, `3 min 05 s`, `2 h 07 min`, `9 d 04 h`.
#[derive(Clone, Copy, Debug)]
pub struct HumanDuration(pub Duration);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let text = match seconds {
            0..10 => format!("{:.2} s", self.0.as_secs_f64()),
            10..60 => format!("{seconds} s"),
            60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
            3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
            _ => format!("{} d {:02} h", seconds / 86_400, seconds / 3600 % 24),
        };
        f.pad(&text)
    }
}

/// `part` of `whole` in percent, `-` if `whole` is zero.
#[derive(Clone, Copy, Debug)]
pub struct HumanPercent {
    /// The part.
    pub part: u64,
    /// The whole.
    pub whole: u64,
}

impl fmt::Display for HumanPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.whole == 0 {
            return f.pad("-");
        }
        f.pad(&format!("{:.1} %", self.part as f64 * 100.0 / self.whole as f64))
    }
}

/// `amount` divided by `by`: `2.31x`, or `-` if `by` is zero.
#[derive(Clone, Copy, Debug)]
pub struct HumanRatio {
    /// Numerator.
    pub amount: u64,
    /// Denominator.
    pub by: u64,
}

impl fmt::Display for HumanRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.by == 0 {
            return f.pad("-");
        }
        f.pad(&format!("{:.2}x", self.amount as f64 / self.by as f64))
    }
}

/// A number in three digits: `2.46`, `12.3`, `999`.
#[must_use]
pub fn three_digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_has_its_noun() {
        for (count, text) in [
            (0, "0 blocks"),
            (1, "1 block"),
            (2, "2 blocks"),
            (1234, "1,234 blocks"),
        ] {
            assert_eq!(counted(count, "block", "blocks"), text);
        }
    }

    #[test]
    fn sizes_of_every_form() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64KiB", 64 << 10),
            ("64kib", 64 << 10),
            ("64 KiB", 64 << 10),
            ("64k", 64 << 10),
            ("64K", 64 << 10),
            ("64kB", 64_000),
            ("64KB", 64_000),
            ("10G", 10 << 30),
            ("10GB", 10_000_000_000),
            ("1.5GiB", 3 << 29),
            ("0.5K", 512),
            ("1.1G", 1_181_116_006),
            ("2T", 2 << 40),
            ("3P", 3 << 50),
            ("7E", 7 << 60),
            (" 1M ", 1 << 20),
            ("9223372036854775807", SIZE_MAX_BYTES),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_have_distinct_errors() {
        use SizeError as E;
        let text = |t: &str| t.to_owned();
        assert_eq!(parse(""), Err(E::Empty));
        assert_eq!(parse("  "), Err(E::Empty));
        for nonsense in ["G", "lots", ".5G", "1.G", "1.2.3", ".", "-", "--force"] {
            assert_eq!(parse(nonsense), Err(E::NotANumber(text(nonsense))));
        }
        for negative in ["-1", "-5K"] {
            assert_eq!(parse(negative), Err(E::Negative(text(negative))));
        }
        for (given, unit) in [
            ("1X", "X"),
            ("1KiBs", "KiBs"),
            ("1e3", "e3"),
            ("10 G B", "G B"),
            ("1µ", "µ"),
            ("1,5G", ",5G"),
        ] {
            assert_eq!(
                parse(given),
                Err(E::Unit {
                    text: text(given),
                    unit: text(unit)
                })
            );
        }
        assert_eq!(parse("0.1"), Err(E::BelowOne(text("0.1"))));
        for large in ["8E", "9223372036854775808", "99999999999999999999999", "20000P"] {
            assert_eq!(parse(large), Err(E::TooLarge(text(large))));
        }
    }

    #[test]
    fn numbers_are_formatted() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (64 << 10, "64.0 KiB"),
            (3 << 29, "1.50 GiB"),
            (1000 << 10, "0.98 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(HumanBytes(bytes).to_string(), text);
        }
        for (count, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(HumanCount(count).to_string(), text);
        }
        for (us, text) in [
            (0.85, "0.85 us"),
            (12.34, "12.3 us"),
            (1240.0, "1.24 ms"),
            (3e6, "3.00 s"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(HumanMicros(us).to_string(), text);
        }
        for (seconds, text) in [
            (0, "0.00 s"),
            (42, "42 s"),
            (185, "3 min 05 s"),
            (7620, "2 h 07 min"),
            (792_000, "9 d 04 h"),
        ] {
            assert_eq!(HumanDuration(Duration::from_secs(seconds)).to_string(), text);
        }
        assert_eq!(HumanPercent { part: 1, whole: 3 }.to_string(), "33.3 %");
        assert_eq!(HumanPercent { part: 0, whole: 0 }.to_string(), "-");
        assert_eq!(HumanRatio { amount: 5, by: 2 }.to_string(), "2.50x");
        assert_eq!(format!("{:>8}", HumanCount(1000)), "   1,000");
    }

    #[test]
    fn printed_sizes_read_back() {
        for bytes in [0, 1, 1023, 4096, 3 << 29, 5 << 40] {
            assert_eq!(parse(&HumanBytes(bytes).to_string()), Ok(bytes));
        }
    }
}
