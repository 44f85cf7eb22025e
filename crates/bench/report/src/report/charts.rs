//! All charts of a report.

use super::chart::Chart;
use super::summary::{Report, Source};
use super::{differences, rates, samples, truth};
use crate::unit::Unit;

/// Maximum number of charts in a report.
pub const CHARTS_MAX: usize = 200;

/// The charts of a report, at most [`CHARTS_MAX`], and the number of omitted ones.
#[must_use]
pub fn charts(report: &Report) -> (Vec<Chart>, usize) {
    let sources = report.all();
    let mut tests = tests(&sources);
    tests.truncate(CHARTS_MAX);
    let mut charts = Vec::new();
    for (test, unit) in &tests {
        charts.extend(differences::charts(report, test, *unit));
    }
    for (test, unit) in &tests {
        let axis = rates::axis_of(&sources, *unit);
        charts.extend(rates::charts(&sources, test, *unit, axis));
    }
    charts.extend(truth::charts(&sources));
    for (test, unit) in &tests {
        charts.extend(samples::charts(&sources, test, *unit));
    }
    let left_out = charts.len().saturating_sub(CHARTS_MAX);
    charts.truncate(CHARTS_MAX);
    (charts, left_out)
}

/// The tests with their units, in order of appearance.
pub(super) fn tests(sources: &[&Source]) -> Vec<(String, Unit)> {
    let mut tests: Vec<(String, Unit)> = Vec::new();
    for cell in sources.iter().flat_map(|source| &source.cells) {
        if !tests
            .iter()
            .any(|(test, unit)| *test == cell.key.test && *unit == cell.unit)
        {
            tests.push((cell.key.test.clone(), cell.unit));
        }
    }
    tests
}
