//! Claims as text: one table per claim and record size, and for which data the claim would be true.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::crossing::{Crossing, TrueAt};
use super::level::Levels;
use super::point::Standing;
use super::report::{ClaimReport, ClaimsReport, CurveReport};
use crate::comparison::{Note, source_line};
use crate::layout::{Align, Style, Table, paint};
use crate::unit::{Rate, Unit, WholeBytes};

impl ClaimsReport {
    /// The page.
    #[must_use]
    pub fn text(&self, colour: bool) -> String {
        let mut text = format!("Results  {}\n", source_line(&self.results));
        for claim in &self.claims {
            text.push('\n');
            text.push_str(&claim.text(colour));
        }
        let asked = self
            .claims
            .iter()
            .flat_map(|claim| &claim.curves)
            .any(|curve| curve.levels == Levels::Asked);
        let reading = if asked {
            "BS ratio: claimed / measured, with the 95 % interval. Levels are requested levels."
        } else {
            "BS ratio: claimed / measured, with the 95 % interval. Levels below the tables are achieved, not \
             requested."
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n{}", paint(reading, Style::Dim, colour));
        let notes: BTreeSet<Note> = self
            .claims
            .iter()
            .flat_map(|claim| &claim.curves)
            .flat_map(|curve| &curve.points)
            .flat_map(|point| point.notes.iter().copied())
            .collect();
        for note in notes {
            let remark = format!("{}: {}.", note.letter(), remark(note));
            let _ = writeln!(text, "{}", paint(&remark, Style::Dim, colour));
        }
        text
    }
}

impl ClaimReport {
    fn text(&self, colour: bool) -> String {
        let claim = &self.claim;
        let source = claim
            .source
            .as_ref()
            .map_or_else(String::new, |source| format!(" ({source})"));
        let title = format!("Claim: {} at {}{source}", claim.subject(), both_units(claim.rate));
        let mut text = paint(&title, Style::Bold, colour) + "\n";
        let known = |curve: &CurveReport| curve.points.iter().any(|point| point.achieved.is_some());
        let known = self.curves.iter().any(known);
        let mut heads = vec![("record", Align::Right), ("level", Align::Right)];
        if known {
            heads.push(("achieved", Align::Right));
        }
        heads.extend([
            ("measured", Align::Right),
            ("BS ratio", Align::Right),
            ("95 % interval", Align::Left),
            ("claim", Align::Left),
            ("", Align::Left),
        ]);
        let mut table = Table::new(heads);
        for curve in &self.curves {
            for point in &curve.points {
                let rate = Rate {
                    value: point.rate.estimate,
                    unit: point.unit,
                };
                let ratio = point.bs_ratio;
                let mut row = vec![
                    (WholeBytes(curve.record_bytes).to_string(), Style::Plain),
                    (point.level.to_string(), Style::Plain),
                ];
                if known {
                    let achieved = point.achieved.as_ref().map_or_else(String::new, |found| {
                        format!(
                            "{} {:.1} +-{:.1} %",
                            found.codec, found.saved_pct, found.spread_pct
                        )
                    });
                    row.push((achieved, Style::Plain));
                }
                row.extend([
                    (rate.to_string(), Style::Plain),
                    (format!("{:.2}", ratio.estimate), Style::Plain),
                    (format!("{:.2} to {:.2}", ratio.low, ratio.high), Style::Plain),
                    (point.standing.word().to_owned(), style(point.standing)),
                    (point.notes.iter().map(|note| note.letter()).collect(), Style::Dim),
                ]);
                table.push(row);
            }
        }
        text.push_str(&table.text(colour));
        for curve in &self.curves {
            let of = match &curve.levels {
                Levels::Achieved { codec, chunk_bytes } if curve.true_at != TrueAt::Unknown => {
                    format!("; levels as {codec} saves of {}", WholeBytes(*chunk_bytes))
                }
                _ => String::new(),
            };
            let _ = writeln!(
                text,
                "{}: {}{of}.",
                WholeBytes(curve.record_bytes),
                sentence(curve)
            );
        }
        text
    }
}

/// The explanation of a note.
fn remark(note: Note) -> &'static str {
    match note {
        Note::FewRuns => {
            "fewer than 6 runs: the interval is that of Student's t, which is wider than one of more runs"
        }
        other => other.text(),
    }
}

/// In the unit of data sheets, and in that of the table.
fn both_units(rate: Rate) -> String {
    match rate.unit {
        Unit::OperationsPerSecond => rate.to_string(),
        Unit::BytesPerSecond => format!("{} MB/s ({rate})", rate.value / 1e6),
    }
}

fn style(standing: Standing) -> Style {
    match standing {
        Standing::True => Style::Green,
        Standing::Exaggerated => Style::Red,
        Standing::Undecided => Style::Yellow,
    }
}

fn sentence(curve: &CurveReport) -> String {
    match &curve.true_at {
        TrueAt::Everywhere { from_pct, to_pct } => {
            format!(
                "true at every measured level, {} to {} %",
                plain(*from_pct),
                plain(*to_pct)
            )
        }
        TrueAt::Between { crossings } => {
            let parts: Vec<String> = crossings.iter().map(crossing).collect();
            format!("would be true {}", parts.join(" and "))
        }
        TrueAt::Outside {
            from_pct,
            to_pct,
            best_pct,
            best_ratio,
            extrapolated_pct,
        } => {
            let beyond = extrapolated_pct.map_or_else(
                || "and nowhere from 0 to 100 % by extrapolation".to_owned(),
                |level| format!("and at {level:.1} % by extrapolation, outside the measured range"),
            );
            format!(
                "true at no measured level, {} to {} %: closest at {} % with {best_ratio:.2}, {beyond}",
                plain(*from_pct),
                plain(*to_pct),
                plain(*best_pct)
            )
        }
        TrueAt::Unknown => {
            "fewer than two levels are percentages: measure more levels to find where it is true".to_owned()
        }
    }
}

fn crossing(crossing: &Crossing) -> String {
    let side = if crossing.true_above { "above" } else { "below" };
    let limits = match (crossing.low_pct, crossing.high_pct) {
        (Some(low), Some(high)) => format!("{low:.1} to {high:.1} %, "),
        (Some(low), None) => format!("from {low:.1} %, "),
        (None, Some(high)) => format!("up to {high:.1} %, "),
        (None, None) => String::new(),
    };
    format!(
        "{side} {:.1} % ({limits}between the levels {} and {} %)",
        crossing.level_pct,
        plain(crossing.lower_pct),
        plain(crossing.upper_pct)
    )
}

/// A percentage as requested, or with one digit.
fn plain(percent: f64) -> String {
    if (percent * 100.0).fract() == 0.0 {
        percent.to_string()
    } else {
        format!("{percent:.1}")
    }
}
