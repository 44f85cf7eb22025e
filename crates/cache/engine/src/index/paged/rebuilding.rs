//! Damaged pages: their owner finds their entries elsewhere, and replaces them.

use std::ops::Range;

use super::{Frame, Leaf, PageRead, PagedIndex, Place, Stored};
use crate::index::entry::Entry;
use crate::index::rows;
use crate::units::LocalBlock;

/// A page that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPage {
    /// The page.
    pub page: PageRead,
    /// Whether its changes cannot be read, so that others that share them cannot be read either; otherwise, the page in its slot.
    pub of_changes: bool,
    /// What is wrong.
    pub why: String,
}

impl DamagedPage {
    /// Whether another page cannot be read for the same reason.
    #[must_use]
    pub fn affects(&self, other: &PageRead) -> bool {
        self.page.slot() == other.slot() || self.of_changes && self.page.shares_changes(other)
    }
}

/// Pages that are being rebuilt.
#[derive(Debug)]
pub struct LostPages {
    /// Each with its blocks.
    pub pages: Vec<(PageRead, Range<LocalBlock>)>,
    /// The number of the last retirement of a region.
    pub checked: u64,
}

impl PagedIndex {
    /// Whether a page is where it was when it was to be read.
    fn is_away(&self, page: PageRead) -> bool {
        let at = self.directory.find(page.first);
        self.directory.first(at) == page.first && self.directory.place(at) == Place::Away(page.saved)
    }

    /// Begins to rebuild a damaged page, and the others that cannot be read for the same reason; no others are rebuilt any more. `None`: the
    /// page is not wanted any more.
    pub fn begin_rebuild(&mut self, damaged: &DamagedPage) -> Option<LostPages> {
        if !self.is_wanted(damaged.page) {
            return None;
        }
        let pages = match damaged.of_changes {
            true => self.begin_row(damaged.page),
            false => vec![damaged.page],
        };
        self.rebuilt_slots = pages.iter().map(PageRead::slot).collect();
        let lost = pages.into_iter().map(|page| (page, self.blocks_of(page)));
        Some(LostPages {
            pages: lost.collect(),
            checked: self.retired.count(),
        })
    }

    /// The changes of a page on the device cannot be read: the pages that share them and are not in memory. Those in memory depend on these
    /// changes no more.
    fn begin_row(&mut self, page: PageRead) -> Vec<PageRead> {
        let (row, _) = rows::row_of(page.slot());
        self.rows.note_damaged(row);
        let in_row = |slot: u32| rows::row_of(slot).0 == row;
        for number in 0..self.frames.len() as u32 {
            let slot = self.frames[number as usize].as_ref().and_then(Frame::slot);
            if let Some(slot) = slot.filter(|slot| in_row(*slot) && self.rows.stored(*slot) != Stored::No) {
                self.rows.clear(slot);
                self.change(number, |frame| frame.touched.set_stored(false));
            }
        }
        let first = Some(self.directory.find(LocalBlock(0)));
        let all = std::iter::successors(first, |at| self.directory.next(*at));
        let away = all.filter_map(|at| self.page_to_read(at));
        away.filter(|other| other.shares_changes(&page)).collect()
    }

    fn blocks_of(&self, page: PageRead) -> Range<LocalBlock> {
        let next = self.directory.next(self.directory.find(page.first));
        page.first..next.map_or(LocalBlock(u64::MAX), |next| self.directory.first(next))
    }

    /// The blocks of a page that cannot be read. `None`: it is not wanted any more.
    #[must_use]
    pub fn lost_blocks(&self, page: PageRead) -> Option<Range<LocalBlock>> {
        let is_wanted = self.is_away(page) && !self.is_abandoned;
        is_wanted.then(|| self.blocks_of(page))
    }

    /// Replaces a page that cannot be read by one with its entries, in the order of their blocks, as they were when the rebuild began, at the
    /// retirement `checked`. Its slot is used again only if `is_good`. False: it is not wanted any more, or its blocks may have changed,
    /// because it has been in memory since: a later read has succeeded.
    pub fn put_rebuilt(
        &mut self,
        page: PageRead,
        entries: &[(LocalBlock, Entry)],
        checked: u64,
        is_good: bool,
    ) -> bool {
        let slots = self.rebuilt_slots.len();
        self.rebuilt_slots.retain(|slot| *slot != page.slot());
        if self.rebuilt_slots.len() == slots || self.lost_blocks(page).is_none() {
            return false;
        }
        let PageRead { first, saved, .. } = page;
        self.deltas.take(saved.slot);
        match is_good {
            true => self.release(saved.slot),
            false => self.rows.clear(saved.slot),
        }
        let frame = self.add_frame(Leaf::new(first), None, self.retired.count());
        self.directory
            .set_place(self.directory.find(first), Place::Frame(frame));
        for (block, entry) in entries {
            if self.retired.is_valid(entry.location(), checked) {
                self.set(*block, entry.with_hits(0));
            }
        }
        self.merge(self.directory.find(first));
        true
    }
}
