//! The page of a report in a real browser, if there is one: in light and dark mode, on wide and narrow screens,
//! measured by a script that is only in the copy under test.
//!
//! Skipped with a message if no chromium is installed; with `FLAZ_REQUIRE_BROWSER=1` the test fails instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use flaz_bench::report::{Options, report};
use serde_json::Value;

use campaigns::Rig;

#[path = "support/campaigns.rs"]
mod campaigns;

/// Longer than a browser needs on a slow and busy machine.
const PATIENCE_S: &str = "300";

/// The script that measures the page; `--dump-dom` prints its result.
const QUESTIONS: &str = r#"
const drawings = [...document.querySelectorAll('figure svg')];
const faults = [];
let texts = 0, shapes = 0;
for (const drawing of drawings) {
  const frame = drawing.getBoundingClientRect();
  if (frame.width < 200 || frame.height < 100) faults.push('a drawing of ' + frame.width + ' x ' + frame.height);
  const figure = drawing.closest('figure');
  const name = figure.id;
  const card = figure.getBoundingClientRect();
  // What scrolls does so inside the card.
  const plot = drawing.closest('.plot').getBoundingClientRect();
  const padding = parseFloat(getComputedStyle(figure).paddingRight);
  if (plot.right > card.right - padding + 1) faults.push(name + ': past its card');
  if (!figure.classList.contains('wide') && frame.right > plot.right + 1) faults.push(name + ': wider than its card');
  const boxes = [...drawing.querySelectorAll('text')].filter(text => text.textContent.trim())
    .map(text => [text.textContent, text.getBoundingClientRect()]);
  texts += boxes.length;
  for (const [text, box] of boxes) {
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
      faults.push(name + ': cut off: ' + text);
  }
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
    const [a, b] = [boxes[i][1], boxes[j][1]];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 4) faults.push(name + ': over each other: ' + boxes[i][0] + ' and ' + boxes[j][0]);
  }
  shapes += drawing.querySelectorAll('rect, circle, polygon').length;
}
const light = colour => {
  const part = colour.match(/[\d.]+/g).map(Number).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4));
  return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
};
const contrast = (one, two) => {
  const [low, high] = [light(one), light(two)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const style = (selector, what) => getComputedStyle(document.querySelector(selector))[what];
const panel = style('figure', 'backgroundColor');
const bars = [...new Set([...document.querySelectorAll('figure rect.bar')].map(bar => getComputedStyle(bar).fill))];
document.body.textContent = JSON.stringify({
  drawings: drawings.length, texts, shapes, faults: faults.slice(0, 20),
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  paper: light(style('body', 'backgroundColor')),
  text_contrast: contrast(style('body', 'color'), style('body', 'backgroundColor')),
  tick_contrast: contrast(style('svg .tick', 'fill'), panel),
  bar_contrasts: bars.map(bar => contrast(bar, panel)), colours: bars.length,
});
"#;

fn browser() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&folders)
        .flat_map(|folder| ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name)))
        .find(|path| path.is_file());
    if found.is_none() {
        assert!(
            std::env::var_os("FLAZ_REQUIRE_BROWSER").is_none_or(|value| value != "1"),
            "chromium is not installed, and FLAZ_REQUIRE_BROWSER=1"
        );
        println!("skipped: chromium is not installed; install it with: apt-get install chromium");
    }
    found
}

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

/// The result of the script in a window of this size.
fn ask(browser: &Path, page: &str, size: &str, more: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let policy_start = page.find("<meta http-equiv=\"Content-Security-Policy\"").unwrap();
    let policy_end = policy_start + page[policy_start..].find("/>").unwrap() + 2;
    let asked = format!("{}{}", &page[..policy_start], &page[policy_end..])
        .replace("</body>", &format!("<script>{QUESTIONS}</script></body>"));
    let file = folder.path().join("page.html");
    fs::write(&file, asked).unwrap();
    let output = Command::new("timeout")
        .arg(PATIENCE_S)
        .arg(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--dump-dom",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.path().join("profile").display()
        ))
        .arg(format!("--window-size={size}"))
        .args(more)
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let start = dom.find("<body>{").unwrap_or_else(|| {
        panic!(
            "no answer: {}\n{dom:.500}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    let answer = dom[start + 6..].split("</body>").next().unwrap();
    serde_json::from_str(
        answer
            .replace("&amp;", "&")
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .trim(),
    )
    .unwrap()
}

/// In light and dark mode nothing is cut off, overlaps, or has too little contrast.
fn check_legible(browser: &Path, page: &str, drawings: u64) {
    let dark = "--blink-settings=preferredColorScheme=0";
    for (size, more, paper) in [
        ("1240,1600", &[][..], "light"),
        ("1240,1600", &[dark][..], "dark"),
    ] {
        let answer = ask(browser, page, size, more);
        assert_eq!(answer["faults"], Value::Array(Vec::new()), "{paper}: {answer}");
        assert_eq!(answer["overflow"], 0, "{answer}");
        assert!(answer["drawings"].as_u64().unwrap() >= drawings, "{answer}");
        assert!(answer["shapes"].as_u64().unwrap() > 150, "{answer}");
        let number = |name: &str| answer[name].as_f64().unwrap();
        assert_eq!(number("paper") < 0.5, paper == "dark", "{answer}");
        // WCAG 2.1: a contrast of 4.5 for text and 3 for essential graphics; 2.4 for colours with names next to them.
        assert!(
            number("text_contrast") > 7.0 && number("tick_contrast") > 4.5,
            "{answer}"
        );
        for contrast in answer["bar_contrasts"].as_array().unwrap() {
            assert!(contrast.as_f64().unwrap() > 2.4, "{paper}: {answer}");
        }
    }
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
