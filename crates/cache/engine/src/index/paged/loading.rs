//! Pages that are read: the page in its slot, its changes on the device, and those in memory.

use std::ops::Range;

use super::{DamagedPage, Delta, Leaf, PageRead, PagedIndex, Place, Position, Stay, Stored, image};
use crate::index::entry::Entry;
use crate::index::rows;
use crate::planted::{PlantedBug, planted};
use crate::units::LocalBlock;

/// So many changes are applied one by one; more, by encoding the page anew.
const APPLIED_SINGLY_MAX: usize = 8;

impl PagedIndex {
    /// The pages of `blocks` that are not in memory. Those that are there stay for a while.
    pub fn missing(&mut self, blocks: Range<LocalBlock>) -> Vec<PageRead> {
        let mut missing = Vec::new();
        if self.is_abandoned {
            return missing;
        }
        let mut next = (!blocks.is_empty()).then(|| self.directory.find(blocks.start));
        while let Some(at) = next.filter(|at| self.directory.first(*at) < blocks.end) {
            match self.directory.place(at) {
                Place::Frame(frame) => self.set_stay(frame, Stay::Used),
                Place::Away(_) => missing.extend(self.page_to_read(at)),
            }
            next = self.directory.next(at);
        }
        missing
    }

    /// The page at a position, if it is not in memory.
    pub(super) fn page_to_read(&self, at: Position) -> Option<PageRead> {
        let Place::Away(saved) = self.directory.place(at) else {
            return None;
        };
        Some(PageRead {
            first: self.directory.first(at),
            saved,
            changes: self.changes_to_read(saved.slot),
        })
    }

    /// The checksum of the changes of the page in a slot, if they must be read.
    fn changes_to_read(&self, slot: u32) -> Option<u32> {
        match self.rows.stored(slot) {
            Stored::Yes(checksum) => Some(checksum),
            Stored::No | Stored::Writing(_) => None,
        }
    }

    /// Whether a page must still be read: it is not in memory, was not written again, and pages are still used.
    #[must_use]
    pub fn is_wanted(&self, read: PageRead) -> bool {
        let at = self.directory.find(read.first);
        // The page lacks what was written to the origin since.
        !self.is_abandoned
            && self.directory.first(at) == read.first
            && self.directory.place(at) == Place::Away(read.saved)
            && self.changes_to_read(read.saved.slot) == read.changes
    }

    /// A page was read, and its changes if they were wanted: brings it into memory, unless that is done already.
    ///
    /// # Errors
    /// The bytes are not those that were written last.
    pub fn put(&mut self, read: PageRead, page: &[u8], changes: &[u8]) -> Result<(), DamagedPage> {
        if !self.is_wanted(read) {
            return Ok(());
        }
        let damaged = |of_changes, why| DamagedPage {
            page: read,
            of_changes,
            why,
        };
        let PageRead { first, saved, .. } = read;
        let leaf = image::read_leaf(page, first, saved.checksum, self.plan.mark);
        let (leaf, checked) = leaf.map_err(|why| damaged(false, why))?;
        let stored = match self.rows.stored(saved.slot) {
            Stored::No => None,
            _ if planted(PlantedBug::StoredChangesSkipped) => None,
            Stored::Writing(stored) => Some(Ok(stored)),
            Stored::Yes(checksum) => Some(rows::part(changes, checksum, rows::row_of(saved.slot).1)),
        };
        let stored = stored.map(|stored| stored.and_then(|stored| Delta::decode(stored, first)));
        let stored = stored.transpose().map_err(|why| damaged(true, why))?;
        self.rebuilt_slots.retain(|slot| *slot != saved.slot);
        let frame = self.add_frame(leaf, Some(saved), checked);
        let at = self.directory.find(first);
        self.directory.set_place(at, Place::Frame(frame));
        self.check(frame);
        if let Some(stored) = stored {
            self.apply(stored);
            self.set_stored(frame);
            let frame = self.frames[frame as usize].as_mut().expect("it has a page");
            // Unless the page must be written as a whole, because it was divided.
            if let Some((_, version)) = frame.saved.as_mut().filter(|_| !frame.touched.is_all()) {
                *version = frame.version;
            }
        }
        if let Some(delta) = self.deltas.take(saved.slot) {
            let delta = Delta::decode(&delta, first).expect("it was encoded here, or checked at the start");
            self.apply(delta);
        }
        self.merge(self.directory.find(first));
        Ok(())
    }

    /// All changes of the page in this frame are on the device, or are being written.
    pub(super) fn set_stored(&mut self, number: u32) {
        let frame = self.frames[number as usize].as_mut().expect("it has a page");
        frame.touched.set_stored(true);
    }

    /// Applies changes of a page that was just read and checked. Earlier changes may have divided it: each block goes to its page.
    pub(super) fn apply(&mut self, delta: Delta) {
        let last = delta.last().and_then(|last| self.position(last));
        if let Some((_, number)) = last
            && delta.blocks().count() > APPLIED_SINGLY_MAX
            && self.apply_at_once(number, &delta)
        {
            return;
        }
        let Delta {
            checked,
            removed,
            set,
        } = delta;
        for block in removed {
            self.apply_removal(block);
        }
        for (block, entry) in set {
            match self.retired.is_valid(entry.location(), checked) {
                true => _ = self.set(block, entry),
                false => self.apply_removal(block),
            }
        }
    }

    fn apply_removal(&mut self, block: LocalBlock) {
        let (_, number) = self.position(block).expect("the page is in memory");
        self.change(number, |frame| {
            frame.leaf.remove(block);
            frame.touch(block);
        });
    }

    /// Applies changes by encoding the page in a frame anew. False: it does not have all of their blocks, or must be divided.
    fn apply_at_once(&mut self, number: u32, delta: &Delta) -> bool {
        let (retired, leaf) = (&self.retired, &self.frame(number).leaf);
        if delta.blocks().any(|block| block < leaf.first()) {
            return false;
        }
        let is_valid = |entry: &Entry| retired.is_valid(entry.location(), delta.checked);
        let mut entries: Vec<_> = leaf.entries().filter(|(block, _)| !delta.has(*block)).collect();
        entries.extend(delta.set.iter().filter(|(_, entry)| is_valid(entry)));
        // These are two sequences in order, which a stable sort merges.
        entries.sort_by_key(|(block, _)| *block);
        let leaf = Leaf::of(leaf.first(), entries.into_iter());
        if leaf.used_bytes() > self.plan.used_bytes_max {
            return false;
        }
        self.change(number, |frame| {
            frame.leaf = leaf;
            delta.blocks().for_each(|block| frame.touch(block));
        });
        true
    }
}
