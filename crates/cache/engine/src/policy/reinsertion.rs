//! How much of what is reclaimed may be written again.
//!
//! A region is reclaimed to get room. If all its blocks were in use and all were kept, nothing would be gained and
//! the cache would write itself round and round. Uses are counted to 3 and each reinsertion takes one away, so this
//! ends by itself, but only after the whole ring was written up to three times. [`ReinsertionBudget`] ends it sooner:
//! each block that is dropped allows [`KEPT_RUN_MAX`] others to be kept, and when that is used up the next one goes,
//! however hot it is.

/// Blocks that may be kept for each one that is dropped, in the long run: 7 of 8.
const KEPT_RUN_MAX: u64 = 7;

/// The part of the cache that may be kept in one run, at most, however many blocks were dropped before: neighbours in
/// a ring came together and are often hot together, so a smaller one would drop what is hot.
const RUN_PART: u64 = 16;

/// Counts what was kept and what was dropped, and says when something has to go.
#[derive(Debug)]
pub(super) struct ReinsertionBudget {
    credit: u64,
    credit_max: u64,
}

impl ReinsertionBudget {
    /// For a cache of `blocks` blocks.
    pub(super) fn new(blocks: u64) -> Self {
        let mut budget = ReinsertionBudget {
            credit: KEPT_RUN_MAX,
            credit_max: 0,
        };
        budget.fit(blocks);
        budget
    }

    /// The cache has that many blocks now.
    pub(super) fn fit(&mut self, blocks: u64) {
        self.credit_max = (blocks / RUN_PART).max(KEPT_RUN_MAX);
        self.credit = self.credit.min(self.credit_max);
    }

    /// A block of a reclaimed region: whether it is kept, given whether it was `used`.
    pub(super) fn keeps(&mut self, used: bool) -> bool {
        let kept = used && self.credit > 0;
        if kept {
            self.credit -= 1;
        } else {
            self.credit = (self.credit + KEPT_RUN_MAX).min(self.credit_max);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_eight_goes_when_all_are_hot() {
        let mut budget = ReinsertionBudget::new(16_000);
        let kept = (0..16_000).filter(|_| budget.keeps(true)).count();
        assert_eq!(kept, 14_000);
    }

    #[test]
    fn drops_earn_a_run_that_is_a_bounded_part_of_the_cache() {
        for blocks in [0, 100, 16_000, u64::MAX] {
            let mut budget = ReinsertionBudget::new(blocks);
            for _ in 0..1_000 {
                assert!(!budget.keeps(false));
            }
            budget.fit(blocks.min(16_000));
            let run = (0..).take_while(|_| budget.keeps(true)).count();
            assert_eq!(run as u64, (blocks.min(16_000) / 16).max(7), "{blocks} blocks");
        }
    }
}
