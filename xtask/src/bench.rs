//! `make bench`: the budgets, each measured beside its peer in the same run and reported as a ratio with the spread.
//!
//! Runs are interleaved (A B C A B C ..), so that a machine that speeds up or slows down does so for all. Nothing
//! here is a test: figures depend on the machine, and a row that could not be measured says why.

mod engine;
mod load;
mod nbd;
mod server;
mod study;
mod warm;

use std::fmt;
use std::path::PathBuf;

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Counted runs of each command
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Shorter and fewer runs, for a first look
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Only this part
    #[arg(long, value_name = "PART", value_parser = ["engine", "study", "load", "warm", "nbd"])]
    only: Option<String>,
    /// Folder for the files of the benchmark: on the SSD that is to be measured
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Megabytes of real files to serve
    #[arg(long, default_value_t = 256)]
    data_mib: u64,
}

/// Why the benchmark could not be made.
pub type BenchError = Box<dyn std::error::Error>;

/// One line of the table.
#[derive(Debug)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Beside what.
    pub peer: String,
    /// What must be reached, and what is wanted.
    pub budget: &'static str,
    /// What was reached, or why it was not measured.
    pub reached: Result<Spread, String>,
    /// Unit of the figures; ratios have none.
    pub unit: &'static str,
}

/// Median and extremes of paired ratios or of figures.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// How many.
    pub runs: usize,
}

impl Spread {
    /// Of at least one figure.
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        Some(Self {
            median,
            min,
            max,
            runs: sorted.len(),
        })
    }

    /// Of the ratios of pairs of one round.
    pub fn of_ratios(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
        Self::of(&ratios)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<52} {:<26} {:<20} ", self.what, self.peer, self.budget)?;
        match &self.reached {
            Ok(spread) => write!(
                f,
                "{:.2}{unit} ({:.2} to {:.2}, {} runs)",
                spread.median,
                spread.min,
                spread.max,
                spread.runs,
                unit = self.unit
            ),
            Err(reason) => write!(f, "not measured: {reason}"),
        }
    }
}

impl Row {
    fn json(&self) -> serde_json::Value {
        let mut value = serde_json::json!({
            "what": self.what, "peer": self.peer, "budget": self.budget, "unit": self.unit.trim(),
        });
        match &self.reached {
            Ok(spread) => {
                value["median"] = spread.median.into();
                value["min"] = spread.min.into();
                value["max"] = spread.max.into();
                value["runs"] = spread.runs.into();
            }
            Err(reason) => value["not_measured"] = reason.as_str().into(),
        }
        value
    }
}

/// Measures everything and prints the table.
///
/// # Errors
/// The files or the program to be measured cannot be made. A peer that is missing only costs its rows.
pub fn run(options: &Options) -> Result<(), BenchError> {
    let runs = if options.quick { 2 } else { options.runs };
    let bar = if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        indicatif::ProgressBar::new_spinner()
    } else {
        indicatif::ProgressBar::hidden()
    };
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    let wanted = |part: &str| options.only.as_ref().is_none_or(|only| only == part);
    let mut rows = Vec::new();
    if wanted("engine") {
        rows.extend(engine::rows(runs, options.quick, &bar));
    }
    if wanted("study") {
        rows.extend(study::rows(options, runs, &bar)?);
    }
    if wanted("load") {
        rows.extend(load::rows(options, runs, &bar)?);
    }
    if wanted("warm") {
        rows.extend(warm::rows(options, runs, &bar)?);
    }
    if wanted("nbd") {
        rows.extend(nbd::rows(options, runs, &bar)?);
    }
    bar.finish_and_clear();
    if options.json {
        let rows: Vec<_> = rows.iter().map(Row::json).collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!(
        "{:<52} {:<26} {:<20} reached: median (min to max)",
        "what", "beside", "must / want"
    );
    for row in &rows {
        println!("{row}");
    }
    println!("not built yet: ublk");
    Ok(())
}

/// Real files of this machine, one after another, in 4 KiB blocks; at most `bytes`.
pub fn real_data(bytes: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(bytes);
    let mut folders: Vec<PathBuf> = ["/usr/lib", "/usr/share", "/usr/bin"].map(PathBuf::from).to_vec();
    let mut at = 0;
    while at < folders.len() && data.len() < bytes {
        let Ok(entries) = std::fs::read_dir(&folders[at]) else {
            at += 1;
            continue;
        };
        let mut entries: Vec<_> = entries.flatten().collect();
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                // A single huge file must not be all of it.
                Ok(kind) if kind.is_file() && entry.metadata().is_ok_and(|m| m.len() <= 16 << 20) => {
                    if let Ok(mut file) = std::fs::read(entry.path()) {
                        file.resize(file.len().next_multiple_of(4096), 0);
                        data.extend_from_slice(&file);
                    }
                }
                _ => {}
            }
            if data.len() >= bytes {
                break;
            }
        }
        at += 1;
    }
    data.resize(bytes, 0);
    data
}
