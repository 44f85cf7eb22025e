//! Pages in a real browser, measured by a script that is only in the copy under test.
//!
//! Skipped with a message if no chromium is installed; with `FLAZ_REQUIRE_BROWSER=1` the test fails instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Longer than a browser needs on a slow and busy machine.
const PATIENCE_S: &str = "300";

/// The script that measures the page; `--dump-dom` prints its result.
const QUESTIONS: &str = r#"
const drawings = [...document.querySelectorAll('figure .plot svg')];
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
  // Drawings scroll only in the cards of a telephone, and wide ones.
  if (!figure.classList.contains('wide') && card.width > 500 && frame.right > plot.right + 1)
    faults.push(name + ': wider than its card');
  const boxes = [...drawing.querySelectorAll('text')].filter(text => text.textContent.trim())
    .map(text => [text.textContent, text.getBoundingClientRect(), text]);
  texts += boxes.length;
  for (const [text, box, element] of boxes) {
    const size = parseFloat(getComputedStyle(element).fontSize) * frame.width / drawing.viewBox.baseVal.width;
    if (size < 9) faults.push(name + ': too small: ' + text);
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

/// The browser, if there is one.
pub fn browser() -> Option<PathBuf> {
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

/// The result of the script in a window of this size.
pub fn ask(browser: &Path, page: &str, size: &str, more: &[&str]) -> Value {
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
pub fn check_legible(browser: &Path, page: &str, drawings: u64) {
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
