//! `flaz bench claim`: what a maker says against what was measured.
//!
//! The *BS ratio* of a cell is the claimed rate divided by the measured one: 1 is honest, 2 is twice what one gets. On a
//! device that compresses it depends on the data, and the question becomes for which data the claim would be true.
//!
//! Levels are what codecs really saved of the data where that is known ([`Levels`]), else those asked for. A claim is about
//! a test, and, if it says so, about one record size; each record size is a curve over the levels.

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
use crate::comparison::{COVERAGE, Interval, IntervalMethod, SEED, SourceReport};
use crate::error::BenchError;
use crate::input::CLAIMS_MAX;
use crate::results::{self, Results};
use crate::statistics::{bootstrap, welch};
use crate::unit::{Direction, WholeBytes};

/// How to check claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimOptions {
    /// How many runs the means of a table are of.
    pub runs: Option<u32>,
    /// Where the resampling begins.
    pub seed: u64,
    /// How often medians are drawn again for an interval.
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

/// Holds `claims` against the results in the file `path`.
///
/// # Errors
/// The file is not understood, there is no claim, or one is about what was not measured.
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

/// Holds `claims` against results that are in memory already.
///
/// # Errors
/// A claim is about what was not measured.
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

/// One claim, one record size: the levels from the least compressible on, and those without a number last.
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
            let measured = rate_interval(cell, options);
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
