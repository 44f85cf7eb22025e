//! A plan with all values filled in.

use std::path::PathBuf;

use flaz_bench::cell::Level;
use serde::{Deserialize, Serialize};

use super::replay::Replay;
use super::words::{EngineWord, FamilyWord, Flush};
use crate::pass::Engine;
use crate::target::{DropCaches, Io, TargetOptions};
use crate::test::{IOPS_RECORD_BYTES, Test};

/// Minimum and maximum record in bytes; records are powers of two, so that they divide each other.
pub const RECORD_BYTES_MIN: u64 = 512;
/// See [`RECORD_BYTES_MIN`].
pub const RECORD_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of the data in memory.
pub const POOL_BYTES_MAX: u64 = 64 << 30;
/// Minimum size of the data in memory if it has duplicates.
pub const POOL_BYTES_DEDUP_MIN: u64 = 64 << 20;
/// Default chunk size.
pub(super) const CHUNK_BYTES: u64 = 4096;
/// Maximum number of levels in a campaign.
pub const LEVELS_MAX: usize = 101;
/// Maximum number of passes over the target before the first run.
pub const PRECONDITION_MAX: u32 = 100;
/// Maximum number of warm-up rounds, whether their number is fixed or they end in steady state. SNIA also stops after
/// 25.
pub const WARM_UP_MAX: u32 = 25;

/// Everything that defines a campaign, with all values filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Plan {
    /// Directory, file or device.
    pub target: PathBuf,
    /// Tests, each once, in the order of their definition.
    pub tests: Vec<Test>,
    /// Record sizes of the throughput tests, ascending.
    pub records_bytes: Vec<u64>,
    /// The written data.
    #[serde(flatten)]
    pub data: DataPlan,
    /// The number of runs.
    #[serde(flatten)]
    pub rounds: Rounds,
    /// Total bytes of all writers; by default twice the memory if there is space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Number of concurrent writers.
    pub writers: usize,
    /// How the target is accessed.
    #[serde(flatten)]
    pub method: Method,
    /// Seed of order and data.
    pub seed: u64,
    /// Maximum amount of data in memory, in bytes.
    pub pool_bytes: u64,
}

/// The written data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataPlan {
    /// Compressibility of the data.
    pub levels: Vec<Level>,
    /// Family of the data for percentage levels.
    pub family: FamilyWord,
    /// Share of chunks that are duplicates, in percent.
    pub dedup_pct: f64,
    /// Chunk size for duplicates, drawn levels and replayed data; IOzone data uses its record size.
    #[serde(default = "chunk_bytes")]
    pub chunk_bytes: u64,
    /// Source of the level `replay`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
}

/// The number of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// Number of runs of each cell.
    pub runs: u32,
    /// Add runs until the half-width of each cell's 95 % interval is at most this, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_pct: Option<f64>,
    /// Maximum number of runs of a cell.
    pub runs_max: u32,
    /// Number of passes over the whole target before the measurement.
    pub precondition: u32,
    /// Number of warm-up rounds.
    pub warm_up: u32,
    /// Add warm-up rounds until the state is steady, at most [`WARM_UP_MAX`].
    pub steady: bool,
}

/// How the target is accessed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Method {
    /// Direct I/O or page cache.
    pub io: Io,
    /// I/O engine.
    pub engine: EngineWord,
    /// Operations in flight per writer.
    pub depth: usize,
    /// Whether the time includes the flush.
    pub flush: Flush,
    /// Which cached pages are dropped between tests.
    pub drop_caches: DropCaches,
    /// Whether all data is read back and compared.
    pub verify: bool,
}

impl Method {
    /// The I/O engine.
    #[must_use]
    pub fn engine(&self) -> Engine {
        match self.engine {
            EngineWord::Sync => Engine::Synchronous,
            EngineWord::IoUring => Engine::IoUring { depth: self.depth },
        }
    }
}

impl Plan {
    /// Record sizes of a test.
    #[must_use]
    pub fn records_of(&self, test: Test) -> &[u64] {
        if test.is_iops() {
            &[IOPS_RECORD_BYTES]
        } else {
            &self.records_bytes
        }
    }

    /// The largest and the smallest record of all tests.
    #[must_use]
    pub fn record_bounds(&self) -> (u64, u64) {
        let all = || self.tests.iter().flat_map(|test| self.records_of(*test));
        (
            all().copied().max().unwrap_or(IOPS_RECORD_BYTES),
            all().copied().min().unwrap_or(IOPS_RECORD_BYTES),
        )
    }

    /// The requirements of the plan on its target.
    #[must_use]
    pub fn target_options(&self) -> TargetOptions {
        let (most, least) = self.record_bounds();
        TargetOptions {
            size_bytes: self.size_bytes,
            writers: self.writers,
            unit_bytes: most,
            record_bytes_min: least,
            io: self.method.io,
        }
    }

    /// Number of cells.
    #[must_use]
    pub fn cells(&self) -> usize {
        let shapes: usize = self.tests.iter().map(|test| self.records_of(*test).len()).sum();
        shapes * self.data.levels.len()
    }
}

fn chunk_bytes() -> u64 {
    CHUNK_BYTES
}
