//! A report on a terminal: small charts, followed by notes.

use std::fmt::Write;

use super::charts::tests as tests_of;
use super::grid::{LevelOrder, rate};
use super::samples::tenths;
use super::summary::{CellSummary, Report, Source};
use crate::comparison::{CellReport, Verdict};
use crate::layout::{Align, Field, Style, Table, paint};
use crate::unit::{Direction, WholeBytes};

/// Width of a full bar in characters.
const BAR: usize = 24;

/// Capabilities of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether colours are enabled.
    pub colour: bool,
    /// Whether bars use Unicode blocks; otherwise `#`.
    pub blocks: bool,
}

impl Report {
    /// The summary.
    #[must_use]
    pub fn text(&self, look: Look) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        for source in self.all() {
            let role = match &self.baseline {
                Some(baseline) if baseline.label == source.label => "Baseline  ",
                _ => "Results   ",
            };
            let _ = writeln!(
                text,
                "{role}{}  {}",
                paint(&source.label, Style::Bold, look.colour),
                paint(
                    &format!("{} ({})", source.path.display(), source.kind.words()),
                    Style::Dim,
                    look.colour
                )
            );
            if let Some(place) = source.place() {
                let _ = writeln!(text, "{:<10}{}", "", paint(&place, Style::Dim, look.colour));
            }
        }
        let sources = self.all();
        for (test, unit) in tests_of(&sources) {
            let mut rows: Vec<(usize, &Source, &CellSummary)> = Vec::new();
            for (at, source) in sources.iter().enumerate() {
                let of_test = source
                    .cells
                    .iter()
                    .filter(|cell| cell.key.test == test && cell.unit == unit);
                rows.extend(of_test.map(|cell| (at, *source, cell)));
            }
            rows.sort_by_key(|(at, _, cell)| {
                (cell.key.record_bytes, LevelOrder(cell.key.level.clone()), *at)
            });
            let less = rows
                .iter()
                .any(|(_, _, cell)| cell.direction == Direction::LowerIsBetter);
            let title = if less {
                format!("{test} (lower is better)")
            } else {
                test
            };
            let _ = write!(
                text,
                "\n{}\n{}",
                paint(&title, Style::Bold, look.colour),
                self.table(&rows, look).text(look.colour)
            );
        }
        for (source, comparison) in self.sources.iter().zip(&self.comparisons) {
            let counts = &comparison.counts;
            let _ = writeln!(
                text,
                "\n{}: faster {}, slower {}, equivalent {}, inconclusive {}",
                source.label, counts.faster, counts.slower, counts.equivalent, counts.inconclusive
            );
        }
        text.push('\n');
        for remark in self.remarks() {
            let _ = writeln!(text, "{}", paint(&remark, Style::Dim, look.colour));
        }
        text
    }

    fn table(&self, rows: &[(usize, &Source, &CellSummary)], look: Look) -> Table {
        let several = self.baseline.is_some() || self.sources.len() > 1;
        let mut heads = vec![("record", Align::Right), ("level", Align::Right)];
        if several {
            heads.push(("", Align::Left));
        }
        heads.extend([
            ("", Align::Left),
            (name_of_middle(rows), Align::Right),
            ("spread", Align::Right),
            ("runs", Align::Right),
        ]);
        if self.baseline.is_some() {
            heads.extend([
                ("difference", Align::Right),
                ("95 % interval", Align::Left),
                ("verdict", Align::Left),
            ]);
        }
        let mut table = Table::new(heads);
        let most = rows
            .iter()
            .filter_map(|(_, _, cell)| cell.middle())
            .fold(0.0, f64::max);
        let plain = |text: String| (text, Style::Plain);
        for (at, source, cell) in rows {
            let mut row: Vec<Field> = vec![
                plain(WholeBytes(cell.key.record_bytes).to_string()),
                plain(cell.key.level.to_string()),
            ];
            if several {
                row.push((source.label.clone(), Style::Dim));
            }
            let value = cell.middle();
            row.push(plain(bar(value.unwrap_or(0.0) / most, look.blocks)));
            row.push(plain(
                value.map_or_else(|| "-".to_owned(), |value| rate(value, cell.unit)),
            ));
            let spread = cell.stddev.zip(cell.mean).map_or_else(
                || "-".to_owned(),
                |(stddev, mean)| format!("{:.1} %", 100.0 * stddev / mean),
            );
            row.push((spread, Style::Dim));
            row.push((cell.runs.to_string(), Style::Dim));
            if self.baseline.is_some() {
                // The baseline comes first.
                let found = at
                    .checked_sub(1)
                    .and_then(|at| self.comparisons.get(at))
                    .and_then(|comparison| comparison.cells.iter().find(|found| found.key == cell.key));
                row.extend(found.map_or_else(|| vec![plain(String::new()); 3], difference));
            }
            table.push(row);
        }
        table
    }
}

/// Heading of the column of [`CellSummary::middle`].
fn name_of_middle(rows: &[(usize, &Source, &CellSummary)]) -> &'static str {
    let medians = rows.iter().filter(|(_, _, cell)| cell.median.is_some()).count();
    match medians {
        0 if !rows.is_empty() => "mean",
        some if some < rows.len() => "median or mean",
        _ => "median",
    }
}

fn difference(cell: &CellReport) -> Vec<Field> {
    let percent = |ratio: f64| tenths(100.0 * (ratio - 1.0));
    let style = match cell.verdict {
        Verdict::Faster => Style::Green,
        Verdict::Slower => Style::Red,
        Verdict::Equivalent => Style::Plain,
        Verdict::Inconclusive => Style::Yellow,
    };
    vec![
        (format!("{} %", percent(cell.ratio.estimate)), Style::Plain),
        (
            format!("{} to {} %", percent(cell.ratio.low), percent(cell.ratio.high)),
            Style::Plain,
        ),
        (cell.verdict.word().to_owned(), style),
    ]
}

/// A bar for a share of the largest value: blocks in eighths, or `#`.
fn bar(share: f64, blocks: bool) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let share = if share.is_finite() {
        share.clamp(0.0, 1.0)
    } else {
        0.0
    };
    if !blocks {
        return "#".repeat((share * BAR as f64).round() as usize);
    }
    let eighths = (share * BAR as f64 * 8.0).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(EIGHTHS[eighths % 8]);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::bar;

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!(bar(1.0, false), "#".repeat(24));
        assert_eq!(bar(0.5, true), "█".repeat(12));
        assert_eq!(bar(1.0 / 24.0 + 0.5 / 24.0, true), "█▌");
        for nothing in [0.0, f64::NAN, -1.0] {
            assert_eq!(bar(nothing, true), "");
        }
    }
}
