//! Whether blocks that stay are compressed again, by `--codec auto`, with a stronger codec.
//!
//! A hit on such a block takes longer by the time that the stronger codec needs to restore it, some microseconds. In return
//! more blocks are hits. Whether that pays depends on what a miss costs: see [`SecondStage::pays`]. Blocks that do not shrink
//! are tried ever more rarely: see [`Sampling`].

use std::cell::Cell;
use std::time::Duration;

use flaz_codec::{CodecSpec, Effort};
use flaz_device::{Load, Nanos};

use super::balance::Balance;

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
/// The same of fragments that have gone through the stronger codec before, and of neighbours together, which mostly have: their hits take as
/// long already.
const FURTHER_SAVING_PART: usize = 64;

/// A shard may spend one part in this many of its time on high effort.
const HIGH_EFFORT_PART: u32 = 2;
/// Unspent time accumulates over this period at most: one reclaim compresses thousands of blocks.
const HIGH_EFFORT_AT_ONCE: Duration = Duration::from_secs(20);

/// Number of blocks that a thread compresses before other work can begin there ...
pub(super) const SECOND_JOB_BLOCKS: usize = 8;
/// ... and with high effort. A group is not divided.
const HIGH_JOB_BLOCKS: usize = 2;

/// The second codec, as it is used now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Second {
    pub(super) codec: CodecSpec,
    pub(super) effort: Effort,
    /// Its time is charged to the budget for high effort.
    pub(super) is_charged: bool,
}

/// The second codec for blocks that a miss brought in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ForMiss {
    /// For those that are known to stay.
    pub(super) stay: Option<Second>,
    /// For new ones: only while processors have time to spare.
    pub(super) new: Option<Second>,
}

impl Second {
    /// Number of blocks that a thread compresses before other work can begin there.
    pub(super) fn job_blocks(self) -> usize {
        match self.effort {
            Effort::Usual => SECOND_JOB_BLOCKS,
            Effort::High => HIGH_JOB_BLOCKS,
        }
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct SecondStage {
    pays: Cell<bool>,
    /// Whether strong compression costs hits more than it saves misses.
    pub(super) balance: Balance,
    spare: Spare,
    raw: Sampling,
    packed: Sampling,
    without_dictionary: Sampling,
    quickly: Sampling,
    apart: Sampling,
}

/// How a fragment is stored before it is compressed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// As it is: the first codec saved nothing, or hits should be quick.
    Raw,
    /// By the first codec.
    Packed,
    /// By the second codec, without a dictionary although there is one now.
    WithoutDictionary,
    /// By the second codec with usual effort, when it was new. Only high effort makes it smaller.
    Quickly,
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

    /// How much processor time blocks that stay are worth now. `None`: none at all. `can_wait`: no operation waits for the result.
    ///
    /// Unless many processors are idle, codec threads delay a thread that has no time to spare, and the clients beside it. While the load is
    /// unknown, it counts as medium.
    pub(super) fn effort(&self, load: Load, can_wait: bool, now: Nanos) -> Option<Effort> {
        match load {
            Load::High => None,
            Load::Medium if self.balance.is_saturated(now) => None,
            Load::Low if can_wait && self.spare.has_more_than(Duration::ZERO, now) => Some(Effort::High),
            Load::Low | Load::Medium => Some(Effort::Usual),
        }
    }

    /// Whether so much time for high effort is left that new blocks, most of which are dropped soon, do not take it from those that stay.
    pub(super) fn has_plenty(&self, now: Nanos) -> bool {
        self.spare
            .has_more_than(HIGH_EFFORT_AT_ONCE / HIGH_EFFORT_PART / 2, now)
    }

    /// Charges time to the budget for high effort.
    pub(super) fn spent(&self, time: Duration) {
        self.spare.spend(time);
    }

    /// Whether a fragment is worth a try.
    pub(super) fn tries(&self, stored: Stored) -> bool {
        self.sampling(stored).tries()
    }

    /// Whether `now` stored bytes instead of `before` are worth it. The answer counts for later fragments.
    pub(super) fn is_worth(&self, stored: Stored, before: usize, now: Option<usize>) -> bool {
        let part = match stored {
            Stored::Quickly | Stored::WithoutDictionary => FURTHER_SAVING_PART,
            Stored::Raw | Stored::Packed | Stored::Apart => SAVING_PART,
        };
        let worth = now.is_some_and(|now| saves(before, now, part));
        self.note(stored, worth);
        worth
    }

    /// Whether `now` bytes instead of `before` are worth it, for neighbours that are compressed together.
    pub(super) fn saves_together(before: usize, now: usize) -> bool {
        saves(before, now, FURTHER_SAVING_PART)
    }

    /// Whether the result was worth it counts for later fragments.
    pub(super) fn note(&self, stored: Stored, worth: bool) {
        let max = match stored {
            Stored::Apart => APART_SKIPPED_MAX,
            Stored::Raw | Stored::Packed | Stored::WithoutDictionary | Stored::Quickly => SKIPPED_MAX,
        };
        self.sampling(stored).note(worth, max);
    }

    fn sampling(&self, stored: Stored) -> &Sampling {
        match stored {
            Stored::Raw => &self.raw,
            Stored::Packed => &self.packed,
            Stored::WithoutDictionary => &self.without_dictionary,
            Stored::Quickly => &self.quickly,
            Stored::Apart => &self.apart,
        }
    }
}

/// Whether `now` bytes are less than `before` by at least `before / part`.
fn saves(before: usize, now: usize, part: usize) -> bool {
    now + before / part <= before
}

/// The time budget for high effort, a token bucket. It lets reclaim keep up with writes, and limits high effort to a part of one
/// processor.
#[derive(Debug, Default)]
struct Spare {
    /// Budget at `at`, in nanoseconds. Negative: overspent.
    left_ns: Cell<i64>,
    at: Cell<Nanos>,
}

impl Spare {
    fn has_more_than(&self, time: Duration, now: Nanos) -> bool {
        let earned = nanos(now.since(self.at.replace(now)) / HIGH_EFFORT_PART);
        let most = nanos(HIGH_EFFORT_AT_ONCE / HIGH_EFFORT_PART);
        let left = self.left_ns.get().saturating_add(earned).min(most);
        self.left_ns.set(left);
        left > nanos(time)
    }

    fn spend(&self, time: Duration) {
        self.left_ns.set(self.left_ns.get().saturating_sub(nanos(time)));
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
        // Others may be asked about before the result of this one is known.
        self.left.set(left.checked_sub(1).unwrap_or(self.skips.get()));
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

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
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

    fn saturate(balance: &Balance, from: Nanos, to: Nanos) {
        balance.judge(from, Duration::from_secs(1), ORIGIN_SLOW);
        balance.judge(to, Duration::from_secs(1) + to.since(from), ORIGIN_SLOW);
    }

    #[test]
    fn high_effort_is_for_spare_time() {
        let stage = SecondStage::default();
        let at = |s: u64| Nanos(s * 1_000_000_000);
        let effort = |load, can_wait, s| stage.effort(load, can_wait, at(s));
        let (usual, high) = (Some(Effort::Usual), Some(Effort::High));
        assert_eq!(effort(Load::High, true, 100), None);
        assert_eq!(effort(Load::Medium, true, 100), usual);
        assert_eq!(effort(Load::Low, false, 100), usual, "space is needed soon");
        assert_eq!(effort(Load::Low, true, 100), high);
        saturate(&stage.balance, at(99), at(100));
        assert_eq!(effort(Load::Medium, true, 100), None, "the thread has no time");
        assert_eq!(effort(Load::Low, true, 100), high, "but others have");
        assert_eq!(effort(Load::Medium, true, 105), usual);
        // However long nothing was compressed, half of 20 s may be spent at once, half of that for new blocks.
        stage.spent(Duration::from_secs(4));
        assert!(stage.has_plenty(at(100)));
        stage.spent(Duration::from_secs(5));
        assert!(!stage.has_plenty(at(100)));
        assert_eq!(effort(Load::Low, true, 100), high);
        stage.spent(Duration::from_secs(1));
        assert_eq!(effort(Load::Low, true, 100), usual);
        assert_eq!(effort(Load::Low, true, 101), high, "half a second is left");
        // Work in the background takes half of the time.
        let (mut now, mut with_high) = (Nanos(0), Duration::ZERO);
        let stage = SecondStage::default();
        while now < at(1000) {
            let job = match stage.effort(Load::Low, true, now) {
                Some(Effort::High) => {
                    stage.spent(Duration::from_millis(4));
                    with_high += Duration::from_millis(4);
                    Duration::from_millis(4)
                }
                _ => Duration::from_micros(400),
            };
            now = now.after(job);
        }
        let share = with_high.as_secs_f64() / 1000.0;
        assert!((0.45..0.51).contains(&share), "{share}");
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
        // If it takes as long already, a smaller one is.
        assert!(!stage.is_worth(Stored::Quickly, 1600, Some(1576)));
        assert!(stage.is_worth(Stored::Quickly, 1600, Some(1575)));
    }
}
