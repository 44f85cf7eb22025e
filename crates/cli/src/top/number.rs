//! Numbers of at most five characters, as `zpool iostat` prints them. Pure.

use flaz_control::size::three_digits;

/// `0`, `7.5`, `999`, `12.3K`, `4.56M`: powers of 1000.
pub(super) fn count(value: f64) -> String {
    if value < 9.95 && value.fract() > 0.05 && value.fract() < 0.95 {
        return format!("{value:.1}");
    }
    scaled(value, 1000.0)
}

/// `0`, `512`, `12.3K`, `4.56M`: powers of 1024.
pub(super) fn bytes(value: f64) -> String {
    scaled(value, 1024.0)
}

/// A share in percent: `0%`, `90%`, `150%`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0}%", (share * 100.0).min(9999.0))
}

/// `85us`, `1.2ms`, `340ms`, `2.5s`, `42s`, `12m`, `7h`, `9d`.
pub(super) fn latency(seconds: f64) -> String {
    let short = |value: f64, unit: &str| {
        if value < 9.95 {
            format!("{value:.1}{unit}")
        } else {
            format!("{value:.0}{unit}")
        }
    };
    match seconds {
        s if s <= 0.0 => "0".to_owned(),
        s if s < 999.5e-6 => format!("{:.0}us", (s * 1e6).max(1.0)),
        s if s < 0.9995 => short(s * 1e3, "ms"),
        s if s < 119.5 => short(s, "s"),
        s if s < 7170.0 => format!("{:.0}m", s / 60.0),
        s if s < 172_000.0 => format!("{:.0}h", s / 3600.0),
        s => format!("{:.0}d", (s / 86_400.0).min(9999.0)),
    }
}

/// `2.46`, `12.3`, `999`.
pub(super) fn ratio(value: f64) -> String {
    three_digits(value.min(9999.0))
}

fn scaled(value: f64, step: f64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let (mut value, mut unit) = (value, 0);
    // What would be printed with four digits gets the next unit.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= step;
        unit += 1;
    }
    if unit == 0 {
        return format!("{value:.0}");
    }
    format!("{}{}", three_digits(value.min(9999.0)), UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_five_characters() {
        for (text, expected) in [
            (count(0.0), "0"),
            (count(0.5), "0.5"),
            (count(7.0), "7"),
            (count(999.4), "999"),
            (count(999.6), "1.00K"),
            (count(12_345.0), "12.3K"),
            (count(4_560_000.0), "4.56M"),
            (bytes(0.0), "0"),
            (bytes(512.0), "512"),
            (bytes(1000.0), "0.98K"),
            (bytes(5_242_880.0), "5.00M"),
            (bytes(1e30), "9999E"),
            (percent(0.0), "0%"),
            (percent(0.904), "90%"),
            (percent(1.5), "150%"),
            (latency(0.0), "0"),
            (latency(1e-9), "1us"),
            (latency(0.000_085), "85us"),
            (latency(0.0012), "1.2ms"),
            (latency(0.34), "340ms"),
            (latency(2.5), "2.5s"),
            (latency(42.0), "42s"),
            (latency(720.0), "12m"),
            (latency(25_200.0), "7h"),
            (latency(800_000.0), "9d"),
            (ratio(2.456), "2.46"),
            (ratio(12.34), "12.3"),
        ] {
            assert_eq!(text, expected);
            assert!(text.len() <= 5, "{text}");
        }
        for power in 0..64 {
            let value = (1_u64 << power) as f64;
            for text in [count(value), bytes(value), latency(value), latency(1.0 / value)] {
                assert!(text.len() <= 5, "{text}");
            }
        }
    }
}
