//! Timers in virtual time and their wakers.
//!
//! Invariants: a slot is free, or exactly one heap entry refers to it; cancelled timers never advance the clock; timers
//! of the same time fire in the order of their random tie-breakers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;

#[derive(Debug)]
enum Slot {
    Free,
    Waiting(Waker),
    Cancelled,
}

/// Identifies a timer from its registration until it fires or is cancelled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimerId(u32);

#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>, // (moment in ns, tie-breaker, slot)
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Timers {
    pub(crate) fn add(&mut self, at: u64, tie: u32, waker: Waker) -> TimerId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = Slot::Waiting(waker);
        self.heap.push(Reverse((at, tie, slot)));
        TimerId(slot)
    }

    /// Stores the waker of the latest poll.
    pub(crate) fn update(&mut self, id: TimerId, waker: &Waker) {
        if let Slot::Waiting(old) = &mut self.slots[id.0 as usize] {
            old.clone_from(waker);
        }
    }

    pub(crate) fn cancel(&mut self, id: TimerId) {
        self.slots[id.0 as usize] = Slot::Cancelled;
    }

    /// The earliest time of a timer that is not cancelled.
    pub(crate) fn next_moment(&mut self) -> Option<u64> {
        while let Some(&Reverse((at, _, slot))) = self.heap.peek() {
            if matches!(self.slots[slot as usize], Slot::Waiting(_)) {
                return Some(at);
            }
            self.heap.pop();
            self.release(slot);
        }
        None
    }

    /// The next waker whose time is not after `now`.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<Waker> {
        while self.heap.peek().is_some_and(|&Reverse((at, _, _))| at <= now) {
            let Some(Reverse((_, _, slot))) = self.heap.pop() else {
                break;
            };
            if let Slot::Waiting(waker) = self.release(slot) {
                return Some(waker);
            }
        }
        None
    }

    fn release(&mut self, slot: u32) -> Slot {
        self.free.push(slot);
        std::mem::replace(&mut self.slots[slot as usize], Slot::Free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_in_order_and_cancelled_ones_do_not() {
        let mut timers = Timers::default();
        let waker = Waker::noop();
        timers.add(20, 0, waker.clone());
        let cancelled = timers.add(10, 0, waker.clone());
        timers.cancel(cancelled);
        assert_eq!(timers.next_moment(), Some(20));
        assert!(timers.pop_due(19).is_none());
        assert!(timers.pop_due(20).is_some());
        assert!(timers.pop_due(u64::MAX).is_none());
        assert_eq!(timers.next_moment(), None);
    }

    #[test]
    fn slots_are_reused() {
        let mut timers = Timers::default();
        for round in 0..100 {
            timers.add(round, 0, Waker::noop().clone());
            assert!(timers.pop_due(round).is_some());
        }
        assert_eq!(timers.slots.len(), 1);
    }
}
