//! Pages of the index: loads before lookups, and the memory for them.

use std::ops::Range;
use std::rc::Rc;

use super::{Platform, Shard};
use crate::format::group::GROUP_BLOCKS_MAX;
use crate::index::{CHANGES_MIN, Entry, Pass};
use crate::units::{BlockNumber, LocalBlock};

/// The ghost of the policy may take one part in so many of the memory for the index. While the log is read after a crash, there is no
/// ghost, and index pages have that part: the changes of a pass take the rest.
const GHOST_SHARE: u64 = 4;

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
    ) -> Vec<T> {
        let picked = self.map.pick(&self.cache, only_dirty, pick).await;
        picked.unwrap_or_else(|why| {
            self.fence(&why);
            Vec::new()
        })
    }

    /// Waits until no index page is being written: a write must not land in the index of a successor.
    pub async fn pages_written(&self) {
        self.map.pages_written().await;
    }

    /// Changes of a pass over the log, in the memory for the index: see [`Pass`].
    pub(super) fn pass_entries(&self) -> usize {
        let memory = self.index_memory.unwrap_or(0);
        let entries = (memory - memory / GHOST_SHARE) / Pass::CHANGE_BYTES as u64;
        entries.clamp(CHANGES_MIN as u64, u32::MAX.into()) as usize
    }

    /// Leaves as much memory to index pages as the passes of a recovery do.
    pub(super) fn fit_pages_to_passes(&self) {
        if let Some(memory) = self.index_memory {
            self.map.set_memory(memory / GHOST_SHARE);
        }
    }

    /// Divides the memory for the index between its pages and all else that grows with the cache.
    pub(super) fn fit_pages(&self) {
        let Some(memory) = self.index_memory else { return };
        self.tuning.limit_memory(memory / GHOST_SHARE);
        self.map.set_memory(memory.saturating_sub(self.grown_bytes()));
    }
}
