//! A value with its interval.

use serde::Serialize;

/// A number with the limits between which the true one lies with 95 % probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The number.
    pub estimate: f64,
    /// Lower limit.
    pub low: f64,
    /// Upper limit.
    pub high: f64,
    /// Where the limits come from.
    pub method: IntervalMethod,
}

/// Where the limits of an interval come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IntervalMethod {
    /// Percentiles of medians that were drawn again.
    Bootstrap,
    /// Student's t on the logarithms, taken as normal: of published means.
    LogNormal,
}
