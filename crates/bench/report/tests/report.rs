//! The report of made-up and published results: what is on the page, in the files and on the terminal.

use std::fs;
use std::path::{Path, PathBuf};

use flaz_bench::campaign_file::{Campaign, CampaignCell};
use flaz_bench::report::{Look, Options, cells_csv, charts, report};
use flaz_bench::results::open_results;
use flaz_page::well_formed::elements;

#[path = "support/campaigns.rs"]
mod campaigns;

use campaigns::Rig;

const PLAIN: Look = Look {
    colour: false,
    blocks: false,
};

fn published(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn ten_runs() -> Options {
    Options {
        runs: Some(10),
        resamples: 200,
        ..Options::default()
    }
}

#[test]
fn the_page_is_well_formed_and_has_everything() {
    let rig = Rig::new();
    let page = rig.report(&["after.json"], Some("before.json")).html("1.2.3");
    let count = elements(&page).expect("well-formed");
    assert!(count > 1500, "{count} elements");
    for id in [
        "differences",
        "rates",
        "data",
        "samples",
        "tables",
        "environment",
        "notes",
        "rate-write-bytes",
        "difference-write-bytes",
        "samples-random-read-bytes",
        "rate-iops-random-read-ops",
    ] {
        assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
    }
    for part in [
        "Before &lt;1&gt; &amp; &quot;x&quot;",
        "6.1.0 &lt;x&gt;",
        "16.0\u{a0}GiB",
        "class=\"left faster\"",
        "prefers-color-scheme: dark",
        "Made by flaz 1.2.3",
    ] {
        assert!(page.contains(part), "no {part}");
    }
    let own = page.replace("http://www.w3.org/2000/svg", "");
    for word in ["NaN", "inf ", "://", "<script", "src=", "@import", "url("] {
        assert!(!own.contains(word), "{word} in the page");
    }
}

#[test]
fn duplicates_are_said_wherever_the_data_is() {
    let rig = Rig::new();
    let report = rig.report(&["before.json"], None);
    let page = report.html("1").replace('\u{a0}', " ");
    for part in [
        "repeats in it",
        "<td>19.6 %</td>",
        "<td>4.0 GiB</td><td>95.0 %</td>",
    ] {
        // One row a level.
        let rows = if part.starts_with('<') { 4 } else { 1 };
        assert_eq!(page.matches(part).count(), rows, "{part}");
    }
    for text in [page, report.text(PLAIN)] {
        assert!(
            text.contains("Duplicates: asked for 20 %; 19.6 % of the blocks"),
            "{text}"
        );
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["sources"][0]["cells"][0]["duplicates"]["pass_pct"], 95.0);
}

#[test]
fn ids_are_unique_and_links_lead_somewhere() {
    let rig = Rig::new();
    let page = rig.report(&["after.json", "before.json"], None).html("1");
    let mut ids: Vec<&str> = page
        .split(" id=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all);
    for link in page
        .split("href=\"#")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
    {
        assert!(ids.contains(&link), "{link} leads nowhere");
    }
}

#[test]
fn bars_are_as_high_as_their_values() {
    let rig = Rig::new();
    let report = rig.report(&["before.json"], None);
    let (charts, left_out) = charts(&report);
    assert_eq!(left_out, 0);
    let chart = charts
        .iter()
        .find(|chart| chart.id == "rate-write-bytes")
        .unwrap();
    let svg = chart.svg();
    // Every bar: class, then its height; the legend has none of these titles.
    let mut bars: Vec<(f64, f64)> = Vec::new();
    for rect in svg.split("<rect ").filter(|rect| rect.contains(": mean ")) {
        let number = |name: &str| -> f64 {
            let (_, rest) = rect.split_once(&format!("{name}=\"")).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let height = number("height");
        let (_, rest) = rect.split_once(": mean ").unwrap();
        let mut words = rest.split(' ');
        let value: f64 = words.next().unwrap().parse().unwrap();
        let unit = words.next().unwrap();
        assert_eq!(unit, "MiB/s");
        bars.push((value, height));
    }
    assert_eq!(bars.len(), 12, "three sizes, four levels");
    let scale = bars[0].1 / bars[0].0;
    for (value, height) in bars {
        assert!((height - value * scale).abs() < 0.2, "{value} is {height} high");
    }
    assert!(!svg.contains("var("), "a file has colours, not names");
    assert_eq!(chart.csv.lines().count(), 13);
}

#[test]
fn numbers_of_a_source_can_be_read_again() {
    let rig = Rig::new();
    let report = rig.report(&["before.json"], None);
    let path = rig.path("cells.csv");
    fs::write(&path, cells_csv(&report)).unwrap();
    let again = open_results(&path, Some(10)).unwrap();
    assert_eq!(again.cells.len(), report.sources[0].cells.len());
    let (cell, first) = (&again.cells[0], &report.sources[0].cells[0]);
    assert_eq!(cell.key, first.key);
    assert!((cell.measured.moments().mean / first.mean.unwrap() - 1.0).abs() < 1e-9);
}

#[test]
fn published_tables_have_the_known_counts() {
    let report = report(
        &[published("sf1222-kernel-diff.csv")],
        Some(&published("sf1222-throughput.csv")),
        &ten_runs(),
    )
    .unwrap();
    let counts = report.comparisons[0].counts;
    assert_eq!((counts.cells, counts.welch_benjamini_hochberg), (78, 49));
    let page = report.html("1");
    elements(&page).expect("well-formed");
    assert!(page.contains(&format!("<b>{}</b>", counts.faster)));
    assert!(!page.contains("id=\"samples\""), "tables have no runs");
    let text = report.text(PLAIN);
    assert!(
        text.contains(&format!("faster {}, slower {}", counts.faster, counts.slower)),
        "{text}"
    );
}

#[test]
fn a_terminal_sees_small_charts() {
    let rig = Rig::new();
    let report = rig.report(&["after.json"], Some("before.json"));
    let plain = report.text(PLAIN);
    assert!(plain.is_ascii(), "nothing but ASCII without a terminal");
    let row = plain
        .lines()
        .find(|line| line.contains("faster") && line.contains('#'))
        .expect("a faster cell");
    assert!(row.contains("MiB/s") && row.contains('%'), "{row}");
    let rich = report.text(Look {
        colour: true,
        blocks: true,
    });
    assert!(rich.contains('█') && rich.contains("\x1b["));
    // What stands in the column depends on what is known.
    let table = report_of_table();
    assert!(plain.contains(" median ") && !plain.contains(" mean "), "{plain}");
    assert!(table.contains(" mean ") && !table.contains(" median "), "{table}");
}

/// The terminal's text of a published table, which has means alone.
fn report_of_table() -> String {
    let table = published("sf1222-throughput.csv");
    report(&[table], None, &ten_runs()).unwrap().text(PLAIN)
}

#[test]
fn single_runs_are_shown_and_said() {
    let report = report(&[published("fio-runs/1.json")], None, &Options::default()).unwrap();
    let cell = &report.sources[0].cells[0];
    assert_eq!((cell.runs, cell.stddev, cell.interval), (1, None, None));
    let page = report.html("1");
    elements(&page).expect("well-formed");
    assert!(page.contains("have a single run"));
    assert!(charts(&report).0[0].svg().contains("runs: 1"));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["sources"][0]["cells"][0]["runs"], 1);
    assert_eq!(json["sources"][0]["kind"], "fio");
}

#[test]
fn many_record_sizes_and_levels_are_spread_over_charts() {
    let rig = Rig::new();
    let mut campaign = Campaign::new(1);
    for record in 1..=60 {
        for level in 0..12 {
            campaign.cells.push(CampaignCell::new(
                "write",
                record * 4096,
                (level * 5).to_string().parse().unwrap(),
                vec![1e8, 1.01e8],
            ));
        }
    }
    fs::write(rig.path("many.json"), campaign.to_json().unwrap()).unwrap();
    let report = rig.report(&["many.json"], None);
    let (charts, _) = charts(&report);
    let of_rates: Vec<_> = charts
        .iter()
        .filter(|chart| chart.id.starts_with("rate-"))
        .collect();
    // More levels than colours: each record and level is a category.
    assert_eq!(of_rates.len(), 720 / 24);
    let rows: usize = of_rates.iter().map(|chart| chart.csv.lines().count() - 1).sum();
    assert_eq!(rows, 720);
}

#[test]
fn an_unfinished_campaign_can_be_looked_at() {
    let rig = Rig::new();
    let mut campaign = Campaign::new(1);
    let level = || "50".parse().unwrap();
    campaign
        .cells
        .push(CampaignCell::new("write", 4096, level(), vec![]));
    campaign
        .cells
        .push(CampaignCell::new("read", 4096, level(), vec![5e8]));
    campaign
        .cells
        .push(CampaignCell::new("reread", 4096, level(), vec![5e8, 6e8]));
    fs::write(rig.path("part.json"), campaign.to_json().unwrap()).unwrap();
    let report = rig.report(&["part.json"], None);
    let runs: Vec<u32> = report.sources[0].cells.iter().map(|cell| cell.runs).collect();
    assert_eq!(runs, [2, 0, 1]);
    let page = report.html("1");
    elements(&page).expect("well-formed");
    assert!(page.contains("not measured yet"));
    assert!(!page.contains("NaN") && !report.text(PLAIN).contains("NaN"));
}

#[test]
fn labels_are_distinct() {
    let rig = Rig::new();
    let report = rig.report(&["before.json", "before.json", "after.json"], None);
    let labels: Vec<&str> = report
        .sources
        .iter()
        .map(|source| source.label.as_str())
        .collect();
    assert_eq!(labels, ["Before <1> & \"x\"", "Before <1> & \"x\" (2)", "After"]);
}

#[test]
fn what_cannot_be_reported() {
    let too_many = vec![published("fio-runs"); 9];
    let refused = |files: &[PathBuf]| report(files, None, &ten_runs()).unwrap_err().to_string();
    assert!(refused(&too_many).contains("expected from 1 to 8"));
    assert!(refused(&[]).contains("expected from 1 to 8"));
    assert!(refused(&[published("sf1222-kernel-diff.csv")]).contains("table of differences"));
}

/// Writes the page of the made-up campaigns where FLAZ_REPORT_PAGE says, to look at it in a browser.
#[test]
fn the_page_can_be_looked_at() {
    let rig = Rig::new();
    let page = rig.report(&["after.json"], Some("before.json")).html("0");
    if let Some(path) = std::env::var_os("FLAZ_REPORT_PAGE") {
        fs::write(path, page).expect("writes");
    }
}
