//! Writeback: the dirty limit, waiting writers, and the worker's progress. ([`super::writeback_worker`] does the work.)
//!
//! Invariants:
//! - Dirty bytes never exceed the limit that a permit was given for: see [`limit`].
//! - No two writes of one block to the origin are in flight at a time, because the older one could land last: a run of
//!   blocks holds its range with [`Writeback::enter_run`].
//! - Once there are dirty records on the device ([`Writeback::has_dirty_records`]), that stays set in this opening.
//! - A writer waits for the worker only while the worker may still make progress: see [`progress`].

mod age;
mod limit;
mod progress;

use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

use flaz_device::local::{Notify, Permit, Semaphore};
use flaz_device::{Env, Nanos};
use futures_util::future::select;

use super::locks::{Lock, RangeLocks};
use crate::stats::{Stats, count, raise};
use crate::units::LocalBlock;
use crate::volume::IoError;
use age::DirtyAge;
use limit::Reserved;
use progress::Progress;

use limit::DirtyPermit;
pub(super) use limit::{Level, blocks_max, bytes_of, limit_bytes};
#[cfg(test)]
pub(super) use progress::Marks;
pub(super) use progress::{Failing, LEFT_DAMAGED};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Writeback {
    /// The superblock permits dirty blocks.
    permitted: Cell<bool>,
    /// There may be dirty records on the device.
    has_dirty_records: Cell<bool>,
    reserved: Reserved,
    progress: Progress,
    age: DirtyAge,
    /// Runs of blocks being written to the origin.
    runs: RangeLocks,
    /// For the run that waits for its turn at the origin.
    next_run: Semaphore,
    /// Number of writes in flight that may leave dirty blocks.
    writers: Cell<u64>,
    /// Number of writers that wait for space, and of requests to write back everything.
    hurrying: Cell<u64>,
    /// Work for the worker.
    wanted: Notify,
    /// Less is dirty or reserved, or the dirty limit or the wait limit of writers has changed.
    room: Notify,
    /// A batch or a pass has ended.
    progressed: Notify,
}

/// Is counted until it is dropped: a task that waits for the worker, or a write that may leave dirty blocks.
#[derive(Debug)]
pub(super) struct Counted<'a>(&'a Cell<u64>);

impl<'a> Counted<'a> {
    fn new(count: &'a Cell<u64>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        assert!(self.0.get() > 0, "counted in pairs");
        self.0.set(self.0.get() - 1);
    }
}

impl Writeback {
    /// For shard `shard`.
    pub(super) fn new(shard: u32) -> Self {
        Self {
            permitted: Cell::new(false),
            has_dirty_records: Cell::new(false),
            reserved: Reserved::default(),
            progress: Progress::new(shard),
            age: DirtyAge::default(),
            runs: RangeLocks::default(),
            next_run: Semaphore::new(1),
            writers: Cell::new(0),
            hurrying: Cell::new(0),
            wanted: Notify::new(),
            room: Notify::new(),
            progressed: Notify::new(),
        }
    }

    /// Sets whether the superblock permits dirty blocks.
    pub(super) fn permit(&self, permitted: bool) {
        self.permitted.set(permitted);
    }

    /// Whether the superblock permits dirty blocks.
    pub(super) fn is_permitted(&self) -> bool {
        self.permitted.get()
    }

    /// A dirty record was appended to the log, or found there.
    pub(super) fn note_dirty_record(&self) {
        self.has_dirty_records.set(true);
    }

    /// Whether there may be dirty records on the device.
    pub(super) fn has_dirty_records(&self) -> bool {
        self.has_dirty_records.get()
    }

    /// The worker's progress.
    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// A block became dirty at `now`; none was before.
    pub(super) fn note_first_dirty(&self, now: Nanos) {
        self.age.restart(now);
    }

    /// A pass has written everything that was dirty when it began.
    pub(super) fn note_pass(&self, now: Nanos) {
        self.progress.note_pass();
        self.age.note_pass(now);
    }

    /// How long the oldest dirty block has been dirty, at most. Only of meaning while a block is dirty.
    pub(super) fn dirty_for(&self, now: Nanos) -> Duration {
        now.since(self.age.since())
    }

    /// Waits until `bytes` more may become dirty. `level` returns the bytes dirty now, and the limit.
    ///
    /// # Errors
    /// Those of `level`; or nothing has reached the origin for as long as a writer may wait.
    pub(super) async fn reserve<E: Env>(
        &self,
        env: &E,
        stats: &Stats,
        bytes: u64,
        level: impl Fn() -> Result<Level, IoError>,
    ) -> Result<DirtyPermit<'_>, IoError> {
        let started = env.now();
        let mut waited = false;
        loop {
            let Level { dirty, limit } = level()?;
            if let Some(used) = self.reserved.take(dirty, bytes, limit) {
                raise(&stats.peaks.dirty_bytes, used);
                return Ok(DirtyPermit::new(&self.reserved, &self.room, bytes));
            }
            let wait_limit = self.progress.wait_limit(env.now(), started);
            if wait_limit.is_some_and(|wait_limit| wait_limit.is_zero()) {
                let why = self.progress.failure().unwrap_or_default();
                self.progress.note_refused(&why);
                return Err(IoError::CacheFailed(format!(
                    "dirty limit reached and writeback is failing: {why}"
                )));
            }
            count(&stats.counters.dirty_waits, u64::from(!waited));
            waited = true;
            // A writer may be dropped while it waits.
            let _hurry = self.hurry();
            self.wake();
            let room = std::pin::pin!(self.room.notified());
            match wait_limit {
                // An origin may take longer to return an error than a writer waits.
                Some(wait_limit) => {
                    select(room, std::pin::pin!(env.sleep(wait_limit))).await;
                }
                None => room.await,
            }
        }
    }

    /// Whether blocks are about to become dirty.
    pub(super) fn has_permits(&self) -> bool {
        self.reserved.bytes() > 0
    }

    /// How urgent writeback is: from 0 (wait for an idle period) to 1 (a task waits).
    pub(super) fn urgency(&self, level: Level) -> f64 {
        if self.hurrying.get() > 0 {
            return 1.0;
        }
        assert!(level.limit > 0, "some may be dirty");
        let share = (level.dirty + self.reserved.bytes()) as f64 / level.limit as f64;
        ((share - 0.25) / 0.75).clamp(0.0, 1.0)
    }

    /// Makes the worker hurry, until this is dropped.
    pub(super) fn hurry(&self) -> Counted<'_> {
        Counted::new(&self.hurrying)
    }

    /// Registers a write that may leave dirty blocks, until this is dropped.
    pub(super) fn begin_write(&self) -> Counted<'_> {
        Counted::new(&self.writers)
    }

    /// Number of writes in flight that may leave dirty blocks.
    pub(super) fn writers(&self) -> u64 {
        self.writers.get()
    }

    /// Wakes the worker.
    pub(super) fn wake(&self) {
        self.wanted.notify_one();
    }

    /// Waits until the worker is wanted.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Waits until no other run of this shard waits for its turn, while the permit is held.
    pub(super) async fn next_run(&self) -> Permit<'_> {
        self.next_run.acquire(1).await
    }

    /// Waits until no block of the range is being written to the origin, and locks the range.
    pub(super) async fn enter_run(&self, blocks: Range<LocalBlock>) -> Lock<'_> {
        assert!(blocks.start < blocks.end, "a run has blocks");
        self.runs.lock(blocks.start.0..blocks.end.0).await
    }

    /// Some blocks are clean now, or a pass has ended: waiting tasks check again.
    pub(super) fn note_step(&self) {
        self.room.notify_all();
        self.progressed.notify_all();
    }

    /// The limit has changed.
    pub(super) fn note_limit(&self) {
        self.room.notify_all();
    }

    /// Nothing is dirty.
    pub(super) fn note_nothing_dirty(&self) {
        // Space reserved by others is not released by the worker: tasks that wait for it would only wake the worker again.
        if !self.has_permits() {
            self.room.notify_all();
        }
        self.progressed.notify_all();
    }

    /// Waits until a batch or a pass has ended.
    pub(super) async fn stepped(&self) {
        self.progressed.notified().await;
    }

    /// A step that began at `begun` has failed.
    pub(super) fn note_failing<E: Env>(&self, env: &E, error: &IoError, what: Failing, begun: Nanos) {
        if self.progress.note_failing(env.now(), error, what, begun) {
            // From now on the time that writers wait is limited.
            self.room.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flaz_sim::Sim;
    use futures_util::FutureExt;
    use futures_util::future::join;

    const LEVEL: Level = Level {
        dirty: 600,
        limit: 1000,
    };

    fn error() -> IoError {
        IoError::CacheFailed("a test".into())
    }

    #[test]
    fn a_permit_that_does_not_fit_waits_until_another_is_dropped() {
        let (sim, writeback, stats) = (Sim::new(1), Writeback::new(0), Stats::default());
        let env = sim.env();
        let reserve = |bytes| writeback.reserve(&env, &stats, bytes, || Ok(LEVEL));
        let first = reserve(300)
            .now_or_never()
            .expect("it fits")
            .expect("nothing fails");
        sim.block_on(async {
            let drop_it = async {
                env.sleep(Duration::from_secs(1)).await;
                assert!(writeback.has_permits());
                assert!((writeback.urgency(LEVEL) - 1.0).abs() < 1e-9, "somebody waits");
                drop(first);
            };
            let (second, ()) = join(reserve(200), drop_it).await;
            drop(second.expect("nothing fails"));
        });
        assert!(!writeback.has_permits());
        assert_eq!(stats.counters.dirty_waits.get(), 1);
        assert!(stats.peaks.dirty_bytes.get() <= LEVEL.limit);
    }

    /// Otherwise a write that is larger than the limit would wait indefinitely.
    #[test]
    fn a_permit_above_the_limit_is_given_when_nothing_is_dirty() {
        let (sim, writeback, stats) = (Sim::new(1), Writeback::new(0), Stats::default());
        let level = || Ok(Level { dirty: 0, ..LEVEL });
        let permit = writeback.reserve(&sim.env(), &stats, 2000, level).now_or_never();
        assert!(permit.expect("at once").is_ok());
    }

    #[test]
    fn a_writer_waits_for_a_limited_time_when_the_origin_fails() {
        let (sim, writeback, stats) = (Sim::new(1), Writeback::new(0), Stats::default());
        let env = sim.env();
        sim.block_on(async {
            let begun = env.now();
            let fail = async {
                for _ in 0..2 {
                    env.sleep(Duration::from_secs(1)).await;
                    writeback.note_failing(&env, &error(), Failing::Writes, env.now());
                }
            };
            let reserve = writeback.reserve(&env, &stats, 500, || Ok(LEVEL));
            let (refused, ()) = join(reserve, fail).await;
            assert!(refused.is_err());
            let waited = env.now().since(begun).as_secs();
            assert!((10..13).contains(&waited), "{waited} s");
        });
    }

    #[test]
    fn runs_of_the_same_blocks_go_one_after_the_other() {
        let writeback = Writeback::new(0);
        let run = |from, to| {
            writeback
                .enter_run(LocalBlock(from)..LocalBlock(to))
                .now_or_never()
        };
        let first = run(0, 8).expect("free");
        assert!(run(7, 9).is_none() && run(8, 9).is_some());
        drop(first);
        assert!(run(7, 9).is_some());
    }
}
