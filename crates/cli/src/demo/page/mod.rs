//! The result as one page: no scripts, no network, readable in light and dark, on paper and by screen readers.

mod charts;

use std::fmt::Write;

use flaz_page::text::{escape, prose};

use self::charts::{class, micro_text};
use super::outcome::{Outcome, Variant};
use super::session::WINDOW_S;
use super::table;
use super::workload::REQUEST_BLOCKS;
use crate::size::{HumanBytes, HumanCount};

const STYLE: &str = include_str!("style.css");
/// The page.
pub fn html(outcome: &Outcome) -> String {
    let sections = [
        header(outcome),
        results(outcome),
        all_charts(outcome),
        method(outcome),
        notes(outcome),
    ]
    .concat();
    let footer = format!(
        "<footer>Made by flaz {} in {:.0} seconds on {}.</footer>\n",
        escape(&outcome.version),
        outcome.total_s,
        escape(&outcome.parameters.machine)
    );
    flaz_page::document(
        "flaz demo: what a compressed cache is worth",
        STYLE,
        &(sections + &footer),
    )
}

fn header(outcome: &Outcome) -> String {
    let held = outcome
        .run(Variant::Compressed)
        .and_then(|run| run.holdings)
        .unwrap_or_default();
    let hits = |variant| outcome.run(variant).map_or(0.0, |run| run.hit_ratio * 100.0);
    let mean = |variant| micro_text(outcome.run(variant).map_or(0.0, |run| run.latency_us.mean));
    let tiles = [
        (
            "c2",
            format!(
                "{:.2}×",
                outcome.speedup(Variant::Compressed, Variant::Uncompressed)
            ),
            "the requests a second of the uncompressed cache, from the same SSD".to_owned(),
        ),
        (
            "c2",
            HumanBytes(held.logical_bytes).to_string(),
            format!(
                "of data held by an SSD of {} ({:.2}×); uncompressed: {}",
                HumanBytes(held.ssd_bytes),
                held.effective(),
                HumanBytes(
                    outcome
                        .run(Variant::Uncompressed)
                        .and_then(|run| run.holdings)
                        .unwrap_or_default()
                        .logical_bytes
                )
            ),
        ),
        (
            "c2",
            format!("{:.1} %", hits(Variant::Compressed)),
            format!(
                "of the blocks read come from the SSD; uncompressed: {:.1} %",
                hits(Variant::Uncompressed)
            ),
        ),
        (
            "c2",
            mean(Variant::Compressed),
            format!(
                "mean latency; uncompressed: {}, without a cache: {}",
                mean(Variant::Uncompressed),
                mean(Variant::NoCache)
            ),
        ),
    ];
    let mut text = format!(
        "<header>\n<p class=\"kicker\">flaz demo</p>\n<h1>{}</h1>\n\
         <p class=\"lead\">{} of {} on {}; the SSD takes {}, {:.0} % of that. The same requests to all three, \
         in turns, through a real NBD socket. {}</p>\n<ul class=\"tiles\">\n",
        prose(&outcome.headline()),
        HumanBytes(outcome.data.bytes),
        escape(&outcome.data.source),
        prose(&outcome.parameters.emulated_disk),
        HumanBytes(outcome.parameters.ssd_bytes),
        outcome.parameters.ssd_bytes as f64 * 100.0 / outcome.data.bytes.max(1) as f64,
        prose(&table::verified(outcome)),
    );
    for (class, value, words) in tiles {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "<li class=\"{class}\"><b>{}</b><span>{}</span></li>",
            escape(&value),
            prose(&words)
        );
    }
    text + "</ul>\n</header>\n"
}

fn results(outcome: &Outcome) -> String {
    let mut text =
        "<section id=\"results\">\n<h2>Results</h2>\n<div class=\"scroll\"><table>\n<thead><tr><td></td>"
            .to_owned();
    for run in &outcome.runs {
        let _ = write!(
            text,
            "<th scope=\"col\" class=\"{}\">{}</th>",
            class(run.variant),
            run.variant.title()
        );
    }
    text += "</tr></thead>\n<tbody>\n";
    for row in table::rows(outcome) {
        let minor = if row.label.starts_with(' ') {
            " class=\"minor\""
        } else {
            ""
        };
        let _ = write!(
            text,
            "<tr{minor}><th scope=\"row\">{}</th>",
            escape(row.label.trim())
        );
        for (run, value) in outcome.runs.iter().zip(&row.values) {
            let value = if value == "-" {
                "–".to_owned()
            } else {
                value.replace(" us", " µs")
            };
            let _ = write!(
                text,
                "<td class=\"{}\">{}</td>",
                class(run.variant),
                escape(&value)
            );
        }
        text += "</tr>\n";
    }
    text + "</tbody>\n</table></div>\n</section>\n"
}

fn all_charts(outcome: &Outcome) -> String {
    let mut text =
        "<section id=\"charts\">\n<h2>Over time, and in detail</h2>\n<ul class=\"legend\">\n".to_owned();
    for run in &outcome.runs {
        let class = class(run.variant);
        let _ = writeln!(
            text,
            "<li class=\"{class}\"><svg viewBox=\"0 0 40 10\" aria-hidden=\"true\"><line class=\"line {class}\" x1=\"2\" y1=\"5\" \
             x2=\"38\" y2=\"5\"/></svg><span class=\"name\">{}</span></li>",
            run.variant.title()
        );
    }
    text += "</ul>\n<div class=\"charts\">\n";
    let figures = [
        (
            "hit-ratio",
            "Hit ratio over time",
            format!(
                "Share of the blocks read that the SSD had. Left, the cache fills; right, the measured phase (mean of the \
                 last {WINDOW_S:.0} seconds at each point)."
            ),
            charts::hit_ratio(outcome),
        ),
        (
            "throughput",
            "Throughput over time",
            "Requests that the clients together finished in each second.".to_owned(),
            charts::throughput(outcome),
        ),
        (
            "latency",
            "Latency distribution",
            "Share of the requests answered within a time: further up and to the left is better. The low steps are \
             hits, the high ones accesses of the disk and waiting for it. Squares: medians."
                .to_owned(),
            charts::latency(outcome),
        ),
        (
            "holdings",
            "What the SSD holds",
            "Above, what the space of the SSD is used for; below, the data that this stands for. Dotted: the size of \
             the SSD."
                .to_owned(),
            charts::holdings(outcome),
        ),
    ];
    for (id, title, words, chart) in figures {
        let _ = write!(
            text,
            "<figure id=\"{id}\">\n<figcaption><h3>{title}</h3><p>{}</p></figcaption>\n{chart}</figure>\n",
            prose(&words)
        );
    }
    text + "</div>\n</section>\n"
}

fn method(outcome: &Outcome) -> String {
    let parameters = &outcome.parameters;
    let data = &outcome.data;
    let folders: Vec<String> = data
        .folders
        .iter()
        .map(|(folder, share)| format!("{folder} {:.0} %", share * 100.0))
        .collect();
    let lengths: Vec<String> = REQUEST_BLOCKS
        .iter()
        .map(|(blocks, parts)| format!("{} KiB {parts} %", blocks * 4))
        .collect();
    let rows = [
        (
            "Data",
            format!(
                "{} in {} pieces of {} files, of {} to choose from",
                HumanBytes(data.bytes),
                HumanCount(data.pieces),
                HumanCount(data.files),
                HumanCount(data.candidates)
            ),
        ),
        (
            "From",
            if folders.is_empty() {
                data.source.clone()
            } else {
                folders.join(", ")
            },
        ),
        ("Slow disk", parameters.emulated_disk.clone()),
        (
            "SSD",
            format!(
                "{}, a file on the disk of this machine, at its own speed",
                HumanBytes(parameters.ssd_bytes)
            ),
        ),
        (
            "Codec",
            format!("{}, each 4 KiB block by itself", parameters.codec),
        ),
        (
            "Clients",
            format!("{}, each with one request in flight", parameters.clients),
        ),
        (
            "Requests",
            format!(
                "{} % writes; lengths {}",
                parameters.write_percent,
                lengths.join(", ")
            ),
        ),
        (
            "Popularity",
            format!(
                "Zipf, exponent {}, over pieces of files of at most 256 KiB; the hottest quarter of the data gets {:.0} % of the requests",
                parameters.skew,
                parameters.hottest_quarter_share * 100.0
            ),
        ),
        (
            "Warm-up",
            format!(
                "{} requests, the same for both caches",
                HumanCount(parameters.warmup_requests)
            ),
        ),
        ("Measured", format!("{} seconds a run", parameters.measured_s)),
        ("Seed", parameters.seed.to_string()),
        (
            "Machine",
            format!("{}; {} cores", parameters.machine, parameters.cores),
        ),
    ];
    let mut text = "<section id=\"method\">\n<h2>How it was measured</h2>\n<dl>\n".to_owned();
    for (name, value) in rows {
        let _ = writeln!(text, "<dt>{name}</dt><dd>{}</dd>", prose(&value));
    }
    text + "</dl>\n</section>\n"
}

fn notes(outcome: &Outcome) -> String {
    let notes = [
        "The slow disk is emulated: a file of this machine, each access delayed as a hard disk with one arm would. \
         The SSD is a file as well, and as fast as the disk it lies on."
            .to_owned(),
        "The warm-up runs on the disk at full speed: on the slow one it would take many minutes. Then the server is \
         stopped and started again on the slow disk, with the cache as warm as it was. The run without a cache has no warm-up."
            .to_owned(),
        "Clients do not share a page cache: every request goes to the server, as from an application with its own \
         cache, a virtual machine or a database."
            .to_owned(),
        "Only whole 4 KiB blocks of files are taken, none with padding that would compress for nothing. Writes put the \
         contents of other blocks of the same data."
            .to_owned(),
        "Popularity is made up, and it decides much: see for yourself with --skew, --cache-size, --writes, and with \
         --data on files of your own. Data that is compressed already gains nothing: --data random shows it."
            .to_owned(),
        "Some seconds on a small machine that does other things as well: repeat it before you trust a difference of \
         a few percent."
            .to_owned(),
    ];
    let mut text = "<section id=\"notes\">\n<h2>What to keep in mind</h2>\n<ul class=\"notes\">\n".to_owned();
    for warning in &outcome.warnings {
        let _ = writeln!(
            text,
            "<li class=\"warning\"><b>Beware:</b> {}</li>",
            prose(warning)
        );
    }
    for note in notes {
        let _ = writeln!(text, "<li>{}</li>", prose(&note));
    }
    text + "</ul>\n</section>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::outcome::sample;
    use flaz_page::well_formed::elements;

    #[test]
    fn the_page_is_well_formed_and_has_everything() {
        let page = html(&sample::outcome());
        let count = elements(&page).expect("well-formed");
        assert!(count > 500, "{count} elements");
        for part in [
            "results",
            "charts",
            "hit-ratio",
            "throughput",
            "latency",
            "holdings",
            "method",
            "notes",
        ] {
            assert!(page.contains(&format!("id=\"{part}\"")), "{part} is missing");
        }
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(
            page.contains("Processor &lt;8 GHz&gt; &amp; more"),
            "text is not escaped"
        );
        for word in ["NaN", "inf\"", "://", "<script"] {
            let found = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!found.contains(word), "{word} in the page");
        }
    }

    #[test]
    fn a_page_of_nothing_is_still_a_page() {
        let mut outcome = sample::outcome();
        for run in &mut outcome.runs {
            run.holdings = None;
            run.iops = 0.0;
            run.restarted_warm = false;
            run.latency_cdf.clear();
            run.iops_series.clear();
            run.hit_ratio_series.clear();
            run.warmup.clear();
        }
        outcome.parameters.files_in_memory = true;
        outcome.data.walk_cut_short = true;
        outcome.warn();
        let page = html(&outcome);
        elements(&page).expect("well-formed");
        assert!(!page.contains("NaN"));
        assert!(page.contains("too low") && page.contains("in memory"));
    }

    /// Writes the page of the made-up outcome where FLAZ_DEMO_PAGE says, to look at it in a browser.
    #[test]
    fn the_page_can_be_looked_at() {
        let page = html(&sample::outcome());
        if let Some(path) = std::env::var_os("FLAZ_DEMO_PAGE") {
            std::fs::write(path, page).expect("writes");
        }
    }
}
