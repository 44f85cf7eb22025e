//! Results out of a file, whatever its kind: a campaign, a table of rates, a table of differences.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::campaign_file::Campaign;
use crate::cell::{Cell, CellKey, Measured};
use crate::error::{InputError, Problem};
use crate::table_file::{Form, Row, Table};
use crate::unit::{Direction, Unit};

/// Most bytes of a file.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// Most cells of a file.
pub const CELLS_MAX: usize = 10_000;

const KIB: f64 = 1024.0;

/// Where results come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A campaign, with every sample.
    Campaign,
    /// A table of means and deviations.
    RateTable,
    /// A table of differences, laid over its baseline.
    DifferenceTable,
}

/// Results of which each cell can be compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// The file.
    pub path: PathBuf,
    /// Its kind.
    pub kind: Kind,
    /// Its cells, in the order of the file; each once.
    pub cells: Vec<Cell>,
    /// Cells of a table of differences that its baseline lacks, so that nothing is known of them.
    pub without_baseline: Vec<CellKey>,
}

/// What a file turned out to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Opened {
    /// It stands for itself.
    Results(Results),
    /// It needs a baseline.
    Differences(Differences),
}

/// A table of differences.
#[derive(Clone, Debug, PartialEq)]
pub struct Differences {
    path: PathBuf,
    rows: Vec<Row>,
    runs: u32,
}

/// Reads a file; `runs` is how many runs the means of a table are of.
///
/// # Errors
/// It cannot be read or is not understood, or it is a table and `runs` is missing.
pub fn open(path: &Path, runs: Option<u32>) -> Result<Opened, InputError> {
    let refused = |line, problem| InputError {
        path: path.to_owned(),
        line,
        problem,
    };
    let text = read_text(path)?;
    if text.trim_start().starts_with('{') {
        let cells = Campaign::from_json(&text)
            .and_then(|campaign| campaign.to_cells())
            .map_err(|problem| refused(None, problem))?;
        return Ok(Opened::Results(Results {
            path: path.to_owned(),
            kind: Kind::Campaign,
            cells,
            without_baseline: Vec::new(),
        }));
    }
    let table = Table::from_csv(&text).map_err(|(line, problem)| refused(line, problem))?;
    let runs = runs.ok_or_else(|| refused(None, Problem::RunsUnknown))?;
    match table.form {
        Form::Differences => Ok(Opened::Differences(Differences {
            path: path.to_owned(),
            rows: table.rows,
            runs,
        })),
        Form::Rates => {
            let cells = table.rows.into_iter().map(|row| {
                let line = Some(row.line);
                rate_cell(row, runs).map_err(|problem| refused(line, problem))
            });
            Ok(Opened::Results(Results {
                path: path.to_owned(),
                kind: Kind::RateTable,
                cells: cells.collect::<Result<_, _>>()?,
                without_baseline: Vec::new(),
            }))
        }
    }
}

/// Reads a file that must stand for itself.
///
/// # Errors
/// As [`open`]; it is a table of differences.
pub fn open_results(path: &Path, runs: Option<u32>) -> Result<Results, InputError> {
    match open(path, runs)? {
        Opened::Results(results) => Ok(results),
        Opened::Differences(_) => Err(InputError {
            path: path.to_owned(),
            line: None,
            problem: Problem::OnlyDifferences,
        }),
    }
}

/// Reads a file; differences are taken to be from `baseline`.
///
/// # Errors
/// As [`open`].
pub fn open_against(path: &Path, runs: Option<u32>, baseline: &Results) -> Result<Results, InputError> {
    match open(path, runs)? {
        Opened::Results(results) => Ok(results),
        Opened::Differences(differences) => differences.over(baseline),
    }
}

/// Reads a text file of at most [`FILE_BYTES_MAX`].
///
/// # Errors
/// It cannot be read, is larger, or is no text.
pub(crate) fn read_text(path: &Path) -> Result<String, InputError> {
    let refused = |problem| InputError {
        path: path.to_owned(),
        line: None,
        problem,
    };
    let read_error = |error| refused(Problem::Read(error));
    let mut bytes = Vec::new();
    File::open(path)
        .map_err(read_error)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(read_error)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(refused(Problem::TooLarge));
    }
    String::from_utf8(bytes).map_err(|_| refused(Problem::NotText))
}

fn rate_cell(row: Row, runs: u32) -> Result<Cell, Problem> {
    match Measured::from_summary(row.value * KIB, row.stddev * KIB, runs) {
        Ok(measured) => Ok(Cell {
            key: row.key,
            unit: Unit::BytesPerSecond,
            direction: Direction::HigherIsBetter,
            measured,
        }),
        Err(unfit) => Err(Problem::Unfit { key: row.key, unfit }),
    }
}

impl Differences {
    /// Lays the differences over the means of `baseline`.
    fn over(self, baseline: &Results) -> Result<Results, InputError> {
        let by_key: HashMap<&CellKey, &Cell> = baseline.cells.iter().map(|cell| (&cell.key, cell)).collect();
        let mut cells = Vec::new();
        let mut without_baseline = Vec::new();
        for row in self.rows {
            let Some(base) = by_key.get(&row.key) else {
                without_baseline.push(row.key);
                continue;
            };
            let mean = base.measured.moments().mean;
            let measured = Measured::from_summary(
                mean * (1.0 + row.value / 100.0),
                mean * row.stddev / 100.0,
                self.runs,
            );
            match measured {
                Ok(measured) => cells.push(Cell {
                    measured,
                    ..(*base).clone()
                }),
                Err(unfit) => {
                    return Err(InputError {
                        path: self.path,
                        line: Some(row.line),
                        problem: Problem::Unfit { key: row.key, unfit },
                    });
                }
            }
        }
        Ok(Results {
            path: self.path,
            kind: Kind::DifferenceTable,
            cells,
            without_baseline,
        })
    }
}
