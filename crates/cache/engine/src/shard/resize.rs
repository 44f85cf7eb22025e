//! A shard that gets more regions, or gives some up, while it serves.
//!
//! The regions of the cache alternate between the shards, so a cache grows and shrinks at its end, and each shard at the end of
//! its table. The superblock says how many regions there are: see `cache::resize` for the order of both.
//!
//! A shard that shrinks first waits until dirty blocks fit in what remains; it limits writers to that at once. Otherwise reclaim
//! would move dirty blocks round and round. Then reclaim frees the regions to give up: see `regions::shrink` in [`super::log`].

use std::rc::Rc;

use super::log::Copies;
use super::{Platform, Shard};
use crate::units::BLOCK_BYTES;

/// Regions whose manifest entries are written at a time.
const MANIFEST_REGIONS_MAX: usize = 1024;

/// How far shards are with a shrink, or with giving space back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shrinking {
    /// Regions to give up that are still in use, or whose space is still to be given back.
    pub regions_left: u64,
    /// Bytes of dirty data above what fits in the smaller cache: they are written to the origin first.
    pub dirty_bytes_left: u64,
    /// Some regions may still be used: the cache is not to be cut yet.
    pub unfinished: bool,
    /// The cache device was fenced.
    pub fenced: bool,
    /// Dirty data does not fit, and cannot be written to the origin.
    pub writeback_failing: bool,
}

impl Shrinking {
    /// Adds that of other shards.
    pub fn add(&mut self, other: Self) {
        self.regions_left += other.regions_left;
        self.dirty_bytes_left += other.dirty_bytes_left;
        self.unfinished |= other.unfinished;
        self.fenced |= other.fenced;
        self.writeback_failing |= other.writeback_failing;
    }
}

/// A step of a change of the number of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeStep {
    /// Make the manifest ready for so many regions. On failure the cache device is fenced.
    Prepare(u32),
    /// The superblock says, stable, that there are so many regions: use them. To be repeated if a shard may have missed it.
    Grow(u32),
    /// Only so many regions shall remain: begin to give up the others.
    BeginShrink(u32),
    /// Go on to give up regions. To be repeated until the shrink is not unfinished; from then on none of them is used.
    ContinueShrink,
    /// The superblock says, stable, that there are only so many regions: those that were given up do not exist. To be repeated if
    /// a shard may have missed it.
    EndShrink(u32),
    /// Call a shrink off: all regions remain.
    CancelShrink,
    /// Regions that were withheld are free if they have space, which others may have taken for them in advance. Only on a shared device.
    FindSpace,
    /// Count the regions that [`ResizeStep::BeginGiveBack`] would give back, and change nothing.
    CountGiveBack(u32),
    /// Only the first so many of the cache's regions with space shall keep it: see `shard::give_back`. Only on a shared device.
    BeginGiveBack(u32),
    /// Report how far that is, and give space back once dirty blocks fit in the rest. To be repeated until it is not unfinished.
    ContinueGiveBack,
    /// Call it off: regions that still have space keep it.
    CancelGiveBack,
}

impl<P: Platform> Shard<P> {
    /// Takes a step.
    pub async fn resize(self: &Rc<Self>, step: ResizeStep) -> Shrinking {
        match step {
            ResizeStep::Prepare(regions) => self.prepare_growth(regions).await,
            ResizeStep::Grow(regions) => self.grow(regions),
            ResizeStep::BeginShrink(regions) => self.begin_shrink(regions),
            ResizeStep::ContinueShrink => return self.continue_shrink(),
            ResizeStep::EndShrink(regions) => self.end_shrink(regions).await,
            ResizeStep::CancelShrink => self.cancel_shrink(),
            ResizeStep::FindSpace => {
                self.withhold_inherited();
                self.pump_writes();
            }
            ResizeStep::CountGiveBack(below) => return self.givable(below),
            ResizeStep::BeginGiveBack(below) => self.begin_give_back(below),
            ResizeStep::ContinueGiveBack => return self.continue_give_back(),
            ResizeStep::CancelGiveBack => self.cancel_give_back(),
        }
        Shrinking {
            fenced: self.cache.is_fenced(),
            ..Shrinking::default()
        }
    }

    /// Writes the manifest entries of regions that the shard will have, as free: stable on return. They are free since they were
    /// created or given up; this replaces sectors that are damaged or that the device has lost.
    async fn prepare_growth(self: &Rc<Self>, regions: u32) {
        let new: Vec<u32> = (self.log.region_count() as u32..regions).collect();
        for some in new.chunks(MANIFEST_REGIONS_MAX) {
            let written = self.log.write_manifest(&self.cache, some, Copies::BothStable);
            if let Err(error) = written.await {
                self.cache_error(&error);
                self.fence("the manifest could not be written");
                return;
            }
        }
    }

    /// The new regions are free.
    fn grow(self: &Rc<Self>, regions: u32) {
        self.log.grow(regions, self.cache.is_sparse());
        self.pump_writes();
        self.space_changed();
        self.want_reclaim();
    }

    /// On a shared device, the space of regions that do not exist is given back: also that which a crash has left to them.
    async fn end_shrink(self: &Rc<Self>, regions: u32) {
        if self.log.region_count() > u64::from(regions) {
            self.log.cut();
            self.space_changed();
        }
        self.give_beyond(regions).await;
    }

    fn begin_shrink(self: &Rc<Self>, regions: u32) {
        self.cancel_give_back();
        self.log.plan_shrink(regions);
        self.writeback.note_limit();
        self.writeback.wake();
    }

    fn continue_shrink(self: &Rc<Self>) -> Shrinking {
        if !self.log.is_shrink_planned() {
            // It was called off.
            return Shrinking {
                unfinished: true,
                fenced: self.cache.is_fenced(),
                ..Shrinking::default()
            };
        }
        let level = self.dirty_level();
        let dirty_bytes_left = level.dirty.saturating_sub(level.limit);
        // Damaged blocks cannot be written to the origin.
        let damaged_bytes = self.map.damaged_blocks() * BLOCK_BYTES as u64;
        if dirty_bytes_left > 0 {
            self.writeback.wake();
        } else {
            let begins = self.log.give_up();
            // At the end again: reclaim may have filled such a region. Not in between: half-empty regions would take their place.
            // Not while reclaim moves blocks to such a region: they may have no other place.
            if (begins || !self.log.must_free()) && !self.reclaimer.is_running() {
                self.log.close_given_up();
                self.pump_writes();
            }
            self.want_reclaim();
        }
        Shrinking {
            regions_left: u64::from(self.log.given_up_used()),
            dirty_bytes_left,
            unfinished: !self.log.seal_given_up(),
            fenced: self.cache.is_fenced(),
            writeback_failing: dirty_bytes_left > 0
                && (self.writeback.progress().is_device_failing() || damaged_bytes >= dirty_bytes_left),
        }
    }

    /// Calls a shrink off, if one is under way: all regions remain.
    pub(super) fn cancel_shrink(self: &Rc<Self>) {
        self.log.keep_all();
        self.pump_writes();
        self.writeback.note_limit();
    }
}
