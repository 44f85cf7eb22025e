//! The report for a browser.

use std::f64::consts::SQRT_2;
use std::fmt::Write;

use flaz_control::size::HumanBytes;
use flaz_page::drawing::{Drawing, Scale, labels_height, plain, round_step, ticks};
use flaz_page::table::table;
use flaz_page::text::{escape, prose};
use flaz_page::{SERIES_STYLE, document, series_class};

use crate::report::{CurveReport, PointReport, ReplayReport};
use crate::text::{HEADS, INDEX_HEADS, cells, facts, index_cells, ratio};

const STYLE: &str = "\
figure { max-width: 860px; }
figure + figure { margin-top: 16px; }
table { font-size: 15px; } th, td { padding: 7px 9px; }
svg .band { opacity: 0.15; }
svg .without { stroke: var(--soft); } svg text.without { stroke: none; }
";
/// So many sizes have a mark of their own.
const SIZES_MARKED_MAX: usize = 6;
/// Room beside the sizes on the axis, as a factor.
const SIZES_ROOM: f64 = 1.2;
const WIDTH: f64 = 700.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 490.0;
const TOP: f64 = 14.0;
/// Place of the lowest label above the horizontal axis.
const LABELS_END: f64 = 5.0;

/// The page.
#[must_use]
pub fn page(report: &ReplayReport, version: &str) -> String {
    let name = report.trace.path.file_name().unwrap_or_default().display();
    let mut main = format!(
        "<p class=\"kicker\">flaz lab replay {}</p>\n<h1>How large a cache?</h1>\n<p class=\"lead\">{}.</p>\n",
        escape(&name.to_string()),
        prose(&report.recommendation)
    );
    // Writing to a String does not fail.
    let _ = write!(
        main,
        "<figure id=\"hits\">\n<figcaption><h3>Hit ratio by capacity</h3><p>Lines: simulated caches, with their 95 % intervals. Dots: \
         replays of the engine.</p></figcaption>\n<div class=\"plot\">{}</div></figure>\n",
        hits(report)
    );
    let _ = write!(
        main,
        "<figure id=\"latency\">\n<figcaption><h3>Mean latency of a read</h3><p>On the modelled devices, without \
         queueing.</p></figcaption>\n<div class=\"plot\">{}</div></figure>\n",
        latencies(report)
    );
    main.push_str("<h2>Replays</h2>\n");
    main.push_str(&table(
        "names-3",
        &HEADS,
        report.results.iter().map(|it| cells(it).to_vec()),
    ));
    let index: Vec<_> = report.results.iter().filter_map(index_cells).collect();
    if !index.is_empty() {
        main.push_str("<h2>Index pages</h2>\n");
        main.push_str(&table(
            "names-3",
            &INDEX_HEADS,
            index.into_iter().map(|it| it.to_vec()),
        ));
    }
    main.push_str("<h2>What was replayed</h2>\n<dl>\n");
    for (name, text) in facts(report) {
        let _ = writeln!(main, "<dt>{name}</dt><dd>{}</dd>", prose(&text));
    }
    main.push_str("</dl>\n");
    let errors = report.curves.iter().map(|it| {
        let points = |error: f64| format!("{:.1} points", error * 100.0);
        let error = it.error_max.map_or("-".to_owned(), points);
        vec![label(&it.codec, &it.policy), error]
    });
    main.push_str("<h2>Error of the curves</h2>\n");
    let heads = ["Curve", "Largest difference from the replays"];
    main.push_str(&table("", &heads, errors));
    let _ = writeln!(main, "<footer>flaz {}</footer>", escape(version));
    document("flaz lab replay", &format!("{SERIES_STYLE}{STYLE}"), &main)
}

fn label(codec: &str, policy: &str) -> String {
    format!("{codec}, {policy}")
}

/// The bottom of the charts: their labels have room above it.
fn bottom(report: &ReplayReport) -> f64 {
    // One more for the line without a cache.
    (TOP + labels_height(report.curves.len() + 1) + LABELS_END).max(255.0)
}

/// The classes of a codec and policy.
fn class(report: &ReplayReport, codec: &str, policy: &str) -> String {
    let number = report
        .curves
        .iter()
        .position(|it| it.codec == codec && it.policy == policy);
    series_class(number.unwrap_or(0))
}

/// The axis of the capacities, and its marks.
fn capacities(least: u64, most: u64) -> (Scale, Vec<(f64, String)>) {
    let (least, most) = (least.max(1), most.max(least.max(1) * 2));
    let scale = Scale {
        least: least as f64,
        most: most as f64,
        from: LEFT,
        to: RIGHT,
        logarithmic: true,
    };
    let (first, last) = (least.ilog2() + u32::from(!least.is_power_of_two()), most.ilog2());
    let step = (last.saturating_sub(first) / 6 + 1) as usize;
    let marks = (first..=last).step_by(step).map(|power| {
        let bytes = 1_u64 << power;
        let text = match power {
            40.. => format!("{} TiB", bytes >> 40),
            30.. => format!("{} GiB", bytes >> 30),
            20.. => format!("{} MiB", bytes >> 20),
            _ => HumanBytes(bytes).to_string(),
        };
        (bytes as f64, text)
    });
    (scale, marks.collect())
}

fn hits(report: &ReplayReport) -> String {
    let points = report
        .curves
        .iter()
        .flat_map(|it| &it.points)
        .map(|point| point.capacity_bytes);
    let sizes = points.chain(report.results.iter().map(|it| it.capacity_bytes));
    let (least, most) = sizes.fold((u64::MAX, 1), |(least, most), size| {
        (least.min(size), most.max(size))
    });
    let (x, marks) = capacities(least, most);
    let y = Scale {
        least: 0.0,
        most: 1.0,
        from: bottom(report),
        to: TOP,
        logarithmic: false,
    };
    let mut drawing = Drawing::new(WIDTH, y.from + 46.0, "Hit ratio by capacity");
    let ticks: Vec<(f64, String)> = (0..=5)
        .map(|tick| f64::from(tick) / 5.0)
        .map(|it| (it, format!("{:.0} %", it * 100.0)))
        .collect();
    drawing.y_axis(x, y, &ticks, None);
    drawing.x_axis(x, y, &marks, "Capacity");
    let mut labels = Vec::new();
    for curve in &report.curves {
        let class = class(report, &curve.codec, &curve.policy);
        let place = |point: &PointReport, ratio: f64| (x.at(point.capacity_bytes as f64), y.at(ratio));
        let upper = curve.points.iter().map(|it| place(it, it.hit_ratio.high));
        let lower = curve.points.iter().rev().map(|it| place(it, it.hit_ratio.low));
        let band: Vec<(f64, f64)> = upper.chain(lower).collect();
        drawing.polygon(&format!("band {class}"), &band, "95 % interval");
        let line: Vec<(f64, f64)> = (curve.points.iter())
            .map(|it| place(it, it.hit_ratio.value))
            .collect();
        drawing.path(&format!("line {class}"), &line);
        if let Some((_, end)) = line.last() {
            labels.push((*end, label(&curve.codec, &curve.policy), class));
        }
    }
    for result in &report.results {
        let place = (x.at(result.capacity_bytes as f64), y.at(result.hit_ratio.value));
        let title = format!(
            "{}, {}: {}",
            HumanBytes(result.cache_bytes),
            label(&result.codec, &result.policy),
            ratio(result.hit_ratio)
        );
        drawing.dot(
            &format!("dot {}", class(report, &result.codec, &result.policy)),
            place,
            5.0,
            &title,
        );
    }
    name(&mut drawing, labels, y);
    drawing.finish()
}

/// Labels beside the ends of lines.
fn name(drawing: &mut Drawing, labels: Vec<(f64, String, String)>, y: Scale) {
    let labels = labels.into_iter().map(|(at, text, class)| (at, class, text));
    let limits = (y.to + 6.0, y.from - LABELS_END);
    drawing.labels_with_lines(RIGHT + 10.0, labels.collect(), limits);
}

fn latencies(report: &ReplayReport) -> String {
    let of = |curve: &CurveReport| {
        let results = report
            .results
            .iter()
            .filter(|it| it.codec == curve.codec && it.policy == curve.policy);
        results.collect::<Vec<_>>()
    };
    let sizes = report.results.iter().map(|it| it.cache_bytes);
    let (least, most) = sizes.fold((u64::MAX, 1), |(least, most), size| {
        (least.min(size), most.max(size))
    });
    // Room beside the first size and the last one; a single one is in the middle.
    let room = if least == most { SQRT_2 } else { SIZES_ROOM };
    let (x, powers) = capacities((least as f64 / room) as u64, (most as f64 * room) as u64);
    let mut marks: Vec<u64> = report.results.iter().map(|it| it.cache_bytes).collect();
    marks.sort_unstable();
    marks.dedup();
    let marks = match marks.len() {
        ..=SIZES_MARKED_MAX => marks
            .into_iter()
            .map(|it| (it as f64, HumanBytes(it).to_string()))
            .collect(),
        _ => powers,
    };
    let without = report.without_cache.mean_us / 1000.0;
    let slowest = report
        .results
        .iter()
        .map(|it| it.read.mean_us / 1000.0)
        .fold(without, f64::max)
        .max(0.001);
    let step = round_step(slowest, 5);
    let y = Scale {
        least: 0.0,
        most: (slowest / step).ceil() * step,
        from: bottom(report),
        to: TOP,
        logarithmic: false,
    };
    let mut drawing = Drawing::new(WIDTH, y.from + 46.0, "Mean latency of a read by capacity");
    let ticks: Vec<(f64, String)> = ticks(y.most, step)
        .into_iter()
        .map(|it| (it, format!("{} ms", plain(it))))
        .collect();
    drawing.y_axis(x, y, &ticks, None);
    drawing.x_axis(x, y, &marks, "Size of the cache device");
    drawing.line("line without", (LEFT, y.at(without)), (RIGHT, y.at(without)));
    let mut labels = vec![(y.at(without), "no cache".to_owned(), "without".to_owned())];
    for curve in &report.curves {
        let class = class(report, &curve.codec, &curve.policy);
        let mut results = of(curve);
        results.sort_by_key(|it| it.cache_bytes);
        let line: Vec<(f64, f64)> = (results.iter())
            .map(|it| (x.at(it.cache_bytes as f64), y.at(it.read.mean_us / 1000.0)))
            .collect();
        drawing.path(&format!("line {class}"), &line);
        for (place, result) in line.iter().zip(&results) {
            let title = format!(
                "{}, {}: {:.3} ms",
                HumanBytes(result.cache_bytes),
                label(&result.codec, &result.policy),
                result.read.mean_us / 1000.0
            );
            drawing.dot(&format!("dot {class}"), *place, 5.0, &title);
        }
        if let Some((_, end)) = line.last() {
            labels.push((*end, label(&curve.codec, &curve.policy), class));
        }
    }
    name(&mut drawing, labels, y);
    drawing.finish()
}
