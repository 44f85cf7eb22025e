//! Writing dirty blocks to the origin, for the writeback worker and for reclaim.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Env, IoBuf};
use futures_util::future::{join_all, select};
use futures_util::stream::{StreamExt, iter};

use super::io::Turn;
use super::writeback::Failing;
use super::{Platform, Shard};
use crate::index::{Entry, Place};
use crate::planted::{PlantedBug, planted};
use crate::units::{BLOCK_BYTES, BlockNumber, LocalBlock, STRIPE_BLOCKS, Sequence};
use crate::volume::IoError;

/// Fragments read concurrently for one run of blocks.
const CLEAN_READS_MAX: usize = 16;
/// Concurrent writes to the origin of a cache with few shards, and of each shard of others.
const CLEAN_WRITES_MAX: usize = 32;
const CLEAN_WRITES_OF_SHARD: usize = 8;
/// Longest time that a run yields to reads of the origin.
const GIVE_WAY_MAX: Duration = Duration::from_millis(100);
pub(super) const GIVE_WAY_STEP: Duration = Duration::from_millis(5);
/// Reads of the origin in flight for each concurrent run. At one to one, readers lose half of a disk near the dirty limit,
/// and their worst second has two thirds of the mean rate.
const READS_PER_RUN: f64 = 4.0;

/// A dirty block to write to the origin, with its index entry. The location and the generation of the region together
/// identify one append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dirty {
    pub(super) block: LocalBlock,
    pub(super) entry: Entry,
    pub(super) generation: Sequence,
}

/// What became of a batch of dirty blocks.
pub(super) struct WrittenBack {
    /// The blocks that are on the origin, stable, in address order.
    pub(super) blocks: Vec<Dirty>,
    /// The first error.
    pub(super) outcome: Result<(), IoError>,
    /// The time that both devices took to make data stable. It hardly depends on the number of blocks.
    pub(super) flushing: Duration,
}

impl WrittenBack {
    fn failed(why: IoError) -> Self {
        Self {
            blocks: Vec::new(),
            outcome: Err(why),
            flushing: Duration::ZERO,
        }
    }
}

impl<P: Platform> Shard<P> {
    pub(super) fn dirty_now(&self, block: LocalBlock, entry: Entry) -> Option<Dirty> {
        entry.dirty().then(|| Dirty {
            block,
            entry,
            generation: self.log.generation_at(entry.location()),
        })
    }

    /// The block, if it is dirty now, with its entry as of the end of the wait.
    pub(super) async fn find_dirty(self: &Rc<Self>, block: LocalBlock) -> Option<Dirty> {
        self.load_page(block).await;
        self.dirty_now(block, self.map.lookup(block)?)
    }

    /// Whether the block still has the same entry, as of the end of the wait.
    pub(super) async fn is_still(self: &Rc<Self>, dirty: &Dirty) -> bool {
        let now = self.find_dirty(dirty.block).await;
        now.is_some_and(|now| now.entry.same_place(dirty.entry) && now.generation == dirty.generation)
    }

    /// Concurrent writes of this shard to the origin. A network volume answers each after milliseconds, so a cache with one shard
    /// needs as many as one with several.
    fn clean_writes_max(&self) -> usize {
        (CLEAN_WRITES_MAX / self.id.layout.shard_count as usize).max(CLEAN_WRITES_OF_SHARD)
    }

    /// Writes blocks to the origin, stable on return.
    pub(super) async fn write_dirty(self: &Rc<Self>, batch: &[Dirty]) -> WrittenBack {
        let failures = self.origin.flush_failures();
        let begun = self.env.now();
        if !planted(PlantedBug::CleanedBeforeStable) && !self.make_log_stable().await {
            return WrittenBack::failed(self.cache_failed());
        }
        let mut flushing = self.env.now().since(begun);
        let failed = Cell::new(false);
        // A stop does not wait for every block of an origin that fails slowly.
        let wanted = |_: &&[Dirty]| !(failed.get() && self.is_stopping());
        let runs = runs(batch).take_while(wanted).map(|run| self.clean_run(run));
        let mut runs = iter(runs).buffer_unordered(self.clean_writes_max());
        let mut written = Vec::with_capacity(batch.len());
        let mut outcome = Ok(());
        while let Some((part, result)) = runs.next().await {
            failed.set(failed.get() || result.is_err());
            written.extend(part);
            outcome = outcome.and(result);
        }
        drop(runs);
        let begun = self.env.now();
        if !written.is_empty()
            && !planted(PlantedBug::CleanedUnflushed)
            && let Err(error) = self.origin.flush_since(failures).await
        {
            // Not retried: after a failed flush the state of the origin is unknown. The blocks stay dirty and are written
            // again. Direct writes of clients may be lost too, so their next flush must report it.
            self.origin.note_error(&error);
            let why = IoError::CacheFailed(format!("the origin failed a flush: {error}"));
            self.origin.leave_untold(error);
            self.writeback
                .note_failing(&self.env, &why, Failing::Flushes, begun);
            return WrittenBack::failed(why);
        }
        flushing += self.env.now().since(begun);
        if !written.is_empty() {
            self.writeback.progress().note_success(Failing::Flushes);
        }
        written.sort_unstable_by_key(|dirty| dirty.block);
        WrittenBack {
            blocks: written,
            outcome,
            flushing,
        }
    }

    /// Writes neighbouring blocks to the origin. Returns the blocks written.
    async fn clean_run(self: &Rc<Self>, run: &[Dirty]) -> (Vec<Dirty>, Result<(), IoError>) {
        let mut written = Vec::with_capacity(run.len());
        let Some((first, last)) = run.first().zip(run.last()) else {
            return (written, Ok(()));
        };
        let Some(_turn) = self.take_turn().await else {
            return (written, Err(IoError::Stopping));
        };
        let begun = self.env.now();
        let _alone = self
            .writeback
            .enter_run(first.block..LocalBlock(last.block.0 + 1))
            .await;
        let mut data = IoBuf::new(run.len() * BLOCK_BYTES);
        let mut there = Vec::with_capacity(run.len());
        let places = data.chunks_exact_mut(BLOCK_BYTES).zip(run).collect::<Vec<_>>();
        let mut places = places.into_iter().peekable();
        while places.peek().is_some() {
            let reads = places
                .by_ref()
                .take(CLEAN_READS_MAX)
                .map(|(place, dirty)| self.load_dirty(dirty, place));
            there.extend(join_all(reads.collect::<Vec<_>>()).await);
        }
        let _run = self.origin.shared().watch().run();
        let _intent = match self.intend_cleaning(first.block).await {
            Ok(intent) => intent,
            Err(error) => {
                self.writeback
                    .note_failing(&self.env, &error, Failing::Writes, begun);
                return (written, Err(error));
            }
        };
        let mut at = 0;
        while at < run.len() {
            let zero = is_of_zeroes(run[at].entry);
            let len = (at..run.len())
                .take_while(|&i| there[i] && is_of_zeroes(run[i].entry) == zero)
                .count();
            if len == 0 {
                at += 1;
                continue;
            }
            let offset = self.global(run[at].block).offset();
            let bytes = (len * BLOCK_BYTES) as u64;
            let part = (!zero).then(|| IoBuf::copy_of(&data[at * BLOCK_BYTES..][..len * BLOCK_BYTES]));
            let sent = self.env.now();
            let result = self.origin.write_clean(offset, bytes, part).await;
            // Zeroes may be unmapped, which takes no time, and a failed write says nothing of the others.
            if result.is_ok() && !zero {
                self.origin
                    .shared()
                    .turns()
                    .note_write(self.env.now().since(sent));
            }
            if let Err(error) = result.map_err(IoError::Origin) {
                self.writeback
                    .note_failing(&self.env, &error, Failing::Writes, begun);
                return (written, Err(error));
            }
            self.writeback.progress().note_success(Failing::Writes);
            written.extend_from_slice(&run[at..at + len]);
            at += len;
        }
        (written, Ok(()))
    }

    /// Waits until a run may go to the origin; `None`: the origin fails and the shard stops. With reads in flight there is one
    /// run for every [`READS_PER_RUN`] reads, at least one, fewer the less urgent writeback is, and each waits a while for an
    /// idle moment. Readers keep most of a disk (a single reader half of it), and their share changes slowly. Without reads, there
    /// are as many as the origin serves without a long queue: the next read would wait for all of it. Of the runs that wait in this
    /// shard, one at a time queues with those of other shards.
    async fn take_turn(&self) -> Option<Turn<'_>> {
        let started = self.env.now();
        let _first = self.writeback.next_run().await;
        let place = self.origin.shared().turns().queue();
        loop {
            if self.is_stopping() && self.writeback.progress().is_origin_failing() {
                return None;
            }
            let (reads, urgency) = (
                self.origin.shared().reading(),
                self.writeback.urgency(self.dirty_level()),
            );
            let wait_limit = GIVE_WAY_MAX.mul_f64(1.0 - urgency);
            let most = match reads {
                0 => u64::MAX,
                reads => ((reads as f64 * urgency / READS_PER_RUN).ceil() as u64).max(1),
            };
            let quiet = reads == 0 || self.env.now().since(started) >= wait_limit;
            if let Some(turn) = place.take(if quiet { most } else { 0 }) {
                return Some(turn);
            }
            // Reads and urgency change without a notification.
            select(pin!(place.wait()), pin!(self.env.sleep(GIVE_WAY_STEP))).await;
        }
    }

    /// Reads a block whose entry is unchanged.
    async fn load_dirty(self: &Rc<Self>, dirty: &Dirty, place: &mut [u8]) -> bool {
        self.is_still(dirty).await
            && matches!(self.load_block(dirty.block, dirty.entry, place).await, Ok(true))
    }

    /// Makes the *cleaned* records of these blocks stable before newer data goes directly to the origin: otherwise recovery
    /// would find the blocks dirty and prefer their old contents.
    ///
    /// # Errors
    /// The cache device fails, so the records cannot be made stable.
    pub(super) async fn settle_cleaned(self: &Rc<Self>, blocks: std::ops::Range<u64>) -> Result<(), IoError> {
        let locals = || blocks.clone().map(|block| self.local(BlockNumber(block)));
        if self.map.any_newly_clean_of(locals())
            && !planted(PlantedBug::CleanedNotSettled)
            && !Box::pin(self.make_log_stable()).await
        {
            return Err(self.cache_failed());
        }
        // Blocks that reclaim has just written to the origin have no *cleaned* record until their region is free.
        while self.map.any_evacuated_of(locals()) {
            if self.cache.is_fenced() {
                return Err(self.cache_failed());
            }
            self.reclaimer.changed().await;
        }
        // No older copy may still be in flight to the origin: reclaim also writes blocks there.
        if self.writeback.has_dirty_records() {
            let first = self.local(crate::units::BlockNumber(blocks.start));
            let end = LocalBlock(first.0 + blocks.end - blocks.start);
            drop(self.writeback.enter_run(first..end).await);
        }
        Ok(())
    }
}

fn is_of_zeroes(entry: Entry) -> bool {
    matches!(entry.place(), Place::SameFilled { value: 0, .. })
}

/// Splits blocks in address order into runs of neighbours; a run does not cross stripes.
fn runs(mut batch: &[Dirty]) -> impl Iterator<Item = &[Dirty]> {
    std::iter::from_fn(move || {
        let first = batch.first()?.block.0;
        let end = (first / STRIPE_BLOCKS + 1) * STRIPE_BLOCKS;
        let len = batch
            .iter()
            .zip(first..end)
            .take_while(|(dirty, expected)| dirty.block.0 == *expected)
            .count();
        let (run, rest) = batch.split_at(len.max(1));
        batch = rest;
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Location;

    #[test]
    fn neighbours_are_cleaned_together_and_stripes_apart() {
        let entry = Entry::fragment(Location(64), 100);
        let blocks = [3, 4, 5, 9, STRIPE_BLOCKS - 1, STRIPE_BLOCKS, STRIPE_BLOCKS + 1];
        let dirty = |block| Dirty {
            block: LocalBlock(block),
            entry,
            generation: Sequence(1),
        };
        let batch: Vec<Dirty> = blocks.map(dirty).to_vec();
        let lens: Vec<usize> = runs(&batch).map(<[Dirty]>::len).collect();
        assert_eq!(lens, [3, 1, 1, 2]);
    }
}
