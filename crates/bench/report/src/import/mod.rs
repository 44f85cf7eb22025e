//! What other programs measured: from their output to runs of cells.
//!
//! A file holds one run of some cells, or several, one after the other. Where the samples of a cell come from several
//! files, these stand in one folder.

mod fio;
mod iozone;

use std::collections::HashMap;

use crate::cell::CellKey;
use crate::error::Problem;
use crate::unit::{Direction, Unit};

/// Which program made a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// fio, with `--output-format=json`.
    Fio,
    /// IOzone, its table or its Excel-style lists.
    Iozone,
}

impl Program {
    /// Which program made `text`; `None` if neither.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        if fio::is_output(text) {
            Some(Self::Fio)
        } else if iozone::is_output(text) {
            Some(Self::Iozone)
        } else {
            None
        }
    }

    /// What the text of a file says.
    ///
    /// # Errors
    /// It is not understood; the line where that shows.
    pub fn read(self, text: &str) -> Result<Imported, (Option<u64>, Problem)> {
        match self {
            Self::Fio => fio::read(text),
            Self::Iozone => iozone::read(text),
        }
    }
}

/// What a file of another program says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// One value for each run of a cell, in the order of the file.
    pub runs: Vec<Run>,
    /// Where and how it was measured: names with values.
    pub environment: Vec<(String, String)>,
    /// What one should know before one believes it.
    pub notes: Vec<String>,
}

/// A run of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Which cell.
    pub key: CellKey,
    /// What the value counts.
    pub unit: Unit,
    /// The value.
    pub value: f64,
}

impl Imported {
    /// Adds what another file says. What the two say differently about where it was measured is listed together.
    pub fn append(&mut self, other: Self) {
        self.runs.extend(other.runs);
        for (name, value) in other.environment {
            self.tell(&name, &value);
        }
        for note in other.notes {
            self.note(note);
        }
    }

    /// Notes a fact, beside others of the same name.
    fn tell(&mut self, name: &str, value: &str) {
        const VALUES_CHARS_MAX: usize = 600;
        match self.environment.iter_mut().find(|(known, _)| known == name) {
            None => self.environment.push((name.to_owned(), value.to_owned())),
            Some((_, values)) => {
                let known = values.split("; ").any(|known| known == value);
                if !known && values.len() + value.len() < VALUES_CHARS_MAX {
                    values.push_str("; ");
                    values.push_str(value);
                }
            }
        }
    }

    /// Notes what one should know, once.
    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// The values of each cell, cells in the order of their first run.
    #[must_use]
    pub fn cells(self) -> Vec<ImportedCell> {
        let mut places: HashMap<CellKey, usize> = HashMap::new();
        let mut cells: Vec<ImportedCell> = Vec::new();
        for run in self.runs {
            let place = *places.entry(run.key.clone()).or_insert_with(|| {
                cells.push(ImportedCell {
                    key: run.key,
                    unit: run.unit,
                    direction: Direction::HigherIsBetter,
                    values: Vec::new(),
                });
                cells.len() - 1
            });
            cells[place].values.push(run.value);
        }
        cells
    }
}

/// A cell with the value of each of its runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedCell {
    /// Which cell.
    pub key: CellKey,
    /// What the values count.
    pub unit: Unit,
    /// Which way is better.
    pub direction: Direction,
    /// The values.
    pub values: Vec<f64>,
}
