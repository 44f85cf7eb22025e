//! The order of writes: one write of a block at a time, and no admission of data that a write has overtaken.
//!
//! **The stale-admission race.** A reader misses block B and reads old data from the origin. A writer then writes B and is
//! acknowledged. If the reader's data were admitted now, the cache would serve it as B's contents indefinitely.
//!
//! Invariants:
//! - *An admission that overlaps a write sees a newer version.* A write bumps the versions of its blocks before it goes to
//!   the origin and again when the origin has replied. An admission notes a block's version *before* it reads the origin, or
//!   when it looks up the entry of a cached block that it stores again,
//!   and stores the data only if the version is still the same at that time (no await in between). A read that began before
//!   or during the write sees the second bump; a read that began after it has the new data.
//! - Two locked ranges never overlap. Only the holder of a range's lock bumps versions in it.
//!
//! In write-back a write bumps a version once, when its record is appended. The origin is then out of date until the block
//! is written back, which bumps nothing. So if a block is cached when its version is noted, the data read is neither stored
//! nor shared.
//!
//! Blocks share a limited number of versions; neighbours never share one. A block always has the same version cell for the
//! writes that bump it and the admissions that compare it, so a change is never missed. A false alarm is possible and costs
//! one admission. Fewer versions cost hits under mixed reads and writes, but never correctness.

use std::cell::Cell;
use std::ops::Range;

use super::locks::{Lock, RangeLocks};
use crate::planted::{PlantedBug, planted};
use crate::units::LocalBlock;

/// Fewest and most versions of a shard (4 bytes each).
const VERSIONS_MIN: u64 = 512;
const VERSIONS_MAX: u64 = 65_536;
/// Uncompressed blocks of cache per version, between these limits: an eighth of a byte a block.
const BLOCKS_PER_VERSION: u64 = 32;
/// If the memory for the index is bounded, versions take at most one part in so many of it.
const MEMORY_SHARE: u64 = 32;

/// The order of writes of one shard.
#[derive(Debug)]
pub(super) struct WriteOrder {
    versions: Box<[Cell<u32>]>,
    locks: RangeLocks,
}

/// A block's version at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version(u32);

/// A locked range of blocks; unlocked when dropped.
#[derive(Debug)]
pub(super) struct RangeGuard<'a> {
    order: &'a WriteOrder,
    blocks: Range<u64>,
    _lock: Lock<'a>,
}

impl WriteOrder {
    /// For a shard of `blocks` uncompressed blocks, with so many bytes for the index if these are bounded.
    pub(super) fn new(blocks: u64, index_memory: Option<u64>) -> Self {
        let most = index_memory.map_or(VERSIONS_MAX, |bytes| {
            bytes / (MEMORY_SHARE * size_of::<u32>() as u64)
        });
        let most = most.clamp(VERSIONS_MIN, VERSIONS_MAX);
        // Not rounded up to a power of two, which could almost double the memory.
        let count = (blocks / BLOCKS_PER_VERSION).clamp(VERSIONS_MIN, most);
        Self {
            versions: (0..count).map(|_| Cell::new(0)).collect(),
            locks: RangeLocks::default(),
        }
    }

    /// Waits until no block of `blocks` is being written, and locks them.
    pub(super) async fn lock(&self, blocks: Range<LocalBlock>) -> RangeGuard<'_> {
        let blocks = blocks.start.0..blocks.end.0;
        assert!(!blocks.is_empty(), "a write has blocks");
        let locked = if planted(PlantedBug::RangeLockSkipped) {
            blocks.start..blocks.start
        } else {
            blocks.clone()
        };
        RangeGuard {
            order: self,
            blocks,
            _lock: self.locks.lock(locked).await,
        }
    }

    /// Number of ranges that are being written.
    pub(super) fn writing(&self) -> usize {
        self.locks.held()
    }

    /// Waits until nothing is being written.
    pub(super) async fn wait_until_idle(&self) {
        self.locks.wait_until_free().await;
    }

    /// The current version of `block`.
    pub(super) fn version(&self, block: LocalBlock) -> Version {
        Version(self.cell(block).get())
    }

    /// Whether no write has overtaken data of `block` since its version was `version`.
    pub(super) fn is_current(&self, block: LocalBlock, version: Version) -> bool {
        self.version(block) == version || planted(PlantedBug::StaleAdmission)
    }

    /// Bytes of memory of the versions.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val::<[Cell<u32>]>(&self.versions)
    }

    fn cell(&self, block: LocalBlock) -> &Cell<u32> {
        &self.versions[block.0 as usize % self.versions.len()]
    }

    fn bump(&self, block: LocalBlock) {
        let cell = self.cell(block);
        cell.set(cell.get().wrapping_add(1));
    }
}

impl RangeGuard<'_> {
    /// The locked blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = LocalBlock> + use<> {
        self.blocks.clone().map(LocalBlock)
    }

    /// Number of locked blocks.
    pub(super) fn len(&self) -> usize {
        (self.blocks.end - self.blocks.start) as usize
    }

    /// The first locked block.
    pub(super) fn first_block(&self) -> LocalBlock {
        LocalBlock(self.blocks.start)
    }

    /// Bumps the versions of all blocks: the write starts, or the origin has replied.
    pub(super) fn bump(&self) {
        debug_assert!(self.len() > 0, "a write has blocks");
        self.blocks().for_each(|block| self.order.bump(block));
    }

    /// Bumps the version of one block: its new contents are in the log.
    pub(super) fn bump_one(&self, block: LocalBlock) {
        assert!(
            self.blocks.contains(&block.0),
            "block {} is not locked by its writer",
            block.0
        );
        self.order.bump(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn lock(order: &WriteOrder, blocks: Range<u64>) -> Option<RangeGuard<'_>> {
        let blocks = LocalBlock(blocks.start)..LocalBlock(blocks.end);
        order.lock(blocks).now_or_never()
    }

    #[test]
    fn bump_changes_the_version() {
        let order = WriteOrder::new(1 << 20, None);
        let guard = lock(&order, 9..10).expect("free");
        let before = order.version(LocalBlock(9));
        assert!(order.is_current(LocalBlock(9), before));
        guard.bump();
        assert!(!order.is_current(LocalBlock(9), before));
    }

    #[test]
    fn overlapping_writes_wait_for_each_other() {
        let order = WriteOrder::new(0, None);
        let first = lock(&order, 0..4).expect("free");
        assert!(lock(&order, 3..5).is_none());
        let second = lock(&order, 4..5).expect("next to it");
        assert_eq!(order.writing(), 2);
        assert!(order.wait_until_idle().now_or_never().is_none());
        drop(first);
        assert!(lock(&order, 0..4).is_some());
        drop(second);
        assert!(order.wait_until_idle().now_or_never().is_some());
    }

    #[test]
    #[should_panic(expected = "not locked")]
    fn bump_outside_the_locked_range_panics() {
        let order = WriteOrder::new(0, None);
        lock(&order, 0..4).expect("free").bump_one(LocalBlock(4));
    }

    /// An admission notices every write of its block, for any number of versions. An eighth of a byte a block is enough.
    #[test]
    fn no_write_is_missed_with_any_number_of_versions() {
        for (blocks, index_memory) in [
            (0, None),
            (16_384, None),
            (16_385, None),
            (65_537, None),
            (131_073, None),
            (1 << 22, None),
            (1 << 22, Some(0)),
            (1 << 22, Some(100_001)),
            ((1 << 40) + 1, None),
            ((1 << 40) + 1, Some(1 << 40)),
        ] {
            let order = WriteOrder::new(blocks, index_memory);
            let count = order.versions.len() as u64;
            for block in [0, 1, count - 1, count, count + 1, blocks, u64::MAX >> 8] {
                let (written, next) = (LocalBlock(block), LocalBlock(block + 1));
                let (before, neighbour) = (order.version(written), order.version(next));
                lock(&order, block..block + 1).expect("free").bump();
                assert_ne!(order.version(written), before, "{count} versions");
                assert_eq!(order.version(next), neighbour, "neighbours have two");
            }
            assert!(
                order.memory_bytes() as u64 <= (blocks / 8).max(2048),
                "{count} versions for {blocks}"
            );
            let share = index_memory.map_or(u64::MAX, |bytes| bytes / MEMORY_SHARE);
            assert!(order.memory_bytes() as u64 <= share.max(2048), "{count} versions");
        }
    }
}
