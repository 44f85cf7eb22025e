//! `flaz bench claim`: compares vendor claims with measured rates.
//!
//! The *BS ratio* of a cell is the claimed rate divided by the measured one: 1 means that the claim is met, 2 that it
//! is twice the measured rate. On a device that compresses, the ratio depends on the data, and the question becomes for
//! which data the claim would be true.
//!
//! Levels are the measured savings of codecs if known ([`Levels`]), otherwise the requested ones. A claim is about a
//! test and optionally about one record size; each record size has a curve over the levels.

mod crossing;
mod file;
mod level;
mod page;
mod point;
mod report;
mod statement;

use std::path::Path;

pub use crossing::{Crossing, TrueAt};
pub use file::read_claims;
pub use level::Levels;
pub use point::{PointReport, Standing};
pub use report::{ClaimReport, ClaimsReport, CurveReport};
pub use statement::Claim;

use flaz_random::Random;

use crate::cell::{Cell, Measured};
use crate::comparison::{COVERAGE, Interval, IntervalMethod, Note, RUNS_FEW, SEED, SourceReport};
use crate::error::BenchError;
use crate::input::CLAIMS_MAX;
use crate::results::{self, Results};
use crate::statistics::{bootstrap, welch};
use crate::unit::{Direction, WholeBytes};

/// Options of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimOptions {
    /// Number of runs behind the means of a table.
    pub runs: Option<u32>,
    /// Seed of the resampling.
    pub seed: u64,
    /// Number of resamples for an interval.
    pub resamples: u32,
}

impl Default for ClaimOptions {
    fn default() -> Self {
        Self {
            runs: None,
            seed: SEED,
            resamples: bootstrap::RESAMPLES,
        }
    }
}

/// Compares `claims` with the results in the file `path`.
///
/// # Errors
/// The file is invalid, there are no claims, or one is about a test that was not measured.
pub fn check(path: &Path, claims: &[Claim], options: &ClaimOptions) -> Result<ClaimsReport, BenchError> {
    if claims.is_empty() {
        return Err(BenchError::NoClaims);
    }
    if claims.len() > CLAIMS_MAX {
        return Err(BenchError::TooManyClaims(claims.len()));
    }
    let results = results::open_results(path, options.runs)?;
    check_results(&results, claims, options)
}

/// Compares `claims` with results in memory.
///
/// # Errors
/// A claim is about a test that was not measured.
pub fn check_results(
    results: &Results,
    claims: &[Claim],
    options: &ClaimOptions,
) -> Result<ClaimsReport, BenchError> {
    let claims = claims
        .iter()
        .map(|claim| check_one(results, claim, options))
        .collect::<Result<_, _>>()?;
    Ok(ClaimsReport {
        schema: report::SCHEMA,
        results: SourceReport::of(results),
        seed: options.seed,
        resamples: options.resamples,
        claims,
    })
}

fn check_one(results: &Results, claim: &Claim, options: &ClaimOptions) -> Result<ClaimReport, BenchError> {
    let cells: Vec<&Cell> = results.cells.iter().filter(|cell| claim.is_about(cell)).collect();
    if cells.is_empty() {
        return Err(unmeasured(results, claim));
    }
    if let Some(cell) = cells
        .iter()
        .find(|cell| cell.direction == Direction::LowerIsBetter)
    {
        return Err(BenchError::ClaimDirection {
            path: results.path.clone(),
            key: cell.key.clone(),
        });
    }
    let mut records: Vec<u64> = cells.iter().map(|cell| cell.key.record_bytes).collect();
    records.sort_unstable();
    records.dedup();
    let curves = records
        .into_iter()
        .map(|record_bytes| {
            let of_size = cells.iter().filter(|cell| cell.key.record_bytes == record_bytes);
            curve(results, claim, record_bytes, of_size.copied().collect(), options)
        })
        .collect();
    Ok(ClaimReport {
        claim: claim.clone(),
        curves,
    })
}

fn unmeasured(results: &Results, claim: &Claim) -> BenchError {
    let mut measured: Vec<String> = results
        .cells
        .iter()
        .map(|cell| {
            if cell.key.test == claim.test {
                format!("{} of {}", cell.key.test, WholeBytes(cell.key.record_bytes))
            } else {
                cell.key.test.clone()
            }
        })
        .collect();
    measured.sort_unstable();
    measured.dedup();
    BenchError::ClaimUnmeasured {
        path: results.path.clone(),
        claim: claim.subject(),
        measured: measured.join(", "),
    }
}

/// One claim and one record size: levels in ascending order, followed by those without a number.
fn curve(
    results: &Results,
    claim: &Claim,
    record_bytes: u64,
    mut cells: Vec<&Cell>,
    options: &ClaimOptions,
) -> CurveReport {
    cells.sort_by(|x, y| x.key.level.cmp(&y.key.level));
    let points: Vec<PointReport> = cells
        .into_iter()
        .map(|cell| {
            let claimed = claim.rate.convert(cell.unit, record_bytes);
            let few_runs = cell
                .measured
                .runs()
                .is_some_and(|runs| runs.len() < RUNS_FEW as usize);
            let measured = if few_runs {
                few_runs_interval(cell)
            } else {
                rate_interval(cell, options)
            };
            // A low rate is a high ratio.
            let bs_ratio = Interval {
                estimate: claimed.value / measured.estimate,
                low: claimed.value / measured.high,
                high: claimed.value / measured.low,
                method: measured.method,
            };
            let of_cell = results.background.achieved.iter();
            let of_cell = of_cell
                .filter(|(key, _)| *key == cell.key)
                .map(|(_, found)| found);
            PointReport {
                level: cell.key.level.clone(),
                achieved: level::achieved_of(of_cell),
                unit: cell.unit,
                measured: cell.measured.describe(),
                rate: measured,
                bs_ratio,
                standing: Standing::of(&bs_ratio),
                notes: few_runs.then_some(Note::FewRuns).into_iter().collect(),
            }
        })
        .collect();
    let levels = Levels::of(&points);
    CurveReport {
        record_bytes,
        true_at: TrueAt::of(&points, &levels),
        levels,
        points,
    }
}

/// The measured median with its interval, in the cell's unit.
pub(crate) fn rate_interval(cell: &Cell, options: &ClaimOptions) -> Interval {
    if let Measured::Runs(runs) = &cell.measured {
        let mut random = Random::named(options.seed, &cell.key.to_string());
        let (low, high) = bootstrap::median(runs, COVERAGE, options.resamples, &mut random);
        return Interval {
            estimate: cell.measured.median(),
            low,
            high,
            method: IntervalMethod::Bootstrap,
        };
    }
    let log = cell.measured.log_moments();
    let (low, high) = welch::mean_interval(log, COVERAGE);
    Interval {
        estimate: log.mean.exp(),
        low: low.exp(),
        high: high.exp(),
        method: IntervalMethod::LogNormal,
    }
}

/// The measured median of fewer than [`RUNS_FEW`] runs. Resampling cannot leave the range of the runs, which is too narrow
/// for a verdict: the range of two runs contains the true median half of the time. Student's t is wide enough.
fn few_runs_interval(cell: &Cell) -> Interval {
    let (low, high) = welch::mean_interval(cell.measured.log_moments(), COVERAGE);
    Interval {
        estimate: cell.measured.median(),
        low: low.exp(),
        high: high.exp(),
        method: IntervalMethod::LogNormal,
    }
}
