//! A cache that gives space back, on a device that several caches share, while it is served.
//!
//! Each shard reclaims its oldest regions and gives their chunks back: see `shard::give_back`. The sizes in the superblock stay, so nothing
//! is written there. The caller sees to it that the cache does not take at once what it has given back.
//!
//! A cache does not give back and shrink at the same time.

use super::error::{CacheError, ResizeError};
use super::lifecycle::Lifecycle;
use super::resize::Resizing;
use super::shard_set::ShardSet;
use crate::shard::ResizeStep;

impl Lifecycle {
    /// Begins to give the space of `regions` regions back, or of fewer if the shards need the rest: the shards with the most regions
    /// first. The cache is used as before. What was begun before and is unfinished is called off.
    ///
    /// # Errors
    /// [`CacheError`]: the cache shrinks, or its device is fenced.
    pub async fn begin_give_back<S: ShardSet>(
        &mut self,
        shards: &S,
        regions: u64,
    ) -> Result<Resizing, CacheError> {
        if self.shrink.is_some() {
            return Err(ResizeError::UnderWay.into());
        }
        if shards.state().await?.fenced {
            return Err(ResizeError::Fenced.into());
        }
        self.cancel_give_back(shards).await?;
        if regions == 0 {
            return Ok(Resizing::Done);
        }
        // Regions with space that no shard has needed yet are given back first.
        shards.resize(ResizeStep::FindSpace).await?;
        // The most that can remain: at least `regions` lie beyond `low`, or all that can be given back; and fewer beyond `high`.
        let geometry = &self.superblock.geometry;
        let (mut low, mut high) = (0, geometry.regions_per_shard * geometry.shard_count);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let beyond = shards.resize(ResizeStep::CountGiveBack(middle)).await?;
            if beyond.regions_left >= regions {
                low = middle;
            } else {
                high = middle;
            }
        }
        shards.resize(ResizeStep::BeginGiveBack(low)).await?;
        self.giving = true;
        self.continue_give_back(shards).await
    }

    /// Goes on to give space back, without waiting for it: to be called every now and then, until it is done.
    ///
    /// # Errors
    /// [`CacheError`]: it is called off; what has been given back is gone.
    pub async fn continue_give_back<S: ShardSet>(&mut self, shards: &S) -> Result<Resizing, CacheError> {
        if !self.giving {
            return Err(ResizeError::CalledOff.into());
        }
        let state = shards.resize(ResizeStep::ContinueGiveBack).await?;
        if state.fenced || state.writeback_failing {
            self.cancel_give_back(shards).await?;
            let bytes = state.dirty_bytes_left;
            return Err(match state.fenced {
                true => ResizeError::Fenced.into(),
                false => ResizeError::Dirty { bytes }.into(),
            });
        }
        if state.unfinished {
            return Ok(Resizing::Shrinking(state));
        }
        self.giving = false;
        Ok(Resizing::Done)
    }

    /// Calls it off, if it is under way: regions that still have space keep it.
    ///
    /// # Errors
    /// The shards cannot be reached.
    pub async fn cancel_give_back<S: ShardSet>(&mut self, shards: &S) -> Result<(), CacheError> {
        if self.giving {
            shards.resize(ResizeStep::CancelGiveBack).await?;
            self.giving = false;
        }
        Ok(())
    }

    /// Whether space is being given back.
    #[must_use]
    pub fn is_giving_back(&self) -> bool {
        self.giving
    }
}
