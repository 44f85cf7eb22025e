//! xoshiro256++ seeded through SplitMix64 (Blackman and Vigna: "Scrambled linear pseudorandom number generators", ACM
//! TOMS 2021).

use crate::scale;
use crate::splitmix::{GOLDEN, splitmix};

/// A small, fast, seeded random generator. Not for secrets.
#[derive(Clone, Debug)]
pub struct Xoshiro {
    state: [u64; 4],
}

impl Xoshiro {
    /// The generator of `seed`; every seed, including zero, is valid.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = [0; 4];
        let mut at = seed;
        for word in &mut state {
            *word = splitmix(at);
            at = at.wrapping_add(GOLDEN);
        }
        Self { state }
    }

    /// The next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`, uniform enough for simulations (multiply and shift, no rejection).
    ///
    /// # Panics
    /// If `bound` is zero.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a random number below zero was asked for");
        scale(self.next_u64(), bound)
    }

    /// A number from `low` to `high`, inclusive.
    ///
    /// # Panics
    /// If `low` exceeds `high`.
    #[inline]
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "empty range {low}..={high}");
        match (high - low).checked_add(1) {
            Some(span) => low + self.below(span),
            None => self.next_u64(),
        }
    }

    /// True with probability 1/2.
    #[inline]
    pub fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }

    /// True `per_million` times in a million; costs nothing if it is zero.
    #[inline]
    pub fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// Fills `bytes` with random bits.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let mut chunks = bytes.chunks_exact_mut(8);
        for chunk in &mut chunks {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes());
        }
        let rest = chunks.into_remainder();
        let last = self.next_u64().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// An independent generator for a part of the simulation, so that parts do not affect each other.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xoshiro_gives_the_reference_sequence() {
        // State 1, 2, 3, 4: a test vector that implementations of xoshiro256++ share.
        let mut random = Xoshiro { state: [1, 2, 3, 4] };
        let expected = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
        ];
        assert_eq!(expected.map(|_| random.next_u64()), expected);
    }

    /// Recorded seeds of the simulation depend on it.
    #[test]
    fn the_sequence_of_a_seed_does_not_change() {
        let mut random = Xoshiro::new(1);
        let expected = [
            0xcfc5_d07f_6f03_c29b,
            0xbf42_4132_963f_e08d,
            0x19a3_7d57_57aa_f520,
        ];
        assert_eq!(expected.map(|_| random.next_u64()), expected);
    }

    #[test]
    fn numbers_stay_in_their_range_and_reach_its_ends() {
        let mut random = Xoshiro::new(5);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[random.below(10) as usize] = true;
            assert!((3..=7).contains(&random.between(3, 7)));
        }
        assert_eq!(seen, [true; 10]);
        assert_eq!(random.between(9, 9), 9);
        random.between(0, u64::MAX);
    }

    #[test]
    fn probabilities_have_their_value() {
        let mut random = Xoshiro::new(6);
        let hits = (0..100_000).filter(|_| random.chance(100_000)).count();
        assert!((9_000..11_000).contains(&hits), "{hits}");
        assert!(!random.chance(0));
        assert!(random.chance(1_000_000));
    }
}
