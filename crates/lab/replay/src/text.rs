//! The report for a terminal.

use std::fmt::Write;
use std::time::Duration;

use flaz_control::size::{HumanBytes, HumanCount, HumanDuration, HumanMicros, counted};

use flaz_page::text::wrapped;

use crate::report::{
    CurveReport, DeviceReport, IndexReport, LatencyReport, Ratio, ReplayReport, ResultReport,
};

/// Lines of a curve, and columns of a whole bar.
const CURVE_LINES_MAX: usize = 24;
const BAR_COLUMNS: f64 = 40.0;
/// Columns of a line of text.
const COLUMNS: usize = 100;
/// The 99th percentile is printed as an interval if its ends differ by this factor.
const P99_UNCERTAIN: f64 = 1.1;

/// The page.
#[must_use]
pub fn page(report: &ReplayReport, colour: bool) -> String {
    let mut page = String::new();
    for (name, text) in facts(report) {
        // Writing to a String does not fail.
        let _ = writeln!(page, "{name:<13} {text}");
    }
    for line in &report.trace.skipped {
        let _ = writeln!(page, "{:<13} {line}", "");
    }
    let rows: Vec<_> = report.results.iter().map(cells).collect();
    table(&mut page, HEADS, &rows);
    let rows: Vec<_> = report.results.iter().filter_map(index_cells).collect();
    if !rows.is_empty() {
        table(&mut page, INDEX_HEADS, &rows);
    }
    for it in &report.curves {
        curve(&mut page, it);
    }
    let (before, after) = if colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    let _ = writeln!(
        page,
        "\n{before}{}{after}",
        wrapped(&report.recommendation, COLUMNS)
    );
    page
}

/// What was replayed, by name.
pub(crate) fn facts(report: &ReplayReport) -> Vec<(&'static str, String)> {
    let trace = &report.trace;
    let time = trace
        .seconds
        .map_or("no times: --duration gives them".to_owned(), |seconds| {
            HumanDuration(Duration::try_from_secs_f64(seconds).unwrap_or_default()).to_string()
        });
    let kinds = match trace.distinguishes_writes {
        true => format!(
            "{} of {}, {} of {}",
            counted(trace.reads, "read", "reads"),
            HumanBytes(trace.read_bytes),
            counted(trace.writes, "write", "writes"),
            HumanBytes(trace.write_bytes)
        ),
        false => format!(
            "{} of {}; the format does not distinguish writes, so all are reads",
            counted(trace.reads, "request", "requests"),
            HumanBytes(trace.read_bytes)
        ),
    };
    let sample = &report.sample;
    let size = match sample.one_in {
        1 => "complete: the replay is exact".to_owned(),
        one_in => format!(
            "one block in {}, {} accesses; caches are as much smaller, and hit ratios have 95 % intervals",
            HumanCount(one_in),
            HumanCount(sample.accesses)
        ),
    };
    let ratios: Vec<String> = (report.data.ratios.iter())
        .map(|it| format!("{} {:.2}:1", it.codec, it.ratio))
        .collect();
    let built_in = if report.data.is_built_in {
        "built in (no --data given): "
    } else {
        ""
    };
    let mut facts = vec![
        ("Trace", format!("{}, {}", trace.path.display(), trace.format)),
        ("Requests", kinds),
        (
            "Footprint",
            format!(
                "{} of different blocks; {time}",
                HumanBytes(trace.footprint_bytes)
            ),
        ),
        ("Sample", size),
        ("Data", format!("{built_in}{}", report.data.source)),
        ("Codecs", ratios.join(", ")),
        ("Origin", device(&report.origin)),
        (
            "SSD",
            match report.ssd_endurance_bytes {
                Some(bytes) => format!("{}; endures {} of writes", device(&report.ssd), HumanBytes(bytes)),
                None => device(&report.ssd),
            },
        ),
        (
            "No cache",
            match trace.reads {
                0 => "no reads: hits and latencies are not defined".to_owned(),
                _ => format!(
                    "reads take {} on average, {} at the 99th percentile",
                    HumanMicros(report.without_cache.mean_us),
                    HumanMicros(report.without_cache.p99_us)
                ),
            },
        ),
    ];
    if trace.skipped_lines > 0 {
        facts.insert(
            2,
            ("Skipped", counted(trace.skipped_lines, "bad line", "bad lines")),
        );
    }
    facts
}

fn device(device: &DeviceReport) -> String {
    format!(
        "{} to the first byte, {:.0} MB/s reading, {:.0} MB/s writing",
        HumanMicros(device.latency_us),
        device.read_bytes_per_second as f64 / 1e6,
        device.write_bytes_per_second as f64 / 1e6
    )
}

/// Heads of the table.
pub(crate) const HEADS: [&str; 10] = [
    "Cache",
    "Codec",
    "Policy",
    "Hits",
    "Origin reads",
    "Origin writes",
    "SSD written",
    "SSD life",
    "Read",
    "Read p99",
];

/// The cells of a row.
pub(crate) fn cells(result: &ResultReport) -> [String; 10] {
    [
        HumanBytes(result.cache_bytes).to_string(),
        result.codec.clone(),
        result.policy.clone(),
        ratio(result.hit_ratio),
        HumanBytes(result.origin_read_bytes).to_string(),
        HumanBytes(result.origin_write_bytes).to_string(),
        match result.ssd_write_bytes_per_day {
            Some(per_day) => format!("{}/day", HumanBytes(per_day as u64)),
            None => HumanBytes(result.ssd_write_bytes).to_string(),
        },
        result.life_years.map_or("-".to_owned(), life),
        HumanMicros(result.read.mean_us).to_string(),
        p99(&result.read),
    ]
}

/// The life of an SSD.
pub(crate) fn life(years: f64) -> String {
    match years {
        years if years >= 100.0 => "> 100 years".to_owned(),
        years if years < 1.0 => format!("{:.0} days", years * 365.25),
        years => format!("{years:.1} years"),
    }
}

/// Heads of the table of index pages.
pub(crate) const INDEX_HEADS: [&str; 9] = [
    "Cache",
    "Codec",
    "Policy",
    "Index memory",
    "Pages",
    "In memory",
    "Bytes a block",
    "Page reads a lookup",
    "Pages in SSD writes",
];

/// The cells of a row; `None`: the index is a table.
pub(crate) fn index_cells(result: &ResultReport) -> Option<[String; 9]> {
    let index: &IndexReport = result.index.as_ref()?;
    let between = index.reads_between as f64 / index.reads.max(1) as f64;
    Some([
        HumanBytes(result.cache_bytes).to_string(),
        result.codec.clone(),
        result.policy.clone(),
        HumanBytes(index.bound_bytes).to_string(),
        HumanCount(index.pages).to_string(),
        HumanCount(index.pages_in_memory).to_string(),
        format!("{:.1}", index.bytes_per_block),
        format!(
            "{:.3}, {:.0} % in background",
            index.reads_per_lookup,
            between * 100.0
        ),
        format!("{:.1} %", index.written_share * 100.0),
    ])
}

/// The 99th percentile, or its interval if the sample leaves open whether it is a hit or a miss.
fn p99(read: &LatencyReport) -> String {
    let (low, high) = (HumanMicros(read.p99_low_us), HumanMicros(read.p99_high_us));
    match read.p99_high_us > read.p99_low_us * P99_UNCERTAIN {
        true => format!("{low} to {high}"),
        false => HumanMicros(read.p99_us).to_string(),
    }
}

/// A hit ratio, with half of its interval if it has one.
pub(crate) fn ratio(ratio: Ratio) -> String {
    let half = (ratio.high - ratio.low) / 2.0;
    match half > 0.0 {
        true => format!("{:.1} +- {:.1} %", ratio.value * 100.0, half * 100.0),
        false => format!("{:.1} %", ratio.value * 100.0),
    }
}

fn table<const COLUMNS: usize>(page: &mut String, heads: [&str; COLUMNS], rows: &[[String; COLUMNS]]) {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(heads[column].len())
    };
    let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
    let mut line = |cells: &[&str]| {
        let mut text = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            // Names to the left, numbers to the right.
            let _ = match column {
                1 | 2 => write!(text, "{cell:<width$}  "),
                _ => write!(text, "{cell:>width$}  "),
            };
        }
        let _ = writeln!(page, "{}", text.trim_end());
    };
    line(&[]);
    line(&heads);
    for row in rows {
        line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

fn curve(page: &mut String, curve: &CurveReport) {
    let error = curve.error_max.map_or(String::new(), |error| {
        format!("; at most {:.1} points from the replays", error * 100.0)
    });
    let _ = writeln!(
        page,
        "\nHits by capacity, {} and {}{error}",
        curve.codec, curve.policy
    );
    let step = curve.points.len().div_ceil(CURVE_LINES_MAX).max(1);
    for point in curve
        .points
        .iter()
        .rev()
        .step_by(step)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
    {
        let bar = "#".repeat((point.hit_ratio.value * BAR_COLUMNS).round() as usize);
        let size = HumanBytes(point.capacity_bytes).to_string();
        let _ = writeln!(page, "{size:>10}  {:>14} {bar}", ratio(point.hit_ratio));
    }
}
