//! Fencing a cache device that fails: it is no longer used, and later starts do not trust its clean blocks.
//!
//! After the fence, writes go to the origin without intents. Before the first of them, one of three conditions holds: the
//! cache device has taken the fence mark (every intent of the shard is set); the host record says that the cache is fenced
//! (see [`crate::host_record`]); or both were tried and failed. Writers wait until then; each try has a time limit. The host
//! record is written only when a writer waits: without writes the device's contents stay valid for the next start.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceError, Env};
use futures_util::future::{Either, select};

use super::io::CacheIo;
use super::{Platform, Shard};
use crate::volume::IoError;

/// Attempts to mark a failed cache as out of date.
const MARK_TRIES_MAX: u32 = 3;
/// How long the cache device may take to write the mark before the host record is used. The mark is per shard.
const DEVICE_FIRST: Duration = Duration::from_secs(1);

/// The cause of a fence, as the log and the status report it.
pub const NO_SPACE: &str =
    "no space left on the file system of the cache file (or in the pool of a thin volume)";

impl<P: Platform> Shard<P> {
    /// Counts an error of the cache device. After too many, or after one timeout, the device is fenced.
    pub(super) fn cache_error(self: &Rc<Self>, error: &DeviceError) {
        if CacheIo::<P>::was_refused(error) {
            return;
        }
        self.origin.shared().log_cache_error(error);
        if let Some(why) = self.cache.note_error(error) {
            self.fence(&why);
        }
    }

    /// Whether the cache device failed and is no longer used.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.cache.is_fenced()
    }

    /// Stops using the cache device, and starts to write the fence mark to the device or the host record.
    pub(super) fn fence(self: &Rc<Self>, why: &str) {
        if !self.cache.fence() {
            return;
        }
        let cause = match self.cache.found_no_space() {
            true => format!("{why}: {NO_SPACE}"),
            false => why.to_owned(),
        };
        tracing::error!(
            shard = self.id.number,
            "the cache device is fenced: {cause}; I/O continues with the origin only"
        );
        self.log.wake_all();
        self.queue.wake_worker();
        self.reclaimer.recheck();
        self.intents.wake();
        self.writeback.note_step();
        self.writeback.wake();
        let shard = Rc::clone(self);
        self.env.spawn(async move { shard.tell_of_fence().await });
    }

    /// Writes the fence mark to the device, and to the host record if the device fails or is slow while a writer waits. Writers
    /// continue when either has it.
    async fn tell_of_fence(self: &Rc<Self>) {
        let device = pin!(self.tell_device());
        let told = match select(device, pin!(self.env.sleep(DEVICE_FIRST))).await {
            Either::Left((true, _)) => true,
            Either::Left((false, _)) => self.tell_host().await,
            Either::Right(((), device)) => match select(device, pin!(self.tell_host())).await {
                Either::Left((true, _)) => true,
                Either::Left((false, host)) => host.await,
                Either::Right((true, device)) => {
                    self.settle_fence();
                    device.await;
                    true
                }
                Either::Right((false, device)) => device.await,
            },
        };
        if !told {
            tracing::error!(
                shard = self.id.number,
                "the fence could be recorded neither on the cache device nor on this host: if the device comes back, \
                 serve it with --discard-cache"
            );
        }
        self.settle_fence();
    }

    fn settle_fence(&self) {
        self.cache.settle();
        self.intents.recheck();
    }

    /// Before a recovery: marks all clean blocks of the device as out of date, because it missed writes. Stable on return.
    ///
    /// # Errors
    /// The device fails.
    pub async fn mark_fenced(&self) -> Result<(), DeviceError> {
        self.write_fence_mark().await
    }

    async fn tell_device(&self) -> bool {
        let mut marked = false;
        for _ in 0..MARK_TRIES_MAX {
            marked = self.write_fence_mark().await.is_ok();
            if marked {
                break;
            }
        }
        self.cache.marking_ended();
        self.intents.recheck();
        marked
    }

    async fn tell_host(&self) -> bool {
        if !self.cache.has_host() {
            return false;
        }
        while !self.intents.writing() {
            if self.is_stopping() {
                return true;
            }
            self.intents.wanted().await;
        }
        self.cache.tell_host().await
    }

    /// The error of a request that needs the cache device after it was fenced.
    pub(super) fn cache_failed(&self) -> IoError {
        IoError::CacheFailed(format!("shard {} has fenced it", self.id.number))
    }
}
