//! The request of a user: campaign file, options that override it, and defaults.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flaz_bench::cell::Level;
use serde::Deserialize;

use super::complete::{CHUNK_BYTES, DataPlan, Method, Plan, Rounds};
use super::replay::{REPLAY, Replay};
use super::words::{Bytes, EngineWord, FamilyWord, Flush};
use crate::error::LoadError;
use crate::target::{DropCaches, Io};
use crate::test::{Test, parse_tests};

/// Default size of the data in memory: exceeds the distance over which devices deduplicate.
const POOL_BYTES: u64 = 256 << 20;
/// Default number of runs of each cell.
const RUNS: u32 = 10;
/// Default maximum number of runs with `within`.
const RUNS_MAX_DEFAULT: u32 = 50;
/// Maximum size of a campaign file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The requested values; missing ones get their defaults. The fields are those of a campaign file in TOML.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Wanted {
    /// Directory, file or device.
    pub target: Option<PathBuf>,
    /// Name of the campaign in reports.
    pub name: Option<String>,
    /// Tests, or words for several tests.
    pub tests: Option<Vec<String>>,
    /// Record sizes.
    pub records: Option<Vec<Bytes>>,
    /// Compressibility of the data.
    pub levels: Option<Vec<Level>>,
    /// Family of the data for percentage levels.
    pub family: Option<FamilyWord>,
    /// Share of chunks that are duplicates, in percent.
    pub dedup: Option<f64>,
    /// Chunk size for duplicates, drawn levels and replayed data.
    pub chunk: Option<Bytes>,
    /// Source of the level `replay`: a file written by `flaz study`.
    pub distribution: Option<PathBuf>,
    /// Number of runs of each cell.
    pub runs: Option<u32>,
    /// Add runs until the half-width of each cell's 95 % interval is at most this, in percent.
    pub within: Option<f64>,
    /// Maximum number of runs of a cell with `within`.
    pub runs_max: Option<u32>,
    /// Number of passes over the whole target before the measurement.
    pub precondition: Option<u32>,
    /// Number of warm-up rounds.
    pub warm_up: Option<u32>,
    /// Add warm-up rounds until the state is steady.
    pub steady: Option<bool>,
    /// Total bytes of all writers.
    pub size: Option<Bytes>,
    /// Number of concurrent writers.
    pub writers: Option<usize>,
    /// Direct I/O or page cache.
    pub io: Option<Io>,
    /// I/O engine.
    pub engine: Option<EngineWord>,
    /// Operations in flight per writer.
    pub depth: Option<usize>,
    /// Whether the time includes the flush.
    pub flush: Option<Flush>,
    /// Which cached pages are dropped between tests.
    pub drop_caches: Option<DropCaches>,
    /// Whether all data is read back and compared.
    pub verify: Option<bool>,
    /// Seed of order and data.
    pub seed: Option<u64>,
    /// Amount of data in memory, in bytes.
    pub pool: Option<Bytes>,
}

impl Wanted {
    /// Parses a campaign file in TOML.
    ///
    /// # Errors
    /// It cannot be read, or has invalid contents; the message has the line.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let file = File::open(path).map_err(LoadError::at("open", path))?;
        let mut text = String::new();
        file.take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(LoadError::at("read", path))?;
        Self::parse(&text).map_err(|problem| LoadError::plan(format!("{}: {problem}", path.display())))
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start).min(text.len());
            let line = 1 + text.as_bytes()[..at]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count();
            format!("line {line}: {}", error.message())
        })
    }

    /// Takes values that `self` lacks from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            target: self.target.or(other.target),
            name: self.name.or(other.name),
            tests: self.tests.or(other.tests),
            records: self.records.or(other.records),
            levels: self.levels.or(other.levels),
            family: self.family.or(other.family),
            dedup: self.dedup.or(other.dedup),
            chunk: self.chunk.or(other.chunk),
            distribution: self.distribution.or(other.distribution),
            runs: self.runs.or(other.runs),
            within: self.within.or(other.within),
            runs_max: self.runs_max.or(other.runs_max),
            precondition: self.precondition.or(other.precondition),
            warm_up: self.warm_up.or(other.warm_up),
            steady: self.steady.or(other.steady),
            size: self.size.or(other.size),
            writers: self.writers.or(other.writers),
            io: self.io.or(other.io),
            engine: self.engine.or(other.engine),
            depth: self.depth.or(other.depth),
            flush: self.flush.or(other.flush),
            drop_caches: self.drop_caches.or(other.drop_caches),
            verify: self.verify.or(other.verify),
            seed: self.seed.or(other.seed),
            pool: self.pool.or(other.pool),
        }
    }

    /// Converts the request to a plan.
    ///
    /// # Errors
    /// The first invalid value, with what was expected.
    pub fn plan(self) -> Result<Plan, LoadError> {
        let (rounds, method) = (self.rounds(), self.method());
        if let Some(name) = self.name.filter(|name| name.trim().is_empty()) {
            return Err(LoadError::plan(format!(
                "--name: expected a visible name for the campaign, found '{name}'"
            )));
        }
        let target = self
            .target
            .ok_or_else(|| LoadError::plan("expected a TARGET: a directory, a file or a device"))?;
        let words = self.tests.unwrap_or_else(|| vec!["throughput".to_owned()]);
        let streaming = words.iter().any(|word| word.trim() == "streaming");
        let tests = tests(&words)?;
        let levels = match self.levels {
            Some(levels) => levels,
            None if streaming => named(["zeros", "random"])?,
            None if self.family == Some(FamilyWord::Replay) => named([REPLAY])?,
            None => named(["2", "50", "98"])?,
        };
        let records = match self.records {
            Some(records) => records.into_iter().map(|bytes| bytes.0).collect(),
            None => vec![1 << 20],
        };
        let rounds = rounds?;
        let plan = Plan {
            target,
            tests,
            records_bytes: once(records),
            data: DataPlan {
                levels: distinct(levels),
                family: self.family.unwrap_or_default(),
                dedup_pct: self.dedup.unwrap_or(0.0),
                chunk_bytes: self.chunk.map_or(CHUNK_BYTES, |bytes| bytes.0),
                replay: self.distribution.map(|path| Replay::read(&path)).transpose()?,
            },
            rounds,
            size_bytes: self.size.map(|bytes| bytes.0),
            writers: self.writers.unwrap_or(1),
            method,
            seed: self.seed.unwrap_or(1),
            pool_bytes: self.pool.map_or(POOL_BYTES, |bytes| bytes.0),
        };
        plan.check()?;
        Ok(plan)
    }

    fn rounds(&self) -> Result<Rounds, LoadError> {
        let runs = self.runs.unwrap_or(RUNS);
        let runs_max = match (self.within, self.runs_max) {
            (None, None) => runs,
            (None, Some(_)) => {
                return Err(LoadError::plan(
                    "runs-max is for --within: expected both, or neither",
                ));
            }
            (Some(_), most) => most.unwrap_or_else(|| RUNS_MAX_DEFAULT.max(runs)),
        };
        Ok(Rounds {
            runs,
            within_pct: self.within,
            runs_max,
            precondition: self.precondition.unwrap_or(0),
            warm_up: self.warm_up.unwrap_or(0),
            steady: self.steady.unwrap_or(false),
        })
    }

    fn method(&self) -> Method {
        let depth = self.depth.unwrap_or(1);
        let engine = self.engine.unwrap_or(if depth > 1 {
            EngineWord::IoUring
        } else {
            EngineWord::Sync
        });
        Method {
            io: self.io.unwrap_or_default(),
            engine,
            depth,
            flush: self.flush.unwrap_or_default(),
            drop_caches: self.drop_caches.unwrap_or_default(),
            verify: self.verify.unwrap_or(false),
        }
    }
}

fn tests(words: &[String]) -> Result<Vec<Test>, LoadError> {
    let mut tests = Vec::new();
    for word in words {
        tests.extend(parse_tests(word).map_err(LoadError::Plan)?);
    }
    Ok(once(tests))
}

fn named<const N: usize>(words: [&str; N]) -> Result<Vec<Level>, LoadError> {
    words
        .iter()
        .map(|word| word.parse().map_err(LoadError::plan))
        .collect()
}

fn once<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}

/// Each once, in the given order.
fn distinct(levels: Vec<Level>) -> Vec<Level> {
    let mut seen = Vec::new();
    for level in levels {
        if !seen.contains(&level) {
            seen.push(level);
        }
    }
    seen
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::pass::Engine;

    pub(in crate::plan) fn wanted() -> Wanted {
        Wanted {
            target: Some("/tmp".into()),
            ..Wanted::default()
        }
    }

    #[test]
    fn defaults_match_the_manual() {
        let plan = wanted().plan().unwrap();
        assert_eq!((plan.tests.len(), plan.rounds.runs, plan.cells()), (13, 10, 39));
        assert_eq!(
            (plan.method.flush, plan.method.io, plan.method.engine),
            (Flush::Timed, Io::Auto, EngineWord::Sync)
        );
        let deep = Wanted {
            depth: Some(32),
            ..wanted()
        };
        assert_eq!(
            deep.plan().unwrap().method.engine(),
            Engine::IoUring { depth: 32 }
        );
        let streaming = Wanted {
            tests: Some(vec!["streaming".to_owned()]),
            ..wanted()
        };
        let plan = streaming.plan().unwrap();
        assert_eq!(plan.tests, [Test::Write, Test::Read]);
        assert_eq!(
            plan.data
                .levels
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            ["zeros", "random"]
        );
    }

    #[test]
    fn campaign_files_equal_options_and_options_override_them() {
        let text = "target = \"/mnt\"\nname = \"old kernel\"\ntests = [\"iops\", \"write\"]\n\
                    records = [\"64KiB\", 4096]\nlevels = [2, 97.5, \"random\"]\nfamily = \"iozone\"\n\
                    runs = 5\nwithin = 2\nruns-max = 40\nwarm-up = 2\nsteady = true\nprecondition = 1\n\
                    size = \"8G\"\nwriters = 4\nio = \"direct\"\nengine = \"io_uring\"\ndepth = 32\n\
                    flush = \"after\"\ndrop-caches = \"no\"\nverify = true\nseed = 7\npool = \"1GiB\"\ndedup = 10\nchunk = \"8KiB\"\n";
        let file = Wanted::parse(text).unwrap();
        let plan = file.clone().plan().unwrap();
        assert_eq!(
            (plan.cells(), plan.rounds.runs_max, plan.size_bytes),
            (18, 40, Some(8 << 30))
        );
        assert_eq!(plan.records_bytes, [4096, 65_536]);
        let option = Wanted {
            runs: Some(3),
            ..Wanted::default()
        };
        let both = option.or(file).plan().unwrap();
        assert_eq!(
            (both.rounds.runs, both.writers, both.data.dedup_pct),
            (3, 4, 10.0)
        );
        let told = |text: &str| Wanted::parse(text).unwrap_err();
        let misspelt = told("runs = 3\nrecrods = []\n");
        assert!(
            misspelt.contains("line 2") && misspelt.contains("recrods"),
            "{misspelt}"
        );
        assert!(told("size = true").contains("4KiB"), "{}", told("size = true"));
        assert!(told("io = \"fast\"").contains("buffered"));
        assert!(told("levels = [200]").contains("0 to 100"));
    }
}
