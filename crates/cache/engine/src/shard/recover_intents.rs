//! The part of recovery that drops blocks whose last write may have reached the origin and not the log: the clean blocks of stripes whose
//! intent is set.
//!
//! Each gets a tombstone. The bits stay set until the tombstones are stable, so another recovery drops at least the same blocks.

use std::rc::Rc;

use super::errors::RecoverError;
use super::log::{Append, Class, WRITES_IN_FLIGHT_MAX};
use super::{Platform, Shard};
use crate::index::Entry;
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::units::{LocalBlock, STRIPE_BLOCKS};

/// Blocks dropped at a time, if the index is larger than the memory for it.
const BATCH_BLOCKS: usize = 4096;

/// Blocks and the rings of their tombstones.
type Tombstones = Vec<(LocalBlock, Ring)>;

/// What became of the blocks.
#[derive(Default)]
struct Dropped {
    blocks: u64,
    /// Tombstones in the log.
    appended: usize,
    /// Those without space.
    left: Tombstones,
}

impl<P: Platform> Shard<P> {
    /// Drops the blocks of stripes whose intent is set, and appends tombstones for them as far as there is space. The rest is
    /// left to the shard's tasks. No write is in flight on return.
    pub(super) async fn drop_intended(self: &Rc<Self>) -> Result<u64, RecoverError> {
        let dropped = self.drop_all_intended().await;
        self.leave_tombstones(&dropped.left);
        let mut outcome = Ok(dropped.blocks);
        // Must precede any newer record of these blocks: see `BlockMap::ring_for`.
        if dropped.appended > 0 && !self.make_log_stable().await || self.cache.is_fenced() {
            let (shard, what) = (self.id.number, "the cache device failed".to_owned());
            outcome = Err(RecoverError::Damaged { shard, what });
        }
        // The shard may be dropped now, if it or another one failed. Its writes must not land later, in data that its
        // successor has written to the same place.
        while self.log.writing() {
            self.log.write_ended().await;
        }
        while self.cache.is_marking() {
            self.intents.changed().await;
        }
        self.pages_written().await;
        outcome
    }

    /// Finds and drops the blocks in address order, because they are logged.
    async fn drop_all_intended(self: &Rc<Self>) -> Dropped {
        let mut dropped = Dropped::default();
        let unknown = self.map.dirty_blocks() > 0 && !self.id.may_be_dirty;
        let entries_max = self.recovery_entries_max();
        let few = !unknown && self.intents.set_count() < self.map.len() as u64 / STRIPE_BLOCKS;
        if !few && entries_max.is_none() {
            let mut all = self
                .pick_blocks(false, |block, entry| self.intended(unknown, block, entry))
                .await
                .unwrap_or_default();
            all.sort_unstable_by_key(|(block, _)| *block);
            self.drop_and_note(all, &mut dropped).await;
            return dropped;
        }
        // A few stripes, and those of an index that is larger than the memory for it, are looked up block by block.
        assert!(!unknown, "a pass finds no dirty blocks in such a cache");
        let mut batch = Vec::new();
        for stripe in 0..self.id.layout.local_stripes() {
            let blocks = stripe * STRIPE_BLOCKS..(stripe + 1) * STRIPE_BLOCKS;
            if !self.intents.is_set(LocalBlock(blocks.start)) {
                continue;
            }
            let range = LocalBlock(blocks.start)..LocalBlock(blocks.end);
            self.load_run(range).await;
            let blocks = blocks.map(LocalBlock);
            batch.extend(blocks.filter_map(|block| self.intended(unknown, block, self.map.lookup(block)?)));
            if entries_max.is_some_and(|max| batch.len() >= max.min(BATCH_BLOCKS)) {
                self.drop_and_note(std::mem::take(&mut batch), &mut dropped).await;
            }
        }
        self.drop_and_note(batch, &mut dropped).await;
        dropped
    }

    /// Whether a block must be dropped, and the ring of its tombstone. Also with `unknown`, a block that looks dirty in a cache that has
    /// no dirty blocks: its *cleaned* record was not stable, or this record is forged, and the origin has the right data.
    fn intended(&self, unknown: bool, block: LocalBlock, entry: Entry) -> Option<(LocalBlock, Ring)> {
        let set = self.intents.is_set(block) && !planted(PlantedBug::IntendedKept);
        // The origin has nothing newer than a dirty block, with or without an intent.
        let clean = !entry.dirty() || planted(PlantedBug::IntendedDirtyDropped);
        let drops = unknown && entry.dirty() || set && clean;
        drops.then(|| (block, self.log.ring_at(entry.location())))
    }

    /// Drops blocks, then appends tombstones for them. A reclaim that makes space for these may move a block that is dropped later, a
    /// clean one whose intent is set: its tombstone then goes to its new ring.
    async fn drop_and_note(self: &Rc<Self>, blocks: Tombstones, dropped: &mut Dropped) {
        for (block, _) in &blocks {
            self.load_page(*block).await;
            self.map.remove(&self.log, *block);
        }
        dropped.blocks += blocks.len() as u64;
        // Where there was no space, there is none now.
        let appended = match dropped.left.is_empty() {
            true => self.append_tombstones(&blocks).await,
            false => 0,
        };
        dropped.appended += appended;
        dropped.left.extend(&blocks[appended..]);
    }

    /// Appends tombstones, and frees regions for them where the origin is not needed. Returns how many were appended.
    async fn append_tombstones(self: &Rc<Self>, blocks: &[(LocalBlock, Ring)]) -> usize {
        for (at, (block, ring)) in blocks.iter().enumerate() {
            loop {
                let global = self.global(*block);
                let appended = self.log.append(*ring, global, Append::Tombstone, Class::Client);
                if appended.is_some() {
                    break;
                }
                self.pump_writes();
                if self.cache.is_fenced() {
                    return at;
                }
                if self.log.writes_in_flight() >= WRITES_IN_FLIGHT_MAX {
                    self.log.room().await;
                } else if !self.reclaim_one(true).await {
                    return at;
                }
            }
        }
        self.pump_writes();
        blocks.len()
    }

    /// Queues these tombstones for the shard's tasks.
    fn leave_tombstones(self: &Rc<Self>, blocks: &[(LocalBlock, Ring)]) {
        if blocks.is_empty() {
            return;
        }
        for (block, ring) in blocks {
            self.map.make_stale_again(*block, *ring);
        }
        // Tombstones that did not reach the device are queued already, perhaps so many that these have to wait.
        self.settle_all_later(blocks.iter().map(|(block, _)| *block).collect());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flaz_device::Env;

    use crate::format::geometry::GeometryOptions;
    use crate::policy::Ring;
    use crate::shard::queue::JOBS_MAX;
    use crate::shard::simulated::Disks;
    use crate::units::LocalBlock;

    /// So many tombstones did not reach the device that the queue is full.
    #[test]
    fn tombstones_that_are_left_wait_for_those_that_were_lost() {
        let disks = Disks::new(8 << 20, GeometryOptions::default());
        disks.sim.block_on(async {
            let shard = disks.shard(1);
            for _ in 0..JOBS_MAX {
                shard.settle_later(LocalBlock(0));
            }
            shard.leave_tombstones(&[(LocalBlock(1), Ring::Main), (LocalBlock(2), Ring::Probation)]);
            shard.start();
            disks.env.sleep(Duration::from_secs(1)).await;
            assert!(!shard.map.any_stale());
            assert_eq!(shard.stats.counters.tombstones.get(), 2);
        });
    }
}
