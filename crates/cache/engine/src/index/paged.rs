//! An index that is larger than the memory for it: pages on the device, a directory of them, and some of them in memory.
//!
//! This part does no I/O. Its owner reads and writes pages for it:
//!
//! ```text
//! before blocks are used       make_room, missing; read, put, until none is missing
//! if there is no room          begin_writes; complete, if a write reads first; write, end_write
//! ```
//!
//! Invariants:
//! - A page that is not in memory is in its slot, and the directory has the checksum of the bytes that were written there: an older version
//!   of the page is as invalid as damage. A stale page would be a stale block.
//! - A page goes to a free slot, and its last slot is free when that write has succeeded: a failed or torn write damages nothing that
//!   the directory names. Only if no slot is free, a page in memory overwrites its own: the directory names the frame then.
//! - The slot of a failed write is not used again.
//! - A frame is evicted if its page has not changed since its last successful write began, or if its changes since then are small and stay in
//!   memory (see [`super::delta`]). Any other frame that is chosen is evicted when its page has been written, or its changes have
//!   (see [`super::rows`]).
//! - Only pages that are not in memory have changes there. A page is its version in its slot, then its changes on the device, then those in
//!   memory. A write of its changes writes all since its last write; one of the page itself leaves none.
//! - A group is in one page: see [`super::leaf`].
//! - After [`PagedIndex::abandon`], pages that are not in memory are never read again: their blocks are not cached, or *unknown* if some
//!   may be dirty.
//! - Entries in pages have no hits: see [`HitBits`].
//! - Entries in pages may be those of blocks that left the index with their region: see [`super::retired`]. A page is *checked* when it is
//!   loaded, before an entry is added, when it is joined with another one, and when it is written or evicted. On the device, the last eight
//!   bytes of a page say when the entries that are there were checked.
//! - Single entries of pages that are not in memory are kept in an [`EntryCache`]: each change of an entry removes it there.
//! - The entries of two neighbouring pages in memory do not fit in seven eighths of a page, so pages are well filled: the fewer pages,
//!   the less memory for their places, and the more for the changes of each.
//!
//! Nothing of this survives a crash: the log has the truth. A clean stop keeps a [`PageImage`].

use super::delta::{Delta, Deltas, Touched};
use super::directory::{Directory, PLACES_MAX, Place, Position, Saved};
use super::entry::Entry;
use super::entry_cache::EntryCache;
use super::hits::HitBits;
use super::leaf::{Full, Leaf, PAGE_BYTES};
use super::pass::RunPlan;
use super::retired::Retired;
use super::rows::{self, Rows, Stored};
use super::slots::Slots;
use super::{Fragments, others_name};
use crate::planted::{PlantedBug, planted};
use crate::units::LocalBlock;

/// Fewest pages in memory: those of a few operations at the same time.
pub const FRAMES_MIN: usize = 8;
/// The last bytes of a page on the device: when it was checked.
const STAMP_BYTES: usize = 8;
/// A page has room for so many bytes in any case: a group.
const USED_BYTES_MIN: usize = 72;
/// One part in so many of the memory is for single entries of blocks that are read often.
const ENTRY_CACHE_SHARE: u64 = 128;
/// Neighbouring pages are joined if their entries fit in so many eighths of a page.
const JOINED_EIGHTHS: usize = 7;
/// The dimensions of a paged index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePlan {
    /// Slots on the device.
    pub slots: u32,
    /// Memory for all of the index, in bytes. It has [`Self::frames_min`] pages in any case.
    pub memory_bytes: u64,
    /// In each page that is written: tells an index that this opening begins from all others. One that it inherits keeps its own.
    pub mark: u64,
    /// Fewest pages in memory.
    pub frames_min: usize,
    /// Bytes of a page on the device.
    pub page_bytes: usize,
    /// Maximum number of them in use.
    pub used_bytes_max: usize,
    /// Bytes of the regions that entries are in.
    pub region_bytes: u64,
    /// What is left of the memory when everything else that shares it has reached its maximum. It bounds the changes of pages that are not
    /// in memory, because these cannot be released at once.
    pub memory_least: u64,
    /// Minimum memory for these changes, in bytes: for tests.
    pub deltas_min: usize,
    /// Memory for single entries, in bytes.
    pub entry_cache_bytes: u64,
}

impl PagePlan {
    /// A few small pages, of which a small cache has many, in slots of so many bytes: for tests.
    #[must_use]
    pub fn small(slots: u32, page_bytes: usize, mark: u64) -> Self {
        Self {
            frames_min: 4,
            page_bytes,
            used_bytes_max: USED_BYTES_MIN,
            deltas_min: 1 << 10,
            entry_cache_bytes: 1 << 10,
            ..Self::new(slots, 0, mark)
        }
    }

    /// The plan of an index in `memory_bytes`, with so many slots.
    #[must_use]
    pub fn new(slots: u32, memory_bytes: u64, mark: u64) -> Self {
        Self {
            slots,
            memory_bytes,
            mark,
            frames_min: FRAMES_MIN,
            page_bytes: PAGE_BYTES,
            used_bytes_max: PAGE_BYTES - STAMP_BYTES,
            region_bytes: 16 << 20,
            memory_least: memory_bytes,
            deltas_min: 0,
            entry_cache_bytes: memory_bytes / ENTRY_CACHE_SHARE,
        }
    }
}

/// A page to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRead {
    first: LocalBlock,
    saved: Saved,
    /// Checksum of its changes on the device, if they are to be read, too.
    changes: Option<u32>,
}

impl PageRead {
    /// The slot of the page.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.saved.slot
    }

    /// The slot of its changes, if they are to be read.
    #[must_use]
    pub fn changes_slot(&self) -> Option<u32> {
        let (row, _) = rows::row_of(self.saved.slot);
        self.changes.map(|_| rows::changes_slot(row))
    }

    /// Whether both pages have their changes in the same page of changes.
    #[must_use]
    pub fn shares_changes(&self, other: &Self) -> bool {
        self.changes_slot().is_some()
            && self.changes_slot() == other.changes_slot()
            && self.changes == other.changes
    }
}

/// A page to write: one of the index, or one of changes.
#[derive(Debug)]
pub struct PageWrite {
    slot: u32,
    what: Written,
    /// What to write, [`PAGE_BYTES`]. Empty until a write of changes is complete.
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
enum Written {
    Page(WrittenFrame, Saved),
    /// The changes of a row, and of it the frames whose turn it is to leave memory.
    Changes(u32, Vec<WrittenFrame>),
}

/// A frame, when the write began.
#[derive(Clone, Copy, Debug)]
struct WrittenFrame {
    number: u32,
    id: u64,
    version: u64,
}

impl PageWrite {
    /// The slot to write.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Whether it must be [completed](PagedIndex::complete) before it is written: with the contents of its slot, as they are now.
    #[must_use]
    pub fn reads_first(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// A page in memory.
#[derive(Debug)]
struct Frame {
    leaf: Leaf,
    /// The retirement at which the entries were checked last.
    checked: u64,
    /// Distinguishes it from others that had its number.
    id: u64,
    /// Goes up with each change.
    version: u64,
    /// The last write of the page that succeeded, and the version on the device, with the changes that are there.
    saved: Option<(Saved, u64)>,
    is_writing: bool,
    stay: Stay,
    /// Blocks that changed since the last write of the page, or since the start of one in progress.
    touched: Touched,
}

/// How long a page stays in memory (CLOCK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    /// Used since the hand came by: at least until it has come by twice.
    Used,
    /// Until the hand comes by.
    Unused,
    /// The hand came by, but the page has changed: until it is written.
    Leaving,
}

impl Frame {
    fn is_changed(&self) -> bool {
        self.saved.is_none_or(|(_, version)| version != self.version)
    }

    /// The slot of the page.
    fn slot(&self) -> Option<u32> {
        self.saved.map(|(saved, _)| saved.slot)
    }

    /// Bytes of memory besides the structure itself.
    fn memory_bytes(&self) -> usize {
        self.leaf.memory_bytes() + self.touched.memory_bytes()
    }

    /// The entry of a block was set or removed.
    fn touch(&mut self, block: LocalBlock) {
        self.touched.note(block.0 - self.leaf.first().0);
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct PagedIndex {
    directory: Directory,
    frames: Vec<Option<Frame>>,
    /// Numbers of frames without a page.
    vacant: Vec<u32>,
    /// Bytes of their pages in memory, without those of `frames` itself.
    frame_bytes: usize,
    /// Changes of pages that are not in memory. They are applied when the page is loaded.
    deltas: Deltas,
    /// Changes of pages on the device.
    rows: Rows,
    /// Entries of pages that are not in memory, mostly.
    entry_cache: EntryCache,
    /// Number of those that leave after a write.
    leaving: usize,
    plan: PagePlan,
    /// Pages that are not in memory are not read any more.
    is_abandoned: bool,
    /// The next frame that may leave memory.
    hand: usize,
    /// The last frame that was looked at for a write.
    written: usize,
    slots: Slots,
    hits: HitBits,
    retired: Retired,
    /// The slots of the pages that are being rebuilt, as long as these have not been in memory since.
    rebuilt_slots: Vec<u32>,
    ids: u64,
    len: usize,
    fragments: Fragments,
}

impl PagedIndex {
    /// An empty index.
    #[must_use]
    pub fn new(plan: PagePlan) -> Self {
        let room = USED_BYTES_MIN..=plan.page_bytes.min(PAGE_BYTES) - STAMP_BYTES;
        let is_possible = room.contains(&plan.used_bytes_max) && plan.slots <= PLACES_MAX;
        assert!(is_possible, "{plan:?}");
        let mut index = Self {
            directory: Directory::new(Place::Frame(0)),
            frames: Vec::new(),
            vacant: Vec::new(),
            frame_bytes: 0,
            deltas: Deltas::default(),
            rows: Rows::new(plan.slots),
            entry_cache: EntryCache::new(plan.entry_cache_bytes),
            leaving: 0,
            plan,
            is_abandoned: false,
            hand: 0,
            written: 0,
            slots: Slots::new(plan.slots),
            hits: HitBits::new(plan.region_bytes),
            retired: Retired::new(plan.region_bytes),
            rebuilt_slots: Vec::new(),
            ids: 0,
            len: 0,
            fragments: Fragments::default(),
        };
        let frame = index.add_frame(Leaf::new(LocalBlock(0)), None, 0);
        assert_eq!(frame, 0, "the directory names it");
        index
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no block is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bounds the memory for all of the index, in bytes. `least`: see [`PagePlan::memory_least`].
    pub fn set_memory(&mut self, bytes: u64, least: u64) {
        self.plan.memory_bytes = bytes;
        self.plan.memory_least = least;
    }

    /// Number of pages, in memory or not.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.directory.len()
    }

    /// The fragments that the entries name.
    #[must_use]
    pub fn fragments(&self) -> Fragments {
        self.fragments
    }

    /// Bytes of memory that the index takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.frame_bytes + self.tables_bytes()
    }

    fn tables_bytes(&self) -> usize {
        let frames = self.frames.capacity() * size_of::<Option<Frame>>() + self.vacant.capacity() * 4;
        let regions = self.hits.memory_bytes() + self.retired.memory_bytes();
        frames
            + self.directory.memory_bytes()
            + self.slots.memory_bytes()
            + regions
            + self.deltas.memory_bytes()
            + self.rows.memory_bytes()
            + self.entry_cache.memory_bytes()
    }

    // Free slots that a recovery uses for sorted runs.

    /// How the pages of runs are written.
    #[must_use]
    pub fn run_plan(&self) -> RunPlan {
        RunPlan {
            mark: self.plan.mark,
            page_bytes: self.plan.page_bytes,
        }
    }

    /// Takes a chunk of consecutive slots, while more than half of all slots are free. Returns the first slot. None while changes are
    /// written: those of a row whose pages have all left are in a chunk that counts as free.
    pub fn lend_chunk(&mut self) -> Option<u32> {
        (!self.rows.are_writing()).then(|| self.slots.take_chunk())?
    }

    /// Releases a chunk.
    pub fn return_chunk(&mut self, first: u32) {
        self.slots.give_back_chunk(first);
    }

    /// Number of pages in memory.
    #[must_use]
    pub fn frames_in_use(&self) -> usize {
        self.frames.len() - self.vacant.len()
    }

    // Pages: see also `loading` and `leaving`.

    /// A page leaves its slot.
    fn release(&mut self, slot: u32) {
        self.rows.clear(slot);
        self.slots.give_back(slot);
    }

    /// Whether the page of a block is in memory.
    #[must_use]
    pub fn has(&self, block: LocalBlock) -> bool {
        self.is_abandoned || matches!(self.directory.place(self.directory.find(block)), Place::Frame(_))
    }

    /// Gives up the pages that are not in memory: they are not read any more.
    pub fn abandon(&mut self) {
        self.is_abandoned = true;
        self.entry_cache.clear();
    }

    /// Whether pages that are not in memory cannot be read.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    /// The page of a block, if it cannot be read any more.
    fn lost(&self, block: LocalBlock) -> Option<Saved> {
        match self
            .is_abandoned
            .then(|| self.directory.place(self.directory.find(block)))?
        {
            Place::Frame(_) => None,
            Place::Away(saved) => Some(saved),
        }
    }

    /// Whether the page of a block cannot be read any more.
    #[must_use]
    pub fn is_lost(&self, block: LocalBlock) -> bool {
        self.lost(block).is_some()
    }

    /// The same, and the block may be dirty.
    #[must_use]
    pub fn is_unknown(&self, block: LocalBlock) -> bool {
        self.lost(block).is_some_and(|saved| saved.dirty)
    }

    /// The first block at or behind `from` of a page that may have dirty blocks.
    #[must_use]
    pub fn next_maybe_dirty(&self, from: LocalBlock) -> Option<LocalBlock> {
        let first = Some(self.directory.find(from));
        let mut pages = std::iter::successors(first, |at| self.directory.next(*at));
        let found = pages.find(|at| match self.directory.place(*at) {
            Place::Frame(frame) => self.frame(frame).leaf.any_dirty(),
            Place::Away(saved) => saved.dirty,
        });
        found.map(|at| self.directory.first(at).max(from))
    }

    fn add_frame(&mut self, leaf: Leaf, saved: Option<Saved>, checked: u64) -> u32 {
        self.ids += 1;
        let frame = Frame {
            leaf,
            checked,
            id: self.ids,
            version: 0,
            saved: saved.map(|saved| (saved, 0)),
            is_writing: false,
            stay: Stay::Used,
            touched: saved.map_or_else(Touched::all, |_| Touched::default()),
        };
        self.frame_bytes += frame.memory_bytes();
        let frame = Some(frame);
        match self.vacant.pop() {
            Some(number) => {
                self.frames[number as usize] = frame;
                number
            }
            None => {
                if self.frames.len() == self.frames.capacity() {
                    self.frames.reserve_exact(self.frames.len() / 16 + 1);
                }
                self.frames.push(frame);
                (self.frames.len() - 1) as u32
            }
        }
    }

    fn vacate(&mut self, number: u32) -> Frame {
        self.vacant.push(number);
        let frame = self.frames[number as usize].take().expect("it has a page");
        self.frame_bytes -= frame.memory_bytes();
        self.leaving -= usize::from(frame.stay == Stay::Leaving);
        frame
    }

    fn frame(&self, number: u32) -> &Frame {
        self.frames[number as usize].as_ref().expect("it has a page")
    }

    // Regions that are freed.

    /// A region is freed, and all its `entries` leave the index: none is of a dirty block.
    pub fn retire(&mut self, region: u32, entries: u32) {
        let left = self.retired.retire(region);
        assert!(
            left.dirty_blocks == 0 || loses_dirty_blocks(),
            "{} blocks of region {region} are dirty",
            left.dirty_blocks
        );
        self.fragments.retire(left);
        self.len -= entries as usize;
        if !planted(PlantedBug::RetiredEntryCached) {
            // All that are here were valid before.
            let before = self.retired.count() - 1;
            let retired = &self.retired;
            self.entry_cache
                .retain(|entry| retired.is_valid(entry.location(), before));
        }
    }

    /// Number of dirty blocks in a region, also of pages that cannot be read.
    #[must_use]
    pub fn dirty_in(&self, region: u32) -> u32 {
        self.retired.dirty_in(region)
    }

    /// Removes the entries of a page in memory, if there is one in this frame, whose regions were freed since it was checked. That changes
    /// nothing that must be written: what is on the device has an older number.
    fn check(&mut self, number: u32) {
        let (frame, retired) = (&mut self.frames[number as usize], &self.retired);
        let Some(frame) = frame.as_mut().filter(|frame| frame.checked < retired.count()) else {
            return;
        };
        let checked = std::mem::replace(&mut frame.checked, retired.count());
        let before = frame.memory_bytes();
        frame
            .leaf
            .retain(|entry| retired.is_valid(entry.location(), checked));
        self.frame_bytes = self.frame_bytes + frame.memory_bytes() - before;
    }

    /// Checks the page of a block in memory, and returns where the next page begins.
    pub fn check_page(&mut self, block: LocalBlock) -> Option<LocalBlock> {
        if let Some((_, number)) = self.position(block) {
            self.check(number);
        }
        let next = self.directory.next(self.directory.find(block));
        next.map(|next| self.directory.first(next))
    }

    /// An entry of the page in a frame as others see it: `None`, if its region was freed since.
    fn current(&self, frame: &Frame, entry: Entry) -> Option<Entry> {
        let location = entry.location();
        let is_valid =
            self.retired.is_valid(location, frame.checked) || planted(PlantedBug::RetiredEntryFound);
        is_valid.then(|| entry.with_hits(self.hits.of(location)))
    }

    // Entries. The pages of their blocks are in memory.

    /// The page of a block. `None`: it cannot be read any more.
    fn position(&self, block: LocalBlock) -> Option<(Position, u32)> {
        let at = self.directory.find(block);
        match self.directory.place(at) {
            Place::Frame(frame) => Some((at, frame)),
            Place::Away(_) if self.is_abandoned => None,
            Place::Away(_) => panic!("the page of {block:?} was not loaded"),
        }
    }

    fn frame_of(&self, block: LocalBlock) -> Option<&Frame> {
        let (_, number) = self.position(block)?;
        Some(self.frame(number))
    }

    /// Changes the page in a frame.
    fn change<T>(&mut self, number: u32, change: impl FnOnce(&mut Frame) -> T) -> T {
        let frame = self.frames[number as usize].as_mut().expect("it has a page");
        frame.version += 1;
        let before = frame.memory_bytes();
        let result = change(frame);
        self.frame_bytes = self.frame_bytes + frame.memory_bytes() - before;
        result
    }

    /// The page in this frame can only be written as a whole.
    fn touch_all(&mut self, number: u32) {
        self.change(number, |frame| frame.touched = Touched::all());
    }

    /// Sets the entry of a block, in a page that is divided until it has room; returns the one it had.
    fn set(&mut self, block: LocalBlock, entry: Entry) -> Option<Entry> {
        let most = self.plan.used_bytes_max;
        if !planted(PlantedBug::OldEntryCached) {
            self.entry_cache.remove(block);
        }
        loop {
            let (at, number) = self.position(block).expect("the page is in memory");
            let insert = |frame: &mut Frame| {
                frame.touch(block);
                frame.leaf.insert(block, entry, most)
            };
            match self.change(number, insert) {
                Ok(old) => return old,
                Err(Full) => {
                    let upper = self.change(number, |frame| {
                        frame.touched = Touched::all();
                        frame.leaf.split(block)
                    });
                    let (first, checked) = (upper.first(), self.frame(number).checked);
                    let frame = self.add_frame(upper, None, checked);
                    self.directory.insert_behind(at, first, Place::Frame(frame));
                }
            }
        }
    }

    /// The entry of a block.
    ///
    /// # Panics
    /// If its page is not in memory, as for all functions below that take a block.
    #[must_use]
    pub fn get(&self, block: LocalBlock) -> Option<Entry> {
        let frame = self.frame_of(block)?;
        self.current(frame, frame.leaf.get(block)?)
    }

    /// The entry of a block. Its fragment was used, if the hit `counts`.
    pub fn hit(&mut self, block: LocalBlock, counts: impl FnOnce(Entry) -> bool) -> Option<Entry> {
        let entry = self.get(block)?;
        if counts(entry) {
            self.note_use(entry);
        }
        Some(entry)
    }

    /// The entry of a block whose page need not be in memory, if it is known.
    pub fn get_cached(&mut self, block: LocalBlock) -> Option<Entry> {
        let entry = self.entry_cache.get(block)?;
        Some(entry.with_hits(self.hits.of(entry.location())))
    }

    /// A block with this entry was read, and its page was not in memory.
    pub fn cache_entry(&mut self, block: LocalBlock, entry: Entry) {
        if !self.is_abandoned {
            self.entry_cache.put(block, entry);
        }
    }

    /// The fragment that an entry names was used. The page of the entry need not be in memory.
    pub fn note_use(&mut self, entry: Entry) {
        self.hits.note(entry.location());
    }

    /// The uses of the fragment that an entry names.
    #[must_use]
    pub fn uses_of(&self, entry: Entry) -> u8 {
        self.hits.of(entry.location())
    }

    /// The uses in a region are forgotten, because it is freed.
    pub fn forget_uses(&mut self, region: u32) {
        self.hits.forget(region);
    }

    /// Clears a block's dirty bit; false if it has no entry, or a clean one.
    pub fn clean(&mut self, block: LocalBlock) -> bool {
        let old = self.get(block).filter(|old| old.dirty());
        let Some(old) = old else { return false };
        let clean = old.with_dirty(false).with_hits(0);
        self.set(block, clean);
        self.retired.clean(old);
        self.fragments.clean(old)
    }

    /// Sets a block's entry; returns the one it had. Has no effect if its page cannot be read any more.
    pub fn insert(&mut self, block: LocalBlock, entry: Entry) -> Option<Entry> {
        let (_, number) = self.position(block)?;
        if !planted(PlantedBug::PageNotChecked) {
            self.check(number);
        }
        if entry.hits() > 0 {
            self.note_use(entry);
        }
        let old = self.get(block).map(|old| old.with_hits(0));
        self.set(block, entry.with_hits(0));
        self.len += usize::from(old.is_none());
        let names = |entry| others_name(|other| self.get(other), block, entry, |_| true);
        let (counted, old) = (names(entry), old.map(|old| (old, names(old))));
        self.fragments.add(entry, counted);
        self.retired.add(entry, counted);
        old.map(|(old, counted)| {
            self.fragments.remove(old, counted);
            self.retired.remove(old, counted);
            old
        })
    }

    /// Forgets a block; returns the entry it had.
    pub fn remove(&mut self, block: LocalBlock) -> Option<Entry> {
        let (_, number) = self.position(block)?;
        self.entry_cache.remove(block);
        let old = self.get(block)?;
        self.change(number, |frame| {
            frame.touch(block);
            frame.leaf.remove(block)
        });
        self.len -= 1;
        let counted = others_name(|other| self.get(other), block, old, |_| true);
        self.fragments.remove(old, counted);
        self.retired.remove(old, counted);
        let at = self.directory.find(block);
        self.merge(at);
        Some(old)
    }

    /// Joins a page with the next one, or with the one before it, if both are in memory and small.
    fn merge(&mut self, at: Position) {
        let joined = self.directory.next(at).is_some_and(|next| self.join(at, next));
        if !joined && let Some(previous) = self.directory.previous(at) {
            self.join(previous, at);
        }
    }

    fn join(&mut self, low: Position, high: Position) -> bool {
        let places = (self.directory.place(low), self.directory.place(high));
        let (Place::Frame(low), Place::Frame(number)) = places else {
            return false;
        };
        self.check(low);
        self.check(number);
        let most = self.plan.used_bytes_max / 8 * JOINED_EIGHTHS;
        if !self.frame(low).leaf.can_take(&self.frame(number).leaf, most) {
            return false;
        }
        self.directory.remove(high);
        let gone = self.vacate(number);
        if let Some((saved, _)) = gone.saved {
            self.release(saved.slot);
        }
        if gone.leaf.len() > 0 {
            self.change(low, |frame| {
                frame.touched = Touched::all();
                frame.leaf.take(&gone.leaf);
            });
        }
        true
    }

    /// The entries from `from` on in its page (none if that cannot be read any more), and where the next page begins.
    pub fn page_of(
        &self,
        from: LocalBlock,
    ) -> (impl Iterator<Item = (LocalBlock, Entry)> + '_, Option<LocalBlock>) {
        let next = self.directory.next(self.directory.find(from));
        let frame = self.frame_of(from);
        let entries = frame.into_iter().flat_map(move |frame| {
            let behind = frame.leaf.entries().filter(move |(block, _)| *block >= from);
            behind.filter_map(move |(block, entry)| Some((block, self.current(frame, entry)?)))
        });
        (entries, next.map(|next| self.directory.first(next)))
    }
}

/// Whether a planted defect loses dirty blocks of a region.
fn loses_dirty_blocks() -> bool {
    planted(PlantedBug::RetiredEarly)
        || planted(PlantedBug::ReclaimedBeforeClean)
        || planted(PlantedBug::UnreadCountsAsClean)
}

mod changes;
mod image;
mod leaving;
mod loading;
mod rebuilding;

pub use image::{ImagePage, PageImage};
pub use rebuilding::DamagedPage;

#[cfg(test)]
mod tests;
