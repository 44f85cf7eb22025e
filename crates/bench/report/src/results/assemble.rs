//! Creates cells from the contents of files: those that can be compared, and those with too few runs.

use std::path::Path;

use super::differences::Differences;
use super::opened::Opened;
use super::set::{Incomplete, Kind, Results};
use crate::background::Background;
use crate::campaign_file::Campaign;
use crate::cell::{Cell, Measured};
use crate::error::{InputError, Problem};
use crate::import::{Imported, ImportedCell};
use crate::input::CELLS_MAX;
use crate::table_file::{Form, Row, Table};
use crate::unit::{Direction, Unit};

const KIB: f64 = 1024.0;

/// For a campaign.
pub(super) fn campaign_results(path: &Path, mut campaign: Campaign) -> Result<Results, Problem> {
    let mut incomplete = Vec::new();
    let runs: Vec<usize> = campaign.cells.iter().map(|cell| cell.samples.len()).collect();
    // A cell with one run is validated like any other, as if it had been measured twice.
    for cell in &mut campaign.cells {
        match *cell.samples.as_slice() {
            [] => cell.samples = vec![1.0; 2],
            [value] => cell.samples = vec![value; 2],
            _ => {}
        }
    }
    let mut cells = Vec::new();
    for (cell, runs) in campaign.to_cells()?.into_iter().zip(runs) {
        if runs < 2 {
            incomplete.push(Incomplete {
                value: (runs == 1).then(|| cell.measured.median()),
                key: cell.key,
                unit: cell.unit,
                direction: cell.direction,
            });
        } else {
            cells.push(cell);
        }
    }
    Ok(Results {
        incomplete,
        background: Background::of_campaign(&campaign),
        ..Results::new(path.to_owned(), Kind::Campaign, cells)
    })
}

/// For the output of another program.
pub(super) fn imported_results(
    path: &Path,
    kind: Kind,
    mut imported: Imported,
) -> Result<Results, InputError> {
    let refused = |problem| InputError {
        path: path.to_owned(),
        line: None,
        problem,
    };
    let background = Background::of_import(&mut imported);
    let mut results = Results::new(path.to_owned(), kind, Vec::new());
    results.background = background;
    let cells = imported.cells();
    if cells.len() > CELLS_MAX {
        return Err(refused(Problem::TooManyCells));
    }
    for cell in cells {
        let ImportedCell {
            key,
            unit,
            direction,
            values,
        } = cell;
        let single = (values.len() == 1).then(|| values[0]);
        // Validated like any other, as if it had been measured twice.
        let values = single.map_or(values, |value| vec![value; 2]);
        match (Measured::from_runs(values), single) {
            (Err(unfit), _) => return Err(refused(Problem::Unfit { key, unfit })),
            (Ok(_), Some(value)) => results.incomplete.push(Incomplete {
                key,
                unit,
                direction,
                value: Some(value),
            }),
            (Ok(measured), None) => results.cells.push(Cell {
                key,
                unit,
                direction,
                measured,
            }),
        }
    }
    Ok(results)
}

/// For a table whose means are over `runs` runs.
pub(super) fn table_results(path: &Path, table: Table, runs: u32) -> Result<Opened, InputError> {
    match table.form {
        Form::Differences => Ok(Opened::Differences(Differences {
            path: path.to_owned(),
            rows: table.rows,
            runs,
        })),
        Form::Rates => {
            let cells = table.rows.into_iter().map(|row| {
                let line = Some(row.line);
                rate_cell(row, runs).map_err(|problem| InputError {
                    path: path.to_owned(),
                    line,
                    problem,
                })
            });
            let cells = cells.collect::<Result<_, _>>()?;
            Ok(Opened::Results(Results::new(
                path.to_owned(),
                Kind::RateTable,
                cells,
            )))
        }
    }
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
