//! The result of the check: the structs behind the text and the JSON, which is an interface for scripts (see
//! [`crate::comparison`]).

use serde::Serialize;

use super::crossing::TrueAt;
use super::level::Levels;
use super::point::PointReport;
use super::statement::Claim;
use crate::comparison::SourceReport;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// Claims against results.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct ClaimsReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The results.
    pub results: SourceReport,
    /// Seed of the resampling.
    pub seed: u64,
    /// Number of resamples per interval.
    pub resamples: u32,
    /// One for each claim, in order.
    pub claims: Vec<ClaimReport>,
}

/// One claim.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct ClaimReport {
    /// The claim.
    #[serde(flatten)]
    pub claim: Claim,
    /// Results by record size.
    pub curves: Vec<CurveReport>,
}

/// One record size.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct CurveReport {
    /// Its size in bytes.
    pub record_bytes: u64,
    /// Which levels `true_at` uses.
    pub levels: Levels,
    /// For which data the claim would be true.
    pub true_at: TrueAt,
    /// Each measured level: percentages in ascending order, then those with names.
    pub points: Vec<PointReport>,
}
