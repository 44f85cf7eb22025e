//! The dirty limit: how many bytes of the cache device dirty blocks may take.
//!
//! Invariant: a permit is given only if dirty bytes, reserved bytes and the permit fit in the limit; or if nothing is dirty
//! or reserved, so that a large write can proceed.

use std::cell::Cell;

use flaz_device::local::Notify;

use crate::settings::DIRTY_PERCENT_MAX;

/// Regions that never count for dirty blocks: two open, one reserved, one being reclaimed.
const REGIONS_APART: u32 = 4;
/// Most bytes that a dirty block takes on the device: fragment, record, and sectors touched at its ends.
const DIRTY_BLOCK_BYTES: u64 = 4096 + 8 + 8 + 504;

/// Bytes of the cache device that dirty blocks take, and the dirty limit.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Level {
    pub(in crate::shard) dirty: u64,
    pub(in crate::shard) limit: u64,
}

/// The dirty limit in bytes of a shard with `regions` regions that have space; `percent` is the user's setting.
pub(in crate::shard) fn limit_bytes(regions: u32, region_bytes: u64, percent: u8) -> u64 {
    let regions = regions.saturating_sub(REGIONS_APART).max(1);
    let percent = u64::from(percent.clamp(1, DIRTY_PERCENT_MAX));
    (u64::from(regions) * region_bytes * percent / 100).max(DIRTY_BLOCK_BYTES)
}

/// Most blocks that may become dirty at a time under a limit.
pub(in crate::shard) fn blocks_max(limit: u64) -> usize {
    (limit / DIRTY_BLOCK_BYTES).max(1) as usize
}

/// Bytes to reserve for `blocks` blocks.
pub(in crate::shard) fn bytes_of(blocks: usize) -> u64 {
    blocks as u64 * DIRTY_BLOCK_BYTES
}

/// Bytes of the permits that are held.
#[derive(Debug, Default)]
pub(super) struct Reserved(Cell<u64>);

impl Reserved {
    pub(super) fn bytes(&self) -> u64 {
        self.0.get()
    }

    /// Reserves `bytes` if they fit with the `dirty` and reserved bytes. Returns the sum of all three.
    pub(super) fn take(&self, dirty: u64, bytes: u64, limit: u64) -> Option<u64> {
        assert!(bytes > 0, "a write has blocks");
        let used = dirty + self.0.get();
        if used > 0 && used + bytes > limit {
            return None;
        }
        self.0.set(self.0.get() + bytes);
        Some(used + bytes)
    }

    pub(super) fn give_back(&self, bytes: u64) {
        let reserved = self.0.get().checked_sub(bytes);
        self.0.set(reserved.expect("reserved and given back in pairs"));
    }
}

/// Space for blocks that are about to become dirty. Released when dropped: the blocks are counted as dirty by then.
#[derive(Debug)]
pub(in crate::shard) struct DirtyPermit<'a> {
    reserved: &'a Reserved,
    room: &'a Notify,
    bytes: u64,
}

impl<'a> DirtyPermit<'a> {
    /// Tasks that wait for `room` check again when it is dropped.
    pub(super) fn new(reserved: &'a Reserved, room: &'a Notify, bytes: u64) -> Self {
        Self {
            reserved,
            room,
            bytes,
        }
    }
}

impl Drop for DirtyPermit<'_> {
    fn drop(&mut self) {
        self.reserved.give_back(self.bytes);
        // The blocks usually take less than was reserved.
        self.room.notify_all();
    }
}
