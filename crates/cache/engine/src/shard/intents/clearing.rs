//! Clearing intents, in rounds: what must be stable before, and what a failed flush leaves in doubt.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceError, Env};
use futures_util::future::{Either, select};

use super::page_of;
use crate::planted::{PlantedBug, planted};
use crate::shard::io::Noted;
use crate::shard::{Platform, Shard};
use crate::stats::count;
use crate::units::{LocalBlock, STRIPE_BLOCKS};

/// Time between two rounds of clearing: a stripe's bit stays for one to two of these after its last write.
const CLEAR_PERIOD: Duration = Duration::from_secs(5);
/// Time after a note that failed until the next.
const NOTE_PAUSE: Duration = Duration::from_secs(60);

impl<P: Platform> Shard<P> {
    /// Clears bits, in rounds, until the shard stops.
    pub(in crate::shard) async fn clear_task(shard: Rc<Self>) {
        while !shard.is_stopping() && !shard.cache.is_fenced() {
            if shard.intents.set_count() == 0 {
                shard.intents.changed.notified().await;
                continue;
            }
            {
                let pause = std::pin::pin!(shard.env.sleep(CLEAR_PERIOD));
                let mut pause = pause;
                loop {
                    let changed = std::pin::pin!(shard.intents.changed.notified());
                    match select(pause, changed).await {
                        Either::Left(_) => break,
                        Either::Right((_, rest)) => pause = rest,
                    }
                    if shard.is_stopping() || shard.cache.is_fenced() {
                        return;
                    }
                }
            }
            if shard.is_stopping() {
                return;
            }
            shard.clear_intents().await;
        }
    }

    /// One round: the stripes that were not written since the last one, if nothing about them is open.
    pub(in crate::shard) async fn clear_intents(self: &Rc<Self>) {
        let intents = &self.intents;
        let failures = self.doubt_what_a_flush_lost();
        let candidates: Vec<u64> = {
            let mut bits = intents.bits.borrow_mut();
            let told = self.env.now() >= intents.note_again.get();
            let settled = |stripe: u64| !self.has_obsolete(stripe) && (told || !self.is_watched(stripe));
            let candidates = bits.idle().filter(|&stripe| settled(stripe)).collect();
            bits.begin_round(self.id.after_crash);
            candidates
        };
        if candidates.is_empty() {
            return;
        }
        let ticket = self.origin.shared().watch().ticket();
        let flushed = planted(PlantedBug::IntentClearedUnflushed) || self.flush_origin(failures).await;
        let logged = planted(PlantedBug::IntentClearedBeforeLog) || self.make_log_stable().await;
        if !flushed || !logged {
            return;
        }
        let watched = candidates.iter().any(|&stripe| self.is_watched(stripe));
        let noted = watched && self.noted(ticket).await;
        let mut pages = Vec::new();
        let permit = intents.pages().await;
        if self.cache.is_fenced() {
            // Every bit was set, and must stay: writes go to the origin without one from now on.
            return;
        }
        {
            let mut bits = intents.bits.borrow_mut();
            for stripe in candidates {
                let untold = !noted && self.is_watched(stripe);
                let cleared = !self.has_obsolete(stripe) && !untold && bits.clear_if_idle(stripe);
                if cleared && pages.last() != Some(&page_of(stripe)) {
                    pages.push(page_of(stripe));
                }
            }
        }
        for page in pages {
            // Not stable, for a bit too many does no harm; not retried, for the same reason.
            if let Err(error) = self.write_intents(page, &[], false).await {
                self.cache_error(&error);
            }
        }
        drop(permit);
    }

    /// A flush of the origin that failed may have taken with it what was written since the one before, and no later one
    /// brings that back: what is set by now is never cleared in this opening. Where no intents are set, for a crash leaves
    /// nothing of the cache, a clean stop must know of what was written all the same. Returns how many failed so far.
    pub(in crate::shard) fn doubt_what_a_flush_lost(&self) -> u64 {
        let failures = self.origin.flush_failures();
        let mut bits = self.intents.bits.borrow_mut();
        bits.note_failures(failures, self.id.after_crash);
        failures
    }

    /// Whether the host has noted what the origin begins with. Where it cannot, it is not asked again for a while, and
    /// nothing is flushed for its sake.
    async fn noted(&self, ticket: u64) -> bool {
        let outcome = self.origin.note(ticket).await;
        if outcome == Noted::Failed {
            self.intents.note_again.set(self.env.now().after(NOTE_PAUSE));
        }
        outcome == Noted::Yes
    }

    fn has_obsolete(&self, stripe: u64) -> bool {
        let range = LocalBlock(stripe * STRIPE_BLOCKS)..LocalBlock((stripe + 1) * STRIPE_BLOCKS);
        self.map.any_stale_in(range)
    }

    /// Flushes the origin for our own sake. A failure is kept for the next one who asks for a flush: a system may
    /// report it only once.
    async fn flush_origin(&self, failures: u64) -> bool {
        match self.origin.flush_since(failures).await {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(shard = self.id.number, %error, "the origin failed a flush");
                count(&self.stats.counters.origin_errors, 1);
                self.origin.leave_untold(error);
                false
            }
        }
    }

    /// After a clean stop nothing is in flight: clears every bit that is set. (But for those of which a failed flush may
    /// have lost writes, and watched ones of which the host cannot be told: until the superblock says that the stop was
    /// clean, this is what a crash leaves.)
    pub(in crate::shard) async fn clear_all_intents(&self) -> Result<(), DeviceError> {
        let mut watched = self.intents.set_stripes();
        watched.retain(|&stripe| self.is_watched(stripe));
        if !watched.is_empty() {
            let (ticket, failures) = (
                self.origin.shared().watch().ticket(),
                self.origin.flush_failures(),
            );
            if self.origin.flush_since(failures).await.is_ok() && self.noted(ticket).await {
                watched.clear();
            }
        }
        let permit = self.intents.pages().await;
        if self.cache.is_fenced() {
            // Every bit was set, and must stay.
            return Ok(());
        }
        let touched = self.intents.bits.borrow_mut().clear_for_stop(watched);
        let pages: BTreeSet<u64> = touched.into_iter().map(page_of).collect();
        for page in pages {
            self.write_intents(page, &[], false).await?;
        }
        drop(permit);
        Ok(())
    }
}
