//! K-way merge of sorted runs and of the changes in memory: the index entries of a pass.
//!
//! This module does no I/O: [`Merge::step`] requests the pages to read next.
//!
//! Invariants:
//! - No entry is returned before the next change of every run is known. So all changes of a block are applied together, oldest run first.
//! - Pages of a run are read in order, and used only after their checksum was verified.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::bulk::{CLEAN, DROP};
use super::entry::Entry;
use super::pass::{Packed, Run, RunPlan};
use super::run::{Cursor, Seal, check};
use super::slots::CHUNK_SLOTS;
use crate::planted::{PlantedBug, planted};
use crate::units::LocalBlock;

/// The next step of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The entry of a block. Blocks ascend.
    Entry(LocalBlock, Entry),
    /// Read these slots, and pass the bytes to [`Merge::supply`].
    Read(Range<u32>),
    /// There are no more entries.
    Done,
}

/// A run that is being read.
#[derive(Debug)]
struct Reader<'a> {
    run: &'a mut Run,
    /// The pages read last, and the number of the first one within the run.
    bytes: Vec<u8>,
    first: u32,
    /// The position of the next change: a page, and a position within it.
    page: u32,
    cursor: Option<Cursor>,
}

impl Reader<'_> {
    /// The next change. `None`: more pages must be read, or the run has ended.
    fn next(&mut self, page_bytes: usize) -> Option<(LocalBlock, u64)> {
        loop {
            let at = (self.page - self.first) as usize * page_bytes;
            let page = self.bytes.get(at..at + page_bytes)?;
            let cursor = self.cursor.get_or_insert_with(Cursor::start);
            if let Some(change) = cursor.next(page) {
                return Some(change);
            }
            (self.page, self.cursor) = (self.page + 1, None);
        }
    }

    /// Accepts the pages that were read, if their checksums match.
    fn supply(&mut self, bytes: &[u8], plan: RunPlan) -> Result<(), String> {
        for (page, number) in bytes.chunks(plan.page_bytes).zip(self.page..) {
            let seal = Seal {
                mark: plan.mark,
                run: self.run.number,
                page: number,
            };
            check(page, seal)?;
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.first = self.page;
        Ok(())
    }

    /// The slots to read next, at most `most`. `None`: end of the run.
    fn wanted(&self, most: u32) -> Option<Range<u32>> {
        let left = self.run.pages - self.page;
        let (chunk, within) = ((self.page / CHUNK_SLOTS) as usize, self.page % CHUNK_SLOTS);
        let count = left.min(CHUNK_SLOTS - within).min(most);
        (count > 0).then(|| {
            let first = self.run.chunks[chunk].slot + within;
            first..first + count
        })
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Merge<'a> {
    changes: std::slice::Iter<'a, Packed>,
    readers: Vec<Reader<'a>>,
    plan: RunPlan,
    end: LocalBlock,
    /// Pages per read.
    read_pages: u32,
    /// The next change of each source: block, source, change. Sources are the runs, oldest first, then the changes in memory.
    next: BinaryHeap<Reverse<(LocalBlock, usize, u64)>>,
    /// Runs whose next change is unknown until pages are read.
    hungry: Vec<usize>,
    /// The current block, and its entry after the changes applied so far.
    block: Option<(LocalBlock, Option<Entry>)>,
}

impl<'a> Merge<'a> {
    /// Merges changes of blocks below `end`. The pages of all runs together take at most `memory_bytes`, but at least one page each.
    pub(super) fn new(
        changes: &'a [Packed],
        runs: &'a mut [Run],
        plan: RunPlan,
        end: LocalBlock,
        memory_bytes: usize,
    ) -> Self {
        let count = runs.len();
        let pages = memory_bytes / plan.page_bytes / count.max(1);
        let reader = |run| Reader {
            run,
            bytes: Vec::new(),
            first: 0,
            page: 0,
            cursor: None,
        };
        let mut merge = Self {
            changes: changes.iter(),
            readers: runs.iter_mut().map(reader).collect(),
            plan,
            end,
            read_pages: (pages as u32).clamp(1, CHUNK_SLOTS),
            next: BinaryHeap::with_capacity(count + 1),
            hungry: (0..count).collect(),
            block: None,
        };
        merge.advance_array();
        merge
    }

    fn advance_array(&mut self) {
        let source = self.readers.len();
        if let Some(change) = self.changes.next() {
            self.next.push(Reverse((change.block(), source, change.what())));
        }
    }

    /// Decodes the next change of a run, or marks the run as hungry.
    fn advance(&mut self, source: usize) {
        match self.readers[source].next(self.plan.page_bytes) {
            Some((block, what)) => self.next.push(Reverse((block, self.rank(source), what))),
            None => self.hungry.push(source),
        }
    }

    /// Order of the sources: changes of a block are applied in ascending rank.
    fn rank(&self, source: usize) -> usize {
        match planted(PlantedBug::OlderRunWins) {
            true => self.readers.len() - 1 - source,
            false => source,
        }
    }

    /// Advances the merge.
    pub fn step(&mut self) -> Step {
        loop {
            while let Some(source) = self.hungry.last() {
                match self.readers[*source].wanted(self.read_pages) {
                    Some(slots) => return Step::Read(slots),
                    None => drop(self.hungry.pop()),
                }
            }
            let next = self.next.peek().map(|Reverse((block, ..))| *block);
            let next = next.filter(|block| *block < self.end);
            match self.block {
                Some((block, entry)) if Some(block) != next => {
                    self.block = None;
                    if let Some(entry) = entry {
                        return Step::Entry(block, entry);
                    }
                    continue;
                }
                _ => {}
            }
            let Some(block) = next else {
                return Step::Done;
            };
            let Reverse((_, rank, what)) = self.next.pop().expect("there is one");
            let before = self.block.and_then(|(_, entry)| entry);
            let after = match what {
                DROP => None,
                CLEAN => before.map(|entry| entry.with_dirty(false)),
                entry => Some(Entry(entry)),
            };
            self.block = Some((block, after));
            if rank == self.readers.len() {
                self.advance_array();
            } else {
                self.advance(self.rank(rank));
            }
        }
    }

    /// Accepts the contents of the slots that [`Step::Read`] requested.
    ///
    /// # Errors
    /// A checksum does not match. [`Self::step`] requests the same slots again.
    pub fn supply(&mut self, bytes: &[u8]) -> Result<(), String> {
        let source = *self.hungry.last().expect("a run is read");
        self.readers[source].supply(bytes, self.plan)?;
        self.hungry.pop();
        self.advance(source);
        Ok(())
    }

    /// The first slot of a chunk that was read completely, for the caller to release. Each chunk is returned once.
    pub fn take_free(&mut self) -> Option<u32> {
        let is_done = |reader: &&mut Reader<'_>| (reader.page / CHUNK_SLOTS) as usize > reader.run.given_back;
        let run = &mut self.readers.iter_mut().find(is_done)?.run;
        run.given_back += 1;
        Some(run.chunks[run.given_back - 1].slot)
    }
}
