//! How results are reported.

use crate::comparison::{DELTA_FLOOR_PCT, Margin, SEED};
use crate::statistics::bootstrap;

/// How to report.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How many runs the means of a table are of.
    pub runs: Option<u32>,
    /// What difference from the baseline matters.
    pub margin: Margin,
    /// Where the resampling begins.
    pub seed: u64,
    /// How often medians are drawn again for an interval.
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
