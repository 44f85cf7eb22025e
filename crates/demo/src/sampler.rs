//! Reads the cache's counters at regular intervals while the clients work.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::error::DemoError;
use crate::server::Server;

/// Interval of the samples.
pub const INTERVAL: Duration = Duration::from_millis(200);

/// The counters at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Seconds since the phase began.
    pub second: f64,
    /// Requests completed by the clients.
    pub requests: u64,
    /// Blocks found in the cache so far.
    pub hit_blocks: u64,
    /// Blocks not found so far.
    pub miss_blocks: u64,
}

/// A running sampler.
#[derive(Debug)]
pub struct Sampler<'scope, 'env> {
    stop: &'env AtomicBool,
    thread: ScopedJoinHandle<'scope, Result<Vec<Sample>, DemoError>>,
}

impl<'scope, 'env> Sampler<'scope, 'env> {
    /// Begins to sample `server`; `requests` is the clients' counter.
    pub fn start(
        scope: &'scope Scope<'scope, 'env>,
        server: &'env Server<'_>,
        requests: &'env AtomicU64,
        stop: &'env AtomicBool,
    ) -> Self {
        let begin = Instant::now();
        let thread = scope.spawn(move || {
            let mut samples = vec![Sample {
                second: 0.0,
                requests: 0,
                hit_blocks: 0,
                miss_blocks: 0,
            }];
            loop {
                let last = stop.load(Ordering::Relaxed);
                let lookups = server.counters()?.lookups;
                samples.push(Sample {
                    second: begin.elapsed().as_secs_f64(),
                    requests: requests.load(Ordering::Relaxed),
                    hit_blocks: lookups.hit_blocks,
                    miss_blocks: lookups.miss_blocks,
                });
                if last {
                    return Ok(samples);
                }
                let next = INTERVAL * samples.len() as u32;
                while begin.elapsed() < next && !stop.load(Ordering::Relaxed) {
                    std::thread::sleep((next - begin.elapsed().min(next)).min(Duration::from_millis(20)));
                }
            }
        });
        Self { stop, thread }
    }

    /// Takes a last sample and returns all of them, the first at 0.
    ///
    /// # Errors
    /// The cache did not reply at least once.
    pub fn finish(self) -> Result<Vec<Sample>, DemoError> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Hit ratio at each sample over the `window` seconds before it (less at the start): (second, requests, ratio).
pub fn hit_ratios(samples: &[Sample], window_s: f64) -> Vec<(f64, u64, f64)> {
    let mut first = 0;
    let mut ratios = Vec::with_capacity(samples.len());
    for sample in samples.iter().skip(1) {
        while samples[first + 1].second <= sample.second - window_s {
            first += 1;
        }
        let hits = sample.hit_blocks.saturating_sub(samples[first].hit_blocks);
        let misses = sample.miss_blocks.saturating_sub(samples[first].miss_blocks);
        if hits + misses > 0 {
            ratios.push((
                sample.second,
                sample.requests,
                hits as f64 / (hits + misses) as f64,
            ));
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hit_ratios_cover_only_their_window() {
        let sample = |second, hit_blocks, miss_blocks| Sample {
            second,
            requests: hit_blocks,
            hit_blocks,
            miss_blocks,
        };
        let samples = [
            sample(0.0, 0, 0),
            sample(1.0, 0, 10),
            sample(2.0, 5, 15),
            sample(3.0, 15, 15),
            sample(3.5, 15, 15),
        ];
        let ratios: Vec<f64> = hit_ratios(&samples, 1.0)
            .into_iter()
            .map(|(_, _, ratio)| ratio)
            .collect();
        assert_eq!(ratios, [0.0, 0.5, 1.0, 1.0]);
        assert!(hit_ratios(&samples[..1], 1.0).is_empty());
    }
}
