//! The file of a campaign: JSON with every sample and with the conditions of the measurement.
//!
//! ```json
//! {
//!   "format": "flaz-campaign-1",
//!   "name": "kernel 5.15, direct I/O",
//!   "seed": 42,
//!   "environment": { "kernel": "5.15.0", "device_model": "SF-1222", "governor": "performance" },
//!   "cells": [
//!     { "test": "write", "record_bytes": 1048576, "level": 98, "unit": "bytes-per-s",
//!       "samples": [266103910.4, 265817190.0], "order": [3, 11],
//!       "achieved": [ { "codec": "lz4", "chunk_bytes": 4096, "saved_pct": 97.9, "spread_pct": 0.1 } ],
//!       "duplicates": { "block_bytes": 4096, "requested_pct": 0.0, "pool_bytes": 268435456, "pool_pct": 0.0,
//!                       "pass_bytes": 1073741824, "pass_pct": 75.0 } }
//!   ]
//! }
//! ```
//!
//! The format is an interface: within a version, fields are added, but never changed or removed. A reader skips unknown
//! fields. Names end in their unit.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cell::{Cell, CellKey, Level, Measured, is_name};
use crate::error::{InputError, Problem};
use crate::input::{CELLS_MAX, FORMAT};
use crate::table_file::quoted;
use crate::text_file::read_text;
use crate::unit::{Direction, Unit};

/// A campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Campaign {
    /// [`FORMAT`].
    pub format: String,
    /// Name given by the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Version of the program that measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Start time: RFC 3339, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// Seed of order and data.
    pub seed: u64,
    /// Description of the machine.
    #[serde(default)]
    pub environment: Environment,
    /// The plan, in the format of the measuring program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<serde_json::Value>,
    /// Progress, if incomplete; `flaz bench run --resume` continues from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<serde_json::Value>,
    /// Results; each test, record size and level once.
    pub cells: Vec<CampaignCell>,
}

/// Description of the machine. Unknown values are omitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Environment {
    /// Release of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Model of the processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Frequency governor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// Memory of the machine in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Model of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_model: Option<String>,
    /// Its firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_firmware: Option<String>,
    /// File system, or `none` on a raw device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_system: Option<String>,
    /// Its mount options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_options: Option<String>,
    /// Free space at the beginning, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Other useful information.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// The samples of one test with one record size and one kind of data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CampaignCell {
    /// Test, record size and level.
    #[serde(flatten)]
    pub key: CellKey,
    /// Unit of the samples.
    pub unit: Unit,
    /// Whether higher or lower values are better.
    #[serde(default)]
    pub direction: Direction,
    /// One value per run, in the order of the runs.
    pub samples: Vec<f64>,
    /// For each sample, the number of its run in the campaign, from 0, so that a drift is visible.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub order: Vec<u32>,
    /// Measured compressibility of the data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub achieved: Vec<Achieved>,
    /// Share of duplicates in the data that a pass writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<Duplicates>,
    /// With several writers, for each sample the sum of each writer's rate over its own time, in the cell's unit. The
    /// sample itself is all bytes divided by the time from the first writer's start to the last one's end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub naive: Vec<f64>,
    /// Values of the warm-up rounds, which are not samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warm_up: Vec<f64>,
    /// Indices, from 0, of samples far from the median. They are included in the results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outliers: Vec<usize>,
    /// Significant change over the campaign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// Whether the last five samples are in steady state as defined by SNIA; absent with fewer samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steady: Option<bool>,
}

/// A change of a cell over the campaign.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Drift {
    /// Change from the first sample to the last, along the regression line of the logarithms, in percent.
    pub change_pct: f64,
    /// Probability of such a line without a drift, corrected for the number of cells.
    pub adjusted_p: f64,
}

/// Savings of a codec on the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Achieved {
    /// `lz4`, `zstd-1`, `zlib-6`, ..
    pub codec: String,
    /// Size of the chunks, which are compressed separately.
    pub chunk_bytes: u64,
    /// Space saved, on average over the chunks.
    pub saved_pct: f64,
    /// Standard deviation of that over the chunks.
    pub spread_pct: f64,
}

/// Share of duplicates in the data, as a device that deduplicates finds them: the bytes are compared, so that zeroes
/// count as well.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Duplicates {
    /// Size of the compared blocks.
    pub block_bytes: u64,
    /// Requested share of duplicates.
    pub requested_pct: f64,
    /// Size of the generated data, after which it repeats.
    pub pool_bytes: u64,
    /// Share of its blocks that equal an earlier one in it.
    pub pool_pct: f64,
    /// Total bytes that all writers write in a pass.
    pub pass_bytes: u64,
    /// Share of the blocks of a pass that equal an earlier one of the same pass.
    pub pass_pct: f64,
}

impl Duplicates {
    /// Whether a pass has more duplicates than the generated data, because the latter is shorter.
    #[must_use]
    pub fn begins_anew(&self) -> bool {
        self.pass_bytes > self.pool_bytes
    }
}

impl Campaign {
    /// A campaign without cells.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            format: FORMAT.to_owned(),
            name: None,
            program: None,
            started: None,
            seed,
            environment: Environment::default(),
            plan: None,
            progress: None,
            cells: Vec::new(),
        }
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// It is not a campaign in this format.
    pub fn from_json(text: &str) -> Result<Self, Problem> {
        #[derive(Deserialize)]
        struct Head {
            format: Option<String>,
        }
        let not_json = |error: serde_json::Error| Problem::Json(error.to_string());
        // Check the format first: another one may have other fields.
        let head: Head = serde_json::from_str(text).map_err(not_json)?;
        match head.format {
            Some(found) if found == FORMAT => {}
            Some(found) => {
                let found = quoted(&found);
                return Err(Problem::Format { found });
            }
            None => {
                let missing = format!("expected a field \"format\": \"{FORMAT}\", found none");
                return Err(Problem::Json(missing));
            }
        }
        serde_json::from_str(text).map_err(not_json)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is not a campaign in this format.
    pub fn read(path: &Path) -> Result<Self, InputError> {
        let text = read_text(path)?;
        Self::from_json(&text).map_err(|problem| InputError {
            path: path.to_owned(),
            line: None,
            problem,
        })
    }

    /// The text of a file.
    ///
    /// # Errors
    /// JSON cannot represent it: a sample is not finite.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        use serde::ser::Error;
        if let Some(cell) = self
            .cells
            .iter()
            .find(|cell| cell.samples.iter().any(|sample| !sample.is_finite()))
        {
            return Err(serde_json::Error::custom(format!(
                "{}: a sample is not finite",
                cell.key
            )));
        }
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Its cells, valid for a comparison.
    ///
    /// # Errors
    /// A cell occurs twice, or its samples cannot be compared; there are no cells, or more than [`CELLS_MAX`].
    pub fn to_cells(&self) -> Result<Vec<Cell>, Problem> {
        if self.cells.is_empty() {
            return Err(Problem::NoCells);
        }
        if self.cells.len() > CELLS_MAX {
            return Err(Problem::TooManyCells);
        }
        let mut seen = HashSet::new();
        self.cells
            .iter()
            .map(|cell| {
                let key = cell.key.clone();
                if !is_name(&key.test) {
                    return Err(Problem::Value {
                        column: "test",
                        text: quoted(&key.test),
                        expected: "a test name, for example write or random_read",
                    });
                }
                if key.record_bytes == 0 {
                    return Err(Problem::Value {
                        column: "record_bytes",
                        text: "0".to_owned(),
                        expected: "a number of bytes above zero",
                    });
                }
                if !seen.insert(&cell.key) {
                    return Err(Problem::Twice {
                        key,
                        first_line: None,
                    });
                }
                match Measured::from_runs(cell.samples.clone()) {
                    Ok(measured) => Ok(Cell {
                        key,
                        unit: cell.unit,
                        direction: cell.direction,
                        measured,
                    }),
                    Err(unfit) => Err(Problem::Unfit { key, unfit }),
                }
            })
            .collect()
    }
}

impl CampaignCell {
    /// A cell with only its samples.
    #[must_use]
    pub fn new(test: &str, record_bytes: u64, level: Level, samples: Vec<f64>) -> Self {
        Self {
            key: CellKey {
                test: test.to_owned(),
                record_bytes,
                level,
            },
            unit: Unit::BytesPerSecond,
            direction: Direction::HigherIsBetter,
            samples,
            order: Vec::new(),
            achieved: Vec::new(),
            duplicates: None,
            naive: Vec::new(),
            warm_up: Vec::new(),
            outliers: Vec::new(),
            drift: None,
            steady: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = r#"{"format":"flaz-campaign-1","seed":1,"of_a_later_version":[],"cells":[
        {"test":"read","record_bytes":4096,"level":"random","unit":"ops-per-s","samples":[1.5,2.5]}]}"#;

    #[test]
    fn every_field_is_kept() {
        let mut campaign = Campaign::new(u64::MAX);
        campaign.name = Some("x".to_owned());
        campaign.environment.kernel = Some("6.1".to_owned());
        campaign
            .environment
            .other
            .insert("scheduler".to_owned(), "none".into());
        let mut cell = CampaignCell::new("write", 1 << 20, "97.5".parse().unwrap(), vec![1.25e8, 1.5e8]);
        cell.order = vec![4, 2];
        cell.naive = vec![1.5e8, 1.75e8];
        cell.warm_up = vec![1e8];
        cell.outliers = vec![1];
        cell.drift = Some(Drift {
            change_pct: -12.5,
            adjusted_p: 0.01,
        });
        cell.steady = Some(false);
        campaign.plan = Some(serde_json::json!({ "runs": 2 }));
        campaign.progress = Some(serde_json::json!({ "round": 1 }));
        cell.direction = Direction::LowerIsBetter;
        cell.achieved.push(Achieved {
            codec: "lz4".to_owned(),
            chunk_bytes: 4096,
            saved_pct: 97.4,
            spread_pct: 0.2,
        });
        cell.duplicates = Some(Duplicates {
            block_bytes: 4096,
            requested_pct: 20.0,
            pool_bytes: 1 << 20,
            pool_pct: 19.5,
            pass_bytes: 4 << 20,
            pass_pct: 79.9,
        });
        campaign.cells.push(cell);
        let text = campaign.to_json().unwrap();
        assert_eq!(Campaign::from_json(&text).unwrap(), campaign);
        assert!(text.contains(r#""level": 97.5"#), "{text}");
    }

    #[test]
    fn unknown_fields_are_skipped_and_defaults_taken() {
        let cells = Campaign::from_json(MINIMAL).unwrap().to_cells().unwrap();
        assert_eq!(cells[0].direction, Direction::HigherIsBetter);
        assert_eq!(cells[0].key.to_string(), "read of 4 KiB at random");
    }

    #[test]
    fn other_formats_are_refused() {
        let message = |text: &str| Campaign::from_json(text).unwrap_err().to_string();
        assert!(message("{").contains("line 1"));
        assert!(message("{}").contains("expected a field \"format\""));
        assert!(message(&MINIMAL.replace("campaign-1", "campaign-2")).contains("later version"));
        assert!(message(&MINIMAL.replace("ops-per-s", "furlongs")).contains("bytes-per-s"));
        assert!(message(&MINIMAL.replace("\"samples\"", "\"smaples\"")).contains("samples"));
        assert!(message(&MINIMAL.replace("2.5", "null")).contains("line 2"));
    }

    #[test]
    fn cells_that_cannot_be_compared() {
        let refused = |campaign: &Campaign| campaign.to_cells().unwrap_err().to_string();
        let mut campaign = Campaign::new(0);
        assert!(refused(&campaign).contains("no cells"));
        campaign
            .cells
            .push(CampaignCell::new("w", 1, "2".parse().unwrap(), vec![1.0]));
        assert!(refused(&campaign).contains("w of 1 B at 2 %: a comparison needs at least 2 runs, found 1"));
        campaign.cells[0].samples.push(2.0);
        campaign.cells.push(campaign.cells[0].clone());
        assert!(refused(&campaign).contains("occurs twice"));
        campaign.cells[1].key.test = "\u{1b}[31m".to_owned();
        assert!(refused(&campaign).contains("test is '?[31m'"));
        campaign.cells[1].key.test = "r".to_owned();
        campaign.cells[1].key.record_bytes = 0;
        assert!(refused(&campaign).contains("above zero"));
        campaign.cells[1].samples[0] = f64::NAN;
        assert!(campaign.to_json().is_err());
    }
}
