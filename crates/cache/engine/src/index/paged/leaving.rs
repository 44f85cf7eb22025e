//! Which pages leave memory, and writes of those that have changed.
//!
//! CLOCK chooses the pages. A page that has not changed is evicted at once. So is a page with small changes: these stay in memory, a few dozen
//! bytes, and are applied when the page is read again. Any other changed page is written first, in a batch, and is evicted when its write has
//! ended, unless it was used or changed meanwhile.
//!
//! The limit for such changes follows from the memory that is free for them: seven eighths of what the tables leave. With little memory,
//! changes save more writes than the same memory for pages saves reads (docs/memory.md).

use std::collections::BTreeMap;

use super::{Frame, PageWrite, PagedIndex, Place, STAMP_BYTES, Saved, Stay, Touched, Written, WrittenFrame};
use crate::index::delta::Which;
use crate::index::rows::{self, ROW_PAGES};
use crate::planted::{PlantedBug, planted};

/// Pages of a batch of writes, at most.
const BATCH_MAX: usize = 32;
/// With few pages in memory, a batch has one in this many of them.
const BATCH_SHARE: usize = 16;
/// Batches of pages that are being written, or wait to be written. The hand stops at this number.
const LEAVING_BATCHES: usize = 2;
/// One part in so many of the memory for pages is kept free, so that loads do not wait for writes.
const FREE_SHARE: usize = 64;
/// Pages in memory have at least one part in so many of the memory that the tables leave.
const FRAMES_SHARE: usize = 8;
/// The limit for the changes of the pages of a row is, for each of them, this many times the free memory for changes, divided by the number
/// of all pages. If the sizes of rows are distributed evenly up to the limit, they fill eight ninths of the memory for changes.
const DELTA_FREE: usize = 16;

impl PagedIndex {
    /// Makes pages leave memory until there is room for `pages` of a load, and for one more, because a page may be divided by its changes.
    /// False: there is none, because changed pages must be written before. If they cannot be written (not `can_write`), they stay, and
    /// others leave.
    pub fn make_room(&mut self, pages: usize, can_write: bool) -> bool {
        let wanted = (pages + 1) * self.plan.page_bytes;
        // Pages stay in memory, because they could not be read again.
        while !self.is_abandoned && self.frames_in_use() > self.plan.frames_min {
            let tables = self.tables_bytes() as u64;
            let most = self.plan.memory_bytes.saturating_sub(tables) as usize;
            if self.frame_bytes + wanted.max(most / FREE_SHARE) <= most {
                break;
            }
            if !self.evict_one(can_write) {
                return self.frame_bytes + wanted <= most;
            }
        }
        true
    }

    /// Pages to write at a time.
    fn batch(&self) -> usize {
        (self.frames_in_use() / BATCH_SHARE).clamp(1, BATCH_MAX)
    }

    /// Evicts the next page that was not used since the hand passed it (CLOCK) and has not changed, or little. Others leave later, and the
    /// hand stops when they are many. An empty page is removed instead: from then on, its blocks belong to the preceding page.
    fn evict_one(&mut self, can_write: bool) -> bool {
        for _ in 0..2 * self.frames.len() {
            let before = self.hand;
            self.hand = (before + 1) % self.frames.len();
            let hand = self.hand as u32;
            let Some(frame) = &self.frames[self.hand] else {
                continue;
            };
            if frame.is_writing {
                continue;
            }
            if frame.stay == Stay::Used {
                self.set_stay(hand, Stay::Unused);
                continue;
            }
            self.check(hand);
            let frame = self.frame(hand);
            let is_changed = frame.is_changed() && !planted(PlantedBug::ChangedPageEvicted);
            let (first, saved) = (frame.leaf.first(), frame.saved.map(|(saved, _)| saved));
            let is_empty = frame.leaf.len() == 0 && first.0 > 0;
            let is_leaving = frame.stay == Stay::Leaving;
            let at = self.directory.find(first);
            assert_eq!(self.directory.place(at), Place::Frame(hand));
            match saved {
                _ if is_empty => {
                    self.directory.remove(at);
                    if let Some(saved) = saved {
                        self.release(saved.slot);
                    }
                }
                Some(saved) if !is_changed => self.directory.set_place(at, Place::Away(saved)),
                Some(saved) if !is_leaving && let Some(delta) = self.delta(hand, saved.slot) => {
                    let dirty = self.frame(hand).leaf.any_dirty();
                    self.deltas.put(saved.slot, &delta);
                    self.directory
                        .set_place(at, Place::Away(Saved { dirty, ..saved }));
                }
                _ if !can_write => continue,
                _ if self.leaving >= LEAVING_BATCHES * self.batch() => {
                    self.hand = before;
                    return false;
                }
                _ => {
                    self.set_stay(hand, Stay::Leaving);
                    continue;
                }
            }
            self.vacate(hand);
            return true;
        }
        false
    }

    /// The recent changes of a page in memory, which is in this slot, if they and those of its row are few.
    fn delta(&self, number: u32, slot: u32) -> Option<Vec<u8>> {
        let free = self.deltas_room().saturating_sub(self.deltas.memory_bytes());
        let of_row = ROW_PAGES * DELTA_FREE * free / self.directory.len();
        let of_row = of_row.min(rows::room(self.plan.page_bytes));
        let most = of_row.saturating_sub(self.row_bytes(rows::row_of(slot).0));
        let most = most.min(free).min(rows::most(self.plan.page_bytes));
        let frame = self.frame(number);
        let touched = &frame.touched;
        touched.encode(Which::Recent, &frame.leaf, frame.checked, most)
    }

    /// Bytes of the changes in memory of the pages in a row.
    pub(super) fn row_bytes(&self, row: u32) -> usize {
        let slots = rows::page_slots(row).into_iter();
        slots.map(|slot| self.deltas.len_of(slot)).sum()
    }

    /// Bytes that changes may take.
    fn deltas_room(&self) -> usize {
        let tables = self.tables_bytes() - self.deltas.memory_bytes();
        let memory = (self.plan.memory_least as usize).saturating_sub(tables);
        let frame = self.plan.page_bytes + Touched::MEMORY_MAX;
        let frames = (memory / FRAMES_SHARE).max(self.plan.frames_min * frame);
        memory.saturating_sub(frames).max(self.plan.deltas_min)
    }

    /// Whether so many bytes of changes fit in memory. An estimate: the tables are not loaded yet.
    pub(super) fn has_room_for_changes(&self, bytes: usize) -> bool {
        let memory = self.plan.memory_least as usize;
        bytes <= (memory - memory / FRAMES_SHARE).max(2 * self.plan.deltas_min)
    }

    pub(super) fn set_stay(&mut self, number: u32, stay: Stay) {
        let frame = self.frames[number as usize].as_mut().expect("it has a page");
        let before = std::mem::replace(&mut frame.stay, stay);
        self.leaving -= usize::from(before == Stay::Leaving);
        self.leaving += usize::from(stay == Stay::Leaving);
    }

    /// Makes all pages that have changed leave memory. Returns whether there are some.
    pub fn leave_changed(&mut self) -> bool {
        let mut any = false;
        for number in 0..self.frames.len() as u32 {
            let frame = self.frames[number as usize].as_ref();
            let is_old = |frame: &Frame| {
                frame.is_changed() && !(planted(PlantedBug::ImageOfOldPages) && frame.saved.is_some())
            };
            if frame.is_some_and(is_old) {
                self.set_stay(number, Stay::Leaving);
                any = true;
            }
        }
        any
    }

    /// Whether so many changed pages leave memory that they should be written.
    #[must_use]
    pub fn wants_writes(&self) -> bool {
        self.leaving >= self.batch()
    }

    /// Pages to write, `most` at most: changed ones that leave memory, in the order of their slots, or their changes. Each must be ended with
    /// [`Self::end_write`].
    pub fn begin_writes(&mut self, most: usize) -> Vec<PageWrite> {
        let (mut writes, mut left) = (Vec::new(), self.leaving);
        let (count, from) = (self.frames.len(), self.written);
        let rows = self.leaving_by_row(most);
        for number in (1..=count).map(|n| (from + n) % count) {
            if writes.len() == most || left == 0 {
                break;
            }
            let leaves = |frame: &Frame| frame.stay == Stay::Leaving;
            left -= usize::from(self.frames[number].as_ref().is_some_and(leaves));
            self.written = number;
            let is_wanted = |frame: &Frame| !frame.is_writing && frame.stay == Stay::Leaving;
            if !self.frames[number].as_ref().is_some_and(is_wanted) {
                continue;
            }
            let number = number as u32;
            self.check(number);
            let row = self.frame(number).slot().map(|slot| rows::row_of(slot).0);
            let frames = row.and_then(|row| self.writes_changes(row, number, rows.get(&row)?));
            let written = match row.zip(frames) {
                Some((row, frames)) => Some(self.begin_changes(row, &frames)),
                None => self.begin_page(number),
            };
            match written {
                Some(write) => writes.push(write),
                // It stays, and others can leave.
                None => self.set_stay(number, Stay::Unused),
            }
        }
        writes.sort_unstable_by_key(PageWrite::slot);
        writes
    }

    /// The next frames that leave memory, checked, by the rows of their slots: enough for `most` writes of whole rows.
    fn leaving_by_row(&mut self, most: usize) -> BTreeMap<u32, Vec<u32>> {
        let (count, from) = (self.frames.len(), self.written);
        let numbers = (1..=count).map(|n| (from + n) % count);
        let leaves = |frame: &Frame| frame.stay == Stay::Leaving;
        let leaving = numbers.filter(|number| self.frames[*number].as_ref().is_some_and(leaves));
        let most = self.leaving.min(most.saturating_mul(ROW_PAGES));
        let leaving: Vec<u32> = leaving.take(most).map(|number| number as u32).collect();
        let mut rows = BTreeMap::<u32, Vec<u32>>::new();
        for number in leaving {
            self.check(number);
            if let Some(slot) = self.frame(number).slot() {
                rows.entry(rows::row_of(slot).0).or_default().push(number);
            }
        }
        rows
    }

    pub(super) fn begin_frame(&mut self, number: u32) -> WrittenFrame {
        let frame = self.frames[number as usize].as_mut().expect("it has a page");
        frame.is_writing = true;
        WrittenFrame {
            number,
            id: frame.id,
            version: frame.version,
        }
    }

    /// Begins to write the page in a frame. `None`: there is no slot.
    fn begin_page(&mut self, number: u32) -> Option<PageWrite> {
        let frame = self.frames[number as usize].as_mut().expect("it has a page");
        let own = || frame.saved.take().map(|(saved, _)| saved.slot);
        let slot = self.slots.take().or_else(own)?;
        self.rows.clear(slot);
        self.frame_bytes -= std::mem::take(&mut frame.touched).memory_bytes();
        let leaf_bytes = self.plan.page_bytes - STAMP_BYTES;
        let mut bytes = frame.leaf.to_bytes(self.plan.mark, leaf_bytes);
        bytes.extend(frame.checked.to_le_bytes());
        let saved = Saved {
            slot,
            checksum: crc32c::crc32c(&bytes),
            dirty: frame.leaf.any_dirty(),
        };
        Some(PageWrite {
            slot,
            what: Written::Page(self.begin_frame(number), saved),
            bytes,
        })
    }

    /// A write has ended, or could not be completed.
    pub fn end_write(&mut self, write: &PageWrite, succeeded: bool) {
        match &write.what {
            Written::Page(written, saved) => self.end_page(*written, *saved, succeeded),
            Written::Changes(_, written) if write.reads_first() => self.give_up_changes(written),
            Written::Changes(row, written) => self.end_changes(*row, written, succeeded),
        }
    }

    /// A write of the page in a frame has ended.
    fn end_page(&mut self, written: WrittenFrame, saved: Saved, succeeded: bool) {
        let free = match self.frame_of_write(written) {
            Some(frame) => {
                frame.is_writing = false;
                match succeeded {
                    true => {
                        let old = frame.saved.replace((saved, written.version));
                        match planted(PlantedBug::SlotFreedEarly) {
                            true => Some(saved),
                            false => old.map(|(old, _)| old),
                        }
                    }
                    false => {
                        self.touch_all(written.number);
                        None
                    }
                }
            }
            // The page is part of another one by now.
            None => succeeded.then_some(saved),
        };
        if let Some(free) = free {
            self.release(free.slot);
        }
        self.leave(written);
    }

    /// The frame of a write, unless its page is part of another one by now.
    pub(super) fn frame_of_write(&mut self, written: WrittenFrame) -> Option<&mut Frame> {
        let frame = self.frames[written.number as usize].as_mut();
        frame.filter(|frame| frame.id == written.id)
    }

    /// Evicts the frame of a write that has ended, if it is its turn and the page has not changed since.
    pub(super) fn leave(&mut self, written: WrittenFrame) {
        let is_abandoned = self.is_abandoned;
        let Some(frame) = self.frame_of_write(written) else {
            return;
        };
        let leaves = frame.stay == Stay::Leaving && !frame.is_changed() && !is_abandoned;
        if let Some((saved, _)) = frame.saved.filter(|_| leaves) {
            let gone = self.vacate(written.number);
            let at = self.directory.find(gone.leaf.first());
            self.directory.set_place(at, Place::Away(saved));
        }
    }
}
