//! What a campaign is to measure: from a file and options to a plan in which nothing is left open.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flaz_bench::cell::{Level, RUNS_MAX};
use flaz_bench::unit::parse_record;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;
use crate::pass::{DEPTH_MAX, Engine};
use crate::target::{DropCaches, Io};
use crate::test::{IOPS_RECORD_BYTES, Test, parse_tests};
use crate::writers::WRITERS_MAX;

/// Smallest and largest record in bytes; records are powers of two, so that they divide each other.
pub const RECORD_BYTES_MIN: u64 = 512;
/// See [`RECORD_BYTES_MIN`].
pub const RECORD_BYTES_MAX: u64 = 64 << 20;
/// Largest pool of data in memory.
pub const POOL_BYTES_MAX: u64 = 64 << 30;
/// Pool if none is asked for: more than a device can look back.
const POOL_BYTES: u64 = 256 << 20;
/// Runs of each cell if nothing is asked for.
const RUNS: u32 = 10;
/// Most runs with `within` if nothing is asked for.
const RUNS_MAX_DEFAULT: u32 = 50;
/// Levels of one campaign.
pub const LEVELS_MAX: usize = 101;
/// Passes over the target before the first run.
pub const PRECONDITION_MAX: u32 = 100;
/// Warm-up rounds, whether asked for by number or until the state is steady. The SNIA gives up after 25.
pub const WARM_UP_MAX: u32 = 25;

/// Bytes of a campaign file that are read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How data of a percentage is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FamilyWord {
    /// A run of one byte in each 4 KiB.
    #[default]
    Run,
    /// Copies from 256 bytes before.
    Copies,
    /// Bytes of unequal frequency.
    Alphabet,
    /// As IOzone fills its records.
    Iozone,
}

/// Where the flush after writes is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flush {
    /// In the time.
    #[default]
    Timed,
    /// After it, as IOzone does without `-e` and `-c`.
    After,
}

/// How operations reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineWord {
    /// System calls, one at a time.
    Sync,
    /// io_uring.
    #[serde(rename = "io_uring")]
    IoUring,
}

/// A number of bytes: as such, or as `4KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a size, as in 4096 or \"4KiB\"")]
        enum Raw {
            Number(u64),
            Text(String),
        }
        match Raw::deserialize(deserializer)? {
            Raw::Number(bytes) => Ok(Self(bytes)),
            Raw::Text(text) => parse_record(&text).map(Self).map_err(serde::de::Error::custom),
        }
    }
}

/// What is asked for; what is left open takes its default. The fields are those of a campaign file in TOML.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Wanted {
    /// Folder, file or device.
    pub target: Option<PathBuf>,
    /// What the user calls the campaign.
    pub name: Option<String>,
    /// Tests, or words that stand for several.
    pub tests: Option<Vec<String>>,
    /// Record sizes.
    pub records: Option<Vec<Bytes>>,
    /// Compressibility of the data.
    pub levels: Option<Vec<Level>>,
    /// How data of a percentage is made.
    pub family: Option<FamilyWord>,
    /// Share of chunks that are duplicates, in percent.
    pub dedup: Option<f64>,
    /// Runs of each cell.
    pub runs: Option<u32>,
    /// More runs until the interval of a cell is no wider, in percent to each side.
    pub within: Option<f64>,
    /// Most runs of a cell with `within`.
    pub runs_max: Option<u32>,
    /// Passes over all of the target before anything is measured.
    pub precondition: Option<u32>,
    /// Rounds that do not count, before those that do.
    pub warm_up: Option<u32>,
    /// Such rounds until the state is steady.
    pub steady: Option<bool>,
    /// Bytes of all writers together.
    pub size: Option<Bytes>,
    /// Writers at the same time.
    pub writers: Option<usize>,
    /// Past the page cache or through it.
    pub io: Option<Io>,
    /// How operations reach the kernel.
    pub engine: Option<EngineWord>,
    /// Operations in flight of each writer.
    pub depth: Option<usize>,
    /// Where the flush is.
    pub flush: Option<Flush>,
    /// Whose cached pages are dropped between tests.
    pub drop_caches: Option<DropCaches>,
    /// Whether everything is read back and compared.
    pub verify: Option<bool>,
    /// What order and data are drawn from.
    pub seed: Option<u64>,
    /// Bytes of data in memory.
    pub pool: Option<Bytes>,
}

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

impl Wanted {
    /// From a campaign file in TOML.
    ///
    /// # Errors
    /// It cannot be read, or has what is not understood; with the line.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let file = File::open(path).map_err(LoadError::at("open", path))?;
        let mut text = String::new();
        file.take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(LoadError::at("read", path))?;
        Self::parse(&text).map_err(|problem| bad(format!("{}: {problem}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start).min(text.len());
            let line = 1 + text.as_bytes()[..at]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count();
            format!("line {line}: {}", error.message())
        })
    }

    /// What `self` leaves open is taken from `other`.
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

    /// The plan.
    ///
    /// # Errors
    /// The first thing that makes no sense, with what was expected.
    pub fn plan(self) -> Result<Plan, LoadError> {
        let target = self
            .target
            .ok_or_else(|| bad("expected a TARGET to measure: a folder, a file or a device"))?;
        let words = self.tests.unwrap_or_else(|| vec!["throughput".to_owned()]);
        let streaming = words.iter().any(|word| word.trim() == "streaming");
        let tests = tests(&words)?;
        let levels = match self.levels {
            Some(levels) => levels,
            None if streaming => named(["zeros", "random"])?,
            None => named(["2", "50", "98"])?,
        };
        let records = match self.records {
            Some(records) => records.into_iter().map(|bytes| bytes.0).collect(),
            None => vec![1 << 20],
        };
        let depth = self.depth.unwrap_or(1);
        let engine = self.engine.unwrap_or(if depth > 1 {
            EngineWord::IoUring
        } else {
            EngineWord::Sync
        });
        let runs = self.runs.unwrap_or(RUNS);
        let runs_max = match (self.within, self.runs_max) {
            (None, None) => runs,
            (None, Some(_)) => {
                return Err(bad(
                    "a largest number of runs is for --within: expected both, or neither",
                ));
            }
            (Some(_), most) => most.unwrap_or_else(|| RUNS_MAX_DEFAULT.max(runs)),
        };
        let plan = Plan {
            target,
            tests,
            records_bytes: once(records),
            levels: distinct(levels),
            family: self.family.unwrap_or_default(),
            dedup_pct: self.dedup.unwrap_or(0.0),
            runs,
            within_pct: self.within,
            runs_max,
            precondition: self.precondition.unwrap_or(0),
            warm_up: self.warm_up.unwrap_or(0),
            steady: self.steady.unwrap_or(false),
            size_bytes: self.size.map(|bytes| bytes.0),
            writers: self.writers.unwrap_or(1),
            io: self.io.unwrap_or_default(),
            engine,
            depth,
            flush: self.flush.unwrap_or_default(),
            drop_caches: self.drop_caches.unwrap_or_default(),
            verify: self.verify.unwrap_or(false),
            seed: self.seed.unwrap_or(1),
            pool_bytes: self.pool.map_or(POOL_BYTES, |bytes| bytes.0),
        };
        plan.check()?;
        Ok(plan)
    }
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
        if self.engine == EngineWord::Sync && self.depth > 1 {
            return Err(bad(format!(
                "a depth of {} with the engine sync: expected the engine io_uring, or depth 1",
                self.depth
            )));
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

fn bad(text: impl Into<String>) -> LoadError {
    LoadError::Plan(text.into())
}

fn tests(words: &[String]) -> Result<Vec<Test>, LoadError> {
    let mut tests = Vec::new();
    for word in words {
        tests.extend(parse_tests(word).map_err(LoadError::Plan)?);
    }
    Ok(once(tests))
}

fn named<const N: usize>(words: [&str; N]) -> Result<Vec<Level>, LoadError> {
    words.iter().map(|word| word.parse().map_err(bad)).collect()
}

fn once<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}

/// Each once, in the order given.
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
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        Wanted {
            target: Some("/tmp".into()),
            ..Wanted::default()
        }
    }

    #[test]
    fn defaults_are_those_of_the_manual() {
        let plan = wanted().plan().unwrap();
        assert_eq!((plan.tests.len(), plan.runs, plan.cells()), (13, 10, 39));
        assert_eq!(
            (plan.flush, plan.io, plan.engine),
            (Flush::Timed, Io::Auto, EngineWord::Sync)
        );
        let deep = Wanted {
            depth: Some(32),
            ..wanted()
        };
        assert_eq!(deep.plan().unwrap().engine(), Engine::IoUring { depth: 32 });
        let streaming = Wanted {
            tests: Some(vec!["streaming".to_owned()]),
            ..wanted()
        };
        let plan = streaming.plan().unwrap();
        assert_eq!(plan.tests, [Test::Write, Test::Read]);
        assert_eq!(
            plan.levels.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["zeros", "random"]
        );
    }

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
    fn nonsense_is_told() {
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
    fn a_file_says_the_same_as_options_do_and_options_win() {
        let text = "target = \"/mnt\"\nname = \"old kernel\"\ntests = [\"iops\", \"write\"]\n\
                    records = [\"64KiB\", 4096]\nlevels = [2, 97.5, \"random\"]\nfamily = \"iozone\"\n\
                    runs = 5\nwithin = 2\nruns-max = 40\nwarm-up = 2\nsteady = true\nprecondition = 1\n\
                    size = \"8G\"\nwriters = 4\nio = \"direct\"\nengine = \"io_uring\"\ndepth = 32\n\
                    flush = \"after\"\ndrop-caches = \"no\"\nverify = true\nseed = 7\npool = \"1GiB\"\ndedup = 10\n";
        let file = Wanted::parse(text).unwrap();
        let plan = file.clone().plan().unwrap();
        assert_eq!(
            (plan.cells(), plan.runs_max, plan.size_bytes),
            (18, 40, Some(8 << 30))
        );
        assert_eq!(plan.records_bytes, [4096, 65_536]);
        let option = Wanted {
            runs: Some(3),
            ..Wanted::default()
        };
        let both = option.or(file).plan().unwrap();
        assert_eq!((both.runs, both.writers, both.dedup_pct), (3, 4, 10.0));
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

    #[test]
    fn a_plan_is_kept_whole() {
        let plan = wanted().plan().unwrap();
        let value = serde_json::to_value(&plan).unwrap();
        assert_eq!(serde_json::from_value::<Plan>(value).unwrap(), plan);
    }
}
