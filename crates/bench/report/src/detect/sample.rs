//! What is measured, and how sure an answer has to be.

use super::pattern::Pattern;

/// Gain in percent that must be exceeded before data counts as faster: no device is quite indifferent to bytes.
pub const MARGIN_PCT: f64 = 5.0;

/// Gain in percent that a *no* excludes.
pub const SMALL_PCT: f64 = 10.0;

/// Probability of any false yes that is taken.
pub const ALPHA: f64 = 0.01;

/// Fewest rounds from which anything is said.
pub const ROUNDS_MIN: usize = 4;

/// One write of one kind of data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// In which round, from 0.
    pub round: usize,
    /// What was written.
    pub pattern: Pattern,
    /// How fast, in bytes a second.
    pub bytes_per_s: f64,
    /// Share of it that the device keeps, 0 to 1, if it tells.
    pub kept: Option<f64>,
}
