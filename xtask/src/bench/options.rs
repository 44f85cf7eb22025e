//! Options of the benchmark.

use std::path::PathBuf;

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
    #[arg(long, value_name = "PART", value_parser = ["engine", "study", "load", "warm", "nbd", "auto", "modes", "write-back", "ublk"])]
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
