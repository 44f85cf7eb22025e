//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).

use crate::{scale, unit};

/// 2^64 divided by the golden ratio: the increment of SplitMix64.
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64: every bit of the input affects the whole output. 0 stays 0.
#[inline]
#[must_use]
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The first output of SplitMix64 for `seed`: as [`mix`], but 0 also gives a random number.
#[inline]
#[must_use]
pub fn splitmix(seed: u64) -> u64 {
    mix(seed.wrapping_add(GOLDEN))
}

/// A seeded random generator.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The generator of `seed`, as published.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The generator for part `stream` of data seeded by `seed`. Streams do not repeat each other.
    #[must_use]
    pub fn stream(seed: u64, stream: u64) -> Self {
        Self::new(mix(seed ^ mix(stream.wrapping_add(0x51ed_270b))))
    }

    /// The same for a part with a name, so that its numbers do not depend on other parts.
    #[must_use]
    pub fn named(seed: u64, name: &str) -> Self {
        let folded = name
            .bytes()
            .fold(0, |folded: u64, byte| mix(folded ^ u64::from(byte)));
        Self::stream(seed, folded)
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A number below `limit`, all equally likely (to within 2^-32 for limits below 2^32).
    ///
    /// # Panics
    /// If `limit` is 0.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "no number is below 0");
        scale(self.bits(), limit)
    }

    /// An index below `len`, all equally likely.
    ///
    /// # Panics
    /// If `len` is 0.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number in 0 <= x < 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        unit(self.bits())
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Shuffles `values` (Fisher and Yates).
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.index(last + 1));
        }
    }

    /// The numbers 0 to `count - 1` in random order.
    #[must_use]
    pub fn permutation(&mut self, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        self.shuffle(&mut order);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first<const N: usize>(mut random: Random) -> [u64; N] {
        std::array::from_fn(|_| random.bits())
    }

    /// First outputs for seed 0 in the test vectors of the reference implementation.
    #[test]
    fn the_sequence_is_the_published_one() {
        let expected = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4];
        assert_eq!(first(Random::new(0)), expected);
        assert_eq!((splitmix(0), mix(0)), (expected[0], 0));
    }

    #[test]
    fn streams_do_not_change() {
        let expected = [
            0xa1db_398f_24ea_bcf5,
            0xee9e_b98e_c1fe_1206,
            0x8cfb_273a_ea27_034e,
        ];
        assert_eq!(first(Random::stream(7, 1)), expected);
        assert_eq!(first(Random::named(7, "write")), [0xca81_c44d_ad48_2fe0]);
    }

    #[test]
    fn seeds_streams_and_names_differ_and_repeat() {
        let one = first::<4>(Random::stream(7, 1));
        assert_eq!(one, first(Random::stream(7, 1)));
        assert_ne!(one, first(Random::stream(7, 2)));
        assert_ne!(one, first(Random::stream(8, 1)));
        assert_ne!(
            first::<4>(Random::named(7, "write")),
            first(Random::named(7, "read"))
        );
    }

    #[test]
    fn indexes_are_uniform() {
        let mut random = Random::stream(3, 0);
        let mut seen = [0u32; 10];
        for _ in 0..100_000 {
            seen[random.index(10)] += 1;
        }
        // Each expects 10,000 with a deviation of 95: five of them are 475.
        assert!(
            seen.iter().all(|&count| (9_500..10_500).contains(&count)),
            "{seen:?}"
        );
    }

    #[test]
    fn a_permutation_has_each_number_once() {
        let mut order = Random::new(11).permutation(1000);
        assert_ne!(order[..10], (0..10).collect::<Vec<u32>>()[..]);
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<u32>>());
    }

    #[test]
    fn all_bytes_are_filled() {
        let (mut long, mut short) = ([0; 16], [0; 11]);
        Random::new(4).fill(&mut long);
        Random::new(4).fill(&mut short);
        assert_eq!(long[..11], short);
    }
}
