//! Writers that wait until their records have landed.
//!
//! Invariants:
//! - A writer is woken once its positions have landed, or when all are woken; not by each write that ends. With many writers
//!   in one extent, its end wakes these and no others.
//! - A waiter that is dropped leaves nothing behind.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use super::lsn::Positions;

/// See the module's documentation. As many as there are writes of clients in flight.
#[derive(Debug, Default)]
pub(super) struct Landings(RefCell<Waiters>);

#[derive(Debug, Default)]
struct Waiters {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Free,
    Waiting(Positions, Waker),
    Woken,
}

/// Releases the slot of a waiter.
struct Leave<'a>(&'a Landings, usize);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut waiters = self.0.0.borrow_mut();
        waiters.slots[self.1] = Slot::Free;
        waiters.free.push(self.1);
    }
}

impl Landings {
    /// Waits for the next call of [`Landings::wake`] that covers `upto`.
    pub(super) async fn wait(&self, upto: &Positions) {
        let key = {
            let waiters = &mut *self.0.borrow_mut();
            waiters.free.pop().unwrap_or_else(|| {
                waiters.slots.push(Slot::Free);
                waiters.slots.len() - 1
            })
        };
        let _leave = Leave(self, key);
        poll_fn(|cx| {
            let mut waiters = self.0.borrow_mut();
            let slot = &mut waiters.slots[key];
            if matches!(slot, Slot::Woken) {
                return Poll::Ready(());
            }
            *slot = Slot::Waiting(*upto, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Wakes those whose positions `landed` covers.
    pub(super) fn wake(&self, landed: &Positions) {
        let count = self.0.borrow().slots.len();
        for key in 0..count {
            // Not borrowed while it wakes.
            let due = {
                let slot = &mut self.0.borrow_mut().slots[key];
                let is_due = matches!(slot, Slot::Waiting(upto, _) if landed.covers(upto));
                is_due.then(|| std::mem::replace(slot, Slot::Woken))
            };
            if let Some(Slot::Waiting(_, waker)) = due {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::Context;

    use super::super::lsn::Lsn;
    use super::*;
    use crate::shard::simulated::WakeCount;

    #[test]
    fn a_writer_is_woken_once_and_only_when_it_has_landed() {
        let landings = Landings::default();
        let [first, second] = [Lsn::INHERITED, Lsn::INHERITED.next()].map(Positions::both);
        let (woken, others) = (Arc::new(WakeCount::default()), Arc::new(WakeCount::default()));
        let (waker, other) = (Waker::from(Arc::clone(&woken)), Waker::from(Arc::clone(&others)));
        let mut waits = pin!(landings.wait(&second));
        {
            let mut dropped = pin!(landings.wait(&first));
            assert!(
                dropped
                    .as_mut()
                    .poll(&mut Context::from_waker(&other))
                    .is_pending()
            );
            assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            landings.wake(&first);
            assert_eq!([&woken, &others].map(|count| count.get()), [0, 1]);
        }
        landings.wake(&second);
        landings.wake(&second);
        assert_eq!(woken.get(), 1);
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        assert_eq!(landings.0.borrow().slots.len(), 2);
    }
}
