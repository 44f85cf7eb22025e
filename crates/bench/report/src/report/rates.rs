//! Medians with their intervals as bars, by record size and level: the same values as on the terminal and in comparisons.

use super::chart::{Chart, Section, class, slug};
use super::csv::Csv;
use super::grid::{AxisUnit, Grid, Layout, axis_title, plain, rate, round_most};
use super::summary::{CellSummary, Source};
use crate::unit::{Direction, Unit};

/// Columns of the values: those of a published table first, so that `flaz bench compare` can read the file of one
/// source.
pub(super) const COLUMNS: [&str; 13] = [
    "record_kib",
    "compressibility_pct",
    "test",
    "mean_kib_per_s",
    "stddev_kib_per_s",
    "runs",
    "source",
    "unit",
    "mean",
    "stddev",
    "median",
    "low_95",
    "high_95",
];

/// The unit of the axes of all charts: neighbouring charts can be compared.
pub(super) fn axis_of(sources: &[&Source], unit: Unit) -> AxisUnit {
    let mut most_of_tests: Vec<(&str, f64)> = Vec::new();
    for cell in sources.iter().flat_map(|source| &source.cells) {
        let Some(value) = cell.middle().filter(|_| cell.unit == unit) else {
            continue;
        };
        match most_of_tests.iter_mut().find(|(test, _)| *test == cell.key.test) {
            Some((_, most)) => *most = most.max(value),
            None => most_of_tests.push((&cell.key.test, value)),
        }
    }
    let values = || most_of_tests.iter().map(|(_, most)| *most);
    AxisUnit::common(
        unit,
        values().fold(f64::INFINITY, f64::min),
        values().fold(0.0, f64::max),
    )
}

/// The top of a whisker. An interval from very few runs is cut off rather than make all bars short.
fn whisker_top(cell: &CellSummary, value: f64) -> f64 {
    cell.interval.map_or(value, |(_, high)| high.min(2.0 * value))
}

/// The charts of a test in one unit.
pub(super) fn charts(sources: &[&Source], test: &str, unit: Unit, axis: AxisUnit) -> Vec<Chart> {
    let is_shown = |cell: &CellSummary| cell.key.test == test && cell.unit == unit && cell.middle().is_some();
    let layouts = Layout::of(sources, &is_shown);
    let parts = layouts.len();
    layouts
        .iter()
        .enumerate()
        .map(|(part, layout)| {
            let title = title(test, part, parts);
            let (mut least_better, mut csv) = (false, Csv::new(&COLUMNS));
            let mut shown: Vec<(usize, usize, &Source, &CellSummary)> = Vec::new();
            for (at, source) in sources.iter().enumerate() {
                for cell in source.cells.iter().filter(|cell| is_shown(cell)) {
                    let Some((category, series)) = layout.place(at, &cell.key) else {
                        continue;
                    };
                    least_better |= cell.direction == Direction::LowerIsBetter;
                    csv.row(&fields(source, cell));
                    shown.push((category, series, source, cell));
                }
            }
            let most = shown
                .iter()
                .filter_map(|(_, _, _, cell)| Some(whisker_top(cell, cell.middle()?)))
                .fold(0.0, f64::max);
            let mut grid = Grid::new(layout, &format!("{title}: medians and their intervals"));
            let most = round_most(most / axis.divisor * 1.02);
            let y = grid.y_axis((0.0, most), &axis_title(test, axis.name), &plain);
            for (category, series, source, cell) in shown {
                let value = cell.middle().unwrap_or(0.0);
                let (from, slot) = grid.slot(category, series, layout.series.len());
                let (x, width) = (from + 1.0, slot - 2.0);
                let place = y.at(value / axis.divisor);
                let shape = format!("bar {}", class(series));
                grid.drawing.rectangle(
                    &shape,
                    (x, place),
                    (width, grid.bottom - place),
                    &tip(source, cell),
                );
                let mut top = place;
                if let Some((low, _)) = cell.interval {
                    top = y.at(whisker_top(cell, value) / axis.divisor);
                    let bottom = y.at(low.max(0.0) / axis.divisor);
                    grid.drawing
                        .whisker("whisker", x + width / 2.0, (top, bottom), (width / 4.0).min(5.0));
                }
                if slot >= 40.0 {
                    let middle = x + width / 2.0;
                    grid.drawing
                        .text("value", "middle", (middle, top - 4.0), &three_digits(value / axis.divisor));
                }
            }
            let better = if least_better { " Lower is better." } else { "" };
            Chart {
                id: slug(&format!("rate-{title}-{}", unit_word(unit))),
                title,
                caption: format!(
                    "Median of the runs, or their mean where the file has no runs; whiskers are the 95 % interval, up \
                     to twice the median.{better}"
                ),
                section: Section::Rates,
                drawing: grid.drawing,
                csv: csv.finish(),
            }
        })
        .collect()
}

/// The name of a test, with a number if it has several charts.
pub(super) fn title(test: &str, part: usize, parts: usize) -> String {
    if parts > 1 {
        format!("{test} ({} of {parts})", part + 1)
    } else {
        test.to_owned()
    }
}

pub(super) fn unit_word(unit: Unit) -> &'static str {
    match unit {
        Unit::BytesPerSecond => "bytes",
        Unit::OperationsPerSecond => "ops",
    }
}

fn tip(source: &Source, cell: &CellSummary) -> String {
    let value = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| rate(value, cell.unit));
    let name = if cell.median.is_some() { "median" } else { "mean" };
    let mut text = format!("{}, {}: {name} {}", source.label, cell.key, value(cell.middle()));
    if let Some((low, high)) = cell.interval {
        text.push_str(&format!(
            " ({} to {})",
            rate(low, cell.unit),
            rate(high, cell.unit)
        ));
    }
    text + &format!(", runs: {}", cell.runs)
}

/// A value above a bar.
fn three_digits(value: f64) -> String {
    let digits = match value {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// A cell in the columns of [`COLUMNS`].
pub(super) fn fields(source: &Source, cell: &CellSummary) -> Vec<String> {
    let kib = match cell.unit {
        Unit::BytesPerSecond => 1.0 / 1024.0,
        Unit::OperationsPerSecond => cell.key.record_bytes as f64 / 1024.0,
    };
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let level = cell
        .key
        .level
        .percent()
        .map_or_else(|| cell.key.level.to_string(), |percent| percent.to_string());
    vec![
        (cell.key.record_bytes as f64 / 1024.0).to_string(),
        level,
        cell.key.test.clone(),
        number(cell.mean.map(|mean| mean * kib)),
        number(cell.stddev.map(|stddev| stddev * kib)),
        cell.runs.to_string(),
        source.label.clone(),
        match cell.unit {
            Unit::BytesPerSecond => "bytes-per-s".to_owned(),
            Unit::OperationsPerSecond => "ops-per-s".to_owned(),
        },
        number(cell.mean),
        number(cell.stddev),
        number(cell.median),
        number(cell.interval.map(|(low, _)| low)),
        number(cell.interval.map(|(_, high)| high)),
    ]
}
