//! What the check of claims says: the structs behind the page and the JSON, which is an interface for scripts (as
//! [`crate::comparison`] has it).

use serde::Serialize;

use super::crossing::TrueAt;
use super::level::Levels;
use super::point::PointReport;
use super::statement::Claim;
use crate::comparison::SourceReport;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// Claims against results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClaimsReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The results.
    pub results: SourceReport,
    /// Seed of the resampling.
    pub seed: u64,
    /// Resamples an interval.
    pub resamples: u32,
    /// One for each claim, in order.
    pub claims: Vec<ClaimReport>,
}

/// One claim.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClaimReport {
    /// What is said.
    #[serde(flatten)]
    pub claim: Claim,
    /// What was measured, by record size.
    pub curves: Vec<CurveReport>,
}

/// One record size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CurveReport {
    /// Its size in bytes.
    pub record_bytes: u64,
    /// What the levels of `true_at` are.
    pub levels: Levels,
    /// For which data the claim would be true.
    pub true_at: TrueAt,
    /// Each level that was measured: percentages in ascending order, then those with names.
    pub points: Vec<PointReport>,
}
