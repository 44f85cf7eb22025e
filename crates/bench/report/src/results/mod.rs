//! Results out of a file, whatever its kind: a campaign, a table, the output of another program; or out of a folder
//! with the files of several runs.

mod assemble;
mod folder;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;

use self::assemble::{campaign_results, imported_results, table_results};
use self::folder::open_folder;
use crate::background::Background;
use crate::campaign_file::Campaign;
use crate::cell::{Cell, CellKey, Measured, Unfit};
use crate::error::{InputError, Problem};
use crate::import::{Imported, Program};
use crate::table_file::{Row, Table};
use crate::unit::{Direction, Unit};

/// Most bytes of a file.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// Most cells of a file.
pub const CELLS_MAX: usize = 10_000;

/// Most files of a folder.
pub const FILES_MAX: usize = 1000;

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
    /// JSON of fio.
    Fio,
    /// Output of IOzone.
    Iozone,
}

impl Kind {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Campaign => "campaign",
            Self::RateTable => "table of means",
            Self::DifferenceTable => "table of differences from A",
            Self::Fio => "output of fio",
            Self::Iozone => "output of IOzone",
        }
    }
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
    /// Cells that cannot be compared, because they have one run or none.
    pub incomplete: Vec<Incomplete>,
    /// What else the file says.
    pub background: Background,
}

/// A cell with one run or none.
#[derive(Clone, Debug, PartialEq)]
pub struct Incomplete {
    /// Which cell.
    pub key: CellKey,
    /// What its value counts.
    pub unit: Unit,
    /// Which way is better.
    pub direction: Direction,
    /// The value of its run.
    pub value: Option<f64>,
}

impl Results {
    /// Results with nothing but cells.
    #[must_use]
    pub fn new(path: PathBuf, kind: Kind, cells: Vec<Cell>) -> Self {
        Self {
            path,
            kind,
            cells,
            without_baseline: Vec::new(),
            incomplete: Vec::new(),
            background: Background::default(),
        }
    }

    /// The same, if every cell can be compared.
    fn complete(self) -> Result<Self, InputError> {
        let Some(cell) = self.incomplete.first() else {
            return Ok(self);
        };
        let key = cell.key.clone();
        let runs = usize::from(cell.value.is_some());
        let problem = match self.kind {
            Kind::Fio | Kind::Iozone => Problem::OneRun { key },
            _ => Problem::Unfit {
                key,
                unfit: Unfit::TooFew(runs),
            },
        };
        Err(InputError {
            path: self.path,
            line: None,
            problem,
        })
    }
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

/// Reads a file or a folder; `runs` is how many runs the means of a table are of. Cells with too few runs are told
/// apart from the others.
///
/// # Errors
/// It cannot be read or is not understood, or it is a table and `runs` is missing.
pub fn open(path: &Path, runs: Option<u32>) -> Result<Opened, InputError> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
        return open_folder(path).map(Opened::Results);
    }
    let refused = |line, problem| InputError {
        path: path.to_owned(),
        line,
        problem,
    };
    match read_content(path)? {
        Content::Campaign(campaign) => campaign_results(path, *campaign)
            .map(Opened::Results)
            .map_err(|problem| refused(None, problem)),
        Content::Imported(kind, imported) => imported_results(path, kind, imported).map(Opened::Results),
        Content::Table(table) => {
            let runs = runs.ok_or_else(|| refused(None, Problem::RunsUnknown))?;
            table_results(path, table, runs)
        }
    }
}

/// Reads what must stand for itself, and in which every cell can be compared.
///
/// # Errors
/// As [`open`]; it is a table of differences; a cell has too few runs.
pub fn open_results(path: &Path, runs: Option<u32>) -> Result<Results, InputError> {
    match open(path, runs)? {
        Opened::Results(results) => results.complete(),
        Opened::Differences(differences) => Err(differences.alone()),
    }
}

/// Reads what is compared with `baseline`, from which differences are taken to be.
///
/// # Errors
/// As [`open`]; a cell has too few runs.
pub fn open_against(path: &Path, runs: Option<u32>, baseline: &Results) -> Result<Results, InputError> {
    match open(path, runs)? {
        Opened::Results(results) => results.complete(),
        Opened::Differences(differences) => differences.over(baseline),
    }
}

/// Reads what is to be shown, cells with a single run among it; differences need a `baseline`.
///
/// # Errors
/// As [`open`]; it is a table of differences and there is no baseline.
pub fn open_to_show(
    path: &Path,
    runs: Option<u32>,
    baseline: Option<&Results>,
) -> Result<Results, InputError> {
    match (open(path, runs)?, baseline) {
        (Opened::Results(results), _) => Ok(results),
        (Opened::Differences(differences), Some(baseline)) => differences.over(baseline),
        (Opened::Differences(differences), None) => Err(differences.alone()),
    }
}

/// What a text is.
enum Content {
    Campaign(Box<Campaign>),
    Table(Table),
    Imported(Kind, Imported),
}

fn read_content(path: &Path) -> Result<Content, InputError> {
    let text = read_text(path)?;
    let refused = |(line, problem)| InputError {
        path: path.to_owned(),
        line,
        problem,
    };
    match Program::of(&text) {
        Some(program) => {
            let kind = match program {
                Program::Fio => Kind::Fio,
                Program::Iozone => Kind::Iozone,
            };
            let imported = program.read(&text).map_err(refused)?;
            Ok(Content::Imported(kind, imported))
        }
        None if text.trim_start().starts_with('{') => Campaign::from_json(&text)
            .map(|campaign| Content::Campaign(Box::new(campaign)))
            .map_err(|problem| refused((None, problem))),
        None => Table::from_csv(&text).map(Content::Table).map_err(refused),
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
            without_baseline,
            ..Results::new(self.path, Kind::DifferenceTable, cells)
        })
    }

    /// What is wrong with it where there is no baseline.
    fn alone(self) -> InputError {
        InputError {
            path: self.path,
            line: None,
            problem: Problem::OnlyDifferences,
        }
    }
}
