//! Settings that may change while a shard serves, and the policy that they name.
//!
//! Invariant: the policy is of the kind that the settings name.

use std::cell::{Cell, Ref, RefCell};

use crate::policy::{Admission, Allowance, Fate, Policy, PolicyKind, Price, Ring, RingSizes};
use crate::settings::Settings;
use crate::units::LocalBlock;

/// See the module's documentation.
pub(super) struct Tuning {
    settings: RefCell<Settings>,
    policy: RefCell<Box<dyn Policy>>,
    /// Number of uncompressed blocks that fit in the shard.
    room: Cell<u64>,
    /// Most bytes of memory of the policy.
    memory_max: Option<u64>,
}

/// A policy of this kind. `memory_max`: as of [`Tuning`].
fn policy(kind: PolicyKind, room: u64, memory_max: Option<u64>) -> Box<dyn Policy> {
    // Policies take less than two bytes for each block.
    let least = memory_max.map_or(room, |bytes| room.min(bytes / 2));
    let mut policy = kind.build(least);
    if let Some(bytes) = memory_max {
        policy.limit_memory(bytes, room);
        policy.capacity(room);
    }
    policy
}

impl Tuning {
    /// For a shard that fits `room` uncompressed blocks. The policy has at most `memory_max` bytes, or as many as it needs.
    pub(super) fn new(settings: Settings, room: u64, memory_max: Option<u64>) -> Self {
        Self {
            policy: RefCell::new(policy(settings.policy, room, memory_max)),
            memory_max,
            settings: RefCell::new(settings),
            room: Cell::new(room),
        }
    }

    /// The shard fits `room` uncompressed blocks from now on.
    pub(super) fn set_room(&self, room: u64) {
        if self.room.replace(room) != room {
            self.policy.borrow_mut().capacity(room);
        }
    }

    pub(super) fn settings(&self) -> Ref<'_, Settings> {
        self.settings.borrow()
    }

    /// Applies new settings. A policy of another kind starts anew, with `cached` blocks in the cache.
    pub(super) fn change(&self, change: &Settings, cached: u64) {
        let before = self.settings.replace(change.clone());
        if before.policy != change.policy {
            let mut policy = policy(change.policy, self.room.get(), self.memory_max);
            policy.cached_blocks(cached);
            *self.policy.borrow_mut() = policy;
        }
    }

    /// A block that is not cached was read or written: returns whether and where to store it.
    pub(super) fn admit(&self, block: LocalBlock) -> Admission {
        let mut policy = self.policy.borrow_mut();
        let key = policy.key(block.0);
        policy.admit(key)
    }

    /// The same of a block that need not be stored.
    pub(super) fn admit_within(&self, block: LocalBlock, allowance: Allowance) -> Admission {
        let mut policy = self.policy.borrow_mut();
        let key = policy.key(block.0);
        match allowance {
            Allowance::All | Allowance::FewerReinsertions => policy.admit(key),
            Allowance::Remembered => policy.admit_remembered(key),
            Allowance::Nothing => {
                policy.refused(key);
                Admission::OverBudget
            }
        }
    }

    /// The ring whose oldest region is reclaimed next.
    pub(super) fn victim(&self, sizes: RingSizes) -> Ring {
        self.policy.borrow().victim(sizes)
    }

    /// Whether a read of a block counts, if probation was given `age` bytes after it.
    pub(super) fn counts_read(&self, age: u64, sizes: RingSizes) -> bool {
        age >= self.policy.borrow().window(sizes)
    }

    /// A region is about to be reclaimed, with `cached` blocks in the cache.
    pub(super) fn reclaim_begins(&self, cached: u64) {
        self.policy.borrow_mut().cached_blocks(cached);
    }

    /// The fate of a block in a region of `ring` that is being reclaimed.
    pub(super) fn reclaim(
        &self,
        ring: Ring,
        block: LocalBlock,
        hits: u8,
        price: Price,
        allowance: Allowance,
    ) -> Fate {
        let (hits, price) = match allowance {
            Allowance::All => (hits, price),
            Allowance::FewerReinsertions | Allowance::Remembered => (hits, price.raised()),
            // As if it had not been used.
            Allowance::Nothing => (0, price),
        };
        let mut policy = self.policy.borrow_mut();
        let key = policy.key(block.0);
        policy.reclaim(ring, key, hits, price)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.policy.borrow().memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyKind;

    fn settings(policy: PolicyKind) -> Settings {
        Settings {
            policy,
            ..Settings::default()
        }
    }

    #[test]
    fn a_policy_stays_within_its_memory_whatever_changes() {
        for kind in [PolicyKind::S3Fifo, PolicyKind::SecondTouch] {
            let tuning = Tuning::new(settings(kind), 1 << 20, Some(64 << 10));
            let most = (64 << 10) + 1024;
            assert!(((32 << 10)..most).contains(&tuning.memory_bytes()), "{kind:?}");
            tuning.reclaim_begins(10 << 20);
            tuning.set_room(8 << 20);
            assert!(tuning.memory_bytes() < most, "{kind:?}");
            tuning.change(&settings(PolicyKind::Fifo), 10 << 20);
            tuning.change(&settings(kind), 10 << 20);
            assert!(((32 << 10)..most).contains(&tuning.memory_bytes()), "{kind:?}");
        }
    }

    #[test]
    fn less_of_the_budget_admits_and_keeps_less() {
        let tuning = Tuning::new(settings(PolicyKind::S3Fifo), 1000, None);
        let admit = |block, allowance| tuning.admit_within(LocalBlock(block), allowance);
        let keeps = |hits, price, allowance| {
            let fate = tuning.reclaim(Ring::Main, LocalBlock(9), hits, price, allowance);
            matches!(fate, Fate::Keep { .. })
        };
        for allowance in [Allowance::All, Allowance::FewerReinsertions] {
            assert!(matches!(admit(1, allowance), Admission::To(Ring::Probation)));
        }
        assert_eq!(admit(2, Allowance::Remembered), Admission::OverBudget);
        assert_eq!(admit(3, Allowance::Nothing), Admission::OverBudget);
        let remembered = Admission::Remembered(Ring::Main);
        assert_eq!(admit(2, Allowance::Remembered), remembered);
        // Every other refused block is remembered.
        assert_eq!(admit(3, Allowance::Remembered), Admission::OverBudget);
        assert_eq!(admit(3, Allowance::Remembered), remembered);
        for (hits, price, least) in [
            (1, Price::USUAL, Allowance::All),
            (2, Price::USUAL, Allowance::Remembered),
            (2, Price::DOUBLE, Allowance::All),
            (3, Price::DOUBLE, Allowance::Remembered),
        ] {
            for allowance in [
                Allowance::All,
                Allowance::FewerReinsertions,
                Allowance::Remembered,
                Allowance::Nothing,
            ] {
                assert_eq!(
                    keeps(hits, price, allowance),
                    allowance <= least,
                    "{hits} {price:?} {allowance:?}"
                );
            }
        }
        tuning.change(&settings(PolicyKind::Fifo), 0);
        assert_eq!(
            admit(4, Allowance::Remembered),
            Admission::OverBudget,
            "nothing is remembered"
        );
        assert!(matches!(admit(4, Allowance::All), Admission::To(_)));
    }

    #[test]
    fn only_a_policy_of_another_kind_starts_anew() {
        let tuning = Tuning::new(settings(PolicyKind::SecondTouch), 1000, None);
        let admit = || tuning.admit(LocalBlock(7));
        assert!(matches!(admit(), Admission::Refuse), "the first touch");
        let mut same = settings(PolicyKind::SecondTouch);
        same.dirty_percent += 1;
        tuning.change(&same, 0);
        assert!(!matches!(admit(), Admission::Refuse), "the second touch");
        assert_eq!(tuning.settings().dirty_percent, same.dirty_percent);
        tuning.change(&settings(PolicyKind::Fifo), 0);
        assert!(matches!(tuning.admit(LocalBlock(8)), Admission::To(_)));
        tuning.change(&same, 0);
        assert!(matches!(tuning.admit(LocalBlock(8)), Admission::Refuse));
    }
}
