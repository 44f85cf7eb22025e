//! The result as a table for a terminal.

use std::fmt::Write;

use crate::outcome::{Outcome, Run, Variant};
use flaz_control::size::{HumanBytes, HumanCount, HumanMicros, counted};

const LABEL_COLUMNS: usize = 28;
const VALUE_COLUMNS: usize = 13;
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const GREEN: &str = "\x1b[1;32m";
const YELLOW: &str = "\x1b[33m";
const PLAIN: &str = "\x1b[0m";

/// One row of the table: its label, its value for each run, and which value is best.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// What it is.
    pub label: &'static str,
    /// One value per run; `-` if it has no meaning.
    pub values: Vec<String>,
}

/// The rows of the table, for the terminal and the page.
pub fn rows(outcome: &Outcome) -> Vec<Row> {
    let row = |label, value: &dyn Fn(&Run) -> String| Row {
        label,
        values: outcome.runs.iter().map(value).collect(),
    };
    let cached = |run: &Run, value: &dyn Fn(&Run) -> String| match run.variant {
        Variant::NoCache => "-".to_owned(),
        _ => value(run),
    };
    let held = |run: &Run, value: &dyn Fn(&crate::outcome::Holdings) -> String| {
        run.holdings.as_ref().map_or_else(|| "-".to_owned(), value)
    };
    vec![
        row("effective capacity", &|run| {
            held(run, &|held| HumanBytes(held.logical_bytes).to_string())
        }),
        row("  relative to the SSD", &|run| {
            held(run, &|held| format!("{:.2}x", held.effective()))
        }),
        row("compression ratio", &|run| {
            held(run, &|held| format!("{:.2}:1", held.ratio()))
        }),
        row("hit ratio, blocks read", &|run| {
            cached(run, &|run| format!("{:.1} %", run.hit_ratio * 100.0))
        }),
        row("requests per second (IOPS)", &|run| {
            HumanCount(run.served.iops.round() as u64).to_string()
        }),
        row("mean latency", &|run| {
            HumanMicros(run.served.latency_us.mean).to_string()
        }),
        row("median latency", &|run| {
            HumanMicros(run.served.latency_us.p50).to_string()
        }),
        row("99th percentile latency", &|run| {
            HumanMicros(run.served.latency_us.p99).to_string()
        }),
        row("server CPU time", &|run| format!("{:.2} s", run.cost.cpu_s)),
        row("  per request", &|run| {
            HumanMicros(run.cost.cpu_us_per_request).to_string()
        }),
        row("written to the SSD, total", &|run| {
            cached(run, &|run| HumanBytes(run.cost.ssd_written_bytes).to_string())
        }),
        row("  while measuring", &|run| {
            cached(run, &|run| {
                HumanBytes(run.cost.ssd_written_measured_bytes).to_string()
            })
        }),
    ]
}

/// The table, with the parameters above and the result below.
pub fn text(outcome: &Outcome, colour: bool) -> String {
    let paint = |code: &'static str| if colour { code } else { "" };
    let (bold, dim, green, yellow, plain) =
        (paint(BOLD), paint(DIM), paint(GREEN), paint(YELLOW), paint(PLAIN));
    let mut text = String::new();
    // Writing to a String does not fail.
    let mut line = |content: String| {
        let _ = writeln!(text, "{content}");
    };
    let parameters = &outcome.parameters;
    line(format!(
        "{bold}{} of {}{plain} on {}, cached by an SSD of {}",
        HumanBytes(outcome.data.bytes),
        outcome.data.source,
        parameters.emulated_disk,
        HumanBytes(parameters.ssd_bytes)
    ));
    line(format!(
        "{dim}{}, {} % writes, Zipf {}, {} s measured after {} warm-up requests{plain}",
        counted(parameters.clients.into(), "client", "clients"),
        parameters.write_percent,
        parameters.skew,
        parameters.measured_s,
        HumanCount(parameters.warmup_requests)
    ));
    line(String::new());
    let heads: String = outcome
        .runs
        .iter()
        .map(|run| format!("{:>VALUE_COLUMNS$}", outcome.title(run)))
        .collect();
    line(format!("{bold}{:LABEL_COLUMNS$}{heads}{plain}", ""));
    for row in rows(outcome) {
        let style = if row.label.starts_with(' ') { dim } else { "" };
        let values: String = row
            .values
            .iter()
            .map(|value| format!("{value:>VALUE_COLUMNS$}"))
            .collect();
        line(format!(
            "{style}{:LABEL_COLUMNS$}{values}{}",
            row.label,
            if style.is_empty() { "" } else { plain }
        ));
    }
    line(String::new());
    line(format!("{green}{}{plain}", outcome.headline()));
    line(format!("{dim}{}{plain}", verified(outcome)));
    for warning in &outcome.warnings {
        line(format!("{yellow}Warning: {warning}{plain}"));
    }
    text
}

/// The checks, in one sentence.
pub fn verified(outcome: &Outcome) -> String {
    let disk: u64 = outcome
        .runs
        .iter()
        .map(|run| run.verified.disk_bytes_verified)
        .sum();
    let fragments: u64 = outcome
        .runs
        .iter()
        .map(|run| run.verified.fragments_verified)
        .sum();
    format!(
        "Verified: all {} blocks that the clients read, {} of the disk against the data written, {} fragments \
         on the SSD; no differences.",
        HumanCount(outcome.blocks_verified()),
        HumanBytes(disk),
        HumanCount(fragments)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::sample;

    #[test]
    fn the_table_has_all_values_and_keeps_to_its_columns() {
        let outcome = sample::outcome();
        let plain = text(&outcome, false);
        assert!(!plain.contains('\x1b'));
        for word in [
            "effective capacity",
            "compression ratio",
            "hit ratio",
            "IOPS",
            "99th",
            "CPU",
            "written to the SSD",
        ] {
            assert!(plain.contains(word), "{word} is missing in\n{plain}");
        }
        for row in rows(&outcome) {
            assert_eq!(row.values.len(), 4);
            assert!(
                row.values.iter().all(|value| value.len() < VALUE_COLUMNS),
                "{row:?}"
            );
        }
        let coloured = text(&outcome, true);
        assert!(coloured.contains(BOLD) && coloured.contains(PLAIN));
    }
}
