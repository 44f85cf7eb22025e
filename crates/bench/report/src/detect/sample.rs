//! Samples, and the confidence of an answer.

use super::pattern::Pattern;

/// Gain in percent above which data counts as faster: no device is completely independent of the data.
pub const MARGIN_PCT: f64 = 5.0;

/// Gain in percent that a *no* excludes.
pub const SMALL_PCT: f64 = 10.0;

/// Accepted probability of any false positive.
pub const ALPHA: f64 = 0.01;

/// Minimum number of rounds.
pub const ROUNDS_MIN: usize = 4;

/// One write of one kind of data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The round, from 0.
    pub round: usize,
    /// The kind of data.
    pub pattern: Pattern,
    /// Rate in bytes per second.
    pub bytes_per_s: f64,
    /// Share that the device stores, 0 to 1, if it reports it.
    pub kept: Option<f64>,
}
