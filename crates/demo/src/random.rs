//! Seeded random numbers for the demo: one small generator, and Zipf-distributed ranks on top of it.
//!
//! The same seed gives the same sequence on every machine, so that the three runs of the demo see the same
//! requests. Nothing here is fit for secrets.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator for part `stream` of something seeded by `seed`: streams do not repeat each other.
    pub fn stream(seed: u64, stream: u64) -> Self {
        Self::new(mix(seed ^ mix(stream.wrapping_add(0x51ed_270b))))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `limit`, each equally likely (to within 2^-32 for limits below 2^32).
    ///
    /// # Panics
    /// When `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "no number is below 0");
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// A number in 0 <= x < 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }

    /// The numbers 0 to `count - 1` in random order.
    pub fn permutation(&mut self, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, self.below(last as u64 + 1) as usize);
        }
        order
    }
}

/// The finalizer of SplitMix64: spreads every bit of the input over the whole output.
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Ranks 0 to n-1 where rank r comes with a probability proportional to 1 / (r + 1)^skew.
#[derive(Debug, Clone)]
pub struct Zipf {
    /// `cumulative[r]`: weight of the ranks 0 to r, not normalised.
    cumulative: Vec<f64>,
}

impl Zipf {
    /// A distribution over `ranks` ranks; `skew` 0 is uniform, web and storage traces lie around 0.7 to 1.1.
    ///
    /// # Panics
    /// When `ranks` is 0 or `skew` is negative or not a number.
    pub fn new(ranks: u32, skew: f64) -> Self {
        assert!(
            ranks > 0 && skew >= 0.0,
            "a Zipf distribution needs ranks and a skew of at least 0"
        );
        let mut sum = 0.0;
        let cumulative = (1..=ranks)
            .map(|rank| {
                sum += f64::from(rank).powf(-skew);
                sum
            })
            .collect();
        Self { cumulative }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.cumulative.len() as u32
    }

    /// Draws a rank.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let total = self.cumulative[self.cumulative.len() - 1];
        let point = random.unit() * total;
        let rank = self.cumulative.partition_point(|&weight| weight <= point);
        rank.min(self.cumulative.len() - 1) as u32
    }

    /// Share of the draws that fall on the `top` most popular ranks.
    pub fn share_of_top(&self, top: u32) -> f64 {
        let Some(last) = top.min(self.ranks()).checked_sub(1) else {
            return 0.0;
        };
        self.cumulative[last as usize] / self.cumulative[self.cumulative.len() - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_sequence_and_streams_differ() {
        let draw = |mut random: Random| (0..8).map(|_| random.bits()).collect::<Vec<_>>();
        assert_eq!(draw(Random::stream(7, 1)), draw(Random::stream(7, 1)));
        assert_ne!(draw(Random::stream(7, 1)), draw(Random::stream(7, 2)));
        assert_ne!(draw(Random::stream(7, 1)), draw(Random::stream(8, 1)));
    }

    #[test]
    fn below_is_uniform() {
        let mut random = Random::new(3);
        let mut seen = [0u32; 10];
        for _ in 0..100_000 {
            seen[random.below(10) as usize] += 1;
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
    fn zipf_draws_follow_the_law() {
        let zipf = Zipf::new(1000, 0.9);
        let mut random = Random::new(5);
        let mut seen = vec![0u32; 1000];
        let draws = 400_000;
        for _ in 0..draws {
            seen[zipf.draw(&mut random) as usize] += 1;
        }
        let weight: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.9)).sum();
        for rank in [0usize, 1, 9, 99] {
            let expected = f64::from(draws) * ((rank + 1) as f64).powf(-0.9) / weight;
            let off = (f64::from(seen[rank]) - expected).abs();
            assert!(
                off < 6.0 * expected.sqrt(),
                "rank {rank}: {} draws, expected {expected:.0}",
                seen[rank]
            );
        }
        let top: u32 = seen[..250].iter().sum();
        let share = f64::from(top) / f64::from(draws);
        assert!(
            (share - zipf.share_of_top(250)).abs() < 0.005,
            "{share} {}",
            zipf.share_of_top(250)
        );
    }

    #[test]
    fn zipf_without_skew_is_uniform() {
        let zipf = Zipf::new(4, 0.0);
        assert!((zipf.share_of_top(1) - 0.25).abs() < 1e-12);
        assert_eq!(zipf.share_of_top(0), 0.0);
        assert_eq!(zipf.share_of_top(9), 1.0);
    }
}
