//! Watching what the origin begins with while it is served, so that a start after a crash can tell whether somebody wrote
//! there past the cache.
//!
//! After a clean stop the superblock has the origin's fingerprint. A crash leaves no such moment, and what clients write
//! changes it all the time. The rule: *while no intent of a watched stripe is set on the cache device, the fingerprint
//! that was noted last (see [`crate::witness::Witness::note_origin`]) is the one of the origin, also after a power cut.*
//! Watched are all stripes on which that fingerprint depends. For that:
//!
//! - Whoever writes to a watched stripe of the origin sets its intent before; the cleaner, too, though recovery knows
//!   of its writes otherwise.
//! - Intents of watched stripes are cleared only after the origin was flushed, then looked at, and the outcome noted.
//!   Looks carry tickets, taken before: a later look has seen all that an earlier one was to see, so it does no harm
//!   that the later one counts.
//! - Where a look finds that the fingerprint depends on stripes that were not watched, for clients have changed a table
//!   of partitions, these are watched from now on and nothing is noted: a look that is noted has begun after every
//!   stripe that it saw was watched, and after the last run of a cleaner that did not know of it.

#![expect(
    clippy::disallowed_types,
    reason = "shards on several threads share it; held for a look at a small set, by rounds of clearing and cleaners"
)]

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flaz_device::Env;
use futures_util::future::{Either, select};

use super::{Platform, Shard};
use crate::fingerprint::{Fingerprint, fingerprint};
use crate::planted::{PlantedBug, planted};
use crate::units::{LocalBlock, STRIPE_BLOCKS};

/// Stripes that are watched one by one; where tables of partitions have named more, all are.
const STRIPES_MAX: usize = 4096;
/// How long the host has for a note.
const NOTE_WITHIN: Duration = Duration::from_secs(10);

/// What the shards of a cache watch together. Of a cache whose origin nobody notes: nothing.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Of the whole origin.
    stripes: BTreeSet<u64>,
    everything: bool,
    /// Runs of cleaners may be under way that began before the last stripe was added.
    unsettled: bool,
    /// Looks with tickets up to this one may have seen what was not watched yet.
    settled: u64,
    tickets: u64,
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

    fn has(&self, stripe: u64) -> bool {
        let state = self.state();
        state.everything || state.stripes.contains(&stripe)
    }

    /// A number for a look that begins now.
    fn ticket(&self) -> u64 {
        let mut state = self.state();
        state.tickets += 1;
        state.tickets
    }

    /// Whether all that a look saw has been watched since before it began. What has not is watched from now on.
    fn covers(&self, ticket: u64, seen: &BTreeSet<u64>, cleaning: impl FnOnce() -> bool) -> bool {
        let mut state = self.state();
        if !state.everything && !seen.is_subset(&state.stripes) {
            state.stripes.extend(seen);
            state.everything = state.stripes.len() > STRIPES_MAX;
            state.unsettled = true;
        }
        if state.unsettled {
            state.unsettled = cleaning();
            state.settled = state.tickets;
        }
        ticket > state.settled
    }
}

impl<P: Platform> Shard<P> {
    /// Whether the fingerprint of the origin depends on a stripe of this shard.
    pub(super) fn is_watched(&self, stripe: u64) -> bool {
        let block = self.global(LocalBlock(stripe * STRIPE_BLOCKS));
        self.origin_writes.watch().has(block.0 / STRIPE_BLOCKS)
    }

    /// Notes what the origin begins with now, for some of the watched stripes, whose writes have ended and are stable.
    /// False: that could not be, and the intents of watched stripes must stay.
    pub(super) async fn note_origin(&self) -> bool {
        let Some(witness) = &self.witness else { return true };
        if planted(PlantedBug::OriginNotNoted) {
            return true;
        }
        let watch = self.origin_writes.watch();
        let ticket = watch.ticket();
        let Fingerprint { value, stripes } = match fingerprint(&*self.origin).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(shard = self.number, %error, "what the origin begins with cannot be read");
                return false;
            }
        };
        if !watch.covers(ticket, &stripes, || self.origin_writes.cleaning()) {
            return false;
        }
        let late = pin!(self.env.sleep(NOTE_WITHIN));
        match select(witness.note_origin(ticket, value), late).await {
            Either::Left((noted, _)) => noted,
            Either::Right(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(watch: &Watch, seen: &[u64], cleaning: bool) -> bool {
        let ticket = watch.ticket();
        watch.covers(ticket, &seen.iter().copied().collect(), || cleaning)
    }

    #[test]
    fn a_look_counts_when_all_that_it_saw_was_watched_before() {
        let watch = Watch::default();
        watch.begin(&BTreeSet::from([0]));
        assert!(watch.has(0) && !watch.has(7));
        assert!(look(&watch, &[0], true));
        let early = watch.ticket();
        assert!(!look(&watch, &[0, 7], true), "7 was not");
        assert!(watch.has(7));
        assert!(!look(&watch, &[0, 7], true), "a cleaner may not know");
        let before_its_end = watch.ticket();
        assert!(!look(&watch, &[0, 7], false), "it may have ended just now");
        assert!(look(&watch, &[0, 7], true));
        for ticket in [early, before_its_end] {
            assert!(!watch.covers(ticket, &BTreeSet::from([0]), || false), "{ticket}");
        }
    }

    #[test]
    fn tables_that_name_ever_other_places_make_everything_watched() {
        let watch = Watch::default();
        watch.begin(&BTreeSet::from([0]));
        for stripe in 1..=STRIPES_MAX as u64 {
            assert!(!watch.has(stripe));
            assert!(!look(&watch, &[0, stripe], false));
        }
        assert!(watch.has(1 << 40));
        assert!(look(&watch, &[1 << 41], false));
    }
}
