//! S3-FIFO over the two rings.
//!
//! Follows Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023), with regions in place of
//! single blocks: a new block enters probation, which is about a tenth of the cache. When its region is reclaimed,
//! a block that was used since moves to main; another is dropped and remembered by the ghost. A miss that the ghost
//! remembers enters main at once. Main writes a block again for each use that was counted, at most three times in a
//! row, and forgets the rest.

use super::ghost::Ghost;
use super::reinsertion::ReinsertionBudget;
use super::{Admission, Fate, Policy, Ring, RingSizes};

/// Share of the regions that probation has, in thousandths.
const PROBATION_PER_MILLE: u64 = 100;

/// The default policy. See the module's text.
#[derive(Debug)]
pub struct S3Fifo {
    ghost: Ghost,
    budget: ReinsertionBudget,
}

impl S3Fifo {
    /// For a cache of at least `blocks` blocks.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        S3Fifo {
            ghost: Ghost::for_blocks(blocks),
            budget: ReinsertionBudget::new(),
        }
    }
}

impl Policy for S3Fifo {
    fn admit(&mut self, key: u64) -> Admission {
        Admission::To(if self.ghost.take(key) {
            Ring::Main
        } else {
            Ring::Probation
        })
    }

    fn reclaim(&mut self, ring: Ring, key: u64, hits: u8) -> Fate {
        if self.budget.keeps(hits > 0) {
            // A block that comes from probation is counted anew in main.
            let hits = if ring == Ring::Main { hits - 1 } else { 0 };
            return Fate::Keep {
                ring: Ring::Main,
                hits,
            };
        }
        if ring == Ring::Probation {
            self.ghost.insert(key);
        }
        Fate::Drop
    }

    fn victim(&self, sizes: RingSizes) -> Ring {
        let target = u128::from(sizes.total) * u128::from(PROBATION_PER_MILLE) / 1000;
        if u128::from(sizes.probation) > target {
            Ring::Probation
        } else {
            Ring::Main
        }
    }

    fn cached_blocks(&mut self, blocks: u64) {
        self.ghost.fit(blocks);
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() - size_of::<Ghost>() + self.ghost.memory_bytes()
    }

    fn name(&self) -> &'static str {
        "s3-fifo"
    }
}
