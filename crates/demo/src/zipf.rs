//! Zipf-distributed ranks.

use flaz_random::Random;

/// Ranks 0 to n-1; rank r has a probability proportional to 1 / (r + 1)^skew.
#[derive(Debug, Clone)]
pub struct Zipf {
    /// `cumulative[r]`: weight of the ranks 0 to r, not normalised.
    cumulative: Vec<f64>,
}

impl Zipf {
    /// A distribution over `ranks` ranks. A `skew` of 0 is uniform; web and storage traces have about 0.7 to 1.1.
    ///
    /// # Panics
    /// If `ranks` is 0 or `skew` is negative or not a number.
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

    /// Share of the draws among the `top` most popular ranks.
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
