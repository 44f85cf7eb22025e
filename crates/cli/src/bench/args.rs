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
    /// Command
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// The commands of `flaz bench`.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Measure throughput and IOPS of a directory, file or device, with data of known compressibility
    Run(Box<RunArgs>),
    /// Compare results B with baseline A, cell by cell: faster, slower, equivalent or inconclusive
    Compare(CompareArgs),
    /// Show results as tables and charts, in the terminal and as an HTML page
    Report(ReportArgs),
    /// Find out whether a device compresses, deduplicates or elides zeros
    Detect(DetectArgs),
    /// Compare vendor claims with measured rates
    Claim(ClaimArgs),
    /// Generate data of known compressibility, and report how well codecs compress it
    Data(BenchDataArgs),
}

/// `flaz bench compare`.
#[derive(Args, Debug)]
#[command(after_help = "\
A and B are campaigns (JSON with every sample), fio JSON, IOzone text, directories with the files of several \
runs in one of these formats, or published tables (CSV) with the columns
  record_kib,compressibility_pct,test,mean_kib_per_s,stddev_kib_per_s
B may also contain differences from A in percent of the means of A:
  record_kib,compressibility_pct,test,diff_pct,stddev_pct

Verdicts: faster and slower mean that the difference is significant (Welch's test on logarithms, 5 % after \
Benjamini-Hochberg correction over all cells) and larger than the margin; equivalent means that it is shown \
to be within the margin (two one-sided tests); otherwise the cell is inconclusive. docs/bench.md has the \
formulas. The exit status says only whether the comparison could be made.

Examples:
  flaz bench compare before.json after.json
  flaz bench compare before.json after.json --aa before-again.json
  flaz bench compare means.csv differences.csv --runs 10 --rule stddev")]
pub struct CompareArgs {
    /// Baseline: a campaign, fio or IOzone output, or a table of means
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// Results to compare with A: the same formats, or a table of differences
    #[arg(value_name = "B")]
    pub b: PathBuf,
    /// Decision rule. stddev, used in older articles, calls a difference meaningful if it exceeds B's standard
    /// deviation; its false positive rate depends on the number of runs (34 % with 3)
    #[arg(long, value_name = "RULE", value_enum, default_value_t = RuleArg::Welch)]
    pub rule: RuleArg,
    /// Number of runs behind the means in a published table
    #[arg(long, value_name = "N", value_parser = whole(2..=SUMMARY_RUNS_MAX))]
    pub runs: Option<u32>,
    /// Margin: a difference up to this many percent is ignored
    #[arg(long, value_name = "PCT", default_value = "1", value_parser = percent, conflicts_with = "aa")]
    pub delta: f64,
    /// Measure the margin of each cell (at least 1 %) with an A/A campaign, a repeat of A. If given twice, the two are
    /// compared with each other
    #[arg(long, value_name = "A/A-CAMPAIGN")]
    pub aa: Vec<PathBuf>,
    /// Seed for the bootstrap intervals
    #[arg(long, value_name = "N", default_value_t = SEED, value_parser = whole(0..=u64::MAX))]
    pub seed: u64,
    /// Print JSON: counts, and each cell with all tests
    #[arg(long)]
    pub json: bool,
}

/// Decision rule of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RuleArg {
    /// Welch's test with correction for the number of cells, and an equivalence test
    Welch,
    /// The difference of the means exceeds B's standard deviation
    Stddev,
}

/// `flaz bench report`.
#[derive(Args, Debug)]
#[command(after_help = "\
Accepted input: campaigns (JSON with every sample), fio JSON (--output-format=json), IOzone text (table or \
Excel-style lists), published tables (CSV; add --runs), and directories with the files of several runs in \
one of the first three formats. docs/bench.md explains how cells are named.

The page is a single file without external resources: means and standard deviations by record size and \
level, differences from the baseline with intervals and verdicts, every run of every cell, requested and \
achieved compressibility, tables with all values, and the environment.

Examples:
  flaz bench report campaign.json --output page.html
  flaz bench report after.json --baseline before.json --output page.html
  flaz bench report fio-runs/ --svg-dir charts --csv-dir charts
  flaz bench report means.csv --runs 10 --json")]
pub struct ReportArgs {
    /// Results: files or directories, at most 8 including the baseline
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Compare each of the results with this baseline
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Write the HTML page to FILE; - is standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write each chart as SVG to this directory, which is created if necessary
    #[arg(long, value_name = "DIRECTORY")]
    pub svg_dir: Option<PathBuf>,
    /// Write the values of each chart as CSV to this directory, and those of all cells as cells.csv
    #[arg(long, value_name = "DIRECTORY")]
    pub csv_dir: Option<PathBuf>,
    /// Number of runs behind the means in a published table
    #[arg(long, value_name = "N", value_parser = whole(2..=SUMMARY_RUNS_MAX))]
    pub runs: Option<u32>,
    /// Margin: a difference from the baseline of up to this many percent is ignored
    #[arg(long, value_name = "PCT", default_value = "1", value_parser = percent, conflicts_with = "aa")]
    pub delta: f64,
    /// Measure the margin of each cell (at least 1 %) with an A/A campaign, a repeat of the baseline
    #[arg(long, value_name = "A/A-CAMPAIGN", requires = "baseline")]
    pub aa: Vec<PathBuf>,
    /// Seed for the bootstrap intervals
    #[arg(long, value_name = "N", default_value_t = SEED, value_parser = whole(0..=u64::MAX))]
    pub seed: u64,
    /// Print JSON instead of the summary
    #[arg(long)]
    pub json: bool,
}

/// `flaz bench claim`.
#[derive(Args, Debug)]
#[command(after_help = "\
The BS ratio is the claimed rate divided by the measured rate, with its 95 % interval, for each \
compressibility level; 1 means that the claim is met. The line below each table says for which \
compressibility the claim would hold: time per byte is interpolated between levels, and results outside the \
measured range are marked. Levels are the measured savings of lz4 if the campaign has them, otherwise the \
requested levels.

Rates: 275MB/s (powers of 1000), 262MiB/s (powers of 1024), 95000IOPS, 95k IOPS.

A claims file (TOML) has for each claim
  [[claim]]
  test = \"write\"
  rate = \"275MB/s\"
  record = \"1MiB\"              # default: every record size
  source = \"data sheet\"        # optional

Examples:
  flaz bench claim campaign.json --claim write=275MB/s
  flaz bench claim campaign.json --claim random_read@4KiB=95000IOPS
  flaz bench claim means.csv --runs 10 --claims datasheet.toml")]
pub struct ClaimArgs {
    /// Measured results: a campaign, fio or IOzone output, or a table of means
    #[arg(value_name = "RESULTS")]
    pub results: PathBuf,
    /// The claims.
    #[command(flatten)]
    pub claims: ClaimsArgs,
    /// Number of runs behind the means in a published table
    #[arg(long, value_name = "N", value_parser = whole(2..=SUMMARY_RUNS_MAX))]
    pub runs: Option<u32>,
    /// Seed for the bootstrap intervals
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
    /// Claim: TEST=RATE, or TEST@RECORD=RATE for one record size. May be repeated
    #[arg(long, value_name = "CLAIM")]
    pub claim: Vec<String>,
    /// File with claims
    #[arg(long, value_name = "FILE")]
    pub claims: Option<PathBuf>,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    number
        .parse()
        .ok()
        .filter(|percent| (0.0..100.0).contains(percent))
        .ok_or_else(|| "expected a percentage from 0 to below 100, for example 2 or 0.5".to_owned())
}
