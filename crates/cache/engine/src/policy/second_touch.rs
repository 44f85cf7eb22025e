//! Second touch: a block enters when it is missed for the second time in a while.
//!
//! The ghost remembers what was missed and refused. What enters goes straight to the main ring, which writes again
//! what was used. The SSD is written a third to a half as much as with S3-FIFO.

use super::ghost::Ghost;
use super::reinsertion::ReinsertionBudget;
use super::{Admission, Fate, Policy, Price, Ring, RingSizes, single_ring_victim};

/// Admission at the second touch. See the module's text.
#[derive(Debug)]
pub struct SecondTouch {
    ghost: Ghost,
    budget: ReinsertionBudget,
}

impl SecondTouch {
    /// For a cache of at least `blocks` blocks.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        SecondTouch {
            ghost: Ghost::for_blocks(blocks),
            budget: ReinsertionBudget::new(blocks),
        }
    }
}

impl Policy for SecondTouch {
    fn admit(&mut self, key: u64) -> Admission {
        if self.ghost.take(key) {
            return Admission::Remembered(Ring::Main);
        }
        self.ghost.insert(key);
        Admission::Refuse
    }

    fn admit_remembered(&mut self, key: u64) -> Admission {
        self.admit(key)
    }

    fn refused(&mut self, key: u64) {
        self.ghost.insert(key);
    }

    fn reclaim(&mut self, _ring: Ring, _key: u64, hits: u8, _price: Price) -> Fate {
        if self.budget.keeps(hits > 0) {
            Fate::Keep {
                ring: Ring::Main,
                hits: hits - 1,
            }
        } else {
            Fate::Drop
        }
    }

    fn victim(&self, sizes: RingSizes) -> Ring {
        single_ring_victim(sizes)
    }

    fn capacity(&mut self, blocks: u64) {
        self.ghost.capacity(blocks);
    }

    fn cached_blocks(&mut self, blocks: u64) {
        self.ghost.fit(blocks);
        self.budget.fit(blocks);
    }

    fn limit_memory(&mut self, bytes: u64, _blocks: u64) {
        self.ghost.limit_memory(bytes);
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() - size_of::<Ghost>() + self.ghost.memory_bytes()
    }

    fn name(&self) -> &'static str {
        "second-touch"
    }
}
