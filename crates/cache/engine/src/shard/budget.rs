//! What is left of the write budget of a shard: a bucket that holds a day's budget, and that time fills.
//!
//! Invariants:
//! - Every byte that the shard writes is taken from the bucket, whoever caused it.
//! - Only [`Allowance::Nothing`] is granted while so little is left that a block might take more. So in any time, what is stored
//!   because it was granted is at most what the budget is for that time, and a day's budget.
//! - Writes that are never refused can exceed the budget. The debt is at most a day's budget, so admission stops for a day at
//!   most.
//! - An opening begins with the level at which the previous one stopped. After a crash, the bucket is empty.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use flaz_device::Nanos;

use crate::policy::Allowance;
use crate::shared_budget::SharedBudget;

const DAY_NS: u128 = 24 * 3600 * 1_000_000_000;
const HOUR_NS: u64 = 3600 * 1_000_000_000;
const HOURS: usize = 24;

/// How much was taken from the bucket and not refilled yet, in days' budgets, at most: the whole bucket, and a debt of a day.
const USED_DAYS_MAX: u128 = 2;

/// The state of the budget of a shard, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Level {
    /// Bytes that the bucket holds when it is full: a day's budget.
    pub(super) full: u64,
    /// Bytes taken from it and not refilled yet. They may be more: the rest is owed.
    pub(super) used: u64,
    /// Bytes written in the last 24 hours, hours counted whole.
    pub(super) day: u64,
}

impl Level {
    /// What a shard may store.
    pub(super) fn allowance(&self) -> Allowance {
        Allowance::at(self.full.saturating_sub(self.used), self.full, 1)
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Budget(RefCell<Bucket>);

impl Budget {
    /// A bucket from which `used` bytes were taken before; `None`: that is unknown, so nothing is left.
    pub(super) fn new(used: Option<u64>, now: Nanos) -> Self {
        Self(RefCell::new(Bucket::new(used, now, 0)))
    }

    /// There is a budget from now on, and there was none before: the bucket is full. `written`: bytes so far.
    pub(super) fn begin(&self, now: Nanos, written: u64) {
        self.0.replace(Bucket::new(Some(0), now, written));
    }

    /// The level at a budget of `rate` bytes per day, after `written` bytes in all.
    pub(super) fn level(&self, now: Nanos, rate: u64, written: u64) -> Level {
        self.0.borrow_mut().level(now, rate, written)
    }
}

/// What the shard takes from the budget that the caches on one device share.
#[derive(Debug)]
pub(super) struct CommonBudget {
    budget: Option<Arc<SharedBudget>>,
    /// Bytes written that were taken from it.
    told: Cell<u64>,
}

impl CommonBudget {
    pub(super) fn new(budget: Option<Arc<SharedBudget>>) -> Self {
        Self {
            budget,
            told: Cell::new(0),
        }
    }

    /// What the shard may store, after `written` bytes in all.
    pub(super) fn allowance(&self, written: impl FnOnce() -> u64) -> Allowance {
        let Some(budget) = self.budget.as_ref().filter(|budget| budget.level().is_some()) else {
            return Allowance::All;
        };
        self.tell(written());
        let level = budget.level();
        level.map_or(Allowance::All, |level| level.allowance())
    }

    /// Takes what was written from the budget, after `written` bytes in all.
    pub(super) fn tell(&self, written: u64) {
        if let Some(budget) = &self.budget {
            budget.spend(written.wrapping_sub(self.told.replace(written)).cast_signed());
        }
    }
}

#[derive(Debug)]
struct Bucket {
    /// In bytes times nanoseconds of a day, so that no fraction of a byte is lost. `None`: all.
    used: Option<u128>,
    at: Nanos,
    written: u64,
    day: LastDay,
}

impl Bucket {
    fn new(used: Option<u64>, now: Nanos, written: u64) -> Self {
        Self {
            used: used.map(|bytes| u128::from(bytes) * DAY_NS),
            at: now,
            written,
            day: LastDay::default(),
        }
    }

    fn level(&mut self, now: Nanos, rate: u64, written: u64) -> Level {
        let full = u128::from(rate) * DAY_NS;
        let passed = now.since(self.at);
        let refilled = u128::from(rate).saturating_mul(passed.as_nanos());
        // The bucket is full before the bytes since are taken from it: it never holds more than a day's budget.
        let before = self.used.unwrap_or(full).saturating_sub(refilled);
        // A write that failed is given back.
        let used = match written.checked_sub(self.written) {
            Some(more) => before + u128::from(more) * DAY_NS,
            None => before.saturating_sub(u128::from(self.written - written) * DAY_NS),
        };
        let used = used.min(full * USED_DAYS_MAX);
        self.day.add(now, passed, written.saturating_sub(self.written));
        (self.used, self.at, self.written) = (Some(used), now, written);
        Level {
            full: rate,
            used: u64::try_from(used.div_ceil(DAY_NS)).unwrap_or(u64::MAX),
            day: self.day.total(),
        }
    }
}

/// Bytes written in each of the last 24 hours.
#[derive(Debug, Default)]
struct LastDay {
    hours: [u64; HOURS],
    /// The number of the last hour.
    last: u64,
}

impl LastDay {
    /// Adds bytes written in the time `passed` before `now`, in equal parts for each of its hours.
    fn add(&mut self, now: Nanos, passed: Duration, bytes: u64) {
        let hour = now.0 / HOUR_NS;
        let new = (hour - self.last.min(hour)).min(HOURS as u64);
        for at in 0..new {
            self.hours[((hour - at) % HOURS as u64) as usize] = 0;
        }
        self.last = hour;
        let spread = passed.as_nanos() / u128::from(HOUR_NS) + 1;
        let part = u64::try_from(u128::from(bytes) / spread).expect("at most all");
        let hours = u64::try_from(spread).unwrap_or(u64::MAX).min(HOURS as u64);
        for at in 0..hours.min(hour + 1) {
            self.hours[((hour - at) % HOURS as u64) as usize] += part;
        }
        self.hours[(hour % HOURS as u64) as usize] += bytes - part * u64::try_from(spread).unwrap_or(0);
    }

    fn total(&self) -> u64 {
        self.hours.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: u64 = DAY_NS as u64;
    const RATE: u64 = 24 << 20;

    fn hours(hours: u64) -> Nanos {
        Nanos(hours * HOUR_NS)
    }

    #[test]
    fn time_fills_the_bucket_with_a_day_at_most() {
        let budget = Budget::new(Some(0), hours(0));
        let left = |now, written| {
            let level = budget.level(now, RATE, written);
            level.full - level.used.min(level.full)
        };
        assert_eq!(left(hours(0), 0), RATE);
        assert_eq!(left(hours(100), 0), RATE, "no more than a day's budget");
        assert_eq!(left(hours(100), RATE), 0);
        assert_eq!(left(hours(106), RATE), RATE / 4);
        assert_eq!(left(hours(106), RATE + RATE / 8), RATE / 8);
        assert_eq!(left(hours(106), RATE), RATE / 4, "a write that failed");
    }

    #[test]
    fn no_fraction_is_lost() {
        let budget = Budget::new(None, hours(0));
        for step in 1..=1000 {
            let level = budget.level(Nanos(step * 7), RATE, 0);
            assert_eq!(level.used, RATE - RATE * step * 7 / DAY);
        }
        let level = budget.level(Nanos(DAY / 2), RATE, 0);
        assert_eq!(level.used, RATE / 2);
    }

    #[test]
    fn a_debt_ends_after_a_day() {
        let budget = Budget::new(Some(0), hours(0));
        let level = budget.level(hours(1), RATE, 100 * RATE);
        assert_eq!((level.used, level.allowance()), (2 * RATE, Allowance::Nothing));
        let level = budget.level(hours(25), RATE, 100 * RATE);
        assert_eq!((level.used, level.allowance()), (RATE, Allowance::Nothing));
        let level = budget.level(hours(26), RATE, 100 * RATE);
        assert_eq!(level.allowance(), Allowance::Remembered);
        assert_eq!(
            budget.level(hours(49), RATE, 100 * RATE).allowance(),
            Allowance::All
        );
    }

    #[test]
    fn nothing_is_left_after_a_crash_and_the_rest_after_a_stop() {
        let used = |before| Budget::new(before, hours(5)).level(hours(5), RATE, 0).used;
        assert_eq!(used(None), RATE);
        assert_eq!(used(Some(RATE / 3)), RATE / 3);
        assert_eq!(used(Some(u64::MAX)), 2 * RATE, "the budget was larger");
        let budget = Budget::new(None, hours(5));
        budget.begin(hours(5), 1000);
        assert_eq!(budget.level(hours(5), RATE, 1000).used, 0);
    }

    #[test]
    fn the_last_day_has_24_hours() {
        let budget = Budget::new(Some(0), hours(0));
        let day = |hour, written| budget.level(hours(hour), RATE, written).day;
        assert_eq!(day(1, 1000), 1000);
        assert_eq!(day(23, 1000), 1000);
        assert_eq!(day(25, 1500), 500, "spread over three hours: 1000 are gone");
        assert_eq!(day(60, 1500), 0);
        let late = day(160, 1500 + 10_100);
        assert_eq!(late, 24 * 100, "a hundred in each of 101 hours");
        assert_eq!(day(200, 1500 + 10_100), 0);
    }

    proptest! {
        /// Whatever is written by those who may not be refused, and however often the cache is stopped or crashes: what is granted
        /// stays within the budget in any time.
        #[test]
        fn what_is_granted_stays_within_the_budget(
            steps in prop::collection::vec((0_u64..40, 0_u64..4 << 20, 0_u8..16), 1..400),
        ) {
            let mut budget = Budget::new(Some(0), hours(0));
            let (mut now, mut written, mut granted) = (0, 0, vec![(0, 0)]);
            for (minutes, bytes, what) in steps {
                now += minutes * HOUR_NS / 60;
                let level = budget.level(Nanos(now), RATE, written);
                match what {
                    0 => (budget, written) = (Budget::new(None, Nanos(now)), 0),
                    1 => (budget, written) = (Budget::new(Some(level.used), Nanos(now)), 0),
                    2..=5 => written += bytes,
                    _ if level.allowance() != Allowance::Nothing => {
                        let stored = bytes % (16 << 10);
                        written += stored;
                        granted.push((now, stored));
                    }
                    _ => {}
                }
            }
            for (first, &(from, _)) in granted.iter().enumerate() {
                let mut sum = 0;
                for &(upto, stored) in &granted[first..] {
                    sum += stored;
                    let most = u128::from(RATE) * u128::from(upto - from) / DAY_NS + u128::from(RATE);
                    prop_assert!(u128::from(sum) <= most, "{sum} from {from} to {upto}");
                }
            }
        }
    }
}
