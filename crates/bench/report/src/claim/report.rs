//! What the check of claims says: the structs behind the page and the JSON, which is an interface for scripts (as
//! [`crate::comparison`] has it).

use serde::Serialize;

use super::{Claim, Levels, TrueAt};
use crate::campaign_file::Achieved;
use crate::cell::{Description, Level};
use crate::comparison::{Interval, SourceReport};
use crate::unit::Unit;

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

/// One level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PointReport {
    /// The level that was asked for.
    pub level: Level,
    /// What a codec saved of the data, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub achieved: Option<Achieved>,
    /// What the values count.
    pub unit: Unit,
    /// The runs.
    pub measured: Description,
    /// The median of the rate with its interval, in `unit`.
    pub rate: Interval,
    /// Claimed divided by measured: above 1 the claim says too much.
    pub bs_ratio: Interval,
    /// What can be said.
    pub standing: Standing,
}

/// What can be said of a claim at one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It is true: all of the interval is at 1 or below.
    True,
    /// It says too much: all of the interval is above 1.
    Exaggerated,
    /// The interval holds 1.
    Undecided,
}

impl Standing {
    pub(super) fn of(bs_ratio: &Interval) -> Self {
        if bs_ratio.high <= 1.0 {
            Self::True
        } else if bs_ratio.low > 1.0 {
            Self::Exaggerated
        } else {
            Self::Undecided
        }
    }

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::Exaggerated => "exaggerated",
            Self::Undecided => "undecided",
        }
    }
}
