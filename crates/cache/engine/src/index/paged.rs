//! An index that is larger than the memory for it: pages on the device, a directory of them, and some of them in memory.
//!
//! This part does no I/O. Its owner reads and writes pages for it:
//!
//! ```text
//! before blocks are used       make_room, missing; read, put, until none is missing
//! if there is no room          begin_writes; write, end_write
//! ```
//!
//! Invariants:
//! - A page that is not in memory is in its slot, and the directory has the checksum of the bytes that were written there: an older version
//!   of the page is as invalid as damage. A stale page would be a stale block.
//! - A page goes to a free slot, and its last slot is free when that write has succeeded: a failed or torn write damages nothing that
//!   the directory names. Only if no slot is free, a page in memory overwrites its own: the directory names the frame then.
//! - The slot of a failed write is not used again.
//! - A frame leaves memory only when its page has not changed since the write of it began that succeeded last.
//! - A group is in one page: see [`super::leaf`].
//! - After [`PagedIndex::abandon`], pages that are not in memory are never read again: their blocks are not cached, or *unknown* if some
//!   may be dirty.
//! - The entries of two neighbouring pages in memory do not fit in half a page, so pages do not stay nearly empty.
//!
//! Nothing of this survives a crash: the log has the truth.

use std::ops::Range;

use super::directory::{Directory, Place, Position, Saved};
use super::entry::Entry;
use super::leaf::{ENTRIES_MAX, Leaf, PAGE_BYTES, aligned};
use super::slots::Slots;
use super::{Fragments, others_name};
use crate::planted::{PlantedBug, planted};
use crate::units::LocalBlock;

/// Fewest pages in memory: those of a few operations at the same time.
pub const FRAMES_MIN: usize = 8;
/// Writes begin when one page of so many in memory has changed.
const CHANGED_SHARE: usize = 4;

/// The dimensions of a paged index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePlan {
    /// Slots on the device.
    pub slots: u32,
    /// Memory for all of the index, in bytes. It has [`Self::frames_min`] pages in any case.
    pub memory_bytes: u64,
    /// In each page that is written: tells this opening from all others.
    pub mark: u64,
    /// Fewest pages in memory.
    pub frames_min: usize,
    /// Bytes of a page on the device.
    pub page_bytes: usize,
    /// Most entries of a page.
    pub entries_max: usize,
}

impl PagePlan {
    /// A few small pages, of which a small cache has many, in slots of so many bytes: for tests.
    #[must_use]
    pub fn small(slots: u32, page_bytes: usize, mark: u64) -> Self {
        Self {
            frames_min: 4,
            page_bytes,
            entries_max: 12,
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
            entries_max: ENTRIES_MAX,
        }
    }
}

/// A page to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRead {
    first: LocalBlock,
    saved: Saved,
}

impl PageRead {
    /// The slot to read.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.saved.slot
    }
}

/// A page to write.
#[derive(Debug)]
pub struct PageWrite {
    frame: u32,
    /// Of the frame, when the write began.
    id: u64,
    version: u64,
    saved: Saved,
    /// What to write, [`PAGE_BYTES`].
    pub bytes: Vec<u8>,
}

impl PageWrite {
    /// The slot to write.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.saved.slot
    }
}

/// A page in memory.
#[derive(Debug)]
struct Frame {
    leaf: Leaf,
    /// Distinguishes it from others that had its number.
    id: u64,
    /// Goes up with each change.
    version: u64,
    /// The last write that succeeded, and the version that it wrote.
    saved: Option<(Saved, u64)>,
    is_writing: bool,
    /// Used since the hand came by.
    is_used: bool,
}

impl Frame {
    fn is_changed(&self) -> bool {
        self.saved.is_none_or(|(_, version)| version != self.version)
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct PagedIndex {
    directory: Directory,
    frames: Vec<Option<Frame>>,
    /// Numbers of frames without a page.
    vacant: Vec<u32>,
    /// Number of pages in memory that must be written before they can be evicted.
    changed: usize,
    plan: PagePlan,
    /// Pages that are not in memory are not read any more.
    is_abandoned: bool,
    /// The next frame that may leave memory.
    hand: usize,
    slots: Slots,
    ids: u64,
    len: usize,
    fragments: Fragments,
}

impl PagedIndex {
    /// An empty index.
    #[must_use]
    pub fn new(plan: PagePlan) -> Self {
        let room = (plan.page_bytes / 8).saturating_sub(2).min(ENTRIES_MAX);
        assert!((8..=room).contains(&plan.entries_max), "{plan:?}");
        let mut index = Self {
            directory: Directory::new(Place::Frame(0)),
            frames: Vec::new(),
            vacant: Vec::new(),
            changed: 0,
            plan,
            is_abandoned: false,
            hand: 0,
            slots: Slots::new(plan.slots),
            ids: 0,
            len: 0,
            fragments: Fragments::default(),
        };
        let frame = index.add_frame(Leaf::new(LocalBlock(0)), None);
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

    /// Bounds the memory for all of the index, in bytes.
    pub fn set_memory(&mut self, bytes: u64) {
        self.plan.memory_bytes = bytes;
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
        let frames = self.frames_in_use() * PAGE_BYTES;
        let tables = self.frames.capacity() * size_of::<Option<Frame>>() + self.vacant.capacity() * 4;
        frames + tables + self.tables_bytes()
    }

    fn tables_bytes(&self) -> usize {
        self.directory.memory_bytes() + self.slots.memory_bytes()
    }

    /// Number of pages in memory.
    #[must_use]
    pub fn frames_in_use(&self) -> usize {
        self.frames.len() - self.vacant.len()
    }

    /// Most pages in memory, besides those of one load and those that were split since.
    fn frames_max(&self) -> usize {
        let frames = self.plan.memory_bytes.saturating_sub(self.tables_bytes() as u64);
        let frame = PAGE_BYTES + size_of::<Option<Frame>>() + size_of::<u32>();
        self.plan.frames_min.max(frames as usize / frame)
    }

    // Pages.

    /// The pages of `blocks` that are not in memory. Those that are there stay for a while.
    pub fn missing(&mut self, blocks: Range<LocalBlock>) -> Vec<PageRead> {
        let mut missing = Vec::new();
        if self.is_abandoned {
            return missing;
        }
        let mut next = (!blocks.is_empty()).then(|| self.directory.find(blocks.start));
        while let Some(at) = next.filter(|at| self.directory.first(*at) < blocks.end) {
            match self.directory.place(at) {
                Place::Frame(frame) => self.frame_mut(frame).is_used = true,
                Place::Away(saved) => {
                    let first = self.directory.first(at);
                    missing.push(PageRead { first, saved });
                }
            }
            next = self.directory.next(at);
        }
        missing
    }

    /// Whether the page of a block is in memory.
    #[must_use]
    pub fn has(&self, block: LocalBlock) -> bool {
        self.is_abandoned || matches!(self.directory.place(self.directory.find(block)), Place::Frame(_))
    }

    /// Gives up the pages that are not in memory: they are not read any more.
    pub fn abandon(&mut self) {
        self.is_abandoned = true;
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

    /// Makes pages leave memory that are too many since the last load. False: changed ones must be written before.
    pub fn make_room(&mut self) -> bool {
        // Pages stay in memory, because they could not be read again.
        while !self.is_abandoned && self.frames_in_use() > self.frames_max() {
            if !self.evict_one() {
                return false;
            }
        }
        true
    }

    /// Evicts the next page that was not used since the hand passed it (CLOCK). An empty page is removed instead: from then on, its blocks
    /// belong to the preceding page.
    fn evict_one(&mut self) -> bool {
        for _ in 0..2 * self.frames.len() {
            self.hand = (self.hand + 1) % self.frames.len();
            let Some(frame) = &mut self.frames[self.hand] else {
                continue;
            };
            let is_used = std::mem::take(&mut frame.is_used);
            let is_changed = frame.is_changed() && !planted(PlantedBug::ChangedPageEvicted);
            let (first, saved) = (frame.leaf.first(), frame.saved.map(|(saved, _)| saved));
            let is_empty = frame.leaf.len() == 0 && first.0 > 0;
            if is_used || frame.is_writing {
                continue;
            }
            let at = self.directory.find(first);
            assert_eq!(self.directory.place(at), Place::Frame(self.hand as u32));
            match saved {
                _ if is_empty => {
                    self.directory.remove(at);
                    if let Some(saved) = saved {
                        self.slots.give_back(saved.slot);
                    }
                }
                Some(saved) if !is_changed => self.directory.set_place(at, Place::Away(saved)),
                _ => continue,
            }
            self.vacate(self.hand as u32);
            return true;
        }
        false
    }

    /// Whether a page must still be read: it is not in memory, was not written again, and pages are still used.
    #[must_use]
    pub fn is_wanted(&self, read: PageRead) -> bool {
        let at = self.directory.find(read.first);
        // The page lacks what was written to the origin since.
        !self.is_abandoned
            && self.directory.first(at) == read.first
            && self.directory.place(at) == Place::Away(read.saved)
    }

    /// A page was read: brings it into memory, unless that is done already.
    ///
    /// # Errors
    /// The bytes are not those that were written last; what is wrong, in words.
    pub fn put(&mut self, read: PageRead, bytes: &[u8]) -> Result<(), String> {
        if !self.is_wanted(read) {
            return Ok(());
        }
        let PageRead { first, saved } = read;
        let at = self.directory.find(first);
        let computed = crc32c::crc32c(bytes);
        if computed != saved.checksum && !planted(PlantedBug::PageNotCompared) {
            return Err(format!(
                "checksum {computed:#010x}, expected {:#010x}",
                saved.checksum
            ));
        }
        let leaf = Leaf::parse(bytes, first, self.plan.mark)?;
        let frame = self.add_frame(leaf, Some(saved));
        self.directory.set_place(at, Place::Frame(frame));
        self.merge(at);
        Ok(())
    }

    /// Whether so many pages have changed that some should be written.
    #[must_use]
    pub fn wants_writes(&self) -> bool {
        self.changed * CHANGED_SHARE > self.frames_max()
    }

    /// The next pages to write, `most` at most: of those that would leave memory first, in the order of their slots. Each must be ended
    /// with [`Self::end_write`].
    pub fn begin_writes(&mut self, most: usize) -> Vec<PageWrite> {
        let mut writes = Vec::new();
        let count = self.frames.len();
        for number in (1..=count).map(|n| (self.hand + n) % count) {
            if writes.len() == most {
                break;
            }
            let Some(frame) = &mut self.frames[number] else {
                continue;
            };
            if frame.is_writing || !frame.is_changed() {
                continue;
            }
            let own = || frame.saved.take().map(|(saved, _)| saved.slot);
            let Some(slot) = self.slots.take().or_else(own) else {
                continue;
            };
            frame.is_writing = true;
            let bytes = frame.leaf.to_bytes(self.plan.mark, self.plan.page_bytes);
            let (checksum, dirty) = (crc32c::crc32c(&bytes), frame.leaf.any_dirty());
            writes.push(PageWrite {
                frame: number as u32,
                id: frame.id,
                version: frame.version,
                saved: Saved {
                    slot,
                    checksum,
                    dirty,
                },
                bytes,
            });
        }
        writes.sort_unstable_by_key(PageWrite::slot);
        writes
    }

    /// A write has ended.
    pub fn end_write(&mut self, write: &PageWrite, succeeded: bool) {
        let frame = self.frames[write.frame as usize].as_mut();
        let free = match frame.filter(|frame| frame.id == write.id) {
            Some(frame) => {
                frame.is_writing = false;
                match succeeded {
                    true => {
                        let old = frame.saved.replace((write.saved, write.version));
                        self.changed -= usize::from(!frame.is_changed());
                        match planted(PlantedBug::SlotFreedEarly) {
                            true => Some(write.saved),
                            false => old.map(|(old, _)| old),
                        }
                    }
                    false => None,
                }
            }
            // The page is part of another one by now.
            None => succeeded.then_some(write.saved),
        };
        if let Some(free) = free {
            self.slots.give_back(free.slot);
        }
    }

    fn add_frame(&mut self, leaf: Leaf, saved: Option<Saved>) -> u32 {
        self.ids += 1;
        self.changed += usize::from(saved.is_none());
        let frame = Some(Frame {
            leaf,
            id: self.ids,
            version: 0,
            saved: saved.map(|saved| (saved, 0)),
            is_writing: false,
            is_used: true,
        });
        match self.vacant.pop() {
            Some(number) => {
                self.frames[number as usize] = frame;
                number
            }
            None => {
                self.frames.push(frame);
                (self.frames.len() - 1) as u32
            }
        }
    }

    fn vacate(&mut self, number: u32) -> Frame {
        self.vacant.push(number);
        let frame = self.frames[number as usize].take().expect("it has a page");
        self.changed -= usize::from(frame.is_changed());
        frame
    }

    fn frame(&self, number: u32) -> &Frame {
        self.frames[number as usize].as_ref().expect("it has a page")
    }

    fn frame_mut(&mut self, number: u32) -> &mut Frame {
        self.frames[number as usize].as_mut().expect("it has a page")
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

    fn leaf_of(&self, block: LocalBlock) -> Option<&Leaf> {
        let (_, number) = self.position(block)?;
        Some(&self.frame(number).leaf)
    }

    /// The page of a block, to be changed.
    fn change(&mut self, block: LocalBlock) -> &mut Leaf {
        let (_, number) = self.position(block).expect("the page is in memory");
        self.touch(number)
    }

    /// The page in a frame, to be changed.
    fn touch(&mut self, number: u32) -> &mut Leaf {
        let frame = self.frames[number as usize].as_mut().expect("it has a page");
        self.changed += usize::from(!frame.is_changed());
        frame.version += 1;
        &mut frame.leaf
    }

    /// The entry of a block.
    ///
    /// # Panics
    /// If its page is not in memory, as for all functions below that take a block.
    #[must_use]
    pub fn get(&self, block: LocalBlock) -> Option<Entry> {
        self.leaf_of(block)?.get(block)
    }

    /// The entry of a block, whose hit counter goes up (to 3 at most) if the hit `counts`. That alone causes no write of the page.
    pub fn hit(&mut self, block: LocalBlock, counts: impl FnOnce(Entry) -> bool) -> Option<Entry> {
        let (_, number) = self.position(block)?;
        let leaf = &mut self.frame_mut(number).leaf;
        let entry = leaf.get(block)?;
        if counts(entry) {
            leaf.insert(block, entry.with_hits(entry.hits() + 1));
        }
        Some(entry)
    }

    /// Clears a block's dirty bit; false if it has no entry, or a clean one.
    pub fn clean(&mut self, block: LocalBlock) -> bool {
        let old = self.get(block).filter(|old| old.dirty());
        let Some(old) = old else { return false };
        self.change(block).insert(block, old.with_dirty(false));
        self.fragments.clean(old)
    }

    /// Sets a block's entry; returns the one it had. Has no effect if its page cannot be read any more.
    pub fn insert(&mut self, block: LocalBlock, entry: Entry) -> Option<Entry> {
        let old = self.leaf_of(block)?.get(block);
        if old.is_none() {
            self.make_page_for(block);
            self.len += 1;
        }
        self.change(block).insert(block, entry);
        let names = |entry| others_name(|other| self.get(other), block, entry, |_| true);
        let (counted, old) = (names(entry), old.map(|old| (old, names(old))));
        self.fragments.add(entry, counted);
        old.map(|(old, counted)| {
            self.fragments.remove(old, counted);
            old
        })
    }

    /// Makes the page of a block one that has room for it.
    fn make_page_for(&mut self, block: LocalBlock) {
        let (at, number) = self.position(block).expect("the page is in memory");
        let leaf = &self.frame(number).leaf;
        let new = if !Leaf::is_in_range(leaf.first(), block) {
            Leaf::new(aligned(block))
        } else if leaf.len() >= self.plan.entries_max {
            self.change(block).split(block)
        } else {
            return;
        };
        let first = new.first();
        let frame = self.add_frame(new, None);
        self.directory.insert_behind(at, first, Place::Frame(frame));
    }

    /// Forgets a block; returns the entry it had.
    pub fn remove(&mut self, block: LocalBlock) -> Option<Entry> {
        let old = self.get(block)?;
        self.change(block).remove(block);
        self.len -= 1;
        let counted = others_name(|other| self.get(other), block, old, |_| true);
        self.fragments.remove(old, counted);
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
        let most = self.plan.entries_max / 2;
        if !self.frame(low).leaf.can_take(&self.frame(number).leaf, most) {
            return false;
        }
        self.directory.remove(high);
        let gone = self.vacate(number);
        if let Some((saved, _)) = gone.saved {
            self.slots.give_back(saved.slot);
        }
        self.touch(low).take(&gone.leaf);
        true
    }

    /// The entries from `from` on in its page (none if that cannot be read any more), and where the next page begins.
    pub fn page_of(
        &self,
        from: LocalBlock,
    ) -> (impl Iterator<Item = (LocalBlock, Entry)> + '_, Option<LocalBlock>) {
        let next = self.directory.next(self.directory.find(from));
        let entries = self.leaf_of(from).into_iter().flat_map(Leaf::entries);
        (
            entries.filter(move |(block, _)| *block >= from),
            next.map(|next| self.directory.first(next)),
        )
    }
}

#[cfg(test)]
mod tests;
