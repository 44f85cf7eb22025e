//! Pages of the index: loads before lookups, and the memory for them.

use std::ops::Range;
use std::rc::Rc;

use super::{Platform, Shard};
use crate::format::group::GROUP_BLOCKS_MAX;
use crate::index::{CHANGES_MIN, Entry, Pass};
use crate::units::{BlockNumber, LocalBlock};

/// The ghost of the policy may take one part in so many of the memory for the index. While the log is read, nothing is in the ghost, and
/// index pages have that part: the changes of a pass take the rest.
pub(super) const GHOST_SHARE: u64 = 4;

impl<P: Platform> Shard<P> {
    /// Waits until the index pages of blocks of one stripe are in memory: see [`BlockMap::load`](super::map::BlockMap::load). If pages
    /// cannot be read or written, the device is fenced on return.
    pub(super) async fn load_run(self: &Rc<Self>, blocks: Range<LocalBlock>) {
        if let Err(why) = self.map.load(&self.cache, blocks).await {
            self.fence(&why);
        }
    }

    /// The same for one block.
    pub(super) async fn load_page(self: &Rc<Self>, block: LocalBlock) {
        self.load_run(block..LocalBlock(block.0 + 1)).await;
    }

    /// The same for the blocks that may share a group with a block.
    pub(super) async fn load_four(self: &Rc<Self>, block: LocalBlock) {
        let first = block.0 - block.0 % GROUP_BLOCKS_MAX as u64;
        self.load_run(LocalBlock(first)..LocalBlock(first + GROUP_BLOCKS_MAX as u64))
            .await;
    }

    /// The same for blocks of one stripe.
    pub(super) async fn load_pages(self: &Rc<Self>, blocks: &Range<u64>) {
        let first = self.local(BlockNumber(blocks.start));
        self.load_run(first..LocalBlock(first.0 + blocks.end - blocks.start))
            .await;
    }

    /// [`Shard::any_dirty`] after loading them, as of the end of the wait.
    pub(super) async fn any_dirty_now(self: &Rc<Self>, blocks: &Range<u64>) -> bool {
        if self.map.dirty_blocks() > 0 {
            self.load_pages(blocks).await;
        }
        self.any_dirty(blocks)
    }

    /// The results of `pick` for all cached blocks, or for all dirty ones: see [`BlockMap::pick`](super::map::BlockMap::pick). None if
    /// pages cannot be read: the device is fenced on return.
    pub(super) async fn pick_blocks<T>(
        self: &Rc<Self>,
        only_dirty: bool,
        pick: impl Fn(LocalBlock, Entry) -> Option<T>,
    ) -> Option<Vec<T>> {
        let picked = self.map.pick(&self.cache, only_dirty, pick).await;
        picked.inspect_err(|why| self.fence(why)).ok()
    }

    /// Waits until no index page is being written: a write must not land in the index of a successor.
    pub async fn pages_written(&self) {
        self.map.pages_written().await;
    }

    /// Changes of a pass over the log, in the memory for the index: see [`Pass`].
    pub(super) fn pass_entries(&self) -> usize {
        let memory = self.id.index_memory.unwrap_or(0);
        let entries = (memory - memory / GHOST_SHARE) / Pass::CHANGE_BYTES as u64;
        entries.clamp(CHANGES_MIN as u64, u32::MAX.into()) as usize
    }

    /// Leaves as much memory to index pages as the passes of a recovery do.
    pub(super) fn fit_pages_to_passes(&self) {
        if let Some(memory) = self.id.index_memory {
            self.map.set_memory(memory / GHOST_SHARE);
        }
    }

    /// Bounds the pages: they have the memory for the index that is left by all else that grows with the cache.
    pub(super) fn fit_pages(&self) {
        let Some(memory) = self.id.index_memory else {
            return;
        };
        self.map.set_memory(memory.saturating_sub(self.grown_bytes()));
    }
}

#[cfg(all(test, feature = "planted-bugs"))]
mod tests {
    use crate::format::geometry::GeometryOptions;
    use crate::planted::{PlantedBug, page_index, plant};
    use crate::policy::Ring;
    use crate::shard::log::{Append, Class};
    use crate::shard::simulated::Disks;
    use crate::units::{BlockNumber, LocalBlock};

    /// The dirty blocks before and after the device dies and a region that is full of them is reclaimed. Of their pages only a few are in
    /// memory.
    fn left_after_reclaim() -> (u64, u64) {
        page_index(true);
        let disks = Disks::new(8 << 20, GeometryOptions::default());
        disks.sim.block_on(async {
            let shard = disks.shard(1);
            for block in 0..200 {
                shard.writeback.note_dirty_record();
                let value = block as u8;
                shard.load_page(LocalBlock(block)).await;
                let what = Append::SameFilled { value, dirty: true };
                let appended = shard
                    .log
                    .append(Ring::Main, BlockNumber(block), what, Class::Reclaim);
                let entry = appended.expect("there is room").entry;
                shard
                    .map
                    .install(&shard.log, LocalBlock(block), entry.with_dirty(true));
            }
            shard.log.close_regions();
            assert!(shard.make_log_stable().await);
            shard.pages_written().await;
            let before = shard.dirty_blocks();
            disks.cache.set_dead(true);
            assert!(!shard.reclaim_one(true).await, "nothing is moved");
            (before, shard.dirty_blocks())
        })
    }

    #[test]
    fn a_reclaim_that_cannot_read_pages_drops_no_dirty_block() {
        assert_eq!(left_after_reclaim(), (200, 200));
        plant(Some(PlantedBug::UnreadCountsAsClean));
        let (before, after) = left_after_reclaim();
        plant(None);
        page_index(false);
        assert!(after < before, "the defect is not found");
    }
}
