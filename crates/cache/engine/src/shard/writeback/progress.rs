//! The worker's progress: its passes, failing steps, and how long writers wait meanwhile.
//!
//! Invariants:
//! - A failure ends when the failed step, or any later one in [`Failing`], succeeds once.
//! - While no step fails twice in a row, writers wait without a limit.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use flaz_device::Nanos;

use crate::volume::IoError;

/// How long a writer waits for space while writeback fails.
const FAILING_WAIT_MAX: Duration = Duration::from_secs(10);
/// Failed passes after which a request to write back everything fails.
const PASSES_FAILED_MAX: u64 = 5;
/// Why a pass leaves blocks dirty.
pub(in crate::shard) const LEFT_DAMAGED: &str = "some dirty blocks cannot be read";

/// A step of writeback that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Failing {
    /// Dirty blocks cannot be read.
    Reads,
    /// The origin fails writes.
    Writes,
    /// The origin fails flushes.
    Flushes,
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    since: Nanos,
    /// A retry after that has failed as well.
    again: bool,
}

/// Numbers of passes at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::shard) struct Marks {
    passes: u64,
    failures: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::shard) struct Progress {
    shard: u32,
    /// Passes that wrote everything that was dirty when they began, and passes that did not.
    passes: Cell<u64>,
    failures: Cell<u64>,
    /// Why a pass left blocks dirty although no device refused anything: one may have failed temporarily.
    left: Cell<&'static str>,
    /// The last reported failure, until writeback works again.
    failure: RefCell<Option<String>>,
    /// For each of [`Failing`], its failure if it fails.
    failing: Cell<[Option<Failure>; 3]>,
    /// Writes of clients fail because of `failure`, which was logged.
    refusing: Cell<bool>,
    /// No device fails, but the only blocks left are damaged.
    damaged: Cell<bool>,
}

impl Progress {
    pub(super) fn new(shard: u32) -> Self {
        Self {
            shard,
            passes: Cell::new(0),
            failures: Cell::new(0),
            left: Cell::new(LEFT_DAMAGED),
            failure: RefCell::new(None),
            failing: Cell::new([None; 3]),
            refusing: Cell::new(false),
            damaged: Cell::new(false),
        }
    }

    /// A pass has written everything that was dirty when it began.
    pub(super) fn note_pass(&self) {
        self.passes.set(self.passes.get() + 1);
    }

    /// A pass has left blocks dirty, and no device failed.
    pub(in crate::shard) fn note_incomplete(&self, why: &'static str) {
        self.left.set(why);
        self.failures.set(self.failures.get() + 1);
    }

    /// A pass has left blocks dirty because of the error passed to [`Self::note_failed`].
    pub(in crate::shard) fn note_left(&self, why: &'static str) {
        self.left.set(why);
    }

    /// A pass has failed.
    pub(in crate::shard) fn note_failed(&self, error: &IoError) {
        self.failures.set(self.failures.get() + 1);
        self.report(error);
    }

    /// Sets whether a pass found only damaged blocks left.
    pub(in crate::shard) fn note_damaged(&self, damaged: bool) {
        self.damaged.set(damaged);
    }

    /// Everything dirty is on the origin, or a pass met no failure.
    pub(in crate::shard) fn note_well(&self) {
        self.failing.set([None; 3]);
        self.refusing.set(false);
        if self.failure.take().is_some() {
            tracing::info!(shard = self.shard, "writeback works again");
        }
    }

    /// A step that began at `begun` has failed. Recorded at once and not at the end of a pass, because an origin may take
    /// half a minute for every error. True: from now on the step fails repeatedly.
    pub(super) fn note_failing(&self, now: Nanos, error: &IoError, what: Failing, begun: Nanos) -> bool {
        let mut failing = self.failing.get();
        let failure = &mut failing[what as usize];
        let known = failure.is_some_and(|failure| failure.again);
        let since = failure.map_or(now, |failure| failure.since);
        let again = known || failure.is_some() && begun >= since;
        assert!(since <= now, "it failed before");
        *failure = Some(Failure { since, again });
        self.failing.set(failing);
        if what != Failing::Reads {
            self.damaged.set(false);
        }
        self.report(error);
        again && !known
    }

    /// A step has succeeded, so writers wait as if nothing fails. A successful write does not show that flushes work: an
    /// origin that fails only flushes accepts every write.
    pub(in crate::shard) fn note_success(&self, what: Failing) {
        let mut failing = self.failing.get();
        failing[..=what as usize].fill(None);
        self.failing.set(failing);
    }

    fn report(&self, error: &IoError) {
        if self.failure.replace(Some(error.to_string())).is_none() {
            tracing::error!(shard = self.shard, "writeback failed and is retried: {error}");
        }
    }

    /// The last reported failure, unless writeback works again.
    pub(in crate::shard) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Whether a failure is reported.
    pub(in crate::shard) fn is_failing(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Whether the failure of a device is reported.
    pub(in crate::shard) fn is_device_failing(&self) -> bool {
        self.is_failing() && !self.damaged.get()
    }

    /// Whether the origin fails repeatedly, and nothing gets through.
    pub(in crate::shard) fn is_origin_failing(&self) -> bool {
        let failing = self.failing.get();
        [Failing::Writes, Failing::Flushes]
            .into_iter()
            .any(|what| failing[what as usize].is_some_and(|failure| failure.again))
    }

    /// How much longer a writer that began to wait at `started` waits; `None`: until there is space.
    pub(super) fn wait_limit(&self, now: Nanos, started: Nanos) -> Option<Duration> {
        let failures = self.failing.get().into_iter().flatten();
        failures
            .filter(|failure| failure.again)
            .map(|failure| FAILING_WAIT_MAX.saturating_sub(now.since(failure.since.max(started))))
            .min()
    }

    /// A write of a client fails because of `why`: the writer has waited as long as it may. True: it is the first one since
    /// writeback worked, which is logged.
    pub(super) fn note_refused(&self, why: &str) -> bool {
        let is_first = !self.refusing.replace(true);
        if is_first {
            tracing::error!(
                shard = self.shard,
                "writes of clients fail until writeback works again: the dirty limit is reached, and nothing has reached \
                 the origin for {} s: {why}",
                FAILING_WAIT_MAX.as_secs()
            );
        }
        is_first
    }

    /// The numbers of passes so far.
    pub(in crate::shard) fn marks(&self) -> Marks {
        Marks {
            passes: self.passes.get(),
            failures: self.failures.get(),
        }
    }

    /// Whether everything dirty at `marks` has been written. A pass that was running then may have skipped blocks that
    /// became dirty after it began.
    ///
    /// # Errors
    /// Too many passes have failed since.
    pub(in crate::shard) fn done_since(&self, marks: Marks) -> Result<bool, IoError> {
        assert!(self.passes.get() >= marks.passes && self.failures.get() >= marks.failures);
        if self.passes.get() >= marks.passes + 2 {
            return Ok(true);
        }
        if self.failures.get() > marks.failures + PASSES_FAILED_MAX {
            let why = self.failure().unwrap_or_else(|| self.left.get().to_owned());
            return Err(IoError::CacheFailed(format!(
                "writeback makes no progress: {why}"
            )));
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error() -> IoError {
        IoError::CacheFailed("a test".into())
    }

    fn at(seconds: u64) -> Nanos {
        Nanos(0).after(Duration::from_secs(seconds))
    }

    #[test]
    fn a_step_that_fails_twice_limits_the_wait_of_writers() {
        let progress = Progress::new(0);
        assert!(!progress.note_failing(at(1), &error(), Failing::Writes, at(0)));
        assert_eq!(progress.wait_limit(at(2), at(0)), None, "one failure says little");
        let before = progress.note_failing(at(2), &error(), Failing::Writes, at(0));
        assert!(!before, "it was begun before the first one failed");
        assert!(progress.note_failing(at(3), &error(), Failing::Writes, at(1)));
        assert!(progress.is_origin_failing());
        assert_eq!(progress.wait_limit(at(4), at(0)), Some(Duration::from_secs(7)));
        assert_eq!(
            progress.wait_limit(at(4), at(4)),
            Some(Duration::from_secs(10)),
            "it came later"
        );
    }

    #[test]
    fn writes_that_fail_are_logged_once_until_writeback_works() {
        let progress = Progress::new(0);
        for _ in 0..2 {
            assert!(progress.note_refused("the origin is full"));
            assert!(!progress.note_refused("the origin is full"));
            progress.note_well();
        }
    }

    #[test]
    fn a_step_that_succeeds_says_nothing_of_later_steps() {
        let progress = Progress::new(0);
        for begun in [0, 1] {
            progress.note_failing(at(1), &error(), Failing::Flushes, at(begun));
        }
        progress.note_success(Failing::Writes);
        assert!(progress.is_origin_failing());
        progress.note_success(Failing::Flushes);
        assert!(!progress.is_origin_failing() && progress.is_failing());
        progress.note_well();
        assert!(!progress.is_failing());
    }

    #[test]
    fn all_is_written_after_two_passes_or_too_many_fail() {
        let progress = Progress::new(0);
        progress.note_pass();
        let marks = progress.marks();
        progress.note_pass();
        assert!(
            matches!(progress.done_since(marks), Ok(false)),
            "it was under way"
        );
        progress.note_pass();
        assert!(matches!(progress.done_since(marks), Ok(true)));
        let marks = progress.marks();
        for _ in 0..=PASSES_FAILED_MAX {
            assert!(matches!(progress.done_since(marks), Ok(false)));
            progress.note_incomplete(LEFT_DAMAGED);
        }
        let error = progress.done_since(marks).expect_err("too many failed");
        assert!(error.to_string().contains(LEFT_DAMAGED), "{error}");
    }
}
