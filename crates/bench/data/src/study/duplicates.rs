//! Estimates the share of duplicate blocks from a sample.
//!
//! The share is `1 - distinct / blocks` over blocks that are not zeroes. A sample does not determine it exactly: a
//! block whose duplicate was not drawn looks unique. No estimator is good for all data (Charikar et al., PODS 2000).
//! The result is therefore an interval that is valid for all multiplicities, and a point in it that is valid if they
//! are equal:
//!
//! - *lower end*: the duplicates within the sample, because reading more can only find more;
//! - *upper end*: copies within one window are seen with the window, so their number is known except for sampling
//!   error. A content in `w` windows adds `w - 1` more. If it is seen in `j` drawn windows, it counts as `max(1 / p2, j
//!   / p1)` from `j = 2` on, where `p1` and `p2` are the probabilities that one and that two given windows are drawn.
//!   The expectation of this is never below `w - 1` (tested for all multiplicities), equal for contents in pairs, and
//!   not much above for frequent contents;
//! - *point*: contents seen in twenty windows or more are estimated separately; the multiplicity of the others is
//!   estimated from the ratio of equal triples to equal pairs, as if all had the same one.
//!
//! The interval ends are these bounds, extended by their sampling error (jackknife over twenty groups of windows). If
//! no pair was seen across windows, the rule of three is applied to whole windows, because duplicates usually are
//! copied files.
//!
//! If everything was read, the share is exact. With more than [`FINGERPRINTS_MAX`] blocks, only fingerprints below a
//! limit are kept (distinct sampling: Gibbons, VLDB 2001); equal blocks are kept or dropped together.

use serde::Serialize;

use super::estimate::NONE_SEEN_AT_MOST;

/// Maximum number of fingerprints in memory, 16 bytes each.
pub const FINGERPRINTS_MAX: usize = 1 << 24;
/// A content seen in this many windows is estimated separately: fewer may be a coincidence.
const OFTEN: f64 = 20.0;
/// Number of groups of windows for the jackknife.
const GROUPS: u32 = 20;
/// Interval half-width in standard errors.
const Z: f64 = 1.96;

/// Share of duplicate blocks, in percent of the blocks that are not zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Duplicates {
    /// Point estimate, if all duplicated contents are about equally frequent.
    pub percent: f64,
    /// Lower end, with 95 % confidence.
    pub low_percent: f64,
    /// Upper end, with 95 % confidence.
    pub high_percent: f64,
    /// Blocks compared.
    pub blocks_compared: u64,
    /// Duplicate blocks among them.
    pub repeated: u64,
}

/// Fingerprints of blocks with their windows.
#[derive(Clone, Debug)]
pub struct Fingerprints {
    kept: Vec<(u64, u32)>,
    /// Only fingerprints up to this limit are kept.
    limit: u64,
    capacity: usize,
}

impl Default for Fingerprints {
    fn default() -> Self {
        Self::with_capacity(FINGERPRINTS_MAX)
    }
}

/// The share of the windows that was drawn.
#[derive(Clone, Copy, Debug)]
struct Design {
    /// Probability that a window, that two given windows, and that three given windows were drawn.
    one: f64,
    two: f64,
    three: f64,
}

/// Counts over a set of windows; all except the first two are estimates for the whole population.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    blocks: f64,
    distinct: f64,
    /// Blocks.
    all_blocks: f64,
    /// Duplicates of a block in the same window.
    within: f64,
    /// Upper bound of the duplicates of a block in another window.
    across_at_most: f64,
    /// Duplicates with frequent contents.
    across_often: f64,
    /// Pairs and triples of windows that share one of the other contents.
    pairs: f64,
    triples: f64,
}

impl Fingerprints {
    /// Empty; keeps at most `capacity` fingerprints.
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

    /// The share of duplicates, after `drawn` of `windows` windows were read.
    #[must_use]
    pub fn duplicates(&mut self, drawn: u64, windows: u64) -> Duplicates {
        self.kept.sort_unstable();
        let all = self.counts(Design::new(drawn, windows), None);
        let exact = drawn >= windows;
        let low_seen = all.repeated_share();
        let (low, high) = if exact {
            (low_seen, low_seen)
        } else {
            self.interval(&all, drawn, windows)
        };
        Duplicates {
            percent: all.share().max(low_seen).clamp(low, high) * 100.0,
            low_percent: low * 100.0,
            high_percent: high * 100.0,
            blocks_compared: all.blocks as u64,
            repeated: (all.blocks - all.distinct) as u64,
        }
    }

    fn interval(&self, all: &Counts, drawn: u64, windows: u64) -> (f64, f64) {
        let (mut lows, mut highs) = (Vec::new(), Vec::new());
        for group in 0..GROUPS {
            let left_out = (drawn + u64::from(GROUPS - 1 - group)) / u64::from(GROUPS);
            let without = self.counts(Design::new(drawn - left_out, windows), Some(group));
            lows.push(without.repeated_share());
            highs.push(without.share_at_most());
        }
        let low = all.repeated_share() - Z * jackknife_error(&lows);
        let high = all.share_at_most() + Z * jackknife_error(&highs);
        // A few copied windows, each seen as a whole or not at all: the upper bound is at least the share that could exist
        // although none of them was seen.
        let unseen = NONE_SEEN_AT_MOST / (Design::new(drawn, windows).two * windows as f64);
        let high = high.max(all.repeated_share() + unseen);
        (low.clamp(0.0, 1.0), high.clamp(0.0, 1.0))
    }

    /// Counts without the windows of a group.
    fn counts(&self, design: Design, without: Option<u32>) -> Counts {
        let mut counts = Counts::default();
        for class in self.kept.chunk_by(|a, b| a.0 == b.0) {
            let (mut blocks, mut windows) = (0.0, 0.0);
            for window in class.chunk_by(|a, b| a.1 == b.1) {
                if without.is_none_or(|group| window[0].1 % GROUPS != group) {
                    blocks += window.len() as f64;
                    windows += 1.0;
                }
            }
            if windows > 0.0 {
                counts.add_content(blocks, windows, design);
            }
        }
        counts.all_blocks = counts.blocks / design.one;
        counts
    }
}

impl Design {
    fn new(drawn: u64, windows: u64) -> Self {
        let part = |before: u64| {
            let (drawn, windows) = (drawn.saturating_sub(before), windows.saturating_sub(before));
            (drawn.max(1) as f64 / windows.max(1) as f64).min(1.0)
        };
        let one = part(0);
        Self {
            one,
            two: one * part(1),
            three: one * part(1) * part(2),
        }
    }

    /// Upper bound of the number of additional windows with a content that was seen in `windows` of the drawn ones.
    fn across_at_most(self, windows: f64) -> f64 {
        if windows < 2.0 {
            0.0
        } else {
            (1.0 / self.two).max(windows / self.one)
        }
    }
}

impl Counts {
    /// Adds a content that was seen in this many blocks of this many windows.
    fn add_content(&mut self, blocks: f64, windows: f64, design: Design) {
        self.blocks += blocks;
        self.distinct += 1.0;
        self.within += (blocks - windows) / design.one;
        self.across_at_most += design.across_at_most(windows);
        if windows >= OFTEN {
            self.across_often += windows / design.one - 1.0;
        } else {
            let pairs = windows * (windows - 1.0) / 2.0;
            self.pairs += pairs / design.two;
            self.triples += pairs * (windows - 2.0).max(0.0) / 3.0 / design.three;
        }
    }

    /// Duplicates among the blocks that were seen: a lower bound.
    fn repeated_share(&self) -> f64 {
        if self.blocks > 0.0 {
            1.0 - self.distinct / self.blocks
        } else {
            0.0
        }
    }

    /// An upper bound.
    fn share_at_most(&self) -> f64 {
        if self.blocks == 0.0 {
            return 0.0;
        }
        (self.within + self.across_at_most) / self.all_blocks
    }

    /// The share if all contents that were not seen often are equally frequent.
    fn share(&self) -> f64 {
        if self.blocks == 0.0 {
            return 0.0;
        }
        let across = if self.pairs > 0.0 {
            let copies = 2.0 + 3.0 * self.triples / self.pairs;
            self.pairs * 2.0 / copies
        } else {
            0.0
        };
        (self.within + self.across_often + across) / self.all_blocks
    }
}

/// Standard error from values that each omit one group.
fn jackknife_error(figures: &[f64]) -> f64 {
    let count = figures.len() as f64;
    let mean = figures.iter().sum::<f64>() / count;
    let squares: f64 = figures.iter().map(|x| (x - mean).powi(2)).sum();
    ((count - 1.0) / count * squares).sqrt()
}

#[cfg(test)]
mod tests {
    use flaz_random::{Key, mix};

    use super::*;

    /// A population of `windows` windows of 16 blocks whose contents are `content(block)`, sampled by `drawn`.
    fn study(windows: u64, drawn: u64, content: impl Fn(u64) -> u64) -> Duplicates {
        let mut order: Vec<u64> = (0..windows).collect();
        let key = Key::new(7, windows);
        for last in (1..order.len()).rev() {
            order.swap(last, key.below(last as u64, last as u64 + 1) as usize);
        }
        let mut prints = Fingerprints::default();
        for (number, window) in order.iter().take(drawn as usize).enumerate() {
            let blocks: Vec<u64> = (0..16).map(|block| mix(content(window * 16 + block))).collect();
            prints.add(number as u32, &blocks);
        }
        prints.duplicates(drawn, windows)
    }

    fn holds(found: &Duplicates, truth: f64) -> bool {
        (found.low_percent..=found.high_percent).contains(&truth)
    }

    /// Expected upper bound for a content in `copies` windows of very many, each drawn with probability `drawn`.
    fn expected_at_most(copies: u32, drawn: f64) -> f64 {
        let design = Design {
            one: drawn,
            two: drawn * drawn,
            three: drawn.powi(3),
        };
        let mut probability = (f64::from(copies) * (1.0 - drawn).ln()).exp();
        let mut sum = 0.0;
        for seen in 0..=copies {
            sum += probability * design.across_at_most(f64::from(seen));
            probability *= f64::from(copies - seen) / f64::from(seen + 1) * drawn / (1.0 - drawn);
        }
        sum
    }

    #[test]
    fn the_upper_bound_is_valid_for_every_multiplicity() {
        for drawn in [0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95] {
            // Until the probability of none underflows to zero.
            let most = (600.0 / -(1.0_f64 - drawn).ln()).min(20_000.0) as u32;
            for copies in (2..60).chain((60..most).step_by(37)) {
                let expected = expected_at_most(copies, drawn);
                assert!(
                    expected >= f64::from(copies - 1) - 1e-6,
                    "{copies} {drawn}: {expected}"
                );
            }
            assert!((expected_at_most(2, drawn) - (2.0 * drawn).max(1.0)).abs() < 1e-6);
        }
    }

    #[test]
    fn frequent_contents_do_not_widen_the_interval() {
        // One content in every window, everything else unique: a sixteenth are duplicates.
        let found = study(4000, 1000, |block| if block % 16 == 0 { 1 } else { block + 2 });
        assert!(
            holds(&found, 6.25) && (found.percent - 6.25).abs() < 0.5,
            "{found:?}"
        );
        assert!(found.high_percent < 9.0, "{found:?}");
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
    fn distant_pairs_are_estimated_from_a_sample() {
        // Every block has one duplicate, half of the data away.
        let found = study(4000, 800, |block| block % 32_000);
        assert!(holds(&found, 50.0), "{found:?}");
        assert!((found.percent - 50.0).abs() < 8.0, "{found:?}");
    }

    #[test]
    fn frequent_contents_are_not_counted_as_pairs() {
        // Each content ten times: 90 % are duplicates.
        let found = study(4000, 800, |block| block % 6400);
        assert!(holds(&found, 90.0), "{found:?}");
        assert!((found.percent - 90.0).abs() < 8.0, "{found:?}");
    }

    #[test]
    fn mixed_multiplicities_stay_within_the_interval() {
        // A tenth of the data is one content, a fifth are pairs, the rest is unique.
        let found = study(4000, 400, |block| match block % 10 {
            0 => 1,
            1 => 1_000_000 + block / 20,
            _ => 10_000_000 + block,
        });
        assert!(holds(&found, 15.0), "{found:?}");
    }

    #[test]
    fn no_pair_seen_still_has_an_upper_bound() {
        let unique = study(100_000, 200, |block| block);
        assert_eq!((unique.percent, unique.low_percent), (0.0, 0.0));
        assert_eq!(unique.high_percent, 100.0, "{unique:?}");
        let more = study(4000, 1000, |block| block);
        assert!(more.high_percent < 2.0, "{more:?}");
    }

    #[test]
    fn the_memory_limit_does_not_change_the_share() {
        let mut prints = Fingerprints::with_capacity(1000);
        for window in 0..1000_u32 {
            let blocks: Vec<u64> = (0..16)
                .map(|block| mix((u64::from(window) * 16 + block) % 4000))
                .collect();
            prints.add(window, &blocks);
        }
        let found = prints.duplicates(1000, 1000);
        assert!(found.blocks_compared <= 1000, "{found:?}");
        assert!((found.percent - 75.0).abs() < 1e-9, "{found:?}");
    }
}
