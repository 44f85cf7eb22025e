//! When the extents that writers wait for are sealed.
//!
//! Writers form two groups, each an extent: one is in flight while the other gathers, until it has half of the writers. A device that
//! is faster than the writers completes the first group before that. Then the second group waits for more writers, for the time of a
//! device write. So a write takes at most twice as long as the device needs.
//!
//! The writers are the writes being served, or half of those at the preceding commit, because some writes are always on their way to the
//! client and back. Writes that wait for the origin count too, so a single writer beside them waits for the time of a device write. Without
//! others, it never waits.
//!
//! Invariant: while writers wait for an open extent, and none is in flight for which writers wait, a commit is due or a task looks again.

use std::cell::Cell;
use std::time::Duration;

use flaz_device::Nanos;

use super::log::Awaited;

/// Longest wait for more writers, however slow the device is.
const COMMIT_WAIT_MAX: Duration = Duration::from_micros(500);
/// Weight of a write in the mean time of the device: one part in this many.
const WRITE_WEIGHT: u32 = 8;

/// Whether a commit is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Now,
    /// If no more writers come before that.
    Within(Duration),
    /// Not before another writer waits, or a write ends.
    Later,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct GroupCommit {
    /// Fewest writers to expect.
    expected: Cell<usize>,
    /// Mean time of the latest writes of extents.
    write_time: Cell<Duration>,
    /// When the first writer began to wait for the open extents.
    since: Cell<Option<Nanos>>,
    /// A task will look again.
    timer: Cell<bool>,
}

impl GroupCommit {
    /// Whether the extents that writers wait for, if any, are to be sealed now; `writing` writes are being served.
    pub(super) fn due(&self, awaited: Option<Awaited>, writing: usize, now: Nanos) -> Due {
        let Some(awaited) = awaited else {
            self.since.set(None);
            return Due::Later;
        };
        let since = self.since.get().unwrap_or(now);
        self.since.set(Some(since));
        let is_half = self.is_half(Some(awaited), writing);
        let left = self.write_time.get().saturating_sub(now.since(since));
        match awaited.in_flight {
            false if is_half || left.is_zero() => Due::Now,
            false => Due::Within(left),
            true if is_half && awaited.may_send => Due::Now,
            true => Due::Later,
        }
    }

    /// Whether half of the writers are in the extents that writers wait for, if any.
    pub(super) fn is_half(&self, awaited: Option<Awaited>, writing: usize) -> bool {
        awaited.is_some_and(|awaited| 2 * awaited.records >= writing.max(self.expected.get()))
    }

    /// The extents are sealed.
    pub(super) fn note_commit(&self, writing: usize) {
        self.since.set(None);
        self.expected.set(writing.max(self.expected.get() / 2));
    }

    /// The device took this long for an extent.
    pub(super) fn note_write(&self, took: Duration) {
        let sum = self.write_time.get() * (WRITE_WEIGHT - 1) + took.min(COMMIT_WAIT_MAX);
        self.write_time.set(sum / WRITE_WEIGHT);
    }

    /// Registers a task that looks again; false: there is one.
    pub(super) fn start_timer(&self) -> bool {
        !self.timer.replace(true)
    }

    /// That task looks again.
    pub(super) fn end_timer(&self) {
        assert!(self.timer.replace(false), "it was registered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Nanos = Nanos(1_000_000);
    const WRITE: Duration = Duration::from_micros(40);

    fn awaited(records: usize, in_flight: bool) -> Option<Awaited> {
        Some(Awaited {
            records,
            in_flight,
            may_send: true,
        })
    }

    fn commits() -> GroupCommit {
        let commits = GroupCommit::default();
        for _ in 0..100 {
            commits.note_write(WRITE);
        }
        commits
    }

    /// Sixteen writes at a time become extents of eight, with one in flight while the next one gathers.
    #[test]
    fn writers_form_two_groups() {
        let commits = commits();
        assert_eq!(commits.due(None, 16, AT), Due::Later);
        for records in 1..8 {
            assert_eq!(commits.due(awaited(records, true), 16, AT), Due::Later);
        }
        assert_eq!(commits.due(awaited(8, true), 16, AT), Due::Now);
        let full = Awaited {
            records: 8,
            in_flight: true,
            may_send: false,
        };
        assert_eq!(
            commits.due(Some(full), 16, AT),
            Due::Later,
            "the device has enough"
        );
    }

    #[test]
    fn a_writer_alone_does_not_wait() {
        let commits = commits();
        assert_eq!(commits.due(awaited(1, false), 1, AT), Due::Now);
        commits.note_commit(1);
        assert_eq!(commits.due(awaited(1, false), 1, AT), Due::Now);
    }

    /// After a landed commit, its writers are on their way back.
    #[test]
    fn a_group_waits_for_writers_as_long_as_the_device_writes() {
        let commits = commits();
        commits.note_commit(16);
        let Due::Within(left) = commits.due(awaited(2, false), 5, AT) else {
            panic!("six more writers may come");
        };
        assert!(left <= WRITE && left >= WRITE * 9 / 10, "{left:?}");
        let later = AT.after(WRITE / 2);
        assert!(matches!(commits.due(awaited(3, false), 5, later), Due::Within(rest) if rest < left));
        assert_eq!(commits.due(awaited(8, false), 5, later), Due::Now);
        assert_eq!(commits.due(awaited(3, false), 5, AT.after(WRITE)), Due::Now);
    }

    /// Writers that have gone are forgotten after a few commits.
    #[test]
    fn fewer_writers_are_expected_after_each_commit() {
        let commits = commits();
        commits.note_commit(64);
        let mut waits = 0;
        while commits.due(awaited(1, false), 1, AT) != Due::Now {
            commits.note_commit(1);
            waits += 1;
        }
        assert_eq!(waits, 5);
    }

    #[test]
    fn the_wait_is_limited_on_a_slow_device() {
        let commits = commits();
        for _ in 0..100 {
            commits.note_write(Duration::from_secs(1));
        }
        assert!(
            matches!(commits.due(awaited(1, false), 16, AT), Due::Within(left) if left <= COMMIT_WAIT_MAX)
        );
    }

    #[test]
    fn one_task_looks_again() {
        let commits = commits();
        assert!(commits.start_timer() && !commits.start_timer());
        commits.end_timer();
        assert!(commits.start_timer());
    }
}
