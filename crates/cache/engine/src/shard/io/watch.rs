//! Watches the part of the origin that its fingerprint covers while the cache is served, so that a start after a crash
//! detects whether the origin was written without the cache.
//!
//! After a clean stop the superblock has the origin's fingerprint. After a crash it has not, and clients change the
//! fingerprint all the time. The rule: *while no intent of a watched stripe is set on the cache device, the fingerprint that
//! was recorded last (see [`crate::host_record::HostRecords::note_origin`]) is the origin's, even after a power cut.* All
//! stripes on which the fingerprint depends are watched. This requires:
//!
//! - Every write to a watched stripe of the origin sets its intent first; the writeback worker does so, too, although recovery
//!   does not need it for those writes.
//! - Intents of watched stripes are cleared only after these steps, in this order: take a ticket, flush the origin, compute
//!   the fingerprint, record it. A fingerprint with a later ticket includes all that an earlier one would, so the later one
//!   may replace it.
//! - If the fingerprint depends on stripes that are not watched, because clients have changed a partition table, these are
//!   watched from now on and nothing is recorded. When the ticket of a recorded fingerprint was taken, every stripe that it
//!   covers was watched, and every writeback run that did not know so had ended.
//! - After a failed recording it is unknown whether it was written: the intents stay set until a later one succeeds.

#![expect(
    clippy::disallowed_types,
    reason = "shards on several threads share it; held for a look at a small set, by rounds of clearing and cleaners"
)]

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of stripes that are watched one by one; if partition tables refer to more, all stripes are watched.
const STRIPES_MAX: usize = 4096;

/// The watched stripes, shared by the shards of a cache. Empty if no host records the fingerprint.
#[derive(Debug, Default)]
pub(in crate::shard) struct Watch(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Stripe numbers of the whole origin.
    stripes: BTreeSet<u64>,
    everything: bool,
    /// Counts fingerprints and writeback runs.
    tickets: u64,
    /// Writeback runs in flight.
    runs: BTreeSet<u64>,
    /// The last ticket when a stripe was added, while runs that began before may be in flight.
    added: Option<u64>,
    /// Fingerprints with tickets up to this one may cover stripes that were not watched yet.
    settled: u64,
}

impl State {
    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }
}

/// A writeback run, from before it asks what is watched until its writes have ended.
pub(in crate::shard) struct Run<'a> {
    watch: &'a Watch,
    number: u64,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let was_running = self.watch.state().runs.remove(&self.number);
        debug_assert!(was_running, "a run ends once");
    }
}

impl Watch {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts watching, before the first write.
    pub(super) fn begin(&self, stripes: &BTreeSet<u64>) {
        self.state().stripes.clone_from(stripes);
    }

    pub(super) fn has(&self, stripe: u64) -> bool {
        let state = self.state();
        state.everything || state.stripes.contains(&stripe)
    }

    /// Registers a writeback run.
    pub(in crate::shard) fn run(&self) -> Run<'_> {
        let mut state = self.state();
        let number = state.ticket();
        state.runs.insert(number);
        drop(state);
        Run { watch: self, number }
    }

    /// A ticket for a fingerprint. Flush the origin after taking it and before computing the fingerprint.
    pub(in crate::shard) fn ticket(&self) -> u64 {
        self.state().ticket()
    }

    /// Whether all stripes that a fingerprint covers were watched when its ticket was taken. The others are watched from now
    /// on.
    pub(super) fn covers(&self, ticket: u64, seen: &BTreeSet<u64>) -> bool {
        let mut state = self.state();
        if !state.everything && !seen.is_subset(&state.stripes) {
            state.stripes.extend(seen);
            state.everything = state.stripes.len() > STRIPES_MAX;
            state.added = Some(state.tickets);
        }
        if let Some(added) = state.added {
            state.settled = state.tickets;
            if state.runs.first().is_none_or(|&run| run > added) {
                state.added = None;
            }
        }
        ticket > state.settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(watch: &Watch, seen: &[u64]) -> bool {
        let ticket = watch.ticket();
        watch.covers(ticket, &seen.iter().copied().collect())
    }

    #[test]
    fn a_look_counts_when_all_that_it_saw_was_watched_before() {
        let watch = Watch::default();
        watch.begin(&BTreeSet::from([0]));
        assert!(watch.has(0) && !watch.has(7));
        let unaware = watch.run();
        assert!(look(&watch, &[0]));
        let early = watch.ticket();
        assert!(!look(&watch, &[0, 7]), "7 was not");
        assert!(watch.has(7));
        let aware = watch.run();
        assert!(!look(&watch, &[0, 7]), "a writeback worker does not know");
        let before_its_end = watch.ticket();
        drop(unaware);
        assert!(!look(&watch, &[0, 7]), "it may have ended just now");
        assert!(look(&watch, &[0, 7]), "this one knows");
        for ticket in [early, before_its_end] {
            assert!(!watch.covers(ticket, &BTreeSet::from([0])), "{ticket}");
        }
        drop(aware);
        assert!(watch.state().runs.is_empty());
    }

    #[test]
    fn tables_that_name_ever_other_places_make_everything_watched() {
        let watch = Watch::default();
        watch.begin(&BTreeSet::from([0]));
        for stripe in 1..=STRIPES_MAX as u64 {
            assert!(!watch.has(stripe));
            assert!(!look(&watch, &[0, stripe]));
        }
        assert!(watch.has(1 << 40));
        assert!(look(&watch, &[1 << 41]));
    }
}
