//! The page for a browser.

use std::fmt::Write;

use flaz_page::document;
use flaz_page::drawing::{Drawing, Scale, round_step};
use flaz_page::table::table;
use flaz_page::text::{escape, prose};

use super::text::{has_estimates, latency, measured, multiple, ratio, saved};
use crate::report::AdviseReport;
use crate::size::{HumanBytes, HumanCount};

const STYLE: &str = "\
:root { --curve: #1f6feb; --band: #cfe0fb; --now: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --curve: #6ea8fe; --band: #24395a; --now: #fb923c; } }
figure { max-width: 640px; }
svg .curve { stroke: var(--curve); }
svg .band { fill: var(--band); }
svg .point { fill: var(--curve); }
svg .now { fill: var(--now); }
svg text.now { fill: var(--now); font-weight: 600; }
";

/// The page.
pub(super) fn page(report: &AdviseReport) -> String {
    let mut main = format!(
        "<p class=\"kicker\">flaz advise {}</p>\n<h1>{}</h1>\n<p class=\"lead\">{}; {}; codec {}.</p>\n",
        escape(&report.cache.display().to_string()),
        prose(&report.recommendation),
        HumanBytes(report.capacity_bytes),
        prose(&measured(report)),
        report.codec
    );
    if has_estimates(report) {
        let _ = write!(
            main,
            "<figure>\n<figcaption><h3>Hit ratio by capacity</h3><p>The band is a 95 % interval.</p></figcaption>\n\
             <div class=\"plot\">{}</div></figure>\n",
            curve(report)
        );
        sizes(&mut main, report);
    }
    codecs(&mut main, report);
    let window = &report.window;
    let _ = write!(
        main,
        "<h2>The estimate</h2>\n<p>{} blocks were read; older reads count less, half after {:.0} hours. {} of the reads were of \
         sampled blocks: one block in {}. {}.</p>\n<footer>flaz {}</footer>\n",
        HumanCount(window.blocks as u64),
        window.half_life_s / 3600.0,
        HumanCount(window.sampled_blocks as u64),
        HumanCount(window.sampled_one_in),
        match window.filled_to > 0.0 {
            true => format!(
                "Simulated caches up to {} of the capacity have been full",
                multiple(window.filled_to)
            ),
            false => "No simulated cache has been full".to_owned(),
        },
        env!("CARGO_PKG_VERSION")
    );
    document("flaz advise", STYLE, &main)
}

fn curve(report: &AdviseReport) -> String {
    let x = Scale {
        least: 0.25,
        most: 4.0,
        from: 58.0,
        to: 462.0,
        logarithmic: true,
    };
    let low = report
        .curve
        .iter()
        .map(|point| point.hit_ratio.low)
        .fold(1.0, f64::min);
    let high = report
        .curve
        .iter()
        .map(|point| point.hit_ratio.high)
        .fold(0.0, f64::max);
    let least = (low * 10.0).floor() / 10.0;
    let most = ((high * 10.0).ceil() / 10.0).max(least + 0.1);
    let y = Scale {
        least,
        most,
        from: 255.0,
        to: 14.0,
        logarithmic: false,
    };
    let mut drawing = Drawing::new(
        480.0,
        301.0,
        &format!("Hit ratio by capacity. {}", report.recommendation),
    );
    let step = round_step(most - least, 5);
    let count = ((most - least) / step + 1e-9).floor() as u32;
    let ticks: Vec<(f64, String)> = (0..=count)
        .map(|tick| least + f64::from(tick) * step)
        .map(|value| (value, format!("{:.0} %", value * 100.0)))
        .collect();
    let place = |multiple: f64, value: f64| (x.at(multiple), y.at(value));
    let upper = report
        .curve
        .iter()
        .map(|point| place(point.multiple, point.hit_ratio.high));
    let lower = report
        .curve
        .iter()
        .rev()
        .map(|point| place(point.multiple, point.hit_ratio.low));
    drawing.polygon("band", &upper.chain(lower).collect::<Vec<_>>(), "95 % interval");
    drawing.y_axis(x, y, &ticks, None);
    let marks = [0.25, 0.5, 1.0, 2.0, 4.0];
    drawing.x_axis(x, y, &marks.map(|it| (it, multiple(it))), "Capacity");
    let line: Vec<_> = report
        .curve
        .iter()
        .map(|point| place(point.multiple, point.hit_ratio.value))
        .collect();
    drawing.path("line curve", &line);
    for it in marks {
        let Some(point) = report
            .curve
            .iter()
            .find(|point| (point.multiple - it).abs() < 1e-9)
        else {
            continue;
        };
        let class = if it == 1.0 { "mark now" } else { "mark point" };
        let bytes = HumanBytes((report.capacity_bytes as f64 * it) as u64);
        let title = format!("{} ({bytes}): {}", multiple(it), ratio(report, point.hit_ratio));
        drawing.dot(class, place(it, point.hit_ratio.value), 5.0, &title);
        if it == 1.0 {
            let (left, top) = place(it, point.hit_ratio.value);
            // Below the curve, unless the axis is there.
            let below = if top + 24.0 < y.from { 18.0 } else { -10.0 };
            drawing.text("line-label now", "start", (left + 10.0, top + below), "now");
        }
    }
    drawing.finish()
}

fn sizes(main: &mut String, report: &AdviseReport) {
    let rows = report.sizes.iter().map(|size| {
        vec![
            multiple(size.multiple),
            HumanBytes(size.capacity_bytes).to_string(),
            ratio(report, size.hit_ratio),
            latency(size.mean_us),
            saved(size.origin_blocks_saved_per_s),
        ]
    });
    let heads = [
        "Capacity",
        "Bytes",
        "Hits",
        "Mean latency",
        "Origin reads saved per second",
    ];
    main.push_str("<h2>Other capacities</h2>\n");
    main.push_str(&table("", &heads, rows));
}

fn codecs(main: &mut String, report: &AdviseReport) {
    if let Some(why) = report.codecs_missing() {
        main.push_str(&format!("<h2>Other codecs</h2>\n<p>No comparison: {why}.</p>\n"));
        return;
    }
    let rows = report.codecs.iter().map(|codec| {
        vec![
            format!("{}{}", codec.codec, if codec.in_use { " (in use)" } else { "" }),
            format!("{:.2}:1", codec.ratio),
            format!("{:.2}x", codec.capacity_factor),
            ratio(report, codec.hit_ratio),
            latency(codec.mean_us),
        ]
    });
    let heads = ["Codec", "Ratio", "Blocks in the cache", "Hits", "Mean latency"];
    main.push_str("<h2>Other codecs</h2>\n");
    main.push_str(&table("", &heads, rows));
}
