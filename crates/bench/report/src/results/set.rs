//! Cells with their source: the file, its kind, and missing values.

use std::path::PathBuf;

use serde::Serialize;

use crate::background::Background;
use crate::cell::{Cell, CellKey, Unfit};
use crate::error::{InputError, Problem};
use crate::unit::{Direction, Unit};

/// Kind of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A campaign, with every sample.
    Campaign,
    /// A table of means and deviations.
    RateTable,
    /// A table of differences, applied to its baseline.
    DifferenceTable,
    /// fio JSON.
    Fio,
    /// IOzone output.
    Iozone,
}

impl Kind {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Campaign => "campaign",
            Self::RateTable => "table of means",
            Self::DifferenceTable => "table of differences",
            Self::Fio => "fio output",
            Self::Iozone => "IOzone output",
        }
    }
}

/// Results in which each cell can be compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// The file.
    pub path: PathBuf,
    /// Its kind.
    pub kind: Kind,
    /// Its cells, in file order; each once.
    pub cells: Vec<Cell>,
    /// Cells of a table of differences that its baseline lacks.
    pub without_baseline: Vec<CellKey>,
    /// Cells that cannot be compared, because they have one run or none.
    pub incomplete: Vec<Incomplete>,
    /// Other information in the file.
    pub background: Background,
}

/// A cell with one run or none.
#[derive(Clone, Debug, PartialEq)]
pub struct Incomplete {
    /// Which cell.
    pub key: CellKey,
    /// Unit of its value.
    pub unit: Unit,
    /// Whether higher or lower values are better.
    pub direction: Direction,
    /// The value of its run.
    pub value: Option<f64>,
}

impl Results {
    /// Results with only cells.
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

    /// The results, if every cell can be compared.
    pub(super) fn complete(self) -> Result<Self, InputError> {
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
