//! The result of a campaign as text.

use std::fmt::Write;

use flaz_bench::background::duplicates_note;
use flaz_bench::campaign_file::{Campaign, CampaignCell};
use flaz_bench::layout::{Align, Style, Table};
use flaz_bench::statistics::moments::{Moments, median};
use flaz_bench::unit::{Rate, WholeBytes};

use crate::flags::half_width_pct;

/// Largest half-width of an interval that is shown, in percent of the median; wider ones, such as those of two runs,
/// are useless.
const HALF_WIDTH_SHOWN_PCT: f64 = 1000.0;
/// Chunk size for which the page shows the savings of codecs.
const CHUNK_BYTES: u64 = 4096;

/// The page.
#[must_use]
pub fn page(campaign: &Campaign, colour: bool) -> String {
    let mut text = environment(campaign);
    let several = campaign.cells.iter().any(|cell| !cell.naive.is_empty());
    let mut heads = vec![
        ("test", Align::Left),
        ("record", Align::Right),
        ("level", Align::Right),
        ("runs", Align::Right),
        ("median", Align::Right),
        ("95 % interval", Align::Right),
        ("deviation", Align::Right),
    ];
    if several {
        heads.push(("naive", Align::Right));
    }
    heads.push(("", Align::Left));
    let mut table = Table::new(heads);
    let mut cells: Vec<&CampaignCell> = campaign
        .cells
        .iter()
        .filter(|cell| !cell.samples.is_empty())
        .collect();
    cells.sort_by_key(|cell| {
        let place = crate::test::Test::all().position(|test| test.name() == cell.key.test);
        (cell.key.record_bytes, place, cell.key.level.clone())
    });
    for cell in cells {
        let mut row = vec![
            (cell.key.test.clone(), Style::Plain),
            (WholeBytes(cell.key.record_bytes).to_string(), Style::Plain),
            (cell.key.level.to_string(), Style::Plain),
            (cell.samples.len().to_string(), Style::Plain),
            (rate(cell, &cell.samples), Style::Bold),
            (interval(cell), Style::Plain),
            (deviation(cell), Style::Plain),
        ];
        if several {
            let naive = if cell.naive.is_empty() {
                String::new()
            } else {
                rate(cell, &cell.naive)
            };
            row.push((naive, Style::Dim));
        }
        row.push((notes(cell), Style::Yellow));
        table.push(row);
    }
    let _ = write!(text, "\n{}", table.text(colour));
    data(campaign, &mut text);
    text
}

fn environment(campaign: &Campaign) -> String {
    let found = &campaign.environment;
    let mut text = String::new();
    let mut line = |label: &str, parts: &[Option<String>]| {
        let parts: Vec<&str> = parts.iter().flatten().map(String::as_str).collect();
        if !parts.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{label:<12} {}", parts.join(", "));
        }
    };
    let other = |name: &str| found.other.get(name);
    let streams = campaign.cells.iter().any(|cell| cell.key.test.starts_with('f'));
    let word = |name: &str| other(name).and_then(|value| value.as_str()).map(str::to_owned);
    line(
        "Campaign",
        &[
            campaign.name.clone(),
            campaign.started.clone(),
            Some(format!("seed {}", campaign.seed)),
        ],
    );
    line(
        "Target",
        &[
            word("target"),
            other("size_bytes")
                .and_then(serde_json::Value::as_u64)
                .map(|bytes| format!("{} in total", WholeBytes(bytes))),
            other("writers")
                .and_then(serde_json::Value::as_u64)
                .filter(|writers| *writers > 1)
                .map(|writers| format!("{writers} writers")),
            other("direct_io")
                .and_then(serde_json::Value::as_bool)
                .map(|direct| {
                    match (direct, streams) {
                        (true, false) => "direct I/O",
                        (true, true) => "direct I/O (streams such as fread and fwrite use the page cache)",
                        (false, _) => "buffered",
                    }
                    .to_owned()
                }),
            word("caches_dropped").map(|whose| match whose.as_str() {
                "system" => "system caches dropped between tests (/proc/sys/vm/drop_caches)".to_owned(),
                "target" => "cached pages of the target dropped between tests (fadvise)".to_owned(),
                _ => "no caches dropped between tests".to_owned(),
            }),
        ],
    );
    line(
        "Device",
        &[
            found.device_model.clone(),
            word("device"),
            found.device_firmware.clone(),
            found.file_system.clone(),
            found.mount_options.clone(),
        ],
    );
    line(
        "Machine",
        &[
            word("host"),
            found.kernel.clone(),
            found.cpu.clone(),
            found.governor.clone(),
        ],
    );
    text
}

fn rate(cell: &CampaignCell, values: &[f64]) -> String {
    let rate = Rate {
        value: median(values),
        unit: cell.unit,
    };
    rate.to_string()
}

fn interval(cell: &CampaignCell) -> String {
    let half = half_width_pct(&cell.samples).filter(|half| *half < HALF_WIDTH_SHOWN_PCT);
    half.map_or("-".to_owned(), |half| format!("+-{half:.1} %"))
}

fn deviation(cell: &CampaignCell) -> String {
    if cell.samples.len() < 2 {
        return "-".to_owned();
    }
    let moments = Moments::of(&cell.samples);
    format!("{:.1} %", 100.0 * moments.stddev() / moments.mean)
}

fn notes(cell: &CampaignCell) -> String {
    let mut notes = Vec::new();
    if !cell.outliers.is_empty() {
        let runs: Vec<String> = cell
            .outliers
            .iter()
            .map(|place| (place + 1).to_string())
            .collect();
        let s = if runs.len() == 1 { "" } else { "s" };
        notes.push(format!("outlier{s}: {}", runs.join(", ")));
    }
    if let Some(drift) = &cell.drift {
        notes.push(format!("drifts by {:+.1} %", drift.change_pct));
    }
    if cell.steady == Some(false) {
        notes.push("not in steady state".to_owned());
    }
    notes.join("; ")
}

/// Requested and achieved levels, once for each kind of data.
fn data(campaign: &Campaign, text: &mut String) {
    let mut seen = Vec::new();
    for cell in &campaign.cells {
        let of_chunk: Vec<String> = cell
            .achieved
            .iter()
            .filter(|row| row.chunk_bytes == CHUNK_BYTES)
            .map(|row| format!("{} {:.1} +-{:.1}", row.codec, row.saved_pct, row.spread_pct))
            .collect();
        let kind = (cell.key.level.clone(), of_chunk);
        if !kind.1.is_empty() && !seen.contains(&kind) {
            seen.push(kind);
        }
    }
    seen.sort();
    if !seen.is_empty() {
        let _ = writeln!(text, "\nData: requested, and percentage of 4 KiB saved by codec");
    }
    for (level, codecs) in seen {
        let _ = writeln!(text, "  {:<12} {}", level.to_string(), codecs.join(", "));
    }
    if let Some(note) = duplicates_note(&campaign.cells) {
        let _ = writeln!(text, "{note}");
    }
}
