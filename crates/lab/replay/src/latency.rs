//! Latencies of requests. A request that stands for others counts as they do.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Weights are counted in units of this.
const WEIGHT_UNIT: f64 = 1024.0;
/// Longest latency of the histogram.
const LATENCY_NS_MAX: u64 = 1000 * 1_000_000_000;
/// Digits of a percentile.
const DIGITS: u8 = 3;

/// Weighted latencies.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    sum_us: f64,
    weight: f64,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS);
        Self {
            histogram: histogram.expect("the bounds are valid"),
            sum_us: 0.0,
            weight: 0.0,
        }
    }
}

impl Latencies {
    /// Adds a request.
    pub fn add(&mut self, latency: Duration, weight: f64) {
        let nanos = (latency.as_nanos() as u64).clamp(1, LATENCY_NS_MAX);
        let count = (weight * WEIGHT_UNIT).round().max(1.0) as u64;
        self.histogram.saturating_record_n(nanos, count);
        self.sum_us += latency.as_secs_f64() * 1e6 * weight;
        self.weight += weight;
    }

    /// Number of requests.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// The mean in microseconds; 0 without requests.
    #[must_use]
    pub fn mean_us(&self) -> f64 {
        match self.weight > 0.0 {
            true => self.sum_us / self.weight,
            false => 0.0,
        }
    }

    /// The 99th percentile in microseconds.
    #[must_use]
    pub fn p99_us(&self) -> f64 {
        self.histogram.value_at_quantile(0.99) as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_count() {
        let mut latencies = Latencies::default();
        latencies.add(Duration::from_micros(100), 3.0);
        latencies.add(Duration::from_micros(500), 1.0);
        assert_eq!((latencies.mean_us(), latencies.weight()), (200.0, 4.0));
        assert!((latencies.p99_us() - 500.0).abs() < 1.0);
        latencies.add(Duration::ZERO, 1000.0);
        assert!(latencies.p99_us() < 1.0);
    }
}
