//! Replies that wait while the sender is busy.

use std::cell::{Cell, RefCell};

use flaz_device::local::Notify;
use flaz_runtime::SendBatch;

use super::job::Weight;

/// Replies that wait for the sender.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: RefCell<Waiting>,
    ready: Notify,
    /// The sender waits for `ready`.
    sender_rests: Cell<bool>,
    closed: Cell<bool>,
}

#[derive(Debug, Default)]
struct Waiting {
    batch: SendBatch,
    weight: Weight,
}

impl Outbox {
    /// Adds one reply, which `write` appends to the batch.
    pub(super) fn put(&self, bytes: usize, write: impl FnOnce(&mut SendBatch)) {
        let mut waiting = self.waiting.borrow_mut();
        write(&mut waiting.batch);
        waiting.weight.requests += 1;
        waiting.weight.bytes += bytes;
        drop(waiting);
        if self.sender_rests.replace(false) {
            self.ready.notify_one();
        }
    }

    /// Waits for replies, and swaps those that wait for the empty `batch`. Returns their share of the limits; `None` when
    /// the outbox is closed.
    pub(super) async fn next(&self, batch: &mut SendBatch) -> Option<Weight> {
        loop {
            let weight = self.take(batch);
            if weight.requests > 0 {
                return Some(weight);
            }
            if self.closed.get() {
                return None;
            }
            self.sender_rests.set(true);
            self.ready.notified().await;
        }
    }

    fn take(&self, batch: &mut SendBatch) -> Weight {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.weight.requests > 0 {
            std::mem::swap(&mut waiting.batch, batch);
        }
        std::mem::take(&mut waiting.weight)
    }

    /// Whether no reply waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().weight.requests == 0
    }

    /// Ends the sender when no reply waits.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.ready.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn replies_gather_and_leave_together() {
        let outbox = Outbox::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut batch = SendBatch::new();
        {
            let mut next = pin!(outbox.next(&mut batch));
            assert!(next.as_mut().poll(&mut context).is_pending());
            outbox.put(4096, |batch| batch.push_bytes(b"one"));
            outbox.put(0, |batch| batch.push_bytes(b"two"));
            let Poll::Ready(Some(weight)) = next.as_mut().poll(&mut context) else {
                panic!("two replies wait");
            };
            assert_eq!((weight.requests, weight.bytes), (2, 4096));
        }
        assert_eq!(batch.bytes(), 6);
        assert!(outbox.is_empty());
    }

    #[test]
    fn closing_ends_the_sender_after_the_last_reply() {
        let outbox = Outbox::default();
        let mut context = Context::from_waker(Waker::noop());
        outbox.put(0, |batch| batch.push_bytes(b"last"));
        outbox.close();
        let mut batch = SendBatch::new();
        assert!(matches!(
            pin!(outbox.next(&mut batch)).poll(&mut context),
            Poll::Ready(Some(_))
        ));
        batch.clear();
        assert!(matches!(
            pin!(outbox.next(&mut batch)).poll(&mut context),
            Poll::Ready(None)
        ));
    }
}
