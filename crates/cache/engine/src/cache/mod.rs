//! A whole cache: created, opened, closed; its superblock.
//!
//! | module | contents |
//! |---|---|
//! | [`lifecycle`] | the order of the steps that open and close a cache |
//! | [`shard_set`] | all shards of a cache, on one thread or on several |
//! | `start` | how a cache starts, by its superblock |
//! | `trust` | how far the cache device is trusted, given the host record |
//! | `origin` | whether the origin changed while the cache was off |
//! | [`surroundings`] | devices, time and host records of a cache |
//! | `superblock` | reading and writing the two superblock slots |
//! | `create` | an empty cache |
//! | `give_back` | less of a device that several caches share, while the cache is served |
//! | [`resize`] | more or less of the cache device, while the cache is served |
//! | `growth` | an origin that has grown: whether it can be taken over, and taking it over while the cache is idle |
//!
//! [`LocalCache`] drives all shards on one thread (tests, trace replay, benchmarks).

mod create;
pub(crate) mod error;
mod give_back;
mod growth;
pub mod lifecycle;
mod origin;
pub mod resize;
pub mod shard_set;
mod start;
mod superblock;
pub mod surroundings;
mod trust;

use std::num::NonZeroU64;
use std::rc::Rc;

pub use create::{CreateOptions, Sizes, create};
#[cfg(test)]
pub(crate) use create::{clear_intents, clear_manifest};
pub use error::{CacheError, ResizeError, Served, ShardsUnreachable, Unreadable, Untrusted};
pub use growth::{GrownOrigin, GrowthError, grow_idle_origin};
pub use start::Start;
pub use superblock::{mark_clean, mark_empty, mark_void, read_superblock, write_superblock};
pub use trust::Trust;

use self::lifecycle::{Discard, Leave, Lifecycle, OpenOptions};
use self::resize::Resizing;
use self::shard_set::{GroupParts, ShardGroup, Share};
use self::surroundings::Surroundings;
use crate::advise::SharedSamples;
use crate::format::superblock::Superblock;
use crate::host_record::HostRecords;
use crate::router::LocalShards;
use crate::settings::{AfterCrash, Mode, Settings, StoredSettings};
use crate::shard::{OriginWrites, Platform, Recovered};
use crate::stats::StatsSnapshot;
use crate::volume::IoError;

/// A cache whose shards all live on one thread.
pub struct LocalCache<P: Platform> {
    around: Surroundings<P>,
    lifecycle: Lifecycle,
    group: ShardGroup<P>,
    /// How the cache started.
    pub start: Start,
    /// The results of recovery, after a crash.
    pub recovered: Recovered,
}

impl<P: Platform> LocalCache<P> {
    /// Opens a cache: warm after a clean stop or a crash; cold if its contents are damaged.
    ///
    /// # Errors
    /// [`CacheError`] if there is no cache or the device fails.
    pub async fn open(
        env: P::Env,
        cache: Rc<P::Cache>,
        origin: Rc<P::Origin>,
        settings: Settings,
    ) -> Result<Self, CacheError> {
        Self::open_with(env, cache, origin, settings, AfterCrash::Warm).await
    }

    /// Opens a cache with the given state after a crash of this opening.
    ///
    /// # Errors
    /// [`CacheError`] if there is no cache or the device fails.
    pub async fn open_with(
        env: P::Env,
        cache: Rc<P::Cache>,
        origin: Rc<P::Origin>,
        settings: Settings,
        after_crash: AfterCrash,
    ) -> Result<Self, CacheError> {
        Self::open_recorded(env, cache, origin, settings, after_crash, None).await
    }

    /// Opens a cache that has a host record.
    ///
    /// # Errors
    /// [`CacheError`] if there is no cache or the device fails.
    pub async fn open_recorded(
        env: P::Env,
        cache: Rc<P::Cache>,
        origin: Rc<P::Origin>,
        settings: Settings,
        after_crash: AfterCrash,
        host_records: Option<Rc<dyn HostRecords>>,
    ) -> Result<Self, CacheError> {
        let around = Surroundings {
            env,
            cache,
            origin,
            host_records,
            shared_budget: None,
        };
        let superblock = read_superblock(&*around.cache).await?;
        let options = OpenOptions {
            write_back: settings.mode == Mode::WriteBack,
            after_crash,
            discard: Discard::Nothing,
        };
        let parts = GroupParts {
            share: Share::ALL,
            around: around.clone(),
            origin_writes: OriginWrites::default(),
            codec_samples: SharedSamples::default(),
            index_memory: superblock.index_memory.map(NonZeroU64::get),
        };
        let group = ShardGroup::new(parts, settings);
        let (lifecycle, opened) = Lifecycle::open(&around, superblock, options, &group).await?;
        Ok(Self {
            around,
            lifecycle,
            group,
            start: opened.start,
            recovered: opened.recovered,
        })
    }

    /// Permits [`LocalCache::set`] to select write-back, if write-back was not selected when the cache was opened.
    ///
    /// # Errors
    /// As [`Lifecycle::permit_write_back`].
    pub async fn permit_write_back(&mut self) -> Result<(), CacheError> {
        self.lifecycle.permit_write_back(&self.around, &self.group).await
    }

    /// Stores settings for the next openings.
    ///
    /// # Errors
    /// As [`Lifecycle::store_settings`].
    pub async fn store_settings(&mut self, settings: StoredSettings) -> Result<(), CacheError> {
        let codec = self.superblock().codec;
        let (around, group) = (&self.around, &self.group);
        self.lifecycle
            .store_settings(around, group, settings, codec)
            .await
    }

    /// Takes over an origin that has grown to `len` bytes. The caller grows its volumes afterwards.
    ///
    /// # Errors
    /// As [`Lifecycle::grow_origin`].
    pub async fn grow_origin(&mut self, len: u64) -> Result<GrownOrigin, CacheError> {
        let identity = self.superblock().origin_identity.clone();
        let (around, group) = (&self.around, &self.group);
        self.lifecycle.grow_origin(around, group, len, &identity).await
    }

    /// Marks the cache as not dirty if the origin has every block. [`LocalCache::set`] has selected another mode than
    /// write-back. Returns whether the cache is marked.
    ///
    /// # Errors
    /// As [`Lifecycle::withdraw_write_back`].
    pub async fn withdraw_write_back(&mut self) -> Result<bool, CacheError> {
        self.lifecycle
            .withdraw_write_back(&self.around, &self.group)
            .await
    }

    /// Begins to use `device_len` bytes of the cache device.
    ///
    /// # Errors
    /// As [`Lifecycle::begin_resize`].
    pub async fn begin_resize(&mut self, device_len: u64) -> Result<Resizing, CacheError> {
        self.lifecycle
            .begin_resize(&self.around, &self.group, device_len)
            .await
    }

    /// Goes on to make the cache smaller.
    ///
    /// # Errors
    /// As [`Lifecycle::continue_resize`].
    pub async fn continue_resize(&mut self) -> Result<Resizing, CacheError> {
        self.lifecycle.continue_resize(&self.around, &self.group).await
    }

    /// Calls a shrink off.
    ///
    /// # Errors
    /// As [`Lifecycle::cancel_resize`].
    pub async fn cancel_resize(&mut self) -> Result<(), CacheError> {
        self.lifecycle.cancel_resize(&self.group).await
    }

    /// Begins to give the space of `regions` regions back.
    ///
    /// # Errors
    /// As [`Lifecycle::begin_give_back`].
    pub async fn begin_give_back(&mut self, regions: u64) -> Result<Resizing, CacheError> {
        self.lifecycle.begin_give_back(&self.group, regions).await
    }

    /// Goes on to give space back.
    ///
    /// # Errors
    /// As [`Lifecycle::continue_give_back`].
    pub async fn continue_give_back(&mut self) -> Result<Resizing, CacheError> {
        self.lifecycle.continue_give_back(&self.group).await
    }

    /// Calls it off.
    ///
    /// # Errors
    /// As [`Lifecycle::cancel_give_back`].
    pub async fn cancel_give_back(&mut self) -> Result<(), CacheError> {
        self.lifecycle.cancel_give_back(&self.group).await
    }

    /// Writes all dirty blocks to the origin.
    ///
    /// # Errors
    /// [`IoError`]: some blocks stay dirty.
    pub async fn clean_all(&self) -> Result<(), IoError> {
        for shard in self.group.shards().iter() {
            shard.clean_all().await?;
        }
        Ok(())
    }

    /// The shards.
    #[must_use]
    pub fn shards(&self) -> LocalShards<P> {
        LocalShards::new(self.group.shards().to_vec())
    }

    /// The superblock of this opening.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        self.lifecycle.superblock()
    }

    /// Sums of the counts and holdings of all shards.
    #[must_use]
    pub fn stats(&self) -> StatsSnapshot {
        self.group.stats()
    }

    /// Changes the settings of all shards.
    pub fn set(&self, settings: &Settings) {
        self.group.set(settings);
    }

    /// Closes the cache, and returns its superblock.
    ///
    /// # Errors
    /// As [`Lifecycle::close`].
    pub async fn stop(mut self) -> Result<Superblock, CacheError> {
        self.lifecycle
            .close(&self.around, &self.group, Leave::Contents)
            .await?;
        Ok(self.lifecycle.superblock().clone())
    }
}
