//! Random bytes as a function of a key and a place: the same key gives the same bytes, on every machine.
//!
//! Word `n` of a key is wyrand's output (Wang Yi, wyhash) for the state `a + n * INCREMENT`, with the second half
//! of the key in place of its second constant. No word depends on the one before, so a core multiplies several at a
//! time, and any place is as cheap as the first. Nothing here is fit for secrets.

/// Wyrand's increment: odd, with as many ones as zeroes.
const INCREMENT: u64 = 0xa076_1d64_78bd_642f;
/// From a word to a tag of its own, so that keys derived for different ends differ.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a piece of random data is a function of: 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    a: u64,
    b: u64,
}

impl Key {
    /// A key of two numbers; close numbers give unrelated keys.
    #[must_use]
    pub fn new(first: u64, second: u64) -> Self {
        let a = mix(first ^ mix(second.wrapping_add(GOLDEN)));
        Self {
            a,
            b: mix(a ^ second.wrapping_mul(GOLDEN)),
        }
    }

    /// The key of part `number` of what this key stands for.
    #[must_use]
    pub fn part(self, number: u64) -> Self {
        let a = mix(self.a.wrapping_add(number.wrapping_mul(GOLDEN)));
        Self {
            a,
            b: mix(self.b ^ a),
        }
    }

    /// Word `n` of its stream.
    #[inline]
    #[must_use]
    pub fn word(self, n: u64) -> u64 {
        let state = self.a.wrapping_add(n.wrapping_mul(INCREMENT));
        let product = u128::from(state) * u128::from(state ^ self.b);
        (product >> 64) as u64 ^ product as u64
    }

    /// Word `n` as a number in 0 <= x < 1.
    #[must_use]
    pub fn unit(self, n: u64) -> f64 {
        (self.word(n) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Word `n` as a number below `limit`, each equally likely to within 2^-32; 0 of a limit of 0.
    #[must_use]
    pub fn below(self, n: u64, limit: u64) -> u64 {
        ((u128::from(self.word(n)) * u128::from(limit)) >> 64) as u64
    }

    /// Fills `bytes` with the stream from word `first` on.
    pub fn fill(self, first: u64, bytes: &mut [u8]) {
        self.fill_words(first, bytes, |word| word);
    }

    /// As [`Key::fill`], but only the bits of `masks` are kept of each word.
    pub fn fill_masked(self, first: u64, bytes: &mut [u8], masks: Masks) {
        if masks == Masks::ALL {
            return self.fill(first, bytes);
        }
        let differing = masks.narrow ^ masks.wide;
        let mut phase = (first as u32).wrapping_mul(masks.narrow_share);
        self.fill_words(first, bytes, |word| {
            // A digital line, as Bresenham draws it: narrow words where the phase wraps.
            let (next, narrow) = phase.overflowing_add(masks.narrow_share);
            phase = next;
            word & (masks.wide ^ (differing & u64::from(narrow).wrapping_neg()))
        });
    }

    #[inline]
    fn fill_words(self, first: u64, bytes: &mut [u8], mut shape: impl FnMut(u64) -> u64) {
        let mut n = first;
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = shape(self.word(n)).to_le_bytes();
            n = n.wrapping_add(1);
        }
        let len = rest.len();
        rest.copy_from_slice(&shape(self.word(n)).to_le_bytes()[..len]);
    }
}

/// Which bits of each byte are kept: a narrow mask in a part of the words, evenly spread, a wide one in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masks {
    narrow: u64,
    wide: u64,
    /// Share of the narrow words, in 2^-32.
    narrow_share: u32,
}

impl Masks {
    /// All bits of all words.
    pub const ALL: Self = Self {
        narrow: u64::MAX,
        wide: u64::MAX,
        narrow_share: 0,
    };

    /// `narrow` bits a byte in a share of `narrow_share` of the words, `wide` bits in the others; at most 8.
    #[must_use]
    pub fn new(narrow: u32, wide: u32, narrow_share: f64) -> Self {
        let mask = |bits: u32| u64::from_le_bytes([((1_u32 << bits.min(8)) - 1) as u8; 8]);
        Self {
            narrow: mask(narrow),
            wide: mask(wide),
            narrow_share: (narrow_share.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32,
        }
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): spreads every bit of the input over the whole output.
#[must_use]
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
