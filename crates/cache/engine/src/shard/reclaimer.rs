//! Which ring is reclaimed next, and whether a reclaim is running. ([`super::reclaim`] does the work.)
//!
//! Invariants:
//! - One region is reclaimed at a time.
//! - An unfinished reclaim is finished first: nothing else is reclaimed while a ring is [`State::Unfinished`]. New records
//!   of blocks in its oldest region may be in the other ring, and must not be destroyed before that region.

use std::cell::Cell;

use flaz_device::local::Notify;

use crate::policy::Ring;

/// The state of reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// The reclaim of this ring's oldest region was interrupted by a crash, or could not continue.
    Unfinished(Ring),
    /// A region is being reclaimed. `Some`: the ring whose unfinished reclaim comes first.
    Running(Option<Ring>),
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Reclaimer {
    state: Cell<State>,
    /// A region of dirty blocks had to be put back while the shard stopped, or had lost its cache device. Operations that
    /// waited for space have then failed, so this is never reset.
    stuck: Cell<bool>,
    /// Work for the reclaim task.
    wanted: Notify,
    /// A reclaim has ended, or waiting operations must check again.
    changed: Notify,
}

impl Reclaimer {
    pub(super) fn new() -> Self {
        Self {
            state: Cell::new(State::Idle),
            stuck: Cell::new(false),
            wanted: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// Wakes the reclaim task.
    pub(super) fn wake(&self) {
        self.wanted.notify_one();
    }

    /// Waits until a region should be reclaimed, or the task should check whether to end.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Whether a region is being reclaimed.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state.get(), State::Running(_))
    }

    /// The ring whose oldest region must be reclaimed before anything else.
    pub(super) fn unfinished(&self) -> Option<Ring> {
        match self.state.get() {
            State::Idle => None,
            State::Unfinished(ring) => Some(ring),
            State::Running(ring) => ring,
        }
    }

    /// Records that a crash interrupted a reclaim in `ring`.
    pub(super) fn note_unfinished(&self, ring: Ring) {
        assert!(!self.is_running(), "no region is being reclaimed");
        self.state.set(State::Unfinished(ring));
    }

    /// Whether reclaim is stuck behind dirty blocks that can neither be moved nor written back: waiting for space is
    /// useless.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.get()
    }

    /// Begins to reclaim a region.
    pub(super) fn begin(&self) -> Reclaim<'_> {
        assert!(!self.is_running(), "one region is reclaimed at a time");
        let before = self.state.get();
        self.state.set(State::Running(self.unfinished()));
        Reclaim {
            reclaimer: self,
            after: before,
        }
    }

    /// Waits until a reclaim ends or [`Self::recheck`] is called.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Makes operations that wait for the end of a reclaim check again.
    pub(super) fn recheck(&self) {
        self.changed.notify_all();
    }
}

/// A reclaim in progress. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Reclaim<'a> {
    reclaimer: &'a Reclaimer,
    after: State,
}

impl Reclaim<'_> {
    /// The oldest region of `ring` is free.
    pub(super) fn freed(mut self, ring: Ring) {
        if self.after == State::Unfinished(ring) {
            self.after = State::Idle;
        }
    }

    /// The oldest region of `ring` could not be freed: it is reclaimed next. `again`: the shard will do that when it serves, so nothing
    /// that waits for space gives up.
    pub(super) fn put_back(mut self, ring: Ring, again: bool) {
        self.after = State::Unfinished(ring);
        if !again {
            self.reclaimer.stuck.set(true);
        }
    }
}

impl Drop for Reclaim<'_> {
    fn drop(&mut self) {
        let reclaimer = self.reclaimer;
        assert!(reclaimer.is_running(), "begun and ended in pairs");
        reclaimer.state.set(self.after);
        reclaimer.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_ring_comes_first_until_its_region_is_free() {
        let reclaimer = Reclaimer::new();
        reclaimer.note_unfinished(Ring::Main);
        let other = reclaimer.begin();
        assert_eq!(reclaimer.unfinished(), Some(Ring::Main), "also while it runs");
        other.freed(Ring::Probation);
        assert_eq!(reclaimer.unfinished(), Some(Ring::Main));
        reclaimer.begin().freed(Ring::Main);
        assert_eq!(reclaimer.unfinished(), None);
        assert!(!reclaimer.is_stuck());
    }

    #[test]
    fn a_region_that_is_put_back_is_unfinished() {
        let reclaimer = Reclaimer::new();
        reclaimer.begin().put_back(Ring::Probation, true);
        assert_eq!(reclaimer.unfinished(), Some(Ring::Probation));
        assert!(!reclaimer.is_stuck() && !reclaimer.is_running());
        reclaimer.begin().put_back(Ring::Probation, false);
        assert!(reclaimer.is_stuck() && !reclaimer.is_running());
        reclaimer.begin().freed(Ring::Probation);
        assert!(reclaimer.is_stuck(), "what waited has given up");
    }

    #[test]
    fn a_dropped_reclaim_leaves_all_as_it_was() {
        let reclaimer = Reclaimer::new();
        reclaimer.note_unfinished(Ring::Main);
        drop(reclaimer.begin());
        assert_eq!(reclaimer.unfinished(), Some(Ring::Main));
        assert!(!reclaimer.is_running());
    }

    #[test]
    #[should_panic(expected = "one region is reclaimed at a time")]
    fn a_second_reclaim_panics() {
        let reclaimer = Reclaimer::new();
        let _first = reclaimer.begin();
        let _second = reclaimer.begin();
    }
}
