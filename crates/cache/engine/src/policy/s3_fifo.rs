//! S3-FIFO over the two rings.
//!
//! Follows Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023), with regions in place of
//! single blocks: a new block enters probation, which is a small part of the cache. When its region is reclaimed, a
//! block that was used since moves to main; another is dropped and remembered by the ghost. A miss that the ghost
//! remembers enters main at once. Main writes a block again for each use that was counted, at most three times in a
//! row, and forgets the rest.
//!
//! A read counts only after the first quarter of a block's stay in probation: earlier ones are part of the burst that brought the
//! block in, and say little about what comes later (the correlation window of Clock2Q+, VLDB 2026). While main is far from its size,
//! as in a cache that fills or of which little is used again, every read counts: main has room. `docs/policy.md` has what this and
//! other variants gain.
//!
//! In main, a block that takes at least twice the mean of the cached blocks is written again only if it was used twice: in its place,
//! two or more others stay.
//!
//! With fewer than about 48 regions in a shard, rounding costs hit ratio.
//!
//! If the ghost has less memory than for single blocks, it remembers aligned groups of neighbours: a block enters main if one of its
//! group was dropped from probation. `docs/memory.md` has what that gains.

use super::ghost::Ghost;
use super::reinsertion::ReinsertionBudget;
use super::{Admission, Fate, Policy, Price, Ring, RingSizes, block_key};

/// Share of the regions that probation has, in thousandths, the open one counted whole.
///
/// The paper's tenth is a tenth of the blocks, each of which leaves alone. In regions, of which the open one is half
/// full and the oldest leaves whole, this comes closest to it, measured on real traces with 48 to 200 regions.
const PROBATION_PER_MILLE: u64 = 70;

/// Most neighbours that share a key of the ghost. Larger groups have blocks that are not used together.
const GROUP_BLOCKS_MAX: u64 = 32;
/// Bytes of a ghost of single blocks, for each uncompressed block that the regions hold: blocks that compress to half.
const GHOST_BYTES_PER_BLOCK: u64 = 3;

/// The correlation window: a quarter of probation.
const WINDOW_DIVISOR: u64 = 4;
/// No window while probation has more than so many times its share, because main has not grown to its own.
const WIDE_FACTOR: u128 = 2;

/// What probation should have of so many bytes of regions.
fn probation_share(total: u64) -> u128 {
    u128::from(total) * u128::from(PROBATION_PER_MILLE) / 1000
}

/// The default policy. See the module's text.
#[derive(Debug)]
pub struct S3Fifo {
    ghost: Ghost,
    budget: ReinsertionBudget,
    /// The ghost remembers the next block that is refused to save writes: every other one. With all of them, it would forget sooner
    /// what left probation.
    notes_refused: bool,
    /// Blocks that share a key of the ghost.
    group_blocks: u64,
}

impl S3Fifo {
    /// For a cache of at least `blocks` blocks.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        S3Fifo {
            ghost: Ghost::for_blocks(blocks),
            budget: ReinsertionBudget::new(blocks),
            notes_refused: true,
            group_blocks: 1,
        }
    }

    /// Whether the ghost remembers a block that becomes cached, or others of its group.
    fn remembers(&mut self, key: u64) -> bool {
        match self.group_blocks {
            1 => self.ghost.take(key),
            _ => self.ghost.has(key),
        }
    }
}

impl Policy for S3Fifo {
    fn admit(&mut self, key: u64) -> Admission {
        if self.remembers(key) {
            Admission::Remembered(Ring::Main)
        } else {
            Admission::To(Ring::Probation)
        }
    }

    fn admit_remembered(&mut self, key: u64) -> Admission {
        if self.remembers(key) {
            return Admission::Remembered(Ring::Main);
        }
        self.refused(key);
        Admission::OverBudget
    }

    fn refused(&mut self, key: u64) {
        if self.notes_refused {
            self.ghost.insert(key);
        }
        self.notes_refused = !self.notes_refused;
    }

    fn reclaim(&mut self, ring: Ring, key: u64, hits: u8, price: Price) -> Fate {
        let price = match ring {
            Ring::Probation => Price::USUAL,
            Ring::Main => price,
        };
        if self.budget.keeps(price.is_paid_by(hits)) {
            return Fate::Keep {
                ring: Ring::Main,
                hits: hits - 1,
            };
        }
        if ring == Ring::Probation {
            self.ghost.insert(key);
        }
        Fate::Drop
    }

    fn victim(&self, sizes: RingSizes) -> Ring {
        if u128::from(sizes.probation) > probation_share(sizes.total) {
            Ring::Probation
        } else {
            Ring::Main
        }
    }

    fn window(&self, sizes: RingSizes) -> u64 {
        if u128::from(sizes.probation) > WIDE_FACTOR * probation_share(sizes.total) {
            return 0;
        }
        sizes.total / 1000 * PROBATION_PER_MILLE / WINDOW_DIVISOR
    }

    fn capacity(&mut self, blocks: u64) {
        self.ghost.capacity(blocks);
    }

    fn cached_blocks(&mut self, blocks: u64) {
        self.ghost.fit(blocks);
        self.budget.fit(blocks);
    }

    fn limit_memory(&mut self, bytes: u64, blocks: u64) {
        self.ghost.limit_memory(bytes);
        let wanted = blocks * GHOST_BYTES_PER_BLOCK;
        self.group_blocks = (wanted.div_ceil(bytes.max(1)))
            .next_power_of_two()
            .min(GROUP_BLOCKS_MAX);
    }

    fn key(&self, block: u64) -> u64 {
        block_key(block / self.group_blocks)
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() - size_of::<Ghost>() + self.ghost.memory_bytes()
    }

    fn name(&self) -> &'static str {
        "s3-fifo"
    }
}
