//! How many blocks repeat others, as far as a sample can tell.
//!
//! The share is `1 - distinct / blocks` over blocks that are not zeroes. A sample cannot tell it exactly: a block
//! whose twin was not drawn looks unique. No estimator is good for all data (Charikar et al., PODS 2000), so this gives
//! an interval that holds whatever the multiplicities are, and a point within it that holds if they are alike:
//!
//! - *at least* what repeats within the sample: reading more can only find more;
//! - *at most*: copies within one window are seen with the window, so their number is known but for sampling error. A
//!   content that lies in `w` windows wastes `w - 1` more; seen in `j` of the windows drawn it counts
//!   `max(1 / p2, j / p1)` from `j = 2` on, with the probabilities that one and that two given windows are drawn. The
//!   expectation of that is never below `w - 1` (tested for all multiplicities), equal where contents come in pairs,
//!   and not much above where they come often;
//! - *between*: contents seen in twenty windows and more are estimated one by one; the multiplicity of the others
//!   from the equal triples beside the equal pairs, as if all were alike.
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
/// From so many windows on a content is estimated by itself: fewer may be chance.
const OFTEN: f64 = 20.0;
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

/// Which share of the windows was drawn.
#[derive(Clone, Copy, Debug)]
struct Design {
    /// Probability that a window, and that each of two and of three given windows, was drawn.
    one: f64,
    two: f64,
    three: f64,
}

/// Counts over a set of windows; all but the first two are estimates for the whole population.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    blocks: f64,
    distinct: f64,
    /// Blocks there are.
    all_blocks: f64,
    /// Blocks that repeat one of the same window.
    within: f64,
    /// At most so many that repeat one of another window.
    across_at_most: f64,
    /// Those of contents that were seen often.
    across_often: f64,
    /// Pairs and triples of windows with the same content, of the other contents.
    pairs: f64,
    triples: f64,
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
        // Few copied windows, each seen or not as a whole: at least what none seen would leave possible.
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

    /// At most so many windows beyond the first have a content that was seen in `windows` of those drawn.
    fn across_at_most(self, windows: f64) -> f64 {
        if windows < 2.0 {
            0.0
        } else {
            (1.0 / self.two).max(windows / self.one)
        }
    }
}

impl Counts {
    /// Adds a content that was seen in so many blocks of so many windows.
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

    /// What repeats among the blocks that were seen: a lower bound.
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

    /// The share if all contents that were not seen often repeat equally often.
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

/// Standard error from figures that each leave out one group.
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

    /// Expectation of the upper bound for a content in `copies` windows of very many, each drawn with probability
    /// `drawn`.
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
    fn the_upper_bound_is_one_for_every_multiplicity() {
        for drawn in [0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95] {
            // Until the probability of none becomes zero in floating point.
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
    fn few_contents_that_come_often_do_not_widen_the_interval() {
        // One content in every window, everything else unique: a sixteenth repeats.
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
                .map(|block| mix((u64::from(window) * 16 + block) % 4000))
                .collect();
            prints.add(window, &blocks);
        }
        let found = prints.duplicates(1000, 1000);
        assert!(found.blocks_compared <= 1000, "{found:?}");
        assert!((found.percent - 75.0).abs() < 1e-9, "{found:?}");
    }
}
