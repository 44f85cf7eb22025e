//! Which index pages are in memory: all of them, because the index is a table in memory.
//!
//! Code that uses the map does not rely on that, see [`BlockMap`](super::BlockMap). A test proves it: with
//! [`page_index`](crate::planted::page_index), each map has a [`PagedIndex`](crate::index::PagedIndex) of small pages beside its
//! table, which is read and written as if it were on the device, and must agree with the table whenever a block is looked up.

use std::ops::Range;

use flaz_device::Env;

use crate::index::{Entry, Index};
use crate::units::LocalBlock;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Residency {
    #[cfg(feature = "planted-bugs")]
    beside: Option<beside::Beside>,
}

#[cfg(not(feature = "planted-bugs"))]
impl Residency {
    pub(super) fn new() -> Self {
        Self {}
    }

    /// Waits until the pages of `blocks` are in memory, all at the same time.
    pub(super) async fn load(&self, _env: &impl Env, _blocks: Range<LocalBlock>) {}

    /// Whether the page of a block is in memory.
    pub(super) fn has(&self, _block: LocalBlock) -> bool {
        true
    }

    /// A block was looked up.
    pub(super) fn found(&self, _block: LocalBlock, _entry: Option<Entry>) {}

    /// The entry of a block was set or removed.
    pub(super) fn set(&self, _block: LocalBlock, _entry: Option<Entry>) {}

    /// All entries were set.
    pub(super) fn fill(&self, _index: &Index) {}
}

#[cfg(feature = "planted-bugs")]
impl Residency {
    pub(super) fn new() -> Self {
        let beside = crate::planted::is_index_paged().then(beside::Beside::new);
        Self { beside }
    }

    pub(super) async fn load(&self, env: &impl Env, blocks: Range<LocalBlock>) {
        if let Some(beside) = &self.beside {
            beside.load(env, blocks).await;
        }
    }

    pub(super) fn has(&self, block: LocalBlock) -> bool {
        self.beside.as_ref().is_none_or(|beside| beside.has(block))
    }

    pub(super) fn found(&self, block: LocalBlock, entry: Option<Entry>) {
        if let Some(beside) = &self.beside {
            beside.compare(block, entry);
        }
    }

    pub(super) fn set(&self, block: LocalBlock, entry: Option<Entry>) {
        if let Some(beside) = &self.beside {
            beside.set(block, entry);
        }
    }

    pub(super) fn fill(&self, index: &Index) {
        if let Some(beside) = &self.beside {
            beside.fill(index);
        }
    }
}

#[cfg(feature = "planted-bugs")]
mod beside {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::ops::Range;
    use std::time::Duration;

    use flaz_device::Env;

    use crate::index::{Entry, Index, PageRead, PagedIndex};
    use crate::units::LocalBlock;

    /// Entries of a page and pages in memory: few, so that the small caches of tests have more.
    const ENTRIES_MAX: usize = 12;
    const FRAMES_MAX: usize = 4;
    const SLOTS: u32 = 1 << 16;
    /// Pages written at a time.
    const WRITES_MAX: usize = 3;
    /// How long a read or a write takes at times; at other times only other tasks run.
    const SLOW: Duration = Duration::from_micros(100);
    const SLOW_ONE_IN: u64 = 4;
    /// One write in so many fails.
    const FAILS_ONE_IN: u64 = 9;

    #[derive(Debug)]
    pub(super) struct Beside {
        index: RefCell<PagedIndex>,
        /// Slots and what was written there.
        device: RefCell<BTreeMap<u32, Vec<u8>>>,
        requests: Cell<u64>,
    }

    impl Beside {
        pub(super) fn new() -> Self {
            Self {
                index: RefCell::new(PagedIndex::of_small_pages(SLOTS, FRAMES_MAX, ENTRIES_MAX)),
                device: RefCell::default(),
                requests: Cell::new(0),
            }
        }

        /// Brings pages into memory. Those that were read, and left memory while others were read, are put back without a read.
        pub(super) async fn load(&self, env: &impl Env, blocks: Range<LocalBlock>) {
            let mut read: Vec<(PageRead, Vec<u8>)> = Vec::new();
            loop {
                if !self.index.borrow_mut().make_room() {
                    self.write_some(env).await;
                    continue;
                }
                let missing = self.index.borrow_mut().missing(blocks.clone());
                let unread = missing
                    .iter()
                    .find(|page| read.iter().all(|(other, _)| other != *page));
                let Some(page) = unread else {
                    let mut index = self.index.borrow_mut();
                    for (page, bytes) in &read {
                        index.put(*page, bytes).expect("it was written like this");
                    }
                    return;
                };
                let bytes = self.device.borrow()[&page.slot()].clone();
                self.pause(env).await;
                read.push((*page, bytes));
            }
        }

        async fn write_some(&self, env: &impl Env) {
            let writes = self.index.borrow_mut().begin_writes(WRITES_MAX);
            for write in &writes {
                self.device.borrow_mut().insert(write.slot(), write.bytes.clone());
            }
            self.pause(env).await;
            for write in writes {
                let succeeded = !self.requests.get().is_multiple_of(FAILS_ONE_IN);
                self.requests.set(self.requests.get() + 1);
                self.index.borrow_mut().end_write(&write, succeeded);
            }
        }

        async fn pause(&self, env: &impl Env) {
            self.requests.set(self.requests.get() + 1);
            match self.requests.get().is_multiple_of(SLOW_ONE_IN) {
                true => env.sleep(SLOW).await,
                false => env.yield_now().await,
            }
        }

        pub(super) fn has(&self, block: LocalBlock) -> bool {
            self.index.borrow().has(block)
        }

        /// Counters of hits may differ: those of pages that did not change are lost when they leave memory.
        pub(super) fn compare(&self, block: LocalBlock, entry: Option<Entry>) {
            let plain = |entry: Option<Entry>| entry.map(|entry| entry.with_hits(0));
            let found = self.index.borrow().get(block);
            assert_eq!(plain(found), plain(entry), "the pages and the table disagree");
        }

        pub(super) fn set(&self, block: LocalBlock, entry: Option<Entry>) {
            let mut index = self.index.borrow_mut();
            match entry {
                Some(entry) => index.insert(block, entry),
                None => index.remove(block),
            };
        }

        pub(super) fn fill(&self, index: &Index) {
            let mut beside = self.index.borrow_mut();
            let mut all: Vec<_> = index.iter().collect();
            all.sort_unstable_by_key(|(block, _)| *block);
            for (block, entry) in all {
                beside.insert(block, entry);
            }
        }
    }
}
