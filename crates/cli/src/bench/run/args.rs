//! Options of `flaz bench run`, with their help.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use flaz_bench::cell::{Level, RUNS_MAX};
use flaz_load::pass::DEPTH_MAX;
use flaz_load::plan::{Bytes, EngineWord, FamilyWord, Flush, PRECONDITION_MAX, WARM_UP_MAX, Wanted};
use flaz_load::target::{DropCaches, Io};
use flaz_load::writers::WRITERS_MAX;

use crate::number::whole;
use crate::size;

/// `flaz bench run`.
#[derive(Args, Debug)]
#[command(after_help = "\
TARGET is a directory, a file or a block device. In a directory, files are created in a new subdirectory, \
which is removed at the end; a missing directory is created. Files and devices are overwritten: confirm by \
typing the path, or with --yes-destroy. A target that is mounted or in use, or that contains a file system \
or a partition table, is refused.

Tests: write, rewrite, read, reread, random_read, random_write, backwards_read, record_rewrite, \
strided_read, fwrite, frewrite, fread, freread (throughput selects these 13); write_iops, read_iops, \
random_read_iops, random_write_iops (iops selects these), in operations of 4 KiB; streaming selects write \
and read of zeros and of random data; all selects all. docs/bench.md describes the tests. Each run visits \
all cells in a new random order.

Results are written to a file for `flaz bench compare`, `claim` and `report`. It is updated after every \
test, so that --resume can continue an interrupted campaign.

A campaign file (TOML) uses the long options as keys:
  target = \"/mnt/ssd\"
  tests = [\"throughput\", \"iops\"]
  records = [\"64KiB\", \"1MiB\"]
  levels = [2, 50, 98, \"random\"]
  runs = 10
  size = \"16GiB\"

Examples:
  flaz bench run /mnt/ssd --size 4GiB --runs 3
  flaz bench run /mnt/ssd --tests iops --depth 32 --within 2%
  flaz bench run /dev/sdx --precondition 2 --steady --yes-destroy /dev/sdx
  flaz study ~ --distribution d.json
  flaz bench run /mnt/ssd --family replay --distribution d.json
  flaz bench run --campaign nightly.toml --output tonight.json
  flaz bench run --resume tonight.json")]
pub struct RunArgs {
    /// Directory, file or block device to measure
    #[arg(value_name = "TARGET")]
    pub target: Option<PathBuf>,
    /// Campaign file (TOML). Options override it
    #[arg(long, value_name = "FILE")]
    pub campaign: Option<PathBuf>,
    /// Continue an interrupted campaign
    #[arg(long, value_name = "RESULTS", conflicts_with = "output")]
    pub resume: Option<PathBuf>,
    /// Results file [default: flaz-DATE-TIME.json in the current directory]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Confirm TARGET: all data on it may be lost
    #[arg(long, value_name = "TARGET")]
    pub yes_destroy: Option<PathBuf>,
    /// Also print the campaign as JSON
    #[arg(long)]
    pub json: bool,
    /// Campaign options.
    #[command(flatten)]
    pub wanted: WantedArgs,
}

/// The parameters of a campaign.
#[derive(Args, Debug)]
pub struct WantedArgs {
    /// Name of the campaign in reports
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Tests, separated by commas [default: throughput]
    #[arg(long, value_name = "TESTS", value_delimiter = ',')]
    tests: Option<Vec<String>>,
    /// Record sizes, separated by commas: powers of two from 512 to 64MiB [default: 1MiB]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size::parse)]
    records: Option<Vec<u64>>,
    /// The written data.
    #[command(flatten)]
    data: DataArgs,
    /// The number of runs.
    #[command(flatten)]
    rounds: RoundsArgs,
    /// Total size of the files of all writers [default: twice the memory, limited by free space]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Number of concurrent writers (and readers), each with its own file [default: 1]
    #[arg(long, value_name = "N", value_parser = whole(1..=WRITERS_MAX))]
    writers: Option<usize>,
    /// How the target is accessed.
    #[command(flatten)]
    method: MethodArgs,
    /// Seed for the order and the data [default: 1]
    #[arg(long, value_name = "N", value_parser = whole(0..=u64::MAX))]
    seed: Option<u64>,
    /// Amount of data generated in memory before the clock starts. Must exceed the distance over which the device
    /// deduplicates [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pool: Option<u64>,
}

/// The written data.
#[derive(Args, Debug)]
struct DataArgs {
    /// Compressibility levels, separated by commas: percentage saved by compression, zeros, random, random-level or
    /// replay [default: 2,50,98]
    #[arg(long, value_name = "LEVELS", value_delimiter = ',', value_parser = level)]
    levels: Option<Vec<Level>>,
    /// How data for a percentage level is generated. iozone is for comparison with old campaigns (results include the
    /// true ratio); replay uses only the level replay and needs --distribution
    #[arg(long, value_name = "FAMILY", value_parser = word(&FamilyWord::ALL, FamilyWord::name))]
    family: Option<FamilyWord>,
    /// Distribution for the level replay, written by `flaz study`
    #[arg(long, value_name = "FILE")]
    distribution: Option<PathBuf>,
    /// Unit of duplicates, drawn levels and replayed chunks: a power of two from 512 to 16MiB [default: 4KiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    chunk: Option<u64>,
    /// Percentage of duplicate chunks in the data. Results include the share of duplicates written
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    dedup: Option<f64>,
}

/// The number of runs.
#[derive(Args, Debug)]
struct RoundsArgs {
    /// Runs of each cell [default: 10]
    #[arg(long, value_name = "N", value_parser = whole(1..=RUNS_MAX as u32))]
    runs: Option<u32>,
    /// Add runs to cells whose 95 % interval is wider than this on each side
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    within: Option<f64>,
    /// Maximum number of runs of a cell with --within [default: 50]
    #[arg(long, value_name = "N", value_parser = whole(1..=RUNS_MAX as u32))]
    runs_max: Option<u32>,
    /// Write the whole target N times first
    #[arg(long, value_name = "N", value_parser = whole(0..=PRECONDITION_MAX))]
    precondition: Option<u32>,
    /// Warm-up rounds, which are not counted
    #[arg(long, value_name = "N", value_parser = whole(0..=WARM_UP_MAX))]
    warm_up: Option<u32>,
    /// Add warm-up rounds until every cell is in steady state (SNIA), at most 25
    #[arg(long)]
    steady: bool,
}

/// How the target is accessed.
#[derive(Args, Debug)]
struct MethodArgs {
    /// Bypass or use the page cache. auto uses direct I/O if supported
    #[arg(long, value_name = "HOW", value_parser = word(&Io::ALL, Io::name))]
    io: Option<Io>,
    /// I/O engine [default: sync, or io_uring with --depth]
    #[arg(long, value_name = "ENGINE", value_parser = word(&EngineWord::ALL, EngineWord::name))]
    engine: Option<EngineWord>,
    /// Operations in flight per writer [default: 1]
    #[arg(long, value_name = "N", value_parser = whole(1..=DEPTH_MAX))]
    depth: Option<usize>,
    /// Whether the time includes the final flush; after excludes it, as IOzone does
    #[arg(long, value_name = "WHEN", value_parser = word(&Flush::ALL, Flush::name))]
    flush: Option<Flush>,
    /// Which cached pages to drop before each test. auto: those of the whole system if run by root and the page cache
    /// is used, otherwise those of the target
    #[arg(long, value_name = "WHOSE", value_parser = word(&DropCaches::ALL, DropCaches::name))]
    drop_caches: Option<DropCaches>,
    /// Read all data back after each group of tests (not timed) and compare it
    #[arg(long)]
    verify: bool,
}

impl RunArgs {
    /// The campaign described by the options.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        let args = &self.wanted;
        Wanted {
            target: self.target.clone(),
            name: args.name.clone(),
            tests: args.tests.clone(),
            records: args
                .records
                .as_ref()
                .map(|sizes| sizes.iter().copied().map(Bytes).collect()),
            levels: args.data.levels.clone(),
            family: args.data.family,
            distribution: args.data.distribution.clone(),
            chunk: args.data.chunk.map(Bytes),
            dedup: args.data.dedup,
            runs: args.rounds.runs,
            within: args.rounds.within,
            runs_max: args.rounds.runs_max,
            precondition: args.rounds.precondition,
            warm_up: args.rounds.warm_up,
            steady: args.rounds.steady.then_some(true),
            size: args.size.map(Bytes),
            writers: args.writers,
            io: args.method.io,
            engine: args.method.engine,
            depth: args.method.depth,
            flush: args.method.flush,
            drop_caches: args.method.drop_caches,
            verify: args.method.verify.then_some(true),
            seed: args.seed,
            pool: args.pool.map(Bytes),
        }
    }
}

/// Parses the name of a value; `--help` lists the names.
fn word<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(|value| name(*value))).try_map(move |found| {
        let value = all.iter().find(|value| name(**value) == found);
        value.copied().ok_or("not one of the possible values")
    })
}

fn level(text: &str) -> Result<Level, String> {
    let number = text.trim().strip_suffix('%').unwrap_or(text).trim();
    number
        .parse()
        .map_err(|expected: &str| format!("expected {expected}"))
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').unwrap_or(text).trim();
    number
        .parse()
        .ok()
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "expected a percentage from 0 to 100, for example 2% or 0.5".to_owned())
}
