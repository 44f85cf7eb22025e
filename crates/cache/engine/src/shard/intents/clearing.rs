//! Clears intents in rounds, and keeps those that a failed flush leaves in doubt.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceError, Env};
use futures_util::future::{Either, select};

use super::page_of;
use crate::planted::{PlantedBug, planted};
use crate::shard::io::Noted;
use crate::shard::{Platform, Shard};
use crate::units::{LocalBlock, STRIPE_BLOCKS};

/// Time between two rounds: a bit stays set for one to two rounds after the last write to its stripe.
const CLEAR_PERIOD: Duration = Duration::from_secs(5);
/// Time after a failed fingerprint record until the next attempt.
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

    /// One round: clears the stripes that were not written since the last one and have no write in flight.
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
            // All bits are set and must stay: writes go to the origin without intents from now on.
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
            // Neither stable nor retried: a superfluous bit does no harm.
            if let Err(error) = self.write_intents(page, &[], false).await {
                self.cache_error(&error);
            }
        }
        drop(permit);
    }

    /// A failed flush of the origin may have lost writes since the previous flush, and no later flush restores them: bits that
    /// are set now are never cleared in this opening. If the cache sets no intents because nothing is recovered after a crash, a
    /// clean stop must still know of those writes. Returns the number of failed flushes so far.
    pub(in crate::shard) fn doubt_what_a_flush_lost(&self) -> u64 {
        let failures = self.origin.flush_failures();
        let mut bits = self.intents.bits.borrow_mut();
        bits.note_failures(failures, self.id.after_crash);
        failures
    }

    /// Whether the host has recorded the origin's fingerprint. After a failure it is not asked for a while, and the origin is not
    /// flushed for it.
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

    /// Flushes the origin for the engine itself. A failure is kept for the next client that asks for a flush: the operating
    /// system may report it only once.
    async fn flush_origin(&self, failures: u64) -> bool {
        match self.origin.flush_since(failures).await {
            Ok(()) => true,
            Err(error) => {
                self.origin.note_error(&error);
                self.origin.leave_untold(error);
                false
            }
        }
    }

    /// At a clean stop no write is in flight: clears every bit. Bits stay set where a failed flush may have lost writes, and where
    /// the stripe is watched and the host cannot record the fingerprint: until the superblock is marked clean, a crash would
    /// find them.
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
            // All bits are set and must stay.
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
