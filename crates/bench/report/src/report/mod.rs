//! `flaz bench report`: results of any kind as tables and charts, on a page and on a terminal.
//!
//! [`Report`] is all that is known, as numbers; the JSON is it. [`charts`] draws it, each chart with its numbers as CSV;
//! `page` makes one HTML file of all that, `terminal` what one sees at once.

mod chart;
mod charts;
mod csv;
mod differences;
mod grid;
mod page;
mod rates;
mod samples;
mod summary;
mod terminal;
mod truth;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

pub use chart::Chart;
pub use charts::{CHARTS_MAX, charts};
pub use csv::cells_csv;
pub use summary::{CellSummary, Report, Source};
pub use terminal::Look;

use crate::comparison::{self, Comparison, Margin, Rule, SEED};
use crate::error::BenchError;
use crate::results::{self, Results};
use crate::statistics::bootstrap;

/// Most results on one page: as many as there are colours that can be told apart.
pub const SOURCES_MAX: usize = 8;

/// How to report.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How many runs the means of a table are of.
    pub runs: Option<u32>,
    /// What difference from the baseline matters.
    pub margin: Margin,
    /// Where the resampling begins.
    pub seed: u64,
    /// How often medians are drawn again for an interval.
    pub resamples: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            runs: None,
            margin: Margin::Percent(comparison::DELTA_FLOOR_PCT),
            seed: SEED,
            resamples: bootstrap::RESAMPLES,
        }
    }
}

/// Reads `files`, and compares each with `baseline` if there is one.
///
/// # Errors
/// A file is not understood or cannot be compared with the baseline, or there are none or too many.
pub fn report(files: &[PathBuf], baseline: Option<&Path>, options: &Options) -> Result<Report, BenchError> {
    let sources = files.len() + usize::from(baseline.is_some());
    if files.is_empty() || sources > SOURCES_MAX {
        return Err(BenchError::Sources(sources));
    }
    let baseline = baseline
        .map(|path| results::open_results(path, options.runs))
        .transpose()?;
    let mut opened: Vec<Results> = Vec::new();
    for file in files {
        opened.push(results::open_to_show(file, options.runs, baseline.as_ref())?);
    }
    let comparisons = match &baseline {
        Some(baseline) => opened
            .iter()
            .map(|results| compare(baseline, results, options))
            .collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    let mut taken = HashSet::new();
    let mut source = |results: &Results| Source::of(results, &mut taken, options);
    Ok(Report {
        schema: summary::SCHEMA,
        baseline: baseline.as_ref().map(&mut source),
        sources: opened.iter().map(source).collect(),
        comparisons,
    })
}

fn compare(baseline: &Results, results: &Results, options: &Options) -> Result<Comparison, BenchError> {
    let options = comparison::Options {
        rule: Rule::Welch,
        runs: options.runs,
        margin: options.margin.clone(),
        seed: options.seed,
        resamples: options.resamples,
    };
    comparison::compare_results(baseline, results, &options)
}
