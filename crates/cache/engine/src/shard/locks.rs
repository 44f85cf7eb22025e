//! Locks on ranges of block numbers.
//!
//! Invariant: two locked ranges never overlap.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use flaz_device::local::Notify;

/// The ranges locked now. Operations in flight hold them, and front ends limit their number.
#[derive(Debug, Default)]
pub(super) struct RangeLocks {
    held: RefCell<Vec<(u64, Range<u64>)>>,
    next_id: Cell<u64>,
    freed: Notify,
}

/// A locked range; unlocked when dropped.
#[derive(Debug)]
pub(super) struct Lock<'a> {
    locks: &'a RangeLocks,
    id: u64,
}

impl RangeLocks {
    /// Waits until no part of `range` is locked, and locks it.
    pub(super) async fn lock(&self, range: Range<u64>) -> Lock<'_> {
        loop {
            {
                let mut held = self.held.borrow_mut();
                if held
                    .iter()
                    .all(|(_, other)| other.end <= range.start || range.end <= other.start)
                {
                    let id = self.next_id.get();
                    self.next_id.set(id + 1);
                    held.push((id, range));
                    return Lock { locks: self, id };
                }
            }
            self.freed.notified().await;
        }
    }

    /// Number of locked ranges.
    pub(super) fn held(&self) -> usize {
        self.held.borrow().len()
    }

    /// Waits until nothing is locked.
    pub(super) async fn wait_until_free(&self) {
        while !self.held.borrow().is_empty() {
            self.freed.notified().await;
        }
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        self.locks.held.borrow_mut().retain(|(id, _)| *id != self.id);
        self.locks.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn overlapping_ranges_wait_and_others_do_not() {
        let locks = RangeLocks::default();
        let first = locks.lock(0..4096).now_or_never().expect("free");
        let _apart = locks.lock(4096..8192).now_or_never().expect("next to it");
        assert!(locks.lock(1000..2000).now_or_never().is_none());
        drop(first);
        assert!(locks.lock(1000..2000).now_or_never().is_some());
    }
}
