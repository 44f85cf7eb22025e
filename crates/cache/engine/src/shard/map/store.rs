//! The entries of blocks: in a table in memory, or in pages of which some are in memory.
//!
//! With the feature `planted-bugs`, an index in pages has a table beside it, which must agree with it whenever a block is looked up.

use std::cell::RefCell;
use std::rc::Rc;

use super::pages::Pages;
use crate::format::layout::Layout;
use crate::index::{Entry, Fragments, Index, PageImage, PagePlan, PageRead, PagedIndex};
use crate::units::LocalBlock;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Store {
    /// With pages: what they are compared with.
    table: RefCell<Index>,
    pages: Option<Rc<Pages>>,
}

/// Whether the table has what the pages have.
const COMPARES: bool = cfg!(feature = "planted-bugs");

impl Store {
    pub(super) fn new(layout: &Layout, plan: Option<PagePlan>) -> Self {
        Self {
            table: RefCell::new(Index::new(layout.local_blocks(), layout.blocks_planned())),
            pages: plan.map(Pages::new),
        }
    }

    /// The table. With pages, it has no meaning.
    pub(super) fn table(&self) -> &RefCell<Index> {
        &self.table
    }

    /// The pages. `None`: all is in the table.
    pub(super) fn pages(&self) -> Option<&Rc<Pages>> {
        self.pages.as_ref()
    }

    /// Whether the page of a block is in memory, or never will be.
    pub(super) fn has(&self, block: LocalBlock) -> bool {
        (self.pages.as_ref()).is_none_or(|pages| pages.index().borrow().has(block))
    }

    /// Whether the page of a block cannot be read any more.
    pub(super) fn is_lost(&self, block: LocalBlock) -> bool {
        (self.pages.as_ref()).is_some_and(|pages| pages.index().borrow().is_lost(block))
    }

    /// The same, and the block may be dirty.
    pub(super) fn is_unknown(&self, block: LocalBlock) -> bool {
        (self.pages.as_ref()).is_some_and(|pages| pages.index().borrow().is_unknown(block))
    }

    pub(super) fn get(&self, block: LocalBlock) -> Option<Entry> {
        let Some(pages) = &self.pages else {
            return self.table.borrow().get(block);
        };
        let found = pages.index().borrow().get(block);
        if COMPARES && !pages.index().borrow().is_abandoned() {
            // Pages have no hits.
            let plain = |entry: Option<Entry>| entry.map(|entry| entry.with_hits(0));
            let expected = self.table.borrow().get(block);
            assert_eq!(plain(found), plain(expected), "the pages and the table disagree");
        }
        found
    }

    /// The entry of a block whose page need not be in memory, if it was read often.
    pub(super) fn get_cached(&self, block: LocalBlock) -> Option<Entry> {
        let found = self.pages.as_ref()?.index().borrow_mut().get_cached(block);
        if COMPARES && found.is_some() {
            let plain = |entry: Option<Entry>| entry.map(|entry| entry.with_hits(0));
            let expected = self.table.borrow().get(block);
            assert_eq!(
                plain(found),
                plain(expected),
                "the entry cache and the table disagree"
            );
        }
        found
    }

    /// The entry of a block whose page need not be in memory, if that is known.
    pub(super) fn peek(&self, block: LocalBlock) -> Option<Entry> {
        match &self.pages {
            Some(pages) if !COMPARES || pages.index().borrow().is_abandoned() => {
                let index = pages.index().borrow();
                index.has(block).then(|| index.get(block))?
            }
            _ => self.table.borrow().get(block),
        }
    }

    pub(super) fn hit(&self, block: LocalBlock, counts: impl FnOnce(Entry) -> bool) -> Option<Entry> {
        match &self.pages {
            None => self.table.borrow_mut().hit(block, counts),
            Some(pages) => pages.index().borrow_mut().hit(block, counts),
        }
    }

    pub(super) fn count_use(&self, block: LocalBlock, entry: Entry, counts: impl FnOnce(Entry) -> bool) {
        match &self.pages {
            None => drop(self.table.borrow_mut().hit(block, counts)),
            Some(pages) if counts(entry) => pages.index().borrow_mut().note_use(entry),
            Some(_) => {}
        }
    }

    /// Makes a change of both.
    fn change<T>(
        &self,
        of_table: impl FnOnce(&mut Index) -> T,
        of_pages: impl FnOnce(&mut PagedIndex) -> T,
    ) -> T {
        let Some(pages) = &self.pages else {
            return of_table(&mut self.table.borrow_mut());
        };
        if COMPARES {
            of_table(&mut self.table.borrow_mut());
        }
        of_pages(&mut pages.index().borrow_mut())
    }

    pub(super) fn insert(&self, block: LocalBlock, entry: Entry) -> Option<Entry> {
        self.change(
            |table| table.insert(block, entry),
            |pages| pages.insert(block, entry),
        )
    }

    pub(super) fn remove(&self, block: LocalBlock) -> Option<Entry> {
        self.change(|table| table.remove(block), |pages| pages.remove(block))
    }

    pub(super) fn clean(&self, block: LocalBlock) -> bool {
        self.change(|table| table.clean(block), |pages| pages.clean(block))
    }

    /// All `entries` in a region are removed: of pages, those that `are_there`.
    pub(super) fn retire(&self, region: u32, entries: u32, are_there: impl Fn(Entry) -> bool) {
        let pages = self.pages.as_ref().expect("a table has no late entries");
        pages.index().borrow_mut().retire(region, entries);
        if !COMPARES {
            return;
        }
        let mut table = self.table.borrow_mut();
        let left: Vec<_> = table.iter().filter(|(_, entry)| are_there(*entry)).collect();
        for (block, _) in &left {
            table.remove(*block);
        }
        let pages = pages.index().borrow();
        if !pages.is_abandoned() {
            assert_eq!(left.len(), entries as usize, "the pages and the table disagree");
            let counts = |fragments: Fragments| (fragments.bytes(), fragments.dirty_blocks());
            assert_eq!(pages.len(), table.len());
            assert_eq!(counts(pages.fragments()), counts(table.fragments()));
        }
    }

    /// Replaces a page that cannot be read: see [`PagedIndex::put_rebuilt`].
    pub(super) fn put_rebuilt(
        &self,
        page: PageRead,
        entries: &[(LocalBlock, Entry)],
        checked: u64,
        is_good: bool,
    ) -> bool {
        let pages = self.pages.as_ref().expect("a table has no pages");
        let blocks = pages.index().borrow().lost_blocks(page);
        let is_put = pages
            .index()
            .borrow_mut()
            .put_rebuilt(page, entries, checked, is_good);
        if let Some(blocks) = blocks.filter(|_| COMPARES && is_put) {
            let (index, table) = (pages.index().borrow(), self.table.borrow());
            let mut found = Vec::new();
            let mut next = Some(blocks.start);
            while let Some(from) = next.filter(|from| *from < blocks.end) {
                let (entries, behind) = index.page_of(from);
                found.extend(entries);
                next = behind;
            }
            let mut expected: Vec<_> = table.iter().collect();
            for entries in [&mut found, &mut expected] {
                entries.retain(|(block, _)| blocks.contains(block));
                entries.sort_unstable_by_key(|(block, _)| *block);
                for (_, entry) in entries {
                    *entry = entry.with_hits(0);
                }
            }
            assert_eq!(found, expected, "the log and the table disagree");
        }
        is_put
    }

    /// Takes the index over from an image whose pages were counted.
    pub(super) fn inherit(&self, image: PageImage) {
        let pages = self.pages.as_ref().expect("the image is of pages");
        pages.index().borrow_mut().inherit(image);
        if COMPARES {
            assert_eq!(pages.index().borrow().len(), self.table.borrow().len());
        }
    }

    /// Counts the entries of a page that an image names.
    ///
    /// # Errors
    /// As [`PageImage::count`].
    pub(super) fn count(&self, image: &mut PageImage, entries: &[(LocalBlock, Entry)]) -> Result<(), String> {
        for (block, entry) in entries.iter().filter(|_| COMPARES) {
            self.table.borrow_mut().insert(*block, *entry);
        }
        image.count(entries)
    }

    pub(super) fn len(&self) -> usize {
        match &self.pages {
            None => self.table.borrow().len(),
            Some(pages) => pages.index().borrow().len(),
        }
    }

    pub(super) fn fragments(&self) -> Fragments {
        match &self.pages {
            None => self.table.borrow().fragments(),
            Some(pages) => pages.index().borrow().fragments(),
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let bytes = match &self.pages {
            None => self.table.borrow().memory_bytes(),
            Some(pages) => pages.index().borrow().memory_bytes(),
        };
        bytes as u64
    }
}
