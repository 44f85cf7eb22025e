//! How many blocks repeat others, as far as a sample can tell.
//!
//! The share is `1 - distinct / blocks` over blocks that are not zeroes. A sample cannot tell it exactly: a block
//! whose twin was not drawn looks unique. No estimator is good for all data (Charikar et al., PODS 2000), so this gives
//! an interval that holds whatever the multiplicities are, and a point within it that holds if they are alike:
//!
//! - *at least* what repeats within the sample: reading more can only find more;
//! - *at most* the number of equal pairs: a content with m copies has m (m - 1) / 2 pairs and wastes m - 1 blocks, and
//!   the first is never the smaller. Pairs can be estimated without bias: each counts with the inverse of its
//!   probability to be drawn (Horvitz and Thompson), for two blocks of one window the probability of that window,
//!   for two windows that of both;
//! - *between*: the mean multiplicity that the equal triples beside the equal pairs tell, as if all were alike.
//!
//! The ends of the interval are these bounds, moved out by their sampling error (jackknife over twenty groups of
//! windows). Where no pair was seen across windows, the rule of three is applied to whole windows, for duplicates come
//! as copied files.
//!
//! When everything was read the share is exact. Of more than [`FINGERPRINTS_MAX`] blocks only those whose fingerprint
//! is below a limit are kept (distinct sampling: Gibbons, VLDB 2001); equal blocks are kept or dropped together.

use serde::Serialize;

use super::estimate::NONE_SEEN_AT_MOST;

/// Most fingerprints in memory, 16 bytes each.
pub const FINGERPRINTS_MAX: usize = 1 << 24;
/// Groups of windows of the jackknife.
const GROUPS: u32 = 20;
/// Standard errors to each side.
const Z: f64 = 1.96;

/// Share of blocks that repeat others, in percent of the blocks that are not zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Duplicates {
    /// If all contents that repeat do so about as often.
    pub percent: f64,
    /// At least, with 95 % confidence.
    pub low_percent: f64,
    /// At most, with 95 % confidence.
    pub high_percent: f64,
    /// Blocks compared.
    pub blocks_compared: u64,
    /// Those of them that repeat another one of them.
    pub repeated: u64,
}

/// Fingerprints of blocks with their windows.
#[derive(Clone, Debug)]
pub struct Fingerprints {
    kept: Vec<(u64, u32)>,
    /// Only fingerprints up to here are kept.
    limit: u64,
    capacity: usize,
}

impl Default for Fingerprints {
    fn default() -> Self {
        Self::with_capacity(FINGERPRINTS_MAX)
    }
}

/// Counts over a set of windows.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    windows: f64,
    blocks: f64,
    distinct: f64,
    /// Pairs of equal blocks, within a window and of two windows.
    pairs: [f64; 2],
    /// Triples, of one, two and three windows.
    triples: [f64; 3],
}

impl Fingerprints {
    /// None yet; at most `capacity` are kept.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            kept: Vec::new(),
            limit: u64::MAX,
            capacity: capacity.max(1),
        }
    }

    /// Adds the blocks of window `window`.
    pub fn add(&mut self, window: u32, fingerprints: &[u64]) {
        let limit = self.limit;
        let below = fingerprints.iter().filter(|print| **print <= limit);
        self.kept.extend(below.map(|print| (*print, window)));
        while self.kept.len() > self.capacity {
            self.limit /= 2;
            let limit = self.limit;
            self.kept.retain(|(print, _)| *print <= limit);
        }
    }

    /// The share of duplicates, when `drawn` of `windows` windows were read.
    #[must_use]
    pub fn duplicates(&mut self, drawn: u64, windows: u64) -> Duplicates {
        self.kept.sort_unstable();
        let all = self.counts(drawn as f64, None);
        let exact = drawn >= windows;
        let share = if exact {
            all.repeated_share()
        } else {
            all.share(windows as f64)
        };
        let (low, high) = if exact {
            (share, share)
        } else {
            self.interval(&all, drawn, windows)
        };
        Duplicates {
            percent: share.clamp(low, high) * 100.0,
            low_percent: low * 100.0,
            high_percent: high * 100.0,
            blocks_compared: all.blocks as u64,
            repeated: (all.blocks - all.distinct) as u64,
        }
    }

    fn interval(&self, all: &Counts, drawn: u64, windows: u64) -> (f64, f64) {
        let total = windows as f64;
        let (mut lows, mut highs) = (Vec::new(), Vec::new());
        for group in 0..GROUPS {
            let left_out = (drawn + u64::from(GROUPS - 1 - group)) / u64::from(GROUPS);
            let without = self.counts((drawn - left_out) as f64, Some(group));
            lows.push(without.repeated_share());
            highs.push(without.pair_share(total));
        }
        let low = all.repeated_share() - Z * jackknife_error(&lows);
        let mut high = all.pair_share(total) + Z * jackknife_error(&highs);
        // Few copied windows, each seen or not as a whole: at least what none seen would leave possible.
        let unseen = NONE_SEEN_AT_MOST / (all.both_drawn(total) * total);
        high = high.max(all.repeated_share() + unseen);
        (low.clamp(0.0, 1.0), high.clamp(0.0, 1.0))
    }

    /// Counts without the windows of a group.
    fn counts(&self, windows: f64, without: Option<u32>) -> Counts {
        let mut counts = Counts {
            windows,
            ..Counts::default()
        };
        for class in self.kept.chunk_by(|a, b| a.0 == b.0) {
            let (mut blocks, mut squares, mut cubes) = (0.0, 0.0, 0.0);
            for window in class.chunk_by(|a, b| a.1 == b.1) {
                if without.is_some_and(|group| window[0].1 % GROUPS == group) {
                    continue;
                }
                let k = window.len() as f64;
                blocks += k;
                squares += k * k;
                cubes += k * k * k;
            }
            if blocks == 0.0 {
                continue;
            }
            counts.blocks += blocks;
            counts.distinct += 1.0;
            if blocks > 1.0 {
                counts.add_class(blocks, squares, cubes);
            }
        }
        counts
    }
}

impl Counts {
    /// Adds the pairs and triples of one content with so many blocks, from the power sums of its blocks by window.
    fn add_class(&mut self, blocks: f64, squares: f64, cubes: f64) {
        let pairs = blocks * (blocks - 1.0) / 2.0;
        let within = (squares - blocks) / 2.0;
        self.pairs[0] += within;
        self.pairs[1] += pairs - within;
        let triples = pairs * (blocks - 2.0) / 3.0;
        let one = (cubes - 3.0 * squares + 2.0 * blocks) / 6.0;
        // Two of one window and one of another.
        let two = (blocks * (squares - blocks) - (cubes - squares)) / 2.0;
        self.triples[0] += one;
        self.triples[1] += two;
        self.triples[2] += triples - one - two;
    }

    /// What repeats among the blocks that were seen: a lower bound.
    fn repeated_share(&self) -> f64 {
        if self.blocks > 0.0 {
            1.0 - self.distinct / self.blocks
        } else {
            0.0
        }
    }

    /// Probability that two windows of `total` were both drawn.
    fn both_drawn(&self, total: f64) -> f64 {
        (self.windows * (self.windows - 1.0) / (total * (total - 1.0))).max(f64::MIN_POSITIVE)
    }

    /// Pairs of equal blocks in the whole population.
    fn pairs_of_all(&self, total: f64) -> f64 {
        self.pairs[0] * total / self.windows + self.pairs[1] / self.both_drawn(total)
    }

    /// Pairs for each block: an upper bound.
    fn pair_share(&self, total: f64) -> f64 {
        if self.blocks == 0.0 {
            return 0.0;
        }
        self.pairs_of_all(total) / (self.blocks * total / self.windows)
    }

    /// The share if all contents that repeat do so equally often.
    fn share(&self, total: f64) -> f64 {
        let pairs = self.pairs_of_all(total);
        if pairs == 0.0 {
            return 0.0;
        }
        let three = self.both_drawn(total) * ((self.windows - 2.0) / (total - 2.0)).max(f64::MIN_POSITIVE);
        let triples = self.triples[0] * total / self.windows
            + self.triples[1] / self.both_drawn(total)
            + self.triples[2] / three;
        let copies = 2.0 + 3.0 * triples / pairs;
        (self.pair_share(total) * 2.0 / copies).clamp(self.repeated_share(), 1.0)
    }
}

/// Standard error from figures that each leave out one group.
fn jackknife_error(figures: &[f64]) -> f64 {
    let count = figures.len() as f64;
    let mean = figures.iter().sum::<f64>() / count;
    let squares: f64 = figures.iter().map(|x| (x - mean).powi(2)).sum();
    ((count - 1.0) / count * squares).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Key;

    /// A population of `windows` windows of 16 blocks whose contents are `content(block)`, sampled by `drawn`.
    fn study(windows: u64, drawn: u64, content: impl Fn(u64) -> u64) -> Duplicates {
        let mut order: Vec<u64> = (0..windows).collect();
        let key = Key::new(7, windows);
        for last in (1..order.len()).rev() {
            order.swap(last, key.below(last as u64, last as u64 + 1) as usize);
        }
        let mut prints = Fingerprints::default();
        for (number, window) in order.iter().take(drawn as usize).enumerate() {
            let blocks: Vec<u64> = (0..16)
                .map(|block| crate::random::mix(content(window * 16 + block)))
                .collect();
            prints.add(number as u32, &blocks);
        }
        prints.duplicates(drawn, windows)
    }

    fn holds(found: &Duplicates, truth: f64) -> bool {
        (found.low_percent..=found.high_percent).contains(&truth)
    }

    #[test]
    fn everything_read_is_exact() {
        let found = study(100, 100, |block| block / 2);
        assert_eq!(
            (found.percent, found.low_percent, found.high_percent),
            (50.0, 50.0, 50.0)
        );
        let found = study(100, 100, |block| block);
        assert_eq!((found.percent, found.repeated), (0.0, 0));
    }

    #[test]
    fn pairs_far_apart_are_found_from_a_sample() {
        // Every block has one twin, half of the data away.
        let found = study(4000, 800, |block| block % 32_000);
        assert!(holds(&found, 50.0), "{found:?}");
        assert!((found.percent - 50.0).abs() < 8.0, "{found:?}");
    }

    #[test]
    fn many_copies_are_not_taken_for_pairs() {
        // Each content ten times: 90 % are duplicates.
        let found = study(4000, 800, |block| block % 6400);
        assert!(holds(&found, 90.0), "{found:?}");
        assert!((found.percent - 90.0).abs() < 8.0, "{found:?}");
    }

    #[test]
    fn unlike_multiplicities_stay_within_the_interval() {
        // A tenth of the data is one content, a fifth are pairs, the rest is unique.
        let found = study(4000, 400, |block| match block % 10 {
            0 => 1,
            1 => 1_000_000 + block / 20,
            _ => 10_000_000 + block,
        });
        assert!(holds(&found, 15.0), "{found:?}");
    }

    #[test]
    fn nothing_seen_is_not_nothing_there() {
        let unique = study(100_000, 200, |block| block);
        assert_eq!((unique.percent, unique.low_percent), (0.0, 0.0));
        assert_eq!(unique.high_percent, 100.0, "{unique:?}");
        let more = study(4000, 1000, |block| block);
        assert!(more.high_percent < 2.0, "{more:?}");
    }

    #[test]
    fn a_limit_on_memory_keeps_the_share() {
        let mut prints = Fingerprints::with_capacity(1000);
        for window in 0..1000_u32 {
            let blocks: Vec<u64> = (0..16)
                .map(|block| crate::random::mix((u64::from(window) * 16 + block) % 4000))
                .collect();
            prints.add(window, &blocks);
        }
        let found = prints.duplicates(1000, 1000);
        assert!(found.blocks_compared <= 1000, "{found:?}");
        assert!((found.percent - 75.0).abs() < 1e-9, "{found:?}");
    }
}
