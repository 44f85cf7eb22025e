//! The regions of a shard: which are free, which are being filled, and the two rings of full ones.
//!
//! Invariants: a region is in exactly one of: free list, open in one ring, a ring, being reclaimed. `live` is the
//! number of index entries whose place is in the region.

use std::collections::VecDeque;

use crate::policy::Ring;
use crate::units::Sequence;

/// Free regions below which reclaim starts.
pub(crate) const FREE_REGIONS_LOW: usize = 2;
/// Free regions that only reclaim itself may take, so that it can always reinsert.
pub(crate) const FREE_REGIONS_RESERVED: usize = 1;

/// What a region is being used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionState {
    Free,
    /// Being filled, or its last writes are still on their way.
    Open,
    /// In its ring.
    Full,
    Reclaiming,
}

/// One region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) state: RegionState,
    pub(crate) ring: Ring,
    /// Sequence of the first extent of this filling.
    pub(crate) fill: Sequence,
    /// Bytes filled, from the region's start.
    pub(crate) used: u32,
    /// Index entries that lie here.
    pub(crate) live: u32,
    /// Reads of the device in flight: the region must not be discarded under them.
    pub(crate) pins: u32,
    /// Writes in flight.
    pub(crate) writes: u32,
}

impl Region {
    pub(crate) const FREE: Self = Self {
        state: RegionState::Free,
        ring: Ring::Probation,
        fill: Sequence(0),
        used: 0,
        live: 0,
        pins: 0,
        writes: 0,
    };
}

/// All regions of a shard.
#[derive(Debug)]
pub(crate) struct Regions {
    pub(crate) table: Vec<Region>,
    pub(crate) free: VecDeque<u32>,
    /// Full regions, oldest first, by ring number.
    pub(crate) rings: [VecDeque<u32>; 2],
}

impl Regions {
    pub(crate) fn all_free(count: u32) -> Self {
        Self {
            table: vec![Region::FREE; count as usize],
            free: (0..count).collect(),
            rings: [VecDeque::new(), VecDeque::new()],
        }
    }

    pub(crate) fn ring(&mut self, ring: Ring) -> &mut VecDeque<u32> {
        &mut self.rings[usize::from(ring.number())]
    }

    /// Takes a free region for filling. Only reclaim may take the last one.
    pub(crate) fn take(&mut self, ring: Ring, fill: Sequence, for_reclaim: bool) -> Option<u32> {
        let reserved = if for_reclaim { 0 } else { FREE_REGIONS_RESERVED };
        if self.free.len() <= reserved {
            return None;
        }
        let number = self.free.pop_front()?;
        self.table[number as usize] = Region {
            state: RegionState::Open,
            ring,
            fill,
            ..Region::FREE
        };
        Some(number)
    }

    /// A filled region enters its ring once nothing is being written to it.
    pub(crate) fn finish(&mut self, number: u32) {
        let region = &mut self.table[number as usize];
        assert_eq!(region.state, RegionState::Open);
        assert_eq!(region.writes, 0);
        region.state = RegionState::Full;
        let ring = region.ring;
        self.ring(ring).push_back(number);
    }

    /// The oldest region of `ring`, for reclaim.
    pub(crate) fn take_oldest(&mut self, ring: Ring) -> Option<u32> {
        let number = self.ring(ring).pop_front()?;
        self.table[number as usize].state = RegionState::Reclaiming;
        Some(number)
    }

    /// A reclaimed region becomes free.
    pub(crate) fn release(&mut self, number: u32) {
        let region = &mut self.table[number as usize];
        assert_eq!(region.state, RegionState::Reclaiming);
        assert_eq!(
            (region.live, region.pins, region.writes),
            (0, 0, 0),
            "region {number} is still in use"
        );
        *region = Region::FREE;
        self.free.push_back(number);
    }

    /// Regions that `ring` has, the open one included.
    pub(crate) fn count(&self, ring: Ring) -> u64 {
        self.table
            .iter()
            .filter(|r| r.state != RegionState::Free && r.ring == ring)
            .count() as u64
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.table.capacity() * size_of::<Region>()
            + (self.free.capacity() + self.rings.iter().map(VecDeque::capacity).sum::<usize>()) * 4
    }
}
