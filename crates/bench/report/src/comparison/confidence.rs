//! Confidence levels of a comparison.

/// Level of the tests: the accepted share of false positives.
pub const ALPHA: f64 = 0.05;

/// Coverage of an interval.
pub const COVERAGE: f64 = 0.95;

/// Default seed of the resampling.
pub const SEED: u64 = 1;

/// With fewer runs, per side in a comparison, an interval by resampling is too narrow.
pub const RUNS_FEW: u32 = 6;
