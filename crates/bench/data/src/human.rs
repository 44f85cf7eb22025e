//! Formats numbers for people.

/// Bytes: `512 B`, `4.00 KiB`, `1.50 GiB`; three significant digits.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A power of two as a chunk size: `4 KiB`, `1 MiB`.
#[must_use]
pub fn chunk(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_formatted() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 29), "1.50 GiB");
        assert_eq!(
            (chunk(4096), chunk(1 << 20), chunk(512)),
            ("4 KiB".into(), "1 MiB".into(), "512 B".into())
        );
    }
}
