//! The write clock: how an admission learns that a write has overtaken it.
//!
//! **The stale-admission race.** A reader misses block B and reads old data from the origin; a writer then
//! writes B and is acknowledged; the reader's data, admitted afterwards, would be served as B's contents for
//! ever. The rule: *a write that overtakes an admission wins; the admission is dropped.*
//!
//! Every write ticks the clocks of its blocks twice: before it goes to the origin and when the origin has
//! answered. Whoever wants to admit data notes the clock *before* it asks the origin, and stores the data only
//! if the clock still shows the same when it stores (no await in between). A read that began before or during
//! the write sees a tick later; one that began after it reads the new data.
//!
//! In write-back the write's ticks are all there are, and the origin is out of date until the block is cleaned, of which
//! no clock tells. So data of a block that is cached when the clock is noted is neither stored nor shared.
//!
//! Blocks share a bounded number of clocks, neighbours never one. However few there are, a block has one and the same
//! clock for the writes that tick it and the admissions that look at it, so a missed alarm is not possible; a false
//! one is, and loses an admission. Fewer clocks cost hits where much is written while much is missed, and no truth.

use std::cell::Cell;

use crate::units::LocalBlock;

/// Fewest and most clocks of a shard (4 bytes each): of 2 MiB, and of 256 MiB of neighbouring blocks.
const CLOCKS_MIN: u64 = 512;
const CLOCKS_MAX: u64 = 65_536;
/// Uncompressed blocks of cache for each clock, between these limits: an eighth of a byte a block.
const BLOCKS_PER_CLOCK: u64 = 32;

/// Ticks of the writes of one shard.
#[derive(Debug)]
pub(super) struct WriteClock {
    clocks: Box<[Cell<u32>]>,
}

/// What the clock showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick(u32);

impl WriteClock {
    /// Clocks for a shard of `blocks` uncompressed blocks.
    pub(super) fn new(blocks: u64) -> Self {
        // No power of two: rounding up would take twice the memory just past one.
        let count = (blocks / BLOCKS_PER_CLOCK).clamp(CLOCKS_MIN, CLOCKS_MAX);
        Self {
            clocks: (0..count).map(|_| Cell::new(0)).collect(),
        }
    }

    fn clock(&self, block: LocalBlock) -> &Cell<u32> {
        &self.clocks[block.0 as usize % self.clocks.len()]
    }

    /// Bytes that the clocks take.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val::<[Cell<u32>]>(&self.clocks)
    }

    /// What the clock of `block` shows now.
    pub(super) fn read(&self, block: LocalBlock) -> Tick {
        Tick(self.clock(block).get())
    }

    /// A write of `block` starts, or the origin has answered it.
    pub(super) fn tick(&self, block: LocalBlock) {
        let clock = self.clock(block);
        clock.set(clock.get().wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_seen() {
        let clock = WriteClock::new(1 << 20);
        let before = clock.read(LocalBlock(9));
        assert_eq!(clock.read(LocalBlock(9)), before);
        clock.tick(LocalBlock(9));
        assert_ne!(clock.read(LocalBlock(9)), before);
    }

    /// Whatever the number of clocks, a write is seen by every admission of its block; and an eighth of a byte a block
    /// is enough.
    #[test]
    fn no_write_is_missed_however_many_clocks_there_are() {
        for blocks in [0, 16_384, 16_385, 65_537, 131_073, 1 << 22, (1 << 40) + 1] {
            let clock = WriteClock::new(blocks);
            let count = clock.clocks.len() as u64;
            for block in [0, 1, count - 1, count, count + 1, blocks, u64::MAX >> 8].map(LocalBlock) {
                let (before, neighbour) = (clock.read(block), clock.read(LocalBlock(block.0 + 1)));
                clock.tick(block);
                assert_ne!(clock.read(block), before, "{count} clocks");
                assert_eq!(
                    clock.read(LocalBlock(block.0 + 1)),
                    neighbour,
                    "neighbours have two"
                );
            }
            assert!(
                clock.memory_bytes() as u64 <= (blocks / 8).max(2048),
                "{count} clocks for {blocks}"
            );
        }
    }
}
