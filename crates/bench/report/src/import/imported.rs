//! Runs of cells that another program measured.

use std::collections::HashMap;

use crate::cell::CellKey;
use crate::unit::{Direction, Unit};

/// The contents of a file of another program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// One value for each run of a cell, in the order of the file.
    pub runs: Vec<Run>,
    /// Conditions of the measurement: names with values.
    pub environment: Vec<(String, String)>,
    /// Limits of the results that a reader should know.
    pub notes: Vec<String>,
}

/// A run of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Which cell.
    pub key: CellKey,
    /// Unit of the value.
    pub unit: Unit,
    /// The value.
    pub value: f64,
}

impl Imported {
    /// Adds the contents of another file. Different values for the same condition are listed together.
    pub fn append(&mut self, other: Self) {
        self.runs.extend(other.runs);
        for (name, value) in other.environment {
            self.tell(&name, &value);
        }
        for note in other.notes {
            self.note(note);
        }
    }

    /// Adds a condition, in addition to others of the same name.
    pub(super) fn tell(&mut self, name: &str, value: &str) {
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

    /// Adds a note, once.
    pub(super) fn note(&mut self, note: String) {
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
    /// Unit of the values.
    pub unit: Unit,
    /// Whether higher or lower values are better.
    pub direction: Direction,
    /// The values.
    pub values: Vec<f64>,
}
