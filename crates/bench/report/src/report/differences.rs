//! Differences from the baseline in percent, with their intervals and verdicts.

use super::chart::{Chart, Section, class, slug};
use super::csv::Csv;
use super::grid::{Grid, Layout, axis_title};
use super::rates::{title, unit_word};
use super::samples::{signed, tenths};
use super::summary::{CellSummary, Report, Source};
use crate::comparison::{CellReport, Verdict};
use crate::unit::Unit;
use flaz_page::drawing::round_step;

const COLUMNS: [&str; 11] = [
    "baseline",
    "source",
    "test",
    "record_bytes",
    "level",
    "diff_pct",
    "low_95_pct",
    "high_95_pct",
    "p_benjamini_hochberg",
    "delta_pct",
    "verdict",
];

/// Half the size of a mark.
const MARK: f64 = 4.6;

/// The charts of a test in one unit.
pub(super) fn charts(report: &Report, test: &str, unit: Unit) -> Vec<Chart> {
    let Some(baseline) = &report.baseline else {
        return Vec::new();
    };
    let sources: Vec<&Source> = report.sources.iter().collect();
    let compared = |cell: &CellSummary| {
        cell.key.test == test
            && cell.unit == unit
            && report
                .comparisons
                .iter()
                .any(|comparison| comparison.cells.iter().any(|found| found.key == cell.key))
    };
    let layouts = Layout::of(&sources, &compared);
    let parts = layouts.len();
    layouts
        .iter()
        .enumerate()
        .map(|(part, layout)| {
            let title = title(test, part, parts);
            let mut csv = Csv::new(&COLUMNS);
            let mut shown: Vec<(usize, usize, &Source, &CellReport)> = Vec::new();
            for (at, (source, comparison)) in sources.iter().zip(&report.comparisons).enumerate() {
                for cell in comparison
                    .cells
                    .iter()
                    .filter(|cell| cell.key.test == test && cell.unit == unit)
                {
                    if let Some((category, series)) = layout.place(at, &cell.key) {
                        csv.row(&fields(&baseline.label, &source.label, cell));
                        shown.push((category, series, source, cell));
                    }
                }
            }
            Chart {
                id: slug(&format!("difference-{title}-{}", unit_word(unit))),
                caption: format!(
                    "Difference of the medians from {}, with its 95 % interval. Triangle up: faster; triangle \
                     down: slower; square: equivalent; hollow: inconclusive. The band is the margin.",
                    baseline.label
                ),
                section: Section::Differences,
                drawing: draw(layout, &title, test, &shown).drawing,
                title,
                csv: csv.finish(),
            }
        })
        .collect()
}

fn percent(ratio: f64) -> f64 {
    100.0 * (ratio - 1.0)
}

fn draw(layout: &Layout, title: &str, test: &str, shown: &[(usize, usize, &Source, &CellReport)]) -> Grid {
    let cells = || shown.iter().map(|(_, _, _, cell)| *cell);
    let margin = cells().map(|cell| cell.delta_pct).fold(0.0, f64::max);
    let least = cells()
        .map(|cell| percent(cell.ratio.low))
        .fold(-margin, f64::min);
    let most = cells()
        .map(|cell| percent(cell.ratio.high))
        .fold(margin, f64::max);
    let step = round_step(most - least, 6);
    let (least, most) = ((least / step).floor() * step, (most / step).ceil() * step);
    let mut grid = Grid::new(layout, &format!("{title}: differences from the baseline"));
    let y = grid.y_axis((least, most), &axis_title(test, "difference"), &|value| {
        format!("{} %", signed(value))
    });
    grid.band(
        "margin",
        (y.at(margin), y.at(-margin)),
        &format!("differences up to {margin:.2} % are ignored"),
    );
    grid.level_line("axis", y.at(0.0));
    for (category, series, source, cell) in shown {
        let (x, slot) = grid.slot(*category, *series, layout.series.len());
        let middle = x + slot / 2.0;
        let place = y.at(percent(cell.ratio.estimate));
        let colour = class(*series);
        let (top, bottom) = (y.at(percent(cell.ratio.high)), y.at(percent(cell.ratio.low)));
        let drawing = &mut grid.drawing;
        drawing.line(&format!("stem {colour}"), (middle, y.at(0.0)), (middle, place));
        drawing.whisker("whisker", middle, (top, bottom), (slot / 4.0).min(5.0));
        let tip = format!(
            "{}, {}: {} % ({} to {} %), {}",
            source.label,
            cell.key,
            tenths(percent(cell.ratio.estimate)),
            tenths(percent(cell.ratio.low)),
            tenths(percent(cell.ratio.high)),
            cell.verdict.word()
        );
        let corner = |dx: f64, dy: f64| (middle + MARK * dx, place + MARK * dy);
        match cell.verdict {
            Verdict::Faster => drawing.polygon(
                &format!("mark {colour}"),
                &[corner(0.0, -1.2), corner(1.1, 0.8), corner(-1.1, 0.8)],
                &tip,
            ),
            Verdict::Slower => drawing.polygon(
                &format!("mark {colour}"),
                &[corner(0.0, 1.2), corner(1.1, -0.8), corner(-1.1, -0.8)],
                &tip,
            ),
            Verdict::Equivalent => drawing.rectangle(
                &format!("mark {colour}"),
                corner(-0.85, -0.85),
                (MARK * 1.7, MARK * 1.7),
                &tip,
            ),
            Verdict::Inconclusive => {
                drawing.dot(&format!("hollow {colour}"), (middle, place), MARK * 0.8, &tip)
            }
        }
    }
    grid
}

fn fields(baseline: &str, source: &str, cell: &CellReport) -> Vec<String> {
    vec![
        baseline.to_owned(),
        source.to_owned(),
        cell.key.test.clone(),
        cell.key.record_bytes.to_string(),
        cell.key.level.to_string(),
        percent(cell.ratio.estimate).to_string(),
        percent(cell.ratio.low).to_string(),
        percent(cell.ratio.high).to_string(),
        cell.welch.p_benjamini_hochberg.to_string(),
        cell.delta_pct.to_string(),
        cell.verdict.word().to_owned(),
    ]
}
