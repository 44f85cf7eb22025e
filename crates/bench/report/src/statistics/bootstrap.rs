//! Intervals by resampling (Efron, 1979; the percentile interval of Efron and Tibshirani, 1993, chapter 13): the runs
//! are drawn repeatedly, with replacement, and the interval contains the middle of the results.
//!
//! A few runs have few combinations: below about six runs per side such an interval is too narrow.

use flaz_random::Random;

/// Number of resamples for a displayed interval; its limits then vary by about a hundredth of its width.
pub const RESAMPLES: u32 = 10_000;

/// Middle of an interval and its limits.
pub type Interval = (f64, f64);

/// The resampling interval of the median of `values` with coverage `coverage`.
///
/// # Panics
/// Without values or resamples.
#[must_use]
pub fn median(values: &[f64], coverage: f64, resamples: u32, random: &mut Random) -> Interval {
    let mut urn = Urn::new(values);
    let medians = (0..resamples).map(|_| urn.median(random)).collect();
    limits(medians, coverage)
}

/// The same for the median of `b` divided by the median of `a`.
///
/// # Panics
/// Without values or resamples.
#[must_use]
pub fn median_ratio(a: &[f64], b: &[f64], coverage: f64, resamples: u32, random: &mut Random) -> Interval {
    let (mut urn_a, mut urn_b) = (Urn::new(a), Urn::new(b));
    let ratios = (0..resamples)
        .map(|_| {
            let below = urn_a.median(random);
            urn_b.median(random) / below
        })
        .collect();
    limits(ratios, coverage)
}

/// Values to draw from, and how often each was drawn.
struct Urn {
    sorted: Vec<f64>,
    drawn: Vec<u32>,
}

impl Urn {
    fn new(values: &[f64]) -> Self {
        assert!(!values.is_empty(), "nothing to draw from");
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        Self {
            drawn: vec![0; sorted.len()],
            sorted,
        }
    }

    /// The median of as many draws as there are values.
    fn median(&mut self, random: &mut Random) -> f64 {
        let runs = self.sorted.len();
        self.drawn.fill(0);
        for _ in 0..runs {
            self.drawn[random.index(runs)] += 1;
        }
        // Walking up the sorted values avoids sorting the drawn ones.
        let (low_rank, high_rank) = ((runs - 1) / 2, runs / 2);
        let mut low = None;
        let mut passed = 0;
        for (value, &times) in self.sorted.iter().zip(&self.drawn) {
            passed += times as usize;
            if low.is_none() && passed > low_rank {
                low = Some(*value);
            }
            if let Some(low) = low
                && passed > high_rank
            {
                return f64::midpoint(low, *value);
            }
        }
        unreachable!("as many were drawn as there are")
    }
}

/// The limits of the middle `coverage` of `values`, interpolated between neighbours.
fn limits(mut values: Vec<f64>, coverage: f64) -> Interval {
    assert!(!values.is_empty(), "an interval needs resamples");
    values.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| {
        let place = share * (values.len() - 1) as f64;
        let below = values[place.floor() as usize];
        let above = values[place.ceil() as usize];
        below + (above - below) * place.fract()
    };
    let tail = (1.0 - coverage) / 2.0;
    (at(tail), at(1.0 - tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 7.0], [2.0, 3.0, 5.0, 6.0]);
        let once = |seed| median_ratio(&a, &b, 0.95, 500, &mut Random::stream(seed, 0));
        assert_eq!(once(1), once(1));
        assert_ne!(once(1), once(2));
    }

    #[test]
    fn values_that_do_not_vary_have_no_width() {
        let mut random = Random::stream(1, 0);
        assert_eq!(median(&[4.0; 6], 0.95, 100, &mut random), (4.0, 4.0));
        assert_eq!(
            median_ratio(&[4.0; 6], &[2.0; 3], 0.95, 100, &mut random),
            (0.5, 0.5)
        );
    }

    /// The distribution of the resampled median is known: it is at most the k-th of n sorted values, n odd, if more
    /// than half of the draws are.
    #[test]
    fn resampled_medians_follow_their_exact_distribution() {
        let values: Vec<f64> = (1..=5).map(f64::from).collect();
        let mut urn = Urn::new(&values);
        let mut random = Random::stream(9, 0);
        let draws = 100_000;
        let mut at_most = [0u32; 5];
        for _ in 0..draws {
            let median = urn.median(&mut random);
            for (k, count) in at_most.iter_mut().enumerate() {
                *count += u32::from(median <= values[k]);
            }
        }
        let choose = [1.0, 5.0, 10.0, 10.0, 5.0, 1.0];
        for (k, &count) in at_most.iter().enumerate() {
            let p = (k + 1) as f64 / 5.0;
            let exact: f64 = (3..=5)
                .map(|hits| choose[hits] * p.powi(hits as i32) * (1.0 - p).powi(5 - hits as i32))
                .sum();
            let deviation = (exact * (1.0 - exact) / f64::from(draws)).sqrt();
            let found = f64::from(count) / f64::from(draws);
            assert!((found - exact).abs() <= 5.0 * deviation, "{k}: {found} {exact}");
        }
    }
}
