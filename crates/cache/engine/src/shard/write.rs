//! Writes that go to the origin first and to the cache afterwards. (Writes acknowledged by the cache:
//! [`super::dirty_write`].)
//!
//! Writes of one block are serialised. The cached copy of a block is dropped before its write is acknowledged, and its
//! version is bumped before and after the origin write (see [`super::order`]), so that no old version survives in the cache
//! or in a read that is in flight. This holds in every mode: in pass-through the cache stays valid, too.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use flaz_device::{Env, IoBuf};

use super::dirty_write::Refused;
use super::intents::Intent;
use super::order::RangeGuard;
use super::queue::{Candidate, Job, JobSlot};
use super::tasks::Phase;
use super::{Platform, Shard};
use crate::advise::Written;
use crate::planted::{PlantedBug, planted};
use crate::policy::{Admission, Allowance, Ring};
use crate::settings::Mode;
use crate::stats::count;
use crate::units::{BLOCK_BYTES, BlockNumber, LocalBlock};
use crate::volume::IoError;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The blocks of an unaligned write, as far as their new contents are known.
struct Staged {
    data: IoBuf,
    known: Vec<bool>,
}

impl<P: Platform> Shard<P> {
    /// Writes `data` at byte `offset` of the exported device; the range lies in one stripe of this shard. With
    /// `fua` it is stable on return; with `bypass` new blocks are not admitted.
    ///
    /// # Errors
    /// [`IoError`] when the origin fails, or when the cache device fails and it alone has the data. The range then has old or
    /// new data.
    pub async fn write(
        self: &Rc<Self>,
        offset: u64,
        mut data: IoBuf,
        fua: bool,
        bypass: bool,
    ) -> Result<(), IoError> {
        let started = self.env.now();
        let len = data.len() as u64;
        let cut = self.whole_blocks() * BLOCK;
        let result = if offset < cut && cut < offset + len {
            // The partial block at the origin's end is never cached; blocks before it may be dirty, or become dirty while this
            // write waits for its lock.
            let tail = IoBuf::copy_of(&data[(cut - offset) as usize..]);
            data.set_len((cut - offset) as usize);
            let head = Box::pin(self.write_range(offset, data, fua, bypass)).await;
            head.and(Box::pin(self.write_range(cut, tail, fua, bypass)).await)
        } else {
            self.write_range(offset, data, fua, bypass).await
        };
        let counters = &self.stats.counters;
        count(&counters.writes, 1);
        count(&counters.write_bytes, len);
        self.stats
            .latencies
            .borrow_mut()
            .write
            .record(self.env.now().since(started));
        result
    }

    async fn write_range(
        self: &Rc<Self>,
        offset: u64,
        mut data: IoBuf,
        fua: bool,
        bypass: bool,
    ) -> Result<(), IoError> {
        let len = data.len() as u64;
        let blocks = touched(offset, len);
        let (slot, lock) = loop {
            let (slot, lock) = self.enter_write(&blocks).await?;
            if !self.must_write_back(&blocks, bypass).await {
                break (slot, lock);
            }
            drop(slot);
            match self.write_back(offset, data, fua, &blocks, &lock).await {
                Ok(()) => return Ok(()),
                Err(Refused {
                    past: Some(whole), ..
                }) => data = whole,
                Err(Refused { error, .. }) => return Err(error),
            }
            // Start again, with the job slot before the lock. The write is not acknowledged, so others may come first.
        };
        let intent = self.enter_origin(&blocks).await?;
        let aligned = offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
        let staged = if aligned {
            None
        } else {
            Some(Box::pin(self.stage(offset, &data, &blocks)).await)
        };
        lock.bump();
        if planted(PlantedBug::StoredBeforeOrigin) && aligned {
            let slot = self.queue.reserve(&self.stats).await;
            let data = IoBuf::copy_of(&data);
            let known = vec![true; (blocks.end - blocks.start) as usize];
            self.load_pages(&blocks).await;
            self.after_change(&blocks, slot, Some(Staged { data, known }), bypass);
        }
        let fua = fua && !planted(PlantedBug::FuaDropped);
        let (data, result) = self.origin.write(offset, data, fua).await;
        self.origin.shared().wrote();
        self.load_pages(&blocks).await;
        if !planted(PlantedBug::ClockTickedOnce) {
            lock.bump();
        }
        let staged = staged.unwrap_or_else(|| Staged {
            data,
            known: vec![true; (blocks.end - blocks.start) as usize],
        });
        self.after_change(&blocks, slot, result.is_ok().then_some(staged), bypass);
        drop(intent);
        result.map_err(IoError::Origin)
    }

    /// Takes a job slot for the admission after a write, and the lock of its range.
    ///
    /// # Errors
    /// [`IoError::Stopping`]: a write now would not be in the index image. A stop waits for the locks that are held.
    async fn enter_write(&self, blocks: &Range<u64>) -> Result<(JobSlot, RangeGuard<'_>), IoError> {
        let slot = self.queue.reserve(&self.stats).await;
        let lock = self.lock_blocks(blocks).await;
        match self.tasks.phase() {
            Phase::Stopping => Err(IoError::Stopping),
            Phase::Opening | Phase::Serving => Ok((slot, lock)),
        }
    }

    /// Locks blocks of one stripe.
    pub(super) async fn lock_blocks(&self, blocks: &Range<u64>) -> RangeGuard<'_> {
        let first = self.local(BlockNumber(blocks.start));
        let end = LocalBlock(first.0 + blocks.end - blocks.start);
        self.order.lock(first..end).await
    }

    /// Prepares a direct write to the origin: on return no older version of these blocks counts as dirty, even after a crash,
    /// and the intent of their stripe is stable. The caller holds the range's lock.
    async fn enter_origin(self: &Rc<Self>, blocks: &Range<u64>) -> Result<Intent<'_>, IoError> {
        self.settle_cleaned(blocks.clone()).await?;
        Ok(self.intend(self.local(BlockNumber(blocks.start))).await)
    }

    /// Discards a range in one stripe of this shard. Partly covered sectors of the origin are kept.
    ///
    /// # Errors
    /// [`IoError::Origin`] when the origin fails.
    pub async fn trim(self: &Rc<Self>, offset: u64, len: u64, fua: bool) -> Result<(), IoError> {
        let started = self.env.now();
        let align = self.origin.sector_bytes();
        let inner = offset.next_multiple_of(align)..(offset + len) / align * align;
        count(&self.stats.counters.trims, 1);
        if inner.start >= inner.end {
            return Ok(());
        }
        let blocks = touched(inner.start, inner.end - inner.start);
        let (slot, lock) = self.enter_write(&blocks).await?;
        if self.any_dirty_now(&blocks).await {
            // The origin's old data under a dirty block must not become visible: the range becomes zeroes, which the writeback
            // worker writes as zeroes.
            drop((slot, lock));
            let zeroes = IoBuf::zeroed((inner.end - inner.start) as usize);
            return self.write(inner.start, zeroes, fua, true).await;
        }
        let intent = self.enter_origin(&blocks).await?;
        lock.bump();
        let fua = fua && !planted(PlantedBug::TrimFuaDropped);
        let len = inner.end - inner.start;
        let result = self.origin.discard(inner.start, len, fua).await;
        self.origin.shared().wrote();
        self.load_pages(&blocks).await;
        lock.bump();
        let changed = if planted(PlantedBug::TrimKeepsCopy) {
            0..0
        } else {
            blocks
        };
        self.after_change(&changed, slot, None, true);
        drop(intent);
        drop(lock);
        self.stats
            .latencies
            .borrow_mut()
            .trim
            .record(self.env.now().since(started));
        result.map_err(IoError::Origin)
    }

    /// Makes a range in one stripe of this shard read as zeroes.
    ///
    /// # Errors
    /// [`IoError::Origin`] when the origin fails.
    pub async fn write_zeroes(
        self: &Rc<Self>,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), IoError> {
        let align = self.origin.sector_bytes();
        count(&self.stats.counters.write_zeroes, 1);
        if !offset.is_multiple_of(align) || !len.is_multiple_of(align) {
            // Unaligned edges need the sectors around them, which an ordinary write reads.
            return self.write(offset, IoBuf::zeroed(len as usize), fua, true).await;
        }
        let started = self.env.now();
        let blocks = touched(offset, len);
        let (slot, lock) = self.enter_write(&blocks).await?;
        if self.any_dirty_now(&blocks).await {
            drop((slot, lock));
            return self.write(offset, IoBuf::zeroed(len as usize), fua, true).await;
        }
        let intent = self.enter_origin(&blocks).await?;
        lock.bump();
        let result = self.origin.write_zeroes(offset, len, may_unmap, fua).await;
        self.origin.shared().wrote();
        self.load_pages(&blocks).await;
        lock.bump();
        self.after_change(&blocks, slot, None, true);
        drop(intent);
        drop(lock);
        self.stats
            .latencies
            .borrow_mut()
            .write_zeroes
            .record(self.env.now().since(started));
        result.map_err(IoError::Origin)
    }

    /// Builds the blocks of an unaligned write: whole ones from `data`, partial ones over their cached contents.
    async fn stage(self: &Rc<Self>, offset: u64, data: &[u8], blocks: &Range<u64>) -> Staged {
        let start = blocks.start * BLOCK;
        let mut image = IoBuf::new(((blocks.end - blocks.start) * BLOCK) as usize);
        let mut known = Vec::with_capacity((blocks.end - blocks.start) as usize);
        let end = offset + data.len() as u64;
        for block in blocks.clone() {
            let whole = block * BLOCK >= offset && (block + 1) * BLOCK <= end;
            known.push(
                whole
                    || self
                        .load_for_merge(block, &mut image[(block * BLOCK - start) as usize..])
                        .await,
            );
        }
        image[(offset - start) as usize..][..data.len()].copy_from_slice(data);
        Staged { data: image, known }
    }

    async fn load_for_merge(self: &Rc<Self>, block: u64, place: &mut [u8]) -> bool {
        if !matches!(self.mode(), Mode::WriteThrough | Mode::WriteBack) || block >= self.whole_blocks() {
            return false;
        }
        let local = self.local(BlockNumber(block));
        self.load_page(local).await;
        let entry = self.map.lookup(local);
        let Some(entry) = entry else { return false };
        matches!(
            self.load_block(local, entry, &mut place[..BLOCK_BYTES]).await,
            Ok(true)
        )
    }

    /// Drops the cached copies of changed blocks, whose index pages have been loaded, and queues their new contents (`staged`, as far
    /// as known and admitted) or their tombstones.
    fn after_change(&self, blocks: &Range<u64>, slot: JobSlot, staged: Option<Staged>, bypass: bool) {
        let admit = matches!(self.mode(), Mode::WriteThrough | Mode::WriteBack) && !self.is_stopping();
        let allowance = self.allowance();
        let mut candidates = Vec::new();
        let mut stale = Vec::new();
        for (index, block) in blocks.clone().enumerate() {
            let local = self.local(BlockNumber(block));
            let known = staged
                .as_ref()
                .is_some_and(|staged| staged.known[index] || planted(PlantedBug::UnknownPartsStored));
            let stays = admit && known && block < self.whole_blocks();
            self.follow_write(
                local,
                match (stays, bypass) {
                    (true, false) => Written::Admitted,
                    (true, true) => Written::IfCached,
                    (false, _) => Written::Dropped,
                },
            );
            let hits = self
                .map
                .lookup(local)
                .map_or(0, |entry| entry.hits().saturating_add(1));
            let keep = planted(PlantedBug::RetireSkipped) && staged.is_some();
            let old_ring = if keep { None } else { self.invalidate(local) };
            let ring = if stays {
                let replaced = old_ring.filter(|_| allowance != Allowance::Nothing);
                replaced.or_else(|| self.admit_written(local, bypass, allowance))
            } else {
                None
            };
            match (ring, old_ring) {
                (Some(ring), _) => {
                    candidates.push(Candidate {
                        index,
                        ring,
                        hits: hits.min(3),
                        written: true,
                        version: self.order.version(local),
                        replaces: None,
                    });
                }
                (None, Some(_)) => stale.push(local),
                (None, None) => {}
            }
        }
        match staged {
            Some(staged) if !candidates.is_empty() => {
                let first = self.local(BlockNumber(blocks.start));
                let job = Job::Store {
                    first,
                    data: Arc::new(staged.data),
                    candidates,
                    stale,
                };
                self.queue.offer(slot, job, &self.stats);
            }
            _ if !stale.is_empty() => {
                let job = Job::WriteTombstones { blocks: stale };
                self.queue.offer(slot, job, &self.stats);
            }
            _ => {}
        }
    }

    fn admit_written(&self, block: LocalBlock, bypass: bool, allowance: Allowance) -> Option<Ring> {
        if bypass {
            count(&self.stats.counters.refused_sequential, 1);
            return None;
        }
        match self.tuning.admit_within(block, allowance) {
            Admission::To(ring) => Some(ring),
            Admission::Remembered(ring) => {
                count(&self.stats.counters.ghost_hits, 1);
                Some(ring)
            }
            Admission::Refuse => {
                count(&self.stats.counters.refused_policy, 1);
                None
            }
            Admission::OverBudget => {
                count(&self.stats.counters.refused_budget, 1);
                None
            }
        }
    }
}

/// Numbers of the blocks that a range overlaps.
fn touched(offset: u64, len: u64) -> Range<u64> {
    offset / BLOCK..(offset + len).div_ceil(BLOCK)
}
