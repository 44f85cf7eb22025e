//! Credit for one volume, from the write budget that all volumes of a device share.
//!
//! The process looks from time to time: it charges the budget with what was written beyond the credit, and takes more before the
//! credit ends. What it takes at once is small beside a day's budget, so that little is lost if it is killed, and large beside what
//! the change of the superblock writes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flaz_control::report::SharedBudgetReport;
use flaz_engine::shared_budget::SharedBudget;
use flaz_pool::{BudgetLeft, PoolBudget};

use super::client::{HostPool, PoolClient};
use crate::error::HostError;
use crate::safety::Access;

/// How long another process may keep this one from changing the pool. The next look tries again.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Credit of a volume: this share of a day's budget at least.
const CREDIT_SHARE: u64 = 256;
/// Credit of a volume that writes much: this share of a day's budget at most.
const CREDIT_SHARE_MAX: u64 = 16;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Credit {
    budget: Arc<SharedBudget>,
    /// The credit at the end of the last look. Locked for each look. `None`: it was given back for good.
    then: Mutex<Option<i64>>,
}

impl Credit {
    /// Without credit, of a budget that was `found`: until the first look, nothing is stored.
    pub(crate) fn new(found: Option<PoolBudget>) -> Self {
        let credit = Self {
            budget: Arc::default(),
            then: Mutex::new(Some(0)),
        };
        if let Some(found) = found {
            let left = found.at(now_ms()).left();
            credit.budget.grant(left.per_day, left.left, 0);
        }
        credit
    }

    /// For the shards.
    pub(crate) fn budget(&self) -> Arc<SharedBudget> {
        Arc::clone(&self.budget)
    }

    /// What is left for all volumes, and the credit of this one, at the last look.
    pub(crate) fn report(&self) -> Option<SharedBudgetReport> {
        let level = self.budget.level()?;
        Some(SharedBudgetReport {
            bytes_per_day: level.per_day,
            left_bytes: level.left,
            owed_bytes: u64::try_from(-level.credit).unwrap_or(0),
        })
    }

    /// Looks at the budget, which was `found` just now, and takes more credit if there is little.
    ///
    /// # Errors
    /// The pool cannot be read or written: the credit stays as it is.
    pub(crate) fn renew(&self, client: &PoolClient, found: Option<PoolBudget>) -> Result<(), HostError> {
        let mut then = self.then.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(before) = *then else { return Ok(()) };
        let Some(found) = found else {
            self.budget.end();
            return Ok(());
        };
        let mut left = found.at(now_ms()).left();
        // Of a larger budget: what is too much now is lost.
        let most = i64::try_from(left.per_day / CREDIT_SHARE_MAX).unwrap_or(i64::MAX);
        if self.budget.level().is_some_and(|level| level.credit > most) {
            self.budget.take_credit();
        }
        let credit = self.budget.level().map_or(0, |level| level.credit);
        let wanted = wanted(found.per_day, before - credit, credit);
        let owed = u64::try_from(-credit).unwrap_or(0);
        let mut granted = 0;
        // Also if the clock was set back, which the pool must know.
        if wanted > 0 || owed > 0 || now_ms() < found.at_ms {
            let take = async move |pool: HostPool| Ok(pool.take_credit(owed, wanted, now_ms()).await?);
            match client.ask_within(ANSWER_WITHIN, Access::ReadWrite, take)? {
                Some(taken) => (left, granted) = taken,
                None => {
                    self.budget.end();
                    return Ok(());
                }
            }
        }
        self.budget.grant(left.per_day, left.left, owed + granted);
        *then = Some(self.budget.level().map_or(0, |level| level.credit));
        Ok(())
    }

    /// Gives back what is left of the credit, or charges what is owed. Nothing is stored by then.
    ///
    /// # Errors
    /// The pool cannot be read or written: the credit is lost.
    pub(crate) fn give_back(&self, client: &PoolClient) -> Result<(), HostError> {
        let mut then = self.then.lock().unwrap_or_else(PoisonError::into_inner);
        if then.take().is_none() || self.budget.level().is_none() {
            return Ok(());
        }
        let credit = self.budget.take_credit();
        client.ask_within(ANSWER_WITHIN, Access::ReadWrite, async move |pool: HostPool| {
            match u64::try_from(credit) {
                Ok(credit) => {
                    // The budget may be smaller now.
                    let budget = pool.superblock().budget;
                    let most = budget.map_or(0, |budget| budget.per_day / CREDIT_SHARE_MAX);
                    pool.return_credit(credit.min(most)).await?;
                }
                Err(_) => drop(pool.take_credit(credit.unsigned_abs(), 0, now_ms()).await?),
            }
            Ok(())
        })
    }
}

/// How much credit a volume asks for that has `credit`, and has spent `spent` since the last look. 0: it has enough.
fn wanted(per_day: u64, spent: i64, credit: i64) -> u64 {
    let least = per_day / CREDIT_SHARE;
    let spent = u64::try_from(spent).unwrap_or(0);
    let target = spent.saturating_mul(2).clamp(least, per_day / CREDIT_SHARE_MAX);
    let has = u64::try_from(credit).unwrap_or(0);
    if has >= target / 2 { 0 } else { target - has }
}

/// A level in a report.
pub(super) fn report(left: BudgetLeft) -> SharedBudgetReport {
    SharedBudgetReport {
        bytes_per_day: left.per_day,
        left_bytes: left.left,
        owed_bytes: left.owed,
    }
}

/// Now, in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_follows_what_is_spent() {
        const DAY: u64 = 1 << 36;
        let least = DAY / CREDIT_SHARE;
        assert_eq!(wanted(DAY, 0, 0), least);
        assert_eq!(wanted(DAY, 0, (least / 2) as i64), 0, "enough");
        assert_eq!(wanted(DAY, 0, (least / 2 - 1) as i64), least / 2 + 1);
        assert_eq!(wanted(DAY, least as i64, 0), 2 * least);
        assert_eq!(wanted(DAY, 1 << 40, -5), DAY / CREDIT_SHARE_MAX);
        assert_eq!(wanted(1 << 30, 1 << 40, -5), 64 << 20);
        assert_eq!(wanted(1 << 30, 0, 0), 4 << 20);
    }
}
