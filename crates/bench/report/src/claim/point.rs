//! A claim at one level.

use serde::Serialize;

use crate::campaign_file::Achieved;
use crate::cell::{Description, Level};
use crate::comparison::{Interval, Note};
use crate::unit::Unit;

/// One level.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct PointReport {
    /// The requested level.
    pub level: Level,
    /// The savings of a codec on the data, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub achieved: Option<Achieved>,
    /// Unit of the values.
    pub unit: Unit,
    /// The runs.
    pub measured: Description,
    /// The median of the rate with its interval, in `unit`.
    pub rate: Interval,
    /// Claimed divided by measured: above 1 the claim is exaggerated.
    pub bs_ratio: Interval,
    /// The verdict.
    pub standing: Standing,
    /// Remarks.
    pub notes: Vec<Note>,
}

/// The verdict on a claim at one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// True: the whole interval is at 1 or below.
    True,
    /// Exaggerated: the whole interval is above 1.
    Exaggerated,
    /// Undecided: the interval contains 1.
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

    /// The verdict as a word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::Exaggerated => "exaggerated",
            Self::Undecided => "undecided",
        }
    }
}
