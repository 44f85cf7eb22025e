//! The space of regions, on a cache device that takes it when it is first needed: a sparse file, or a device that several caches share.
//!
//! A region without space is *withheld*: free in the manifest, and not opened. It gets its space when a region is needed, before another
//! one is reclaimed. On a shared device, others may need the space more: then regions are given back.
//!
//! **After a crash nothing points to a region whose space was given back**, where the bytes of another cache may be by then:
//! - *Manifest.* Only regions of the free list are given back. A region enters it when the manifest says, stable, that it is free
//!   (`free_region`), or at a start that found it free. On a fenced device the manifest may not say so, and nothing is given back.
//! - *Index image.* It lies in free regions, and is valid only after a clean stop. While a shard runs, the superblock says *open*.
//! - *Index.* A free region has no entries and no readers, by assertion. (A rebuild of an index page may read one, and then ignores it.)
//! - *Writes.* A region is reclaimed after all its writes have ended, and given back after its discard has. One that has not ended in
//!   time fences the device.
//!
//! If giving back fails, the region may have its space or not: it is withheld, and a start looks again.

use std::rc::Rc;

use super::fence::NO_SPACE;
use super::io::CacheIo;
use super::{Platform, Shard};
use crate::format::geometry::REGIONS_MIN;
use crate::stats::count;
use crate::units::BLOCK_BYTES;

impl<P: Platform> Shard<P> {
    /// Withholds the regions without space, when a shard starts. On a sparse file, the first regions have had theirs since the cache
    /// was created.
    pub(super) fn withhold_regions(&self) {
        if self.cache.shares_space() {
            self.withhold_inherited();
        } else if self.cache.is_sparse() {
            self.log.withhold(|region| region < REGIONS_MIN);
        }
    }

    /// The same on a shared device, where any regions may have no space, before recovery appends anything. Also later: a region may get its
    /// space with that of another one, before it is needed.
    pub(super) fn withhold_inherited(&self) {
        if self.cache.shares_space() {
            self.log.withhold(|region| self.has_space(region));
            self.space_changed();
        }
    }

    fn has_space(&self, region: u32) -> bool {
        let len = self.id.layout.region_bytes;
        self.cache.has_space(self.id.position_of(region), len)
    }

    /// More or fewer regions have space: so do more or fewer dirty blocks, and what the policy remembers.
    pub(super) fn space_changed(&self) {
        self.writeback.note_limit();
        if self.cache.shares_space() {
            let bytes = u64::from(self.log.regions_with_space()) * self.id.layout.region_bytes;
            self.tuning.set_room(bytes / BLOCK_BYTES as u64);
        }
    }

    /// Allocates the space of a withheld region and makes it free; false if there is none, or no space. It is tried again for
    /// each region that is needed: there may be space then.
    pub(super) async fn allocate_one(self: &Rc<Self>) -> bool {
        let Some(region) = self.log.take_withheld() else {
            return false;
        };
        let (position, len) = (self.id.position_of(region), self.id.layout.region_bytes);
        let Err(error) = self.cache.allocate(position, len).await else {
            self.log.add_free(region);
            self.space_changed();
            self.pump_writes();
            return true;
        };
        self.log.withhold_again(region);
        if !CacheIo::<P>::is_no_space(&error) {
            self.cache_error(&error);
        } else if !self.cache.shares_space() {
            let counter = &self.stats.counters.allocations_without_space;
            if counter.get() == 0 {
                tracing::warn!(
                    shard = self.id.number,
                    "{NO_SPACE}: {} of {} regions are not used until there is space",
                    self.log.withheld_regions(),
                    self.log.region_count()
                );
            }
            count(counter, 1);
            // The dirty limit is lower now.
            self.writeback.note_limit();
        }
        false
    }

    /// Gives the space of a free region back; false if none is to be given back, or none is free. If another process changes the pool,
    /// giving back pauses.
    pub(super) async fn give_one(self: &Rc<Self>) -> bool {
        let Some(region) = self.log.take_to_give() else {
            return false;
        };
        self.space_changed();
        if self.give_space(region).await {
            self.log.given(region);
        } else {
            self.log.pause_giving(region);
            self.space_changed();
        }
        true
    }

    /// Gives the space of a region back that is free, stable, and that nothing opens meanwhile. False: it has its space, because another
    /// process changes the pool.
    async fn give_space(self: &Rc<Self>, region: u32) -> bool {
        let (position, len) = (self.id.position_of(region), self.id.layout.region_bytes);
        match self.cache.deallocate(position, len).await {
            Err(error) if CacheIo::<P>::is_busy(&error) => return false,
            Err(error) => self.cache_error(&error),
            Ok(()) => {}
        }
        true
    }

    /// Gives the space of regions behind the end of the table back, of which there are `regions`.
    pub(super) async fn give_beyond(self: &Rc<Self>, regions: u32) {
        if !self.cache.shares_space() {
            return;
        }
        for region in (regions..self.id.layout.regions_max).filter(|region| self.has_space(*region)) {
            // If another process changes the pool, the region keeps its chunk until the next start.
            self.give_space(region).await;
        }
    }
}
