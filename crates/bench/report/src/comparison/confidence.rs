//! How sure a comparison has to be.

/// Level of the tests: the share of false alarms that is taken.
pub const ALPHA: f64 = 0.05;

/// Probability with which an interval holds the true value.
pub const COVERAGE: f64 = 0.95;

/// Seed of the resampling if none is given.
pub const SEED: u64 = 1;

/// Runs a side below which an interval by resampling is too narrow.
pub const RUNS_FEW: u32 = 6;
