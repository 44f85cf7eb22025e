//! How long the origin's reads take at present.

use std::cell::Cell;
use std::time::Duration;

/// Longest read that counts: longer ones tell more about bandwidth.
pub(super) const SHORT_READ_BYTES: usize = 64 << 10;
/// Reads before there is a mean.
const READS_MIN: u32 = 4;
/// Weight of a read: one part in this many.
const WEIGHT: u32 = 16;

/// Mean time of the latest reads.
#[derive(Debug, Default)]
pub(super) struct MeanRead {
    mean: Cell<Duration>,
    /// Reads so far, up to [`WEIGHT`].
    reads: Cell<u32>,
}

impl MeanRead {
    pub(super) fn note(&self, took: Duration) {
        // The first reads weigh the same.
        let weight = WEIGHT.min(self.reads.get() + 1);
        self.mean.set((self.mean.get() * (weight - 1) + took) / weight);
        self.reads.set(weight);
    }

    pub(super) fn get(&self) -> Option<Duration> {
        (self.reads.get() >= READS_MIN).then(|| self.mean.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_the_latest_reads() {
        let mean = MeanRead::default();
        let (fast, slow) = (Duration::from_micros(100), Duration::from_millis(10));
        for _ in 0..READS_MIN - 1 {
            mean.note(fast);
            assert_eq!(mean.get(), None);
        }
        mean.note(fast);
        assert_eq!(mean.get(), Some(fast));
        for _ in 0..WEIGHT {
            mean.note(fast);
        }
        mean.note(slow);
        assert!(
            mean.get() < Some(Duration::from_millis(1)),
            "one read is not many"
        );
        for _ in 0..100 {
            mean.note(slow);
        }
        assert!(mean.get() > Some(slow * 9 / 10));
    }
}
