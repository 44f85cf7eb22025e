//! Options of the benchmark.

use std::path::PathBuf;

/// What can be run alone.
const PARTS: [&str; 11] = [
    "engine",
    "study",
    "load",
    "warm",
    "nbd",
    "auto",
    "auto-busy",
    "auto-random",
    "modes",
    "write-back",
    "ublk",
];

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Counted runs of each command
    #[arg(long, default_value_t = 5)]
    pub(super) runs: usize,
    /// Shorter and fewer runs, for a first look
    #[arg(long)]
    pub(super) quick: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
    /// Only this part
    #[arg(long, value_name = "PART", value_parser = PARTS)]
    pub(super) only: Option<String>,
    /// Directory for the files of the benchmark, on the SSD to measure
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    /// Megabytes of real files to serve
    #[arg(long, default_value_t = 256)]
    pub(super) data_mib: u64,
}

/// Why the benchmark could not be run.
pub type BenchError = Box<dyn std::error::Error>;
