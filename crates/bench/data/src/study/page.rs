//! The result of a study as text.

use std::fmt::Write;

use super::estimate::Estimate;
use super::outlook::SPARE_SHARE;
use super::report::{ChunkReport, StudyReport};
use super::window::{BLOCK_BYTES, CHUNK_BYTES};
use crate::human;

/// Width of a histogram bar in columns.
const BAR_COLUMNS: usize = 32;

/// The page.
#[must_use]
pub fn study(report: &StudyReport) -> String {
    let mut page = String::new();
    head(&mut page, report);
    table(&mut page, report);
    for row in report.chunks.iter().filter(|row| row.chunk_bytes == BLOCK_BYTES) {
        let same_codec = report.chunks.iter().filter(|other| other.codec == row.codec);
        histogram(&mut page, &same_codec.collect::<Vec<_>>());
    }
    outlook(&mut page, report);
    page
}

fn line(page: &mut String, label: &str, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(page, "{}", format!("{label:<13} {text}").trim_end());
}

fn head(page: &mut String, report: &StudyReport) {
    line(
        page,
        "Studied",
        &format!(
            "{}: {} in {} {}",
            report.paths.join(", "),
            human::bytes(report.coverage.total_bytes),
            report.coverage.files,
            if report.coverage.files == 1 {
                "file"
            } else {
                "files"
            }
        ),
    );
    let read = human::bytes(report.coverage.studied_bytes);
    let text = if report.coverage.exact {
        format!(
            "{read}, all data, in {:.1} s: no sampling error",
            report.coverage.elapsed_s
        )
    } else {
        format!(
            "{read} in {} random windows of 1 MiB, {:.2} % of it, in {:.1} s; +- is half of a {} % interval",
            report.coverage.windows_studied,
            report.coverage.studied_bytes as f64 * 100.0 / report.coverage.total_bytes as f64,
            report.coverage.elapsed_s,
            report.coverage.confidence_percent
        )
    };
    line(page, "Read", &text);
    let skipped = &report.coverage.skipped;
    if skipped.unreadable > 0 {
        line(
            page,
            "Skipped",
            &format!("{} that could not be read:", skipped.unreadable),
        );
        for name in &skipped.named {
            line(page, "", name);
        }
    }
    line(
        page,
        "Zeroes",
        &format!("{} of 4 KiB blocks", percent(&report.zeroes)),
    );
    let duplicates = &report.duplicates;
    let text = if duplicates.blocks_compared == 0 {
        "there were no other blocks to compare".to_owned()
    } else if report.coverage.exact {
        format!("{:.1} % of the other blocks are duplicates", duplicates.percent)
    } else {
        format!(
            "about {:.1} % of the other blocks, from {:.1} to {:.1} %; --exact is more precise",
            duplicates.percent, duplicates.low_percent, duplicates.high_percent
        )
    };
    line(page, "Duplicates", &text);
    page.push('\n');
}

fn percent(estimate: &Estimate) -> String {
    let half = estimate.half_points();
    if half == 0.0 {
        format!("{:.1} %", estimate.percent)
    } else {
        format!("{:.1} +- {:.1} %", estimate.percent, half)
    }
}

/// Space saved by codec and chunk size.
fn table(page: &mut String, report: &StudyReport) {
    let mut heading = format!("{:<13} ", "Space saved");
    for size in CHUNK_BYTES {
        let _ = write!(heading, "{:>16} ", format!("{} chunks", human::chunk(size)));
    }
    let _ = writeln!(page, "{}", heading.trim_end());
    for row in report.chunks.iter().filter(|row| row.chunk_bytes == BLOCK_BYTES) {
        let mut text = format!("{:<13} ", row.codec.to_string());
        for size in CHUNK_BYTES {
            let cell = report
                .chunks
                .iter()
                .find(|other| other.codec == row.codec && other.chunk_bytes == size);
            let _ = write!(
                text,
                "{:>16} ",
                cell.map(|cell| percent(&cell.saved)).unwrap_or_default()
            );
        }
        let _ = writeln!(page, "{}", text.trim_end());
    }
}

/// Distribution of a codec's savings in steps of ten percent, by chunk size; the bars are those of the first size.
fn histogram(page: &mut String, rows: &[&ChunkReport]) {
    let Some(first) = rows.first() else { return };
    let deviations: Vec<String> = rows
        .iter()
        .map(|row| format!("{:.0}", row.stddev_points))
        .collect();
    let _ = writeln!(
        page,
        "\nChunks by what {} saves; standard deviations {} points",
        first.codec,
        deviations.join(", ")
    );
    let sizes: Vec<String> = rows
        .iter()
        .map(|row| format!("{:>7}", human::chunk(row.chunk_bytes)))
        .collect();
    let _ = writeln!(page, "{:>13} {}", "", sizes.join(" "));
    let counts: Vec<Vec<u64>> = rows.iter().map(|row| steps(row)).collect();
    let most = counts[0].iter().copied().max().unwrap_or(1).max(1);
    let tens = (0..10).map(|tens| format!("{} to {} %", tens * 10 + 1, tens * 10 + 10));
    let names = ["nothing".to_owned()].into_iter().chain(tens);
    for (step, name) in names.chain(["zeroes".to_owned()]).enumerate() {
        let shares: Vec<String> = rows
            .iter()
            .zip(&counts)
            .map(|(row, counts)| {
                let share = counts[step] as f64 * 100.0 / row.chunks.max(1) as f64;
                format!("{share:>5.1} %")
            })
            .collect();
        let columns = (counts[0][step] as f64 / most as f64 * BAR_COLUMNS as f64).round() as usize;
        let text = format!("{name:>13} {} {}", shares.join(" "), "#".repeat(columns));
        let _ = writeln!(page, "{}", text.trim_end());
    }
}

/// Chunks without savings, steps of ten percent, and zeroes.
fn steps(row: &ChunkReport) -> Vec<u64> {
    let tens = (0..10).map(|tens| row.histogram[tens * 10 + 1..=tens * 10 + 10].iter().sum());
    let nothing = [row.histogram[0]].into_iter();
    nothing.chain(tens).chain([row.zero_chunks]).collect()
}

fn outlook(page: &mut String, report: &StudyReport) {
    let _ = writeln!(page, "\n{:<13} a flaz cache holds", "Codec");
    for cache in &report.outlook.cache {
        let ratio = &cache.data_percent_of_cache;
        let mut text = format!("{:.2}x its size", ratio.percent / 100.0);
        if ratio.half_points() > 0.0 {
            let _ = write!(
                text,
                " ({:.2} to {:.2})",
                ratio.low_percent / 100.0,
                ratio.high_percent / 100.0
            );
        }
        if let (Some(size), Some(holds), Some(share), Some(plain)) = (
            report.outlook.cache_bytes,
            cache.holds_bytes,
            cache.holds_percent,
            cache.uncompressed_percent,
        ) {
            let size = human::bytes(size);
            let _ = match (share >= 100.0, plain >= 100.0) {
                (_, true) => write!(
                    text,
                    "; all of the data fits into {size}, also without compression"
                ),
                (true, false) => write!(
                    text,
                    "; all of the data fits into {size}, and {plain:.1} % of it without compression"
                ),
                (false, false) => write!(
                    text,
                    "; {} of such data fit into {size}, {share:.1} % of it, and {plain:.1} % without compression",
                    human::bytes(holds)
                ),
            };
        }
        line(page, &cache.codec.to_string(), &text);
    }
    let _ = writeln!(
        page,
        "\n{:<13} a compressing SSD gains, by a model of a drive with {:.0} % spare space: not measured",
        "Codec",
        SPARE_SHARE * 100.0
    );
    for ssd in &report.outlook.ssd {
        line(
            page,
            &ssd.codec.to_string(),
            &format!(
                "sequential writes up to {:.2}x as fast, {:.2}x the modelled lifetime;",
                ssd.sequential_write_gain_max, ssd.sequential_lifetime_gain,
            ),
        );
        line(
            page,
            "",
            &format!(
                "random writes on a full drive {:.1}x the modelled lifetime (write amplification {:.2} instead of {:.2})",
                ssd.random_lifetime_gain, ssd.write_amplification_compressed, ssd.write_amplification_plain
            ),
        );
    }
}
