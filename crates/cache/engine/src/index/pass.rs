//! The index entries of a range of blocks, computed from changes in order: for a recovery whose index is larger than the memory for it.
//!
//! The changes are collected in an array. When it is nearly full, they are sorted by block, of each block one change stays, and the owner
//! writes these as a *run* to pages on the device that the index does not use yet. After all changes, the array and the runs are merged.
//!
//! ```text
//! for each change              push; is_nearly_full, begin_run, then next_chunk and chunk_written as often as there is room
//! at the end                   merge
//! ```
//!
//! Where there is no room for a run and the array is full, the range ends at its median: entries behind it are dropped, with the chunks of
//! runs that have no others, and later changes there are ignored. Then there is another pass over all changes, for the range that follows.
//!
//! Invariants:
//! - In a pass the end of the range only moves down. So no change of a block in the range was ignored, and the last one wins: those in the
//!   array are later than those in runs, and those of a run later than those of the runs before it.
//! - A group is in one pass: the ends of ranges are multiples of [`GROUP_BLOCKS_MAX`].
//! - The array has room for `changes_max` changes, 16 bytes each. A merge needs a page of each run besides what is left in the array: at most
//!   a quarter as much, unless there are few changes at all. Chunks take a few bytes each. Without runs, at least three eighths as many blocks
//!   have entries in each pass but the last, unless later changes drop them.

use std::ops::Range;

use super::bulk::{CLEAN, Change, DROP};
use super::entry::{Entry, VALUE_MASK};
use super::merge::Merge;
use super::run::{self, Seal};
use super::slots::CHUNK_SLOTS;
use crate::format::group::GROUP_BLOCKS_MAX;
use crate::planted::{PlantedBug, planted};
use crate::units::{BlockNumber, LocalBlock};

/// Fewest changes of a pass: half of them are more blocks than a group has.
pub const CHANGES_MIN: usize = 16;

/// Runs that there may be with any memory.
const RUNS_MIN: usize = 4;
/// One part in so many of the memory is the least for pages in a merge.
const MERGE_SHARE: usize = 4;

/// Bits of what happens to a block.
const WHAT_MASK: u64 = CLEAN | VALUE_MASK;
/// Bits below the place of a change in the array, and below its block.
const PLACE_SHIFT: u32 = (WHAT_MASK + 1).trailing_zeros();
const BLOCK_SHIFT: u32 = PLACE_SHIFT + u32::BITS;
const _: () = assert!(BlockNumber::MAX.0.ilog2() + BLOCK_SHIFT < u128::BITS);

/// A change, so that numbers are in the order of blocks, and those of a block in the order of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Packed(u128);

impl Packed {
    fn new(block: LocalBlock, place: usize, what: u64) -> Self {
        debug_assert!(
            block.0 <= BlockNumber::MAX.0 && place as u64 <= u64::from(u32::MAX) && what <= WHAT_MASK
        );
        Self(u128::from(block.0) << BLOCK_SHIFT | (place as u128) << PLACE_SHIFT | u128::from(what))
    }

    pub(super) fn block(self) -> LocalBlock {
        LocalBlock((self.0 >> BLOCK_SHIFT) as u64)
    }

    pub(super) fn what(self) -> u64 {
        self.0 as u64 & WHAT_MASK
    }
}

/// What two changes of a block come to.
fn both(first: u64, second: u64) -> u64 {
    match (first, second) {
        (DROP | CLEAN, CLEAN) => first,
        (entry, CLEAN) => Entry(entry).with_dirty(false).0,
        _ => second,
    }
}

/// Pages of a run in slots that follow one another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// The first one.
    pub(super) slot: u32,
    /// The first block.
    first: LocalBlock,
}

/// Sorted changes on the device.
#[derive(Debug)]
pub(super) struct Run {
    /// Of all runs of a recovery.
    pub(super) number: u32,
    pub(super) pages: u32,
    pub(super) chunks: Vec<Chunk>,
    /// Number of those that were given back.
    pub(super) given_back: usize,
}

/// The pages of the runs of a recovery.
#[derive(Clone, Copy, Debug)]
pub struct RunPlan {
    /// Tells the pages of this opening from all others.
    pub mark: u64,
    /// Bytes of a page.
    pub page_bytes: usize,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Pass {
    /// One for each of some blocks, sorted, then others in order.
    changes: Vec<Packed>,
    changes_max: usize,
    range: Range<LocalBlock>,
    /// The end of the last pass.
    blocks: LocalBlock,
    plan: RunPlan,
    /// Oldest first.
    runs: Vec<Run>,
    /// Of all passes.
    runs_begun: u32,
    /// How many changes are in the last chunk, and its pages, and how many before it are in the last run.
    sending: (usize, u32),
    sent: usize,
    /// Slots of chunks that are behind the end.
    dropped: Vec<u32>,
}

impl Pass {
    /// Bytes of memory of a change.
    pub const CHANGE_BYTES: usize = size_of::<Packed>();

    /// The first pass of a recovery of blocks below `blocks`.
    ///
    /// # Panics
    /// If `changes_max` is below [`CHANGES_MIN`].
    #[must_use]
    pub fn first(blocks: LocalBlock, changes_max: usize, plan: RunPlan) -> Self {
        assert!(
            (CHANGES_MIN..=u32::MAX as usize).contains(&changes_max),
            "{changes_max}"
        );
        Self {
            changes: Vec::with_capacity(changes_max),
            changes_max,
            range: LocalBlock(0)..blocks,
            blocks,
            plan,
            runs: Vec::new(),
            runs_begun: 0,
            sending: (0, 0),
            sent: 0,
            dropped: Vec::new(),
        }
    }

    /// The blocks of this pass, as far as is known.
    #[must_use]
    pub fn range(&self) -> Range<LocalBlock> {
        self.range.clone()
    }

    /// Adds a change, later than all before.
    pub fn push(&mut self, block: LocalBlock, change: Change) {
        if self.changes.len() == self.changes_max {
            self.fold();
            if self.changes.len() > self.changes_max / 4 * 3 {
                self.end_at_median();
            }
        }
        if self.range.contains(&block) {
            let packed = Packed::new(block, self.changes.len(), change.pack());
            self.changes.push(packed);
        }
    }

    /// Leaves one change of each block.
    fn fold(&mut self) {
        self.changes.sort_unstable();
        let is_oldest = self.runs.is_empty();
        let (mut kept, mut at) = (0, 0);
        while let Some(change) = self.changes.get(at).copied() {
            let (block, mut what) = (change.block(), change.what());
            at += 1;
            while let Some(change) = self.changes.get(at).filter(|change| change.block() == block) {
                what = both(what, change.what());
                at += 1;
            }
            // A block without older changes has no entry.
            if !(is_oldest && matches!(what, DROP | CLEAN)) {
                self.changes[kept] = Packed::new(block, 0, what);
                kept += 1;
            }
        }
        self.changes.truncate(kept);
    }

    // Runs.

    /// Whether the changes should become a run, if there is room.
    #[must_use]
    pub fn is_nearly_full(&self) -> bool {
        self.changes.len() >= self.changes_max / 4 * 3
    }

    /// Begins a run of all changes. False: they are so few that there is room for more in the array, or for all if this `is_last`.
    pub fn begin_run(&mut self, is_last: bool) -> bool {
        // A merge needs a page of each run in memory, and a quarter of it is enough for larger reads.
        let most = self.changes_max * Self::CHANGE_BYTES / MERGE_SHARE / self.plan.page_bytes;
        if !is_last && self.runs.len() >= most.max(RUNS_MIN) {
            return false;
        }
        self.fold();
        let is_worth_it = match is_last {
            true => !self.runs.is_empty() && !self.changes.is_empty(),
            false => self.changes.len() > self.changes_max / 2,
        };
        if !is_worth_it {
            return false;
        }
        self.runs.push(Run {
            number: self.runs_begun,
            pages: 0,
            chunks: Vec::new(),
            given_back: 0,
        });
        self.runs_begun += 1;
        true
    }

    /// The next [`CHUNK_SLOTS`] pages of the run. `None`: it has all changes, and the array has none.
    pub fn next_chunk(&mut self) -> Option<Vec<u8>> {
        let run = self.runs.last().expect("a run was begun");
        let (mut count, mut pages) = (0, 0);
        let mut chunk = vec![0; CHUNK_SLOTS as usize * self.plan.page_bytes];
        for page in chunk.chunks_mut(self.plan.page_bytes) {
            let left = &self.changes[self.sent + count..];
            if left.is_empty() {
                break;
            }
            let seal = Seal {
                mark: self.plan.mark,
                run: run.number,
                page: run.pages + pages,
            };
            count += run::fill(
                page,
                seal,
                left.iter().map(|change| (change.block(), change.what())),
            );
            pages += 1;
        }
        self.sending = (count, pages);
        (count > 0).then_some(chunk)
    }

    /// The pages of [`Self::next_chunk`] are in these slots.
    pub fn chunk_written(&mut self, first_slot: u32) {
        let run = self.runs.last_mut().expect("a run was begun");
        let (count, pages) = std::mem::take(&mut self.sending);
        run.chunks.push(Chunk {
            slot: first_slot,
            first: self.changes[self.sent].block(),
        });
        run.pages += pages;
        self.sent += count;
    }

    /// The run has what was written. Other changes stay in the array.
    pub fn end_run(&mut self) {
        self.changes.drain(..std::mem::take(&mut self.sent));
        self.runs.pop_if(|run| run.chunks.is_empty());
    }

    /// Chunks that are not needed any more; their first slots.
    pub fn take_dropped(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.dropped)
    }

    /// Chunks of all runs that were not given back yet; their first slots.
    pub fn take_chunks(&mut self) -> Vec<u32> {
        let runs = std::mem::take(&mut self.runs).into_iter();
        let chunks = runs.flat_map(|run| run.chunks.into_iter().skip(run.given_back));
        chunks
            .map(|chunk| chunk.slot)
            .chain(self.take_dropped())
            .collect()
    }

    fn end_at_median(&mut self) {
        let LocalBlock(median) = self.changes[self.changes.len() / 2].block();
        let end = LocalBlock(median - median % GROUP_BLOCKS_MAX as u64);
        assert!(
            self.range.start < end && end < self.range.end,
            "a pass has more than a group"
        );
        let kept = self.changes.partition_point(|change| change.block() < end);
        self.changes.truncate(kept);
        for run in &mut self.runs {
            let kept = run.chunks.partition_point(|chunk| chunk.first < end);
            self.dropped
                .extend(run.chunks.drain(kept..).map(|chunk| chunk.slot));
            run.pages = run.pages.min(kept as u32 * CHUNK_SLOTS);
        }
        self.range.end = match planted(PlantedBug::PassEndsLate) {
            true => LocalBlock(end.0 + GROUP_BLOCKS_MAX as u64),
            false => end,
        };
    }

    /// The entries of this pass, after all changes were added.
    pub fn merge(&mut self) -> Merge<'_> {
        self.fold();
        if !self.runs.is_empty() {
            self.changes.shrink_to_fit();
        }
        let memory = (self.changes_max - self.changes.len()) * Self::CHANGE_BYTES;
        Merge::new(&self.changes, &mut self.runs, self.plan, self.range.end, memory)
    }

    /// Begins the next pass, of blocks from `from` on: the end of this one, or where it could not go on. False: there are none.
    pub fn begin(&mut self, from: LocalBlock) -> bool {
        assert!(self.runs.is_empty(), "their slots were taken back");
        self.changes.clear();
        self.range = from..self.blocks;
        if !self.range.is_empty() {
            self.changes.reserve_exact(self.changes_max);
        }
        !self.range.is_empty()
    }
}

#[cfg(test)]
mod tests;
