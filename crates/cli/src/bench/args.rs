//! Options of `flaz bench`, with their help.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use flaz_bench::cell::SUMMARY_RUNS_MAX;
use flaz_bench::comparison::SEED;

use crate::bench::detect::DetectArgs;
use crate::bench::run::args::RunArgs;
use crate::commands::bench_data::BenchDataArgs;
use crate::number::whole;

/// `flaz bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flaz bench run /mnt/ssd --size 4GiB --runs 3
  flaz bench compare before.json after.json
  flaz bench claim campaign.json --claim write=275MB/s
  flaz bench report after.json --baseline before.json --output page.html
  flaz bench detect /mnt/ssd
  flaz bench data --level 75% --size 10G --output /mnt/file")]
pub struct BenchArgs {
    /// What to do
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// What `flaz bench` does.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Measure a folder, a file or a device: throughput and operations a second, on data of known compressibility
    Run(Box<RunArgs>),
    /// Say, cell by cell, whether B is faster than A, slower, equivalent, or whether the runs do not tell
    Compare(CompareArgs),
    /// Show results as tables and charts: on the terminal, and as one page
    Report(ReportArgs),
    /// Find out whether a device compresses, deduplicates, or leaves out zeros
    Detect(DetectArgs),
    /// Hold what a maker claims against what was measured
    Claim(ClaimArgs),
    /// Make data of a known compressibility, and say what codecs really make of it
    Data(BenchDataArgs),
}

/// `flaz bench compare`.
#[derive(Args, Debug)]
#[command(after_help = "\
A and B are campaigns (JSON with every sample), JSON of fio, text of IOzone, folders with the files of several runs \
of one of these, or published tables (CSV) with the columns
  record_kib,compressibility_pct,test,mean_kib_per_s,stddev_kib_per_s
B may also have differences from A in percent of its means:
  record_kib,compressibility_pct,test,diff_pct,stddev_pct

Verdicts: faster and slower are proven (Welch's test on logarithms, below 5 % after Benjamini-Hochberg over \
all cells) and larger than the margin; equivalent is proven to be within it (two one-sided tests); the rest is \
inconclusive. docs/bench.md has the formulas. The exit status says only whether a comparison could be made.

Examples:
  flaz bench compare before.json after.json
  flaz bench compare before.json after.json --aa before-again.json
  flaz bench compare means.csv differences.csv --runs 10 --rule stddev")]
pub struct CompareArgs {
    /// The baseline: a campaign, output of fio or IOzone, or a table of means
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// What is compared with it: the same, or a table of differences
    #[arg(value_name = "B")]
    pub b: PathBuf,
    /// What decides. stddev is the rule of old articles, meaningful is what exceeds B's standard deviation: its
    /// error depends on the number of runs, 34 % at 3
    #[arg(long, value_name = "RULE", value_enum, default_value_t = RuleArg::Welch)]
    pub rule: RuleArg,
    /// Runs that the means of a table are of
    #[arg(long, value_name = "N", value_parser = whole(2..=SUMMARY_RUNS_MAX))]
    pub runs: Option<u32>,
    /// The margin: a difference of so many percent does not matter
    #[arg(long, value_name = "PCT", default_value = "1", value_parser = percent, conflicts_with = "aa")]
    pub delta: f64,
    /// Measure the margin of each cell, at least 1 %, by an A/A campaign: A measured again. Given twice, the two are
    /// compared with each other
    #[arg(long, value_name = "A/A-CAMPAIGN")]
    pub aa: Vec<PathBuf>,
    /// Seed of the resampling that gives the intervals
    #[arg(long, value_name = "N", default_value_t = SEED, value_parser = whole(0..=u64::MAX))]
    pub seed: u64,
    /// Print JSON: counts, and each cell with all its tests
    #[arg(long)]
    pub json: bool,
}

/// What decides in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RuleArg {
    /// Welch's test, corrected for the number of cells, and a test of equivalence
    Welch,
    /// The difference of the means exceeds B's standard deviation
    Stddev,
}

/// `flaz bench report`.
#[derive(Args, Debug)]
#[command(after_help = "\
What can be shown: campaigns (JSON with every sample), JSON of fio (--output-format=json), text of IOzone (its table \
or its Excel-style lists), published tables (CSV; add --runs), and folders with the files of several runs of one of the \
first three. docs/bench.md says how cells are named.

The page is one file that needs no network: bars with standard deviations by record size and level, differences \
from the baseline with intervals and verdicts, every run of every cell, requested against achieved compressibility, \
all of it as tables, and where it was measured.

Examples:
  flaz bench report campaign.json --output page.html
  flaz bench report after.json --baseline before.json --output page.html
  flaz bench report fio-runs/ --svg-dir charts --csv-dir charts
  flaz bench report means.csv --runs 10 --json")]
pub struct ReportArgs {
    /// What was measured: files or folders, at most 8 with the baseline
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Compare each of them with this
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Write the page here; - is standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write each chart here as SVG; the folder is made if it is not there
    #[arg(long, value_name = "FOLDER")]
    pub svg_dir: Option<PathBuf>,
    /// Write the numbers of each chart here as CSV, and those of all cells as cells.csv
    #[arg(long, value_name = "FOLDER")]
    pub csv_dir: Option<PathBuf>,
    /// Runs that the means of a table are of
    #[arg(long, value_name = "N", value_parser = whole(2..=SUMMARY_RUNS_MAX))]
    pub runs: Option<u32>,
    /// The margin: a difference of so many percent from the baseline does not matter
    #[arg(long, value_name = "PCT", default_value = "1", value_parser = percent, conflicts_with = "aa")]
    pub delta: f64,
    /// Measure the margin of each cell, at least 1 %, by an A/A campaign: the baseline measured again
    #[arg(long, value_name = "A/A-CAMPAIGN", requires = "baseline")]
    pub aa: Vec<PathBuf>,
    /// Seed of the resampling that gives the intervals
    #[arg(long, value_name = "N", default_value_t = SEED, value_parser = whole(0..=u64::MAX))]
    pub seed: u64,
    /// Print JSON instead of the summary
    #[arg(long)]
    pub json: bool,
}

/// `flaz bench claim`.
#[derive(Args, Debug)]
#[command(after_help = "\
The BS ratio is the claimed rate divided by the measured one, with its 95 % interval, for each level of \
compressibility; 1 is honest. Below each table stands for which data the claim would be true: interpolated between \
levels, in the time that a byte takes, and said when that lies outside of what was measured. Levels are what lz4 saved of the \
data where the campaign says so, else those asked for.

Rates: 275MB/s (powers of 1000), 262MiB/s (powers of 1024), 95000IOPS, 95k IOPS.

A file of claims (TOML) has for each claim
  [[claim]]
  test = \"write\"
  rate = \"275MB/s\"
  record = \"1MiB\"              # if left out, every record size
  source = \"data sheet\"        # optional

Examples:
  flaz bench claim campaign.json --claim write=275MB/s --claim random_read@4KiB=95000IOPS
  flaz bench claim means.csv --runs 10 --claims datasheet.toml")]
pub struct ClaimArgs {
    /// What was measured: a campaign, output of fio or IOzone, or a table of means
    #[arg(value_name = "RESULTS")]
    pub results: PathBuf,
    /// The claims.
    #[command(flatten)]
    pub claims: ClaimsArgs,
    /// Runs that the means of a table are of
    #[arg(long, value_name = "N", value_parser = whole(2..=SUMMARY_RUNS_MAX))]
    pub runs: Option<u32>,
    /// Seed of the resampling that gives the intervals
    #[arg(long, value_name = "N", default_value_t = SEED, value_parser = whole(0..=u64::MAX))]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The claims of `flaz bench claim`: at least one.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct ClaimsArgs {
    /// A claim: TEST=RATE, or TEST@RECORD=RATE for one record size; may be given several times
    #[arg(long, value_name = "CLAIM")]
    pub claim: Vec<String>,
    /// A file of claims
    #[arg(long, value_name = "FILE")]
    pub claims: Option<PathBuf>,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    number
        .parse()
        .ok()
        .filter(|percent| (0.0..100.0).contains(percent))
        .ok_or_else(|| "expected a percentage from 0 to below 100, as in 2 or 0.5".to_owned())
}
