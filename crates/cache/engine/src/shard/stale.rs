//! Dropping cached copies, and the tombstones that must follow.

use std::rc::Rc;

use super::queue::Job;
use super::{Platform, Shard};
use crate::index::Entry;
use crate::policy::Ring;
use crate::stats::count;
use crate::units::LocalBlock;

impl<P: Platform> Shard<P> {
    /// Drops a block because its cached copy no longer matches the origin. Returns the ring that now needs a new record of
    /// the block, if any.
    pub(super) fn invalidate(&self, block: LocalBlock) -> Option<Ring> {
        let stale = self.map.invalidate(&self.log, block)?;
        count(&self.stats.counters.dropped_blocks, u64::from(stale.was_cached));
        Some(stale.ring)
    }

    /// Drops a block whose copy cannot be used, if the index still points to that copy. A tombstone follows: the copy may
    /// become readable again after the origin has changed.
    pub(super) fn drop_if_same(self: &Rc<Self>, block: LocalBlock, entry: Entry) {
        if !self.map.is_at(block, entry) {
            return;
        }
        self.invalidate(block);
        self.settle_later(block);
    }

    /// Queues a tombstone for a stale block.
    pub(super) fn settle_later(self: &Rc<Self>, block: LocalBlock) {
        self.settle_all_later(vec![block]);
    }

    /// Queues tombstones for stale blocks.
    pub(super) fn settle_all_later(self: &Rc<Self>, blocks: Vec<LocalBlock>) {
        let job = Job::WriteTombstones { blocks };
        if let Some(slot) = self.queue.try_reserve(0) {
            self.queue.offer(slot, job, &self.stats);
            return;
        }
        let shard = Rc::clone(self);
        self.tasks.spawn(&self.env, async move {
            let slot = shard.queue.reserve(&shard.stats).await;
            shard.queue.offer(slot, job, &shard.stats);
        });
    }
}
