//! A plan in which nothing is left open.

use std::path::PathBuf;

use flaz_bench::cell::Level;
use serde::{Deserialize, Serialize};

use super::replay::Replay;
use super::words::{EngineWord, FamilyWord, Flush};
use crate::pass::Engine;
use crate::target::{DropCaches, Io, TargetOptions};
use crate::test::{IOPS_RECORD_BYTES, Test};

/// Smallest and largest record in bytes; records are powers of two, so that they divide each other.
pub const RECORD_BYTES_MIN: u64 = 512;
/// See [`RECORD_BYTES_MIN`].
pub const RECORD_BYTES_MAX: u64 = 64 << 20;
/// Largest pool of data in memory.
pub const POOL_BYTES_MAX: u64 = 64 << 30;
/// Smallest pool with duplicates in it.
pub const POOL_BYTES_DEDUP_MIN: u64 = 64 << 20;
/// Chunk of data if none is asked for.
pub(super) const CHUNK_BYTES: u64 = 4096;
/// Levels of one campaign.
pub const LEVELS_MAX: usize = 101;
/// Passes over the target before the first run.
pub const PRECONDITION_MAX: u32 = 100;
/// Warm-up rounds, whether asked for by number or until the state is steady. The SNIA gives up after 25.
pub const WARM_UP_MAX: u32 = 25;

/// What a campaign measures, and how. Nothing is left open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Plan {
    /// Folder, file or device.
    pub target: PathBuf,
    /// Tests, each once, in the order of their definition.
    pub tests: Vec<Test>,
    /// Record sizes of the tests of throughput, ascending.
    pub records_bytes: Vec<u64>,
    /// Compressibility of the data.
    pub levels: Vec<Level>,
    /// How data of a percentage is made.
    pub family: FamilyWord,
    /// Share of chunks that are duplicates, in percent.
    pub dedup_pct: f64,
    /// Chunk size for duplicates, drawn levels and replayed data; IOzone data uses its record size.
    #[serde(default = "chunk_bytes")]
    pub chunk_bytes: u64,
    /// What the level `replay` draws from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
    /// Runs of each cell.
    pub runs: u32,
    /// More runs until the 95 % interval of each cell is no wider, in percent to each side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_pct: Option<f64>,
    /// Most runs of a cell.
    pub runs_max: u32,
    /// Passes over all of the target before anything is measured.
    pub precondition: u32,
    /// Rounds that do not count, before those that do.
    pub warm_up: u32,
    /// Such rounds until the state is steady, [`WARM_UP_MAX`] at most.
    pub steady: bool,
    /// Bytes of all writers together; twice the memory if there is room, when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Writers at the same time.
    pub writers: usize,
    /// Past the page cache or through it.
    pub io: Io,
    /// How operations reach the kernel.
    pub engine: EngineWord,
    /// Operations in flight of each writer.
    pub depth: usize,
    /// Where the flush is.
    pub flush: Flush,
    /// Whose cached pages are dropped between tests.
    pub drop_caches: DropCaches,
    /// Whether everything is read back and compared.
    pub verify: bool,
    /// What order and data are drawn from.
    pub seed: u64,
    /// Bytes of data in memory at most.
    pub pool_bytes: u64,
}

impl Plan {
    /// How operations reach the kernel.
    #[must_use]
    pub fn engine(&self) -> Engine {
        match self.engine {
            EngineWord::Sync => Engine::Synchronous,
            EngineWord::IoUring => Engine::IoUring { depth: self.depth },
        }
    }

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

    /// What the plan asks of its target.
    #[must_use]
    pub fn target_options(&self) -> TargetOptions {
        let (most, least) = self.record_bounds();
        TargetOptions {
            size_bytes: self.size_bytes,
            writers: self.writers,
            unit_bytes: most,
            record_bytes_min: least,
            io: self.io,
        }
    }

    /// Number of cells.
    #[must_use]
    pub fn cells(&self) -> usize {
        let shapes: usize = self.tests.iter().map(|test| self.records_of(*test).len()).sum();
        shapes * self.levels.len()
    }
}

fn chunk_bytes() -> u64 {
    CHUNK_BYTES
}
