//! The contents of a report: the structs behind the page and the JSON.
//!
//! The JSON is an interface for scripts: a field keeps its name and unit once released, and [`SCHEMA`] is incremented
//! when a field changes its meaning. Values are in the unit of their cell.

use std::collections::HashSet;
use std::path::PathBuf;

use serde::Serialize;

use super::options::Options;
use crate::background::Background;
use crate::campaign_file::{Achieved, Duplicates};
use crate::cell::{Cell, CellKey};
use crate::claim::{ClaimOptions, rate_interval};
use crate::comparison::Comparison;
use crate::results::{Incomplete, Kind, Results};
use crate::unit::{Direction, Unit};

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// Maximum number of characters in a label, which is used in legends.
const LABEL_CHARS_MAX: usize = 40;

/// Results, and their comparison with a baseline.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Source>,
    /// The results, in the given order.
    pub sources: Vec<Source>,
    /// The comparison of each source with the baseline, if there is one.
    pub comparisons: Vec<Comparison>,
}

impl Report {
    /// The baseline, if there is one, followed by the other sources.
    #[must_use]
    pub fn all(&self) -> Vec<&Source> {
        self.baseline.iter().chain(&self.sources).collect()
    }
}

/// One file or directory.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Source {
    /// Unique label in charts.
    pub label: String,
    /// Path.
    pub path: PathBuf,
    /// Kind.
    pub kind: Kind,
    /// Information besides its numbers.
    #[serde(flatten)]
    pub background: Background,
    /// Its cells.
    pub cells: Vec<CellSummary>,
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct CellSummary {
    /// Test, record size, level.
    #[serde(flatten)]
    pub key: CellKey,
    /// Unit of the values.
    pub unit: Unit,
    /// Whether higher or lower values are better.
    pub direction: Direction,
    /// Number of runs; 0 if not measured yet.
    pub runs: u32,
    /// Arithmetic mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// Standard deviation; absent for a single run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stddev: Option<f64>,
    /// Median; unknown for a published mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,
    /// 95 % interval of the median; for a published mean, that of the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
    /// Number of runs far from the median, which are included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outliers: Option<usize>,
    /// The value of each run, in the order of the runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<f64>,
    /// Savings of codecs on the data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub achieved: Vec<Achieved>,
    /// Share of duplicates in the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<Duplicates>,
}

impl CellSummary {
    /// The value that charts show: the median; for a published table, the mean.
    #[must_use]
    pub fn middle(&self) -> Option<f64> {
        self.median.or(self.mean)
    }
}

impl Source {
    /// Where it was measured: the target, with the model or name of its device; `None` if the file does not say.
    #[must_use]
    pub fn place(&self) -> Option<String> {
        let of = |name: &str| {
            let mut environment = self.background.environment.iter();
            let (_, value) = environment.find(|(other, value)| other == name && !value.is_empty())?;
            Some(value.as_str())
        };
        match (of("target"), of("device")) {
            (Some(target), Some(device)) => Some(format!("{target} ({device})")),
            (one, other) => one.or(other).map(str::to_owned),
        }
    }

    /// Labels of results; `taken` are the labels of others.
    pub(super) fn of(results: &Results, taken: &mut HashSet<String>, options: &Options) -> Self {
        let mut cells: Vec<CellSummary> = results.cells.iter().map(|cell| complete(cell, options)).collect();
        cells.extend(results.incomplete.iter().map(incomplete));
        for cell in &mut cells {
            let achieved = results.background.achieved.iter();
            let of_cell = achieved.filter(|(key, _)| *key == cell.key);
            cell.achieved = of_cell.map(|(_, achieved)| achieved.clone()).collect();
            let mut duplicates = results.background.duplicates.iter();
            cell.duplicates = duplicates
                .find(|(key, _)| *key == cell.key)
                .map(|(_, found)| *found);
        }
        Self {
            label: label(results, taken),
            path: results.path.clone(),
            kind: results.kind,
            background: results.background.clone(),
            cells,
        }
    }
}

/// The campaign's name, else that of the file, with a number if another source has it.
fn label(results: &Results, taken: &mut HashSet<String>) -> String {
    let of_file = || {
        let stem = results
            .path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned());
        stem.unwrap_or_else(|| results.path.display().to_string())
    };
    let name = results
        .background
        .name
        .clone()
        .filter(|name| !name.trim().is_empty());
    let name: String = name
        .unwrap_or_else(of_file)
        .chars()
        .take(LABEL_CHARS_MAX)
        .collect();
    let mut label = name.clone();
    let mut number = 1;
    while !taken.insert(label.clone()) {
        number += 1;
        label = format!("{name} ({number})");
    }
    label
}

fn complete(cell: &Cell, options: &Options) -> CellSummary {
    let description = cell.measured.describe();
    let interval = rate_interval(
        cell,
        &ClaimOptions {
            runs: options.runs,
            seed: options.seed,
            resamples: options.resamples,
        },
    );
    CellSummary {
        key: cell.key.clone(),
        unit: cell.unit,
        direction: cell.direction,
        runs: description.runs,
        mean: Some(description.mean),
        stddev: Some(description.stddev),
        median: description.median,
        interval: Some((interval.low, interval.high)),
        outliers: description.outliers,
        samples: cell.measured.runs().map(<[f64]>::to_vec).unwrap_or_default(),
        achieved: Vec::new(),
        duplicates: None,
    }
}

fn incomplete(cell: &Incomplete) -> CellSummary {
    CellSummary {
        key: cell.key.clone(),
        unit: cell.unit,
        direction: cell.direction,
        runs: u32::from(cell.value.is_some()),
        mean: cell.value,
        stddev: None,
        median: cell.value,
        interval: None,
        outliers: None,
        samples: cell.value.into_iter().collect(),
        achieved: Vec::new(),
        duplicates: None,
    }
}
