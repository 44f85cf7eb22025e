//! First in, first out: every miss enters, the oldest region goes, and nothing in it is written again.
//!
//! No ghost, no second ring, no look at what was used: the plainest policy, to compare the others with. The SSD is
//! written once for each miss, never more.

use super::{Admission, Fate, Policy, Price, Ring, RingSizes, single_ring_victim};

/// Admit all, plain FIFO. See the module's text.
#[derive(Debug, Default)]
pub struct Fifo;

impl Policy for Fifo {
    fn admit(&mut self, _key: u64) -> Admission {
        Admission::To(Ring::Main)
    }

    fn reclaim(&mut self, _ring: Ring, _key: u64, _hits: u8, _price: Price) -> Fate {
        Fate::Drop
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
