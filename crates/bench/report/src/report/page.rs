//! A report as one page: no scripts, no network, readable in light and dark, on paper and by screen readers.

use std::collections::BTreeSet;
use std::fmt::Write;

use flaz_page::text::{escape, prose};

use super::chart::{Chart, STYLE, Section};
use super::grid::rate;
use super::summary::{CellSummary, Report, Source};
use super::{charts, samples, truth};
use crate::comparison::{Comparison, MarginReport, Note};
use crate::layout::{decimal_bytes, p_value};
use crate::unit::{Direction, WholeBytes};

/// Drawings wider than this get a line of the page of their own.
const WIDE: usize = 620;

impl Report {
    /// The page; `version` is that of the program that makes it.
    #[must_use]
    pub fn html(&self, version: &str) -> String {
        let (charts, left_out) = charts(self);
        let mut main = self.header();
        main.push_str(&navigation(self, &charts));
        for (section, id, title, text) in [
            (
                Section::Differences,
                "differences",
                "Differences",
                "Proven and larger than the margin, or not: see the tables for the tests behind each mark.",
            ),
            (
                Section::Rates,
                "rates",
                "Rates",
                "By test, record size and level of the data.",
            ),
            (
                Section::Truth,
                "data",
                "The data: requested against achieved",
                "A level is what was asked for. This is what codecs really save of it.",
            ),
            (
                Section::Samples,
                "samples",
                "Every run",
                "A mean can hide a drift, two modes or a run that went wrong. Nothing is left out here.",
            ),
        ] {
            main.push_str(&section_of(&charts, section, id, title, text));
        }
        if left_out > 0 {
            let _ = writeln!(
                main,
                "<p class=\"note\">{left_out} more charts were left out: report fewer tests at once.</p>"
            );
        }
        main.push_str(&self.tables());
        main.push_str(&self.environment());
        main.push_str(&self.notes());
        let _ = writeln!(main, "<footer>Made by flaz {}.</footer>", escape(version));
        flaz_page::document(&format!("flaz bench: {}", self.headline()), STYLE, &main)
    }

    /// What it says in a line.
    #[must_use]
    pub fn headline(&self) -> String {
        let labels: Vec<&str> = self.sources.iter().map(|source| source.label.as_str()).collect();
        match &self.baseline {
            Some(baseline) => format!("{} against {}", labels.join(", "), baseline.label),
            None => labels.join(", "),
        }
    }

    fn header(&self) -> String {
        let mut text = format!(
            "<header>\n<p class=\"kicker\">flaz bench</p>\n<h1>{}</h1>\n",
            prose(&self.headline())
        );
        for source in self.all() {
            let role = match &self.baseline {
                Some(baseline) if baseline.label == source.label => "Baseline: ",
                _ => "",
            };
            let runs: BTreeSet<u32> = source.cells.iter().map(|cell| cell.runs).collect();
            let runs = match (runs.first(), runs.last()) {
                (Some(least), Some(most)) if least == most => format!("runs of each: {least}"),
                (Some(least), Some(most)) => format!("runs of each: {least} to {most}"),
                _ => String::new(),
            };
            let _ = writeln!(
                text,
                "<p class=\"lead\">{role}<b>{}</b>, {} {}; cells: {}, {runs}</p>",
                escape(&source.label),
                source.kind.words(),
                escape(&source.path.display().to_string()),
                source.cells.len()
            );
        }
        for (source, comparison) in self.sources.iter().zip(&self.comparisons) {
            text.push_str(&tiles(source, comparison, self.sources.len() > 1));
        }
        text + "</header>\n"
    }

    fn tables(&self) -> String {
        let mut text = "<section id=\"tables\">\n<h2>Tables</h2>\n".to_owned();
        for (source, comparison) in self.sources.iter().zip(&self.comparisons) {
            let _ = write!(
                text,
                "<details open=\"\"><summary>{} against the baseline</summary>\n{}</details>\n",
                escape(&source.label),
                comparison_table(comparison)
            );
        }
        for source in self.all() {
            let _ = write!(
                text,
                "<details open=\"\"><summary>{}</summary>\n{}</details>\n",
                escape(&source.label),
                cells_table(source)
            );
        }
        text + "</section>\n"
    }

    fn environment(&self) -> String {
        let mut text = "<section id=\"environment\">\n<h2>Where it was measured</h2>\n".to_owned();
        for source in self.all() {
            let _ = writeln!(text, "<h3>{}</h3>", escape(&source.label));
            if source.background.environment.is_empty() {
                text.push_str("<p class=\"note\">The file says nothing about it.</p>\n");
                continue;
            }
            text.push_str("<dl>\n");
            for (name, value) in &source.background.environment {
                let _ = writeln!(text, "<dt>{}</dt><dd>{}</dd>", escape(name), prose(value));
            }
            text.push_str("</dl>\n");
        }
        text + "</section>\n"
    }

    /// What one should know before one believes the page.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let all = self.all();
        for source in &all {
            let of = |text: &str| {
                if all.len() > 1 {
                    format!("{}: {text}", source.label)
                } else {
                    text.to_owned()
                }
            };
            remarks.extend(source.background.notes.iter().map(|note| of(note)));
            let cells = || source.cells.iter();
            let single = cells().filter(|cell| cell.runs == 1).count();
            if single > 0 {
                remarks.push(of(&format!(
                    "{single} of {} cells have a single run: nothing is known of their noise.",
                    source.cells.len()
                )));
            }
            let missing = cells().filter(|cell| cell.runs == 0).count();
            if missing > 0 {
                remarks.push(of(&format!("{missing} cells were not measured yet.")));
            }
            let outliers = cells().filter(|cell| cell.outliers.unwrap_or(0) > 0).count();
            if outliers > 0 {
                remarks.push(of(&format!(
                    "{outliers} cells have runs that are far from the others. They count like these."
                )));
            }
            if source.background.achieved.is_empty() {
                remarks.push(of(
                    "Levels are those that were asked for; what the data really was, the file does not say.",
                ));
            }
        }
        for comparison in &self.comparisons {
            let notes: BTreeSet<Note> = comparison
                .cells
                .iter()
                .flat_map(|cell| cell.notes.clone())
                .collect();
            for note in notes {
                let remark = format!("{} in a table: {}.", note.letter(), note.text());
                if !remarks.contains(&remark) {
                    remarks.push(remark);
                }
            }
        }
        remarks
    }

    fn notes(&self) -> String {
        let mut text =
            "<section id=\"notes\">\n<h2>What to keep in mind</h2>\n<ul class=\"notes\">\n".to_owned();
        for remark in self.remarks() {
            let _ = writeln!(text, "<li>{}</li>", prose(&remark));
        }
        for note in [
            "Rates are of this machine on that day: what differs between two files beside the device differs in the \
             numbers as well.",
            "KiB, MiB and GiB are powers of 1024. Intervals hold the true value with 95 % probability.",
        ] {
            let _ = writeln!(text, "<li>{}</li>", prose(note));
        }
        text + "</ul>\n</section>\n"
    }
}

fn navigation(report: &Report, charts: &[Chart]) -> String {
    let has = |section| charts.iter().any(|chart| chart.section == section);
    let mut text = "<nav aria-label=\"sections\">".to_owned();
    for (shown, id, name) in [
        (has(Section::Differences), "differences", "Differences"),
        (has(Section::Rates), "rates", "Rates"),
        (has(Section::Truth), "data", "The data"),
        (has(Section::Samples), "samples", "Every run"),
        (!report.sources.is_empty(), "tables", "Tables"),
        (true, "environment", "Where it was measured"),
        (true, "notes", "What to keep in mind"),
    ] {
        if shown {
            let _ = write!(text, "<a href=\"#{id}\">{name}</a>");
        }
    }
    text + "</nav>\n"
}

fn tiles(source: &Source, comparison: &Comparison, named: bool) -> String {
    let counts = &comparison.counts;
    let mut text = String::new();
    if named {
        let _ = writeln!(text, "<p class=\"lead\">{}:</p>", escape(&source.label));
    }
    let margin = match &comparison.margin {
        MarginReport::Given { delta_pct } => format!("{delta_pct} %"),
        MarginReport::Repeats { .. } => "what the A/A campaign shows".to_owned(),
    };
    text.push_str("<ul class=\"tiles\">\n");
    for (count, what) in [
        (
            counts.faster,
            "cells are faster: proven, and by more than the margin".to_owned(),
        ),
        (
            counts.slower,
            "cells are slower: proven, and by more than the margin".to_owned(),
        ),
        (
            counts.equivalent,
            format!("cells are equivalent: proven to differ by less than {margin}"),
        ),
        (
            counts.inconclusive,
            "cells are inconclusive: more runs may tell".to_owned(),
        ),
    ] {
        let _ = writeln!(text, "<li><b>{count}</b><span>{}</span></li>", prose(&what));
    }
    text + "</ul>\n"
}

fn section_of(charts: &[Chart], section: Section, id: &str, title: &str, text: &str) -> String {
    let charts: Vec<&Chart> = charts.iter().filter(|chart| chart.section == section).collect();
    let Some(first) = charts.first() else {
        return String::new();
    };
    // What is the same below every chart is said once.
    let shared = charts.iter().all(|chart| chart.caption == first.caption);
    let shared_text = if shared { &first.caption } else { "" };
    let mut markup = format!(
        "<section id=\"{id}\">\n<h2>{}</h2>\n<p>{} {}</p>\n<div class=\"charts\">\n",
        escape(title),
        prose(text),
        prose(shared_text)
    );
    for chart in charts {
        let width = chart.drawing.width() as usize;
        let class = if width > WIDE { " class=\"wide\"" } else { "" };
        let caption = if shared {
            String::new()
        } else {
            format!("<p>{}</p>", prose(&chart.caption))
        };
        let _ = write!(
            markup,
            "<figure id=\"{}\"{class}>\n<figcaption><h3>{}</h3>{caption}</figcaption>\n\
             <div style=\"min-width:{}px;max-width:{}px\">{}</div></figure>\n",
            chart.id,
            escape(&chart.title),
            width * 4 / 5,
            width * 9 / 8,
            chart.drawing.markup()
        );
    }
    markup + "</div>\n</section>\n"
}

fn head(columns: &[(&str, bool)]) -> String {
    let mut text = "<div class=\"scroll\"><table class=\"compact\">\n<thead><tr>".to_owned();
    for (name, left) in columns {
        let class = if *left { " class=\"left\"" } else { "" };
        let _ = write!(text, "<th{class}>{}</th>", prose(name));
    }
    text + "</tr></thead>\n<tbody>\n"
}

const TABLE_END: &str = "</tbody>\n</table></div>\n";

fn cells_table(source: &Source) -> String {
    let mut text = head(&[
        ("test", true),
        ("record", false),
        ("level", false),
        ("runs", false),
        ("mean", false),
        ("standard deviation", false),
        ("median", false),
        ("95 % interval", false),
        ("far runs", false),
    ]);
    for cell in &source.cells {
        let value = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| rate(value, cell.unit));
        let deviation = match (cell.stddev, cell.mean) {
            (Some(stddev), Some(mean)) => {
                format!("{} ({:.1} %)", rate(stddev, cell.unit), 100.0 * stddev / mean)
            }
            _ => "-".to_owned(),
        };
        let interval = cell.interval.map_or_else(
            || "-".to_owned(),
            |(low, high)| format!("{} to {}", rate(low, cell.unit), rate(high, cell.unit)),
        );
        let outliers = cell
            .outliers
            .map_or_else(|| "-".to_owned(), |count| count.to_string());
        row(
            &mut text,
            &[
                (test_name(cell), ""),
                (WholeBytes(cell.key.record_bytes).to_string(), ""),
                (cell.key.level.to_string(), ""),
                (cell.runs.to_string(), ""),
                (value(cell.mean), ""),
                (deviation, ""),
                (value(cell.median), ""),
                (interval, ""),
                (outliers, ""),
            ],
        );
    }
    text.push_str(TABLE_END);
    let truths = truth::of_source(source);
    if !truths.is_empty() {
        text.push_str(&head(&[
            ("asked for", true),
            ("codec", false),
            ("chunk", false),
            ("saved", false),
            ("spread", false),
        ]));
        for truth in truths {
            row(
                &mut text,
                &[
                    (truth.level.0.to_string(), ""),
                    (truth.codec, ""),
                    (WholeBytes(truth.chunk_bytes).to_string(), ""),
                    (format!("{:.1} %", truth.saved_pct), ""),
                    (format!("{:.1} points", truth.spread_pct), ""),
                ],
            );
        }
        text.push_str(TABLE_END);
    }
    duplicates_table(source, &mut text);
    text
}

/// How much of the data repeats, where a source says that.
fn duplicates_table(source: &Source, text: &mut String) {
    let found = truth::duplicates_of(source);
    if found.is_empty() {
        return;
    }
    text.push_str(&head(&[
        ("level", true),
        ("duplicates asked for", false),
        ("data made", false),
        ("repeats in it", false),
        ("a pass writes", false),
        ("repeats in that", false),
    ]));
    for (level, duplicates) in found {
        row(
            text,
            &[
                (level.0.to_string(), ""),
                (format!("{} %", duplicates.requested_pct), ""),
                (decimal_bytes(duplicates.pool_bytes), ""),
                (format!("{:.1} %", duplicates.pool_pct), ""),
                (decimal_bytes(duplicates.pass_bytes), ""),
                (format!("{:.1} %", duplicates.pass_pct), ""),
            ],
        );
    }
    text.push_str(TABLE_END);
}

fn test_name(cell: &CellSummary) -> String {
    match cell.direction {
        Direction::HigherIsBetter => cell.key.test.clone(),
        Direction::LowerIsBetter => format!("{} (less is better)", cell.key.test),
    }
}

fn comparison_table(comparison: &Comparison) -> String {
    let mut text = head(&[
        ("test", true),
        ("record", false),
        ("level", false),
        ("baseline", false),
        ("here", false),
        ("difference", false),
        ("95 % interval", false),
        ("p", false),
        ("adj. p", false),
        ("verdict", true),
        ("", true),
    ]);
    for cell in &comparison.cells {
        let side = |side: &crate::cell::Description| rate(side.median.unwrap_or(side.mean), cell.unit);
        let percent = |ratio: f64| format!("{} %", samples::tenths(100.0 * (ratio - 1.0)));
        let letters: String = cell.notes.iter().map(|note| note.letter()).collect();
        row(
            &mut text,
            &[
                (cell.key.test.clone(), ""),
                (WholeBytes(cell.key.record_bytes).to_string(), ""),
                (cell.key.level.to_string(), ""),
                (side(&cell.a), ""),
                (side(&cell.b), ""),
                (percent(cell.ratio.estimate), ""),
                (
                    format!("{} to {}", percent(cell.ratio.low), percent(cell.ratio.high)),
                    "",
                ),
                (p_value(cell.welch.p), ""),
                (p_value(cell.welch.p_benjamini_hochberg), ""),
                (cell.verdict.word().to_owned(), cell.verdict.word()),
                (letters, "left"),
            ],
        );
    }
    text + TABLE_END
}

/// A row: texts with classes; the first is its heading.
fn row(text: &mut String, fields: &[(String, &str)]) {
    text.push_str("<tr>");
    for (at, (field, class)) in fields.iter().enumerate() {
        let class = if class.is_empty() {
            String::new()
        } else {
            format!(" class=\"left {class}\"")
        };
        let tag = if at == 0 { "th" } else { "td" };
        let _ = write!(text, "<{tag}{class}>{}</{tag}>", prose(field));
    }
    text.push_str("</tr>\n");
}
