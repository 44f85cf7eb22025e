//! FIFO with reinsertion over regions: every miss is admitted, and used blocks of the oldest region are reinserted.
//!
//! It is a column of the design's table but not a policy of the engine, whose FIFO is the plain one.

use flaz_engine::policy::{Admission, Fate, Policy, Price, Ring, RingSizes};

/// Admit all, FIFO with reinsertion. See the module's text.
#[derive(Debug, Default)]
pub struct FifoWithReinsertion;

impl Policy for FifoWithReinsertion {
    fn admit(&mut self, _key: u64) -> Admission {
        Admission::To(Ring::Main)
    }

    fn reclaim(&mut self, _ring: Ring, _key: u64, hits: u8, _price: Price) -> Fate {
        // Uses are counted up to three, so an unused block is reinserted three times at most.
        match hits.checked_sub(1) {
            Some(hits) => Fate::Keep {
                ring: Ring::Main,
                hits,
            },
            None => Fate::Drop,
        }
    }

    fn victim(&self, _sizes: RingSizes) -> Ring {
        Ring::Main
    }

    fn cached_blocks(&mut self, _blocks: u64) {}

    fn memory_bytes(&self) -> usize {
        0
    }

    fn name(&self) -> &'static str {
        "fifo-with-reinsertion"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_spent_at_each_reinsertion() {
        let mut policy = FifoWithReinsertion;
        let kept = |hits| Fate::Keep {
            ring: Ring::Main,
            hits,
        };
        assert_eq!(policy.reclaim(Ring::Main, 1, 2, Price::USUAL), kept(1));
        assert_eq!(policy.reclaim(Ring::Main, 1, 1, Price::USUAL), kept(0));
        assert_eq!(policy.reclaim(Ring::Main, 1, 0, Price::USUAL), Fate::Drop);
    }
}
