//! The margin: a smaller difference is irrelevant, or below the resolution of the measurement.
//!
//! It is given in percent, or measured with an A/A campaign, a repeat of the same measurement. The margin of a cell is
//! then the smallest one within which that repeat is shown to be equivalent to the first campaign, but at least 1 %. An
//! equivalent cell thus differs no more than repeated measurements do.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::cell::CellKey;
use crate::error::BenchError;
use crate::results::{self, Results};
use crate::statistics::welch::welch;

use super::confidence::ALPHA;

/// Minimum and default margin in percent.
pub const DELTA_FLOOR_PCT: f64 = 1.0;

/// The margin.
#[derive(Clone, Debug, PartialEq)]
pub enum Margin {
    /// A percentage, from 0 to below 100.
    Percent(f64),
    /// Measured with A/A campaigns: one is compared with A, two are compared with each other.
    Repeats(Vec<PathBuf>),
}

/// The margin of each of these cells in percent.
pub(super) fn margins_pct(
    margin: &Margin,
    keys: &[&CellKey],
    a: &Results,
    runs: Option<u32>,
) -> Result<Vec<f64>, BenchError> {
    match margin {
        Margin::Percent(percent) if (0.0..100.0).contains(percent) => Ok(vec![*percent; keys.len()]),
        Margin::Percent(percent) => Err(BenchError::Delta(*percent)),
        Margin::Repeats(paths) => match paths.as_slice() {
            [again] => {
                let again = results::open_against(again, runs, a)?;
                from_repeats(keys, a, &again)
            }
            [first, again] => {
                let first = results::open_results(first, runs)?;
                let again = results::open_against(again, runs, &first)?;
                from_repeats(keys, &first, &again)
            }
            _ => Err(BenchError::Repeats(paths.len())),
        },
    }
}

fn from_repeats(keys: &[&CellKey], first: &Results, again: &Results) -> Result<Vec<f64>, BenchError> {
    fn by_key(results: &Results) -> HashMap<&CellKey, &crate::cell::Cell> {
        results.cells.iter().map(|cell| (&cell.key, cell)).collect()
    }
    let (first, again) = (by_key(first), by_key(again));
    let margins: Vec<Option<f64>> = keys
        .iter()
        .map(|key| {
            let (first, again) = (first.get(key)?, again.get(key)?);
            let test = welch(first.measured.log_moments(), again.measured.log_moments());
            let noise_pct = test.smallest_margin(ALPHA).exp_m1() * 100.0;
            Some(noise_pct.max(DELTA_FLOOR_PCT))
        })
        .collect();
    let missing = margins.iter().filter(|margin| margin.is_none()).count();
    if let Some(at) = margins.iter().position(Option::is_none) {
        return Err(BenchError::RepeatLacks {
            missing,
            cells: keys.len(),
            example: keys[at].clone(),
        });
    }
    Ok(margins.into_iter().flatten().collect())
}
