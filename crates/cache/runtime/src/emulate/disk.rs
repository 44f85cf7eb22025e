//! The arm and the platter of a disk.
//!
//! Seek time grows with the square root of the distance, from a settling time; its mean over random distances, and half a turn of the
//! platter, are the model's latency. Then the disk waits until its offset passes under the head. The bytes of the device are spread over
//! the whole platter, from one end of the arm's way to the other, on tracks of equal length.
//!
//! An access that continues the previous one needs neither, as in disks that read ahead and have a buffer for writes. A gap before the next
//! access passes under the head, where that is faster.

use std::time::Duration;

use flaz_device::Nanos;

use super::{Access, Direction, Model};

/// A turn of the platter: 7,200 a minute.
const TURN: Duration = Duration::from_nanos(60_000_000_000 / 7200);
/// Seek time to the next track: most of it is settling.
const SETTLE: Duration = Duration::from_millis(1);
/// The mean of the square root of the distance between two random places, of 1.
const MEAN_ROOT: f64 = 8.0 / 15.0;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Disk {
    model: Model,
    len: u64,
    /// End of the previous access, and when it ended.
    head: u64,
    free: Nanos,
}

impl Disk {
    pub(super) fn new(model: Model, len: u64) -> Self {
        Self {
            model,
            len: len.max(1),
            head: 0,
            free: Nanos::default(),
        }
    }

    /// When the next access can start.
    pub(super) fn free(&self) -> Nanos {
        self.free
    }

    /// Time to the first byte of an access that starts at `start`.
    pub(super) fn positioning(&self, start: Nanos, access: &Access) -> Duration {
        let gap = access.offset.checked_sub(self.head);
        let passing = gap.map(|gap| self.model.transfer(access.direction, gap));
        if passing.is_some_and(|passing| passing <= SETTLE) {
            return passing.unwrap_or_default();
        }
        let seek = self.seek(self.head.abs_diff(access.offset));
        let there = seek + self.turns_to(start.after(seek), access.offset);
        passing.map_or(there, |passing| passing.min(there))
    }

    fn seek(&self, distance: u64) -> Duration {
        let mean = self.model.latency.saturating_sub(TURN / 2 + SETTLE);
        let root = (distance as f64 / self.len as f64).min(1.0).sqrt();
        SETTLE + mean.mul_f64(root / MEAN_ROOT)
    }

    /// How long after `now` an offset passes under the head.
    fn turns_to(&self, now: Nanos, offset: u64) -> Duration {
        let turn = TURN.as_nanos() as u64;
        let into_track = self.model.transfer(Direction::Read, offset).as_nanos() as u64 % turn;
        Duration::from_nanos((into_track + turn - now.0 % turn) % turn)
    }

    /// Serves an access from `start` on; returns when it ends.
    pub(super) fn serve(&mut self, start: Nanos, access: &Access) -> Nanos {
        let positioning = self.positioning(start, access);
        let transfer = self.model.transfer(access.direction, access.len);
        self.free = start.after(positioning).after(transfer);
        self.head = access.offset.saturating_add(access.len);
        self.free
    }
}

#[cfg(test)]
mod tests {
    use flaz_random::Random;

    use super::super::Direction::{Read, Write};
    use super::*;

    const LEN: u64 = 500_000_000_000;
    const MS: Duration = Duration::from_millis(1);

    fn disk() -> Disk {
        Disk::new(Model::QUEUEING_HDD, LEN)
    }

    fn access(direction: Direction, offset: u64, len: u64) -> Access {
        Access {
            direction,
            offset,
            len,
        }
    }

    #[test]
    fn random_accesses_take_the_latency_on_average() {
        let (mut disk, mut random) = (disk(), Random::new(1));
        let count = 20_000;
        for _ in 0..count {
            let offset = random.below(LEN / 4096) * 4096;
            disk.serve(disk.free(), &access(Read, offset, 0));
        }
        let mean_ms = disk.free().0 as f64 / 1e6 / f64::from(count);
        assert!((mean_ms / 12.6 - 1.0).abs() < 0.01, "{mean_ms} ms");
    }

    #[test]
    fn what_follows_needs_no_seek() {
        let mut disk = disk();
        assert_eq!(
            disk.serve(Nanos(0), &access(Read, 0, 1_000_000)),
            Nanos(10_000_000)
        );
        assert_eq!(
            disk.positioning(disk.free(), &access(Write, 1_000_000, 4096)),
            Duration::ZERO
        );
        // 100,000 bytes further: 1 ms.
        assert_eq!(disk.positioning(disk.free(), &access(Read, 1_100_000, 4096)), MS);
        // Back to the same place: the settling time, and the rest of a turn.
        let back = disk.positioning(disk.free(), &access(Read, 900_000, 4096));
        assert!(back > TURN / 2 && back < TURN + 2 * MS, "{back:?}");
    }

    #[test]
    fn the_farthest_seek_takes_longest() {
        let disk = disk();
        let seeks = [0, 1, LEN / 100, LEN / 3, LEN].map(|distance| disk.seek(distance));
        assert!(seeks.is_sorted() && seeks[0] == SETTLE);
        // 8.4 ms on average.
        assert!(seeks[4] > 14 * MS && seeks[4] < 16 * MS, "{seeks:?}");
        assert_eq!(disk.seek(u64::MAX), seeks[4]);
    }
}
