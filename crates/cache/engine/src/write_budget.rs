//! The limit of the bytes that a cache writes to its device: the setting.
//!
//! `shard/budget.rs` counts the bytes written, and [`crate::policy::Allowance`] decides what may be stored at each level.

use std::num::{NonZeroU32, NonZeroU64};

use serde::{Deserialize, Serialize};

use crate::format::geometry::Geometry;

/// Largest number of drive writes per day, in thousandths: more than any SSD endures.
pub const DWPD_THOUSANDTHS_MAX: u32 = 1_000_000;

/// How much a cache may write to its device. What clients write in write-back is counted and never refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WriteBudget {
    /// No limit.
    #[default]
    None,
    /// Bytes per day.
    BytesPerDay(NonZeroU64),
    /// Drive writes per day, in thousandths. A drive write is as many bytes as the cache has for data; for a volume, as many as the
    /// whole device has.
    DwpdThousandths(NonZeroU32),
}

/// A budget is too small for a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the write budget is {found} bytes per day: expected none, or at least {expected} bytes per day, a region of \
     {region_bytes} bytes in each shard (shards: {shards})"
)]
pub struct BudgetTooSmall {
    /// Bytes per day.
    pub found: u64,
    /// The smallest budget, in bytes per day.
    pub expected: u64,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Number of shards.
    pub shards: u32,
}

impl WriteBudget {
    /// Bytes per day for a shard, one of `shards`, that has `capacity` bytes for data. `None`: no limit.
    #[must_use]
    pub fn of_shard(self, capacity: u64, shards: u32) -> Option<u64> {
        match self {
            Self::None => None,
            Self::BytesPerDay(bytes) => Some(bytes.get() / u64::from(shards)),
            Self::DwpdThousandths(thousandths) => Some(part(capacity, thousandths)),
        }
    }

    /// Bytes per day for a cache that has `capacity` bytes for data. `None`: no limit.
    #[must_use]
    pub fn bytes_per_day(self, capacity: u64) -> Option<u64> {
        self.of_shard(capacity, 1)
    }

    /// Checks the budget against the cache that it is for.
    ///
    /// # Errors
    /// [`BudgetTooSmall`]: a shard could write less than a region per day.
    pub fn check(self, geometry: &Geometry) -> Result<(), BudgetTooSmall> {
        let shards = geometry.shard_count;
        let expected = geometry.region_bytes * u64::from(shards);
        match self.bytes_per_day(geometry.shard_len() * u64::from(shards)) {
            Some(found) if found < expected => Err(BudgetTooSmall {
                found,
                expected,
                region_bytes: geometry.region_bytes,
                shards,
            }),
            _ => Ok(()),
        }
    }
}

fn part(capacity: u64, thousandths: NonZeroU32) -> u64 {
    let bytes = u128::from(capacity) * u128::from(thousandths.get()) / 1000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::GeometryOptions;

    fn bytes(bytes: u64) -> WriteBudget {
        WriteBudget::BytesPerDay(NonZeroU64::new(bytes).expect("not zero"))
    }

    fn dwpd(thousandths: u32) -> WriteBudget {
        WriteBudget::DwpdThousandths(NonZeroU32::new(thousandths).expect("not zero"))
    }

    #[test]
    fn drive_writes_count_the_space_for_data() {
        assert_eq!(WriteBudget::None.of_shard(1 << 30, 4), None);
        assert_eq!(bytes(4000).of_shard(1 << 30, 4), Some(1000));
        assert_eq!(dwpd(500).of_shard(1 << 30, 4), Some(1 << 29));
        assert_eq!(dwpd(DWPD_THOUSANDTHS_MAX).bytes_per_day(u64::MAX), Some(u64::MAX));
    }

    #[test]
    fn a_budget_allows_a_region_per_day_in_each_shard() {
        let wish = GeometryOptions {
            shard_count: Some(2),
            ..GeometryOptions::default()
        };
        let geometry = Geometry::plan(64 << 20, 512, 1 << 30, wish).expect("fits");
        let least = 2 * geometry.region_bytes;
        assert_eq!(bytes(least).check(&geometry), Ok(()));
        assert_eq!(WriteBudget::None.check(&geometry), Ok(()));
        for small in [bytes(least - 1), dwpd(1)] {
            let error = small.check(&geometry).expect_err("too small");
            assert_eq!(error.expected, least);
        }
    }

    #[test]
    fn the_form_in_json_is_stable() {
        for (budget, json) in [
            (WriteBudget::None, r#""none""#),
            (bytes(7), r#"{"bytes_per_day":7}"#),
            (dwpd(500), r#"{"dwpd_thousandths":500}"#),
        ] {
            assert_eq!(serde_json::to_string(&budget).expect("JSON"), json);
            assert_eq!(
                serde_json::from_str::<WriteBudget>(json).expect("the same"),
                budget
            );
        }
    }
}
