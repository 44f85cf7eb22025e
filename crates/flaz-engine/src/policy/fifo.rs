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
    /// The policy has no state that depends on the cache's size.
    #[must_use]
    pub fn new() -> Self {
        Fifo {
            budget: ReinsertionBudget::new(),
        }
    }
}

impl Default for Fifo {
    fn default() -> Self {
        Fifo::new()
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

    fn cached_blocks(&mut self, _blocks: u64) {}

    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }

    fn name(&self) -> &'static str {
        "fifo"
    }
}
