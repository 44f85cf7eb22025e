//! The report for a browser.

use std::fmt::Write;

use flaz_control::size::HumanBytes;
use flaz_page::document;
use flaz_page::drawing::{Drawing, Scale};
use flaz_page::table::table;
use flaz_page::text::escape;

use crate::report::{CurveReport, PointReport, ReplayReport};
use crate::text::{HEADS, INDEX_HEADS, cells, facts, index_cells, ratio};

const STYLE: &str = "\
:root { --c0: #1f6feb; --c1: #c2410c; --c2: #15803d; --c3: #7e22ce; --c4: #a16207; --c5: #0f766e; }
@media (prefers-color-scheme: dark) { :root { --c0: #6ea8fe; --c1: #fb923c; --c2: #4ade80; --c3: #c084fc; --c4: #facc15; --c5: #2dd4bf; } }
figure { max-width: 860px; }
figure + figure { margin-top: 16px; }
table { font-size: 15px; } th, td { padding: 7px 9px; } .facts td { text-align: left; white-space: normal; }
svg .c0 { stroke: var(--c0); } svg .c1 { stroke: var(--c1); } svg .c2 { stroke: var(--c2); }
svg .c3 { stroke: var(--c3); } svg .c4 { stroke: var(--c4); } svg .c5 { stroke: var(--c5); }
svg .dot, svg .band { stroke: none; } svg .band { opacity: 0.15; }
svg .band.c0 { fill: var(--c0); } svg .band.c1 { fill: var(--c1); } svg .band.c2 { fill: var(--c2); }
svg .band.c3 { fill: var(--c3); } svg .band.c4 { fill: var(--c4); } svg .band.c5 { fill: var(--c5); }
svg .dot.c0, svg text.c0 { fill: var(--c0); stroke: none; } svg .dot.c1, svg text.c1 { fill: var(--c1); stroke: none; }
svg .dot.c2, svg text.c2 { fill: var(--c2); stroke: none; } svg .dot.c3, svg text.c3 { fill: var(--c3); stroke: none; }
svg .dot.c4, svg text.c4 { fill: var(--c4); stroke: none; } svg .dot.c5, svg text.c5 { fill: var(--c5); stroke: none; }
";
/// Number of colours.
const COLOURS: usize = 6;
/// So many sizes have a mark of their own.
const SIZES_MARKED_MAX: usize = 6;
const WIDTH: f64 = 640.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 490.0;

/// The page.
#[must_use]
pub fn page(report: &ReplayReport, version: &str) -> String {
    let name = report.trace.path.file_name().unwrap_or_default().display();
    let mut main = format!(
        "<p class=\"kicker\">flaz lab replay {}</p>\n<h1>How large a cache?</h1>\n<p class=\"lead\">{}.</p>\n",
        escape(&name.to_string()),
        escape(&report.recommendation)
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
        "",
        &HEADS,
        report.results.iter().map(|it| cells(it).to_vec()),
    ));
    let index: Vec<_> = report.results.iter().filter_map(index_cells).collect();
    if !index.is_empty() {
        main.push_str("<h2>Index pages</h2>\n");
        main.push_str(&table("", &INDEX_HEADS, index.into_iter().map(|it| it.to_vec())));
    }
    main.push_str("<h2>What was replayed</h2>\n");
    let facts = facts(report).into_iter();
    main.push_str(&table(
        "facts",
        &["", ""],
        facts.map(|(name, text)| vec![name.to_owned(), text]),
    ));
    let errors = report.curves.iter().map(|it| {
        let points = |error: f64| format!("{:.1} points", error * 100.0);
        let error = it.error_max.map_or("-".to_owned(), points);
        vec![label(&it.codec, &it.policy), error]
    });
    main.push_str("<h2>Error of the curves</h2>\n");
    let heads = ["Curve", "Largest difference from the replays"];
    main.push_str(&table("", &heads, errors));
    let _ = writeln!(main, "<footer>flaz {}</footer>", escape(version));
    document("flaz lab replay", STYLE, &main)
}

fn label(codec: &str, policy: &str) -> String {
    format!("{codec}, {policy}")
}

/// The colour of a codec and policy.
fn class(report: &ReplayReport, codec: &str, policy: &str) -> String {
    let number = report
        .curves
        .iter()
        .position(|it| it.codec == codec && it.policy == policy);
    format!("c{}", number.unwrap_or(0) % COLOURS)
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
        from: 255.0,
        to: 14.0,
        logarithmic: false,
    };
    let mut drawing = Drawing::new(WIDTH, 301.0, "Hit ratio by capacity");
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
    name(&mut drawing, labels);
    drawing.finish()
}

/// Labels beside the ends of lines.
fn name(drawing: &mut Drawing, labels: Vec<(f64, String, String)>) {
    let labels = labels.into_iter().map(|(at, text, class)| (at, class, text));
    drawing.labels(RIGHT + 10.0, labels.collect(), (20.0, 250.0));
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
    let (x, powers) = capacities(least, most);
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
    let step = flaz_page::drawing::round_step(slowest, 5);
    let y = Scale {
        least: 0.0,
        most: (slowest / step).ceil() * step,
        from: 255.0,
        to: 14.0,
        logarithmic: false,
    };
    let mut drawing = Drawing::new(WIDTH, 301.0, "Mean latency of a read by capacity");
    let ticks: Vec<(f64, String)> = flaz_page::drawing::ticks(y.most, step)
        .into_iter()
        .map(|it| (it, format!("{it} ms")))
        .collect();
    drawing.y_axis(x, y, &ticks, None);
    drawing.x_axis(x, y, &marks, "Size of the cache device");
    drawing.line("axis", (LEFT, y.at(without)), (RIGHT, y.at(without)));
    let mut labels = vec![(y.at(without), "no cache".to_owned(), String::new())];
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
                "{}: {:.3} ms",
                HumanBytes(result.cache_bytes),
                result.read.mean_us / 1000.0
            );
            drawing.dot(&format!("dot {class}"), *place, 5.0, &title);
        }
        if let Some((_, end)) = line.last() {
            labels.push((*end, label(&curve.codec, &curve.policy), class));
        }
    }
    name(&mut drawing, labels);
    drawing.finish()
}
