//! Seeded random numbers: the same seed gives the same numbers on every machine. Nothing here is fit for secrets.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The generator for the part `stream` of what `seed` decides; parts do not repeat each other.
    #[must_use]
    pub fn stream(seed: u64, stream: u64) -> Self {
        Self {
            state: mix(seed ^ mix(stream.wrapping_add(0x51ed_270b))),
        }
    }

    /// The same for a part that has a name, so that it does not depend on which other parts there are.
    #[must_use]
    pub fn named(seed: u64, name: &str) -> Self {
        let folded = name
            .bytes()
            .fold(0, |folded: u64, byte| mix(folded ^ u64::from(byte)));
        Self::stream(seed, folded)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// An index below `limit`, each equally likely (to within 2^-32 for limits below 2^32).
    ///
    /// # Panics
    /// When `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        assert!(limit > 0, "no index is below 0");
        ((u128::from(self.bits()) * limit as u128) >> 64) as usize
    }

    /// A number in 0 <= x < 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The finalizer of SplitMix64: spreads every bit of the input over the whole output.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(mut random: Random) -> [u64; 4] {
        std::array::from_fn(|_| random.bits())
    }

    #[test]
    fn seeds_streams_and_names_differ_and_repeat() {
        assert_eq!(first(Random::stream(7, 1)), first(Random::stream(7, 1)));
        assert_ne!(first(Random::stream(7, 1)), first(Random::stream(7, 2)));
        assert_ne!(first(Random::stream(7, 1)), first(Random::stream(8, 1)));
        assert_eq!(first(Random::named(7, "write")), first(Random::named(7, "write")));
        assert_ne!(first(Random::named(7, "write")), first(Random::named(7, "read")));
    }

    #[test]
    fn indexes_are_uniform() {
        let mut random = Random::stream(3, 0);
        let mut seen = [0u32; 10];
        for _ in 0..100_000 {
            seen[random.below(10)] += 1;
        }
        // Each expects 10,000 with a deviation of 95: five of them are 475.
        assert!(
            seen.iter().all(|&count| (9_500..10_500).contains(&count)),
            "{seen:?}"
        );
    }
}
