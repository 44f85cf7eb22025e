//! Sets intents before writes.

use std::rc::Rc;

use flaz_device::{DeviceError, Env};

use super::{Intent, page_of};
use crate::planted::{PlantedBug, planted};
use crate::settings::AfterCrash;
use crate::shard::{Platform, Shard};
use crate::stats::count;
use crate::units::{LocalBlock, STRIPE_BLOCKS};
use crate::volume::IoError;

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
                intents.bits.borrow().is_set(stripe)
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

    /// The same for a block that writeback writes to the origin. Recovery does not need it, but the check of the origin's
    /// fingerprint does.
    ///
    /// # Errors
    /// The cache device fails. After the fence, the bit of this stripe on the device is unknown.
    pub(in crate::shard) async fn intend_cleaning(
        self: &Rc<Self>,
        block: LocalBlock,
    ) -> Result<Option<Intent<'_>>, IoError> {
        let stripe = block.0 / STRIPE_BLOCKS;
        if !self.is_watched(stripe) {
            return Ok(None);
        }
        let intent = self.intents.enter(stripe, false);
        // Not through the task: it may have ended with the shard, while reclaim still writes dirty blocks.
        let set = || self.intents.bits.borrow().is_set(stripe);
        if !set() && !self.cache.is_fenced() {
            if let Err(error) = self.set_intents(&[stripe]).await {
                return Err(IoError::CacheFailed(format!(
                    "an intent could not be written: {error}"
                )));
            }
            self.intents.changed.notify_all();
        }
        // All bits in memory are set then.
        if self.cache.is_fenced() {
            return Err(self.cache_failed());
        }
        Ok(Some(intent))
    }

    /// Sets the bits that writers wait for, all of them with one write.
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

    /// Sets bits and neighbouring ones, stable on return.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn set_intents(self: &Rc<Self>, wanted: &[u64]) -> Result<(), DeviceError> {
        let intents = &self.intents;
        let stripes = intents.bits.borrow().stripes();
        let now = self.env.now();
        let wanted = &intents
            .widening
            .widen(now, wanted, intents.clients.get(), stripes)[..];
        let mut pages: Vec<u64> = wanted.iter().map(|&stripe| page_of(stripe)).collect();
        pages.sort_unstable();
        pages.dedup();
        let started = self.env.now();
        let permit = self.intents.pages().await;
        for page in pages {
            if let Err(error) = self.write_intents(page, wanted, true).await {
                self.cache_error(&error);
                return Err(error);
            }
            let mut bits = intents.bits.borrow_mut();
            for &stripe in wanted.iter().filter(|&&stripe| page_of(stripe) == page) {
                bits.set(stripe);
            }
        }
        drop(permit);
        intents.widening.note_took(self.env.now().since(started));
        Ok(())
    }
}
