//! Flushes of a device that all shards of a cache, and its front end, ask for.
//!
//! A system may report a failed flush once, forget what was not written, and tell whoever asks next that all is well.
//! So the success of a flush is believed if none failed since what it is to cover was written, whoever asked for that
//! one, and if none that overlapped it is still under way. Clients hear of every flush that failed, each of them once; so
//! does who connects soon after, for it may be one that has connected again, with writes from before.

#![expect(
    clippy::disallowed_types,
    reason = "shards on several threads share it; held for a look or a change of a few numbers, around flushes alone"
)]

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flaz_device::{DeviceError, DeviceOp, Env, Nanos};

/// How often somebody whose flush has succeeded looks whether those that overlapped it have ended.
const OVERLAP_STEP: Duration = Duration::from_micros(200);

/// How long a failed flush is news for who connects: longer than clients take to connect again.
const NEWS_MAX: Duration = Duration::from_secs(310);
/// Failed flushes this close to each other are noted together, with the first one's time.
const NEWS_STEP: Duration = Duration::from_secs(10);

/// The flushes of one device. As many are under way as requests, shards and their tasks ask for.
#[derive(Debug, Default)]
pub(crate) struct Flushes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    begun: u64,
    under_way: BTreeSet<u64>,
    failures: u64,
    /// Those of them that were flushes for sure, and no writes that are stable on return.
    flushes_failed: u64,
    /// Those of them that are no news.
    old: u64,
    /// How many there were of them when, since then.
    news: VecDeque<(u64, Nanos)>,
    /// One of those writes has failed.
    write_failed: bool,
    /// A failure that nobody had asked for, and that clients must hear of.
    untold: Option<DeviceError>,
}

/// A flush under way. It has failed unless it is said to have succeeded, also if nobody waits for its end.
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
            // Where all of them fail there are many.
            Some((noted, since)) if now.since(*since) < NEWS_STEP => *noted = failed,
            None if self.old == failed => {}
            _ => self.news.push_back((failed, now)),
        }
    }
}

impl Flushes {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of flushes that failed.
    pub(crate) fn failures(&self) -> u64 {
        self.state().failures
    }

    /// Number of flushes that failed, without the writes that are stable on return: one of those may have failed for itself
    /// alone, as where the device is full.
    pub(crate) fn flushes_failed(&self) -> u64 {
        self.state().flushes_failed
    }

    /// Those of them that are no news for who connects now.
    pub(crate) fn flushes_failed_long_ago(&self, now: Nanos) -> u64 {
        let mut state = self.state();
        state.note_news(now);
        state.old
    }

    /// To be called when one may have failed.
    pub(crate) fn note_news(&self, now: Nanos) {
        self.state().note_news(now);
    }

    /// Whether a write that is stable on return has failed.
    pub(super) fn write_failed(&self) -> bool {
        self.state().write_failed
    }

    /// Keeps the failure of a flush that no client asked for, for the next one who asks for a flush.
    pub(crate) fn leave_untold(&self, error: DeviceError) {
        self.state().untold = Some(error);
    }

    /// The failure that clients have not heard of, once.
    pub(crate) fn take_untold(&self) -> Option<DeviceError> {
        self.state().untold.take()
    }

    /// Awaits a flush, or a write that is stable on return, for some devices make it so by a flush.
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

    /// Whether one is under way.
    pub(crate) fn under_way(&self) -> bool {
        !self.state().under_way.is_empty()
    }

    /// Waits until those that are under way have ended.
    pub(super) async fn overlapping<E: Env>(&self, env: &E) {
        let begun = self.state().begun;
        let overlaps = || self.state().under_way.first().is_some_and(|&first| first < begun);
        while overlaps() {
            env.sleep(OVERLAP_STEP).await;
        }
    }

    /// To be asked when a flush has succeeded: whether that can be believed of what was written when there had been
    /// `failures`.
    pub(crate) async fn believed<E: Env>(&self, env: &E, failures: u64) -> bool {
        self.overlapping(env).await;
        let now = self.failures();
        debug_assert!(now >= failures, "failures are not forgotten");
        now == failures
    }
}
