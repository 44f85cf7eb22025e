//! Replies that wait while the sender is busy.

use std::cell::{Cell, RefCell};

use flaz_device::local::Notify;
use flaz_runtime::SendBatch;

use super::job::Weight;

/// Replies that wait for the sender.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: RefCell<Waiting>,
    pub(super) ready: Notify,
    pub(super) sender_rests: Cell<bool>,
}

#[derive(Debug, Default)]
struct Waiting {
    batch: SendBatch,
    weight: Weight,
}

impl Outbox {
    /// Puts one reply in, which `write` appends to the batch.
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

    /// Swaps the replies that wait for the empty `batch`; what they weigh is nothing if there are none.
    pub(super) fn take(&self, batch: &mut SendBatch) -> Weight {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.weight.requests > 0 {
            std::mem::swap(&mut waiting.batch, batch);
        }
        std::mem::take(&mut waiting.weight)
    }

    /// Wakes the sender even if there is nothing to send.
    pub(super) fn wake(&self) {
        self.ready.notify_one();
    }
}
