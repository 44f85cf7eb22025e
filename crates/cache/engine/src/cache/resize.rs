//! A cache that gets more or less of its device while it is served.
//!
//! The layout of the device has room for a larger cache, and the regions of the shards alternate: so a cache grows and shrinks at
//! its end, and nothing moves. [`Geometry::resized`] gives the new sizes.
//!
//! Growing:
//! 1. Each shard writes the manifest entries of its new regions: free, stable.
//! 2. The superblock has the new sizes, stable.
//! 3. Each shard appends the new regions to its table.
//!
//! Shrinking:
//! 1. Each shard gives up its last regions: see `shard::resize`. This takes as long as reclaiming the whole cache, in the worst
//!    case several times.
//! 2. When the regions of all shards are free, in the manifest too, and none is taken again: the superblock has the new sizes,
//!    stable.
//! 3. Each shard removes the regions from its table.
//!
//! Invariant: the table of a shard never has more regions than the superblock on the device, whichever of its slots is read. So a
//! crash at any time leaves the old cache or the new one. A region beyond the superblock's sizes is free in the manifest, so old
//! contents never come back when the cache grows again.

use flaz_device::Device;

use super::error::{CacheError, ResizeError};
use super::lifecycle::Lifecycle;
use super::shard_set::ShardSet;
use super::superblock::store_sizes_served;
use super::surroundings::Surroundings;
use crate::format::geometry::Geometry;
use crate::planted::{PlantedBug, planted};
use crate::shard::{Platform, ResizeStep, Shrinking};

/// How far a change of the size is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resizing {
    /// The cache has the new size.
    Done,
    /// Regions are being evacuated. Call [`Lifecycle::continue_resize`] to continue, or [`Lifecycle::continue_give_back`].
    Shrinking(Shrinking),
}

impl Lifecycle {
    /// Uses `device_len` bytes of the cache device from now on. A cache that becomes smaller is used as before until
    /// [`Lifecycle::continue_resize`] returns [`Resizing::Done`].
    ///
    /// # Errors
    /// [`CacheError`]: the size is not possible (nothing changes then), or the device fails.
    pub async fn begin_resize<P: Platform, S: ShardSet>(
        &mut self,
        around: &Surroundings<P>,
        shards: &S,
        device_len: u64,
    ) -> Result<Resizing, CacheError> {
        if self.shrink.is_some() {
            return Err(ResizeError::UnderWay.into());
        }
        if shards.state().await?.fenced {
            return Err(ResizeError::Fenced.into());
        }
        let (expected, found) = (device_len, around.cache.len());
        if found < expected {
            return Err(ResizeError::DeviceTooSmall { expected, found }.into());
        }
        let before = self.superblock.geometry;
        if self.unsettled {
            self.settle_shards(shards).await?;
        }
        let after = before.resized(device_len);
        let after = after.map_err(|possible| ResizeError::size(&possible, device_len))?;
        if after.regions_per_shard < before.regions_per_shard {
            if planted(PlantedBug::ShrunkEarly) {
                self.store_sizes(around, shards, after).await?;
            }
            self.cancel_give_back(shards).await?;
            self.shrink = Some(after);
            shards
                .resize(ResizeStep::BeginShrink(after.regions_per_shard))
                .await?;
            return self.continue_resize(around, shards).await;
        }
        if after.regions_per_shard > before.regions_per_shard
            && shards
                .resize(ResizeStep::Prepare(after.regions_per_shard))
                .await?
                .fenced
        {
            return Err(ResizeError::Fenced.into());
        }
        // Also the same sizes: after an error the device may have others.
        let stored = self.store_sizes(around, shards, after).await;
        if stored.is_err() {
            // Whichever sizes the device has, the shards use no more than these.
            self.superblock.geometry = before;
        }
        stored?;
        self.settle_shards(shards).await?;
        Ok(Resizing::Done)
    }

    /// Gives every shard as many regions as the superblock says, stable.
    async fn settle_shards<S: ShardSet>(&mut self, shards: &S) -> Result<(), CacheError> {
        self.unsettled = true;
        let regions = self.superblock.geometry.regions_per_shard;
        shards.resize(ResizeStep::EndShrink(regions)).await?;
        shards.resize(ResizeStep::Grow(regions)).await?;
        self.unsettled = false;
        Ok(())
    }

    /// Goes on with the shrink under way, without waiting for it: to be called every now and then.
    ///
    /// # Errors
    /// [`CacheError`]: the shrink is called off, and the cache has its old size; or the device fails.
    pub async fn continue_resize<P: Platform, S: ShardSet>(
        &mut self,
        around: &Surroundings<P>,
        shards: &S,
    ) -> Result<Resizing, CacheError> {
        let Some(after) = self.shrink else {
            return Err(ResizeError::CalledOff.into());
        };
        let state = shards.resize(ResizeStep::ContinueShrink).await?;
        if state.fenced || state.writeback_failing {
            self.cancel_resize(shards).await?;
            let bytes = state.dirty_bytes_left;
            return Err(match state.fenced {
                true => ResizeError::Fenced.into(),
                false => ResizeError::Dirty { bytes }.into(),
            });
        }
        if state.unfinished {
            return Ok(Resizing::Shrinking(state));
        }
        self.shrink = None;
        // The origin may have grown meanwhile.
        let origin_len = self.superblock.geometry.origin_len;
        let after = Geometry { origin_len, ..after };
        let stored = self.store_sizes(around, shards, after).await;
        // After an error too: the device may have the smaller sizes already, and the shards must not use more.
        self.settle_shards(shards).await?;
        stored?;
        Ok(Resizing::Done)
    }

    /// Calls off the shrink under way, if there is one.
    ///
    /// # Errors
    /// The shards cannot be reached.
    pub async fn cancel_resize<S: ShardSet>(&mut self, shards: &S) -> Result<(), CacheError> {
        if self.shrink.is_some() {
            shards.resize(ResizeStep::CancelShrink).await?;
            self.shrink = None;
        }
        Ok(())
    }

    /// Whether a shrink is under way.
    #[must_use]
    pub fn is_shrinking(&self) -> bool {
        self.shrink.is_some()
    }

    async fn store_sizes<P: Platform, S: ShardSet>(
        &mut self,
        around: &Surroundings<P>,
        shards: &S,
        sizes: Geometry,
    ) -> Result<(), CacheError> {
        let (cache, writes) = (&*around.cache, shards.origin_writes());
        store_sizes_served(&around.env, cache, &mut self.superblock, writes, sizes).await
    }
}
