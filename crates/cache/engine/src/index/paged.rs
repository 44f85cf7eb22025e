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
//!   the directory names.
//! - A frame leaves memory only when its page has not changed since the write of it began that succeeded last.
//! - A group is in one page: see [`super::leaf`].
//! - The entries of two neighbouring pages in memory do not fit in half a page, so pages do not stay nearly empty.
//!
//! Nothing of this survives a crash: the log has the truth.

use std::ops::Range;

use super::directory::{Directory, Place, Position, Saved};
use super::entry::Entry;
use super::leaf::{ENTRIES_MAX, Leaf, PAGE_BYTES, aligned};
use super::slots::Slots;
use super::{Fragments, others_name};
use crate::units::LocalBlock;

/// Fewest pages in memory: those of a few operations at the same time.
pub const FRAMES_MIN: usize = 64;

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
    /// Pages in memory, besides those of one load and those that were split since.
    frames_max: usize,
    entries_max: usize,
    /// The next frame that may leave memory.
    hand: usize,
    slots: Slots,
    /// In each page that is written.
    mark: u64,
    ids: u64,
    len: usize,
    fragments: Fragments,
}

impl PagedIndex {
    /// An empty index with so many slots on the device, and so many pages in memory. `mark` tells this opening from all others.
    #[must_use]
    pub fn new(slots: u32, frames_max: usize, mark: u64) -> Self {
        Self::with(slots, frames_max.max(FRAMES_MIN), ENTRIES_MAX, mark)
    }

    /// The same with small pages, of which a small cache has many: for tests.
    #[cfg(any(test, feature = "planted-bugs"))]
    #[must_use]
    pub fn of_small_pages(slots: u32, frames_max: usize, entries_max: usize) -> Self {
        Self::with(slots, frames_max, entries_max, 0)
    }

    fn with(slots: u32, frames_max: usize, entries_max: usize, mark: u64) -> Self {
        assert!((8..=ENTRIES_MAX).contains(&entries_max), "{entries_max}");
        let mut index = Self {
            directory: Directory::new(Place::Frame(0)),
            frames: Vec::new(),
            vacant: Vec::new(),
            frames_max,
            entries_max,
            hand: 0,
            slots: Slots::new(slots),
            mark,
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

    /// Number of pages, in memory or not.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.directory.len()
    }

    /// Number of dirty blocks.
    #[must_use]
    pub fn dirty_blocks(&self) -> u64 {
        self.fragments.dirty_blocks
    }

    /// Bytes of memory that the index takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let frames = self.frames_in_use() * PAGE_BYTES;
        let tables = self.frames.capacity() * size_of::<Option<Frame>>() + self.vacant.capacity() * 4;
        frames + tables + self.directory.memory_bytes() + self.slots.memory_bytes()
    }

    fn frames_in_use(&self) -> usize {
        self.frames.len() - self.vacant.len()
    }

    // Pages.

    /// The pages of `blocks` that are not in memory. Those that are there stay for a while.
    pub fn missing(&mut self, blocks: Range<LocalBlock>) -> Vec<PageRead> {
        let mut missing = Vec::new();
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
        matches!(self.directory.place(self.directory.find(block)), Place::Frame(_))
    }

    /// Makes pages leave memory that are too many since the last load. False: changed ones must be written before.
    pub fn make_room(&mut self) -> bool {
        while self.frames_in_use() > self.frames_max {
            if !self.evict_one() {
                return false;
            }
        }
        true
    }

    /// Evicts the next page that was not used since the hand came by (CLOCK).
    fn evict_one(&mut self) -> bool {
        for _ in 0..2 * self.frames.len() {
            self.hand = (self.hand + 1) % self.frames.len();
            let Some(frame) = &mut self.frames[self.hand] else {
                continue;
            };
            if std::mem::take(&mut frame.is_used) || frame.is_changed() || frame.is_writing {
                continue;
            }
            let (saved, _) = frame.saved.expect("it has not changed since");
            let at = self.directory.find(frame.leaf.first());
            assert_eq!(self.directory.place(at), Place::Frame(self.hand as u32));
            self.directory.set_place(at, Place::Away(saved));
            self.vacate(self.hand as u32);
            return true;
        }
        false
    }

    /// A page was read: brings it into memory, unless that is done already.
    ///
    /// # Errors
    /// The bytes are not those that were written last; what is wrong, in words.
    pub fn put(&mut self, read: PageRead, bytes: &[u8]) -> Result<(), String> {
        let PageRead { first, saved } = read;
        let at = self.directory.find(first);
        if self.directory.first(at) != first || self.directory.place(at) != Place::Away(saved) {
            return Ok(());
        }
        let computed = crc32c::crc32c(bytes);
        if computed != saved.checksum {
            return Err(format!(
                "checksum {computed:#010x}, expected {:#010x}",
                saved.checksum
            ));
        }
        let leaf = Leaf::parse(bytes, first, self.mark)?;
        let frame = self.add_frame(leaf, Some(saved));
        self.directory.set_place(at, Place::Frame(frame));
        self.merge(at);
        Ok(())
    }

    /// Number of pages in memory that must be written before they can leave.
    #[must_use]
    pub fn changed_pages(&self) -> usize {
        let changed = |frame: &&Frame| frame.is_changed();
        self.frames.iter().flatten().filter(changed).count()
    }

    /// The next pages to write, `most` at most, those first that would leave memory first. Each must be ended with [`Self::end_write`].
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
            let Some(slot) = self.slots.take() else { break };
            frame.is_writing = true;
            let bytes = frame.leaf.to_bytes(self.mark);
            let checksum = crc32c::crc32c(&bytes);
            writes.push(PageWrite {
                frame: number as u32,
                id: frame.id,
                version: frame.version,
                saved: Saved { slot, checksum },
                bytes,
            });
        }
        writes
    }

    /// A write has ended.
    pub fn end_write(&mut self, write: &PageWrite, succeeded: bool) {
        let frame = self.frames[write.frame as usize].as_mut();
        let free = match frame.filter(|frame| frame.id == write.id) {
            Some(frame) => {
                frame.is_writing = false;
                match succeeded {
                    true => frame
                        .saved
                        .replace((write.saved, write.version))
                        .map(|(old, _)| old),
                    false => Some(write.saved),
                }
            }
            // The page is part of another one by now.
            None => Some(write.saved),
        };
        if let Some(free) = free {
            self.slots.give_back(free.slot);
        }
    }

    fn add_frame(&mut self, leaf: Leaf, saved: Option<Saved>) -> u32 {
        self.ids += 1;
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
        self.frames[number as usize].take().expect("it has a page")
    }

    fn frame(&self, number: u32) -> &Frame {
        self.frames[number as usize].as_ref().expect("it has a page")
    }

    fn frame_mut(&mut self, number: u32) -> &mut Frame {
        self.frames[number as usize].as_mut().expect("it has a page")
    }

    // Entries. The pages of their blocks are in memory.

    fn position(&self, block: LocalBlock) -> (Position, u32) {
        let at = self.directory.find(block);
        match self.directory.place(at) {
            Place::Frame(frame) => (at, frame),
            Place::Away(_) => panic!("the page of {block:?} was not loaded"),
        }
    }

    /// The page of a block, to be changed.
    fn change(&mut self, block: LocalBlock) -> (Position, &mut Leaf) {
        let (at, number) = self.position(block);
        let frame = self.frame_mut(number);
        frame.version += 1;
        (at, &mut frame.leaf)
    }

    /// The entry of a block.
    ///
    /// # Panics
    /// If its page is not in memory, as for all functions below that take a block.
    #[must_use]
    pub fn get(&self, block: LocalBlock) -> Option<Entry> {
        let (_, frame) = self.position(block);
        self.frame(frame).leaf.get(block)
    }

    /// The entry of a block, whose hit counter goes up (to 3 at most) if the hit `counts`. That alone causes no write of the page.
    pub fn hit(&mut self, block: LocalBlock, counts: impl FnOnce(Entry) -> bool) -> Option<Entry> {
        let (_, number) = self.position(block);
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
        self.change(block).1.insert(block, old.with_dirty(false));
        self.fragments.clean(old)
    }

    /// Sets a block's entry; returns the one it had.
    pub fn insert(&mut self, block: LocalBlock, entry: Entry) -> Option<Entry> {
        let old = self.get(block);
        if old.is_none() {
            self.make_page_for(block);
            self.len += 1;
        }
        self.change(block).1.insert(block, entry);
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
        let (at, number) = self.position(block);
        let leaf = &self.frame(number).leaf;
        let new = if !Leaf::is_in_range(leaf.first(), block) {
            Leaf::new(aligned(block))
        } else if leaf.len() >= self.entries_max {
            self.change(block).1.split(block)
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
        self.change(block).1.remove(block);
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
        let most = self.entries_max / 2;
        if !self.frame(low).leaf.can_take(&self.frame(number).leaf, most) {
            return false;
        }
        self.directory.remove(high);
        let gone = self.vacate(number);
        if let Some((saved, _)) = gone.saved {
            self.slots.give_back(saved.slot);
        }
        let frame = self.frame_mut(low);
        frame.version += 1;
        frame.leaf.take(&gone.leaf);
        true
    }

    /// The entries from `from` on in its page, and where the next page begins.
    pub fn page_of(
        &self,
        from: LocalBlock,
    ) -> (impl Iterator<Item = (LocalBlock, Entry)> + '_, Option<LocalBlock>) {
        let (at, number) = self.position(from);
        let next = self.directory.next(at);
        let entries = self.frame(number).leaf.entries();
        (
            entries.filter(move |(block, _)| *block >= from),
            next.map(|next| self.directory.first(next)),
        )
    }
}

#[cfg(test)]
mod tests;
