//! Options of `flaz bench run`, with their help.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
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
TARGET is a folder (files are made in a new folder in it and removed at the end; it is made if it is missing), a file, or \
a block device. Files and devices are overwritten: their path must be typed again, or given with --yes-destroy. One \
that is mounted, held, or carries a file system or a partition table is refused.

Tests: write, rewrite, read, reread, random_read, random_write, backwards_read, record_rewrite, strided_read, fwrite, \
frewrite, fread, freread (or throughput for these 13); write_iops, read_iops, random_read_iops, random_write_iops (or \
iops), in operations of 4 KiB; streaming for write and read of zeros and of random data; all. docs/bench.md says what each \
does. Each run goes through all cells in a new random order.

The results are a file that `flaz bench compare` and `flaz bench claim` read. It is written after every test, so a \
campaign that was interrupted goes on with --resume.

A campaign file (TOML) has the long options as its keys:
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
  flaz bench run /mnt/ssd --family replay --distribution mine.json   after flaz study ~ --distribution mine.json
  flaz bench run --campaign nightly.toml --output tonight.json
  flaz bench run --resume tonight.json")]
pub struct RunArgs {
    /// What to measure: a folder, a file or a block device
    #[arg(value_name = "TARGET")]
    pub target: Option<PathBuf>,
    /// A file that says what to measure (TOML); options overrule it
    #[arg(long, value_name = "FILE")]
    pub campaign: Option<PathBuf>,
    /// Go on with a campaign that was interrupted
    #[arg(long, value_name = "RESULTS", conflicts_with = "output")]
    pub resume: Option<PathBuf>,
    /// Where the results go [default: flaz-DATE-TIME.json here]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// TARGET once more: all that is on it may be lost
    #[arg(long, value_name = "TARGET")]
    pub yes_destroy: Option<PathBuf>,
    /// Print the campaign as JSON, too
    #[arg(long)]
    pub json: bool,
    /// What to measure.
    #[command(flatten)]
    pub wanted: WantedArgs,
}

/// What to measure, and how.
#[derive(Args, Debug)]
pub struct WantedArgs {
    /// What to call the campaign in reports
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Tests, by commas [default: throughput]
    #[arg(long, value_name = "TESTS", value_delimiter = ',')]
    tests: Option<Vec<String>>,
    /// Record sizes, by commas: powers of two from 512 to 64MiB [default: 1MiB]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size::parse)]
    records: Option<Vec<u64>>,
    /// Compressibility of the data, by commas: percent that compression saves, zeros, random, random-level, or replay
    /// [default: 2,50,98]
    #[arg(long, value_name = "LEVELS", value_delimiter = ',', value_parser = level)]
    levels: Option<Vec<Level>>,
    /// How data of a percentage is made; iozone for comparison with old campaigns, whose true ratio is in the results;
    /// replay for the level replay alone, with --distribution
    #[arg(long, value_name = "FAMILY", value_enum)]
    family: Option<FamilyArg>,
    /// What the level replay draws from: a file that `flaz study` wrote
    #[arg(long, value_name = "FILE")]
    distribution: Option<PathBuf>,
    /// Unit of duplicates, of drawn levels and of what is replayed: a power of two from 512 to 16MiB [default: 4KiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    chunk: Option<u64>,
    /// Percentage of duplicate chunks in the data; results say how much of what is written repeats
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    dedup: Option<f64>,
    /// Runs of each cell [default: 10]
    #[arg(long, value_name = "N", value_parser = whole(1..=RUNS_MAX as u32))]
    runs: Option<u32>,
    /// More runs of cells whose 95 % interval is wider than this to each side
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    within: Option<f64>,
    /// Most runs of a cell with --within [default: 50]
    #[arg(long, value_name = "N", value_parser = whole(1..=RUNS_MAX as u32))]
    runs_max: Option<u32>,
    /// Write all of the target so many times first
    #[arg(long, value_name = "N", value_parser = whole(0..=PRECONDITION_MAX))]
    precondition: Option<u32>,
    /// Rounds that do not count, before those that do
    #[arg(long, value_name = "N", value_parser = whole(0..=WARM_UP_MAX))]
    warm_up: Option<u32>,
    /// Such rounds until every cell is in a steady state (SNIA), 25 at most
    #[arg(long)]
    steady: bool,
    /// Bytes of all writers together [default: twice the memory, as far as there is room]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Writers (and readers) at the same time, each with a file of its own [default: 1]
    #[arg(long, value_name = "N", value_parser = whole(1..=WRITERS_MAX))]
    writers: Option<usize>,
    /// Past the page cache, or through it; auto is direct where that works
    #[arg(long, value_name = "HOW", value_enum)]
    io: Option<IoArg>,
    /// How operations reach the kernel [default: sync, and io_uring with a depth]
    #[arg(long, value_name = "ENGINE", value_enum)]
    engine: Option<EngineArg>,
    /// Operations in flight of each writer [default: 1]
    #[arg(long, value_name = "N", value_parser = whole(1..=DEPTH_MAX))]
    depth: Option<usize>,
    /// Whether the flush after writes is in the time; after is IOzone's way
    #[arg(long, value_name = "WHEN", value_enum)]
    flush: Option<FlushArg>,
    /// Whose cached pages are dropped before each test: auto is the system's for root where pages are used, else the
    /// target's
    #[arg(long, value_name = "WHOSE", value_enum)]
    drop_caches: Option<DropArg>,
    /// Read everything back after each group of tests, outside of the time, and compare
    #[arg(long)]
    verify: bool,
    /// What order and data are drawn from [default: 1]
    #[arg(long, value_name = "N", value_parser = whole(0..=u64::MAX))]
    seed: Option<u64>,
    /// Data in memory before the clock starts; more than the device can look back [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pool: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FamilyArg {
    Run,
    Copies,
    Alphabet,
    Iozone,
    Replay,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IoArg {
    Auto,
    Direct,
    Buffered,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EngineArg {
    Sync,
    #[value(name = "io_uring")]
    IoUring,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FlushArg {
    Timed,
    After,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DropArg {
    Auto,
    Target,
    System,
    No,
}

impl RunArgs {
    /// What the options ask for.
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
            levels: args.levels.clone(),
            family: args.family.map(|family| match family {
                FamilyArg::Run => FamilyWord::Run,
                FamilyArg::Copies => FamilyWord::Copies,
                FamilyArg::Alphabet => FamilyWord::Alphabet,
                FamilyArg::Iozone => FamilyWord::Iozone,
                FamilyArg::Replay => FamilyWord::Replay,
            }),
            distribution: args.distribution.clone(),
            chunk: args.chunk.map(Bytes),
            dedup: args.dedup,
            runs: args.runs,
            within: args.within,
            runs_max: args.runs_max,
            precondition: args.precondition,
            warm_up: args.warm_up,
            steady: args.steady.then_some(true),
            size: args.size.map(Bytes),
            writers: args.writers,
            io: args.io.map(|io| match io {
                IoArg::Auto => Io::Auto,
                IoArg::Direct => Io::Direct,
                IoArg::Buffered => Io::Buffered,
            }),
            engine: args.engine.map(|engine| match engine {
                EngineArg::Sync => EngineWord::Sync,
                EngineArg::IoUring => EngineWord::IoUring,
            }),
            depth: args.depth,
            flush: args.flush.map(|flush| match flush {
                FlushArg::Timed => Flush::Timed,
                FlushArg::After => Flush::After,
            }),
            drop_caches: args.drop_caches.map(|whose| match whose {
                DropArg::Auto => DropCaches::Auto,
                DropArg::Target => DropCaches::Target,
                DropArg::System => DropCaches::System,
                DropArg::No => DropCaches::No,
            }),
            verify: args.verify.then_some(true),
            seed: args.seed,
            pool: args.pool.map(Bytes),
        }
    }
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
        .ok_or_else(|| "expected a percentage from 0 to 100, as in 2% or 0.5".to_owned())
}
