//! More or less of the cache device, while the cache is served.
//!
//! A cache that becomes smaller takes a while. The client asks for its progress until it is done; if the client goes away, the
//! cache keeps its size. A file grows before its cache, and is truncated after it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flaz_control::report::{CacheReport, ResizeReport, ShrinkProgress, ShrinkReport};
use flaz_control::size::HumanBytes;
use flaz_device::Device;
use flaz_engine::cache::lifecycle::Lifecycle;
use flaz_engine::cache::resize::Resizing;
use flaz_engine::cache::{CacheError, ResizeError};
use flaz_runtime::file::Kind;
use flaz_runtime::{Config, Runtime};

use super::Daemon;
use crate::error::HostError;
use crate::pool::Place;
use crate::status::cache_report;

/// A shrink is called off if its client has not asked for so long.
const ABANDONED_AFTER: Duration = Duration::from_secs(10);

/// A change of the size that its client waits for.
#[derive(Clone)]
pub(super) struct Waited {
    before: CacheReport,
    /// The size that the client gave.
    size: Option<u64>,
    /// Bytes of the cache device to use.
    target: u64,
    /// As the last step found it.
    progress: ShrinkProgress,
    pub(super) asked: Instant,
}

/// How far a change of the size is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// It is done.
    Done(ResizeReport),
    /// The cache gives up regions.
    Shrinking(ShrinkProgress),
}

impl Daemon {
    /// Uses `size` bytes of the cache device from now on; `None`: all of it. A file gets that size.
    ///
    /// # Errors
    /// The cache cannot have this size; nothing has changed. Or the cache device fails.
    pub fn resize(&self, size: Option<u64>) -> Result<Resize, HostError> {
        Place::of(&self.spec.cache).refuse_resize()?;
        let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
        if self.stopping.load(Ordering::SeqCst) {
            return Err("the daemon is stopping: resize the cache after the next start".into());
        }
        let runtime = Runtime::new(Config::default())?;
        let before = cache_report(&self.spec.cache, lifecycle.superblock());
        let file = &self.devices.cache_file;
        let present = file.measure()?;
        // A file that somebody made longer is sparse at its end.
        file.keep_space();
        let alignment = u64::from(file.alignment());
        let target = size.unwrap_or(present) / alignment * alignment;
        // Before the file grows.
        let geometry = &lifecycle.superblock().geometry;
        let possible = geometry.resized(target);
        possible.map_err(|possible| ResizeError::size(&possible, target))?;
        let grows = file.kind() == Kind::File && target > present;
        if grows {
            self.grow_file(present, target)?;
        }
        let waited = Waited {
            before,
            size,
            target,
            progress: ShrinkProgress {
                regions_left: 0,
                dirty_bytes_left: 0,
            },
            asked: Instant::now(),
        };
        let around = self.devices.surroundings();
        let begun = runtime.block_on(lifecycle.begin_resize(&around, &self.threads, target));
        if grows && matches!(begun, Err(CacheError::Resize(_))) {
            file.set_len(present, false)?;
        }
        // The other client goes on with its own.
        if let Err(error @ CacheError::Resize(ResizeError::UnderWay)) = begun {
            return Err(error.into());
        }
        self.went_on(&lifecycle, waited, begun)
    }

    /// Goes on with the shrink that was begun.
    ///
    /// # Errors
    /// It was called off, or cannot be completed: the cache has its old size.
    pub fn continue_resize(&self) -> Result<Resize, HostError> {
        if self.stopping.load(Ordering::SeqCst) {
            return Err(ResizeError::CalledOff.into());
        }
        let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = Runtime::new(Config::default())?;
        // It stays there during the step, for a report.
        let waited = self.resize.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(waited) = waited else {
            return Err(ResizeError::CalledOff.into());
        };
        let around = self.devices.surroundings();
        let went = runtime.block_on(lifecycle.continue_resize(&around, &self.threads));
        let waited = Waited {
            asked: Instant::now(),
            ..waited
        };
        self.went_on(&lifecycle, waited, went)
    }

    /// Calls the shrink off whose client has gone away, if there is one.
    pub(super) fn call_off_abandoned(&self) {
        let mut lifecycle = self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut resize = self.resize.lock().unwrap_or_else(PoisonError::into_inner);
        let abandoned = |waited: &Waited| waited.asked.elapsed() >= ABANDONED_AFTER;
        if !resize.as_ref().is_some_and(abandoned) || self.stopping.load(Ordering::SeqCst) {
            return;
        }
        let called_off = Runtime::new(Config::default())
            .map_err(HostError::from)
            .and_then(|runtime| Ok(runtime.block_on(lifecycle.cancel_resize(&self.threads))?));
        match called_off {
            Ok(()) => {
                *resize = None;
                tracing::warn!("flaz resize was interrupted: the cache keeps its size");
            }
            // It is tried again.
            Err(error) => tracing::warn!("flaz resize was interrupted, and cannot be cancelled: {error}"),
        }
    }

    /// The shrink under way, for a report.
    pub(super) fn shrink(&self) -> Option<ShrinkReport> {
        let waited = self.resize.lock().unwrap_or_else(PoisonError::into_inner);
        waited.as_ref().map(|waited| ShrinkReport {
            size_bytes: waited.target,
            regions_left: waited.progress.regions_left,
            dirty_bytes_left: waited.progress.dirty_bytes_left,
        })
    }

    fn grow_file(&self, present: u64, target: u64) -> Result<(), HostError> {
        let file = &self.devices.cache_file;
        file.set_len(target, !file.is_sparse()).map_err(|error| {
            format!(
                "{} cannot become {} large, {} more than now: {error}; make room on its file system, or choose a smaller size",
                self.spec.cache.display(),
                HumanBytes(target),
                HumanBytes(target - present)
            )
        })?;
        // Where the file system cannot allocate, it is sparse from now on.
        file.keep_space();
        Ok(())
    }

    fn went_on(
        &self,
        lifecycle: &Lifecycle,
        mut waited: Waited,
        outcome: Result<Resizing, CacheError>,
    ) -> Result<Resize, HostError> {
        let now = cache_report(&self.spec.cache, lifecycle.superblock());
        if let Ok(Resizing::Shrinking(state)) = &outcome {
            waited.progress = ShrinkProgress {
                regions_left: state.regions_left,
                dirty_bytes_left: state.dirty_bytes_left,
            };
        }
        let (before, size, progress) = (&waited.before, waited.size, waited.progress);
        let report = ResizeReport {
            size_before_bytes: before.size_bytes,
            size_bytes: now.size_bytes,
            regions_before: before.regions,
            regions: now.regions,
        };
        let unfinished = lifecycle.is_shrinking().then_some(waited);
        *self.resize.lock().unwrap_or_else(PoisonError::into_inner) = unfinished;
        // After an error the device may have either size: the larger one counts until the smaller one is stable.
        let outcome = outcome?;
        *self.cache_report.lock().unwrap_or_else(PoisonError::into_inner) = now;
        match outcome {
            Resizing::Shrinking(_) => Ok(Resize::Shrinking(progress)),
            Resizing::Done => {
                let file = &self.devices.cache_file;
                if file.kind() == Kind::File
                    && size.is_some()
                    && file.len() > report.size_bytes
                    && let Err(error) = file.set_len(report.size_bytes, false)
                {
                    tracing::warn!(
                        "the cache uses {} of {}, which cannot be truncated: {error}",
                        HumanBytes(report.size_bytes),
                        self.spec.cache.display()
                    );
                }
                Ok(Resize::Done(report))
            }
        }
    }
}
