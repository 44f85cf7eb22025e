//! Validates a plan.

use flaz_bench::cell::RUNS_MAX;

use super::complete::{
    LEVELS_MAX, POOL_BYTES_DEDUP_MIN, POOL_BYTES_MAX, PRECONDITION_MAX, Plan, RECORD_BYTES_MAX,
    RECORD_BYTES_MIN, Rounds, WARM_UP_MAX,
};
use super::replay::REPLAY;
use super::words::EngineWord;
use crate::data::spec;
use crate::error::LoadError;
use crate::pass::DEPTH_MAX;
use crate::test::IOPS_RECORD_BYTES;
use crate::writers::WRITERS_MAX;

impl Plan {
    /// Validates the plan.
    ///
    /// # Errors
    /// The first problem.
    pub fn check(&self) -> Result<(), LoadError> {
        if self.tests.is_empty() || self.data.levels.is_empty() || self.records_bytes.is_empty() {
            return Err(LoadError::plan(
                "expected at least one test, one record size and one level",
            ));
        }
        if let Some(bytes) = self
            .records_bytes
            .iter()
            .find(|bytes| !bytes.is_power_of_two() || !(RECORD_BYTES_MIN..=RECORD_BYTES_MAX).contains(*bytes))
        {
            return Err(LoadError::plan(format!(
                "a record of {bytes} bytes: expected a power of two from 512 bytes to 64MiB"
            )));
        }
        within("levels", self.data.levels.len() as u64, 1, LEVELS_MAX as u64)?;
        self.rounds.check()?;
        within("writers", self.writers as u64, 1, WRITERS_MAX as u64)?;
        within("depth", self.method.depth as u64, 1, DEPTH_MAX as u64)?;
        within("pool", self.pool_bytes, 1 << 20, POOL_BYTES_MAX)?;
        if self.data.dedup_pct > 0.0 && self.pool_bytes < POOL_BYTES_DEDUP_MIN {
            return Err(LoadError::plan(format!(
                "dedup: expected a pool of at least {POOL_BYTES_DEDUP_MIN} bytes, because the first 4 MiB \
                 contain no duplicates, found {}",
                self.pool_bytes
            )));
        }
        if self.method.engine == EngineWord::Sync && self.method.depth > 1 {
            return Err(LoadError::plan(format!(
                "a depth of {} with the engine sync: expected the engine io_uring, or depth 1",
                self.method.depth
            )));
        }
        if self.data.replay.is_some() && self.data.levels.iter().all(|level| level.to_string() != REPLAY) {
            return Err(LoadError::plan(
                "a distribution is for the level replay: expected --family replay, or replay among the levels",
            ));
        }
        for level in &self.data.levels {
            spec(self, level, IOPS_RECORD_BYTES, 0)?;
        }
        Ok(())
    }
}

impl Rounds {
    fn check(&self) -> Result<(), LoadError> {
        within("runs", u64::from(self.runs), 1, RUNS_MAX as u64)?;
        within(
            "the maximum number of runs",
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
            return Err(LoadError::plan(format!(
                "within: expected 0.01 to 100 percent, found {percent}"
            )));
        }
        if self.within_pct.is_some() && self.runs < 3 {
            return Err(LoadError::plan(
                "within: expected at least 3 runs, because an interval of fewer runs is nearly useless",
            ));
        }
        Ok(())
    }
}

fn within(what: &str, found: u64, least: u64, most: u64) -> Result<(), LoadError> {
    if (least..=most).contains(&found) {
        Ok(())
    } else {
        Err(LoadError::plan(format!(
            "{what}: expected {least} to {most}, found {found}"
        )))
    }
}
