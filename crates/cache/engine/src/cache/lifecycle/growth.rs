//! An origin that has grown is taken over while the cache is served.

use super::Lifecycle;
use crate::cache::error::CacheError;
use crate::cache::growth::{GrownOrigin, check_growth};
use crate::cache::shard_set::ShardSet;
use crate::cache::superblock::store_origin_served;
use crate::cache::surroundings::Surroundings;
use crate::planted::{PlantedBug, planted};
use crate::shard::Platform;

impl Lifecycle {
    /// Takes over an origin that has grown to `len` bytes, with its `identity`: first the superblock, then the shards. On return
    /// every shard serves it, and the caller may let requests beyond the old end through. The host record is not written: the
    /// device may be ahead of it.
    ///
    /// # Errors
    /// [`CacheError::Growth`], or [`CacheError`] when the device fails, or was fenced: clients are still served the old size. The
    /// device may have either, which is harmless.
    ///
    /// # Panics
    /// If the origin device is not as long.
    pub async fn grow_origin<P: Platform, S: ShardSet>(
        &mut self,
        around: &Surroundings<P>,
        shards: &S,
        len: u64,
        identity: &str,
    ) -> Result<GrownOrigin, CacheError> {
        let grown = check_growth(&self.superblock.geometry, len)?;
        if shards.state().await?.fenced {
            return Err(CacheError::Fenced);
        }
        let (cache, writes) = (&*around.cache, shards.origin_writes());
        let origin = (len, identity);
        let is_stored = grown.before == grown.after && self.superblock.origin_identity == identity;
        if !is_stored && !planted(PlantedBug::GrowthNotStored) {
            store_origin_served(&around.env, cache, &mut self.superblock, writes, origin).await?;
        }
        // Also if it is stored: an earlier attempt may not have reached every thread.
        shards.grow_origin(len).await?;
        Ok(grown)
    }
}
