//! A shard that gives the space of regions back, for other caches on the same device.
//!
//! It first waits until dirty blocks fit in what remains, and limits writers to that at once, as a shrink does. Then the reclaim task
//! frees regions and gives their space back: see `regions::giving` in [`super::log`] and [`super::space`]. Nothing on the device says
//! how many regions have space but the device itself, so there is nothing to undo after a crash.
//!
//! The regions with space of all shards are numbered: the first one of each shard, then the second one of each, and so on. A request says
//! how many of these numbers remain. So the shard with the most regions gives back first.

use std::rc::Rc;

use super::resize::Shrinking;
use super::{Platform, Shard};
use crate::format::geometry::REGIONS_MIN;
use crate::units::BLOCK_BYTES;

impl<P: Platform> Shard<P> {
    /// Regions that this shard keeps of the first `below` of all shards.
    fn kept_of(&self, below: u32) -> u32 {
        let (number, count) = (self.id.number, self.id.layout.shard_count);
        let kept = below.saturating_add(count - 1 - number) / count;
        kept.max(REGIONS_MIN)
    }

    /// How many regions would be given back.
    pub(super) fn givable(&self, below: u32) -> Shrinking {
        let kept = self.kept_of(below);
        Shrinking {
            regions_left: u64::from(self.log.regions_with_space().saturating_sub(kept)),
            fenced: self.cache.is_fenced(),
            ..Shrinking::default()
        }
    }

    pub(super) fn begin_give_back(self: &Rc<Self>, below: u32) {
        if self.cache.shares_space() && !self.log.is_shrink_planned() {
            self.log.plan_giving(self.kept_of(below));
            self.writeback.note_limit();
            self.writeback.wake();
        }
    }

    pub(super) fn continue_give_back(self: &Rc<Self>) -> Shrinking {
        let unfinished = self.log.is_giving();
        let level = self.dirty_level();
        let dirty_bytes_left = match unfinished {
            true => level.dirty.saturating_sub(level.limit),
            false => 0,
        };
        // Damaged blocks cannot be written to the origin.
        let damaged_bytes = self.map.damaged_blocks() * BLOCK_BYTES as u64;
        if dirty_bytes_left > 0 {
            self.writeback.wake();
        } else {
            self.log.begin_giving();
            self.want_reclaim();
        }
        Shrinking {
            regions_left: u64::from(self.log.left_to_give()),
            dirty_bytes_left,
            unfinished,
            fenced: self.cache.is_fenced(),
            writeback_failing: dirty_bytes_left > 0
                && (self.writeback.progress().is_device_failing() || damaged_bytes >= dirty_bytes_left),
        }
    }

    /// Calls it off: all regions that have space keep it.
    pub(super) fn cancel_give_back(self: &Rc<Self>) {
        if self.log.is_giving() {
            self.log.cancel_giving();
            self.pump_writes();
            self.writeback.note_limit();
        }
    }
}
