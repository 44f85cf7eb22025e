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
mod report;

use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use crossing::{Crossing, TrueAt};
pub use file::read_claims;
pub use level::Levels;
pub use report::{ClaimReport, ClaimsReport, CurveReport, PointReport, Standing};

use crate::cell::{Cell, Measured, is_name};
use crate::comparison::{COVERAGE, Interval, IntervalMethod, SEED, SourceReport};
use crate::error::{BenchError, ClaimError};
use crate::random::Random;
use crate::results::{self, Results};
use crate::statistics::{bootstrap, welch};
use crate::unit::{Direction, Rate, WholeBytes, parse_record};

/// Most claims in a file or on the command line.
pub const CLAIMS_MAX: usize = 1000;

/// What a maker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// About which test.
    pub test: String,
    /// About which record size in bytes; none: about every one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_bytes: Option<u64>,
    /// What is said.
    pub rate: Rate,
    /// Where it is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl Claim {
    /// From its parts as people write them.
    ///
    /// # Errors
    /// A part that is not what it should be.
    pub fn new(test: &str, record: Option<&str>, rate: &str) -> Result<Self, ClaimError> {
        let test = test.trim();
        if !is_name(test) {
            return Err(ClaimError::Test(test.to_owned()));
        }
        Ok(Self {
            test: test.to_owned(),
            record_bytes: record.map(parse_record).transpose().map_err(ClaimError::Record)?,
            rate: rate.parse()?,
            source: None,
        })
    }

    /// What it is about, as one would type it.
    #[must_use]
    pub fn subject(&self) -> String {
        match self.record_bytes {
            Some(bytes) => format!("{} of {}", self.test, WholeBytes(bytes)),
            None => self.test.clone(),
        }
    }

    fn is_about(&self, cell: &Cell) -> bool {
        cell.key.test == self.test
            && self
                .record_bytes
                .is_none_or(|bytes| bytes == cell.key.record_bytes)
    }
}

/// `write=275MB/s`, `read@4KiB=95000IOPS`.
impl FromStr for Claim {
    type Err = ClaimError;

    fn from_str(text: &str) -> Result<Self, ClaimError> {
        let (subject, rate) = text
            .split_once('=')
            .ok_or_else(|| ClaimError::Form(text.to_owned()))?;
        match subject.split_once('@') {
            Some((test, record)) => Self::new(test, Some(record), rate),
            None => Self::new(subject, None, rate),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_of_every_form() {
        let claim: Claim = "write=275MB/s".parse().unwrap();
        assert_eq!((claim.test.as_str(), claim.record_bytes), ("write", None));
        assert_eq!(claim.rate.value, 275e6);
        let claim: Claim = " read@4KiB = 95k IOPS".parse().unwrap();
        assert_eq!(claim.subject(), "read of 4 KiB");
    }

    #[test]
    fn what_is_no_claim() {
        let refused = |text: &str| text.parse::<Claim>().unwrap_err().to_string();
        assert!(refused("275MB/s").contains("expected TEST=RATE"));
        assert!(refused("=275MB/s").contains("not the name of a test"));
        assert!(refused("write@=1MB/s").contains("not a record size"));
        assert!(refused("write=fast").contains("not a rate"));
        assert!(refused("write=275Mb/s").contains("counts bits"));
    }
}
