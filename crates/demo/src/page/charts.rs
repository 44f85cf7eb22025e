//! The four charts of the page.

use crate::outcome::{Holdings, Outcome, Run, Variant};
use flaz_control::size::{HumanBytes, HumanCount};
use flaz_page::drawing::{Drawing, Scale, plain, round_step, ticks};

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 320.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = HEIGHT - 46.0;
const LEFT: f64 = 62.0;
/// Space for the labels at the ends of the lines.
const RIGHT: f64 = WIDTH - 66.0;
/// Bytes in a MiB.
const MIB: f64 = (1u64 << 20) as f64;

/// The class that sets the colour and dashes of a variant.
pub fn class(variant: Variant) -> &'static str {
    match variant {
        Variant::NoCache => "c0",
        Variant::Uncompressed => "c1",
        Variant::Compressed => "c2",
        Variant::Auto => "c3",
    }
}

fn y_scale(most: f64) -> Scale {
    Scale {
        least: 0.0,
        most,
        from: BOTTOM,
        to: TOP,
        logarithmic: false,
    }
}

fn x_scale(most: f64, from: f64, to: f64) -> Scale {
    Scale {
        least: 0.0,
        most: most.max(f64::MIN_POSITIVE),
        from,
        to,
        logarithmic: false,
    }
}

fn percent_ticks() -> Vec<(f64, String)> {
    (0..=5)
        .map(|fifth| (f64::from(fifth) / 5.0, format!("{} %", fifth * 20)))
        .collect()
}

fn second_ticks(most: f64) -> Vec<(f64, String)> {
    ticks(most, round_step(most, 7))
        .into_iter()
        .map(|second| (second, plain(second)))
        .collect()
}

/// One line with spots to hover over.
fn series(drawing: &mut Drawing, outcome: &Outcome, run: &Run, points: &[((f64, f64), String)]) {
    let places: Vec<(f64, f64)> = points.iter().map(|(place, _)| *place).collect();
    drawing.path(&format!("line {}", class(run.variant)), &places);
    for (place, title) in points {
        drawing.spot(
            class(run.variant),
            *place,
            &format!("{}: {title}", outcome.title(run)),
        );
    }
}

/// Hit ratio over the requests of the warm-up, then over the seconds of the measured phase.
pub fn hit_ratio(outcome: &Outcome) -> String {
    let mut drawing = Drawing::new(WIDTH, HEIGHT, "Hit ratio during the warm-up and over time");
    let y = y_scale(1.0);
    let split = LEFT + (RIGHT - LEFT) * 0.36;
    let warmup_most = outcome
        .runs
        .iter()
        .flat_map(|run| &run.series.warmup)
        .map(|(requests, _)| *requests)
        .max();
    let left = x_scale(warmup_most.unwrap_or(1) as f64 / 1000.0, LEFT, split - 12.0);
    let right = x_scale(outcome.parameters.measured_s, split + 12.0, RIGHT);
    drawing.rectangle(
        "shade",
        (left.from, TOP),
        (left.to - left.from, BOTTOM - TOP),
        "warm-up",
    );
    drawing.y_axis(left, y, &percent_ticks(), Some("share of blocks read"));
    let unlabelled: Vec<_> = percent_ticks()
        .into_iter()
        .map(|(value, _)| (value, String::new()))
        .collect();
    drawing.y_axis(right, y, &unlabelled, None);
    let thousands = ticks(left.most, round_step(left.most, 3));
    let thousands: Vec<_> = thousands.into_iter().map(|value| (value, plain(value))).collect();
    drawing.x_axis(left, y, &thousands, "thousand requests");
    drawing.x_axis(right, y, &second_ticks(right.most), "seconds");
    for (panel, name) in [(left, "warm-up"), (right, "measured")] {
        drawing.text(
            "panel",
            "middle",
            ((panel.from + panel.to) / 2.0, y.at(0.05)),
            name,
        );
    }
    let mut labels = Vec::new();
    for run in &outcome.runs {
        let point =
            |x: f64, ratio: f64, when: String| ((x, y.at(ratio)), format!("{:.1} % {when}", ratio * 100.0));
        let warmup: Vec<_> = run
            .series
            .warmup
            .iter()
            .map(|(requests, ratio)| {
                let when = format!("after {} warm-up requests", HumanCount(*requests));
                point(left.at(*requests as f64 / 1000.0), *ratio, when)
            })
            .collect();
        series(&mut drawing, outcome, run, &warmup);
        let measured: Vec<_> = run
            .series
            .hit_ratio_series
            .iter()
            .map(|(second, ratio)| point(right.at(*second), *ratio, format!("at {second:.1} s")))
            .collect();
        series(&mut drawing, outcome, run, &measured);
        let text = format!("{:.1} %", run.hit_ratio * 100.0);
        labels.push((y.at(run.hit_ratio), class(run.variant).to_owned(), text));
    }
    drawing.labels(RIGHT + 8.0, labels, (TOP + 4.0, BOTTOM));
    drawing.finish()
}

/// Requests per second over the seconds of the measured phase.
pub fn throughput(outcome: &Outcome) -> String {
    let mut drawing = Drawing::new(WIDTH, HEIGHT, "Requests per second over time");
    let highest = outcome
        .runs
        .iter()
        .flat_map(|run| &run.series.iops_series)
        .map(|(_, iops)| *iops)
        .fold(1.0, f64::max);
    let step = round_step(highest, 5);
    let y = y_scale((highest / step).ceil() * step);
    let x = x_scale(outcome.parameters.measured_s, LEFT, RIGHT);
    let y_ticks: Vec<_> = ticks(y.most, step)
        .into_iter()
        .map(|iops| (iops, HumanCount(iops as u64).to_string()))
        .collect();
    drawing.y_axis(x, y, &y_ticks, Some("requests per second"));
    drawing.x_axis(x, y, &second_ticks(x.most), "seconds");
    let mut labels = Vec::new();
    for run in &outcome.runs {
        let points: Vec<_> = run
            .series
            .iops_series
            .iter()
            .map(|(second, iops)| {
                (
                    (x.at(*second), y.at(*iops)),
                    format!("{iops:.0} requests per second at {second:.1} s"),
                )
            })
            .collect();
        series(&mut drawing, outcome, run, &points);
        let text = HumanCount(run.served.iops.round() as u64).to_string();
        labels.push((y.at(run.served.iops), class(run.variant).to_owned(), text));
    }
    drawing.labels(RIGHT + 8.0, labels, (TOP + 4.0, BOTTOM));
    drawing.finish()
}

/// Cumulative share of requests by latency.
pub fn latency(outcome: &Outcome) -> String {
    let mut drawing = Drawing::new(WIDTH, HEIGHT, "Share of requests completed within a time");
    let all = || {
        outcome
            .runs
            .iter()
            .flat_map(|run| &run.served.latency_cdf)
            .map(|(micros, _)| *micros)
    };
    let power = |micros: f64, round: fn(f64) -> f64| 10f64.powf(round(micros.max(1.0).log10()));
    let least = power(all().fold(1e6, f64::min), f64::floor);
    let most = power(all().fold(10.0, f64::max), f64::ceil).max(least * 10.0);
    let x = Scale {
        least,
        most,
        from: LEFT,
        to: RIGHT,
        logarithmic: true,
    };
    let y = y_scale(1.0);
    drawing.y_axis(x, y, &percent_ticks(), Some("share of requests"));
    let mut marks = Vec::new();
    let mut decade = least;
    while decade <= most * 1.001 {
        marks.push((decade, latency_label(decade)));
        marks.extend(
            (2..10)
                .map(|times| (decade * f64::from(times), String::new()))
                .filter(|(mark, _)| *mark < most),
        );
        decade *= 10.0;
    }
    drawing.x_axis(x, y, &marks, "latency (logarithmic)");
    for run in &outcome.runs {
        let points: Vec<(f64, f64)> = run
            .served
            .latency_cdf
            .iter()
            .map(|(micros, share)| (x.at(*micros), y.at(*share)))
            .collect();
        drawing.path(&format!("line {}", class(run.variant)), &points);
        for ((micros, share), place) in run.served.latency_cdf.iter().zip(points).step_by(3) {
            let text = format!(
                "{}: {:.1} % within {}",
                outcome.title(run),
                share * 100.0,
                micro_text(*micros)
            );
            drawing.spot(class(run.variant), place, &text);
        }
    }
    // Medians are marked where the lines cross one half.
    for run in &outcome.runs {
        let place = (x.at(run.served.latency_us.p50), y.at(0.5));
        let text = format!(
            "{}: median {}",
            outcome.title(run),
            micro_text(run.served.latency_us.p50)
        );
        drawing.rectangle(
            &format!("mark {}", class(run.variant)),
            (place.0 - 4.0, place.1 - 4.0),
            (8.0, 8.0),
            &text,
        );
    }
    drawing.finish()
}

fn latency_label(micros: f64) -> String {
    match micros {
        micros if micros < 999.0 => format!("{micros:.0} µs"),
        micros if micros < 999_000.0 => format!("{:.0} ms", micros / 1e3),
        micros => format!("{:.0} s", micros / 1e6),
    }
}

/// A latency as in the tables, with the micro sign.
pub fn micro_text(micros: f64) -> String {
    flaz_control::size::HumanMicros(micros)
        .to_string()
        .replace(" us", " µs")
}

/// Use of the SSD's space, and the effective capacity next to it.
pub fn holdings(outcome: &Outcome) -> String {
    let held: Vec<(&Run, Holdings)> = outcome
        .runs
        .iter()
        .filter_map(|run| Some((run, run.holdings?)))
        .collect();
    // Two rows fit the height of the other charts.
    let height = HEIGHT + 90.0 * held.len().saturating_sub(2) as f64;
    let mut drawing = Drawing::new(WIDTH, height, "Contents of the SSD");
    let highest = held
        .iter()
        .flat_map(|(_, held)| [held.ssd_bytes, held.logical_bytes])
        .max()
        .unwrap_or(1);
    let x = Scale {
        least: 0.0,
        most: highest as f64 / MIB * 1.04,
        from: 130.0,
        to: WIDTH - 20.0,
        logarithmic: false,
    };
    let y = Scale {
        least: 0.0,
        most: 1.0,
        from: height - 86.0,
        to: TOP,
        logarithmic: false,
    };
    let marks: Vec<_> = ticks(x.most, round_step(x.most, 8))
        .into_iter()
        .map(|mib| (mib, plain(mib)))
        .collect();
    drawing.x_axis(x, y, &marks, "MiB");
    drawing.line("axis", (x.from, y.from), (x.from, y.to));
    let row_height = (y.from - y.to) / held.len().max(1) as f64;
    for ((run, held), row) in held.iter().zip(0..) {
        let top = y.to + f64::from(row) * row_height + 6.0;
        held_row(
            &mut drawing,
            x,
            (run.variant, outcome.title(run), held),
            (top, (row_height - 30.0) / 2.0),
        );
    }
    let ssd = x.at(outcome.parameters.ssd_bytes as f64 / MIB);
    drawing.line("limit", (ssd, y.from), (ssd, y.to));
    held_legend(&mut drawing, height);
    drawing.finish()
}

/// One run: the space of the SSD above, the data that it stands for below, as bars from `top` on, `bar` high.
fn held_row(
    drawing: &mut Drawing,
    x: Scale,
    (variant, title, held): (Variant, &str, &Holdings),
    (top, bar): (f64, f64),
) {
    drawing.text(
        &format!("line-label {}", class(variant)),
        "end",
        (x.from - 10.0, top + 12.0),
        title,
    );
    drawing.text("tick", "end", (x.from - 10.0, top + bar - 4.0), "space used");
    drawing.text(
        "tick",
        "end",
        (x.from - 10.0, top + bar * 1.5 + 11.0),
        "data cached",
    );
    let mut at = 0.0;
    for (kind, what, bytes) in segments(held) {
        let from = x.at(at / MIB);
        at += bytes as f64;
        let words = format!("{title}: {} for {what}", HumanBytes(bytes));
        let class = format!("{kind} {}", class(variant));
        drawing.rectangle(&class, (from, top), (x.at(at / MIB) - from, bar), &words);
    }
    let to = x.at(held.logical_bytes as f64 / MIB);
    let words = format!(
        "{title}: corresponds to {} of data",
        HumanBytes(held.logical_bytes)
    );
    drawing.rectangle(
        &format!("held {}", class(variant)),
        (x.from, top + bar + 4.0),
        (to - x.from, bar),
        &words,
    );
    let text = format!(
        "{} ({:.2}× the SSD)",
        HumanBytes(held.logical_bytes),
        held.effective()
    );
    drawing.text(
        "bar-label",
        "start",
        (x.from + 10.0, top + bar * 1.5 + 8.5),
        &text,
    );
}

fn held_legend(drawing: &mut Drawing, height: f64) {
    for (kind, name, x, line) in [
        ("live", "compressed blocks", 62.0, 0.0),
        ("raw", "blocks stored raw", 250.0, 0.0),
        ("free", "free", 486.0, 0.0),
        ("other", "headers, stale blocks", 62.0, 1.0),
        ("metadata", "superblocks, index", 250.0, 1.0),
    ] {
        let y = height - 38.0 + line * 20.0;
        drawing.rectangle(&format!("{kind} key"), (x, y), (12.0, 12.0), name);
        drawing.text("tick", "start", (x + 17.0, y + 10.5), name);
    }
}

/// The parts of the SSD's space: class, name, bytes.
fn segments(held: &Holdings) -> [(&'static str, &'static str, u64); 5] {
    let raw = held.raw_bytes();
    [
        ("live", "compressed blocks", held.fragment_bytes - raw),
        ("raw", "blocks stored raw (about)", raw),
        (
            "other",
            "headers, padding, stale and dropped blocks",
            held.other_bytes,
        ),
        ("free", "free regions", held.free_bytes),
        (
            "metadata",
            "superblocks, index and other metadata",
            held.metadata_bytes,
        ),
    ]
}
