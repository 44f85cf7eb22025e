//! The writeback worker: writes dirty blocks to the origin in address order, neighbours together.
//!
//! It works in batches. The worker makes dirty blocks stable on the cache device, writes them to the origin and flushes the
//! origin. Then it appends a *cleaned* record for each block that no client has written again; that block is clean.
//!
//! Invariants:
//! - The origin never has a version that the cache device could still lose: after a power cut the cache would otherwise
//!   have an older version than the origin.
//! - A *cleaned* record comes after the record that it refers to, in the same ring, and is written when the block is stable
//!   on the origin. Without the record the block is dirty again after a crash and is written again, with the same result.
//! - No newer data is written directly to the origin before that record is stable: see [`Shard::settle_cleaned`].
//! - At most one write of a block to the origin is in flight: see [`super::writeback`].
//!
//! The worker sets intents only where the origin is watched (see [`watch`](super::watch)): elsewhere its records are enough
//! for recovery.
//!
//! The rate follows the used share of the dirty limit. Below a quarter, the worker lets writes accumulate and waits for an
//! idle origin. Above, it speeds up. At the limit, writers wait for it.

use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::Env;
use futures_util::future::{Either, select};

use super::log::{Append, Appended, Class};
use super::writeback::{Failing, LEFT_DAMAGED};
use super::writeback_runs::{Dirty, GIVE_WAY_STEP};
use super::{Platform, Shard};
use crate::stats::count;
use crate::units::LocalBlock;
use crate::volume::IoError;

/// Dirty blocks collected at a time: bounds their memory, and the number of searches of the index.
const GATHER_BLOCKS_MAX: usize = 16 << 10;
/// Maximum and minimum number of blocks between two flushes of the origin.
const CLEAN_BATCH_BLOCKS: usize = 1024;
const CLEAN_BATCH_BLOCKS_MIN: usize = 16;
/// How long a batch should take, besides flushes: the writers that wait at the dirty limit, and a stop, wait for its end.
const CLEAN_BATCH_TIME: Range<Duration> = Duration::from_millis(200)..Duration::from_millis(400);
/// How many times as long as its flushes it should take at least, so that these cost little.
const CLEAN_BATCH_FLUSHES: u32 = 8;
/// Pause after [`CLEAN_BATCH_BLOCKS`] when little is dirty, so that writes accumulate.
const CLEAN_PAUSE: Duration = Duration::from_secs(2);
/// Passes over a batch while reclaim moves its blocks.
const CLEAN_ROUNDS_MAX: usize = 4;
/// Pause after a batch that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The position of the writeback worker in one sweep over all addresses.
struct Sweep {
    cursor: LocalBlock,
    /// The sweep began at the first address.
    whole: bool,
    /// Why a block of this sweep is still dirty although no client wrote it again.
    left: Option<&'static str>,
    /// Blocks of the next batch.
    batch_blocks: usize,
}

impl Sweep {
    fn begin(batch_blocks: usize) -> Self {
        Self {
            cursor: LocalBlock(0),
            whole: true,
            left: None,
            batch_blocks,
        }
    }

    /// Adapts the batch size: the writes of `blocks` blocks took `writing`, the flushes before and after them `flushing`.
    fn adapt(&mut self, blocks: usize, writing: Duration, flushing: Duration) {
        let least = CLEAN_BATCH_TIME.start.max(flushing * CLEAN_BATCH_FLUSHES);
        if writing < least && blocks == self.batch_blocks {
            self.batch_blocks = (self.batch_blocks * 2).min(CLEAN_BATCH_BLOCKS);
        } else if writing >= CLEAN_BATCH_TIME.end.max(least * 2) {
            self.batch_blocks = (self.batch_blocks / 2).max(CLEAN_BATCH_BLOCKS_MIN);
        }
    }
}

impl<P: Platform> Shard<P> {
    /// Cleans until the shard stops.
    pub(super) async fn clean_task(shard: Rc<Self>) {
        let mut sweep = Sweep::begin(CLEAN_BATCH_BLOCKS_MIN);
        while !shard.is_stopping() && !shard.cache.is_fenced() {
            if shard.dirty_blocks() == 0 {
                let progress = shard.writeback.progress();
                progress.note_well();
                shard.writeback.note_nothing_dirty();
                shard.settle_idle().await;
                // Reclaim may have failed to write blocks that are clean by now.
                progress.note_well();
                continue;
            }
            if shard.writeback.urgency(shard.dirty_level()) == 0.0 && shard.clean_sleep(CLEAN_PAUSE).await {
                continue;
            }
            let result = shard.clean_pass(&mut sweep).await;
            shard.note_cleaning(result);
            if shard.writeback.progress().is_failing() && !shard.is_stopping() {
                // Requests for writeback do not shorten this pause: the devices still fail.
                select(pin!(shard.env.sleep(RETRY_PAUSE)), pin!(shard.tasks.stopped())).await;
            }
        }
        shard.writeback.note_step();
    }

    /// Waits until a block is dirty. Meanwhile it makes the *cleaned* records stable: if the cache device fails before that,
    /// writes to these blocks could not go to the origin.
    async fn settle_idle(self: &Rc<Self>) {
        if self.map.any_newly_clean() && !self.clean_sleep(SETTLE_PAUSE).await && self.dirty_blocks() == 0 {
            // On failure the device has been fenced.
            self.make_log_stable().await;
        }
        if self.dirty_blocks() == 0 && !self.is_stopping() && !self.cache.is_fenced() {
            self.writeback.wanted().await;
        }
    }

    fn note_cleaning(&self, result: Result<(), IoError>) {
        if let Err(error) = result {
            self.writeback.progress().note_failed(&error);
        }
        self.writeback.note_step();
    }

    /// Sleeps until the time is over or writeback is requested; true: the shard stops.
    async fn clean_sleep(&self, duration: Duration) -> bool {
        let pause = std::pin::pin!(self.env.sleep(duration));
        let wanted = std::pin::pin!(self.writeback.wanted());
        match select(pause, wanted).await {
            Either::Left(_) | Either::Right(_) => self.is_stopping() || self.cache.is_fenced(),
        }
    }

    /// Cleans the blocks that are dirty now, from the sweep's position on, as many as are collected at a time. If that is all
    /// of them, it wraps around.
    async fn clean_pass(self: &Rc<Self>, sweep: &mut Sweep) -> Result<(), IoError> {
        let begun = self.env.now();
        let (mut all, everything) = self.gather_dirty(sweep.cursor).await;
        let around = all.iter().position(|dirty| dirty.block < sweep.cursor);
        if !everything && let Some(at) = around {
            // A sweep ends at the highest address, so two consecutive ends have all addresses between them.
            all.truncate(at);
        }
        if everything {
            sweep.left = None;
        }
        let counters = &self.stats.counters;
        let cleaned = counters.cleaned_blocks.get();
        let mut outcome = Ok(());
        let (mut rest, mut unpaused) = (&all[..], 0);
        while !rest.is_empty() {
            if self.is_stopping() || self.cache.is_fenced() {
                return outcome;
            }
            let batch;
            (batch, rest) = rest.split_at(rest.len().min(sweep.batch_blocks));
            // A batch that the origin refuses must not block the others.
            let result = self.clean_batch(sweep, batch).await;
            match result {
                Ok(None) => {}
                Ok(why) => sweep.left = why,
                Err(error) => {
                    sweep.left = Some(LEFT_FAILED);
                    outcome = outcome.and(Err(error));
                }
            }
            self.writeback.note_step();
            if let Some(last) = batch.last() {
                sweep.cursor = LocalBlock(last.block.0 + 1);
            }
            unpaused += batch.len();
            if unpaused >= CLEAN_BATCH_BLOCKS && self.writeback.urgency(self.dirty_level()) == 0.0 {
                unpaused = 0;
                if self.clean_sleep(CLEAN_PAUSE).await {
                    return outcome;
                }
            }
        }
        let damaged =
            self.map.damaged_blocks() > 0 && all.iter().any(|dirty| self.map.is_damaged(dirty.block));
        let progress = self.writeback.progress();
        progress.note_damaged(damaged && outcome.is_ok());
        if damaged {
            sweep.left = Some(LEFT_DAMAGED);
        }
        if everything || around.is_some() {
            match sweep.left {
                None if everything || sweep.whole => self.writeback.note_pass(self.env.now()),
                None => {}
                Some(why) if outcome.is_ok() => progress.note_incomplete(why),
                Some(why) => progress.note_left(why),
            }
            *sweep = if everything {
                // The next pass may begin in the middle.
                Sweep {
                    cursor: sweep.cursor,
                    whole: false,
                    left: None,
                    batch_blocks: sweep.batch_blocks,
                }
            } else {
                Sweep::begin(sweep.batch_blocks)
            };
        }
        let found_none = all.is_empty() && around.is_none();
        if counters.cleaned_blocks.get() == cleaned && outcome.is_ok() && (found_none || !all.is_empty()) {
            if damaged {
                let what = match self.map.damaged_blocks() {
                    1 => "a dirty block cannot be read".to_owned(),
                    blocks => format!("{blocks} dirty blocks cannot be read"),
                };
                let error = IoError::CacheFailed(what);
                self.writeback
                    .note_failing(&self.env, &error, Failing::Reads, begun);
                return Err(error);
            }
            // All of them have been written again, or others have written them back.
            self.env.sleep(GIVE_WAY_STEP).await;
        }
        if outcome.is_ok() && !all.is_empty() {
            // A pass that finds no block before the end of its sweep proves nothing.
            progress.note_well();
        }
        outcome
    }

    /// The next dirty blocks in address order, from `cursor` on, wrapping around; and whether these are all.
    async fn gather_dirty(self: &Rc<Self>, cursor: LocalBlock) -> (Vec<Dirty>, bool) {
        let blocks = self.id.layout.local_blocks();
        let (nearest, everything) = loop {
            let nearest = self
                .map
                .next_dirty(&self.cache, cursor, blocks, GATHER_BLOCKS_MAX);
            match nearest.await {
                Ok(nearest) => break nearest,
                Err(error) => {
                    if !self.is_mended(error).await {
                        break (Vec::new(), false);
                    }
                }
            }
        };
        // Reclaim may have written some to the origin meanwhile: a short list is not proof that these are all.
        let mut found = Vec::with_capacity(nearest.len());
        for block in nearest {
            found.extend(self.find_dirty(block).await);
        }
        (found, everything)
    }

    /// Writes the blocks that are still dirty to the origin and appends their *cleaned* records. Blocks that reclaim moves are
    /// looked up again. Returns why some are left, not counting blocks that were written again.
    async fn clean_batch(
        self: &Rc<Self>,
        sweep: &mut Sweep,
        batch: &[Dirty],
    ) -> Result<Option<&'static str>, IoError> {
        let started = self.env.now();
        let counters = &self.stats.counters;
        let mut left = self.still_dirty(batch).await;
        let (mut outcome, mut flushing) = (Ok(None), Duration::ZERO);
        for _ in 0..CLEAN_ROUNDS_MAX {
            if left.is_empty() {
                break;
            }
            let moved = counters.dirty_moved_blocks.get();
            let written = self.write_dirty(&left).await;
            flushing += written.flushing;
            for dirty in &written.blocks {
                self.record_cleaned(dirty).await;
            }
            // A block that could not be read earlier in the pass may be readable now, and is then no longer counted as damaged.
            let mut unread = false;
            for dirty in &left {
                unread = unread || self.is_still(dirty).await;
            }
            left = self.still_dirty(&left).await;
            let settled = left.is_empty() || counters.dirty_moved_blocks.get() == moved;
            outcome = written.outcome.map(|()| match settled {
                true => unread.then_some(LEFT_FAILED),
                false => Some(LEFT_MOVED),
            });
            if settled || outcome.is_err() {
                break;
            }
        }
        let took = self.env.now().since(started);
        count(&counters.clean_ns, took.as_nanos() as u64);
        sweep.adapt(batch.len(), took.saturating_sub(flushing), flushing);
        outcome
    }

    /// The dirty ones of these blocks, with their present entries.
    async fn still_dirty(self: &Rc<Self>, blocks: &[Dirty]) -> Vec<Dirty> {
        let mut still = Vec::with_capacity(blocks.len());
        for dirty in blocks {
            still.extend(self.find_dirty(dirty.block).await);
        }
        still
    }

    /// Appends a *cleaned* record for a block if its version is still the one written to the origin.
    async fn record_cleaned(self: &Rc<Self>, dirty: &Dirty) {
        let block = dirty.block;
        while self.is_still(dirty).await {
            let ring = self.log.ring_at(dirty.entry.location());
            let global = self.global(block);
            let appended = self.log.append(ring, global, Append::Cleaned, Class::Client);
            if let Some(Appended { lsn, .. }) = appended {
                self.map.mark_clean(block, ring, lsn);
                count(&self.stats.counters.cleaned_blocks, 1);
                self.appended();
                return;
            }
            if self.is_stopping() || self.cache.is_fenced() {
                return;
            }
            self.wait_for_room().await;
        }
    }

    /// Writes all blocks that are dirty now to the origin.
    ///
    /// # Errors
    /// The origin or the cache device fails, or copies are damaged. Blocks that could not be written stay dirty.
    pub async fn clean_all(self: &Rc<Self>) -> Result<(), IoError> {
        let progress = self.writeback.progress();
        let marks = progress.marks();
        let _hurry = self.writeback.hurry();
        loop {
            if self.cache.is_fenced() && self.dirty_blocks() > 0 {
                return Err(self.cache_failed());
            }
            if self.dirty_blocks() == 0 {
                return Ok(());
            }
            let done = progress.done_since(marks);
            if matches!(done, Ok(true)) {
                return Ok(());
            }
            if self.is_stopping() {
                return Err(IoError::Stopping);
            }
            done?;
            self.writeback.wake();
            self.writeback.stepped().await;
        }
    }
}

/// Time without dirty blocks after which the *cleaned* records are made stable.
const SETTLE_PAUSE: Duration = Duration::from_secs(1);
/// Why blocks are still dirty.
const LEFT_FAILED: &str = "a device fails";
const LEFT_MOVED: &str = "reclaim moves dirty blocks as fast as they are cleaned";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::{Geometry, GeometryOptions};
    use crate::index::Entry;
    use crate::policy::PolicyKind;
    use crate::settings::{AfterCrash, DIRTY_PERCENT_DEFAULT, Mode, Settings};
    use crate::shard::simulated::Simulated;
    use crate::shard::writeback::Marks;
    use crate::shard::{OriginWrites, ShardParts};
    use crate::units::{Epoch, Location};
    use flaz_codec::CodecChoice;
    use flaz_sim::{DiskConfig, Sim, SimDisk, SimEnv};
    use futures_util::future::join;

    /// A shard of 64 MiB, whose index has more than one segment.
    fn shard(env: &SimEnv) -> Rc<Shard<Simulated>> {
        let wish = GeometryOptions {
            shard_count: Some(1),
            region_bytes: Some(1 << 20),
            ..GeometryOptions::default()
        };
        let len = 80 << 20;
        Shard::new(ShardParts {
            number: 0,
            geometry: Geometry::plan(len, 512, 1 << 30, wish).expect("fits"),
            cache_id: 7,
            epoch: Epoch(1),
            valid_from: Epoch(1),
            may_be_dirty: false,
            after_crash: AfterCrash::Warm,
            env: env.clone(),
            cache: Rc::new(SimDisk::new(env, DiskConfig::fast(len))),
            origin: Rc::new(SimDisk::new(env, DiskConfig::fast(1 << 30))),
            settings: Settings {
                mode: Mode::WriteBack,
                policy: PolicyKind::Fifo,
                codec: CodecChoice::default(),
                sequential_cutoff: 0,
                dirty_percent: DIRTY_PERCENT_DEFAULT,
                strict_flush: crate::settings::StrictFlush::Auto,
                write_budget: crate::write_budget::WriteBudget::None,
            },
            budget_used: None,
            origin_writes: OriginWrites::default(),
            host_records: None,
            codec_samples: crate::advise::SharedSamples::default(),
            shared_budget: None,
            index_memory: None,
        })
    }

    /// More blocks are dirty than are collected at a time, and reclaim writes some to the origin during the lookup. A short list
    /// must not count as complete: `clean_all` would end with blocks still dirty.
    #[test]
    fn an_incomplete_writeback_pass_does_not_count() {
        const MORE: u64 = 300;
        let sim = Sim::new(1);
        let shard = shard(&sim.env());
        sim.block_on(async {
            assert!(shard.map.segments() > 1);
            let zeroes = Entry::same_filled(Location(64), 0).with_dirty(true);
            for block in 0..GATHER_BLOCKS_MAX as u64 + MORE {
                shard.map.insert_alone(LocalBlock(block), zeroes);
            }
            let rescue = async {
                for block in 0..200 {
                    shard.map.clean_alone(LocalBlock(block));
                }
            };
            // The first segment has been searched by then.
            let mut sweep = Sweep::begin(CLEAN_BATCH_BLOCKS_MIN);
            let (result, ()) = join(shard.clean_pass(&mut sweep), rescue).await;
            result.expect("the origin is well");
            assert!(
                shard.dirty_blocks() >= MORE / 2,
                "{} are dirty",
                shard.dirty_blocks()
            );
            let begun = shard.writeback.progress().marks();
            assert_eq!(begun, Marks::default(), "the pass counts");
            shard.clean_pass(&mut sweep).await.expect("the origin is well");
            assert_eq!(shard.dirty_blocks(), 0);
            assert_ne!(
                shard.writeback.progress().marks(),
                begun,
                "the pass does not count"
            );
        });
    }

    /// A sweep over all dirty blocks takes several passes, and the last one has nothing to write. The origin still fails,
    /// so writers that wait for space get an error.
    #[test]
    fn a_pass_that_tries_nothing_does_not_make_an_origin_well() {
        let sim = Sim::new(1);
        let shard = shard(&sim.env());
        sim.block_on(async {
            let zeroes = Entry::same_filled(Location(64), 0).with_dirty(true);
            for block in 0..2 * GATHER_BLOCKS_MAX as u64 {
                shard.map.insert_alone(LocalBlock(block), zeroes);
            }
            shard.origin.device().set_dead(true);
            let (mut sweep, mut empty) = (Sweep::begin(CLEAN_BATCH_BLOCKS_MIN), 0);
            for pass in 0..4 {
                let result = shard.clean_pass(&mut sweep).await;
                empty += u32::from(result.is_ok());
                shard.note_cleaning(result);
                assert!(shard.writeback.progress().is_origin_failing(), "pass {pass}");
            }
            assert_eq!(empty, 1, "none tried nothing");
        });
    }
}
