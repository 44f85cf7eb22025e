//! Changes of the write budget in the superblock.

use flaz_device::Device;

use crate::budget::{BudgetLeft, PoolBudget};
use crate::error::PoolError;
use crate::pool::Pool;

impl<D: Device> Pool<D> {
    /// Limits what all volumes together may write, in bytes per day; `None`: no limit. The first budget begins with a whole day.
    ///
    /// # Errors
    /// [`PoolError`]: the budget is too small or too large, or the device fails.
    pub async fn set_budget(&self, per_day: Option<u64>, now_ms: u64) -> Result<(), PoolError> {
        let _permit = self.writer.acquire(1).await;
        let mut next = self.superblock();
        next.budget = match (per_day, next.budget) {
            (None, _) => None,
            (Some(per_day), None) => Some(PoolBudget::full(per_day, now_ms)?),
            (Some(per_day), Some(before)) => Some(before.at(now_ms).with(per_day)?),
        };
        if next.budget == self.superblock().budget {
            return Ok(());
        }
        self.write_superblock(next).await
    }

    /// Charges the budget for the bytes that a volume has overdrawn, and grants up to `wanted` bytes of credit. Returns the level of the
    /// budget and the bytes granted. `None`: there is no budget.
    ///
    /// # Errors
    /// [`PoolError`]: the device fails. Nothing was taken, as far as it takes writes.
    pub async fn take_credit(
        &self,
        owed: u64,
        wanted: u64,
        now_ms: u64,
    ) -> Result<Option<(BudgetLeft, u64)>, PoolError> {
        let _permit = self.writer.acquire(1).await;
        let mut next = self.superblock();
        let volumes = next.volumes.len();
        let Some(budget) = &mut next.budget else {
            return Ok(None);
        };
        // Until the clock was where it is now again, no time would pass.
        let set_back = now_ms < budget.at_ms;
        *budget = budget.at(now_ms);
        budget.charge(owed);
        let granted = budget.grant(wanted, volumes);
        let left = budget.left();
        if owed > 0 || granted > 0 || set_back {
            self.write_superblock(next).await?;
        }
        Ok(Some((left, granted)))
    }

    /// Returns unused credit of a volume.
    ///
    /// # Errors
    /// [`PoolError`]: the device fails.
    pub async fn return_credit(&self, bytes: u64) -> Result<(), PoolError> {
        let _permit = self.writer.acquire(1).await;
        let mut next = self.superblock();
        if let Some(budget) = next.budget.as_mut().filter(|_| bytes > 0) {
            budget.give_back(bytes);
            self.write_superblock(next).await?;
        }
        Ok(())
    }
}
