//! A comparison as text: one row per cell, the counts, then notes.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::report::{CellReport, Comparison, MarginReport, SourceReport};
use super::verdict::{Note, Rule, Verdict};
use crate::cell::CellKey;
use crate::layout::{Align, Field, Style, Table, p_value, paint};
use crate::unit::{Rate, WholeBytes};

/// Maximum number of cells named that only one side has.
const MISSING_NAMED_MAX: usize = 3;

impl Comparison {
    /// The page.
    #[must_use]
    pub fn text(&self, colour: bool) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "A  {}\nB  {}\n", source_line(&self.a), source_line(&self.b));
        text.push_str(&self.table().text(colour));
        text.push('\n');
        text.push_str(&self.counts_text(colour));
        for line in self.remarks() {
            let _ = writeln!(text, "{}", paint(&line, Style::Dim, colour));
        }
        text
    }

    fn table(&self) -> Table {
        let with_ranks = self.counts.mann_whitney.is_some();
        let mut heads = vec![
            ("test", Align::Left),
            ("record", Align::Right),
            ("level", Align::Right),
            ("A", Align::Right),
            ("B", Align::Right),
            ("B/A", Align::Right),
            ("95 % interval", Align::Left),
            ("p", Align::Right),
            ("adj. p", Align::Right),
        ];
        if with_ranks {
            heads.push(("U p", Align::Right));
        }
        heads.extend([("verdict", Align::Left), ("", Align::Left)]);
        let mut table = Table::new(heads);
        for cell in &self.cells {
            table.push(row(cell, with_ranks));
        }
        table
    }

    fn counts_text(&self, colour: bool) -> String {
        let counts = &self.counts;
        let mut parts = Vec::new();
        for (count, verdict) in [
            (counts.faster, Verdict::Faster),
            (counts.slower, Verdict::Slower),
            (counts.equivalent, Verdict::Equivalent),
            (counts.inconclusive, Verdict::Inconclusive),
        ] {
            // The standard deviation rule has no equivalence.
            if self.rule == Rule::Welch || verdict != Verdict::Equivalent {
                parts.push(paint(
                    &format!("{count} {}", verdict.word()),
                    style(verdict),
                    colour,
                ));
            }
        }
        let ranks = counts
            .mann_whitney
            .map_or_else(String::new, |count| format!(", Mann-Whitney {count}"));
        format!(
            "{}: {}\nBelow {} in {} {}: Welch {}, after Benjamini-Hochberg {}, after Holm {}{ranks}. Standard \
             deviation rule: {}.\n",
            plural(counts.cells, "cell"),
            parts.join(", "),
            self.alpha,
            counts.cells,
            if counts.cells == 1 { "cell" } else { "cells" },
            counts.welch,
            counts.welch_benjamini_hochberg,
            counts.welch_holm,
            counts.stddev_rule,
        )
    }

    /// The notes, one per line.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = vec![self.rule_remark()];
        let notes: BTreeSet<Note> = self.cells.iter().flat_map(|cell| cell.notes.clone()).collect();
        remarks.extend(
            notes
                .iter()
                .map(|note| format!("{}: {}.", note.letter(), note.text())),
        );
        if self.counts.mann_whitney.is_some() && self.stddev_rule.runs.0.min(self.stddev_rule.runs.1) < 4 {
            remarks.push("U p cannot fall below 0.05 with fewer than 4 runs per side.".to_owned());
        }
        remarks.extend(only("A", &self.only_in_a));
        remarks.extend(only("B", &self.only_in_b));
        remarks
    }

    fn rule_remark(&self) -> String {
        let margin = match &self.margin {
            MarginReport::Given { delta_pct } => format!("{delta_pct} %"),
            MarginReport::Repeats { floor_pct, .. } => {
                let margins = self.cells.iter().map(|cell| cell.delta_pct);
                let most = margins.fold(0.0, f64::max);
                format!("the margin measured by the A/A campaign, {floor_pct} to {most:.1} %")
            }
        };
        match self.rule {
            Rule::Welch => format!(
                "Faster, slower: adj. p below {} and a difference of more than {margin}. Equivalent: shown to \
                 be less.",
                self.alpha
            ),
            Rule::Stddev => format!(
                "The standard deviation rule has no fixed error rate: without a difference it calls {:.1} % \
                 of cells with {} and {} runs meaningful, and more if A is noisier than B.",
                self.stddev_rule.false_alarms_pct, self.stddev_rule.runs.0, self.stddev_rule.runs.1
            ),
        }
    }
}

fn row(cell: &CellReport, with_ranks: bool) -> Vec<Field> {
    let plain = |text: String| (text, Style::Plain);
    let rate = |side: &crate::cell::Description| {
        let value = side.median.unwrap_or(side.mean);
        plain(
            Rate {
                value,
                unit: cell.unit,
            }
            .to_string(),
        )
    };
    let mut row = vec![
        plain(cell.key.test.clone()),
        plain(WholeBytes(cell.key.record_bytes).to_string()),
        plain(cell.key.level.to_string()),
        rate(&cell.a),
        rate(&cell.b),
        plain(format!("{:.3}", cell.ratio.estimate)),
        plain(format!("{:.3} to {:.3}", cell.ratio.low, cell.ratio.high)),
        plain(p_value(cell.welch.p)),
        plain(p_value(cell.welch.p_benjamini_hochberg)),
    ];
    if with_ranks {
        let ranks = cell
            .mann_whitney
            .map_or_else(|| "-".to_owned(), |ranks| p_value(ranks.p));
        row.push(plain(ranks));
    }
    row.push((cell.verdict.word().to_owned(), style(cell.verdict)));
    let letters: String = cell.notes.iter().map(|note| note.letter()).collect();
    row.push((letters, Style::Dim));
    row
}

fn style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Faster => Style::Green,
        Verdict::Slower => Style::Red,
        Verdict::Equivalent => Style::Plain,
        Verdict::Inconclusive => Style::Yellow,
    }
}

/// A file on one line.
pub(crate) fn source_line(source: &SourceReport) -> String {
    format!(
        "{} ({}, {})",
        source.path.display(),
        source.kind.words(),
        plural(source.cells, "cell")
    )
}

fn only(side: &str, keys: &[CellKey]) -> Option<String> {
    let named: Vec<String> = keys
        .iter()
        .take(MISSING_NAMED_MAX)
        .map(CellKey::to_string)
        .collect();
    let more = if keys.len() > named.len() { ", .." } else { "" };
    (!keys.is_empty()).then(|| {
        format!(
            "{} only in {side}: {}{more}.",
            plural(keys.len(), "cell"),
            named.join(", ")
        )
    })
}

/// `1 cell`, `2 cells`.
fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
