//! The blocks of a shard: the locations of their latest records, which copies are stale, and which are damaged.
//!
//! Invariants:
//! - Of all records of a block on the device, the newest is lost last, or the remaining ones say "not cached": a new version
//!   goes to the ring that holds the old one ([`BlockMap::ring_for`]), a block changes rings only in the reclaim that frees
//!   its old copy, and a block that is dropped and not stored again leaves a tombstone in its ring.
//! - A block is never both in the index and stale.
//! - The live count of a region is the number of index entries that point to it.
//! - Only this component uses the index.
//! - A block is looked up and changed only while its index page is in memory: after a load of it ([`BlockMap::load`]), before the next
//!   await. Only loads and ends of writes of pages evict them, so a page stays until another task runs. The exception are reads of blocks
//!   whose entries are cached ([`BlockMap::lookup_cached`]).
//!
//! Lookups do not await: code that stores a block loads its page, then looks it up and appends its record without an await in between,
//! because a write could otherwise come between the two.

mod pages;
mod store;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::Range;
use std::rc::Rc;

use flaz_device::Env;
use flaz_device::local::Permit;

pub(super) use self::pages::LoadError;
use self::pages::Pages;
use self::store::Store;
use super::Platform;
use super::io::CacheIo;
use super::log::{Lsn, SegmentLog};
use crate::format::layout::Layout;
use crate::index::{Bulk, DamagedPage, Entry, Index, PAGE_BYTES, PageImage, PagePlan, PageRead, RunPlan};
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::units::{BlockNumber, LocalBlock};

/// Maximum number of tombstones in the log that are not stable.
pub const TOMBSTONES_MAX: usize = 1024;

/// Entries that recovery adds between loads of pages.
const APPEND_ENTRIES: usize = 256;

/// A block whose copy on the device is stale, without a newer record so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stale {
    /// The ring of that copy: its tombstone goes there.
    pub(super) ring: Ring,
    /// The block was cached until now.
    pub(super) was_cached: bool,
}

/// A damaged index page, with a snapshot taken when its rebuild began.
#[derive(Debug)]
pub(super) struct LostPage {
    page: PageRead,
    pub(super) blocks: Range<LocalBlock>,
    /// Only its changes cannot be read, as far as that is known.
    is_good: bool,
    /// The number of the last retirement of a region.
    checked: u64,
    /// Blocks without an index entry whose records may still be in the log.
    stale: BTreeSet<LocalBlock>,
    /// The same for blocks whose last record is in the region being reclaimed.
    pub(super) evacuated: BTreeSet<LocalBlock>,
}

impl LostPage {
    /// Whether this is the page whose damage was found.
    pub(super) fn is_of(&self, damaged: &DamagedPage) -> bool {
        self.page.slot() == damaged.page.slot()
    }
}

/// Records that are not stable yet.
type Unstable = BTreeMap<LocalBlock, (Ring, Lsn)>;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct BlockMap {
    index: Store,
    /// Stale blocks and the rings of their copies. A queued job writes each tombstone, which bounds their number.
    stale: RefCell<BTreeMap<LocalBlock, Ring>>,
    /// Tombstones. At most [`TOMBSTONES_MAX`].
    tombstones: RefCell<Unstable>,
    /// *Cleaned* records. At most one batch of the writeback worker: each batch begins by making the log stable.
    cleaned: RefCell<Unstable>,
    /// Blocks that reclaim has written to the origin and dropped, in a region that is not free yet: their dirty records are
    /// still on the device. At most the blocks of one region.
    evacuated: RefCell<BTreeSet<LocalBlock>>,
    /// Dirty blocks whose last read failed.
    damaged: RefCell<BTreeSet<LocalBlock>>,
    /// Blocks of writes that were in flight when the device was fenced: it may have some of them. (Those of pages that cannot be read are
    /// unknown as well.)
    unknown: RefCell<BTreeSet<LocalBlock>>,
}

impl BlockMap {
    /// An empty map: with a paged index, if there is a plan of one.
    pub(super) fn new(layout: &Layout, plan: Option<PagePlan>) -> Self {
        Self {
            index: Store::new(layout, plan),
            stale: RefCell::default(),
            tombstones: RefCell::default(),
            cleaned: RefCell::default(),
            evacuated: RefCell::default(),
            damaged: RefCell::default(),
            unknown: RefCell::default(),
        }
    }

    // Looking up.

    /// Waits until the index pages of `blocks`, of one stripe, are in memory. There they stay until the caller's next await.
    ///
    /// # Errors
    /// [`LoadError`]. After [`Self::give_up`], blocks of pages outside memory are uncached or [unknown](BlockMap::is_unknown).
    pub(super) async fn load<P: Platform>(
        &self,
        io: &Rc<CacheIo<P>>,
        blocks: Range<LocalBlock>,
    ) -> Result<(), LoadError> {
        match self.index.pages() {
            None => Ok(()),
            Some(pages) => pages.load(io, blocks).await,
        }
    }

    /// Gives up all pages outside memory after a failed load. Returns the reason to fence the device, which the caller must do before its
    /// next await.
    pub(super) fn give_up(&self, error: LoadError) -> String {
        self.pages().give_up(error)
    }

    /// The pages of an index that has some.
    fn pages(&self) -> &Rc<Pages> {
        self.index.pages().expect("a table has no pages")
    }

    /// Whether the page of a block is in memory, or never will be.
    pub(super) fn is_loaded(&self, block: LocalBlock) -> bool {
        self.index.has(block)
    }

    fn assert_loaded(&self, block: LocalBlock) {
        debug_assert!(self.is_loaded(block), "the page of {block:?} was not loaded");
    }

    /// Why the device must be fenced because of the index, if it must be.
    pub(super) fn failure(&self) -> Option<String> {
        self.index.pages().and_then(|pages| pages.failure())
    }

    /// Whether the index is in pages.
    pub(super) fn is_paged(&self) -> bool {
        self.index.pages().is_some()
    }

    /// Bounds the memory of a paged index: see [`PagedIndex::set_memory`](crate::index::PagedIndex::set_memory).
    pub(super) fn set_memory(&self, bytes: u64, least: u64) {
        if let Some(pages) = self.index.pages() {
            pages.index().borrow_mut().set_memory(bytes, least);
        }
    }

    /// Number of index pages, and of those in memory; 0 of a table.
    pub(super) fn page_counts(&self) -> (u64, u64) {
        let counts = self.index.pages().map(|pages| {
            let index = pages.index().borrow();
            (index.page_count() as u64, index.frames_in_use() as u64)
        });
        counts.unwrap_or_default()
    }

    /// Waits until no index page is being written.
    pub(super) async fn pages_written(&self) {
        if let Some(pages) = self.index.pages() {
            pages.written().await;
        }
    }

    /// The entry of a block, without counting a use.
    pub(super) fn lookup(&self, block: LocalBlock) -> Option<Entry> {
        self.assert_loaded(block);
        self.index.get(block)
    }

    /// The entry of a block that was read often, without its page, and without counting a use.
    pub(super) fn lookup_cached(&self, block: LocalBlock) -> Option<Entry> {
        self.index.get_cached(block)
    }

    /// A block with this entry was read, as of this moment, and its page was loaded for that.
    pub(super) fn cache_entry(&self, block: LocalBlock, entry: Entry) {
        self.pages().index().borrow_mut().cache_entry(block, entry);
    }

    /// The entry of a block, for assertions and tests. If its page is not in memory, it counts as not cached.
    pub(super) fn peek(&self, block: LocalBlock) -> Option<Entry> {
        self.index.peek(block)
    }

    /// The entry of a block, counting a use if it `counts`.
    pub(super) fn touch(&self, block: LocalBlock, counts: impl FnOnce(Entry) -> bool) -> Option<Entry> {
        self.assert_loaded(block);
        self.index.hit(block, counts)
    }

    /// Counts a use of a block that had this entry, if it `counts`. Its region has not been freed since.
    pub(super) fn count_use(&self, block: LocalBlock, entry: Entry, counts: impl FnOnce(Entry) -> bool) {
        self.index.count_use(block, entry, counts);
    }

    /// All clean blocks in a region leave a paged index, and none there is dirty. No page is loaded or changed. Returns how many blocks that
    /// are.
    pub(super) fn retire(&self, log: &SegmentLog, region: u32) -> u32 {
        let blocks = log.retire_live(region);
        self.index
            .retire(region, blocks, |entry| log.region_of(entry.location()) == region);
        blocks
    }

    /// Whether there may be dirty blocks in a region. Of a paged index: whether there are, also if their pages cannot be read.
    pub(super) fn may_be_dirty_in(&self, log: &SegmentLog, region: u32) -> bool {
        match self.index.pages() {
            None => self.dirty_blocks() > 0 && log.live_in(region) > 0,
            Some(pages) => pages.index().borrow().dirty_in(region) > 0,
        }
    }

    /// Loads the next `count` pages of a paged index, after those of the last call, and drops entries of regions that are free.
    ///
    /// # Errors
    /// As [`BlockMap::load`].
    pub(super) async fn check_pages<P: Platform>(
        &self,
        io: &Rc<CacheIo<P>>,
        count: usize,
    ) -> Result<(), LoadError> {
        match self.index.pages() {
            None => Ok(()),
            Some(pages) => pages.check_some(io, count).await,
        }
    }

    /// The uses of a fragment, in a paged index.
    pub(super) fn uses_of(&self, fragment: Entry) -> u8 {
        let pages = self.index.pages();
        pages.map_or(0, |pages| pages.index().borrow().uses_of(fragment))
    }

    /// The uses in a region are forgotten, because it is freed.
    pub(super) fn forget_uses(&self, region: u32) {
        if let Some(pages) = self.index.pages() {
            pages.index().borrow_mut().forget_uses(region);
        }
    }

    /// Whether a block is dirty, or may be.
    pub(super) fn is_dirty(&self, block: LocalBlock) -> bool {
        self.lookup(block).is_some_and(|entry| entry.dirty()) || self.index.is_unknown(block)
    }

    /// Whether `entry` still points to the latest record of a block.
    pub(super) fn is_at(&self, block: LocalBlock, entry: Entry) -> bool {
        self.lookup(block).is_some_and(|now| now.same_place(entry))
    }

    /// The ring that a new version must go to, because an older copy is still there, or because the tombstone of that copy
    /// could be lost: a version in the other ring could be reclaimed before the copy.
    pub(super) fn ring_for(&self, log: &SegmentLog, block: LocalBlock, number: BlockNumber) -> Option<Ring> {
        self.lookup(block)
            .map(|entry| log.ring_at(entry.location()))
            .or_else(|| self.stale_ring(block))
            .or_else(|| self.tombstones.borrow().get(&block).map(|(ring, _)| *ring))
            .or_else(|| log.ring_of_open_record(number))
    }

    // Changing.

    /// Sets the entry of a block.
    pub(super) fn install(&self, log: &SegmentLog, block: LocalBlock, entry: Entry) {
        debug_assert!(
            self.damaged.borrow().is_empty()
                || entry.dirty()
                || !self.is_damaged(block)
                || self.lookup(block).is_some()
        );
        self.assert_loaded(block);
        if self.index.is_lost(block) {
            return;
        }
        let no_uses = self.is_paged() && log.ring_at(entry.location()) == Ring::Main;
        // There, uses count only later.
        let entry = if no_uses { entry.with_hits(0) } else { entry };
        let old = self.index.insert(block, entry);
        log.count_live(entry.location(), 1);
        match old {
            Some(old) => log.count_live(old.location(), -1),
            None => {
                self.stale.borrow_mut().remove(&block);
            }
        }
    }

    /// Removes a block for which no tombstone is needed.
    pub(super) fn remove(&self, log: &SegmentLog, block: LocalBlock) -> Option<Entry> {
        self.assert_loaded(block);
        let old = self.index.remove(block)?;
        log.count_live(old.location(), -1);
        self.not_damaged(block);
        Some(old)
    }

    /// Drops a block because the origin has changed. If a ring is returned, a tombstone must be written there.
    pub(super) fn invalidate(&self, log: &SegmentLog, block: LocalBlock) -> Option<Stale> {
        let removed = self.remove(log, block);
        if let Some(entry) = removed {
            let before = self
                .stale
                .borrow_mut()
                .insert(block, log.ring_at(entry.location()));
            assert!(before.is_none(), "a cached block is not stale");
        }
        let (ring, was_cached) = (self.stale_ring(block)?, removed.is_some());
        Some(Stale { ring, was_cached })
    }

    /// A record is lost, and may have been the only one that made older copies of its block stale.
    pub(super) fn make_stale_again(&self, block: LocalBlock, ring: Ring) {
        assert!(!self.is_known_cached(block), "a cached block is not stale");
        self.stale.borrow_mut().entry(block).or_insert(ring);
    }

    /// Whether a block is cached, as far as its page is in memory: for assertions.
    fn is_known_cached(&self, block: LocalBlock) -> bool {
        self.is_loaded(block) && self.peek(block).is_some()
    }

    pub(super) fn stale_ring(&self, block: LocalBlock) -> Option<Ring> {
        self.stale.borrow().get(&block).copied()
    }

    pub(super) fn any_stale(&self) -> bool {
        !self.stale.borrow().is_empty()
    }

    pub(super) fn any_stale_in(&self, blocks: Range<LocalBlock>) -> bool {
        self.stale.borrow().range(blocks).next().is_some()
    }

    /// The device is fenced: no tombstones will be written for stale blocks.
    pub(super) fn forget_stale(&self) {
        self.stale.borrow_mut().clear();
    }

    /// A tombstone of a stale block was appended.
    pub(super) fn tombstone_appended(&self, block: LocalBlock, ring: Ring, lsn: Lsn) {
        assert!(
            !self.is_known_cached(block),
            "a block with a tombstone is not cached"
        );
        self.stale.borrow_mut().remove(&block);
        self.tombstones.borrow_mut().insert(block, (ring, lsn));
    }

    /// Whether the log must be made stable before more tombstones are appended.
    pub(super) fn is_full_of_tombstones(&self) -> bool {
        self.tombstones.borrow().len() >= TOMBSTONES_MAX
    }

    /// The log is now stable up to a later position.
    pub(super) fn log_stable(&self, log: &SegmentLog) {
        let unstable = |_: &LocalBlock, (ring, lsn): &mut (Ring, Lsn)| !log.is_stable(*ring, *lsn);
        self.cleaned.borrow_mut().retain(unstable);
        self.tombstones.borrow_mut().retain(unstable);
    }

    // Dirty blocks.

    pub(super) fn dirty_blocks(&self) -> u64 {
        self.index.fragments().dirty_blocks()
    }

    /// Bytes of dirty blocks on the device: fragments, or records.
    pub(super) fn dirty_device_bytes(&self) -> u64 {
        self.index.fragments().dirty_device_bytes()
    }

    /// A *cleaned* record was appended.
    pub(super) fn mark_clean(&self, block: LocalBlock, ring: Ring, lsn: Lsn) {
        assert!(self.is_dirty(block), "a clean block is not cleaned");
        self.index.clean(block);
        self.not_damaged(block);
        self.cleaned.borrow_mut().insert(block, (ring, lsn));
    }

    /// Whether the *cleaned* record of a block is not stable yet.
    pub(super) fn is_newly_clean(&self, block: LocalBlock) -> bool {
        self.cleaned.borrow().contains_key(&block)
    }

    pub(super) fn any_newly_clean(&self) -> bool {
        !self.cleaned.borrow().is_empty()
    }

    pub(super) fn any_newly_clean_of(&self, mut blocks: impl Iterator<Item = LocalBlock>) -> bool {
        self.any_newly_clean() && blocks.any(|block| self.is_newly_clean(block))
    }

    /// Removes a dirty block that reclaim has written to the origin.
    pub(super) fn evacuate(&self, log: &SegmentLog, block: LocalBlock) {
        assert!(self.is_dirty(block), "only dirty blocks are written back");
        self.remove(log, block);
        self.evacuated.borrow_mut().insert(block);
    }

    pub(super) fn any_evacuated_of(&self, mut blocks: impl Iterator<Item = LocalBlock>) -> bool {
        let evacuated = self.evacuated.borrow();
        !evacuated.is_empty() && blocks.any(|block| evacuated.contains(&block))
    }

    /// The region that blocks were evacuated from is free.
    pub(super) fn evacuation_ended(&self) {
        self.evacuated.borrow_mut().clear();
    }

    /// The next dirty blocks in address order, from `from` on, wrapping around, up to a maximum; and whether these are all.
    ///
    /// # Errors
    /// As [`BlockMap::load`].
    pub(super) async fn next_dirty<P: Platform>(
        &self,
        io: &Rc<CacheIo<P>>,
        from: LocalBlock,
        blocks: LocalBlock,
        most: usize,
    ) -> Result<(Vec<LocalBlock>, bool), LoadError> {
        assert!(most > 0, "some are asked for");
        match self.index.pages() {
            Some(pages) => next_dirty_of_pages(pages, io, from, most).await,
            None => Ok(self.next_dirty_of_table(io.env(), from, blocks, most).await),
        }
    }

    async fn next_dirty_of_table(
        &self,
        env: &impl Env,
        from: LocalBlock,
        blocks: LocalBlock,
        most: usize,
    ) -> (Vec<LocalBlock>, bool) {
        let all = blocks.0.max(1);
        let distance = |block: LocalBlock| (block.0 + all - from.0.min(all)) % all;
        let (mut nearest, mut everything) = (BinaryHeap::new(), true);
        let segments = self.index.table().borrow().segment_count();
        for segment in 0..segments {
            {
                let index = self.index.table().borrow();
                for (block, _) in index.iter_segment(segment).filter(|(_, entry)| entry.dirty()) {
                    nearest.push((distance(block), block));
                    if nearest.len() > most {
                        nearest.pop();
                        everything = false;
                    }
                }
            }
            if segments > 1 {
                env.yield_now().await;
            }
        }
        let nearest = nearest.into_sorted_vec().into_iter();
        (nearest.map(|(_, block)| block).collect(), everything)
    }

    // Copies that cannot be read.

    /// A dirty block could not be read. False: its previous read failed, too.
    pub(super) fn note_damaged(&self, block: LocalBlock) -> bool {
        self.damaged.borrow_mut().insert(block)
    }

    /// The copy of a block is readable again, replaced, or no longer needed.
    pub(super) fn not_damaged(&self, block: LocalBlock) {
        let mut damaged = self.damaged.borrow_mut();
        if !damaged.is_empty() {
            damaged.remove(&block);
        }
    }

    pub(super) fn is_damaged(&self, block: LocalBlock) -> bool {
        self.damaged.borrow().contains(&block)
    }

    pub(super) fn damaged_blocks(&self) -> u64 {
        self.damaged.borrow().len() as u64
    }

    /// The device is fenced and has the new or the old contents of a block.
    pub(super) fn note_unknown(&self, block: LocalBlock) {
        self.unknown.borrow_mut().insert(block);
    }

    pub(super) fn is_unknown(&self, block: LocalBlock) -> bool {
        self.unknown.borrow().contains(&block) || self.index.is_unknown(block)
    }

    // Damaged pages.

    /// Waits for other rebuilds to end.
    pub(super) async fn turn_to_rebuild(&self) -> Permit<'_> {
        self.pages().turn_to_rebuild().await
    }

    /// Begins to rebuild a damaged page, and those that cannot be read for the same reason. Empty: it no longer needs a rebuild.
    ///
    /// # Errors
    /// There were too many rebuilds in this run.
    pub(super) fn begin_rebuild(&self, damaged: &DamagedPage) -> Result<Vec<LostPage>, String> {
        let pages = self.pages();
        let Some(lost) = pages.index().borrow_mut().begin_rebuild(damaged) else {
            pages.forget_damaged(damaged.page);
            return Ok(Vec::new());
        };
        if !pages.may_rebuild() {
            return Err("many others were damaged".into());
        }
        let evacuated = self.evacuated.borrow();
        let checked = lost.checked;
        let lost = lost.pages.into_iter().map(|(page, blocks)| LostPage {
            page,
            stale: self.stale_in(&blocks),
            evacuated: evacuated.range(blocks.clone()).copied().collect(),
            blocks,
            is_good: damaged.of_changes && !pages.is_bad(page),
            checked,
        });
        Ok(lost.collect())
    }

    fn stale_in(&self, blocks: &Range<LocalBlock>) -> BTreeSet<LocalBlock> {
        let stale = self.stale.borrow();
        stale.range(blocks.clone()).map(|(block, _)| *block).collect()
    }

    /// A rebuild has ended.
    pub(super) fn end_rebuild(&self) {
        self.pages().note_rebuild();
    }

    /// Number of dirty blocks in a region.
    pub(super) fn dirty_in(&self, region: u32) -> u32 {
        self.pages().index().borrow().dirty_in(region)
    }

    /// Replaces a damaged page. `entries`: from the log, sorted by block. False: the page no longer needs a rebuild.
    pub(super) fn put_rebuilt(&self, lost: &LostPage, mut entries: Vec<(LocalBlock, Entry)>) -> bool {
        let stale = self.stale_in(&lost.blocks);
        if !planted(PlantedBug::RebuiltWithRemoved) {
            entries.retain(|(block, _)| !lost.stale.contains(block) && !stale.contains(block));
        }
        self.pages().forget_damaged(lost.page);
        self.index
            .put_rebuilt(lost.page, &entries, lost.checked, lost.is_good)
    }

    // All blocks.

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.index.memory_bytes()
    }

    /// Bytes of the fragments that the entries name.
    pub(super) fn fragment_bytes(&self) -> u64 {
        self.index.fragments().bytes()
    }

    /// The mean of those, same-filled blocks not included; 0 if there is none.
    pub(super) fn mean_fragment_bytes(&self) -> u64 {
        self.index.fragments().mean_bytes()
    }

    /// The results of `pick` for all cached blocks, or for all dirty ones, in no particular order. With a paged index others run
    /// meanwhile: the result has the blocks that `pick` takes at any time during the call.
    ///
    /// # Errors
    /// As [`BlockMap::load`].
    pub(super) async fn pick<T, P: Platform>(
        &self,
        io: &Rc<CacheIo<P>>,
        only_dirty: bool,
        pick: impl Fn(LocalBlock, Entry) -> Option<T>,
    ) -> Result<Vec<T>, LoadError> {
        let mut picked = Vec::new();
        let is_wanted = |entry: Entry| entry.dirty() || !only_dirty;
        match self.index.pages() {
            None => {
                let index = self.index.table().borrow();
                let wanted = index.iter().filter(|(_, entry)| is_wanted(*entry));
                picked.extend(wanted.filter_map(|(block, entry)| pick(block, entry)));
            }
            Some(pages) => {
                let visit = |block, entry| {
                    picked.extend(is_wanted(entry).then(|| pick(block, entry)).flatten());
                    true
                };
                pages.walk(io, LocalBlock(0), only_dirty, visit).await?;
            }
        }
        Ok(picked)
    }

    // Restoring the index of an earlier opening, and saving it for a later one.

    /// Restores an index whose entries are already in the live counts of the regions.
    pub(super) fn replace(&self, index: Index) {
        assert_eq!(self.len(), 0, "nothing was cached before");
        assert!(!self.is_paged(), "an image is of a table");
        *self.index.table().borrow_mut() = index;
    }

    /// Changes for an empty map.
    pub(super) fn bulk(&self) -> Bulk {
        Bulk::new(&self.index.table().borrow(), 0)
    }

    /// Prepares an empty map for this many changes.
    pub(super) fn reserve(&self, changes: usize) {
        self.index.table().borrow_mut().reserve(changes);
    }

    /// How a recovery writes the pages of sorted runs.
    pub(super) fn run_plan(&self) -> RunPlan {
        match self.index.pages() {
            Some(pages) => pages.index().borrow().run_plan(),
            None => RunPlan {
                mark: 0,
                page_bytes: PAGE_BYTES,
            },
        }
    }

    /// Takes a chunk of free index slots for a run. Returns the first slot.
    pub(super) fn lend_chunk(&self) -> Option<u32> {
        self.index.pages()?.index().borrow_mut().lend_chunk()
    }

    /// Releases a chunk.
    pub(super) fn return_chunk(&self, first_slot: u32) {
        let pages = self.index.pages().expect("it has lent a chunk");
        pages.index().borrow_mut().return_chunk(first_slot);
    }

    /// Adds entries of blocks that ascend, all behind those that were added before. The caller counts them in their regions.
    ///
    /// # Errors
    /// As [`BlockMap::load`]: entries are missing then.
    pub(super) async fn append_sorted<P: Platform>(
        &self,
        io: &Rc<CacheIo<P>>,
        entries: &[(LocalBlock, Entry)],
    ) -> Result<(), LoadError> {
        debug_assert!(entries.is_sorted_by(|(a, _), (b, _)| a < b), "blocks ascend");
        for some in entries.chunks(APPEND_ENTRIES) {
            // All go to the last page, and to those that follow it.
            let first = some[0].0;
            self.load(io, first..LocalBlock(first.0 + 1)).await?;
            for (block, entry) in some {
                self.index.insert(*block, *entry);
            }
        }
        Ok(())
    }

    pub(super) fn apply(&self, bulk: &mut Bulk) {
        self.index.table().borrow_mut().apply(bulk);
    }

    /// Releases unused memory, and counts the entries of each region.
    pub(super) fn rebuilt(&self, log: &SegmentLog, regions: u32) {
        let mut index = self.index.table().borrow_mut();
        index.fit();
        let mut live = vec![0; regions as usize];
        for entry in index.values() {
            live[log.region_of(entry.location()) as usize] += 1;
        }
        log.inherit_live(&live);
    }

    /// Writes all pages of a paged index that have changed. Returns whether there were some; `None`: some cannot be written.
    pub(super) async fn write_changed_pages<P: Platform>(&self, io: &Rc<CacheIo<P>>) -> Option<bool> {
        match self.index.pages() {
            None => Some(false),
            Some(pages) => pages.write_changed(io).await,
        }
    }

    /// Bytes of [`BlockMap::write_image`].
    pub(super) fn image_bytes(&self) -> u64 {
        let bytes = match self.index.pages() {
            None => self.index.table().borrow().image_bytes(),
            Some(pages) => pages.index().borrow().image_bytes(),
        };
        bytes as u64
    }

    /// Appends the image of the index. No page is written from now on; all that have changed are.
    pub(super) fn write_image(&self, out: &mut Vec<u8>) {
        match self.index.pages() {
            None => self.index.table().borrow().write_image(out),
            Some(pages) => out.extend(pages.last_image()),
        }
    }

    /// Whether the pages of an image are as large as those of this index, which is in pages, and its changes fit in memory.
    pub(super) fn fits(&self, image: &PageImage) -> bool {
        let pages = self.index.pages();
        pages.is_some_and(|pages| pages.index().borrow().fits(image))
    }

    /// Counts the entries of a page that an image names.
    ///
    /// # Errors
    /// As [`PageImage::count`].
    pub(super) fn count_page(
        &self,
        image: &mut PageImage,
        entries: &[(LocalBlock, Entry)],
    ) -> Result<(), String> {
        self.index.count(image, entries)
    }

    /// Restores an index in pages, all of which were counted, also in the live counts of the regions.
    pub(super) fn inherit_pages(&self, image: PageImage) {
        assert_eq!(self.len(), 0, "nothing was cached before");
        self.index.inherit(image);
    }
}

/// Pages are in address order.
async fn next_dirty_of_pages<P: Platform>(
    pages: &Rc<Pages>,
    io: &Rc<CacheIo<P>>,
    from: LocalBlock,
    most: usize,
) -> Result<(Vec<LocalBlock>, bool), LoadError> {
    let mut found = Vec::new();
    for (begin, end) in [(from, LocalBlock(u64::MAX)), (LocalBlock(0), from)] {
        if found.len() > most || begin >= end {
            continue;
        }
        let visit = |block: LocalBlock, entry: Entry| {
            if block < end && entry.dirty() {
                found.push(block);
            }
            block < end && found.len() <= most
        };
        pages.walk(io, begin, true, visit).await?;
    }
    let everything = found.len() <= most;
    found.truncate(most);
    Ok((found, everything))
}

#[cfg(test)]
impl BlockMap {
    /// Sets an entry whose location is not in any region.
    pub(super) fn insert_alone(&self, block: LocalBlock, entry: Entry) {
        self.index.insert(block, entry);
    }

    pub(super) fn clean_alone(&self, block: LocalBlock) {
        self.index.clean(block);
    }

    pub(super) fn segments(&self) -> usize {
        self.index.table().borrow().segment_count()
    }
}

#[cfg(test)]
mod tests;
