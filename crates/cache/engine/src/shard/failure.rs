//! A cache device that fails: it is no longer used, and what is on it must never be believed again.
//!
//! From then on writes go to the origin without intents. So before the first of them, one of three things is sure: the
//! cache device itself says that all of the shard's stripes are out of date, or the host's host_records has noted that the
//! cache is lost (see [`crate::host_record`]), or both were tried and are not to be had. Writers wait until then; each try
//! is bounded by the device's deadline and by [`RECORD_WITHIN`]. The host is asked when a writer waits: until then
//! what is on the device is true, and a later start may have it.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::deadline::is_timeout;
use flaz_device::{DeviceError, DeviceOp, Env};
use futures_util::future::{Either, select};

use super::{CACHE_ERRORS_MAX, Platform, Shard};
use crate::stats::count;

/// Tries to mark a failed cache as out of date.
const POISON_TRIES_MAX: u32 = 3;
/// How long a cache device has to take the mark before the host is asked: what it takes itself says it shard by shard.
const DEVICE_FIRST: Duration = Duration::from_secs(1);
/// How long the host has to note that a cache is lost.
const RECORD_WITHIN: Duration = Duration::from_secs(10);

impl<P: Platform> Shard<P> {
    /// Counts an error of the cache device. After too many, or one operation that did not end in time, the device is no
    /// longer used.
    pub(super) fn cache_error(self: &Rc<Self>, error: &DeviceError) {
        let counters = &self.stats.counters;
        count(&counters.cache_errors, 1);
        count(
            &counters.cache_write_errors,
            u64::from(error.op != DeviceOp::Read),
        );
        tracing::warn!(shard = self.number, %error, "the cache device failed an operation");
        if is_timeout(error) {
            self.give_up("it does not answer in time");
        } else if self.stats.counters.cache_errors.get() >= CACHE_ERRORS_MAX {
            self.give_up(&format!("it failed {CACHE_ERRORS_MAX} times"));
        }
    }

    /// Whether the cache device failed and is no longer used.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.failed.get()
    }

    /// Stops using the cache device, and sees to it that what is on it is never believed again, as far as the
    /// device or the host still can be told.
    pub(super) fn give_up(self: &Rc<Self>, why: &str) {
        if self.failed.replace(true) {
            return;
        }
        tracing::error!(
            shard = self.number,
            "the cache device is no longer used: {why}; I/O goes on with the origin alone"
        );
        self.room.notify_all();
        self.queue.wake_worker();
        self.reclaimer.recheck();
        self.intents.wake();
        self.landed.notify_all();
        self.writeback.note_step();
        self.writeback.wake();
        self.intents.marking.set(true);
        let shard = Rc::clone(self);
        self.env.spawn(async move { shard.disown().await });
    }

    /// Tells the device, and the host where that fails or takes long and a writer waits; the first that has noted it lets
    /// writers go on.
    async fn disown(self: &Rc<Self>) {
        let device = pin!(self.disown_on_device());
        let told = match select(device, pin!(self.env.sleep(DEVICE_FIRST))).await {
            Either::Left((true, _)) => true,
            Either::Left((false, _)) => self.disown_on_host().await,
            Either::Right(((), device)) => match select(device, pin!(self.disown_on_host())).await {
                Either::Left((true, _)) => true,
                Either::Left((false, host)) => host.await,
                Either::Right((true, device)) => {
                    self.disowned();
                    device.await;
                    true
                }
                Either::Right((false, device)) => device.await,
            },
        };
        if !told {
            tracing::error!(
                shard = self.number,
                "neither the cache device nor this host can be told that the cache is out of date: if the device \
                 comes back, serve it with --discard-cache"
            );
        }
        self.disowned();
    }

    fn disowned(&self) {
        self.intents.disowned.set(true);
        self.intents.changed.notify_all();
    }

    /// Before a recovery: what is clean on the device has missed writes, and is to be dropped. Stable on return.
    ///
    /// # Errors
    /// The device fails.
    pub async fn distrust(&self) -> Result<(), DeviceError> {
        // Its numbers are those of a mark that counts. And what the old pages say must be there, these say as well: or the
        // recovery would not miss it.
        let marks = self.load_intents().await?;
        self.intents.set_durable(marks);
        let poisoned = self.poison().await;
        self.intents.set_durable(Default::default());
        poisoned
    }

    async fn disown_on_device(&self) -> bool {
        let mut marked = false;
        for _ in 0..POISON_TRIES_MAX {
            marked = self.poison().await.is_ok();
            if marked {
                break;
            }
        }
        self.intents.marking.set(false);
        self.intents.changed.notify_all();
        marked
    }

    async fn disown_on_host(&self) -> bool {
        let Some(host_records) = &self.host_records else {
            return false;
        };
        while !self.intents.writing() {
            if self.is_stopping() {
                return true;
            }
            self.intents.wishes.notified().await;
        }
        let late = pin!(self.env.sleep(RECORD_WITHIN));
        match select(host_records.note_fenced(), late).await {
            Either::Left((noted, _)) => noted,
            Either::Right(_) => false,
        }
    }
}
