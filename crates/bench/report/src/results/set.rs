//! Cells with their origin: which file, of which kind, and what is missing.

use std::path::PathBuf;

use serde::Serialize;

use crate::background::Background;
use crate::cell::{Cell, CellKey, Unfit};
use crate::error::{InputError, Problem};
use crate::unit::{Direction, Unit};

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
            Self::Fio => "fio output",
            Self::Iozone => "IOzone output",
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
