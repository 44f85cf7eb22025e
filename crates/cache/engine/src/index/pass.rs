//! The index entries of a range of blocks, computed from changes in order: for a recovery whose index is larger than the memory for it.
//!
//! This is an external merge sort. Changes are collected in an array. When the array is nearly full, it is sorted by block, the changes of
//! each block are combined into one, and the caller writes the array as a *run* to free index slots on the device. After the last change,
//! the runs and the array are merged.
//!
//! ```text
//! for each change              push
//! when is_nearly_full          begin_run; next_chunk, chunk_written until all is written or no slot is free; end_run
//! after the last change        merge
//! ```
//!
//! If no slot is free and the array is full, the range is cut at the median block of the array: changes beyond the new end are dropped,
//! chunks of runs that hold no others are released, and later changes beyond it are ignored. Another pass over all changes computes the
//! rest.
//!
//! Invariants:
//! - The end of the range only decreases during a pass. So no change of a block in the range is ever ignored, and the last one wins: changes
//!   in the array are newer than those in runs, and changes of a run are newer than those of earlier runs.
//! - A group is in one pass: the ends of ranges are multiples of [`GROUP_BLOCKS_MAX`].
//! - Memory: `changes_max` changes of 16 bytes, and a few bytes per chunk. A merge needs one page per run in addition to the changes left in
//!   the array: at most a quarter of the array, except with fewer than [`RUNS_MIN`] runs. Without runs, every pass but the last covers blocks
//!   with at least 3/8 `changes_max` entries, unless later changes drop them.

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

/// Number of runs permitted with any amount of memory.
const RUNS_MIN: usize = 4;
/// The minimum of memory for pages in a merge is this fraction of the array.
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

/// Combines two successive changes of a block.
fn both(first: u64, second: u64) -> u64 {
    match (first, second) {
        (DROP | CLEAN, CLEAN) => first,
        (entry, CLEAN) => Entry(entry).with_dirty(false).0,
        _ => second,
    }
}

/// Pages of a run in consecutive slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// The first slot.
    pub(super) slot: u32,
    /// The first block.
    first: LocalBlock,
}

/// Sorted changes on the device.
#[derive(Debug)]
pub(super) struct Run {
    /// Unique within a recovery.
    pub(super) number: u32,
    pub(super) pages: u32,
    pub(super) chunks: Vec<Chunk>,
    /// Number of chunks released so far.
    pub(super) given_back: usize,
}

/// How the pages of runs are written.
#[derive(Clone, Copy, Debug)]
pub struct RunPlan {
    /// Distinguishes the pages of this opening from those of all others.
    pub mark: u64,
    /// Bytes of a page.
    pub page_bytes: usize,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Pass {
    /// Combined changes sorted by block, followed by newer changes in order of arrival.
    changes: Vec<Packed>,
    changes_max: usize,
    range: Range<LocalBlock>,
    /// The end of the last pass.
    blocks: LocalBlock,
    plan: RunPlan,
    /// Oldest first.
    runs: Vec<Run>,
    /// Number of runs of all passes.
    runs_begun: u32,
    /// Changes and pages of the chunk being written; changes already written to the current run.
    sending: (usize, u32),
    sent: usize,
    /// First slots of chunks beyond the end of the range, to be released.
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

    /// Sorts the changes, and combines those of each block.
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
            // Without an older change, the block has no entry to drop or clean.
            if !(is_oldest && matches!(what, DROP | CLEAN)) {
                self.changes[kept] = Packed::new(block, 0, what);
                kept += 1;
            }
        }
        self.changes.truncate(kept);
    }

    // Runs.

    /// Whether the array should be written as a run.
    #[must_use]
    pub fn is_nearly_full(&self) -> bool {
        self.changes.len() >= self.changes_max / 4 * 3
    }

    /// Begins a run. False: combining the changes freed enough of the array, or the number of runs is at its maximum. `is_last`: no changes
    /// follow; then false means that a run is not needed.
    pub fn begin_run(&mut self, is_last: bool) -> bool {
        // A merge holds at least one page of each run in memory.
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

    /// Encodes the next [`CHUNK_SLOTS`] pages of the run. `None`: all changes were written.
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

    /// The chunk from [`Self::next_chunk`] was written to the slots from `first_slot` on.
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

    /// Ends the run. Changes that were not written stay in the array.
    pub fn end_run(&mut self) {
        self.changes.drain(..std::mem::take(&mut self.sent));
        self.runs.pop_if(|run| run.chunks.is_empty());
    }

    /// First slots of chunks that are no longer needed.
    pub fn take_dropped(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.dropped)
    }

    /// First slots of all chunks that were not released yet. The runs are gone.
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

    /// Merges the runs and the array, after the last change.
    pub fn merge(&mut self) -> Merge<'_> {
        self.fold();
        if !self.runs.is_empty() {
            self.changes.shrink_to_fit();
        }
        let memory = (self.changes_max - self.changes.len()) * Self::CHANGE_BYTES;
        Merge::new(&self.changes, &mut self.runs, self.plan, self.range.end, memory)
    }

    /// Begins the next pass, at the end of this one or at the block where its merge failed. False: there are no blocks left.
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
