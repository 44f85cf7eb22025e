//! A claim at one level.

use serde::Serialize;

use crate::campaign_file::Achieved;
use crate::cell::{Description, Level};
use crate::comparison::Interval;
use crate::unit::Unit;

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
