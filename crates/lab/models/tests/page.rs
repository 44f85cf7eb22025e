//! The page about a device in a real browser, if there is one: in light and dark mode, on wide and narrow screens.

use flaz_data::Level;
use flaz_lab::ssd::description_file::preset;
use flaz_lab::ssd::evaluation::evaluate;
use flaz_lab::ssd::mix::Mix;

use browser::{ask, browser, check_legible};

#[path = "../../../bench/report/tests/support/browser.rs"]
mod browser;

fn page() -> String {
    let mixes: Vec<Mix> = [98.0, 75.0, 50.0, 25.0, 0.0]
        .into_iter()
        .map(|percent| Mix::level(Level::new(percent).unwrap()))
        .collect();
    let device = preset("sf1222").unwrap();
    evaluate(&device, &mixes, 20_000_000_000, 1, || {})
        .unwrap()
        .html("0")
}

#[test]
fn the_page_is_laid_out_legibly() {
    let Some(browser) = browser() else { return };
    let page = page();
    check_legible(&browser, &page, 3);
    let answer = ask(&browser, &page, "500,900", &[]);
    assert_eq!(answer["overflow"], 0, "{answer}");
    assert_eq!(answer["faults"], serde_json::json!([]), "{answer}");
}
