//! How long the origin's reads take at present.

use std::cell::Cell;
use std::time::Duration;

/// Longest read that counts: longer ones tell more about bandwidth.
const SHORT_READ_BYTES: usize = 128 << 10;
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
    /// A read of `len` bytes took so long. A microsecond a KiB is taken for the transfer, and does not count.
    pub(super) fn note_read(&self, len: usize, took: Duration) {
        if len <= SHORT_READ_BYTES {
            self.note(took.saturating_sub(Duration::from_micros(len as u64 >> 10)));
        }
    }

    fn note(&self, took: Duration) {
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
    #[test]
    fn the_transfer_of_a_longer_read_does_not_count() {
        let mean = MeanRead::default();
        for _ in 0..WEIGHT {
            mean.note_read(128 << 10, Duration::from_micros(300));
            mean.note_read(256 << 10, Duration::from_secs(1));
        }
        assert_eq!(mean.get(), Some(Duration::from_micros(172)));
    }
}
