//! A table of differences, which requires the means of a baseline.

use std::collections::HashMap;
use std::path::PathBuf;

use super::set::{Kind, Results};
use crate::cell::{Cell, CellKey, Measured};
use crate::error::{InputError, Problem};
use crate::table_file::Row;

/// A table of differences.
#[derive(Clone, Debug, PartialEq)]
pub struct Differences {
    pub(super) path: PathBuf,
    pub(super) rows: Vec<Row>,
    pub(super) runs: u32,
}

impl Differences {
    /// Applies the differences to the means of `baseline`.
    pub(super) fn over(self, baseline: &Results) -> Result<Results, InputError> {
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

    /// The error if there is no baseline.
    pub(super) fn alone(self) -> InputError {
        InputError {
            path: self.path,
            line: None,
            problem: Problem::OnlyDifferences,
        }
    }
}
