//! Reads results from a file of any kind (a campaign, a table, the output of another program), or from a directory with
//! the files of several runs.

mod assemble;
mod content;
mod differences;
mod folder;
mod opened;
mod set;

use std::fs;
use std::path::Path;

pub use self::differences::Differences;
pub use self::opened::Opened;
pub use self::set::{Incomplete, Kind, Results};

use self::assemble::{campaign_results, imported_results, table_results};
use self::content::{Content, read_content};
use self::folder::open_folder;
use crate::error::{InputError, Problem};

/// Reads a file or a directory; `runs` is the number of runs behind the means of a table. Cells with too few runs are
/// listed separately.
///
/// # Errors
/// It cannot be read or is invalid, or it is a table and `runs` is missing.
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

/// Reads results with rates of their own in which every cell can be compared.
///
/// # Errors
/// As [`open`]; it is a table of differences; a cell has too few runs.
pub fn open_results(path: &Path, runs: Option<u32>) -> Result<Results, InputError> {
    match open(path, runs)? {
        Opened::Results(results) => results.complete(),
        Opened::Differences(differences) => Err(differences.alone()),
    }
}

/// Reads the results to compare with `baseline`. Differences are taken relative to `baseline`.
///
/// # Errors
/// As [`open`]; a cell has too few runs.
pub fn open_against(path: &Path, runs: Option<u32>, baseline: &Results) -> Result<Results, InputError> {
    match open(path, runs)? {
        Opened::Results(results) => results.complete(),
        Opened::Differences(differences) => differences.over(baseline),
    }
}

/// Reads results for display, including cells with a single run; differences need a `baseline`.
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
