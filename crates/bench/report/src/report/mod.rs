//! `flaz bench report`: results of any kind as tables and charts, as a page and on a terminal.
//!
//! [`Report`] contains all values, and is the JSON. [`charts`] draws it, each chart with its values as CSV; `page`
//! makes one HTML file, `terminal` a short text.

mod cells;
mod chart;
mod charts;
mod csv;
mod differences;
mod grid;
mod options;
mod page;
mod rates;
mod samples;
mod summary;
mod terminal;
mod truth;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

pub use cells::cells_csv;
pub use chart::Chart;
pub use charts::{CHARTS_MAX, charts};
pub use options::Options;
pub use summary::{CellSummary, Report, Source};
pub use terminal::Look;

use crate::comparison::{self, Comparison, Rule};
use crate::error::BenchError;
use crate::input::SOURCES_MAX;
use crate::results::{self, Results};

/// Reads `files`, and compares each with `baseline` if there is one.
///
/// # Errors
/// A file is invalid or cannot be compared with the baseline, or there are none or too many.
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
