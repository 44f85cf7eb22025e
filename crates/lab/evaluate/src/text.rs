//! The report for a terminal, and the tables that the page shows too.

use std::fmt::Write;

use flaz_control::size::{HumanBytes, HumanCount, HumanMicros, counted};
use flaz_page::text::wrapped;

use crate::paper;
use crate::report::{CellReport, ComparedReport, EvaluationReport};

/// Longest line of text.
const COLUMNS: usize = 120;

/// A table: its title, what the paper has, its heads and rows. Columns before `names` are names.
pub(crate) struct Table {
    pub title: &'static str,
    pub paper: String,
    pub heads: Vec<&'static str>,
    pub names: usize,
    pub rows: Vec<Vec<String>>,
}

/// The page.
#[must_use]
pub fn page(report: &EvaluationReport, colour: bool) -> String {
    let (before, after) = if colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    let mut page = String::new();
    for table in tables(report) {
        // Writing to a String does not fail.
        let _ = writeln!(page, "{before}{}{after}", table.title);
        if !table.paper.is_empty() {
            let _ = writeln!(page, "{}", wrapped(&table.paper, COLUMNS));
        }
        table.write(&mut page);
        page.push('\n');
    }
    page.pop();
    page
}

impl Table {
    fn write(&self, page: &mut String) {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).max(self.heads[column].chars().count())
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(width).collect();
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for (column, (cell, width)) in cells.zip(&widths).enumerate() {
                let _ = match column < self.names {
                    true => write!(text, "{cell:<width$}  "),
                    false => write!(text, "{cell:>width$}  "),
                };
            }
            let _ = writeln!(page, "{}", text.trim_end());
        };
        line(&mut self.heads.iter().copied());
        for row in &self.rows {
            line(&mut row.iter().map(String::as_str));
        }
    }
}

/// All tables, the goals first.
pub(crate) fn tables(report: &EvaluationReport) -> Vec<Table> {
    let mut all = vec![
        goals(report),
        sizes(report),
        extents(report),
        splitting(report),
        reclaiming(report),
        loads(report),
        processor(report),
    ];
    if !report.agreement.is_empty() {
        all.insert(1, agreement(report));
    }
    all
}

fn agreement(report: &EvaluationReport) -> Table {
    let rows = report.agreement.iter().map(|it| {
        vec![
            it.load.clone(),
            it.machine.clone(),
            it.codec.clone(),
            HumanBytes(it.cache_bytes).to_string(),
            HumanCount(it.requests).to_string(),
            format!("{:.2} s", it.virtual_seconds),
            format!("{:.2} s", it.real_seconds),
            percent((it.ratio - 1.0) * 100.0),
            format!("{:.1} %", it.virtual_hit_ratio * 100.0),
            format!("{:.1} %", it.real_hit_ratio * 100.0),
            HumanMicros(it.virtual_read_us).to_string(),
            HumanMicros(it.real_read_us).to_string(),
        ]
    });
    Table {
        title: "Virtual time beside real time, over NBD",
        paper: String::new(),
        heads: vec![
            "Load", "Machine", "Codec", "Cache", "Requests", "Virtual", "Real", "More", "Hits", "Real",
            "Read", "Real",
        ],
        names: 3,
        rows: rows.collect(),
    }
}

fn goals(report: &EvaluationReport) -> Table {
    let rows = report.goals.iter().map(|it| {
        let value = |value: f64| match it.unit.as_str() {
            "%" => percent(value),
            unit => format!("{value:.2}{unit}"),
        };
        let verdict = match it.met {
            true => "met".to_owned(),
            false if it.unit == "%" => format!("missed by {:.0} points", it.missing),
            false => format!("missed by {}", value(it.missing)),
        };
        vec![
            it.name.clone(),
            verdict,
            value(it.value),
            value(it.goal),
            value(it.paper),
            it.at.clone(),
        ]
    });
    Table {
        title: "Goals, and the paper's values (compressed against uncompressed)",
        paper: String::new(),
        heads: vec!["Goal", "Result", "Found", "Wanted", "Paper", "Where"],
        names: 2,
        rows: rows.collect(),
    }
}

fn sizes(report: &EvaluationReport) -> Table {
    let mut rows = Vec::new();
    for row in &report.sizes {
        let mut add = |cell: &CellReport, compared: Option<&ComparedReport>| {
            let text = |of: fn(&ComparedReport) -> String| compared.map_or("-".to_owned(), of);
            rows.push(vec![
                row.load.clone(),
                row.machine.clone(),
                cell.codec.clone(),
                HumanBytes(row.cache_bytes).to_string(),
                format!("{:.1} %", row.share * 100.0),
                format!("{:.2} s", cell.seconds),
                text(|it| percent(it.gain_percent)),
                percent(cell.beside_disks_percent),
                format!("{:.1} %", cell.hit_ratio * 100.0),
                text(|it| it.hits_percent.map_or("-".to_owned(), percent)),
                format!("{:.2} s", cell.processor_seconds),
                text(|it| format!("{:.2}x", it.processor_times)),
                HumanMicros(cell.read_us).to_string(),
            ]);
        };
        add(&row.uncompressed, None);
        for compared in &row.compressed {
            add(&compared.cell, Some(compared));
        }
    }
    Table {
        title: "Caches by size (slides 19, 20, 21, 29)",
        paper: format!(
            "Paper: gain {}; hits {}; processor {}",
            paper::CACHE_SIZE,
            paper::HIT_RATIO,
            paper::PROCESSOR_TIME
        ),
        heads: vec![
            "Load",
            "Machine",
            "Codec",
            "Cache",
            "Of data",
            "Time",
            "Gain",
            "Over disks",
            "Hits",
            "More hits",
            "Processor",
            "Over none",
            "Read",
        ],
        names: 3,
        rows,
    }
}

fn extents(report: &EvaluationReport) -> Table {
    let rows = report.extents.iter().map(|it| {
        vec![
            it.load.clone(),
            it.machine.clone(),
            it.cell.codec.clone(),
            HumanBytes(it.extent_bytes.into()).to_string(),
            format!("{:.2} s", it.cell.seconds),
            percent(it.gain_percent),
            format!("{:.1} %", it.cell.hit_ratio * 100.0),
        ]
    });
    Table {
        title: "Extents by size, beside 64 KiB (slide 22)",
        paper: format!("Paper: {}", paper::EXTENT),
        heads: vec!["Load", "Machine", "Codec", "Extent", "Time", "Gain", "Hits"],
        names: 3,
        rows: rows.collect(),
    }
}

fn splitting(report: &EvaluationReport) -> Table {
    let rows = report.splitting.iter().map(|it| {
        vec![
            it.load.clone(),
            it.machine.clone(),
            it.split.codec.clone(),
            format!("{:.2} s", it.whole.seconds),
            format!("{:.2} s", it.split.seconds),
            percent(it.gain_percent),
            percent(it.latency_percent),
        ]
    });
    Table {
        title: "Requests split over cores, beside whole ones (slide 23)",
        paper: format!("Paper: {}", paper::SPLITTING),
        heads: vec![
            "Load",
            "Machine",
            "Codec",
            "Whole",
            "Split",
            "Gain",
            "Read latency",
        ],
        names: 3,
        rows: rows.collect(),
    }
}

fn reclaiming(report: &EvaluationReport) -> Table {
    let rows = report.reclaiming.iter().map(|it| {
        vec![
            it.load.clone(),
            it.machine.clone(),
            it.codec.clone(),
            HumanCount(it.regions).to_string(),
            it.windows.len().to_string(),
            format!("{:.2}", it.slowest),
            format!("{:.2}", it.slowest_uncompressed),
        ]
    });
    Table {
        title: "Throughput while reclaiming: slowest tenth of a second beside the mean (slide 24)",
        paper: format!("Paper: {}", paper::RECLAIMING),
        heads: vec![
            "Load",
            "Machine",
            "Codec",
            "Regions",
            "Parts",
            "Slowest",
            "Uncompressed",
        ],
        names: 3,
        rows: rows.collect(),
    }
}

fn loads(report: &EvaluationReport) -> Table {
    let rows = report.loads.iter().map(|it| {
        vec![
            it.load.clone(),
            HumanCount(it.requests).to_string(),
            HumanBytes(it.read_bytes).to_string(),
            HumanBytes(it.write_bytes).to_string(),
            HumanBytes(it.footprint_bytes).to_string(),
            format!("{:.0} %", it.lz4_percent),
            it.depth_max.to_string(),
            format!("{:.2} s", it.client_seconds),
        ]
    });
    Table {
        title: "Loads",
        paper: String::new(),
        heads: vec![
            "Load",
            "Requests",
            "Reads",
            "Writes",
            "Data",
            "Left by lz4",
            "Depth",
            "Client",
        ],
        names: 1,
        rows: rows.collect(),
    }
}

fn processor(report: &EvaluationReport) -> Table {
    let processor = &report.processor;
    let mut rows = vec![vec![
        format!(
            "{}, {}",
            processor.name,
            counted(processor.cores.into(), "core", "cores")
        ),
        format!("request {:.1} us", processor.request_us),
        format!("block {:.1} us", processor.block_us),
    ]];
    rows.extend(processor.codecs.iter().map(|it| {
        vec![
            it.codec.clone(),
            format!("compress {:.1} us", it.compress_us),
            format!("restore {:.1} us", it.restore_us),
        ]
    }));
    Table {
        title: "Processor",
        paper: format!(
            "Clients compute {:.2} times as long as in the load.",
            processor.think
        ),
        heads: vec!["", "", ""],
        names: 1,
        rows,
    }
}

/// A percentage with its sign; zero has none.
pub(crate) fn percent(value: f64) -> String {
    match format!("{value:+.0}").as_str() {
        "+0" | "-0" => "0 %".to_owned(),
        text => format!("{text} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_has_no_sign() {
        assert_eq!(
            [0.3, -0.3, 0.5001, -12.0].map(percent),
            ["0 %", "0 %", "+1 %", "-12 %"]
        );
    }
}
