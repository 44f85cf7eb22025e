//! Random words with only some of their bits kept.

use flaz_random::Key;

/// The bits of each byte that are kept: a narrow mask in some of the words, evenly spread, a wide one in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masks {
    narrow: u64,
    wide: u64,
    /// Share of the narrow words, in units of 2^-32.
    narrow_share: u32,
}

impl Masks {
    /// All bits of all words.
    pub const ALL: Self = Self {
        narrow: u64::MAX,
        wide: u64::MAX,
        narrow_share: 0,
    };

    /// `narrow` bits per byte in the share `narrow_share` of the words, `wide` bits in the others; at most 8.
    #[must_use]
    pub fn new(narrow: u32, wide: u32, narrow_share: f64) -> Self {
        let mask = |bits: u32| u64::from_le_bytes([((1_u32 << bits.min(8)) - 1) as u8; 8]);
        Self {
            narrow: mask(narrow),
            wide: mask(wide),
            narrow_share: (narrow_share.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32,
        }
    }

    /// Fills `bytes` with the masked stream of `key`, from word `first` on.
    pub fn fill(self, key: Key, first: u64, bytes: &mut [u8]) {
        if self == Self::ALL {
            return key.fill(first, bytes);
        }
        let differing = self.narrow ^ self.wide;
        let mut phase = (first as u32).wrapping_mul(self.narrow_share);
        key.fill_words(first, bytes, |word| {
            // A digital line as in Bresenham's algorithm: a word is narrow if the phase wraps.
            let (next, narrow) = phase.overflowing_add(self.narrow_share);
            phase = next;
            word & (self.wide ^ (differing & u64::from(narrow).wrapping_neg()))
        });
    }
}
