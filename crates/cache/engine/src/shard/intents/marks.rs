//! The marks that pages of the bitmap carry: how much of each open region is stable.
//!
//! Invariants:
//! - No mark names a region that is being made void, or was.
//! - [`Marks::may_be_on_medium`] holds for every generation that some page on the medium may name.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use crate::format::intent::DurableMark;
use crate::units::Sequence;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Marks {
    /// Numbers the pages: that of the page written last.
    page: Cell<u64>,
    durable: Cell<[DurableMark; 2]>,
    /// The filling that is being made void. Regions are reclaimed one after the other.
    voiding: Cell<Sequence>,
    /// Fillings that marks on the medium may name: of the last page that is stable there, and of those written since.
    on_medium: RefCell<BTreeSet<Sequence>>,
    /// Some of what was there at the start could not be read: it may be the latest, and name any filling.
    unread: Cell<bool>,
}

impl Marks {
    pub(super) fn new() -> Self {
        Self {
            page: Cell::new(1),
            durable: Cell::new([DurableMark::default(); 2]),
            voiding: Cell::new(Sequence(0)),
            on_medium: RefCell::new(BTreeSet::new()),
            unread: Cell::new(false),
        }
    }

    /// The marks that the next page carries.
    pub(super) fn current(&self) -> [DurableMark; 2] {
        self.durable.get()
    }

    pub(super) fn set(&self, marks: [DurableMark; 2]) {
        self.durable.set(marks);
    }

    /// Whether a part of the bitmap could not be read, and nothing stable was written since.
    pub(super) fn unread(&self) -> bool {
        self.unread.get()
    }

    /// A part of the bitmap could not be read.
    pub(super) fn note_unread(&self) {
        self.unread.set(true);
    }

    /// What was found on the medium: the highest number of a page, and the latest marks.
    pub(super) fn note_found(&self, page: u64, marks: [DurableMark; 2]) {
        // A number that no cache reaches was not written by one.
        self.page.set(page.min(u64::MAX / 2) + 1);
        self.on_medium.borrow_mut().extend(marks.map(|mark| mark.fill));
    }

    /// The number of the next page.
    pub(super) fn next_page(&self) -> u64 {
        self.page.set(self.page.get() + 1);
        self.page.get()
    }

    /// A page with the current marks goes to the device. Gives the fillings that it names.
    pub(super) fn note_sent(&self) -> [Sequence; 2] {
        let fills = self.durable.get().map(|mark| mark.fill);
        // From now on, for a write that fails may have landed.
        self.on_medium.borrow_mut().extend(fills);
        fills
    }

    /// A page that names these fillings is stable, and is the latest.
    pub(super) fn note_stable(&self, fills: [Sequence; 2]) {
        self.unread.set(false);
        let mut on_medium = self.on_medium.borrow_mut();
        on_medium.clear();
        on_medium.extend(fills);
    }

    /// Whether some page on the medium may name this filling.
    pub(super) fn may_be_on_medium(&self, fill: Sequence) -> bool {
        self.on_medium.borrow().contains(&fill) || self.unread.get()
    }

    /// A region is about to be made void: from now on no mark names its filling.
    pub(super) fn forget(&self, fill: Sequence) {
        self.voiding.set(fill);
        let mut marks = self.durable.get();
        for mark in marks.iter_mut().filter(|mark| mark.fill == fill) {
            *mark = DurableMark::default();
        }
        self.durable.set(marks);
    }

    /// Whether the region of this filling is being made void.
    pub(super) fn is_forgotten(&self, fill: Sequence) -> bool {
        fill == self.voiding.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(fill: u64) -> [DurableMark; 2] {
        let fill = Sequence(fill);
        [DurableMark { fill, used: 512 }, DurableMark::default()]
    }

    #[test]
    fn a_forgotten_filling_is_on_the_medium_until_a_later_page_is_stable() {
        let all = Marks::new();
        all.set(marks(9));
        let old = all.note_sent();
        all.note_stable(old);
        all.forget(Sequence(9));
        assert!(all.is_forgotten(Sequence(9)) && all.may_be_on_medium(Sequence(9)));
        assert_eq!(all.current(), [DurableMark::default(); 2]);
        let new = all.note_sent();
        assert!(all.may_be_on_medium(Sequence(9)), "it may not land");
        all.note_stable(new);
        assert!(!all.may_be_on_medium(Sequence(9)));
    }

    #[test]
    fn a_part_that_could_not_be_read_may_name_anything() {
        let all = Marks::new();
        assert!(!all.may_be_on_medium(Sequence(7)));
        all.note_unread();
        assert!(all.may_be_on_medium(Sequence(7)));
        all.note_stable(all.note_sent());
        assert!(!all.unread() && !all.may_be_on_medium(Sequence(7)));
    }

    #[test]
    fn pages_are_numbered_above_those_that_were_found() {
        let all = Marks::new();
        all.note_found(41, marks(1));
        assert_eq!((all.next_page(), all.next_page()), (43, 44));
        all.note_found(u64::MAX, marks(1));
        assert!(all.next_page() > u64::MAX / 2, "and do not wrap");
    }
}
