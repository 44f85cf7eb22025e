//! The index entries of a range of blocks, computed from changes in order: for a recovery whose index is larger than the memory for it.
//!
//! Such a recovery makes several passes over all changes, each for the range that follows the range of the preceding pass. The changes of a pass are
//! collected in an array. When it is full, they are sorted by block, and the entry of each cached block stays. If that frees less than a
//! quarter of the array, the range ends at the median: entries behind it are dropped, and later changes there are ignored.
//!
//! Invariants:
//! - In a pass the end of the range only moves down. So no change of a block in the range was ignored, and the last one wins.
//! - A group is in one pass: the ends of ranges are multiples of [`GROUP_BLOCKS_MAX`].
//! - The array is the only memory: 16 bytes for each of `changes_max`. At least three eighths as many blocks have entries in each pass but
//!   the last, unless later changes drop them.

use std::ops::Range;

use super::bulk::{CLEAN, Change, DROP};
use super::entry::{Entry, VALUE_MASK};
use crate::format::group::GROUP_BLOCKS_MAX;
use crate::planted::{PlantedBug, planted};
use crate::units::{BlockNumber, LocalBlock};

/// Fewest changes of a pass: half of them are more blocks than a group has.
pub const CHANGES_MIN: usize = 16;

/// Bits of what happens to a block.
const WHAT_MASK: u64 = CLEAN | VALUE_MASK;
/// Bits below the place of a change in the array, and below its block.
const PLACE_SHIFT: u32 = (WHAT_MASK + 1).trailing_zeros();
const BLOCK_SHIFT: u32 = PLACE_SHIFT + u32::BITS;
const _: () = assert!(BlockNumber::MAX.0.ilog2() + BLOCK_SHIFT < u128::BITS);

/// A change, so that numbers are in the order of blocks, and those of a block in the order of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Packed(u128);

impl Packed {
    fn new(block: LocalBlock, place: usize, what: u64) -> Self {
        debug_assert!(
            block.0 <= BlockNumber::MAX.0 && place as u64 <= u64::from(u32::MAX) && what <= WHAT_MASK
        );
        Self(u128::from(block.0) << BLOCK_SHIFT | (place as u128) << PLACE_SHIFT | u128::from(what))
    }

    fn block(self) -> LocalBlock {
        LocalBlock((self.0 >> BLOCK_SHIFT) as u64)
    }

    fn what(self) -> u64 {
        self.0 as u64 & WHAT_MASK
    }

    /// The entry of the block after this change.
    fn after(self, entry: Option<Entry>) -> Option<Entry> {
        match self.what() {
            DROP => None,
            CLEAN => entry.map(|entry| entry.with_dirty(false)),
            entry => Some(Entry(entry)),
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Pass {
    /// Entries, sorted, then changes in order.
    changes: Vec<Packed>,
    changes_max: usize,
    range: Range<LocalBlock>,
    /// The end of the last pass.
    blocks: LocalBlock,
}

impl Pass {
    /// Bytes of memory of a change.
    pub const CHANGE_BYTES: usize = size_of::<Packed>();

    /// The first pass of a recovery of blocks below `blocks`.
    ///
    /// # Panics
    /// If `changes_max` is below [`CHANGES_MIN`].
    #[must_use]
    pub fn first(blocks: LocalBlock, changes_max: usize) -> Self {
        assert!(
            (CHANGES_MIN..=u32::MAX as usize).contains(&changes_max),
            "{changes_max}"
        );
        Self {
            changes: Vec::with_capacity(changes_max),
            changes_max,
            range: LocalBlock(0)..blocks,
            blocks,
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

    /// Replaces the changes by the entries that they result in.
    fn fold(&mut self) {
        self.changes.sort_unstable();
        let (mut kept, mut at) = (0, 0);
        while let Some(block) = self.changes.get(at).map(|change| change.block()) {
            let mut entry = None;
            while let Some(change) = self.changes.get(at).filter(|change| change.block() == block) {
                entry = change.after(entry);
                at += 1;
            }
            if let Some(entry) = entry {
                self.changes[kept] = Packed::new(block, 0, entry.0);
                kept += 1;
            }
        }
        self.changes.truncate(kept);
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
        self.range.end = match planted(PlantedBug::PassEndsLate) {
            true => LocalBlock(end.0 + GROUP_BLOCKS_MAX as u64),
            false => end,
        };
    }

    /// The entries of this pass, sorted by block, after all changes were added.
    pub fn entries(&mut self) -> impl Iterator<Item = (LocalBlock, Entry)> + '_ {
        self.fold();
        self.changes
            .iter()
            .map(|change| (change.block(), Entry(change.what())))
    }

    /// Begins the next pass. False: this was the last one.
    pub fn begin_next(&mut self) -> bool {
        self.changes.clear();
        self.range = self.range.end..self.blocks;
        !self.range.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use flaz_sim::Rng;

    use super::*;
    use crate::units::Location;

    /// Changes as of `count` records on blocks below `blocks`, some of which are changed more often than others.
    fn changes(seed: u64, blocks: u64, count: u64) -> Vec<(LocalBlock, Change)> {
        let mut rng = Rng::new(seed);
        let mut next = |below| rng.below(below);
        let change = |step: u64| {
            let most = match next(2) {
                0 => blocks,
                _ => blocks.div_ceil(7),
            };
            let block = LocalBlock(next(most));
            (block, Change::any(&mut next, step))
        };
        (0..count).map(change).collect()
    }

    #[test]
    fn passes_find_the_same_entries_as_a_map() {
        for (blocks, count, changes_max) in [
            (1, 100, 16),
            (9, 1000, 16),
            (400, 3000, 16),
            (401, 5000, 21),
            (1 << 40, 3000, 100),
            (5000, 20_000, 1000),
            (5000, 20_000, 30_000),
        ] {
            let changes = changes(blocks + count, blocks, count);
            let mut expected = BTreeMap::new();
            for &(block, change) in &changes {
                match change {
                    Change::Set(entry) => drop(expected.insert(block, entry)),
                    Change::Drop => drop(expected.remove(&block)),
                    Change::Clean => {
                        if let Some(entry) = expected.get_mut(&block) {
                            *entry = entry.with_dirty(false);
                        }
                    }
                }
            }
            let mut pass = Pass::first(LocalBlock(blocks), changes_max);
            let (mut found, mut passes) = (Vec::new(), 0);
            loop {
                for &(block, change) in &changes {
                    pass.push(block, change);
                }
                let range = pass.range();
                let before = found.len();
                found.extend(pass.entries());
                let is_last = range.end == LocalBlock(blocks);
                assert!(is_last || range.end.0.is_multiple_of(GROUP_BLOCKS_MAX as u64));
                assert!(found[before..].iter().all(|(block, _)| range.contains(block)));
                assert_eq!(pass.changes.capacity(), changes_max, "no more memory than that");
                passes += 1;
                if !pass.begin_next() {
                    break;
                }
            }
            assert!(found.is_sorted_by(|(a, _), (b, _)| a < b));
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
            let all: BTreeSet<_> = changes.iter().map(|(block, _)| block).collect();
            let few = 2 + 3 * all.len() / changes_max;
            assert!(
                passes <= few,
                "{passes} passes for {} blocks, {changes_max} at a time",
                all.len()
            );
        }
    }

    /// The first pass ends where it must, however late a block before its end is changed.
    #[test]
    fn changes_behind_the_end_are_ignored_and_those_before_are_not() {
        let set = |n: u64| Change::Set(Entry::fragment(Location(n + 1), 100));
        let mut pass = Pass::first(LocalBlock(1000), CHANGES_MIN);
        for block in 0..=CHANGES_MIN as u64 {
            pass.push(LocalBlock(block * 10), set(block));
        }
        assert_eq!(pass.range(), LocalBlock(0)..LocalBlock(80));
        pass.push(LocalBlock(79), set(500));
        pass.push(LocalBlock(80), set(501));
        pass.push(LocalBlock(70), Change::Drop);
        let found: Vec<u64> = pass.entries().map(|(block, _)| block.0).collect();
        assert_eq!(found, [0, 10, 20, 30, 40, 50, 60, 79]);
        assert!(pass.begin_next());
        assert_eq!(pass.range(), LocalBlock(80)..LocalBlock(1000));
    }
}
