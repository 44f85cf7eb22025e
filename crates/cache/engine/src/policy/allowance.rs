//! What a policy may have stored, by what is left of the write budget.
//!
//! The steps are in the order of what they cost: of all orders that were compared (`docs/policy.md`), this one has the best hit ratio
//! for the same writes. A load that would write more than the budget settles at the border of two steps, so that it writes what the
//! budget allows.

/// See the module's documentation. Later steps allow less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allowance {
    /// All that the policy wants.
    #[default]
    All,
    /// In the main ring, a block needs one use more to be stored again.
    FewerReinsertions,
    /// The same, and a missed block enters only if the ghost remembers it.
    Remembered,
    /// No clean block is stored.
    Nothing,
}

/// Shares of a full budget, in percent, below which fewer blocks are stored again, and only remembered ones enter.
const FEWER_BELOW: u64 = 50;
const REMEMBERED_BELOW: u64 = 25;

/// Bytes that must be left for a block to be stored: more than it takes with its share of an extent's header and padding. So what
/// is stored never exceeds the budget.
const LEFT_BYTES_MIN: u64 = 16 << 10;

impl Allowance {
    /// With `left` bytes of a budget that has `full` bytes at most, divided among `shards` shards.
    #[must_use]
    pub fn at(left: u64, full: u64, shards: u32) -> Self {
        let below = |percent: u64| u128::from(left) * 100 < u128::from(full) * u128::from(percent);
        if left < LEFT_BYTES_MIN * u64::from(shards) {
            Self::Nothing
        } else if below(REMEMBERED_BELOW) {
            Self::Remembered
        } else if below(FEWER_BELOW) {
            Self::FewerReinsertions
        } else {
            Self::All
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_allowed_the_less_is_left() {
        let full = 1 << 30;
        let mut before = Allowance::Nothing;
        for left in (0..=full).step_by(1 << 20) {
            let now = Allowance::at(left, full, 1);
            assert!(now <= before, "{left}: {now:?} after {before:?}");
            before = now;
        }
        assert_eq!(Allowance::at(full / 2, full, 1), Allowance::All);
        assert_eq!(Allowance::at(full / 2 - 1, full, 1), Allowance::FewerReinsertions);
        assert_eq!(Allowance::at(full / 4 - 1, full, 1), Allowance::Remembered);
        assert_eq!(Allowance::at((16 << 10) - 1, full, 1), Allowance::Nothing);
        assert_eq!(Allowance::at(16 << 10, full, 2), Allowance::Nothing);
        assert_eq!(Allowance::at(u64::MAX, u64::MAX, 1), Allowance::All);
    }
}
