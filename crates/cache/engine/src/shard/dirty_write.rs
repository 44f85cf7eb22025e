//! Write-back: writes that are acknowledged when they are on the cache device.
//!
//! A write becomes dirty records in the log. It is visible to readers when it is appended and acknowledged when its
//! extents have *landed*: they and every extent before them in their region, because recovery reads a region from its
//! start. A flush of the cache device then makes it stable. While a block is dirty, the origin's copy is never read. In every
//! mode, a write to a dirty block takes this path, so the origin never has newer data than a dirty record.
//!
//! Acknowledgements close extents early, at a sector boundary. Writes that arrive while an extent is in flight are packed
//! together (group commit), so a deep queue fills whole extents, and a single writer never waits for others. When an extent is
//! closed: [`super::group_commit`].

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use flaz_device::{Env, IoBuf};

use super::log::{Append, Appended, Class, Lsn, Positions};
use super::order::RangeGuard;
use super::packing::{Batch, PACK_SPLIT_BLOCKS_MIN};
use super::queue::Candidate;
use super::writeback::{blocks_max, bytes_of};
use super::{Platform, Shard};
use crate::advise::{StoredAs, Written};
use crate::planted::{PlantedBug, planted};
use crate::policy::{Admission, Ring};
use crate::settings::Mode;
use crate::stats::count;
use crate::units::{BLOCK_BYTES, BlockNumber, LocalBlock};
use crate::volume::IoError;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of a write that are appended at a time.
const BACK_BLOCKS_MAX: usize = 64;

/// A write that the cache could not take.
pub(super) struct Refused {
    pub(super) error: IoError,
    /// The data, if it may be written to the origin instead.
    pub(super) past: Option<IoBuf>,
}

impl From<IoError> for Refused {
    fn from(error: IoError) -> Self {
        Self { error, past: None }
    }
}

/// The appended part of a write.
#[derive(Default)]
struct AppendedWrite {
    /// The positions that cover it.
    upto: Positions,
    /// The blocks appended so far.
    blocks: Vec<KeptBlock>,
    /// A later start finds all of it.
    landed: bool,
}

/// A block that has been appended.
struct KeptBlock {
    block: LocalBlock,
    /// The extent that contains it.
    lsn: Lsn,
    was_dirty: bool,
}

impl<P: Platform> Shard<P> {
    /// Whether a write must take this path, as of the end of the wait. Call it with the range locked.
    pub(super) async fn must_write_back(self: &Rc<Self>, blocks: &Range<u64>, bypass: bool) -> bool {
        if blocks.end > self.whole_blocks() {
            return false;
        }
        let dirty = self.any_dirty_now(blocks).await;
        self.mode() == Mode::WriteBack && !bypass || dirty
    }

    /// Stores a write in the cache. The range is in one stripe, in whole blocks of the origin.
    ///
    /// # Errors
    /// [`Refused`]: each sector of the range then has old or new data. If the cache device was fenced before any of the data was
    /// sent to it, and no block of the range is dirty, the write may go to the origin.
    pub(super) async fn write_back(
        self: &Rc<Self>,
        offset: u64,
        data: IoBuf,
        fua: bool,
        blocks: &Range<u64>,
        lock: &RangeGuard<'_>,
    ) -> Result<(), Refused> {
        // Before the first await: the caller has just found that the write must take this path.
        let _write = self.writeback.begin_write();
        if self.cache.is_fenced() {
            return Err(self.cache_failed().into());
        }
        let aligned = offset.is_multiple_of(BLOCK) && (data.len() as u64).is_multiple_of(BLOCK);
        let (data, odd) = if aligned {
            (data, None)
        } else {
            (Box::pin(self.merge(offset, &data, blocks)).await?, Some(data))
        };
        let data = Arc::new(data);
        let mut kept = AppendedWrite::default();
        let Err(error) = self.keep(&data, fua, lock, &mut kept).await else {
            return Ok(());
        };
        if !self.cache.is_fenced() {
            // There was no space for the rest. Readers see the first part, so it must survive a kill of the process.
            if self.wait_landed(&kept.upto).await.is_ok() {
                self.log.promise(&kept.upto);
            }
        }
        let free = self.cache.is_fenced() && {
            self.load_pages(blocks).await;
            self.take_back(&kept) && !self.any_dirty(blocks)
        };
        let whole = || Arc::try_unwrap(data).unwrap_or_else(|data| IoBuf::copy_of(&data));
        let past = free.then(|| odd.unwrap_or_else(whole));
        Err(Refused { error, past })
    }

    /// Appends whole blocks as dirty, and waits until they have landed.
    async fn keep(
        self: &Rc<Self>,
        data: &Arc<IoBuf>,
        fua: bool,
        lock: &RangeGuard<'_>,
        kept: &mut AppendedWrite,
    ) -> Result<(), IoError> {
        let (first, total) = (lock.first_block(), lock.len());
        assert_eq!(data.len(), total * BLOCK_BYTES, "whole blocks of the range");
        let mut at = 0;
        while at < total {
            let most = blocks_max(self.dirty_limit());
            let len = (total - at).min(BACK_BLOCKS_MAX).min(most);
            let level = || {
                if self.cache.is_fenced() {
                    return Err(self.cache_failed());
                }
                Ok(self.dirty_level())
            };
            let permit = self
                .writeback
                .reserve(&self.env, &self.stats, bytes_of(len), level)
                .await?;
            let part = LocalBlock(first.0 + at as u64)..LocalBlock(first.0 + (at + len) as u64);
            self.load_run(part).await;
            let candidates: Vec<Candidate> = (at..at + len)
                .map(|index| {
                    let block = LocalBlock(first.0 + index as u64);
                    Candidate {
                        index,
                        ring: self.ring_for_written(block),
                        hits: 0,
                        written: true,
                        version: self.order.version(block),
                        replaces: None,
                    }
                })
                .collect();
            if len >= PACK_SPLIT_BLOCKS_MIN && self.env.parallelism() > 1 {
                for batch in self.pack_spread(data, &candidates).await {
                    self.append_dirty(lock, data, &batch, kept).await?;
                    self.codecs.put_back(batch.packer);
                }
            } else {
                let started = self.env.now();
                let batch = Batch::pack(self.take_packer(), data, &candidates, Vec::new());
                self.count_packing(started);
                self.append_dirty(lock, data, &batch, kept).await?;
                self.codecs.put_back(batch.packer);
            }
            drop(permit);
            at += len;
        }
        self.wait_landed(&kept.upto).await?;
        kept.landed = true;
        self.log.promise(&kept.upto);
        if fua && !planted(PlantedBug::DirtyFuaDropped) {
            Box::pin(self.flush()).await?;
        }
        Ok(())
    }

    /// After the device was fenced: makes blocks clean again whose extents were not sent, because no later start can find them.
    /// Returns whether these are all blocks of the write. For the others, a later start may find the new or the old contents, so
    /// reads of them fail until then.
    fn take_back(&self, kept: &AppendedWrite) -> bool {
        let mut all = true;
        for kept_block in &kept.blocks {
            let &KeptBlock { block, lsn, .. } = kept_block;
            if !kept_block.was_dirty && self.log.is_unsent(lsn) {
                self.map.remove(&self.log, block);
                continue;
            }
            all = false;
            // Blocks cleaned since are on the origin.
            if !kept.landed && self.map.is_dirty(block) {
                self.map.note_unknown(block);
            }
        }
        all
    }

    /// The whole blocks of an unaligned write: old contents around the new.
    async fn merge(self: &Rc<Self>, offset: u64, data: &[u8], blocks: &Range<u64>) -> Result<IoBuf, IoError> {
        let start = blocks.start * BLOCK;
        let end = offset + data.len() as u64;
        let mut image = IoBuf::new(((blocks.end - blocks.start) * BLOCK) as usize);
        for block in blocks.clone() {
            if block * BLOCK < offset || (block + 1) * BLOCK > end {
                let place = (block * BLOCK - start) as usize;
                let local = self.local(BlockNumber(block));
                self.read_block(local, &mut image[place..][..BLOCK_BYTES]).await?;
            }
        }
        image[(offset - start) as usize..][..data.len()].copy_from_slice(data);
        Ok(image)
    }

    /// The ring for a dirty block without an older copy: the policy may choose the ring, but not refuse the block.
    fn ring_for_written(&self, block: LocalBlock) -> Ring {
        if self.ring_for(block).is_some() {
            return Ring::Main;
        }
        match self.tuning.admit(block) {
            Admission::To(ring) => ring,
            Admission::Remembered(ring) => {
                count(&self.stats.counters.ghost_hits, 1);
                ring
            }
            Admission::Refuse | Admission::OverBudget => Ring::Main,
        }
    }

    async fn append_dirty(
        self: &Rc<Self>,
        lock: &RangeGuard<'_>,
        data: &[u8],
        batch: &Batch,
        kept: &mut AppendedWrite,
    ) -> Result<(), IoError> {
        for (candidate, packed) in &batch.items {
            let block = LocalBlock(lock.first_block().0 + candidate.index as u64);
            let dirty = !planted(PlantedBug::DirtyStoredClean);
            let (what, stored) = batch.record(packed, data, candidate.index, dirty);
            self.follow_write(block, Written::Admitted);
            let (ring, lsn, was_dirty) = self.append_one_dirty(lock, block, candidate.ring, what).await?;
            self.follow_stored(block, stored, StoredAs::Written(ring));
            kept.upto.raise(ring, lsn);
            kept.blocks.push(KeptBlock {
                block,
                lsn,
                was_dirty,
            });
            self.count_admitted(packed, stored, true);
        }
        Ok(())
    }

    /// Appends a block. Returns its ring and extent, and whether it was dirty before.
    async fn append_one_dirty(
        self: &Rc<Self>,
        lock: &RangeGuard<'_>,
        block: LocalBlock,
        fresh: Ring,
        what: Append<'_>,
    ) -> Result<(Ring, Lsn, bool), IoError> {
        loop {
            self.load_page(block).await;
            if self.cache.is_fenced() {
                return Err(self.cache_failed());
            }
            let old = self.map.lookup(block);
            let ring = self.ring_for(block).unwrap_or(fresh);
            let appended = self.log.append(ring, self.global(block), what, Class::Client);
            if let Some(Appended { entry, lsn }) = appended {
                let hits = old.map_or(0, |old| old.hits().saturating_add(1)).min(3);
                let dirty = !planted(PlantedBug::DirtyStoredClean);
                let first = self.dirty_blocks() == 0;
                self.map
                    .install(&self.log, block, entry.with_hits(hits).with_dirty(dirty));
                if first {
                    self.writeback.note_first_dirty(self.env.now());
                    self.writeback.wake();
                }
                self.map.not_damaged(block);
                // Data that was read from the origin before this must not be admitted later.
                lock.bump_one(block);
                self.writeback.note_dirty_record();
                self.appended();
                return Ok((ring, lsn, old.is_some_and(|old| old.dirty())));
            }
            self.wait_for_room().await;
        }
    }

    /// Waits until everything up to these positions has landed.
    pub(super) async fn wait_landed(self: &Rc<Self>, upto: &Positions) -> Result<(), IoError> {
        if planted(PlantedBug::AcknowledgedBeforeLanding) {
            return Ok(());
        }
        self.log.want(upto);
        let writing = self.order.writing();
        if writing > 1 && !self.commits.is_half(self.log.awaited(), writing) {
            // Lets writes that arrived together with this one append first, but not more than a group of them.
            self.env.yield_now().await;
        }
        self.commit();
        loop {
            if self.cache.is_fenced() {
                return Err(self.cache_failed());
            }
            if self.log.has_landed(upto) {
                return Ok(());
            }
            self.log.landed(upto).await;
        }
    }

    /// The shard's part of a flush: everything acknowledged is stable on return, and the manifest says so now or soon. The
    /// caller flushes the origin.
    ///
    /// # Errors
    /// [`IoError::CacheFailed`] when the cache device cannot make dirty blocks stable, now or at an earlier flush.
    pub async fn flush(self: &Rc<Self>) -> Result<(), IoError> {
        if self.log.keeps_promises() || planted(PlantedBug::DirtyFlushNotSent) {
            return Ok(());
        }
        if self.cache.is_fenced() {
            // Without dirty blocks, everything acknowledged is stable on the origin.
            return match self.dirty_blocks() {
                0 => Ok(()),
                _ => Err(self.cache_failed()),
            };
        }
        let point = self.log.landed_point();
        if let Err(error) = self.cache.flush().await {
            self.cache_error(&error);
            self.fence("the cache device failed a flush");
            return Err(self.cache_failed());
        }
        self.log.note_flushed(&point);
        if !self.flushes_strictly() {
            self.log.note_answered();
        } else if !self.make_marks_stable().await {
            return Err(self.cache_failed());
        }
        self.log.raise_stable(&point);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flaz_device::{Env, IoBuf};
    use flaz_sim::Rng;
    use futures_util::future::join;

    use crate::shard::simulated::Disks;
    use crate::units::{BLOCK_BYTES, LocalBlock};

    /// A write waits for space for its second part. The device is fenced while the region of its first part is reclaimed.
    #[test]
    fn a_fence_during_a_waiting_write_and_reclaim_is_harmless() {
        let disks = Disks::of_small_regions(8);
        disks.sim.block_on(async {
            let shard = disks.shard(1);
            let mut data = IoBuf::new(60 * BLOCK_BYTES);
            Rng::new(1).fill(&mut data);
            let blocks = 0..60;
            let lock = shard.lock_blocks(&blocks).await;
            let write = shard.write_back(0, data, false, &blocks, &lock);
            let others = async {
                disks.env.sleep(Duration::from_secs(1)).await;
                shard.log.close_regions();
                assert!(shard.make_log_stable().await);
                let entry = shard.map.lookup(LocalBlock(0)).expect("appended");
                let pin = shard.log.pin(entry.location());
                let fail = async {
                    disks.env.sleep(Duration::from_secs(1)).await;
                    shard.fence("a test");
                    disks.env.sleep(Duration::from_secs(1)).await;
                    drop(pin);
                };
                join(shard.reclaim_one(true), fail).await
            };
            let (written, _) = join(write, others).await;
            assert!(written.is_err());
        });
    }
}
