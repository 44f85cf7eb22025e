//! The data: requested and achieved compressibility.

use std::collections::BTreeMap;

use flaz_page::drawing::Scale;

use super::chart::{Chart, Section, class, slug};
use super::csv::Csv;
use super::grid::{Grid, LevelOrder, plain};
use super::summary::Source;
use crate::campaign_file::Duplicates;
use crate::unit::WholeBytes;

const COLUMNS: [&str; 6] = [
    "source",
    "requested",
    "codec",
    "chunk_bytes",
    "saved_pct",
    "spread_pct",
];

/// Savings of a codec on the data of a level: the mean over the cells with that level.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Truth {
    pub(super) level: LevelOrder,
    pub(super) codec: String,
    pub(super) chunk_bytes: u64,
    pub(super) saved_pct: f64,
    pub(super) spread_pct: f64,
}

/// The achieved values of a source, each level, codec and chunk size once.
pub(super) fn of_source(source: &Source) -> Vec<Truth> {
    let mut found: BTreeMap<(u64, LevelOrder, String), Vec<(f64, f64)>> = BTreeMap::new();
    for cell in &source.cells {
        for achieved in &cell.achieved {
            let level = LevelOrder(cell.key.level.clone());
            found
                .entry((achieved.chunk_bytes, level, achieved.codec.clone()))
                .or_default()
                .push((achieved.saved_pct, achieved.spread_pct));
        }
    }
    found
        .into_iter()
        .map(|((chunk_bytes, level, codec), values)| {
            let count = values.len() as f64;
            Truth {
                level,
                codec,
                chunk_bytes,
                saved_pct: values.iter().map(|(saved, _)| saved).sum::<f64>() / count,
                spread_pct: values.iter().map(|(_, spread)| spread).sum::<f64>() / count,
            }
        })
        .collect()
}

/// The shares of duplicates of a source, each level and value once.
pub(super) fn duplicates_of(source: &Source) -> Vec<(LevelOrder, Duplicates)> {
    let mut found: Vec<(LevelOrder, Duplicates)> = Vec::new();
    for cell in &source.cells {
        let Some(duplicates) = cell.duplicates else {
            continue;
        };
        let row = (LevelOrder(cell.key.level.clone()), duplicates);
        if !found.contains(&row) {
            found.push(row);
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// A chart for each source and chunk size.
pub(super) fn charts(sources: &[&Source]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for source in sources {
        let truths = of_source(source);
        let mut sizes: Vec<u64> = truths.iter().map(|truth| truth.chunk_bytes).collect();
        sizes.dedup();
        for chunk_bytes in sizes {
            let of_size: Vec<&Truth> = truths
                .iter()
                .filter(|truth| truth.chunk_bytes == chunk_bytes)
                .collect();
            charts.push(chart(source, chunk_bytes, &of_size, sources.len() > 1));
        }
    }
    charts
}

/// The bar of a codec at a level, with its deviation.
fn bar(grid: &mut Grid, y: Scale, truth: &Truth, (from, slot): (f64, f64), series: usize) {
    let place = y.at(truth.saved_pct);
    let tip = format!(
        "{}: {:.1} % of {} saved, spread {:.1} points; requested: {}",
        truth.codec,
        truth.saved_pct,
        WholeBytes(truth.chunk_bytes),
        truth.spread_pct,
        truth.level.0
    );
    grid.drawing.rectangle(
        &format!("bar {}", class(series)),
        (from + 1.0, place),
        (slot - 2.0, grid.bottom - place),
        &tip,
    );
    let (top, bottom) = (
        y.at((truth.saved_pct + truth.spread_pct).min(100.0)),
        y.at((truth.saved_pct - truth.spread_pct).max(0.0)),
    );
    grid.drawing
        .whisker("whisker", from + slot / 2.0, (top, bottom), (slot / 4.0).min(5.0));
}

fn chart(source: &Source, chunk_bytes: u64, truths: &[&Truth], named: bool) -> Chart {
    let mut levels: Vec<&LevelOrder> = truths.iter().map(|truth| &truth.level).collect();
    levels.dedup();
    let mut codecs: Vec<String> = truths.iter().map(|truth| truth.codec.clone()).collect();
    codecs.sort_unstable();
    codecs.dedup();
    let size = WholeBytes(chunk_bytes);
    let mut title = format!("Chunks of {size}");
    if named {
        title = format!("{}: chunks of {size}", source.label);
    }
    let names: Vec<[String; 2]> = levels
        .iter()
        .map(|level| [level.0.to_string(), String::new()])
        .collect();
    let mut grid = Grid::with_names(
        &codecs,
        &names,
        false,
        "requested",
        &format!("{title}: requested and achieved"),
    );
    let y = grid.y_axis((0.0, 100.0), "saved", &|value| format!("{} %", plain(value)));
    let mut csv = Csv::new(&COLUMNS);
    for truth in truths {
        csv.row(&[
            source.label.clone(),
            truth.level.0.to_string(),
            truth.codec.clone(),
            truth.chunk_bytes.to_string(),
            truth.saved_pct.to_string(),
            truth.spread_pct.to_string(),
        ]);
        let (Some(category), Some(series)) = (
            levels.iter().position(|level| **level == truth.level),
            codecs.iter().position(|codec| *codec == truth.codec),
        ) else {
            continue;
        };
        let slot = grid.slot(category, series, codecs.len());
        bar(&mut grid, y, truth, slot, series);
    }
    for (category, level) in levels.iter().enumerate() {
        if let Some(percent) = level.0.percent() {
            let (from, slot) = grid.slot(category, 0, codecs.len());
            let place = y.at(percent);
            let to = from + slot * codecs.len() as f64;
            grid.drawing.line("asked", (from - 5.0, place), (to + 5.0, place));
        }
    }
    Chart {
        id: slug(&format!("data-{}-{chunk_bytes}", source.label)),
        title,
        caption: "Share saved by each codec, each chunk compressed separately; whiskers: standard deviation \
             over the chunks; dashed: requested."
            .to_owned(),
        section: Section::Truth,
        drawing: grid.drawing,
        csv: csv.finish(),
    }
}
