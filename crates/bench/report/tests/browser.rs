//! The page of a report in a real browser, if there is one: in light and dark mode, on wide and narrow screens.

use std::fs;
use std::path::Path;

use flaz_bench::report::{Options, report};
use serde_json::Value;

use browser::{ask, browser, check_legible};
use campaigns::Rig;

#[path = "support/browser.rs"]
mod browser;
#[path = "support/campaigns.rs"]
mod campaigns;

fn page() -> String {
    let data = |name: &str| {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data")
            .join(name)
    };
    let options = Options {
        runs: Some(10),
        resamples: 200,
        ..Options::default()
    };
    let published = report(
        &[data("sf1222-kernel-diff.csv")],
        Some(&data("sf1222-throughput.csv")),
        &options,
    );
    let imported = report(&[data("iozone-runs")], None, &options);
    // Both kinds of charts on one page: the figures of the second are added after those of the first.
    let (published, imported) = (published.unwrap().html("0"), imported.unwrap().html("0"));
    let figures = imported.split("<figure id=\"").skip(1).filter_map(|rest| {
        Some(format!(
            "<figure id=\"i-{}</figure>\n",
            rest.split_once("</figure>")?.0
        ))
    });
    let figures: String = figures.collect();
    published.replacen(
        "<div class=\"charts\">\n",
        &format!("<div class=\"charts\">\n{figures}"),
        1,
    )
}

#[test]
fn the_page_is_laid_out_legibly_in_light_and_dark() {
    let Some(browser) = browser() else { return };
    check_legible(&browser, &page(), 20);
}

/// Data that published tables and imports lack: achieved compressibility, a hundred runs, the environment.
#[test]
fn the_page_of_campaigns_is_laid_out_legibly() {
    let Some(browser) = browser() else { return };
    let page = Rig::new().report(&["after.json"], Some("before.json")).html("0");
    assert!(page.contains("id=\"data\"") && page.contains("id=\"environment\""));
    check_legible(&browser, &page, 8);
    // No browser window is as narrow as a telephone.
    let narrow = page.replacen("<main>", "<main style=\"width: 400px\">", 1);
    assert_ne!(narrow, page);
    for page in [page, narrow] {
        let answer = ask(&browser, &page, "500,900", &[]);
        assert_eq!(answer["overflow"], 0, "{answer}");
        assert_eq!(answer["faults"], Value::Array(Vec::new()), "{answer}");
    }
}

#[test]
fn the_page_fits_a_narrow_window() {
    let Some(browser) = browser() else { return };
    // The page names its input files: a path that is wider than the window has to wrap.
    let folder = env!("CARGO_MANIFEST_DIR");
    let page = page().replace(folder, &format!("{folder}/{}", "a".repeat(120)));
    let answer = ask(&browser, &page, "500,900", &[]);
    // Wide drawings scroll in their own frame.
    assert_eq!(answer["overflow"], 0, "{answer}");
    assert_eq!(answer["faults"], Value::Array(Vec::new()), "{answer}");
}

#[test]
fn long_names_of_tests_are_not_cut_off() {
    let Some(browser) = browser() else { return };
    let rig = Rig::new();
    let text = fs::read_to_string(rig.path("after.json")).unwrap();
    // As imported from fio output.
    let renamed = text.replace("\"random_read\"", "\"random_mixed_write:16.qd256.j16\"");
    assert_ne!(renamed, text);
    fs::write(rig.path("after.json"), renamed).unwrap();
    check_legible(&browser, &rig.report(&["after.json"], None).html("0"), 8);
}
