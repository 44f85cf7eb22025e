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
    /// The sender waits in [`Outbox::ready`].
    sender_rests: Cell<bool>,
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

    /// Swaps the waiting replies for the empty `batch`. Returns their share of the limits, which is zero if there are
    /// none.
    pub(super) fn take(&self, batch: &mut SendBatch) -> Weight {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.weight.requests > 0 {
            std::mem::swap(&mut waiting.batch, batch);
        }
        std::mem::take(&mut waiting.weight)
    }

    /// Waits until there is something to send, or [`Outbox::wake`].
    pub(super) async fn ready(&self) {
        self.sender_rests.set(true);
        self.ready.notified().await;
    }

    /// Whether no reply waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().weight.requests == 0
    }

    /// Wakes the sender even if there is nothing to send.
    pub(super) fn wake(&self) {
        self.ready.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn replies_are_collected_and_sent_together() {
        let outbox = Outbox::default();
        let mut batch = SendBatch::new();
        assert_eq!(outbox.take(&mut batch).requests, 0);
        let mut context = Context::from_waker(Waker::noop());
        let mut ready = pin!(outbox.ready());
        assert!(ready.as_mut().poll(&mut context).is_pending());
        outbox.put(4096, |batch| batch.push_bytes(b"one"));
        outbox.put(0, |batch| batch.push_bytes(b"two"));
        assert!(ready.as_mut().poll(&mut context).is_ready());
        assert!(!outbox.is_empty());
        let weight = outbox.take(&mut batch);
        assert_eq!((weight.requests, weight.bytes, batch.bytes()), (2, 4096, 6));
        assert!(outbox.is_empty());
    }
}
