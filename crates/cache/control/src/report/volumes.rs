//! Reports about cache devices that volumes share.

use std::path::PathBuf;

use flaz_engine::settings::Mode;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{CacheState, OriginReport};

/// What a volume has of its cache device, and how much more would help it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ShareReport {
    /// Name of the volume.
    pub volume: String,
    /// Bytes that it has.
    pub held_bytes: u64,
    /// Bytes that no other volume gets.
    pub at_least_bytes: u64,
    /// The most that it gets, in bytes; null: no limit.
    pub at_most_bytes: Option<u64>,
    /// Bytes of the device that no volume has.
    pub free_bytes: u64,
    /// Hits a day, for each MiB that it has, on blocks that left its cache a short time ago: about what another MiB would serve. The
    /// volume with the larger need gets space of the one with the smaller need.
    pub need: u64,
    /// The write budget of all volumes; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_budget: Option<SharedBudgetReport>,
}

/// The write budget that all volumes of a device share, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SharedBudgetReport {
    /// The budget in bytes per day. As much can be left at most.
    pub bytes_per_day: u64,
    /// Bytes left, beside what running volumes have taken to write next.
    pub left_bytes: u64,
    /// Bytes written beyond the budget, because they could not be refused, that time has not made up for yet.
    pub owed_bytes: u64,
}

/// A shared cache device that becomes smaller, by `flaz resize`. It has its old size until that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SharedShrinkReport {
    /// Bytes for volumes afterwards.
    pub size_bytes: u64,
    /// Bytes that volumes still have to give back, or that have to be moved.
    pub left_bytes: u64,
}

/// A cache device that volumes share: the result of `flaz create --shared`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SharedReport {
    /// Path of the device.
    #[serde(with = "crate::path")]
    #[schemars(with = "String")]
    pub path: PathBuf,
    /// Its UUID.
    pub uuid: Uuid,
    /// Bytes for volumes.
    pub size_bytes: u64,
    /// Bytes that no volume has. During a shrink: that volumes may take.
    pub free_bytes: u64,
    /// The shrink under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrink: Option<SharedShrinkReport>,
    /// Space is given to volumes in chunks of this size, in bytes.
    pub chunk_bytes: u64,
    /// The write budget of all volumes; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_budget: Option<SharedBudgetReport>,
}

/// The report of `flaz volume list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct VolumesReport {
    /// Version of the JSON form, of the program that created the report.
    pub schema: u32,
    /// The device that they share.
    pub cache: SharedReport,
    /// In the order in which they were added.
    pub volumes: Vec<VolumeReport>,
}

/// A volume of a shared cache device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct VolumeReport {
    /// Its name.
    pub name: String,
    /// UUID of its cache.
    pub uuid: Uuid,
    /// State of its cache; null if that cannot be read.
    pub state: Option<CacheState>,
    /// Why it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Its origin.
    pub origin: Option<OriginReport>,
    /// Stored mode.
    #[schemars(with = "Option<String>")]
    pub mode: Option<Mode>,
    /// Whether it has, or may have, data that its origin lacks.
    pub may_be_dirty: bool,
    /// Bytes of the device that it has now.
    pub held_bytes: u64,
    /// Bytes that no other volume gets.
    pub at_least_bytes: u64,
    /// The most that it gets, in bytes; null: no limit.
    pub at_most_bytes: Option<u64>,
}
