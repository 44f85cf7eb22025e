//! Room for dirty blocks: how many there may be, who waits for fewer, and for how long while nothing gets through to the
//! origin.

use std::sync::atomic::Ordering;
use std::time::Duration;

use flaz_device::{Env, Nanos};
use futures_util::future::select;

use super::{Counted, Platform, Shard};
use crate::stats::{count, raise};
use crate::volume::IoError;

/// How long a writer waits for room while the origin fails.
const FAILING_WAIT_MAX: Duration = Duration::from_secs(10);
/// Regions that dirty blocks may never count on: two open ones, the reserved one, one being reclaimed.
const REGIONS_APART: u32 = 4;
/// What a dirty block takes on the device at most: fragment, record, and sectors touched at its ends.
const DIRTY_BLOCK_BYTES: u64 = 4096 + 8 + 8 + 504;

/// What fails of cleaning: over when this, or what comes after it, succeeds once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failing {
    /// Dirty blocks cannot be read.
    Reads,
    /// The origin fails writes.
    Writes,
    /// The origin fails flushes.
    Flushes,
}

/// For each of [`Failing`] whether it fails: nothing that is behind it has succeeded since.
pub(super) type Stuck = [Option<Failure>; 3];

#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    since: Nanos,
    /// What was tried after that has failed as well.
    again: bool,
}

/// Room for blocks that are about to become dirty; given back when dropped, for by then they are counted.
pub(super) struct DirtyRoom<'a, P: Platform> {
    shard: &'a Shard<P>,
    bytes: u64,
}

impl<P: Platform> Drop for DirtyRoom<'_, P> {
    fn drop(&mut self) {
        let reserved = &self.shard.dirty_reserved;
        reserved.set(reserved.get() - self.bytes);
        // What became dirty takes less, as a rule.
        self.shard.dirty_room.notify_all();
    }
}

impl<P: Platform> Shard<P> {
    /// Number of blocks that are newer than the origin.
    #[must_use]
    pub fn dirty_blocks(&self) -> u64 {
        self.index.borrow().dirty_blocks()
    }

    /// Bytes of the device that dirty blocks take, and will take.
    fn dirty_bytes(&self) -> u64 {
        let index = self.index.borrow();
        index.dirty_device_bytes() + index.dirty_blocks() * 8 + self.dirty_reserved.get()
    }

    /// Bytes of the device that dirty blocks may take.
    pub(super) fn dirty_limit(&self) -> u64 {
        let geometry = &self.geometry;
        let regions = geometry.regions_per_shard.saturating_sub(REGIONS_APART).max(1);
        let percent = self.settings.borrow().dirty_percent;
        let percent = u64::from(percent.clamp(1, crate::settings::DIRTY_PERCENT_MAX));
        (u64::from(regions) * geometry.region_bytes * percent / 100).max(DIRTY_BLOCK_BYTES)
    }

    /// Blocks that may become dirty at a time.
    pub(super) fn dirty_blocks_max(&self) -> usize {
        (self.dirty_limit() / DIRTY_BLOCK_BYTES).max(1) as usize
    }

    /// Waits until so many more blocks may be dirty.
    ///
    /// # Errors
    /// The cache device was given up, or nothing has got through to the origin for [`FAILING_WAIT_MAX`].
    pub(super) async fn dirty_room(&self, blocks: usize) -> Result<DirtyRoom<'_, P>, IoError> {
        let bytes = blocks as u64 * DIRTY_BLOCK_BYTES;
        let started = self.env.now();
        let mut waited = false;
        loop {
            if self.failed.get() {
                return Err(self.cache_failed());
            }
            let used = self.dirty_bytes();
            if used == 0 || used + bytes <= self.dirty_limit() {
                self.dirty_reserved.set(self.dirty_reserved.get() + bytes);
                raise(&self.stats.peaks.dirty_bytes, used + bytes);
                return Ok(DirtyRoom { shard: self, bytes });
            }
            let now = self.env.now();
            let failures = self.clean_stuck.get().into_iter().flatten();
            let patience = failures
                .filter(|failure| failure.again)
                .map(|failure| FAILING_WAIT_MAX.saturating_sub(now.since(failure.since.max(started))))
                .min();
            if patience.is_some_and(|patience| patience.is_zero()) {
                let why = self.clean_failure.borrow().clone().unwrap_or_default();
                return Err(IoError::CacheFailed(format!(
                    "as much is dirty as may be, and none of it can be brought to the origin: {why}"
                )));
            }
            count(&self.stats.counters.dirty_waits, u64::from(!waited));
            waited = true;
            // A writer may go away while it waits.
            let _hurry = Counted::new(&self.hurrying);
            self.clean_wanted.notify_one();
            let room = std::pin::pin!(self.dirty_room.notified());
            match patience {
                // An origin may take longer for an error than a writer waits.
                Some(patience) => {
                    select(room, std::pin::pin!(self.env.sleep(patience))).await;
                }
                None => room.await,
            }
        }
    }

    /// How urgent cleaning is: 0 (wait for a quiet moment) to 1 (writers wait).
    pub(super) fn urgency(&self) -> f64 {
        if self.hurrying.load(Ordering::Relaxed) > 0 {
            return 1.0;
        }
        let share = self.dirty_bytes() as f64 / self.dirty_limit() as f64;
        ((share - 0.25) / 0.75).clamp(0.0, 1.0)
    }

    /// All that was dirty is on the origin, or the pass met nothing that fails.
    pub(super) fn note_well(&self) {
        self.clean_stuck.set(Stuck::default());
        if self.clean_failure.take().is_some() {
            tracing::info!(shard = self.number, "the cleaner goes on");
        }
    }

    /// What was begun then has failed. At once, and not at the end of a pass: an origin may take half a minute for every
    /// error.
    pub(super) fn note_failing(&self, error: &IoError, what: Failing, begun: Nanos) {
        let mut stuck = self.clean_stuck.get();
        let failure = &mut stuck[what as usize];
        let told = failure.is_some_and(|failure| failure.again);
        let since = failure.map_or_else(|| self.env.now(), |failure| failure.since);
        let again = told || failure.is_some() && begun >= since;
        *failure = Some(Failure { since, again });
        self.clean_stuck.set(stuck);
        if again && !told {
            // From now on there is an end to how long writers wait.
            self.dirty_room.notify_all();
        }
        if what != Failing::Reads {
            self.clean_damaged.set(false);
        }
        self.tell_failure(error);
    }

    pub(super) fn tell_failure(&self, error: &IoError) {
        if self.clean_failure.replace(Some(error.to_string())).is_none() {
            tracing::error!(
                shard = self.number,
                "the cleaner cannot bring dirty blocks to the origin and keeps trying: {error}"
            );
        }
    }

    /// Some of it gets through, so writers wait for it as they do where nothing fails. Written is not flushed: an origin
    /// that fails flushes alone takes every write.
    pub(super) fn note_progress(&self, what: Failing) {
        let mut stuck = self.clean_stuck.get();
        stuck[..=what as usize].fill(None);
        self.clean_stuck.set(stuck);
    }

    /// The origin fails again and again, and nothing gets through.
    pub(super) fn is_origin_failing(&self) -> bool {
        let stuck = self.clean_stuck.get();
        [Failing::Writes, Failing::Flushes]
            .into_iter()
            .any(|what| stuck[what as usize].is_some_and(|failure| failure.again))
    }
}
