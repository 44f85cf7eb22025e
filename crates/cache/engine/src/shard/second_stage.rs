//! Whether blocks that stay are compressed again, by `--codec auto`, with a stronger codec.
//!
//! A hit on such a block takes longer by the time that the stronger codec needs to restore it, some microseconds. In return
//! more blocks are hits. Whether that pays depends on what a miss costs: see [`SecondStage::pays`]. Blocks that do not shrink
//! are tried ever more rarely: see [`Sampling`].

use std::cell::Cell;
use std::time::Duration;

/// Mean time of an origin's reads from which blocks are compressed again.
pub const ORIGIN_SLOW: Duration = Duration::from_micros(250);
/// Mean time of an origin's reads below which they no longer are.
const ORIGIN_FAST: Duration = Duration::from_micros(150);
/// Most fragments in a row that are not tried after one that did not shrink.
const SKIPPED_MAX: u8 = 63;
/// Most neighbours in a row that are not tried together. Fewer, because whether neighbours have something in common differs from place
/// to place.
const APART_SKIPPED_MAX: u8 = 7;
/// A stronger codec must save one part in this many of the stored bytes, or the fragment stays as it is.
const SAVING_PART: usize = 16;
/// The same of neighbours together, which mostly have gone through the stronger codec before.
const TOGETHER_SAVING_PART: usize = 64;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct SecondStage {
    pays: Cell<bool>,
    raw: Sampling,
    packed: Sampling,
    without_dictionary: Sampling,
    apart: Sampling,
}

/// How a fragment is stored before it is compressed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// As it is: the first codec saved nothing.
    Raw,
    /// By the first codec.
    Packed,
    /// By the second codec, without a dictionary although there is one now.
    WithoutDictionary,
    /// Neighbours, each alone or in several groups.
    Apart,
}

impl SecondStage {
    /// Whether capacity is worth more than the time of a hit, before an origin whose reads take `origin_read` on average. Not if
    /// that is unknown. Between the two limits the answer stays the same.
    pub(super) fn pays(&self, origin_read: Option<Duration>) -> bool {
        let limit = if self.pays.get() { ORIGIN_FAST } else { ORIGIN_SLOW };
        self.pays.set(origin_read.is_some_and(|mean| mean >= limit));
        self.pays.get()
    }

    /// Whether a fragment is worth a try.
    pub(super) fn tries(&self, stored: Stored) -> bool {
        self.sampling(stored).tries()
    }

    /// Whether `now` stored bytes instead of `before` are worth it. The answer counts for later fragments.
    pub(super) fn is_worth(&self, stored: Stored, before: usize, now: Option<usize>) -> bool {
        let worth = now.is_some_and(|now| Self::saves(before, now));
        self.note(stored, worth);
        worth
    }

    /// The same, pure.
    pub(super) fn saves(before: usize, now: usize) -> bool {
        now + before / SAVING_PART <= before
    }

    /// The same for neighbours that are compressed together.
    pub(super) fn saves_together(before: usize, now: usize) -> bool {
        now + before / TOGETHER_SAVING_PART <= before
    }

    /// Whether the result was worth it counts for later fragments.
    pub(super) fn note(&self, stored: Stored, worth: bool) {
        let max = match stored {
            Stored::Apart => APART_SKIPPED_MAX,
            Stored::Raw | Stored::Packed | Stored::WithoutDictionary => SKIPPED_MAX,
        };
        self.sampling(stored).note(worth, max);
    }

    fn sampling(&self, stored: Stored) -> &Sampling {
        match stored {
            Stored::Raw => &self.raw,
            Stored::Packed => &self.packed,
            Stored::WithoutDictionary => &self.without_dictionary,
            Stored::Apart => &self.apart,
        }
    }
}

/// Which fragments are tried: all as long as they shrink. After one that does not, one is not tried; after each further one
/// that does not, twice as many and one more, up to a maximum.
#[derive(Debug, Default)]
struct Sampling {
    /// Fragments in a row that are not tried after one that does not shrink.
    skips: Cell<u8>,
    /// Of those, how many are left.
    left: Cell<u8>,
}

impl Sampling {
    fn tries(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left == 0
    }

    fn note(&self, shrank: bool, skipped_max: u8) {
        let skips = match shrank {
            true => 0,
            false => self
                .skips
                .get()
                .saturating_mul(2)
                .saturating_add(1)
                .min(skipped_max),
        };
        self.skips.set(skips);
        self.left.set(skips);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_the_origin_decides_with_hysteresis() {
        let stage = SecondStage::default();
        let pays = |us| stage.pays(Some(Duration::from_micros(us)));
        assert!(!stage.pays(None), "unknown");
        assert!(!pays(100));
        assert!(!pays(200), "from below");
        assert!(pays(10_000));
        assert!(pays(200), "from above");
        assert!(!pays(100));
        assert!(!pays(200));
        assert!(!stage.pays(None));
    }

    #[test]
    fn what_does_not_shrink_is_tried_as_a_sample() {
        let stage = SecondStage::default();
        let mut tried = 0;
        for _ in 0..64_000 {
            if stage.tries(Stored::Raw) {
                tried += 1;
                assert!(!stage.is_worth(Stored::Raw, 4096, None));
            }
            assert!(
                stage.tries(Stored::Packed),
                "the others have a sample of their own"
            );
            assert!(stage.is_worth(Stored::Packed, 1600, Some(1500)));
        }
        assert!((990..1010).contains(&tried), "{tried}");
        while !stage.tries(Stored::Raw) {}
        assert!(stage.is_worth(Stored::Raw, 4096, Some(3000)));
        assert!(stage.tries(Stored::Raw), "the next one is tried at once");
    }

    #[test]
    fn a_small_saving_is_not_worth_a_slower_hit() {
        let stage = SecondStage::default();
        assert!(!stage.is_worth(Stored::Packed, 1600, Some(1501)));
        assert!(stage.is_worth(Stored::Packed, 1600, Some(1500)));
    }
}
