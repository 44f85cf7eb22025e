//! Options of a report.

use crate::comparison::{DELTA_FLOOR_PCT, Margin, SEED};
use crate::statistics::bootstrap;

/// Options of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Number of runs behind the means of a table.
    pub runs: Option<u32>,
    /// The margin for differences from the baseline.
    pub margin: Margin,
    /// Seed of the resampling.
    pub seed: u64,
    /// Number of resamples for an interval.
    pub resamples: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            runs: None,
            margin: Margin::Percent(DELTA_FLOOR_PCT),
            seed: SEED,
            resamples: bootstrap::RESAMPLES,
        }
    }
}
