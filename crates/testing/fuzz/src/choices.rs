//! Decisions read from a fuzzer's bytes, so that a mutation of an image is itself a short string that a fuzzer can
//! mutate.

/// Reads decisions from the front of a byte string. After its end all decisions are 0.
#[derive(Clone, Debug)]
pub struct Choices<'d>(&'d [u8]);

impl<'d> Choices<'d> {
    /// Decisions from `data`.
    #[must_use]
    pub fn new(data: &'d [u8]) -> Self {
        Self(data)
    }

    /// Whether all bytes were read.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The remaining bytes.
    #[must_use]
    pub fn rest(&self) -> &'d [u8] {
        self.0
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// `count` bytes as a number, `count` up to 8.
    pub fn number(&mut self, count: usize) -> u64 {
        (0..count).fold(0, |sum, _| sum << 8 | u64::from(self.byte()))
    }

    /// A number below `bound`, which must not be 0; reads no more bytes than necessary.
    pub fn below(&mut self, bound: u64) -> u64 {
        let bytes = match bound {
            0..=1 => 0,
            2..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            _ => 4,
        };
        self.number(bytes) % bound
    }

    /// One of the given items.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// A new value for a field of `width` bytes with the value `old`; `other` is the value of the same field elsewhere.
    pub fn value(&mut self, old: u64, other: u64, width: usize) -> u64 {
        let bits = width as u64 * 8;
        let value = match self.below(16) {
            0 => 0,
            1 => u64::MAX,
            2 => old.wrapping_add(1),
            3 => old.wrapping_sub(1),
            4 => old.wrapping_mul(2),
            5 => old / 2,
            6 => other,
            7 => 1 << self.below(bits),
            8 => (1 << self.below(bits)) - 1,
            9 => old ^ 1 << self.below(bits),
            10 => old.wrapping_add(512),
            11 => old.wrapping_sub(512),
            12 => self.below(16),
            13 => self.below(1 << 16) * 512,
            14 => other.wrapping_add(1),
            _ => self.number(width),
        };
        if bits == 64 {
            value
        } else {
            value & ((1 << bits) - 1)
        }
    }
}
