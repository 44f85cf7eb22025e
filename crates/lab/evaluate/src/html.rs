//! The report for a browser: charts of what the paper's slides show, and the tables.

use std::fmt::Write;

use flaz_control::size::{HumanBytes, counted};
use flaz_page::drawing::{Drawing, Scale, plain, round_step, ticks};
use flaz_page::table::table;
use flaz_page::text::{escape, prose};
use flaz_page::{SERIES_STYLE, document, series_class};

use crate::report::{
    CellReport, ComparedReport, EvaluationReport, ExtentReport, SizeReport, SplittingReport,
};
use crate::text::tables;

const STYLE: &str = "\
figure { max-width: 860px; } figure + figure { margin-top: 16px; } .scroll + figure { margin-top: 28px; }
table { font-size: 15px; } th, td { padding: 6px 9px; }
.names-2 :is(th, td):last-child { text-align: left; white-space: normal; }
";
const WIDTH: f64 = 720.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 600.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 215.0;

/// The page.
#[must_use]
pub fn page(report: &EvaluationReport, version: &str) -> String {
    let met = report.goals.iter().filter(|goal| goal.met).count();
    let mut main = format!(
        "<p class=\"kicker\">flaz lab evaluate</p>\n<h1>A compressed cache on the machines of the FlaZ paper</h1>\n\
         <p class=\"lead\">{met} of {} goals are met, with {} of {}.</p>\n",
        report.goals.len(),
        counted(report.processor.cores.into(), "core", "cores"),
        escape(&report.processor.name)
    );
    let mut all = tables(report).into_iter();
    if let Some(goals) = all.next() {
        section(&mut main, goals);
    }
    let mut loads: Vec<&str> = report.sizes.iter().map(|row| row.load.as_str()).collect();
    loads.dedup();
    for load in loads {
        let rows: Vec<&SizeReport> = report.sizes.iter().filter(|row| row.load == load).collect();
        for chart in BY_SIZE {
            figure(
                &mut main,
                &format!("{load}: {}", chart.title),
                "By machine and by size of the cache in percent of the data.",
                &bars(chart.title, chart.value, &by_size(&rows, chart)),
            );
        }
    }
    for (title, under, slots) in [
        (
            "Extents: faster than with 64 KiB",
            "By load and machine, and by size of the extents.",
            extents(report),
        ),
        (
            "Requests split over cores: faster than whole ones",
            "By load and machine.",
            splitting(report),
        ),
    ] {
        if !slots.is_empty() {
            figure(&mut main, title, under, &bars(title, Value::Change, &slots));
        }
    }
    figure(
        &mut main,
        "Throughput while reclaiming",
        "Of each tenth of a second, as a multiple of the mean.",
        &windows(report),
    );
    for it in all {
        section(&mut main, it);
    }
    let _ = writeln!(main, "<footer>flaz {}</footer>", escape(version));
    document("flaz lab evaluate", &format!("{SERIES_STYLE}{STYLE}"), &main)
}

fn scale(least: f64, most: f64, from: f64, to: f64) -> Scale {
    Scale {
        least,
        most,
        from,
        to,
        logarithmic: false,
    }
}

/// What a bar stands for.
#[derive(Clone, Copy)]
enum Value {
    /// A change in percent.
    Change,
    /// A part of the whole, in percent.
    Share,
    /// A factor.
    Times,
}

impl Value {
    fn mark(self, value: f64) -> String {
        match self {
            Self::Change => format!("{} %", signed(value)),
            Self::Share => format!("{} %", plain(value)),
            Self::Times => format!("{}x", plain(value)),
        }
    }

    /// Where the axis ends at least.
    fn least_top(self) -> f64 {
        match self {
            Self::Change => 10.0,
            Self::Share => 100.0,
            Self::Times => 2.0,
        }
    }
}

/// A chart by machine and size of the cache.
#[derive(Clone, Copy)]
struct BySize {
    title: &'static str,
    value: Value,
    /// The bar of the uncompressed cache, if it has one.
    uncompressed: Option<fn(&CellReport) -> f64>,
    compressed: fn(&ComparedReport) -> f64,
}

/// Slides 19, 29, 20 and 21.
const BY_SIZE: [BySize; 4] = [
    BySize {
        title: "faster than uncompressed",
        value: Value::Change,
        uncompressed: None,
        compressed: |it| it.gain_percent,
    },
    BySize {
        title: "faster than the disks alone",
        value: Value::Change,
        uncompressed: Some(|it| it.beside_disks_percent),
        compressed: |it| it.cell.beside_disks_percent,
    },
    BySize {
        title: "hit ratio",
        value: Value::Share,
        uncompressed: Some(|it| it.hit_ratio * 100.0),
        compressed: |it| it.cell.hit_ratio * 100.0,
    },
    BySize {
        title: "processor time beside uncompressed",
        value: Value::Times,
        uncompressed: None,
        compressed: |it| it.processor_times,
    },
];

/// A place on the x axis of a bar chart.
struct Slot {
    /// Two lines below it.
    under: [String; 2],
    /// Number of the series, its name and its value.
    bars: Vec<(usize, String, f64)>,
}

fn by_size(rows: &[&SizeReport], chart: BySize) -> Vec<Slot> {
    let slot = |row: &&SizeReport| {
        let count = row.compressed.len();
        // The colours of the codecs are the same in all charts.
        let none = chart.uncompressed.map(|value| {
            let cell = &row.uncompressed;
            (count, cell.codec.clone(), value(cell))
        });
        let compressed = row.compressed.iter().enumerate();
        let compressed = compressed.map(|(codec, it)| (codec, it.cell.codec.clone(), (chart.compressed)(it)));
        Slot {
            under: [
                row.machine.clone(),
                format!("{} %", (row.share * 1000.0).round() / 10.0),
            ],
            bars: none.into_iter().chain(compressed).collect(),
        }
    };
    rows.iter().map(slot).collect()
}

fn extents(report: &EvaluationReport) -> Vec<Slot> {
    let places = (report.extents).chunk_by(|a, b| (&a.load, &a.machine) == (&b.load, &b.machine));
    let slot = |sizes: &[ExtentReport]| Slot {
        under: [sizes[0].load.clone(), sizes[0].machine.clone()],
        bars: (sizes.iter().enumerate())
            .map(|(series, it)| {
                let size = HumanBytes(it.extent_bytes.into()).to_string();
                (series, size, it.gain_percent)
            })
            .collect(),
    };
    places.map(slot).collect()
}

fn splitting(report: &EvaluationReport) -> Vec<Slot> {
    let slot = |it: &SplittingReport| Slot {
        under: [it.load.clone(), it.machine.clone()],
        bars: vec![(0, it.split.codec.clone(), it.gain_percent)],
    };
    report.splitting.iter().map(slot).collect()
}

fn figure(main: &mut String, title: &str, under: &str, drawing: &str) {
    // Writing to a String does not fail.
    let _ = write!(
        main,
        "<figure>\n<figcaption><h3>{}</h3><p>{}</p></figcaption>\n<div class=\"plot\">{drawing}</div></figure>\n",
        escape(title),
        escape(under)
    );
}

/// A bar for each value.
fn bars(description: &str, value: Value, slots: &[Slot]) -> String {
    let values = || slots.iter().flat_map(|slot| slot.bars.iter().map(|bar| bar.2));
    let (least, most) = (
        values().fold(0.0, f64::min),
        values().fold(value.least_top(), f64::max),
    );
    let step = round_step(most - least, 5);
    let (least, most) = ((least / step).floor() * step, (most / step).ceil() * step);
    let (x, y) = (
        scale(0.0, slots.len() as f64, LEFT, RIGHT),
        scale(least, most, BOTTOM, TOP),
    );
    let mut drawing = Drawing::new(WIDTH, 270.0, description);
    let marks = ticks(most - least, step).into_iter().map(|it| it + least);
    let marks: Vec<_> = marks.map(|it| (it, value.mark(it))).collect();
    drawing.y_axis(x, y, &marks, None);
    let width = (RIGHT - LEFT) / slots.len().max(1) as f64;
    let mut labels = Vec::new();
    for (number, slot) in slots.iter().enumerate() {
        let left = x.at(number as f64);
        let bar = width * 0.8 / slot.bars.len().max(1) as f64;
        for (at, (series, name, of)) in slot.bars.iter().enumerate() {
            let (a, b) = (y.at(*of), y.at(0.0));
            let class = series_class(*series);
            drawing.rectangle(
                &format!("bar {class}"),
                (left + width * 0.1 + bar * at as f64, a.min(b)),
                (bar, (a - b).abs()),
                &format!(
                    "{name}, {}: {}",
                    slot.under.join(", "),
                    value.mark((of * 10.0).round() / 10.0)
                ),
            );
            if number == 0 {
                labels.push((y.at(most) + 10.0, class, name.clone()));
            }
        }
        let middle = left + width / 2.0;
        for (line, text) in slot.under.iter().enumerate() {
            drawing.text(
                "tick",
                "middle",
                (middle, BOTTOM + 18.0 + 16.0 * line as f64),
                text,
            );
        }
    }
    drawing.labels(RIGHT + 10.0, labels, (20.0, BOTTOM));
    drawing.finish()
}

/// A tick with its sign.
fn signed(value: f64) -> String {
    let text = plain(value);
    match text.starts_with('-') || text == "0" {
        true => text,
        false => format!("+{text}"),
    }
}

fn windows(report: &EvaluationReport) -> String {
    let longest = report.reclaiming.iter().map(|it| it.windows.len()).max();
    let seconds = report.reclaiming.first().map_or(0.1, |it| it.window_seconds);
    let end = (longest.unwrap_or(1).max(1) as f64) * seconds;
    let most = (report.reclaiming.iter())
        .flat_map(|it| it.windows.iter().copied())
        .fold(1.2, f64::max);
    let (x, y) = (scale(0.0, end, LEFT, RIGHT), scale(0.0, most, BOTTOM, TOP));
    let mut drawing = Drawing::new(WIDTH, 262.0, "Throughput over time");
    let marks: Vec<_> = ticks(most, 0.25)
        .into_iter()
        .map(|it| (it, format!("{it:.2}")))
        .collect();
    drawing.y_axis(x, y, &marks, None);
    let marks: Vec<_> = ticks(end, round_step(end, 6))
        .into_iter()
        .map(|it| (it, plain(it)))
        .collect();
    drawing.x_axis(x, y, &marks, "Seconds");
    let mut labels = Vec::new();
    for (number, it) in report.reclaiming.iter().enumerate() {
        // The first line is that of no codec; the others have the colours of their bars.
        let count = report.reclaiming.len();
        let class = series_class((number + count - 1) % count);
        let line: Vec<(f64, f64)> = (it.windows.iter().enumerate())
            .map(|(window, share)| (x.at((window as f64 + 0.5) * seconds), y.at(*share)))
            .collect();
        drawing.path(&format!("line {class}"), &line);
        if let Some((_, end)) = line.last() {
            labels.push((*end, class, it.codec.clone()));
        }
    }
    drawing.labels(RIGHT + 10.0, labels, (20.0, BOTTOM));
    drawing.finish()
}

fn section(main: &mut String, it: crate::text::Table) {
    let _ = writeln!(main, "<h2>{}</h2>", escape(it.title));
    if !it.paper.is_empty() {
        let _ = writeln!(main, "<p>{}</p>", prose(&it.paper));
    }
    let heads: Vec<&str> = it.heads.iter().map(AsRef::as_ref).collect();
    let class = format!("names-{}", it.names);
    main.push_str(&table(&class, &heads, it.rows));
}
