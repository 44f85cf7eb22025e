//! The page for a terminal: at most 80 columns.

use std::fmt::Write;
use std::time::Duration;

use flaz_page::text::wrapped;

use crate::report::{AdvisePoint, AdviseRatio, AdviseReport};
use crate::size::{HumanBytes, HumanCount, HumanDuration, HumanMicros};

/// Lines of the curve.
const CURVE_LINES: usize = 11;
/// Columns of a step of the curve.
const STEP_COLUMNS: usize = 4;
/// Columns of a line.
const COLUMNS: usize = 80;

/// The page.
pub(super) fn page(report: &AdviseReport, colour: bool) -> String {
    let mut page = String::new();
    state(&mut page, report);
    if has_estimates(report) {
        sizes(&mut page, report);
    }
    codecs(&mut page, report);
    if has_estimates(report) {
        curve(&mut page, report, colour);
    }
    let recommendation = wrapped(&report.recommendation, COLUMNS);
    let (before, after) = if colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    // Writing to a String does not fail.
    let _ = writeln!(page, "\n{before}{recommendation}{after}");
    page
}

/// Whether sampled blocks were read: without them, all hit ratios are 0.
pub(super) fn has_estimates(report: &AdviseReport) -> bool {
    report.window.sampled_blocks > 0.0
}

fn state(page: &mut String, report: &AdviseReport) {
    let window = &report.window;
    let _ = writeln!(
        page,
        "Cache         {}, {}, codec {}",
        report.cache.display(),
        HumanBytes(report.capacity_bytes),
        report.codec
    );
    let _ = writeln!(
        page,
        "Reads         {} blocks in {}; half weight after {}",
        HumanCount(window.blocks as u64),
        HumanDuration(Duration::from_secs_f64(window.age_s)),
        HumanDuration(Duration::from_secs_f64(window.half_life_s))
    );
    let _ = writeln!(
        page,
        "Sample        {} reads, one block in {}, {} of memory",
        HumanCount(window.sampled_blocks as u64),
        HumanCount(window.sampled_one_in),
        HumanBytes(window.memory_bytes)
    );
    if window.filled_to < 4.0 {
        let which = match window.filled_to > 0.0 {
            true => format!(
                "caches above {} of the capacity have not",
                multiple(window.filled_to)
            ),
            false => "no simulated cache has".to_owned(),
        };
        let _ = writeln!(page, "              {which} been full: a lower bound");
    }
    let _ = writeln!(page, "Measured      {}", measured(report));
}

/// What was measured, in a line.
pub(super) fn measured(report: &AdviseReport) -> String {
    let measured = &report.measured;
    format!(
        "{:.1} % hits; a hit takes {}, a miss {}",
        measured.hit_ratio * 100.0,
        latency(measured.hit_us),
        latency(measured.miss_us)
    )
}

/// A latency; `-` without reads.
pub(super) fn latency(us: f64) -> String {
    if us > 0.0 {
        HumanMicros(us).to_string()
    } else {
        "-".to_owned()
    }
}

/// A capacity in units of the present one.
pub(super) fn multiple(multiple: f64) -> String {
    match multiple {
        0.25 => "1/4x".to_owned(),
        0.5 => "1/2x".to_owned(),
        it if it == it.round() => format!("{it:.0}x"),
        it => format!("{it:.2}x"),
    }
}

/// A hit ratio with half of its interval, or with both ends if they are not equally far; unknown if no sampled block was read.
pub(super) fn ratio(report: &AdviseReport, ratio: AdviseRatio) -> String {
    if report.window.sampled_blocks == 0.0 {
        return "-".to_owned();
    }
    let [value, low, high] = [ratio.value, ratio.low, ratio.high].map(|share| share * 100.0);
    let half = (high - low) / 2.0;
    let is_symmetric = (high - value - half).abs() < 0.1;
    match is_symmetric {
        true => format!("{value:.1} +- {half:.1} %"),
        false => format!("{value:.1} ({low:.1}-{high:.1}) %"),
    }
}

/// Reads of the origin that are saved, or added.
pub(super) fn saved(blocks_per_s: f64) -> String {
    match blocks_per_s {
        it if it.abs() < 0.05 => "0".to_owned(),
        it if it.abs() < 10.0 => format!("{it:+.1}"),
        it => format!("{it:+.0}"),
    }
}

fn sizes(page: &mut String, report: &AdviseReport) {
    let _ = writeln!(
        page,
        "\n{:<13} {:>10} {:>18} {:>13} {:>20}",
        "Capacity", "bytes", "hits", "mean latency", "origin reads saved/s"
    );
    for size in &report.sizes {
        let _ = writeln!(
            page,
            "{:<13} {:>10} {:>18} {:>13} {:>20}",
            multiple(size.multiple),
            HumanBytes(size.capacity_bytes).to_string(),
            ratio(report, size.hit_ratio),
            latency(size.mean_us),
            saved(size.origin_blocks_saved_per_s)
        );
    }
}

fn codecs(page: &mut String, report: &AdviseReport) {
    if let Some(why) = report.codecs_missing() {
        let _ = writeln!(page, "\nCodecs        {why}");
        return;
    }
    let _ = writeln!(
        page,
        "\n{:<13} {:>10} {:>18} {:>13} {:>20}",
        "Codec", "ratio", "hits", "mean latency", "blocks in the cache"
    );
    for codec in &report.codecs {
        let name = format!("{}{}", codec.codec, if codec.in_use { " (in use)" } else { "" });
        let _ = writeln!(
            page,
            "{name:<13} {:>10} {:>18} {:>13} {:>20}",
            format!("{:.2}:1", codec.ratio),
            ratio(report, codec.hit_ratio),
            latency(codec.mean_us),
            format!("{:.2}x", codec.capacity_factor)
        );
    }
}

/// The curve: a mark for each point, its interval around it.
fn curve(page: &mut String, report: &AdviseReport, colour: bool) {
    let points: Vec<&AdvisePoint> = report.curve.iter().collect();
    let least = points.iter().map(|point| point.hit_ratio.low).fold(1.0, f64::min);
    let most = points
        .iter()
        .map(|point| point.hit_ratio.high)
        .fold(0.0, f64::max);
    let (least, most) = ((least * 10.0).floor() / 10.0, (most * 10.0).ceil() / 10.0);
    let step = ((most - least) / (CURVE_LINES - 1) as f64).max(0.005);
    let _ = writeln!(page, "\nHits by capacity (| is a 95 % interval)");
    for line in (0..CURVE_LINES).rev() {
        let at = least + step * line as f64;
        let is_here = |value: f64| ((value - at) / step).abs() <= 0.5;
        let mut text = format!("{:>5.0} % ", at * 100.0);
        for point in &points {
            let ratio = point.hit_ratio;
            let in_interval = ratio.low <= at + step / 2.0 && ratio.high >= at - step / 2.0;
            let mark = match (is_here(ratio.value), point.multiple == 1.0) {
                (true, true) => "O",
                (true, false) => "*",
                (false, _) if in_interval => "|",
                _ => " ",
            };
            let mark = match (mark, colour) {
                (" ", _) | (_, false) => mark.to_owned(),
                ("|", true) => format!("\x1b[2m{mark}\x1b[0m"),
                (_, true) => format!("\x1b[36m{mark}\x1b[0m"),
            };
            let _ = write!(text, "{mark:<0$}", STEP_COLUMNS - 1 + mark.len());
        }
        let _ = writeln!(page, "{}", text.trim_end());
    }
    let mut axis = " ".repeat(8);
    for point in &points {
        let label = match point.multiple.log2() {
            log if (log - log.round()).abs() < 1e-9 => multiple(point.multiple),
            _ => String::new(),
        };
        let _ = write!(axis, "{label:<STEP_COLUMNS$}");
    }
    let _ = writeln!(page, "{}", axis.trim_end());
}
