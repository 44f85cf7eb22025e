//! Watching what the origin begins with while it is served, so that a start after a crash can tell whether somebody wrote
//! there past the cache.
//!
//! After a clean stop the superblock has the origin's fingerprint. A crash leaves no such moment, and what clients write
//! changes it all the time. The rule: *while no intent of a watched stripe is set on the cache device, the fingerprint
//! that was noted last (see [`crate::host_record::HostRecords::note_origin`]) is the one of the origin, also after a power cut.*
//! Watched are all stripes on which that fingerprint depends. For that:
//!
//! - Whoever writes to a watched stripe of the origin sets its intent before; the worker, too, though recovery knows
//!   of its writes otherwise.
//! - Intents of watched stripes are cleared only after a ticket was taken, the origin flushed and looked at, and the
//!   outcome noted, in this order. A look with a later ticket has seen all that an earlier one was to see, so it does no
//!   harm that the later one counts.
//! - Where a look finds that the fingerprint depends on stripes that were not watched, for clients have changed a table
//!   of partitions, these are watched from now on and nothing is noted: the ticket of a look that is noted was taken when
//!   every stripe that it saw was watched, and every run of a writeback worker that did not know of it had ended.
//! - Of a note that fails nobody knows whether it landed: the intents stay until a later one succeeds.

#![expect(
    clippy::disallowed_types,
    reason = "shards on several threads share it; held for a look at a small set, by rounds of clearing and cleaners"
)]

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Stripes that are watched one by one; where tables of partitions have named more, all are.
const STRIPES_MAX: usize = 4096;

/// What the shards of a cache watch together. Of a cache whose origin nobody notes: nothing.
#[derive(Debug, Default)]
pub(in crate::shard) struct Watch(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Of the whole origin.
    stripes: BTreeSet<u64>,
    everything: bool,
    /// Counts looks and runs of writeback workers.
    tickets: u64,
    /// Runs of writeback workers under way.
    runs: BTreeSet<u64>,
    /// The last ticket when a stripe was added, while runs may be under way that began before.
    added: Option<u64>,
    /// Looks with tickets up to this one may have seen what was not watched yet.
    settled: u64,
}

impl State {
    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }
}

/// A run of a writeback worker, from before it asks what is watched until its writes have ended.
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
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins, before anybody writes.
    pub(super) fn begin(&self, stripes: &BTreeSet<u64>) {
        self.state().stripes.clone_from(stripes);
    }

    pub(super) fn has(&self, stripe: u64) -> bool {
        let state = self.state();
        state.everything || state.stripes.contains(&stripe)
    }

    /// A run of a writeback worker begins.
    pub(in crate::shard) fn run(&self) -> Run<'_> {
        let mut state = self.state();
        let number = state.ticket();
        state.runs.insert(number);
        drop(state);
        Run { watch: self, number }
    }

    /// A number for a look. The origin is to be flushed after it was taken, and before the look.
    pub(in crate::shard) fn ticket(&self) -> u64 {
        self.state().ticket()
    }

    /// Whether all that a look saw was watched when its ticket was taken. What was not is watched from now on.
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
