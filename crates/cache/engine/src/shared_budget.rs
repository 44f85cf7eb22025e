//! The part of a write budget that the caches on one device share: what this cache may write before it asks for more.
//!
//! The budget itself belongs to whoever lays out the device. This cache gets *credit* from it, and its shards take what they write
//! from the credit.
//!
//! Invariant: a block that may be refused is stored only while there is credit. Shards check the credit at the same time, so it can be
//! overdrawn by one block a shard. Writes that are never refused overdraw it too. The cache owes the budget what is overdrawn.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::policy::Allowance;

/// See the module's documentation. Shards on any thread use it.
#[derive(Debug, Default)]
pub struct SharedBudget {
    /// Bytes per day for all caches; 0: no budget.
    per_day: AtomicU64,
    /// Bytes that the budget has left for all caches, beside the credit.
    left: AtomicU64,
    credit: AtomicI64,
}

/// What is left of a shared budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedLevel {
    /// Bytes per day for all caches.
    pub per_day: u64,
    /// Bytes left for all caches when this one looked last.
    pub left: u64,
    /// Bytes that this cache may write before it asks for more; below zero: it owes them.
    pub credit: i64,
}

impl SharedLevel {
    /// What the cache may store.
    #[must_use]
    pub fn allowance(&self) -> Allowance {
        let credit = u64::try_from(self.credit).unwrap_or(0);
        let own = Allowance::at(credit, credit, 1);
        let all = Allowance::at(self.left.saturating_add(credit), self.per_day, 1);
        match own {
            Allowance::Nothing => own,
            _ => all,
        }
    }
}

impl SharedBudget {
    /// The level. `None`: there is no budget.
    #[must_use]
    pub fn level(&self) -> Option<SharedLevel> {
        let per_day = self.per_day.load(Ordering::Relaxed);
        (per_day > 0).then(|| SharedLevel {
            per_day,
            left: self.left.load(Ordering::Relaxed),
            credit: self.credit.load(Ordering::Relaxed),
        })
    }

    /// The budget of `per_day` bytes has `left`, and has given this cache `more` bytes of credit, or paid what it owed.
    pub fn grant(&self, per_day: u64, left: u64, more: u64) {
        self.left.store(left, Ordering::Relaxed);
        let more = i64::try_from(more).unwrap_or(i64::MAX);
        if self.per_day.swap(per_day, Ordering::Relaxed) == 0 {
            // What was written without a budget is not owed.
            self.credit.store(more, Ordering::Relaxed);
        } else {
            self.credit.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// There is no budget.
    pub fn end(&self) {
        self.per_day.store(0, Ordering::Relaxed);
    }

    /// Sets the credit to zero and returns what it was. Nothing is stored until more is granted.
    pub fn take_credit(&self) -> i64 {
        self.credit.swap(0, Ordering::Relaxed)
    }

    /// A shard has written so many bytes, or fewer than it has said before.
    pub(crate) fn spend(&self, bytes: i64) {
        self.credit.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 1 << 30;

    #[test]
    fn what_is_written_is_taken_from_the_credit() {
        let budget = SharedBudget::default();
        budget.spend(5000);
        assert_eq!(budget.level(), None, "no budget");
        budget.grant(DAY, DAY - 65_536, 65_536);
        budget.spend(40_000);
        let level = budget.level().expect("a budget");
        assert_eq!((level.credit, level.allowance()), (25_536, Allowance::All));
        budget.spend(-10);
        budget.spend(40_000);
        assert_eq!(budget.level().expect("a budget").credit, -14_454);
        budget.grant(DAY, DAY / 2, 14_454);
        assert_eq!(budget.level().expect("a budget").allowance(), Allowance::Nothing);
        budget.grant(DAY, DAY / 2, 50_000);
        assert_eq!(budget.take_credit(), 50_000);
        assert_eq!(budget.level().expect("a budget").credit, 0);
        budget.end();
        assert_eq!(budget.level(), None);
    }

    #[test]
    fn the_less_is_left_for_all_the_less_is_stored() {
        let allowance = |left| {
            SharedLevel {
                per_day: DAY,
                left,
                credit: 32 << 10,
            }
            .allowance()
        };
        assert_eq!(
            [DAY, DAY / 3, DAY / 8, 0].map(allowance),
            [
                Allowance::All,
                Allowance::FewerReinsertions,
                Allowance::Remembered,
                Allowance::Remembered
            ]
        );
    }
}
