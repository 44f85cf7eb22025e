//! Flushes of a device, requested by all shards of a cache and its front end.
//!
//! An operating system may report a failed flush once, drop the data that was not written, and report success to the next
//! caller. So a successful flush is trusted only if no flush has failed since the covered data was written, no matter who
//! asked for it, and no flush that overlapped it is still in flight. Every client is told once of every failed flush. A
//! client that connects soon after is told, too, because it may have reconnected with earlier writes.

#![expect(
    clippy::disallowed_types,
    reason = "shards on several threads share it; held for a look or a change of a few numbers, around flushes alone"
)]

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flaz_device::{DeviceError, DeviceOp, Env, Nanos};

/// Interval at which a successful flush checks whether overlapping flushes have ended.
const OVERLAP_STEP: Duration = Duration::from_micros(200);

/// How long a failed flush is reported to new connections: longer than clients take to reconnect.
const NEWS_MAX: Duration = Duration::from_secs(310);
/// Failed flushes within this time are recorded together, with the time of the first one.
const NEWS_STEP: Duration = Duration::from_secs(10);

/// The flushes of one device. Requests, shards and tasks may flush concurrently.
#[derive(Debug, Default)]
pub(crate) struct Flushes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    begun: u64,
    under_way: BTreeSet<u64>,
    failures: u64,
    /// Failed flushes, without failed FUA writes.
    flushes_failed: u64,
    /// Failed flushes that are no longer reported to new connections.
    old: u64,
    /// The number of failed flushes at times since then.
    news: VecDeque<(u64, Nanos)>,
    /// A FUA write has failed.
    write_failed: bool,
    /// A failed flush that no client had asked for, and that must be reported to a client.
    untold: Option<DeviceError>,
}

/// A flush in flight. It counts as failed unless it is marked as successful, even if its future is dropped.
struct Flushing<'a> {
    flushes: &'a Flushes,
    number: u64,
    succeeded: bool,
    was_flush: bool,
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        let mut state = self.flushes.state();
        let was_under_way = state.under_way.remove(&self.number);
        debug_assert!(was_under_way, "a flush ends once");
        state.failures += u64::from(!self.succeeded);
        state.flushes_failed += u64::from(self.was_flush && !self.succeeded);
    }
}

impl State {
    fn note_news(&mut self, now: Nanos) {
        let failed = self.flushes_failed;
        while let Some((old, _)) = self.news.pop_front_if(|(_, since)| now.since(*since) >= NEWS_MAX) {
            self.old = old;
        }
        match self.news.back_mut() {
            Some((noted, _)) if *noted == failed => {}
            // If all of them fail there are many.
            Some((noted, since)) if now.since(*since) < NEWS_STEP => *noted = failed,
            None if self.old == failed => {}
            _ => self.news.push_back((failed, now)),
        }
    }
}

impl Flushes {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of flushes that failed.
    pub(crate) fn failures(&self) -> u64 {
        self.state().failures
    }

    /// Number of failed flushes, without FUA writes: a FUA write may fail by itself, for example on a full device.
    pub(crate) fn flushes_failed(&self) -> u64 {
        self.state().flushes_failed
    }

    /// The failed flushes that are not reported to a client that connects now.
    pub(crate) fn flushes_failed_long_ago(&self, now: Nanos) -> u64 {
        let mut state = self.state();
        state.note_news(now);
        state.old
    }

    /// Call it when a flush may have failed.
    pub(crate) fn note_news(&self, now: Nanos) {
        self.state().note_news(now);
    }

    /// Whether a FUA write has failed.
    pub(super) fn write_failed(&self) -> bool {
        self.state().write_failed
    }

    /// Keeps the failure of a flush that no client asked for, for the next client that asks for a flush.
    pub(crate) fn leave_untold(&self, error: DeviceError) {
        self.state().untold = Some(error);
    }

    /// Takes the failure that has not been reported to a client.
    pub(crate) fn take_untold(&self) -> Option<DeviceError> {
        self.state().untold.take()
    }

    /// Awaits a flush, or a FUA write, which some devices implement with a flush.
    ///
    /// # Errors
    /// The device's.
    pub(crate) async fn run<T>(
        &self,
        flush: impl Future<Output = Result<T, DeviceError>>,
    ) -> Result<T, DeviceError> {
        let number = {
            let mut state = self.state();
            let number = state.begun;
            state.begun += 1;
            let is_new = state.under_way.insert(number);
            debug_assert!(is_new, "numbers are given once");
            number
        };
        let mut flushing = Flushing {
            flushes: self,
            number,
            succeeded: false,
            was_flush: false,
        };
        let result = flush.await;
        flushing.succeeded = result.is_ok();
        flushing.was_flush = matches!(&result, Err(error) if error.op == DeviceOp::Flush);
        self.state().write_failed |= result.is_err() && !flushing.was_flush;
        result
    }

    /// Whether a flush is in flight.
    pub(crate) fn under_way(&self) -> bool {
        !self.state().under_way.is_empty()
    }

    /// Waits until the flushes in flight have ended.
    pub(super) async fn overlapping<E: Env>(&self, env: &E) {
        let begun = self.state().begun;
        let overlaps = || self.state().under_way.first().is_some_and(|&first| first < begun);
        while overlaps() {
            env.sleep(OVERLAP_STEP).await;
        }
    }

    /// Whether a successful flush can be trusted for data written when there had been `failures` failures.
    pub(crate) async fn believed<E: Env>(&self, env: &E, failures: u64) -> bool {
        self.overlapping(env).await;
        let now = self.failures();
        debug_assert!(now >= failures, "failures are not forgotten");
        now == failures
    }
}
