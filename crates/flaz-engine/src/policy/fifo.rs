//! First in, first out: every miss enters, the oldest region goes, and what was used in it is written again.
//!
//! No ghost, no second ring: the plainest policy, to compare the others with.

use super::reinsertion::ReinsertionBudget;
use super::{Admission, Fate, Policy, Ring, RingSizes, reinsert_used, single_ring_victim};

/// Admit all, FIFO with reinsertion. See the module's text.
#[derive(Debug)]
pub struct Fifo {
    budget: ReinsertionBudget,
}

impl Fifo {
    /// For a cache of at least `blocks` blocks.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        Fifo {
            budget: ReinsertionBudget::new(blocks),
        }
    }
}

impl Policy for Fifo {
    fn admit(&mut self, _key: u64) -> Admission {
        Admission::To(Ring::Main)
    }

    fn reclaim(&mut self, _ring: Ring, _key: u64, hits: u8) -> Fate {
        reinsert_used(&mut self.budget, hits)
    }

    fn victim(&self, sizes: RingSizes) -> Ring {
        single_ring_victim(sizes)
    }

    fn cached_blocks(&mut self, blocks: u64) {
        self.budget.fit(blocks);
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }

    fn name(&self) -> &'static str {
        "fifo"
    }
}
