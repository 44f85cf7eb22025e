//! A paged index and its I/O: pages are read when they are needed, and written by a task.
//!
//! Invariants:
//! - A load returns when all its pages are in memory at the same time. It keeps a copy of each page that it reads, so no page is pinned,
//!   and loads do not wait for each other's memory. The number of loads and [`STRIPE_BLOCKS`] limit these copies.
//! - A page is read once at a time. A dropped read leaves nothing behind except the mark of a damaged page.
//! - Only the task writes, one batch at a time: a dropped request cannot leave a write in flight to a slot that counts as free.
//! - Loads of a damaged page fail with [`LoadError::Damaged`] until the shard has rebuilt it from the log, or a later read succeeds. If it
//!   cannot be rebuilt, or the device is already fenced, no page outside memory is read again.
//! - Nothing is written after a fence. Pages are read as long as dirty blocks are wanted and the device answers: see [`Pages::after_fence`].
//!
//! [`STRIPE_BLOCKS`]: crate::units::STRIPE_BLOCKS

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::deadline::is_timeout;
use flaz_device::local::{Notify, Permit, Semaphore};
use flaz_device::{DeviceError, Env, IoBuf};
use futures_util::future::join_all;

use crate::index::{DamagedPage, Entry, PagePlan, PageRead, PageWrite, PagedIndex};
use crate::shard::Platform;
use crate::shard::io::CacheIo;
use crate::units::LocalBlock;

/// Pages written at a time.
const WRITES_MAX: usize = 32;
/// Batches in a row with a failed write after which the device is fenced.
const FAILED_BATCHES_MAX: u32 = 4;
/// How long the task waits after a failed write.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How a page and its changes are read, at once or not, before the page counts as damaged.
const READ_TRIES: [bool; 2] = [true, false];

/// Maximum number of rebuilds in a run. With more damage, one recovery at the next start is cheaper than a scan of the log for each.
const REBUILDS_MAX: u32 = 64;

/// Why pages could not be loaded.
#[derive(Debug)]
pub(in crate::shard) enum LoadError {
    /// The device must be fenced before the next await. Pages outside memory are never read again.
    Failed(String),
    /// The caller must rebuild the page or call [`BlockMap::give_up`](super::BlockMap::give_up).
    Damaged(DamagedPage),
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Pages {
    index: RefCell<PagedIndex>,
    page_bytes: usize,
    /// Slots that are being read.
    reading: RefCell<BTreeSet<u32>>,
    read_ended: Notify,
    is_writing: Cell<bool>,
    /// An image of the index was taken, or there will be none: no page is written any more.
    is_sealed: Cell<bool>,
    /// A batch of writes has ended.
    written: Notify,
    failed_batches: Cell<u32>,
    /// The page that is checked next.
    next_check: Cell<LocalBlock>,
    /// Why the device must be fenced.
    failure: RefCell<Option<String>>,
    /// Damaged pages that have not been rebuilt.
    damaged: RefCell<Vec<DamagedPage>>,
    rebuilding: Semaphore,
    rebuilds: Cell<u32>,
}

/// A page that was read, and its changes, if there are some on the device.
#[derive(Debug)]
struct ReadPage {
    of: PageRead,
    bytes: IoBuf,
    changes: IoBuf,
}

fn unread_page(page: PageRead, why: &str) -> String {
    format!("page {} of the index cannot be read: {why}", page.slot())
}

/// A slot that is being read.
struct Reading<'a>(&'a Pages, u32);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.reading.borrow_mut().remove(&self.1);
        self.0.read_ended.notify_all();
    }
}

impl Pages {
    pub(super) fn new(plan: PagePlan) -> Rc<Self> {
        Rc::new(Self {
            index: RefCell::new(PagedIndex::new(plan)),
            page_bytes: plan.page_bytes,
            reading: RefCell::default(),
            read_ended: Notify::new(),
            is_writing: Cell::new(false),
            is_sealed: Cell::new(false),
            written: Notify::new(),
            failed_batches: Cell::new(0),
            next_check: Cell::new(LocalBlock(0)),
            failure: RefCell::default(),
            damaged: RefCell::default(),
            rebuilding: Semaphore::new(1),
            rebuilds: Cell::new(0),
        })
    }

    /// The index. Not borrowed across an await.
    pub(super) fn index(&self) -> &RefCell<PagedIndex> {
        &self.index
    }

    /// Why the device must be fenced, if it must be.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    fn fail(&self, why: String) -> String {
        self.failure.borrow_mut().get_or_insert(why).clone()
    }

    /// Brings the pages of `blocks` into memory.
    ///
    /// # Errors
    /// [`LoadError`].
    pub(super) async fn load<P: Platform>(
        self: &Rc<Self>,
        io: &Rc<CacheIo<P>>,
        blocks: Range<LocalBlock>,
    ) -> Result<(), LoadError> {
        let mut read: Vec<ReadPage> = Vec::new();
        loop {
            if io.is_fenced() {
                self.after_fence();
            } else if let Some(why) = self.failure() {
                // The caller looks its blocks up after an error, too.
                self.index.borrow_mut().abandon();
                return Err(LoadError::Failed(why));
            }
            let pages = read.len().max(1);
            let has_room = self.index.borrow_mut().make_room(pages, !io.is_fenced());
            if (!has_room || self.index.borrow().wants_writes()) && self.begin_write(io) && !has_room {
                self.written.notified().await;
                continue;
            }
            let missing = self.index.borrow_mut().missing(blocks.clone());
            let is_unread = |page: &PageRead| read.iter().all(|other| other.of != *page);
            let unread: Vec<PageRead> = missing.into_iter().filter(is_unread).collect();
            if unread.is_empty() {
                let mut index = self.index.borrow_mut();
                for page in &read {
                    let put = index.put(page.of, &page.bytes, &page.changes);
                    put.map_err(|damaged| LoadError::Failed(self.fail(damaged.why)))?;
                    self.forget_damaged(page.of);
                }
                return Ok(());
            }
            if !io.is_fenced() {
                self.find_damaged(&unread)?;
            }
            let is_free = |page: &&PageRead| !self.reading.borrow().contains(&page.slot());
            let reads: Vec<_> = (unread.iter().filter(is_free))
                .map(|page| self.read(io, *page))
                .collect();
            if reads.is_empty() {
                self.read_ended.notified().await;
                continue;
            }
            let mut damaged = None;
            for page in join_all(reads).await {
                match page {
                    Ok(page) => read.extend(page),
                    Err(error @ LoadError::Damaged(..)) if !io.is_fenced() => damaged = Some(error),
                    Err(error) => return Err(LoadError::Failed(self.give_up(error))),
                }
            }
            if let Some(error) = damaged {
                return Err(error);
            }
        }
    }

    /// Reads a page, and brings it into memory for all that wait for it. `None`: it is not wanted any more.
    async fn read<P: Platform>(
        &self,
        io: &CacheIo<P>,
        page: PageRead,
    ) -> Result<Option<ReadPage>, LoadError> {
        let is_new = self.reading.borrow_mut().insert(page.slot());
        assert!(is_new, "a page is read once at a time");
        let _reading = Reading(self, page.slot());
        let mut last = None;
        for at_once in READ_TRIES {
            let read = self.read_slots(io, page, at_once).await;
            let mut index = self.index.borrow_mut();
            if !index.is_wanted(page) {
                return Ok(None);
            }
            last = Some(match read {
                Ok(read) => match index.put(page, &read.bytes, &read.changes) {
                    Ok(()) => {
                        self.forget_damaged(page);
                        return Ok(Some(read));
                    }
                    Err(damaged) => damaged,
                },
                Err((error, of_changes)) => {
                    let why = error.to_string();
                    // The slot that cannot be read may lie between the two. The second try tells.
                    let counts = !at_once || page.changes_slot().is_none() || is_timeout(&error);
                    if counts && io.note_error(&error).is_some() {
                        return Err(LoadError::Failed(unread_page(page, &why)));
                    }
                    DamagedPage {
                        page,
                        of_changes,
                        why,
                    }
                }
            });
        }
        let mut damaged = last.expect("it was read");
        damaged.why = unread_page(page, &damaged.why);
        // Before others that wait for it read it again.
        self.damaged.borrow_mut().push(damaged.clone());
        Err(LoadError::Damaged(damaged))
    }

    /// # Errors
    /// One of these pages is damaged, as an earlier load has found.
    fn find_damaged(&self, pages: &[PageRead]) -> Result<(), LoadError> {
        let damaged = self.damaged.borrow();
        let found = damaged
            .iter()
            .find(|damaged| pages.iter().any(|page| damaged.affects(page)));
        found.map_or(Ok(()), |damaged| Err(LoadError::Damaged(damaged.clone())))
    }

    /// Gives up all pages outside memory: they are never read again. Returns the reason to fence the device.
    pub(super) fn give_up(&self, error: LoadError) -> String {
        self.index.borrow_mut().abandon();
        match error {
            LoadError::Failed(why) | LoadError::Damaged(DamagedPage { why, .. }) => self.fail(why),
        }
    }

    /// Waits for other rebuilds to end.
    pub(super) async fn turn_to_rebuild(&self) -> Permit<'_> {
        self.rebuilding.acquire(1).await
    }

    /// Whether one more rebuild may begin.
    pub(super) fn may_rebuild(&self) -> bool {
        self.rebuilds.get() < REBUILDS_MAX
    }

    /// A rebuild has ended.
    pub(super) fn note_rebuild(&self) {
        self.rebuilds.set(self.rebuilds.get() + 1);
    }

    /// Whether the slot of a page cannot be read, as far as loads have found.
    pub(super) fn is_bad(&self, page: PageRead) -> bool {
        let damaged = self.damaged.borrow();
        let mut damaged = damaged.iter().filter(|damaged| !damaged.of_changes);
        damaged.any(|damaged| damaged.page.slot() == page.slot())
    }

    /// Clears the mark of a damaged page: it was rebuilt, a later read succeeded, or it was replaced.
    pub(super) fn forget_damaged(&self, page: PageRead) {
        self.damaged
            .borrow_mut()
            .retain(|damaged| damaged.page.slot() != page.slot());
    }

    /// Reads a page and its changes, at once or, because a slot between them may be damaged, one after the other.
    ///
    /// # Errors
    /// The error of the device, and whether it is known to be that of the changes: they were read on their own.
    async fn read_slots<P: Platform>(
        &self,
        io: &CacheIo<P>,
        page: PageRead,
        at_once: bool,
    ) -> Result<ReadPage, (DeviceError, bool)> {
        let (slot, len) = (page.slot(), self.page_bytes);
        let of_page = |error| (error, false);
        let (bytes, changes) = match page.changes_slot() {
            None => (
                io.read_page(slot..slot + 1, len).await.map_err(of_page)?,
                IoBuf::new(0),
            ),
            Some(changes) if at_once => {
                let slots = slot.min(changes)..slot.max(changes) + 1;
                let all = io.read_page(slots.clone(), len).await.map_err(of_page)?;
                let in_slot = |slot: u32| IoBuf::copy_of(&all[(slot - slots.start) as usize * len..][..len]);
                (in_slot(slot), in_slot(changes))
            }
            Some(changes) => (
                io.read_page(slot..slot + 1, len).await.map_err(of_page)?,
                (io.read_page(changes..changes + 1, len).await).map_err(|error| (error, true))?,
            ),
        };
        Ok(ReadPage {
            of: page,
            bytes,
            changes,
        })
    }

    /// Starts the task that writes changed pages, unless it runs. False: nothing can be written, so there is nothing to wait for.
    fn begin_write<P: Platform>(self: &Rc<Self>, io: &Rc<CacheIo<P>>) -> bool {
        if self.is_writing.get() {
            return true;
        }
        if io.is_fenced() || self.failure.borrow().is_some() || self.is_sealed.get() {
            return false;
        }
        let writes = self.index.borrow_mut().begin_writes(WRITES_MAX);
        if writes.is_empty() {
            return false;
        }
        self.is_writing.set(true);
        let task = Rc::clone(self).write_task(Rc::clone(io), writes);
        io.env().spawn(task);
        true
    }

    async fn write_task<P: Platform>(self: Rc<Self>, io: Rc<CacheIo<P>>, mut writes: Vec<PageWrite>) {
        while !writes.is_empty() {
            let mut failed = None;
            join_all(writes.iter_mut().map(|write| self.complete(&io, write))).await;
            for write in writes.extract_if(.., |write| write.reads_first()) {
                self.index.borrow_mut().end_write(&write, false);
            }
            let is_any_sent = !writes.is_empty();
            let sent = writes
                .iter()
                .map(|write| io.write_page(write.slot(), &write.bytes));
            for (write, result) in writes.iter().zip(join_all(sent).await) {
                self.index.borrow_mut().end_write(write, result.is_ok());
                failed = result.err().or(failed);
            }
            if let Some(error) = failed {
                self.failed_batches.set(self.failed_batches.get() + 1);
                let is_refused = CacheIo::<P>::was_refused(&error);
                let many = self.failed_batches.get() >= FAILED_BATCHES_MAX;
                if !is_refused && (io.note_error(&error).is_some() || many) {
                    self.fail(format!("pages of the index cannot be written: {error}"));
                } else if !is_refused {
                    io.env().sleep(RETRY_PAUSE).await;
                }
            } else if is_any_sent {
                self.failed_batches.set(0);
            }
            self.written.notify_all();
            let goes_on = !io.is_fenced() && self.failure.borrow().is_none() && !self.is_sealed.get();
            writes = match goes_on && self.index.borrow().wants_writes() {
                true => self.index.borrow_mut().begin_writes(WRITES_MAX),
                false => Vec::new(),
            };
        }
        self.is_writing.set(false);
        self.written.notify_all();
    }

    /// Completes a write with what its slot has, if that is wanted. If that cannot be read, the write stays incomplete.
    async fn complete<P: Platform>(&self, io: &CacheIo<P>, write: &mut PageWrite) {
        if write.reads_first() {
            let old = io
                .read_page(write.slot()..write.slot() + 1, self.page_bytes)
                .await;
            let completed = match &old {
                Ok(old) => self.index.borrow_mut().complete(write, old),
                Err(error) => {
                    if let Some(why) = io.note_error(error) {
                        self.fail(why);
                    }
                    Err(error.to_string())
                }
            };
            if let Err(why) = completed {
                tracing::warn!(slot = write.slot(), why, "changes of index pages cannot be read");
                self.index.borrow_mut().note_damaged_changes(write);
            }
        }
    }

    /// Writes all pages that have changed. Returns whether there were some; `None`: some cannot be written.
    pub(super) async fn write_changed<P: Platform>(self: &Rc<Self>, io: &Rc<CacheIo<P>>) -> Option<bool> {
        let mut any = false;
        // Pages whose changes are being written may have left.
        self.written().await;
        while self.index.borrow_mut().leave_changed() {
            any = true;
            if !self.begin_write(io) {
                // The shard leaves no image. Its successor uses the slots.
                self.is_sealed.set(true);
                return None;
            }
            self.written().await;
        }
        (!self.index.borrow().is_abandoned()).then_some(any)
    }

    /// The image of the index, all of whose pages in memory are written. What changes from now on stays in memory.
    pub(super) fn last_image(&self) -> Vec<u8> {
        self.is_sealed.set(true);
        self.index.borrow().image().expect("all pages are written")
    }

    /// Waits until no page is being written.
    pub(super) async fn written(&self) {
        while self.is_writing.get() {
            self.written.notified().await;
        }
    }

    /// The device is fenced. Without dirty blocks, the index is no longer needed: nothing is read of the device. With dirty blocks, pages
    /// are still read; what changes stays in memory, because it cannot be written.
    fn after_fence(&self) {
        let mut index = self.index.borrow_mut();
        if index.fragments().dirty_blocks() == 0 {
            index.abandon();
        }
    }

    /// Loads the next `count` pages in address order, and removes entries of regions that were freed since. Empty pages leave the
    /// directory when they leave memory.
    ///
    /// # Errors
    /// As [`Pages::load`].
    pub(super) async fn check_some<P: Platform>(
        self: &Rc<Self>,
        io: &Rc<CacheIo<P>>,
        count: usize,
    ) -> Result<(), LoadError> {
        for _ in 0..count {
            let at = self.next_check.get();
            self.load(io, at..LocalBlock(at.0 + 1)).await?;
            let next = self.index.borrow_mut().check_page(at);
            self.next_check.set(next.unwrap_or(LocalBlock(0)));
        }
        Ok(())
    }

    /// Calls `visit` with each entry from `from` on, until that returns false. With `only_dirty`, pages without dirty blocks are left out.
    /// Entries may change during the walk: each entry that does not is visited once.
    ///
    /// # Errors
    /// As [`Pages::load`].
    pub(super) async fn walk<P: Platform>(
        self: &Rc<Self>,
        io: &Rc<CacheIo<P>>,
        from: LocalBlock,
        only_dirty: bool,
        mut visit: impl FnMut(LocalBlock, Entry) -> bool,
    ) -> Result<(), LoadError> {
        let mut next = Some(from);
        while let Some(mut at) = next {
            if only_dirty {
                match self.index.borrow().next_maybe_dirty(at) {
                    Some(first) => at = first,
                    None => return Ok(()),
                }
            }
            self.load(io, at..LocalBlock(at.0 + 1)).await?;
            let index = self.index.borrow();
            let (mut entries, behind) = index.page_of(at);
            if !entries.all(|(block, entry)| visit(block, entry)) {
                return Ok(());
            }
            next = behind;
        }
        Ok(())
    }
}
