//! How much of what is reclaimed may be written again.
//!
//! A region is reclaimed to get room. If all its blocks were in use and all were kept, nothing would be gained and
//! the cache would write itself round and round. Uses are counted to 3 and each reinsertion takes one away, so this
//! ends by itself, but only after the whole ring was written up to three times. [`ReinsertionBudget`] ends it sooner:
//! each block that is dropped allows [`KEPT_RUN_MAX`] others to be kept, and when that is used up the next one goes,
//! however hot it is.

/// Blocks that may be kept for each one that is dropped, in the long run: 15 of 16.
const KEPT_RUN_MAX: u32 = 15;

/// Blocks that may be kept in one run, at most, however many were dropped before: a region of 16 MiB has 4,096
/// blocks that do not compress.
const CREDIT_MAX: u32 = 4096;

/// Counts what was kept and what was dropped, and says when something has to go.
#[derive(Debug)]
pub(super) struct ReinsertionBudget {
    credit: u32,
}

impl ReinsertionBudget {
    pub(super) fn new() -> Self {
        ReinsertionBudget { credit: KEPT_RUN_MAX }
    }

    /// A block of a reclaimed region: whether it is kept, given whether it was `used`.
    pub(super) fn keeps(&mut self, used: bool) -> bool {
        let kept = used && self.credit > 0;
        if kept {
            self.credit -= 1;
        } else {
            self.credit = (self.credit + KEPT_RUN_MAX).min(CREDIT_MAX);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_sixteen_goes_when_all_are_hot() {
        let mut budget = ReinsertionBudget::new();
        let kept = (0..16_000).filter(|_| budget.keeps(true)).count();
        assert_eq!(kept, 15_000);
    }

    #[test]
    fn drops_earn_a_bounded_run() {
        let mut budget = ReinsertionBudget::new();
        for _ in 0..1_000_000 {
            assert!(!budget.keeps(false));
        }
        assert_eq!(
            (0..).take_while(|_| budget.keeps(true)).count(),
            CREDIT_MAX as usize
        );
    }
}
