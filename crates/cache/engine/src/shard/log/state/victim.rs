//! What the manifest says of regions, and the region that is being reclaimed.
//!
//! Invariants: one region is reclaimed at a time; what the manifest says of it is taken back only when it is free.

use super::State;
use crate::shard::log::marks::{AtFlush, Length};
use crate::shard::log::reclaimed::ReclaimedRegions;
use crate::shard::log::regions::RegionState;

use crate::format::manifest::{ManifestEntry, RegionUse};
use crate::policy::Ring;

impl State {
    /// How far a region is filled with extents that are on the device, one behind the other.
    pub(super) fn landed_in(&self, region: u32) -> Length {
        if self.regions.at(region).state != RegionState::Open {
            return Length::Whole;
        }
        let used = self.regions.at(region).used;
        Length::Bytes(self.in_flight.first_gap(region).map_or(used, |gap| gap.min(used)))
    }

    /// What the manifest is to say of a region.
    pub(in crate::shard::log) fn entry(&self, number: u32) -> ManifestEntry {
        let region = self.regions.at(number);
        let mut entry = ManifestEntry {
            state: RegionUse::Full,
            ring: region.ring,
            generation: region.generation,
            len: region.used,
        };
        assert!(u64::from(entry.len) <= self.geometry.region_bytes);
        if self.reclaim.victim == Some(number) {
            entry.state = RegionUse::Reclaiming;
            return if self.reclaim.emptied {
                ManifestEntry::FREE
            } else {
                entry
            };
        }
        if region.state == RegionState::Free {
            return ManifestEntry::FREE;
        }
        match self.marks.stable(number) {
            Some(Length::Whole) | None => {}
            Some(length) => {
                entry.state = RegionUse::Open;
                entry.len = if let Length::Bytes(bytes) = length {
                    bytes
                } else {
                    0
                };
            }
        }
        if self.reclaim.recovering == Some(number) {
            entry.state = RegionUse::Recovering;
        }
        entry
    }

    /// The manifest is about to be written for regions that are `among` those: what it will say.
    pub(in crate::shard::log) fn told(&self, among: impl Fn(u32) -> bool) -> Vec<AtFlush> {
        self.marks.told(among)
    }

    /// The manifest on the device says this, `stable` or not.
    pub(in crate::shard::log) fn manifest_written(&mut self, told: &[AtFlush], stable: bool) {
        self.marks.written(told, stable);
    }

    /// Regions of which the manifest on the device says less than what is stable: see [`Marks::unmarked`].
    pub(in crate::shard::log) fn unmarked(&self, stable: bool) -> Vec<u32> {
        self.marks.unmarked(stable).collect()
    }

    /// Takes the oldest full region of `ring`, for reclaim.
    pub(in crate::shard::log) fn take_oldest(&mut self, ring: Ring) -> Option<u32> {
        let region = self.regions.take_oldest(ring)?;
        assert!(!self.in_flight.is_writing(region), "it is full");
        let before = self.reclaim.victim;
        assert!(
            before.is_none_or(|before| before == region),
            "an unfinished reclaim is finished first"
        );
        self.reclaim.victim = Some(region);
        self.marks.remove(region);
        Some(region)
    }

    /// The region whose reclaim is under way, or was not finished.
    pub(in crate::shard::log) fn victim(&self) -> Option<u32> {
        self.reclaim.victim
    }

    /// The oldest region of its ring was being reclaimed when an earlier opening ended.
    pub(in crate::shard::log) fn inherit_victim(&mut self, region: u32) {
        assert!(self.regions.at(region).state == RegionState::Full);
        assert!(self.reclaim.victim.is_none(), "one reclaim was interrupted");
        self.reclaim.victim = Some(region);
    }

    /// A region that could not be reclaimed is the oldest of its ring again. What was dropped of it stays dropped, so the
    /// manifest goes on to say that it is being reclaimed.
    pub(in crate::shard::log) fn put_back(&mut self, region: u32) {
        assert_eq!(self.reclaim.victim, Some(region), "it was being reclaimed");
        self.regions.put_back(region);
    }

    /// Everything that was in the victim, and is to stay, is stable elsewhere. Gives the region that took it, if that must
    /// count before the victim is free.
    pub(in crate::shard::log) fn end_recovering(&mut self) -> Option<u32> {
        self.reclaim.recovering.take()
    }

    /// Nothing in the victim counts any more.
    pub(in crate::shard::log) fn empty_victim(&mut self) {
        assert!(self.reclaim.recovering.is_none(), "what was moved counts");
        assert!(self.reclaim.victim.is_some(), "a region is being reclaimed");
        self.reclaim.emptied = true;
    }

    /// A reclaimed region becomes free.
    pub(in crate::shard::log) fn release(&mut self, region: u32) {
        assert!(
            !self.in_flight.is_writing(region),
            "region {region} is being written"
        );
        assert!(
            self.reclaim.victim == Some(region),
            "region {region} was reclaimed"
        );
        self.regions.release(region);
        self.reclaim = ReclaimedRegions::default();
    }
}
