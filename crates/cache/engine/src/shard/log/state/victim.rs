//! The entries of regions in the manifest, and the region that is being reclaimed.
//!
//! Invariants: one region is reclaimed at a time; its state in the manifest is replaced only when it is free.

use super::State;
use crate::shard::log::marks::{AtFlush, Length};
use crate::shard::log::reclaimed::ReclaimedRegions;
use crate::shard::log::regions::RegionState;

use crate::format::manifest::{ManifestEntry, RegionUse};
use crate::policy::Ring;

impl State {
    /// Length of the contiguous extents of a region that are on the device.
    pub(super) fn landed_in(&self, region: u32) -> Length {
        if self.regions.at(region).state != RegionState::Open {
            return Length::Whole;
        }
        let used = self.regions.at(region).used;
        Length::Bytes(self.in_flight.first_gap(region).map_or(used, |gap| gap.min(used)))
    }

    /// The entry of a region to write to the manifest.
    pub(in crate::shard::log) fn entry(&self, number: u32) -> ManifestEntry {
        let Some(region) = self.regions.get(number) else {
            return ManifestEntry::FREE;
        };
        let mut entry = ManifestEntry {
            state: RegionUse::Full,
            ring: region.ring,
            generation: region.generation,
            len: region.used,
        };
        assert!(u64::from(entry.len) <= self.layout.region_bytes);
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

    /// The manifest is about to be written for the regions that are `among` these: returns the lengths it will have.
    pub(in crate::shard::log) fn told(&self, among: impl Fn(u32) -> bool) -> Vec<AtFlush> {
        self.marks.told(among)
    }

    /// The manifest on the device has these lengths, `stable` or not.
    pub(in crate::shard::log) fn manifest_written(&mut self, told: &[AtFlush], stable: bool) {
        self.marks.written(told, stable);
    }

    /// Regions whose length in the manifest on the device is below the stable length: see [`Marks::unmarked`].
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

    /// The region that is being reclaimed, or whose reclaim was not finished.
    pub(in crate::shard::log) fn victim(&self) -> Option<u32> {
        self.reclaim.victim
    }

    /// The oldest region of its ring was being reclaimed when an earlier opening ended.
    pub(in crate::shard::log) fn inherit_victim(&mut self, region: u32) {
        assert!(self.regions.at(region).state == RegionState::Full);
        assert!(self.reclaim.victim.is_none(), "one reclaim was interrupted");
        self.reclaim.victim = Some(region);
    }

    /// A region that could not be reclaimed is the oldest of its ring again. Blocks that it dropped stay dropped, so its state
    /// in the manifest stays *reclaiming*.
    pub(in crate::shard::log) fn put_back(&mut self, region: u32) {
        assert_eq!(self.reclaim.victim, Some(region), "it was being reclaimed");
        self.regions.put_back(region);
    }

    /// All blocks of the victim that must be kept are stable elsewhere. Returns the region that took them, if its contents
    /// must count before the victim is free.
    pub(in crate::shard::log) fn end_recovering(&mut self) -> Option<u32> {
        let region = self.reclaim.recovering.take();
        self.reclaim.settling |= region.is_some();
        region
    }

    /// Whether clients append nothing until a reclaim has ended.
    pub(in crate::shard::log) fn awaits_reclaim(&self) -> bool {
        self.reclaim.recovering.is_some() || self.reclaim.settling
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
        self.close_damaged();
    }
}
