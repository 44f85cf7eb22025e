//! Pages of the index: loads before lookups, the memory for them, and what a start reads of them.

use std::ops::Range;
use std::rc::Rc;

use futures_util::StreamExt;
use futures_util::stream::iter;

use super::contents::count_entry;
use super::errors::ImageError;
use super::log::Regions;
use super::map::LoadError;
use super::recover_records::Progress;
use super::tasks::Phase;
use super::{Platform, Shard};
use crate::format::group::GROUP_BLOCKS_MAX;
use crate::index::{CHANGES_MIN, Entry, PageImage, Pass};
use crate::policy::Ring;
use crate::units::{BlockNumber, LocalBlock};

/// The ghost of the policy may take one part in so many of the memory for the index. While the log is read, nothing is in the ghost, and
/// index pages have that part: the changes of a pass take the rest.
pub(super) const GHOST_SHARE: u64 = 4;
/// Most pages that are checked for each 16 MiB of a region that is freed: more than it can have left without valid entries, unless its
/// blocks are short and in random order.
const CHECKED_PAGES_MAX: u64 = 256;
/// Number of reads of a start at the same time.
const READS_MAX: usize = 16;

impl<P: Platform> Shard<P> {
    /// Waits until the index pages of blocks of one stripe are in memory: see [`BlockMap::load`](super::map::BlockMap::load). If pages
    /// cannot be read or written, the device is fenced on return.
    pub(super) async fn load_run(self: &Rc<Self>, blocks: Range<LocalBlock>) {
        while let Err(error) = self.map.load(&self.cache, blocks.clone()).await {
            if !self.is_mended(error).await {
                return;
            }
        }
    }

    /// Handles a failed load by rebuilding the damaged page. True: repeat the load. False: the device is fenced.
    pub(super) async fn is_mended(self: &Rc<Self>, error: LoadError) -> bool {
        let mut error = error;
        if let LoadError::Damaged(damaged) = &mut error
            && self.tasks.phase() != Phase::Opening
        {
            match Box::pin(self.rebuild(damaged)).await {
                Ok(()) => return true,
                Err(why) => damaged.why = format!("{}; it cannot be rebuilt: {why}", damaged.why),
            }
        }
        let why = self.map.give_up(error);
        self.fence(&why);
        false
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
        loop {
            match self.map.pick(&self.cache, only_dirty, &pick).await {
                Ok(picked) => return Some(picked),
                Err(error) => {
                    if !self.is_mended(error).await {
                        return None;
                    }
                }
            }
        }
    }

    /// Checks as many pages that each is checked once while all regions are freed: a page whose entries are all of regions that were freed
    /// is removed. Otherwise the directory would have a page for each range of blocks that were ever cached.
    pub(super) async fn check_pages(self: &Rc<Self>) {
        let regions: u64 = Ring::ALL.map(|ring| self.log.regions_of(ring)).iter().sum();
        let pages = self.map.page_counts().0.div_ceil(regions.max(1));
        let most = CHECKED_PAGES_MAX * self.id.layout.region_bytes.div_ceil(16 << 20);
        let checked = self.map.check_pages(&self.cache, pages.min(most) as usize);
        if let Err(error) = checked.await {
            self.is_mended(error).await;
        }
    }

    /// Reads all pages that an image names, in the order of their slots, and counts their entries there and in the regions.
    ///
    /// # Errors
    /// [`ImageError::Damaged`]: a page cannot be read, is not the one that was written last, or names what is not there.
    pub(super) async fn count_pages(
        &self,
        image: &mut PageImage,
        regions: &mut Regions,
        tell: impl Fn(),
    ) -> Result<(), ImageError> {
        let (shard, pages, page_bytes) = (self.id.number, image.pages(), image.page_bytes());
        let damaged = |what: String| ImageError::Damaged { shard, what };
        let mut progress = Progress::new(
            tell,
            self.id.opened.regions_per_shard.into(),
            self.id.layout.local_blocks(),
        );
        let reads = image.runs(&pages).map(async |(slots, pages)| {
            let read = self.cache.read_pages(slots.clone(), page_bytes).await;
            (slots.start, pages, read)
        });
        let (mut reads, mut done) = (iter(reads).buffered(READS_MAX), 0);
        while let Some((first, some, read)) = reads.next().await {
            let read = read.map_err(|error| damaged(error.to_string()))?;
            done += some.len();
            progress.done(done as f64 / pages.len() as f64);
            for page in some {
                let entries = image.entries(*page, first, &read);
                let entries =
                    entries.map_err(|what| damaged(format!("page in slot {}: {what}", page.slot)))?;
                for (block, entry) in &entries {
                    if !count_entry(regions, &self.id.opened, shard, *block, *entry) {
                        return Err(damaged(format!(
                            "block {} is in no region that is in use",
                            block.0
                        )));
                    }
                }
                self.map.count_page(image, &entries).map_err(damaged)?;
            }
        }
        Ok(())
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
            self.map.set_memory(memory / GHOST_SHARE, 0);
        }
    }

    /// Bounds the pages: they have the memory for the index that is left by all else that grows with the cache.
    pub(super) fn fit_pages(&self) {
        let Some(memory) = self.id.index_memory else {
            return;
        };
        let left = |growth: u64| memory.saturating_sub(self.grown_bytes() + growth);
        let ghost = self.tuning.memory_bytes() as u64;
        let growth = (memory / GHOST_SHARE).saturating_sub(ghost);
        self.map.set_memory(left(0), left(growth));
    }
}

#[cfg(all(test, feature = "planted-bugs"))]
mod tests {
    use std::rc::Rc;

    use crate::format::geometry::GeometryOptions;
    use crate::planted::{PlantedBug, page_index, plant};
    use crate::policy::Ring;
    use crate::shard::Shard;
    use crate::shard::log::Append;
    use crate::shard::simulated::{Disks, Simulated, store};
    use crate::units::LocalBlock;

    /// The dirty blocks before and after the device dies and a region that is full of them is reclaimed, which `frees` it. Of their pages
    /// only a few are in memory.
    fn left_after_reclaim(frees: bool) -> (u64, u64) {
        page_index(true);
        let disks = Disks::new(8 << 20, GeometryOptions::default());
        disks.sim.block_on(async {
            let shard = disks.shard(1);
            for block in 0..200 {
                shard.writeback.note_dirty_record();
                let value = block as u8;
                let what = Append::SameFilled { value, dirty: true };
                store(&shard, Ring::Main, block, what).await;
            }
            shard.log.close_regions();
            assert!(shard.make_log_stable().await);
            shard.pages_written().await;
            let before = shard.dirty_blocks();
            disks.cache.set_dead(true);
            assert_eq!(shard.reclaim_one(true).await, frees, "nothing is moved");
            (before, shard.dirty_blocks())
        })
    }

    #[test]
    fn a_reclaim_that_cannot_read_pages_drops_no_dirty_block() {
        assert_eq!(left_after_reclaim(false), (200, 200));
        plant(Some(PlantedBug::UnreadCountsAsClean));
        let (before, after) = left_after_reclaim(true);
        plant(None);
        page_index(false);
        assert!(after < before, "the defect is not found");
    }

    /// Stores clean blocks in main, all in one region.
    async fn stored(shard: &Rc<Shard<Simulated>>, blocks: impl Iterator<Item = u64>) {
        for block in blocks {
            let what = Append::SameFilled {
                value: block as u8,
                dirty: false,
            };
            store(shard, Ring::Main, block, what).await;
        }
        shard.log.close_regions();
        assert!(shard.make_log_stable().await);
    }

    /// The blocks of a region that is freed are gone, though the pages of most are not loaded; blocks that are stored in the same region
    /// afterwards are there.
    #[test]
    fn a_reclaim_loads_few_pages() {
        page_index(true);
        let disks = Disks::new(8 << 20, GeometryOptions::default());
        disks.sim.block_on(async {
            let shard = disks.shard(1);
            let reads = || shard.stats().counts.index_page_reads;
            for turn in 0..20 {
                // Neighbours in the log are in different pages.
                stored(&shard, (0..200).map(|n| n * 83 % 200 * 7)).await;
                assert_eq!(shard.map.len(), 200);
                let (pages, before) = (shard.map.page_counts().0, reads());
                assert!(shard.reclaim_one(true).await);
                assert_eq!(shard.map.len(), 0, "turn {turn}");
                assert!(reads() - before <= pages, "each page is checked at most");
                for block in (0..200).map(|n| LocalBlock(n * 7)) {
                    shard.load_page(block).await;
                    assert_eq!(shard.map.lookup(block), None);
                }
            }
        });
        page_index(false);
    }
}
