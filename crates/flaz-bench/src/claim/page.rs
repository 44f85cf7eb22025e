//! Claims on a page for people: a table a claim and record size, and for which data it would be true.

use std::fmt::Write;

use super::report::{ClaimReport, ClaimsReport, CurveReport, Standing};
use super::{Crossing, TrueAt};
use crate::comparison::source_line;
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
        let reading = "BS ratio: claimed / measured, with the 95 % interval. Levels are those asked for when measuring.";
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n{}", paint(reading, Style::Dim, colour));
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
        let mut table = Table::new(vec![
            ("record", Align::Right),
            ("level", Align::Right),
            ("measured", Align::Right),
            ("BS ratio", Align::Right),
            ("95 % interval", Align::Left),
            ("claim", Align::Left),
        ]);
        for curve in &self.curves {
            for point in &curve.points {
                let rate = Rate {
                    value: point.rate.estimate,
                    unit: point.unit,
                };
                let ratio = point.bs_ratio;
                table.push(vec![
                    (WholeBytes(curve.record_bytes).to_string(), Style::Plain),
                    (point.level.to_string(), Style::Plain),
                    (rate.to_string(), Style::Plain),
                    (format!("{:.2}", ratio.estimate), Style::Plain),
                    (format!("{:.2} to {:.2}", ratio.low, ratio.high), Style::Plain),
                    (point.standing.word().to_owned(), style(point.standing)),
                ]);
            }
        }
        text.push_str(&table.text(colour));
        for curve in &self.curves {
            let _ = writeln!(text, "{}: {}.", WholeBytes(curve.record_bytes), sentence(curve));
        }
        text
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
            format!("true at every level measured, {from_pct} to {to_pct} %")
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
                || "and none from 0 to 100 % if the line went on".to_owned(),
                |level| format!("and at {level:.1} % if the line went on, outside of what was measured"),
            );
            format!(
                "true at no level measured, {from_pct} to {to_pct} %: closest at {best_pct} % with {best_ratio:.2}, \
                 {beyond}"
            )
        }
        TrueAt::Unknown => {
            "fewer than two levels are percentages: measure more to see where it is true".to_owned()
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
        crossing.level_pct, crossing.lower_pct, crossing.upper_pct
    )
}
