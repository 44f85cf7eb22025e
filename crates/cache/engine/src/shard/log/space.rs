//! The space of regions, on a device that takes it when it is first needed: see `shard::space` and `shard::give_back`.

use super::SegmentLog;

impl SegmentLog {
    /// Withholds the free regions without space: they are not used until [`SegmentLog::add_free`]. Withheld ones that have space become free.
    pub(in crate::shard) fn withhold(&self, has_space: impl Fn(u32) -> bool) {
        let mut state = self.state.borrow_mut();
        state.regions.withhold(has_space);
        state.close_damaged();
        drop(state);
        self.wake_room();
    }

    /// Number of regions that have space, whatever their use.
    pub(in crate::shard) fn regions_with_space(&self) -> u32 {
        self.state.borrow().regions.with_space()
    }

    /// Number of regions that have space and shall keep it.
    pub(in crate::shard) fn remaining_with_space(&self) -> u32 {
        self.state.borrow().regions.remaining_with_space()
    }

    /// Number of withheld regions.
    pub(in crate::shard) fn withheld_regions(&self) -> usize {
        self.state.borrow().regions.withheld_len()
    }

    /// Number of withheld regions among those that shall remain.
    pub(in crate::shard) fn withheld_remaining(&self) -> usize {
        self.state.borrow().regions.withheld_remaining()
    }

    /// Takes a withheld region, for [`SegmentLog::add_free`] or [`SegmentLog::withhold_again`].
    pub(in crate::shard) fn take_withheld(&self) -> Option<u32> {
        self.state.borrow_mut().regions.take_withheld()
    }

    /// A region that was withheld can be used.
    pub(in crate::shard) fn add_free(&self, region: u32) {
        let mut state = self.state.borrow_mut();
        state.regions.add_free(region);
        state.close_damaged();
        drop(state);
        self.wake_room();
    }

    /// A region that was withheld cannot be used yet.
    pub(in crate::shard) fn withhold_again(&self, region: u32) {
        self.state.borrow_mut().regions.withhold_again(region);
    }

    // Giving space back: see `regions::giving`.

    /// Only `keep` regions shall keep their space.
    pub(in crate::shard) fn plan_giving(&self, keep: u32) {
        self.state.borrow_mut().regions.plan_giving(keep);
        self.wake_room();
    }

    /// Dirty blocks fit in the regions that keep their space.
    pub(in crate::shard) fn begin_giving(&self) {
        self.state.borrow_mut().regions.begin_giving();
    }

    /// Whether the space of regions is to be given back.
    pub(in crate::shard) fn is_giving(&self) -> bool {
        self.state.borrow().regions.is_giving()
    }

    /// Whether reclaim must go on to give space back.
    pub(in crate::shard) fn must_give(&self) -> bool {
        self.state.borrow().regions.must_give()
    }

    /// Number of regions whose space is still to be given back.
    pub(in crate::shard) fn left_to_give(&self) -> u32 {
        self.state.borrow().regions.left_to_give()
    }

    /// Takes a free region to give its space back, for [`SegmentLog::given`].
    pub(in crate::shard) fn take_to_give(&self) -> Option<u32> {
        self.state.borrow_mut().regions.take_to_give()
    }

    /// The space of a region was given back, or may have been.
    pub(in crate::shard) fn given(&self, region: u32) {
        let mut state = self.state.borrow_mut();
        state.regions.withhold_again(region);
        if state.regions.end_if_given() {
            drop(state);
            self.wake_room();
        }
    }

    /// The space of a region could not be given back now: the region is free, and [`Self::begin_giving`] goes on.
    pub(in crate::shard) fn pause_giving(&self, region: u32) {
        self.state.borrow_mut().regions.pause_giving();
        self.add_free(region);
    }

    /// Calls it off.
    pub(in crate::shard) fn cancel_giving(&self) {
        self.state.borrow_mut().regions.cancel_giving();
        self.wake_room();
    }
}
