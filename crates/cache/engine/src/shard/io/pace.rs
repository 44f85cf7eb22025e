//! How many writeback runs the origin is given at a time, so that a read that comes meanwhile does not wait long.
//!
//! A hard disk serves one request after another: a read that arrives behind 32 writes waits for 0.4 s. A network volume serves
//! many at a time, and needs them to be fast. The time of a write tells which it is: as long as writes take less than
//! [`WRITE_TIME_MAX`], there may be one run more than are in flight, otherwise one less. If even the quickest write took long,
//! waiting does not explain it: then twice that time is allowed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time of a write above which there are fewer runs at once.
const WRITE_TIME_MAX: Duration = Duration::from_millis(30);
/// Runs at once: at first, and the most.
const RUNS_FIRST: u64 = 4;
const RUNS_MAX: u64 = 256;

/// See the module's documentation. The shards share it.
#[derive(Debug)]
pub(super) struct Pace {
    runs: AtomicU64,
    quickest_ns: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            runs: AtomicU64::new(RUNS_FIRST),
            quickest_ns: AtomicU64::new(u64::MAX),
        }
    }
}

impl Pace {
    /// Number of runs that may be in flight.
    pub(super) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }

    /// The origin took so long for a write of a run, with `in_flight` runs at once.
    pub(super) fn note(&self, took: Duration, in_flight: u64) {
        let took = took.as_nanos() as u64;
        let quickest = self.quickest_ns.fetch_min(took, Ordering::Relaxed).min(took);
        let limit = quickest.saturating_mul(2).max(WRITE_TIME_MAX.as_nanos() as u64);
        let runs = self.runs();
        // A change of another thread may be lost: its next write repeats it.
        if took > limit {
            let fewer = runs.min(in_flight).saturating_sub(1);
            self.runs.store(fewer.max(1), Ordering::Relaxed);
        } else if in_flight >= runs {
            self.runs.store((runs + 1).min(RUNS_MAX), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs on an origin that serves `parallelism` of them at a time, each in `service`. Returns how many it is given at last.
    // Inlined into its callers, the loop makes LLVM of Rust 1.99 crash, in "Expand Atomic instructions", without incremental compilation.
    #[inline(never)]
    fn on(parallelism: u64, service: Duration) -> u64 {
        let pace = Pace::default();
        for _ in 0..1000 {
            let in_flight = pace.runs();
            for run in 1..=in_flight {
                pace.note(service * run.div_ceil(parallelism) as u32, in_flight);
            }
        }
        pace.runs()
    }

    #[test]
    fn a_disk_is_given_few_runs_and_a_network_volume_many() {
        let ms = Duration::from_millis;
        let disk = on(1, ms(12));
        assert!((2..=4).contains(&disk), "{disk} runs on a disk");
        assert_eq!(on(256, ms(1)), RUNS_MAX);
        assert_eq!(on(256, ms(200)), RUNS_MAX, "far away, but not busy");
    }

    #[test]
    fn runs_that_are_few_anyway_allow_no_more() {
        let pace = Pace::default();
        for _ in 0..1000 {
            pace.note(Duration::from_millis(12), 1);
        }
        assert_eq!(pace.runs(), RUNS_FIRST);
        pace.note(Duration::from_secs(1), 2);
        assert_eq!(pace.runs(), 1);
    }
}
