//! State shared by the shards of a cache, each on its own thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flaz_device::{DeviceError, DeviceOp, Env};

use super::error_log::{ErrorLog, Failed};
use super::flushes::Flushes;
use super::turns::Turns;
use super::watch::Watch;
use crate::fingerprint::Fingerprint;

/// State that the shards of a cache share about their devices:
///
/// - the number of direct writes to the origin, and up to which of them it has been flushed: a flush without new writes need
///   not go to a slow origin;
/// - reads of the origin in flight, and the turns of writeback runs there;
/// - failed flushes of either device;
/// - the watched stripes of the origin;
/// - errors of both devices, for the log.
#[derive(Clone, Debug, Default)]
pub struct OriginWrites(Arc<OriginCounts>);

#[derive(Debug)]
struct OriginCounts {
    written: AtomicU64,
    flushed: AtomicU64,
    reading: AtomicU64,
    turns: Turns,
    flushes: Flushes,
    cache_flushes: Flushes,
    watch: Watch,
    errors: ErrorLog,
}

impl Default for OriginCounts {
    fn default() -> Self {
        Self {
            // An earlier process may have left unflushed writes: the first flush always goes to the origin.
            written: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
            reading: AtomicU64::new(0),
            turns: Turns::default(),
            flushes: Flushes::default(),
            cache_flushes: Flushes::default(),
            watch: Watch::default(),
            errors: ErrorLog::default(),
        }
    }
}

/// Adds one to a count until dropped.
#[derive(Debug)]
pub(crate) struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    pub(in crate::shard) fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "counted in pairs");
    }
}

impl OriginWrites {
    /// Starts recording the origin's fingerprint with the host; `fingerprint` is recorded now if possible. Call it before the
    /// shards are started.
    pub fn watch_from(&self, fingerprint: &Fingerprint) {
        self.0.watch.begin(&fingerprint.stripes);
    }

    /// Logs how many errors of the devices there were in the last `span`, since the last call, beyond those that were logged at
    /// once. Call it from time to time.
    pub fn report_errors(&self, span: Duration) {
        self.0.errors.report(span);
    }

    /// Logs a failed operation of the origin, or counts it for the next report.
    pub(crate) fn log_origin_error(&self, error: &DeviceError) {
        self.0.errors.note_device(Failed::Origin, error);
    }

    /// The same of the cache device.
    pub(in crate::shard) fn log_cache_error(&self, error: &DeviceError) {
        self.0.errors.note_device(Failed::Cache, error);
    }

    /// The same of a block on the cache device.
    pub(in crate::shard) fn log_bad_block(&self, what: Failed, error: &dyn std::fmt::Display) {
        self.0.errors.note(what, None, error);
    }

    /// The watched stripes of the origin.
    pub(in crate::shard) fn watch(&self) -> &Watch {
        &self.0.watch
    }

    /// The origin has completed a write that is not acknowledged yet.
    pub(crate) fn wrote(&self) {
        self.0.written.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of writes that a flush beginning now covers; `None` if all are stable already.
    pub(crate) fn unflushed(&self) -> Option<u64> {
        let written = self.0.written.load(Ordering::Acquire);
        (self.0.flushed.load(Ordering::Acquire) < written).then_some(written)
    }

    /// A flush that covers this many writes has succeeded.
    pub(crate) fn flushed(&self, upto: u64) {
        debug_assert!(
            upto <= self.0.written.load(Ordering::Acquire),
            "what was written is flushed"
        );
        self.0.flushed.fetch_max(upto, Ordering::AcqRel);
    }

    /// Flushes of the origin.
    pub(crate) fn flushes(&self) -> &Flushes {
        &self.0.flushes
    }

    /// Flushes of the cache device.
    pub(super) fn cache_flushes(&self) -> &Flushes {
        &self.0.cache_flushes
    }

    /// Registers a read for clients.
    pub(crate) fn read(&self) -> Counted<'_> {
        Counted::new(&self.0.reading)
    }

    /// Reads for clients in flight.
    pub(crate) fn reading(&self) -> u64 {
        self.0.reading.load(Ordering::Relaxed)
    }

    /// The turns of writeback runs.
    pub(in crate::shard) fn turns(&self) -> &Turns {
        &self.0.turns
    }
}

impl OriginWrites {
    /// Awaits a flush of the cache device, or a FUA write to it.
    ///
    /// # Errors
    /// It failed, or another one has failed before or meanwhile.
    pub(crate) async fn cache_flushed<T, E: Env>(
        &self,
        env: &E,
        flush: impl Future<Output = Result<T, DeviceError>>,
    ) -> Result<T, DeviceError> {
        self.cache_flushed_since(env, 0, flush).await
    }

    /// The same for data written since there had been `failures` failures.
    ///
    /// # Errors
    /// It failed, or another one has failed since.
    pub(super) async fn cache_flushed_since<T, E: Env>(
        &self,
        env: &E,
        failures: u64,
        flush: impl Future<Output = Result<T, DeviceError>>,
    ) -> Result<T, DeviceError> {
        let flushes = self.cache_flushes();
        let done = flushes.run(flush).await?;
        if flushes.believed(env, failures).await {
            return Ok(done);
        }
        let why = io::Error::other("a flush requested by another shard failed");
        Err(DeviceError::new(DeviceOp::Flush, 0, 0, why))
    }

    /// Awaits a flush of the origin, or a FUA write to it, that began when there had been `failures` failures.
    ///
    /// # Errors
    /// It failed, or another flush failed meanwhile, which may have lost the write.
    pub(super) async fn origin_flushed<E: Env>(
        &self,
        env: &E,
        failures: u64,
        flush: impl Future<Output = Result<(), DeviceError>>,
    ) -> Result<(), DeviceError> {
        let flushes = self.flushes();
        let flushed = flushes.run(flush).await;
        flushes.note_news(env.now());
        flushed?;
        if flushes.believed(env, failures).await {
            return Ok(());
        }
        let why = io::Error::other("a concurrent flush failed");
        Err(DeviceError::new(DeviceOp::Flush, 0, 0, why))
    }
}
