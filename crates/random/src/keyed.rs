//! Random words as a function of a key and a position.
//!
//! Word `n` of a key is wyrand's output (Wang Yi, wyhash) for the state `a + n * INCREMENT`, with the second half of
//! the key in place of its second constant. No word depends on the previous one, so a core computes several at a time,
//! and any position costs the same.

use crate::splitmix::{GOLDEN, mix};
use crate::{scale, unit};

/// Wyrand's increment: odd, with as many ones as zeroes.
const INCREMENT: u64 = 0xa076_1d64_78bd_642f;

/// The key of a piece of random data: 128 bits.
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

    /// The key of part `number` of the data of this key.
    #[inline]
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
        unit(self.word(n))
    }

    /// Word `n` as a number below `limit`, all equally likely to within 2^-32; 0 if the limit is 0.
    #[inline]
    #[must_use]
    pub fn below(self, n: u64, limit: u64) -> u64 {
        scale(self.word(n), limit)
    }

    /// Fills `bytes` with the stream from word `first` on.
    pub fn fill(self, first: u64, bytes: &mut [u8]) {
        self.fill_words(first, bytes, |word| word);
    }

    /// As [`Key::fill`], with `shape` applied to each word.
    #[inline]
    pub fn fill_words(self, first: u64, bytes: &mut [u8], mut shape: impl FnMut(u64) -> u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_do_not_change() {
        let key = Key::new(1, 2);
        let expected = [
            0x346a_34d7_36b2_81c6,
            0x41be_5201_fbff_4b05,
            0x97e0_e394_34ea_02b7,
        ];
        assert_eq!([0, 1, 2].map(|n| key.word(n)), expected);
        let part = key.part(7);
        assert_eq!(
            [part.word(0), part.word(1)],
            [0x9410_f5e2_b54c_84ce, 0xe0f3_967d_e5b7_72bb]
        );
    }

    #[test]
    fn bytes_match_the_words_from_a_position() {
        let key = Key::new(3, 4);
        let mut bytes = [0; 19];
        key.fill(5, &mut bytes);
        for (at, chunk) in bytes.chunks(8).enumerate() {
            assert_eq!(*chunk, key.word(5 + at as u64).to_le_bytes()[..chunk.len()]);
        }
    }
}
