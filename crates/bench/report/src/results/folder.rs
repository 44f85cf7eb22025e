//! A directory as results: the files of the runs of one campaign.

use std::fs;
use std::path::{Path, PathBuf};

use super::assemble::{campaign_results, imported_results};
use super::content::{Content, read_content};
use super::set::Results;
use crate::campaign_file::Campaign;
use crate::error::{InputError, Problem};
use crate::input::FILES_MAX;

/// A directory contains the runs of one campaign, ordered by file name: outputs of one program, or campaigns.
pub(super) fn open_folder(path: &Path) -> Result<Results, InputError> {
    let refused = |problem| InputError {
        path: path.to_owned(),
        line: None,
        problem,
    };
    let read_error = |error| refused(Problem::Read(error));
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(read_error)? {
        let entry = entry.map_err(read_error)?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !hidden && fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file()) {
            files.push(entry.path());
        }
    }
    files.sort();
    if files.len() > FILES_MAX {
        return Err(refused(Problem::TooManyFiles(files.len())));
    }
    let mut joined: Option<(PathBuf, Content)> = None;
    for file in files {
        let content = read_content(&file)?;
        joined = Some(match (joined, content) {
            (None, content) => (file, content),
            (Some((first, Content::Imported(kind, mut all))), Content::Imported(other, more))
                if kind == other =>
            {
                all.append(more);
                (first, Content::Imported(kind, all))
            }
            (Some((first, Content::Campaign(mut all))), Content::Campaign(more)) => {
                join_campaigns(&mut all, *more);
                (first, Content::Campaign(all))
            }
            (Some((first, _)), _) => return Err(refused(Problem::Mixed { first, other: file })),
        });
    }
    match joined {
        None => Err(refused(Problem::EmptyFolder)),
        Some((file, Content::Table(_))) => Err(refused(Problem::TableInFolder(file))),
        Some((_, Content::Campaign(campaign))) => campaign_results(path, *campaign).map_err(refused),
        Some((_, Content::Imported(kind, imported))) => imported_results(path, kind, imported),
    }
}

/// Adds the samples of `more` to those of the same cells.
fn join_campaigns(all: &mut Campaign, more: Campaign) {
    for cell in more.cells {
        let same = all.cells.iter_mut().find(|known| {
            known.key == cell.key && known.unit == cell.unit && known.direction == cell.direction
        });
        match same {
            Some(known) => {
                known.samples.extend(cell.samples);
                // The orders of different campaigns cannot be combined.
                known.order.clear();
            }
            None => all.cells.push(cell),
        }
    }
}
