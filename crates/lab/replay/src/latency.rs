//! Latencies of requests. A request that stands for others counts as they do.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Weights are counted in units of this.
const WEIGHT_UNIT: f64 = 1024.0;
/// Longest latency of the histogram.
const LATENCY_NS_MAX: u64 = 1000 * 1_000_000_000;
const P99: f64 = 0.99;
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
        self.histogram.value_at_quantile(P99) as f64 / 1000.0
    }

    /// The 99th percentile in microseconds if this share of all requests, from 0 to 1, were these, and the rest were `others`.
    #[must_use]
    pub fn p99_us_mixed(&self, share: f64, others: &Self) -> f64 {
        let scaled = |part: &Self, share: f64| -> Vec<(u64, f64)> {
            let all = part.histogram.len().max(1) as f64;
            let values = part.histogram.iter_recorded();
            values
                .map(|it| {
                    (
                        it.value_iterated_to(),
                        it.count_since_last_iteration() as f64 * share / all,
                    )
                })
                .collect()
        };
        let mut values = scaled(self, share);
        values.extend(scaled(others, 1.0 - share));
        values.sort_unstable_by_key(|(value, _)| *value);
        let total: f64 = values.iter().map(|(_, share)| share).sum();
        let mut seen = 0.0;
        let at = values.iter().find(|(_, share)| {
            seen += share;
            seen >= P99 * total
        });
        at.or(values.last())
            .map_or(0.0, |(value, _)| *value as f64 / 1000.0)
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

    /// The share of each kind decides, not how many of them were sampled.
    #[test]
    fn kinds_are_mixed_by_their_share() {
        let (mut misses, mut hits) = (Latencies::default(), Latencies::default());
        misses.add(Duration::from_millis(10), 50.0);
        hits.add(Duration::from_micros(100), 50.0);
        let p99_us = |share| misses.p99_us_mixed(share, &hits);
        assert!((p99_us(0.02) / 10_000.0 - 1.0).abs() < 0.01);
        assert!((p99_us(0.005) / 100.0 - 1.0).abs() < 0.01);
        assert!((p99_us(0.0) / 100.0 - 1.0).abs() < 0.01);
        let none = Latencies::default();
        assert!((misses.p99_us_mixed(0.001, &none) / 10_000.0 - 1.0).abs() < 0.01);
        assert_eq!(none.p99_us_mixed(0.5, &none), 0.0);
    }
}
