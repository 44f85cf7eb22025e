//! Skewed alphabets: which bits of random bytes to keep so that an entropy coder saves a given share of them.
//!
//! Words of few bits and words of more bits are mixed. The mixture determines how unequal the frequencies of the byte
//! values are, and thus what a Huffman code gains. The table below was measured, not derived: zstd refuses literals
//! that are nearly flat, and both codecs pay for their code tables, so no formula for the entropy gives the achieved
//! savings. Each row is the middle of what zstd:1 and zlib:6 saved at 4 KiB, 64 KiB and 1 MiB; the tests measure it
//! again. Matching codecs without an entropy stage (LZ4) gain nothing here.

use crate::masks::Masks;

/// Share saved by the narrowest alphabet of the table, four bits per byte. A run is added to save more.
pub const SAVED_MAX: f64 = 0.4944;

/// Maps a saved share to the mixture that achieves it.
struct Knot {
    saved_percent: f64,
    /// Bits per byte of the narrow and of the wide words.
    bits: (u32, u32),
    narrow_share: f64,
}

const fn knot(saved_percent: f64, bits: (u32, u32), narrow_share: f64) -> Knot {
    Knot {
        saved_percent,
        bits,
        narrow_share,
    }
}

/// In ascending order of the share saved. Between two rows with the same bits, the share of narrow words is
/// interpolated.
const KNOTS: [Knot; 43] = [
    knot(0.0, (6, 8), 0.0),
    knot(0.06, (6, 8), 0.20),
    knot(0.78, (6, 8), 0.30),
    knot(1.20, (6, 8), 0.35),
    knot(2.35, (6, 8), 0.40),
    knot(3.36, (6, 8), 0.45),
    knot(4.34, (6, 8), 0.50),
    knot(5.44, (6, 8), 0.55),
    knot(6.56, (6, 8), 0.60),
    knot(7.81, (6, 8), 0.65),
    knot(9.38, (6, 8), 0.70),
    knot(11.00, (6, 8), 0.75),
    knot(12.85, (6, 8), 0.80),
    knot(15.06, (6, 8), 0.85),
    knot(15.45, (6, 7), 0.65),
    knot(16.30, (6, 7), 0.70),
    knot(17.13, (6, 7), 0.75),
    knot(18.10, (6, 7), 0.80),
    knot(19.28, (6, 7), 0.85),
    knot(20.53, (6, 7), 0.90),
    knot(22.04, (6, 7), 0.95),
    knot(24.24, (6, 7), 1.0),
    knot(24.76, (5, 6), 0.30),
    knot(25.00, (5, 6), 0.35),
    knot(25.39, (5, 6), 0.40),
    knot(26.30, (5, 6), 0.50),
    knot(27.32, (5, 6), 0.60),
    knot(28.90, (5, 6), 0.70),
    knot(30.74, (5, 6), 0.80),
    knot(33.20, (5, 6), 0.90),
    knot(34.60, (5, 6), 0.95),
    knot(36.68, (5, 6), 1.0),
    knot(37.20, (4, 5), 0.30),
    knot(37.89, (4, 5), 0.40),
    knot(38.82, (4, 5), 0.50),
    knot(39.82, (4, 5), 0.60),
    knot(41.45, (4, 5), 0.70),
    knot(43.27, (4, 5), 0.80),
    knot(45.74, (4, 5), 0.90),
    knot(47.30, (4, 5), 0.95),
    knot(48.84, (4, 5), 1.0),
    knot(49.44, (4, 4), 1.0),
    knot(100.0, (4, 4), 1.0),
];

/// The bits to keep so that an entropy coder saves the share `saved` (0 to [`SAVED_MAX`]; more gives the narrowest
/// alphabet) of the bytes.
#[must_use]
pub fn masks(saved: f64) -> Masks {
    let percent = saved * 100.0;
    if percent <= 0.0 {
        return Masks::ALL;
    }
    let above = KNOTS.partition_point(|knot| knot.saved_percent <= percent);
    let (Some(low), Some(high)) = (KNOTS.get(above.saturating_sub(1)), KNOTS.get(above)) else {
        return Masks::new(4, 4, 1.0);
    };
    let share = if low.bits == high.bits {
        let part = (percent - low.saved_percent) / (high.saved_percent - low.saved_percent);
        low.narrow_share + part * (high.narrow_share - low.narrow_share)
    } else {
        low.narrow_share
    };
    Masks::new(low.bits.0, low.bits.1, share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_table_is_ascending() {
        for pair in KNOTS.windows(2) {
            assert!(pair[0].saved_percent < pair[1].saved_percent);
            if pair[0].bits == pair[1].bits && pair[1].saved_percent < 100.0 {
                assert!(pair[0].narrow_share < pair[1].narrow_share);
            }
        }
        assert_eq!(masks(0.0), Masks::ALL);
        assert_eq!(masks(-1.0), Masks::ALL);
        assert_eq!(masks(2.0), Masks::new(4, 4, 1.0));
    }
}
