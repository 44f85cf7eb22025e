//! A table of regions that gives the space of some back, because other caches on the device need it.
//!
//! Which regions these are does not matter: reclaim frees the oldest ones as usual, and the space of those that are free is given
//! back, until no more than a given number have space. It can be called off at any time; what has been given back is withheld then.
//!
//! This ends, as a shrink does (see [`super::shrink`]): reclaim gains an eighth of a region each time in the long run, clients get one
//! region for [`CREDIT`] of them, and after [`LAPS_KEEPING`] laps over the rings only dirty blocks are kept. These fit in half of the
//! regions that keep their space: the shard waits for that before it gives back the first one.

use super::shrink::{CREDIT, LAPS_KEEPING};
use super::{FREE_REGIONS_RESERVED, In, Regions};

/// The space of some regions is being given back.
#[derive(Debug)]
pub(super) struct Giving {
    /// Regions that keep their space.
    keep: u32,
    /// Dirty blocks fit in them, and giving back does not pause: regions may be given back.
    begun: bool,
    /// Reclaims that keep blocks as the policy says.
    keeping: u64,
    /// Reclaims since clients took a region.
    credit: u32,
}

impl Regions {
    /// Only `keep` regions shall keep their space: [`Regions::begin_giving`] follows. Nothing happens if no more have space.
    pub(crate) fn plan_giving(&mut self, keep: u32) {
        assert!(!self.is_shrink_planned(), "the table does not shrink");
        assert!(keep > 0, "some regions have space");
        self.giving = (self.with_space() > keep).then_some(Giving {
            keep,
            begun: false,
            keeping: LAPS_KEEPING * u64::from(self.len()),
            credit: 0,
        });
    }

    /// Dirty blocks fit in the regions that keep their space.
    pub(crate) fn begin_giving(&mut self) {
        if let Some(giving) = self.giving.as_mut() {
            giving.begun = true;
        }
    }

    /// No more regions are given back until it begins again.
    pub(crate) fn pause_giving(&mut self) {
        if let Some(giving) = self.giving.as_mut() {
            giving.begun = false;
        }
    }

    /// Whether regions are to be given back, or are being given back.
    pub(crate) fn is_giving(&self) -> bool {
        self.giving.is_some()
    }

    /// Calls it off: all regions that have space keep it.
    pub(crate) fn cancel_giving(&mut self) {
        self.giving = None;
    }

    /// Number of regions whose space is still to be given back.
    pub(crate) fn left_to_give(&self) -> u32 {
        self.kept_space()
            .map_or(0, |keep| self.with_space().saturating_sub(keep))
    }

    /// Regions that keep their space, if others do not.
    pub(super) fn kept_space(&self) -> Option<u32> {
        self.giving.as_ref().map(|giving| giving.keep)
    }

    /// Whether reclaim must go on to give regions back.
    pub(crate) fn must_give(&self) -> bool {
        self.giving.as_ref().is_some_and(|giving| giving.begun) && self.left_to_give() > 0
    }

    /// Takes a free region to give its space back, and leaves the reserve of reclaim. [`Regions::withhold_again`] follows.
    pub(crate) fn take_to_give(&mut self) -> Option<u32> {
        if !self.must_give() || self.free_len() <= FREE_REGIONS_RESERVED {
            return None;
        }
        let number = self.pop_oldest(In::Free)?;
        self.moving += 1;
        Some(number)
    }

    /// The space of a region was given back. Returns whether that was the last one.
    pub(crate) fn end_if_given(&mut self) -> bool {
        let ends = self.is_giving() && self.left_to_give() == 0;
        if ends {
            self.giving = None;
        }
        ends
    }

    /// Whether a client may take a free region: always, but for credit while regions are given back.
    pub(super) fn spend_credit(&mut self) -> bool {
        if !self.must_give() {
            return true;
        }
        let giving = self.giving.as_mut().expect("regions are given back");
        let may = giving.credit >= CREDIT;
        if may {
            giving.credit = 0;
        }
        may
    }

    /// A region was reclaimed.
    pub(super) fn earn_credit(&mut self) {
        if let Some(giving) = self.giving.as_mut() {
            giving.credit = (giving.credit + 1).min(CREDIT);
        }
    }

    /// A reclaim begins.
    pub(super) fn note_judged(&mut self) {
        if let Some(giving) = self.giving.as_mut() {
            giving.keeping = giving.keeping.saturating_sub(1);
        }
    }

    /// Whether reclaim keeps clean blocks as the policy says.
    pub(super) fn giving_keeps_clean(&self) -> bool {
        self.giving
            .as_ref()
            .is_none_or(|giving| !giving.begun || giving.keeping > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Ring;
    use crate::units::Sequence;

    fn take(regions: &mut Regions, for_reclaim: bool) -> Option<u32> {
        regions.take(Ring::Main, Sequence(7), for_reclaim)
    }

    /// Eight of ten regions have space, and the first six of them are full.
    fn filled() -> Regions {
        let mut regions = Regions::all_free(10);
        regions.withhold(|number| number < 8);
        for number in 0..6 {
            assert_eq!(take(&mut regions, false), Some(number));
            regions.finish(number);
        }
        regions
    }

    fn give(regions: &mut Regions, keep: u32) {
        regions.plan_giving(keep);
        regions.begin_giving();
    }

    fn give_one(regions: &mut Regions) -> Option<u32> {
        let number = regions.take_to_give()?;
        regions.withhold_again(number);
        regions.end_if_given();
        Some(number)
    }

    fn reclaim(regions: &mut Regions) {
        let number = regions.take_oldest(Ring::Main).expect("one is full");
        regions.release(number);
    }

    #[test]
    fn free_regions_are_given_back_until_enough_are() {
        let mut regions = filled();
        assert_eq!((regions.with_space(), regions.remaining_with_space()), (8, 8));
        regions.plan_giving(5);
        assert_eq!((regions.left_to_give(), regions.remaining_with_space()), (3, 5));
        assert!(
            !regions.must_give() && give_one(&mut regions).is_none(),
            "not begun"
        );
        regions.begin_giving();
        let mut given = Vec::new();
        while regions.must_give() {
            match give_one(&mut regions) {
                Some(number) => given.push(number),
                None => reclaim(&mut regions),
            }
        }
        assert_eq!(given, [6, 7, 0], "all but the reserved one, then the oldest");
        assert!(!regions.is_giving());
        assert_eq!((regions.with_space(), regions.free_len()), (5, 1));
        assert_eq!(regions.withheld_len(), 5);
    }

    #[test]
    fn withheld_regions_with_space_are_given_back_first() {
        let mut regions = filled();
        regions.withhold(|number| number != 8);
        assert_eq!((regions.with_space(), regions.withheld_len()), (9, 1));
        give(&mut regions, 7);
        assert_eq!(
            [give_one(&mut regions), give_one(&mut regions)],
            [Some(6), Some(7)]
        );
        assert!(!regions.must_give(), "9 stays free");
    }

    #[test]
    fn one_that_is_being_given_back_has_no_space() {
        let mut regions = filled();
        give(&mut regions, 7);
        assert_eq!(regions.take_to_give(), Some(6));
        assert_eq!((regions.with_space(), regions.left_to_give()), (7, 0));
        assert!(regions.is_giving(), "it has not ended");
        regions.withhold_again(6);
        assert!(regions.end_if_given() && !regions.is_giving());
    }

    #[test]
    fn a_table_without_surplus_gives_nothing_back() {
        let mut regions = filled();
        give(&mut regions, 8);
        assert!(!regions.is_giving());
    }

    #[test]
    fn clients_take_regions_on_credit_only_meanwhile() {
        let mut regions = Regions::all_free(40);
        for number in 0..39 {
            take(&mut regions, true);
            regions.finish(number);
        }
        give(&mut regions, 1);
        for reclaims in 1..=CREDIT {
            reclaim(&mut regions);
            assert_eq!(take(&mut regions, false).is_some(), reclaims == CREDIT);
        }
        assert_eq!(take(&mut regions, false), None, "the credit is spent");
        assert!(take(&mut regions, true).is_some(), "reclaim always may");
        regions.cancel_giving();
        assert!(take(&mut regions, false).is_some());
    }

    #[test]
    fn after_some_laps_clean_blocks_are_dropped() {
        let mut regions = filled();
        regions.plan_giving(5);
        for _ in 0..100 {
            let number = regions.take_oldest(Ring::Main).expect("one is full");
            regions.put_back(number);
        }
        assert!(regions.keeps_clean(), "not begun");
        give(&mut regions, 5);
        let mut reclaims = 0;
        while regions.keeps_clean() {
            let number = regions.take_oldest(Ring::Main).expect("one is full");
            regions.put_back(number);
            reclaims += 1;
        }
        assert_eq!(reclaims, LAPS_KEEPING * 10);
        regions.cancel_giving();
        assert!(regions.keeps_clean());
    }
}
