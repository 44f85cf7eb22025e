//! A value with its interval.

use serde::Serialize;

/// A number with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Interval {
    /// The number.
    pub estimate: f64,
    /// Lower limit.
    pub low: f64,
    /// Upper limit.
    pub high: f64,
    /// How the interval was computed.
    pub method: IntervalMethod,
}

/// How an interval was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IntervalMethod {
    /// Percentiles of resampled medians.
    Bootstrap,
    /// Student's t on the logarithms, assumed to be normal: for published means, and for claims with fewer than 6 runs.
    LogNormal,
}
