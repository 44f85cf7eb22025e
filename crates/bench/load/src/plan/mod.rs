//! What a campaign is to measure: from a file and options to a plan in which nothing is left open.

mod replay;
mod wanted;
mod words;

use std::path::PathBuf;

use flaz_bench::cell::{Level, RUNS_MAX};
use serde::{Deserialize, Serialize};

use crate::error::LoadError;
use crate::pass::{DEPTH_MAX, Engine};
use crate::target::{DropCaches, Io};
use crate::test::{IOPS_RECORD_BYTES, Test};
use crate::writers::WRITERS_MAX;

pub use replay::{REPLAY, Replay};
pub use wanted::Wanted;
pub use words::{Bytes, EngineWord, FamilyWord, Flush};

/// Smallest and largest record in bytes; records are powers of two, so that they divide each other.
pub const RECORD_BYTES_MIN: u64 = 512;
/// See [`RECORD_BYTES_MIN`].
pub const RECORD_BYTES_MAX: u64 = 64 << 20;
/// Largest pool of data in memory.
pub const POOL_BYTES_MAX: u64 = 64 << 30;
/// Smallest pool with duplicates in it.
pub const POOL_BYTES_DEDUP_MIN: u64 = 64 << 20;
/// Chunk of data if none is asked for.
const CHUNK_BYTES: u64 = 4096;
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
    /// Unit of duplicates, of drawn levels and of what is replayed; the records of IOzone's data are their own.
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
    /// Says whether it makes sense.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn check(&self) -> Result<(), LoadError> {
        if self.tests.is_empty() || self.levels.is_empty() || self.records_bytes.is_empty() {
            return Err(bad("expected at least one test, one record size and one level"));
        }
        if let Some(bytes) = self
            .records_bytes
            .iter()
            .find(|bytes| !bytes.is_power_of_two() || !(RECORD_BYTES_MIN..=RECORD_BYTES_MAX).contains(*bytes))
        {
            return Err(bad(format!(
                "a record of {bytes} bytes: expected a power of two from 512 bytes to 64MiB"
            )));
        }
        let within = |what: &str, found: u64, least: u64, most: u64| {
            if (least..=most).contains(&found) {
                Ok(())
            } else {
                Err(bad(format!(
                    "{what}: expected from {least} to {most}, found {found}"
                )))
            }
        };
        within("levels", self.levels.len() as u64, 1, LEVELS_MAX as u64)?;
        within("runs", u64::from(self.runs), 1, RUNS_MAX as u64)?;
        within(
            "the largest number of runs",
            u64::from(self.runs_max),
            u64::from(self.runs),
            RUNS_MAX as u64,
        )?;
        within(
            "precondition",
            u64::from(self.precondition),
            0,
            u64::from(PRECONDITION_MAX),
        )?;
        within("warm-up", u64::from(self.warm_up), 0, u64::from(WARM_UP_MAX))?;
        if let Some(percent) = self.within_pct
            && !(0.01..=100.0).contains(&percent)
        {
            return Err(bad(format!(
                "within: expected from 0.01 to 100 percent, found {percent}"
            )));
        }
        if self.within_pct.is_some() && self.runs < 3 {
            return Err(bad(
                "within: expected at least 3 runs, for an interval of fewer says next to nothing",
            ));
        }
        within("writers", self.writers as u64, 1, WRITERS_MAX as u64)?;
        within("depth", self.depth as u64, 1, DEPTH_MAX as u64)?;
        within("pool", self.pool_bytes, 1 << 20, POOL_BYTES_MAX)?;
        if self.dedup_pct > 0.0 && self.pool_bytes < POOL_BYTES_DEDUP_MIN {
            return Err(bad(format!(
                "dedup: expected a pool of {POOL_BYTES_DEDUP_MIN} bytes at least, for the first 4 MiB of it repeat nothing, \
                 found {}",
                self.pool_bytes
            )));
        }
        if self.engine == EngineWord::Sync && self.depth > 1 {
            return Err(bad(format!(
                "a depth of {} with the engine sync: expected the engine io_uring, or depth 1",
                self.depth
            )));
        }
        if self.replay.is_some() && self.levels.iter().all(|level| level.to_string() != REPLAY) {
            return Err(bad(
                "a distribution is for the level replay: expected --family replay, or replay among the levels",
            ));
        }
        for level in &self.levels {
            crate::data::spec(self, level, IOPS_RECORD_BYTES, 0)?;
        }
        Ok(())
    }

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

fn bad(text: impl Into<String>) -> LoadError {
    LoadError::Plan(text.into())
}

#[cfg(test)]
mod tests {
    use super::wanted::tests::wanted;
    use super::*;

    #[test]
    fn iops_are_of_4_kib_whatever_the_records_are() {
        let plan = Wanted {
            tests: Some(vec!["write".to_owned(), "iops".to_owned(), "write".to_owned()]),
            records: Some(vec![Bytes(1 << 20), Bytes(64 << 10), Bytes(1 << 20)]),
            levels: Some(vec!["50".parse().unwrap()]),
            ..wanted()
        }
        .plan()
        .unwrap();
        assert_eq!(plan.records_of(Test::Write), [64 << 10, 1 << 20]);
        assert_eq!(plan.records_of(Test::ReadIops), [4096]);
        assert_eq!((plan.cells(), plan.record_bounds()), (6, (1 << 20, 4096)));
    }

    #[test]
    fn invalid_plans_are_refused() {
        let told = |change: fn(&mut Wanted)| {
            let mut wanted = wanted();
            change(&mut wanted);
            wanted.plan().unwrap_err().to_string()
        };
        assert!(told(|w| w.target = None).contains("TARGET"));
        assert!(told(|w| w.tests = Some(vec!["raed".into()])).contains("no test"));
        assert!(told(|w| w.tests = Some(vec![])).contains("at least one"));
        assert!(told(|w| w.records = Some(vec![Bytes(5000)])).contains("power of two"));
        assert!(told(|w| w.runs = Some(0)).contains("runs: expected from 1 to 1000"));
        assert!(told(|w| w.runs_max = Some(20)).contains("--within"));
        assert!(told(|w| w.warm_up = Some(26)).contains("warm-up"));
        assert!(
            told(|w| {
                w.within = Some(2.0);
                w.runs_max = Some(5);
            })
            .contains("from 10 to 1000")
        );
        assert!(told(|w| w.within = Some(0.0)).contains("percent"));
        assert!(told(|w| w.writers = Some(0)).contains("writers"));
        assert!(told(|w| w.depth = Some(5000)).contains("depth"));
        assert!(told(|w| w.pool = Some(Bytes(1))).contains("pool"));
        assert!(told(|w| w.dedup = Some(99.5)).contains("99%"));
        assert!(
            told(|w| (w.dedup, w.pool) = (Some(10.0), Some(Bytes(8 << 20)))).contains("pool of 67108864")
        );
        assert!(told(|w| w.levels = Some(vec!["lots".parse().unwrap()])).contains("lots"));
        assert!(
            told(|w| {
                w.engine = Some(EngineWord::Sync);
                w.depth = Some(2);
            })
            .contains("io_uring")
        );
    }

    #[test]
    fn a_plan_is_kept_whole() {
        let plan = wanted().plan().unwrap();
        let value = serde_json::to_value(&plan).unwrap();
        assert_eq!(serde_json::from_value::<Plan>(value).unwrap(), plan);
    }
}
