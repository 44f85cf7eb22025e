//! The regions' part of an index image: see `shard::contents` for the layout.

use super::SegmentLog;
use super::regions::RegionState;
use crate::policy::Ring;

impl SegmentLog {
    /// Bytes of [`SegmentLog::write_image`].
    pub(in crate::shard) fn image_bytes(&self) -> u64 {
        let state = self.state.borrow();
        let rings: u64 = Ring::ALL
            .map(|ring| u64::from(state.regions.ring_len(ring)))
            .iter()
            .sum();
        let open: usize = state
            .open_regions()
            .map(|(_, extents, records)| 16 + extents.len() * 24 + records.len() * 8)
            .sum();
        u64::from(state.regions.len()) * 16 + rings * 4 + open as u64
    }

    /// The numbers of regions, of open regions, and of full ones of each ring.
    pub(in crate::shard) fn image_counts(&self) -> [u32; 4] {
        let state = self.state.borrow();
        [
            state.regions.len(),
            state.open_regions().count() as u32,
            state.regions.ring_len(Ring::Probation),
            state.regions.ring_len(Ring::Main),
        ]
    }

    /// Appends regions, rings and open regions.
    pub(in crate::shard) fn write_image(&self, out: &mut Vec<u8>) {
        let state = self.state.borrow();
        for region in state.regions.iter() {
            let code = match region.state {
                RegionState::Free | RegionState::Reclaiming => 0,
                RegionState::Open => 1,
                RegionState::Full => 2,
            };
            out.extend_from_slice(&[code, region.ring.number(), 0, 0]);
            out.extend_from_slice(&region.used.to_le_bytes());
            out.extend_from_slice(&region.fill.0.to_le_bytes());
        }
        for number in Ring::ALL.into_iter().flat_map(|ring| state.regions.ring(ring)) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for (number, extents, records) in state.open_regions() {
            for count in [number, extents.len() as u32, records.len() as u32, 0] {
                out.extend_from_slice(&count.to_le_bytes());
            }
            for extent in extents {
                out.extend_from_slice(&extent.offset.to_le_bytes());
                out.extend_from_slice(&extent.len.to_le_bytes());
                out.extend_from_slice(&extent.sequence.0.to_le_bytes());
                out.extend_from_slice(&extent.epoch.0.to_le_bytes());
                out.extend_from_slice(&u32::from(extent.record_count).to_le_bytes());
            }
            for record in records {
                out.extend_from_slice(&record.to_le_bytes());
            }
        }
    }
}
