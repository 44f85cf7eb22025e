//! A table of regions that grows and shrinks at its end.
//!
//! To shrink, the regions from `first` on are *given up*: they are reclaimed in the order of their rings, like any others, until
//! all of them are free. Then they are *sealed*, so that none is taken again, and the table is cut. Until then the shrink can be
//! called off at any time, and nothing has changed but what is cached.
//!
//! This ends. Reclaim takes a given-up region only if no other one is free, so only while at least as many regions are in use as
//! shall remain. Clients then get a region only from a credit of [`CREDIT`] reclaims. A reclaim frees one region and fills less
//! than seven eighths of one in the long run (see [`crate::policy`]), and after [`LAPS_KEEPING`] laps over the rings only dirty
//! blocks are kept, which fit in half of the regions that remain: the shard waits for that before it gives regions up. So the
//! regions in use become fewer than those that remain, no given-up region is taken any more, and one more lap frees the rest.

use super::{FREE_REGIONS_RESERVED, In, List, NONE, Packed, Region, RegionState, Regions};
use crate::policy::Ring;

/// Reclaims in which clients may take one of the regions that are given up, so that they are not held up until others are free.
pub(super) const CREDIT: u32 = 16;
/// Laps over all regions in which reclaim keeps blocks as the policy says.
pub(super) const LAPS_KEEPING: u64 = 2;

/// The shrink under way.
#[derive(Debug)]
pub(super) struct Shrink {
    /// Regions from here on are given up.
    first: u32,
    /// Those that are in their rings, by ring number.
    full: [u32; 2],
    /// Those that are not free.
    used: u32,
    /// Reclaims that keep blocks as the policy says.
    keeping: u64,
    /// Reclaims since clients took a region that is given up.
    credit: u32,
    /// All are free, and none is taken again.
    sealed: bool,
}

impl Regions {
    pub(crate) fn is_given_up(&self, number: u32) -> bool {
        self.shrink.as_ref().is_some_and(|shrink| number >= shrink.first)
    }

    /// Only `count` regions shall remain: [`Regions::give_up`] follows.
    pub(crate) fn plan_shrink(&mut self, count: u32) {
        assert!(self.remaining.is_none(), "one shrink at a time");
        assert!(!self.is_giving(), "the space of no region is being given back");
        assert!(
            (1..=self.len()).contains(&count),
            "{count} of {} remain",
            self.len()
        );
        self.remaining = Some(count);
    }

    /// Whether a shrink is under way.
    pub(crate) fn is_shrink_planned(&self) -> bool {
        self.remaining.is_some()
    }

    /// Whether the regions that were given up are sealed.
    pub(crate) fn is_sealed(&self) -> bool {
        self.shrink.as_ref().is_some_and(|shrink| shrink.sealed)
    }

    /// Number of withheld regions among those that shall remain.
    pub(crate) fn withheld_remaining(&self) -> usize {
        match self.remaining {
            // Those beyond are in another list once they are given up.
            Some(count) if self.shrink.is_none() => self
                .walk(self.withheld.head)
                .filter(|number| *number < count)
                .count(),
            _ => self.withheld_len(),
        }
    }

    /// Number of regions that shall remain.
    pub(crate) fn remaining(&self) -> u32 {
        self.remaining.unwrap_or(self.len())
    }

    /// Gives up the regions that shall not remain. False: that has begun before.
    pub(crate) fn give_up(&mut self) -> bool {
        if self.shrink.is_some() {
            return false;
        }
        let first = self.remaining();
        let (mut full, mut used) = ([0; 2], 0);
        for region in self.iter().skip(first as usize) {
            full[region.ring.index()] += u32::from(region.state == RegionState::Full);
            used += u32::from(region.state != RegionState::Free);
        }
        self.shrink = Some(Shrink {
            first,
            full,
            used,
            keeping: LAPS_KEEPING * u64::from(self.len()),
            credit: 0,
            sealed: false,
        });
        for (from, beyond) in [(In::Free, In::Spare), (In::Withheld, In::Apart)] {
            let head = self.list(from).head;
            let all: Vec<u32> = self.walk(head).collect();
            *self.list(from) = List::EMPTY;
            for number in all {
                self.push(if number < first { from } else { beyond }, number);
            }
        }
        true
    }

    /// Calls the shrink off, if one is under way: no region is given up.
    pub(crate) fn keep_all(&mut self) {
        (self.remaining, self.shrink) = (None, None);
        for (from, to) in [(In::Spare, In::Free), (In::Apart, In::Withheld)] {
            while let Some(number) = self.pop_oldest(from) {
                self.push(to, number);
            }
        }
    }

    /// Whether regions are being given up, and some can still be taken.
    pub(crate) fn is_shrinking(&self) -> bool {
        self.shrink.as_ref().is_some_and(|shrink| !shrink.sealed)
    }

    /// Number of regions that shall not remain and are not free.
    pub(crate) fn given_up_used(&self) -> u32 {
        let used = || self.iter().skip(self.remaining() as usize);
        self.shrink.as_ref().map_or_else(
            || used().filter(|region| region.state != RegionState::Free).count() as u32,
            |shrink| shrink.used,
        )
    }

    /// Whether reclaim must go on for the shrink: a ring has a region that is given up, or no other region is free for reclaim.
    pub(crate) fn must_free(&self) -> bool {
        self.shrink.as_ref().is_some_and(|shrink| {
            let lacks = self.free_len() < FREE_REGIONS_RESERVED;
            !shrink.sealed && (shrink.full != [0; 2] || shrink.used == 0 && lacks)
        })
    }

    /// The ring to reclaim for the shrink: `wanted`, unless only the other one has regions that are given up.
    pub(crate) fn ring_to_free(&self, wanted: Ring) -> Ring {
        let has = |ring: Ring| {
            let shrink = self.shrink.as_ref();
            shrink.is_some_and(|shrink| shrink.full[ring.index()] > 0)
        };
        match !has(wanted) && has(wanted.other()) {
            true => wanted.other(),
            false => wanted,
        }
    }

    /// Whether reclaim keeps clean blocks as the policy says; otherwise it drops them.
    pub(crate) fn keeps_clean(&self) -> bool {
        self.shrink.as_ref().is_none_or(|shrink| shrink.keeping > 0) && self.giving_keeps_clean()
    }

    /// Seals the regions that are given up, if none is in use and another one is free for reclaim. Returns whether they are sealed.
    pub(crate) fn seal(&mut self) -> bool {
        let enough = self.free_len() >= FREE_REGIONS_RESERVED;
        let (given_up, free) = (self.len() - self.remaining(), self.spare.len + self.apart.len);
        let Some(shrink) = self.shrink.as_mut() else {
            return false;
        };
        // One that is neither free nor in use is being allocated.
        shrink.sealed |= shrink.used == 0 && free == given_up && enough;
        shrink.sealed
    }

    /// Removes the regions that were given up.
    ///
    /// # Panics
    /// They are not sealed.
    pub(crate) fn cut(&mut self) {
        let shrink = self.shrink.take().expect("regions were given up");
        assert!(shrink.sealed, "{} regions are in use", shrink.used);
        let gone = self.table.len() - shrink.first as usize;
        assert_eq!((self.spare.len + self.apart.len) as usize, gone, "they are free");
        (self.spare, self.apart) = (List::EMPTY, List::EMPTY);
        self.remaining = None;
        self.table = self.table[..shrink.first as usize].into();
    }

    /// Appends regions, so that there are `count`: free ones, or withheld ones.
    pub(crate) fn grow(&mut self, count: u32, withheld: bool) {
        assert!(self.remaining.is_none(), "a table that shrinks does not grow");
        let before = self.len();
        assert!(count >= before, "{count} regions, and there are {before}");
        let mut table = std::mem::take(&mut self.table).into_vec();
        table.resize(count as usize, Packed::new(Region::FREE, NONE));
        self.table = table.into_boxed_slice();
        for number in before..count {
            self.push(if withheld { In::Withheld } else { In::Free }, number);
        }
    }

    /// Number of regions that reclaim can open.
    pub(crate) fn free_for_reclaim(&self) -> usize {
        let sealed = !self.is_shrinking();
        self.free_len() + if sealed { 0 } else { self.spare.len as usize }
    }

    /// Number of regions that have space and shall keep it. Reclaim and dirty blocks have no more.
    pub(crate) fn remaining_with_space(&self) -> u32 {
        let without = self.withheld_remaining() as u32 + self.moving;
        let remaining = self.remaining().saturating_sub(without);
        self.kept_space().map_or(remaining, |keep| keep.min(remaining))
    }

    /// Number of free regions whose space is allocated, and of those whose space is not.
    pub(crate) fn unused(&self) -> (usize, usize) {
        let sum = |one: List, other: List| (one.len + other.len) as usize;
        (sum(self.free, self.spare), sum(self.withheld, self.apart))
    }

    /// Takes a free region that is given up: for reclaim, or for clients on credit, to whom it leaves the reserve of reclaim.
    pub(super) fn take_given_up(&mut self, for_reclaim: bool) -> Option<u32> {
        let free = self.free_for_reclaim();
        let shrink = self.shrink.as_mut().filter(|shrink| !shrink.sealed)?;
        if !for_reclaim {
            if shrink.credit < CREDIT || free <= FREE_REGIONS_RESERVED {
                return None;
            }
            shrink.credit = 0;
        }
        let number = self.pop_oldest(In::Spare)?;
        self.shrink.as_mut()?.used += 1;
        Some(number)
    }

    /// A region has entered its ring (1), or left it (-1).
    pub(super) fn note_full(&mut self, number: u32, by: i32) {
        let ring = self.ring_of(number).index();
        if let Some(shrink) = self.shrink.as_mut() {
            if number >= shrink.first {
                let full = shrink.full[ring].checked_add_signed(by);
                shrink.full[ring] = full.expect("counted in pairs");
            }
            if by < 0 {
                shrink.keeping = shrink.keeping.saturating_sub(1);
            }
        }
    }

    /// A region was reclaimed.
    pub(super) fn note_released(&mut self, number: u32) {
        if let Some(shrink) = self.shrink.as_mut() {
            shrink.credit = (shrink.credit + 1).min(CREDIT);
            shrink.used -= u32::from(number >= shrink.first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Sequence;

    fn give_up(regions: &mut Regions, count: u32) {
        regions.plan_shrink(count);
        regions.give_up();
    }

    fn take(regions: &mut Regions, for_reclaim: bool) -> Option<u32> {
        regions.take(Ring::Main, Sequence(7), for_reclaim)
    }

    /// All but the last two of eight regions are full, in order.
    fn filled() -> Regions {
        let mut regions = Regions::all_free(8);
        for number in 0..6 {
            assert_eq!(take(&mut regions, false), Some(number));
            regions.finish(number);
        }
        regions
    }

    fn reclaim(regions: &mut Regions) -> u32 {
        let number = regions.take_oldest(Ring::Main).expect("one is full");
        regions.release(number);
        number
    }

    #[test]
    fn given_up_regions_are_sealed_when_all_are_free() {
        let mut regions = filled();
        give_up(&mut regions, 4);
        assert_eq!((regions.free_len(), regions.free_for_reclaim()), (0, 2));
        assert_eq!(regions.given_up_used(), 2);
        let mut order = Vec::new();
        while regions.must_free() {
            assert!(!regions.seal(), "some are in use");
            order.push(reclaim(&mut regions));
        }
        assert_eq!(order, [0, 1, 2, 3, 4, 5], "in the order of the ring");
        assert!(regions.is_shrinking() && regions.seal() && !regions.is_shrinking());
        for number in 0..4 {
            assert_eq!(take(&mut regions, true), Some(number));
        }
        assert_eq!(take(&mut regions, true), None, "none of them is taken again");
        regions.cut();
        assert_eq!((regions.len(), regions.count(Ring::Main)), (4, 4));
        assert_eq!(take(&mut regions, true), None);
    }

    /// Otherwise reclaim could not move anything afterwards.
    #[test]
    fn they_are_not_sealed_without_a_region_for_reclaim() {
        let mut regions = filled();
        give_up(&mut regions, 6);
        assert_eq!(regions.given_up_used(), 0);
        assert!(!regions.seal() && regions.must_free());
        assert_eq!(reclaim(&mut regions), 0);
        assert!(!regions.must_free() && regions.seal());
    }

    #[test]
    fn reclaim_takes_them_only_without_another_one() {
        let mut regions = filled();
        give_up(&mut regions, 4);
        assert_eq!(take(&mut regions, true), Some(6));
        assert_eq!(regions.given_up_used(), 3);
        regions.finish(6);
        reclaim(&mut regions);
        assert_eq!(take(&mut regions, true), Some(0));
        assert_eq!(take(&mut regions, true), Some(7));
    }

    #[test]
    fn clients_take_them_on_credit_only() {
        let mut regions = Regions::all_free(40);
        for number in 0..38 {
            assert_eq!(take(&mut regions, false), Some(number));
            regions.finish(number);
        }
        give_up(&mut regions, 1);
        for number in 0..CREDIT {
            assert_eq!(take(&mut regions, false), None);
            assert_eq!(reclaim(&mut regions), number);
        }
        assert_eq!(take(&mut regions, false), Some(38));
        assert_eq!(take(&mut regions, false), None);
    }

    #[test]
    fn a_shrink_that_is_called_off_changes_nothing() {
        let mut regions = filled();
        regions.withhold(|number| number < 7);
        give_up(&mut regions, 3);
        assert_eq!((regions.free_len(), regions.withheld_len()), (0, 0));
        assert_eq!(regions.take_withheld(), None);
        regions.keep_all();
        assert_eq!((regions.free_len(), regions.withheld_len()), (1, 1));
        assert_eq!(regions.take_withheld(), Some(7));
        regions.add_free(7);
        assert_eq!(take(&mut regions, false), Some(6));
    }

    #[test]
    fn a_region_that_is_being_allocated_is_waited_for() {
        for allocated in [false, true] {
            let mut regions = Regions::all_free(8);
            regions.withhold(|number| number < 6);
            assert_eq!(regions.take_withheld(), Some(6));
            give_up(&mut regions, 4);
            assert_eq!(regions.given_up_used(), 0);
            assert!(!regions.seal());
            match allocated {
                true => regions.add_free(6),
                false => regions.withhold_again(6),
            }
            assert!(regions.seal());
            regions.cut();
            assert_eq!(regions.unused(), (4, 0));
        }
    }

    #[test]
    fn after_some_laps_clean_blocks_are_dropped() {
        let mut regions = filled();
        give_up(&mut regions, 7);
        let mut reclaims = 0;
        while regions.keeps_clean() {
            let number = regions.take_oldest(Ring::Main).expect("one is full");
            regions.put_back(number);
            reclaims += 1;
        }
        assert_eq!(reclaims, LAPS_KEEPING * 8);
    }

    #[test]
    fn a_ring_without_given_up_regions_waits() {
        let mut regions = Regions::all_free(4);
        assert_eq!(regions.take(Ring::Probation, Sequence(1), false), Some(0));
        assert_eq!(regions.take(Ring::Main, Sequence(2), false), Some(1));
        regions.finish(0);
        regions.finish(1);
        assert_eq!(regions.ring_to_free(Ring::Probation), Ring::Probation);
        give_up(&mut regions, 1);
        assert_eq!(regions.ring_to_free(Ring::Probation), Ring::Main);
        assert_eq!(regions.ring_to_free(Ring::Main), Ring::Main);
    }

    #[test]
    fn new_regions_are_free_or_withheld() {
        let mut regions = filled();
        regions.grow(9, false);
        regions.grow(10, true);
        assert_eq!(regions.unused(), (3, 1));
        assert_eq!(regions.free().collect::<Vec<_>>(), [6, 7, 8]);
        assert_eq!(regions.take_withheld(), Some(9));
    }

    #[test]
    #[should_panic(expected = "regions are in use")]
    fn regions_in_use_are_not_cut_off() {
        let mut regions = filled();
        give_up(&mut regions, 4);
        regions.cut();
    }
}
