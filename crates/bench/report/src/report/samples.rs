//! Every run of every cell: strip plots around the median, in the order of the runs, so that a drift is visible; box
//! plots for many runs.

use super::chart::{Chart, Section, class, slug};
use super::csv::Csv;
use super::grid::{Grid, Layout, axis_title, plain, rate};
use super::rates::{title, unit_word};
use super::summary::{CellSummary, Source};
use crate::statistics::moments::median;
use crate::unit::Unit;
use flaz_page::drawing::{Scale, round_step};

/// Maximum number of runs that are shown as dots; with more, a box is drawn, and the runs outside of its whiskers.
const DOTS_MAX: usize = 60;

const COLUMNS: [&str; 8] = [
    "source",
    "test",
    "record_bytes",
    "level",
    "unit",
    "run",
    "value",
    "from_median_pct",
];

/// The charts of a test in one unit.
pub(super) fn charts(sources: &[&Source], test: &str, unit: Unit) -> Vec<Chart> {
    let is_shown = |cell: &CellSummary| cell.key.test == test && cell.unit == unit && cell.samples.len() > 1;
    let layouts = Layout::of(sources, &is_shown);
    let parts = layouts.len();
    layouts
        .iter()
        .enumerate()
        .map(|(part, layout)| {
            let title = title(test, part, parts);
            let mut csv = Csv::new(&COLUMNS);
            let mut shown: Vec<(usize, usize, &CellSummary, Vec<f64>)> = Vec::new();
            for (at, source) in sources.iter().enumerate() {
                for cell in source.cells.iter().filter(|cell| is_shown(cell)) {
                    let Some((category, series)) = layout.place(at, &cell.key) else {
                        continue;
                    };
                    let middle = median(&cell.samples);
                    let from: Vec<f64> = cell.samples.iter().map(|value| 100.0 * (value / middle - 1.0)).collect();
                    for (run, (value, from)) in cell.samples.iter().zip(&from).enumerate() {
                        csv.row(&[
                            source.label.clone(),
                            cell.key.test.clone(),
                            cell.key.record_bytes.to_string(),
                            cell.key.level.to_string(),
                            unit_word(unit).to_owned(),
                            (run + 1).to_string(),
                            value.to_string(),
                            format!("{from:.4}"),
                        ]);
                    }
                    shown.push((category, series, cell, from));
                }
            }
            let most = shown
                .iter()
                .flat_map(|(_, _, _, from)| from)
                .fold(0.5, |most: f64, from| most.max(from.abs()));
            let step = round_step(2.0 * most, 6);
            let most = (most / step).ceil() * step;
            let mut grid = Grid::new(layout, &format!("{title}: the runs around their median"));
            let label = |value: f64| format!("{} %", signed(value));
            let y = grid.y_axis((-most, most), &axis_title(test, "difference from the median"), &label);
            for (category, series, cell, from) in shown {
                let slot = grid.slot(category, series, layout.series.len());
                if from.len() > DOTS_MAX {
                    boxed(&mut grid, y, slot, series, cell, &from);
                } else {
                    strip(&mut grid, y, slot, series, cell, &from);
                }
            }
            Chart {
                id: slug(&format!("samples-{title}-{}", unit_word(unit))),
                title,
                caption: format!(
                    "Each run relative to the median of its cell, in the order of the runs; cells with more \
                     than {DOTS_MAX} runs as box plots with whiskers to the last run within 1.5 times the box \
                     height."
                ),
                section: Section::Samples,
                drawing: grid.drawing,
                csv: csv.finish(),
            }
        })
        .collect()
}

/// A percentage with its sign.
pub(super) fn signed(value: f64) -> String {
    let text = plain(value);
    if value > 0.0 && text != "0" {
        format!("+{text}")
    } else {
        text
    }
}

/// A percentage with its sign and one decimal, as in columns.
pub(super) fn tenths(value: f64) -> String {
    let text = format!("{value:+.1}");
    if matches!(text.as_str(), "+0.0" | "-0.0") {
        "0.0".to_owned()
    } else {
        text
    }
}

fn tip(cell: &CellSummary, run: usize, from: f64) -> String {
    format!(
        "{}, run {}: {} ({} %)",
        cell.key,
        run + 1,
        rate(cell.samples[run], cell.unit),
        tenths(from)
    )
}

fn strip(grid: &mut Grid, y: Scale, (x, width): (f64, f64), series: usize, cell: &CellSummary, from: &[f64]) {
    let inner = width - 4.0;
    for (run, &from_median) in from.iter().enumerate() {
        let part = if from.len() > 1 {
            run as f64 / (from.len() - 1) as f64
        } else {
            0.5
        };
        let place = (x + 2.0 + inner * part, y.at(from_median));
        grid.drawing.dot(
            &format!("dot {}", class(series)),
            place,
            2.6,
            &tip(cell, run, from_median),
        );
    }
}

fn boxed(grid: &mut Grid, y: Scale, (x, width): (f64, f64), series: usize, cell: &CellSummary, from: &[f64]) {
    let mut sorted = from.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let quantile = |share: f64| {
        let at = share * (sorted.len() - 1) as f64;
        let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
        below + (above - below) * at.fract()
    };
    let (low, high) = (quantile(0.25), quantile(0.75));
    let reach = 1.5 * (high - low);
    let inside = |value: &&f64| (low - reach..=high + reach).contains(*value);
    let least = sorted.iter().find(inside).copied().unwrap_or(low);
    let most = sorted.iter().rev().find(inside).copied().unwrap_or(high);
    let middle = x + width / 2.0;
    grid.drawing.whisker(
        "whisker",
        middle,
        (y.at(most), y.at(least)),
        (width / 4.0).min(5.0),
    );
    let height = (y.at(low) - y.at(high)).max(1.0);
    let text = format!(
        "{}: {} runs, the middle half from {} % to {} %",
        cell.key,
        from.len(),
        tenths(low),
        tenths(high)
    );
    grid.drawing.rectangle(
        &format!("bar {}", class(series)),
        (x + 2.0, y.at(high)),
        (width - 4.0, height),
        &text,
    );
    grid.drawing
        .line("median", (x + 2.0, y.at(0.0)), (x + width - 2.0, y.at(0.0)));
    for (run, &value) in from.iter().enumerate() {
        if !inside(&&value) {
            grid.drawing.dot(
                &format!("dot {}", class(series)),
                (middle, y.at(value)),
                2.6,
                &tip(cell, run, value),
            );
        }
    }
}
