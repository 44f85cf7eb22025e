//! The write budget that all volumes share, a token bucket: time fills it, and it holds at most a day's budget. Pure.
//!
//! Each volume is served by a process of its own, which takes *credit* from the bucket before it writes, and returns unused credit when
//! it stops. A process that is killed loses its credit.
//!
//! Invariants:
//! - Over any period, the bytes granted are at most the budget for that period plus one day's budget, and another day's budget each time
//!   that the clock is set forward.
//! - Writes that cannot be refused are charged, and can exceed the budget. The debt is at most a day's budget, so grants resume within a
//!   day.

use crate::error::PoolError;

/// Smallest budget in bytes per day: grants are written to the superblock, which takes up to a fortieth of it.
pub const PER_DAY_MIN: u64 = 1 << 30;
/// Largest budget in bytes per day.
pub const PER_DAY_MAX: u64 = 1 << 60;

/// The smallest grant is this share of a day's budget.
const GRANT_SHARE_MIN: u64 = 1024;
const DAY_MS: u128 = 24 * 3600 * 1000;
/// How much was taken from the bucket and not refilled yet, in days' budgets, at most: the whole bucket, and a debt of a day.
const USED_DAYS_MAX: u64 = 2;

/// See the module's documentation. Times are milliseconds since 1970; a clock that is set back adds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolBudget {
    /// Bytes that the bucket holds when it is full: a day's budget.
    pub per_day: u64,
    /// Bytes taken from it and not refilled yet. They may be more: the rest is owed.
    pub used: u64,
    /// When that was.
    pub at_ms: u64,
}

/// What is left of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetLeft {
    /// Bytes per day.
    pub per_day: u64,
    /// Bytes that may be taken now.
    pub left: u64,
    /// Bytes written beyond the budget that time has not made up for yet.
    pub owed: u64,
}

impl PoolBudget {
    /// A full bucket.
    ///
    /// # Errors
    /// [`PoolError::Field`]: too small, or too large.
    pub fn full(per_day: u64, now_ms: u64) -> Result<Self, PoolError> {
        let budget = Self {
            per_day,
            used: 0,
            at_ms: now_ms,
        };
        budget.check()?;
        Ok(budget)
    }

    pub(crate) fn check(&self) -> Result<(), PoolError> {
        if !(PER_DAY_MIN..=PER_DAY_MAX).contains(&self.per_day) {
            let expected = format!("{PER_DAY_MIN} to {PER_DAY_MAX} bytes per day");
            return Err(PoolError::field("write budget", expected, self.per_day));
        }
        if self.used > self.per_day * USED_DAYS_MAX {
            let expected = format!("at most {}", self.per_day * USED_DAYS_MAX);
            return Err(PoolError::field(
                "bytes taken from the write budget",
                expected,
                self.used,
            ));
        }
        Ok(())
    }

    /// The bucket at a later time.
    #[must_use]
    pub fn at(self, now_ms: u64) -> Self {
        let passed = now_ms.saturating_sub(self.at_ms);
        // Rounded down: less than a byte is lost with each call.
        let refilled = u128::from(self.per_day) * u128::from(passed) / DAY_MS;
        let refilled = u64::try_from(refilled).unwrap_or(u64::MAX);
        Self {
            used: self.used.saturating_sub(refilled),
            at_ms: now_ms,
            ..self
        }
    }

    /// What is left.
    #[must_use]
    pub fn left(&self) -> BudgetLeft {
        BudgetLeft {
            per_day: self.per_day,
            left: self.per_day.saturating_sub(self.used),
            owed: self.used.saturating_sub(self.per_day),
        }
    }

    /// Another budget with the same debt, or as much of it as it can have.
    ///
    /// # Errors
    /// [`PoolError::Field`]: too small, or too large.
    pub fn with(self, per_day: u64) -> Result<Self, PoolError> {
        let mut next = Self::full(per_day, self.at_ms)?;
        next.charge(self.used);
        Ok(next)
    }

    /// Takes what was written without being granted.
    pub fn charge(&mut self, bytes: u64) {
        let most = self.per_day * USED_DAYS_MAX;
        self.used = self.used.saturating_add(bytes).min(most);
    }

    /// Grants up to `wanted` bytes to one of `volumes` volumes, at most an equal share of the rest, and nothing below a minimum. Returns
    /// the bytes granted.
    pub fn grant(&mut self, wanted: u64, volumes: usize) -> u64 {
        let granted = wanted.min(self.left().left / volumes.max(1) as u64);
        if granted < self.per_day / GRANT_SHARE_MIN {
            return 0;
        }
        self.charge(granted);
        granted
    }

    /// Credit that was not needed.
    pub fn give_back(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3600 * 1000;
    const PER_DAY: u64 = 24 << 30;

    #[test]
    fn time_fills_the_bucket_with_a_day_at_most() {
        let mut budget = PoolBudget::full(PER_DAY, 7).expect("not too small");
        assert_eq!(budget.at(100 * HOUR_MS).left().left, PER_DAY);
        assert_eq!(budget.grant(u64::MAX, 1), PER_DAY);
        assert_eq!(budget.grant(1, 1), 0);
        let later = budget.at(7 + 6 * HOUR_MS);
        assert_eq!(later.left().left, PER_DAY / 4);
        assert_eq!(later.at(0).left().left, PER_DAY / 4, "the clock was set back");
        assert_eq!(later.at(0).at(6 * HOUR_MS).left().left, PER_DAY / 2);
    }

    #[test]
    fn each_volume_gets_its_share_of_what_is_left() {
        let mut budget = PoolBudget::full(PER_DAY, 0).expect("not too small");
        assert_eq!(budget.grant(1 << 40, 4), PER_DAY / 4);
        assert_eq!(budget.grant(32 << 20, 4), 32 << 20);
        assert_eq!(budget.grant(1 << 20, 4), 0, "very little");
        budget.give_back(32 << 20);
        assert_eq!(budget.left().left, PER_DAY / 4 * 3);
    }

    #[test]
    fn a_debt_ends_after_a_day() {
        let mut budget = PoolBudget::full(PER_DAY, 0).expect("not too small");
        budget.charge(100 * PER_DAY);
        assert_eq!((budget.left().left, budget.left().owed), (0, PER_DAY));
        assert_eq!(budget.at(24 * HOUR_MS).left().owed, 0);
        assert_eq!(budget.at(48 * HOUR_MS).left().left, PER_DAY);
        budget.check().expect("a debt of a day is in range");
        let smaller = budget.with(PER_DAY / 2).expect("not too small");
        assert_eq!(smaller.left().owed, PER_DAY / 2);
        smaller.check().expect("it is in range");
    }

    #[test]
    fn sizes_without_sense_are_refused() {
        for per_day in [0, PER_DAY_MIN - 1, PER_DAY_MAX + 1, u64::MAX] {
            let error = PoolBudget::full(per_day, 0).expect_err("out of range");
            assert!(error.to_string().contains("write budget"), "{error}");
        }
        let budget = PoolBudget {
            per_day: PER_DAY_MIN,
            used: 2 * PER_DAY_MIN + 1,
            at_ms: 0,
        };
        budget.check().expect_err("more than can be used");
    }

    /// Whatever volumes take, give back and write without asking: what is granted stays within the budget in any time.
    #[test]
    fn what_is_granted_stays_within_the_budget() {
        for seed in 0..64 {
            let mut random = flaz_sim::Rng::new(seed);
            let mut budget = PoolBudget::full(PER_DAY, 0).expect("not too small");
            let (mut now, mut granted) = (0, Vec::new());
            for _ in 0..400 {
                now += random.below(40 * 60_000);
                budget = budget.at(now);
                let bytes = random.below(4 << 30);
                match random.below(8) {
                    0 => budget.charge(bytes),
                    _ => granted.push((now, budget.grant(bytes, 1 + random.below(8) as usize))),
                }
                budget.check().expect("in range");
            }
            for (first, &(from, _)) in granted.iter().enumerate() {
                let mut sum = 0;
                for &(upto, bytes) in &granted[first..] {
                    sum += bytes;
                    let most = u128::from(PER_DAY) * u128::from(upto - from) / DAY_MS + u128::from(PER_DAY);
                    assert!(
                        u128::from(sum) <= most,
                        "seed {seed}: {sum} from {from} to {upto}"
                    );
                }
            }
        }
    }
}
