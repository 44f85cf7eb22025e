//! Means with standard deviations as bars, by record size and level, as in published articles.

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

/// The charts of a test in one unit.
pub(super) fn charts(sources: &[&Source], test: &str, unit: Unit) -> Vec<Chart> {
    let is_shown = |cell: &CellSummary| cell.key.test == test && cell.unit == unit && cell.mean.is_some();
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
                .filter_map(|(_, _, _, cell)| Some(cell.mean? + cell.stddev.unwrap_or(0.0)))
                .fold(0.0, f64::max);
            let axis = AxisUnit::of(unit, most);
            let mut grid = Grid::new(layout, &format!("{title}: means and standard deviations"));
            let most = round_most(most / axis.divisor * 1.02);
            let y = grid.y_axis((0.0, most), &axis_title(test, axis.name), &plain);
            for (category, series, source, cell) in shown {
                let mean = cell.mean.unwrap_or(0.0) / axis.divisor;
                let (from, slot) = grid.slot(category, series, layout.series.len());
                let (x, width) = (from + 1.0, slot - 2.0);
                let place = y.at(mean);
                let shape = format!("bar {}", class(series));
                grid.drawing.rectangle(
                    &shape,
                    (x, place),
                    (width, grid.bottom - place),
                    &tip(source, cell),
                );
                let mut top = place;
                if let Some(stddev) = cell.stddev {
                    let stddev = stddev / axis.divisor;
                    top = y.at(mean + stddev);
                    let bottom = y.at((mean - stddev).max(0.0));
                    grid.drawing
                        .whisker("whisker", x + width / 2.0, (top, bottom), (width / 4.0).min(5.0));
                }
                if slot >= 40.0 {
                    let middle = x + width / 2.0;
                    grid.drawing
                        .text("value", "middle", (middle, top - 4.0), &three_digits(mean));
                }
            }
            let better = if least_better { " Lower is better." } else { "" };
            Chart {
                id: slug(&format!("rate-{title}-{}", unit_word(unit))),
                title,
                caption: format!("Mean of the runs; whiskers are one standard deviation.{better}"),
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
    let mut text = format!("{}, {}: mean {}", source.label, cell.key, value(cell.mean));
    if cell.stddev.is_some() {
        text.push_str(&format!(" ± {}", value(cell.stddev)));
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
