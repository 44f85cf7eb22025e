//! The open regions' part of an index image: see `shard::contents` for the layout.

use super::SegmentLog;

impl SegmentLog {
    /// Bytes of [`SegmentLog::write_image`].
    pub(in crate::shard) fn image_bytes(&self) -> u64 {
        let state = self.state.borrow();
        let open = state
            .open_regions()
            .map(|(_, extents, records)| 16 + extents.len() * 24 + records.len() * 8);
        open.sum::<usize>() as u64
    }

    /// The number of open regions.
    pub(in crate::shard) fn open_count(&self) -> u32 {
        self.state.borrow().open_regions().count() as u32
    }

    /// Appends the open regions. The contents of other regions are in the manifest.
    pub(in crate::shard) fn write_image(&self, out: &mut Vec<u8>) {
        let state = self.state.borrow();
        for (number, extents, records) in state.open_regions() {
            for count in [number, extents.len() as u32, records.len() as u32, 0] {
                out.extend_from_slice(&count.to_le_bytes());
            }
            for extent in extents {
                out.extend_from_slice(&extent.offset.to_le_bytes());
                out.extend_from_slice(&extent.len.to_le_bytes());
                out.extend_from_slice(&extent.sequence.0.to_le_bytes());
                out.extend_from_slice(&extent.epoch.0.to_le_bytes());
                out.extend_from_slice(&extent.record_count.to_le_bytes());
                out.extend_from_slice(&extent.header_bytes.to_le_bytes());
            }
            for record in records {
                out.extend_from_slice(&record.to_le_bytes());
            }
        }
    }
}
