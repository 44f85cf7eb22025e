//! Setting intents: what writers wait for.

use std::rc::Rc;

use flaz_device::{DeviceError, Env};

use super::{Intent, page_of};
use crate::format::geometry::PAGE_BYTES;
use crate::format::intent::{DurableMark, INTENT_STRIPES};
use crate::planted::{PlantedBug, planted};
use crate::settings::AfterCrash;
use crate::shard::{Platform, Shard};
use crate::stats::count;
use crate::units::{LocalBlock, STRIPE_BLOCKS, Sequence};
use crate::volume::IoError;

/// Part of their time that writers may spend waiting for intents, one in so many. Sets that follow each other so closely
/// that they cost more are a workload that goes everywhere: then the stripes around those that are wanted are set as
/// well, twice as many each time, for it will come to them anyway. (A crash costs the blocks of all that are set. So
/// where setting is cheap beside the writes, as before a hard disk, stripes are set alone.)
const WAIT_PART: u32 = 20;
/// Close sets in a row before that begins, and most that are counted.
const CLOSE_SETS_ALONE: u32 = 16;
const CLOSE_SETS_MAX: u32 = CLOSE_SETS_ALONE + 12;
/// Most stripes that are set around a wanted one, with it: a sector.
const GROUP_MAX: u64 = INTENT_STRIPES;

impl<P: Platform> Shard<P> {
    /// Returns when a write to the stripe of `block` may go to the origin: its bit is stable on the cache device, or
    /// the cache device has been fenced. The intent is to be dropped after the write's records are queued.
    pub(in crate::shard) async fn intend(&self, block: LocalBlock) -> Intent<'_> {
        let stripe = block.0 / STRIPE_BLOCKS;
        let intents = &self.intents;
        let intent = intents.enter(stripe, true);
        let mut waited = false;
        loop {
            let ready = if self.id.after_crash == AfterCrash::Cold {
                true
            } else if self.cache.is_fenced() {
                self.cache.is_settled()
            } else {
                intents.set.borrow().has(stripe)
            };
            if ready || planted(PlantedBug::IntentNotSet) {
                return intent;
            }
            if self.cache.is_fenced() {
                intents.wishes.notify_one();
            } else {
                let mut wanted = intents.wanted.borrow_mut();
                if !wanted.contains(&stripe) {
                    wanted.push(stripe);
                    intents.wishes.notify_one();
                }
            }
            count(&self.stats.counters.intent_waits, u64::from(!waited));
            waited = true;
            intents.changed.notified().await;
        }
    }

    /// The same for a copy that the cleaner brings to the origin. Recovery needs none there; whoever looks at a watched
    /// stripe does.
    ///
    /// # Errors
    /// The cache device fails. Once it is fenced, what it says of this stripe is not known.
    pub(in crate::shard) async fn intend_cleaning(
        self: &Rc<Self>,
        block: LocalBlock,
    ) -> Result<Option<Intent<'_>>, IoError> {
        let stripe = block.0 / STRIPE_BLOCKS;
        if !self.is_watched(stripe) {
            return Ok(None);
        }
        let intent = self.intents.enter(stripe, false);
        // Not by way of the task: it may have ended with the shard, which still cleans what is in its way.
        let set = || self.intents.set.borrow().has(stripe);
        if !set() && !self.cache.is_fenced() {
            if let Err(error) = self.set_intents(&[stripe]).await {
                return Err(IoError::CacheFailed(format!(
                    "an intent could not be written: {error}"
                )));
            }
            self.intents.changed.notify_all();
        }
        // In memory all are set then.
        if self.cache.is_fenced() {
            return Err(self.cache_failed());
        }
        Ok(Some(intent))
    }

    pub(super) fn intent_position(&self, page: u64) -> u64 {
        self.id.geometry.shard_intent_offset(self.id.number) + page * PAGE_BYTES as u64
    }

    /// Number of this shard's first sector in the whole bitmap.
    pub(super) fn first_intent_sector(&self) -> u64 {
        self.id.geometry.shard_intent_len() / 512 * u64::from(self.id.number)
    }

    /// Sets the bits that writers wait for, all that are there at a time with one write.
    pub(in crate::shard) async fn intent_task(shard: Rc<Self>) {
        loop {
            let wanted = std::mem::take(&mut *shard.intents.wanted.borrow_mut());
            if shard.cache.is_fenced() || (wanted.is_empty() && shard.is_stopping()) {
                return;
            }
            if wanted.is_empty() {
                shard.intents.wishes.notified().await;
                continue;
            }
            if shard.set_intents(&wanted).await.is_err() {
                shard.fence("an intent could not be written");
            }
            shard.intents.changed.notify_all();
        }
    }

    /// The wanted stripes, and more around them where sets follow each other closely. Groups end where sectors do.
    fn widen(&self, wanted: &[u64]) -> Vec<u64> {
        let intents = &self.intents;
        let now = self.env.now();
        let apart = now.since(intents.last_set.replace(now));
        // Those that wait for this set, and all that were at it since the last one.
        let (waiting, writers) = (wanted.len() as u32, intents.clients.get().max(1));
        let close = intents.last_took.get() * waiting * WAIT_PART > apart * writers;
        let run = if close {
            (intents.close_sets.get() + 1).min(CLOSE_SETS_MAX)
        } else {
            intents.close_sets.get() / 2
        };
        intents.close_sets.set(run);
        let group = (1 << run.saturating_sub(CLOSE_SETS_ALONE)).min(GROUP_MAX);
        let mut all: Vec<u64> = wanted
            .iter()
            .flat_map(|&stripe| {
                let sector = stripe / INTENT_STRIPES * INTENT_STRIPES;
                let start = sector + (stripe - sector) / group * group;
                start..(start + group).min(sector + INTENT_STRIPES).min(intents.stripes)
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Sets bits, and more around them, stable on return.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn set_intents(self: &Rc<Self>, wanted: &[u64]) -> Result<(), DeviceError> {
        let wanted = &self.widen(wanted)[..];
        let mut pages: Vec<u64> = wanted.iter().map(|&stripe| page_of(stripe)).collect();
        pages.sort_unstable();
        pages.dedup();
        let started = self.env.now();
        let permit = self.intents.sectors.acquire(1).await;
        for page in pages {
            if let Err(error) = self.write_intents(page, wanted, true).await {
                self.cache_error(&error);
                return Err(error);
            }
            let mut set = self.intents.set.borrow_mut();
            for &stripe in wanted.iter().filter(|&&stripe| page_of(stripe) == page) {
                set.set(stripe);
            }
        }
        drop(permit);
        self.intents.last_took.set(self.env.now().since(started));
        Ok(())
    }

    /// Writes a page of the bitmap: what is set, and `also`. The caller holds the permit.
    pub(in crate::shard) async fn write_intents(
        &self,
        page: u64,
        also: &[u64],
        stable: bool,
    ) -> Result<(), DeviceError> {
        let buf = self.intents.page(
            page,
            self.id.epoch.0,
            &self.intents.set.borrow(),
            also,
            self.first_intent_sector(),
        );
        let marks = self.intents.durable.get().map(|mark| mark.fill);
        let marked = self.stable_mark.wanted();
        // From now on, for a write that fails may have landed.
        self.intents.on_medium.borrow_mut().extend(marks);
        count(&self.stats.counters.intent_writes, 1);
        let fua = stable && !planted(PlantedBug::IntentNotStable);
        let position = self.intent_position(page);
        // With every bit set it is the mark of a device that is fenced.
        let is_mark = self.intents.set_count() == self.intents.stripes;
        let write = async {
            match is_mark {
                true => self.cache.write_fenced(position, buf, fua).await.1,
                false => self.cache.write(position, buf, fua).await.1,
            }
        };
        let result = match stable {
            true => self.cache.stable(write).await,
            false => write.await,
        };
        if result.is_ok() {
            self.stable_mark.note_written(marked, stable);
        }
        if result.is_ok() && stable {
            // It is the latest.
            self.intents.unread.set(false);
            let mut on_medium = self.intents.on_medium.borrow_mut();
            on_medium.clear();
            on_medium.extend(marks);
        }
        result
    }

    /// Writes a page for the sake of its marks, unless the position of this number is on the device already.
    ///
    /// # Errors
    /// The device's.
    pub(in crate::shard) async fn write_marks(&self, position: u64, stable: bool) -> Result<(), DeviceError> {
        let permit = self.intents.sectors.acquire(1).await;
        if planted(PlantedBug::StableMarkSkipped) {
            self.stable_mark.note_written(position, true);
        }
        // Once the device is fenced, its last word is that every bit is set.
        let result = match self.cache.is_fenced() || self.stable_mark.covers(position, stable) {
            true => Ok(()),
            false => self.write_intents(0, &[], stable).await,
        };
        drop(permit);
        result
    }

    /// Before a region is made void: no mark may demand that it be there. (With a younger region in its ring none does,
    /// but that one may not be there yet.)
    pub(in crate::shard) async fn forget_mark(&self, fill: Sequence) -> Result<(), DeviceError> {
        let intents = &self.intents;
        intents.voiding.set(fill);
        let mut marks = intents.durable.get();
        for mark in marks.iter_mut().filter(|mark| mark.fill == fill) {
            *mark = DurableMark::default();
        }
        intents.set_durable(marks);
        if !intents.on_medium.borrow().contains(&fill) && !intents.unread.get() {
            return Ok(());
        }
        let permit = intents.sectors.acquire(1).await;
        let result = self.write_intents(0, &[], true).await;
        drop(permit);
        result
    }
}
