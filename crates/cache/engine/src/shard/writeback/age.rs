//! A bound of the age of the oldest dirty block, without a time for each block.
//!
//! Invariant: no dirty block of this opening became dirty before [`DirtyAge::since`]. Blocks that an earlier process left dirty
//! count from the opening.

use std::cell::Cell;

use flaz_device::Nanos;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct DirtyAge {
    since: Cell<Nanos>,
    /// The end of the last complete pass, or `since`.
    last_pass: Cell<Nanos>,
}

impl DirtyAge {
    /// A block became dirty at `now`; none was before.
    pub(super) fn restart(&self, now: Nanos) {
        self.since.set(now);
        self.last_pass.set(now);
    }

    /// A pass has ended at `now` that wrote everything that was dirty when it began. It began when the previous one had ended.
    pub(super) fn note_pass(&self, now: Nanos) {
        assert!(self.since.get() <= self.last_pass.get() && self.last_pass.get() <= now);
        self.since.set(self.last_pass.replace(now));
    }

    /// No block became dirty before this time.
    pub(super) fn since(&self) -> Nanos {
        self.since.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_is_bounded_by_the_pass_before_the_last() {
        let age = DirtyAge::default();
        age.restart(Nanos(10));
        assert_eq!(age.since(), Nanos(10));
        age.note_pass(Nanos(20));
        assert_eq!(age.since(), Nanos(10), "written while the pass was running");
        age.note_pass(Nanos(30));
        assert_eq!(age.since(), Nanos(20));
        // A pass that leaves blocks is not reported, and the next whole one counts from the last whole one.
        age.note_pass(Nanos(70));
        assert_eq!(age.since(), Nanos(30));
        age.restart(Nanos(90));
        assert_eq!(age.since(), Nanos(90));
    }
}
