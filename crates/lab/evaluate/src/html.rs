//! The report for a browser: charts of the gain by cache size and of throughput over time, and the tables.

use std::fmt::Write;

use flaz_control::size::counted;
use flaz_page::drawing::{Drawing, Scale, plain, round_step, ticks};
use flaz_page::table::table;
use flaz_page::text::{escape, prose};
use flaz_page::{SERIES_STYLE, document, series_class};

use crate::report::{EvaluationReport, SizeReport};
use crate::text::{percent, tables};

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
        // Writing to a String does not fail.
        let _ = write!(
            main,
            "<figure>\n<figcaption><h3>{}: faster than uncompressed</h3><p>By machine and by size of the cache in percent of \
             the data.</p></figcaption>\n<div class=\"plot\">{}</div></figure>\n",
            escape(load),
            gains(&rows)
        );
    }
    let _ = write!(
        main,
        "<figure>\n<figcaption><h3>Throughput while reclaiming</h3><p>Of each tenth of a second, as a multiple of the mean.</p></figcaption>\n\
         <div class=\"plot\">{}</div></figure>\n",
        windows(report)
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

/// A bar for each machine, size and codec.
fn gains(rows: &[&SizeReport]) -> String {
    let gains = || {
        rows.iter()
            .flat_map(|row| row.compressed.iter().map(|it| it.gain_percent))
    };
    let (least, most) = (gains().fold(0.0, f64::min), gains().fold(10.0, f64::max));
    let step = round_step(most - least, 5);
    let (least, most) = ((least / step).floor() * step, (most / step).ceil() * step);
    let (x, y) = (
        scale(0.0, rows.len() as f64, LEFT, RIGHT),
        scale(least, most, BOTTOM, TOP),
    );
    let mut drawing = Drawing::new(WIDTH, 270.0, "Gain by machine and cache size");
    let marks = ticks(most - least, step).into_iter().map(|it| it + least);
    let marks: Vec<_> = marks.map(|it| (it, format!("{} %", signed(it)))).collect();
    drawing.y_axis(x, y, &marks, None);
    let slot = (RIGHT - LEFT) / rows.len().max(1) as f64;
    let mut labels = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let left = x.at(number as f64);
        let width = slot * 0.8 / row.compressed.len().max(1) as f64;
        for (codec, it) in row.compressed.iter().enumerate() {
            let (a, b) = (y.at(it.gain_percent), y.at(0.0));
            let class = series_class(codec);
            drawing.rectangle(
                &format!("bar {class}"),
                (left + slot * 0.1 + width * codec as f64, a.min(b)),
                (width, (a - b).abs()),
                &format!(
                    "{} on {}: {}",
                    it.cell.codec,
                    row.machine,
                    percent(it.gain_percent)
                ),
            );
            if number == 0 {
                labels.push((y.at(most) + 10.0, class, it.cell.codec.clone()));
            }
        }
        let middle = left + slot / 2.0;
        drawing.text("tick", "middle", (middle, BOTTOM + 18.0), &row.machine);
        let share = format!("{} %", (row.share * 1000.0).round() / 10.0);
        drawing.text("tick", "middle", (middle, BOTTOM + 34.0), &share);
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
