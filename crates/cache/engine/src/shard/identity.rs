//! The constants of a shard while it is open: its identity, and its part of the cache device.

use super::region_reader::RegionPlace;
use crate::format::geometry::Geometry;
use crate::format::layout::Layout;
use crate::settings::AfterCrash;
use crate::units::{BlockNumber, Epoch, LocalBlock};

/// The properties of a shard that do not change while it is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardIdentity {
    pub(super) number: u32,
    pub(super) layout: Layout,
    /// The sizes at the opening. The log knows how many regions there are now, and the origin its length.
    pub(super) opened: Geometry,
    /// First four bytes of the cache's UUID.
    pub(super) cache_id: u32,
    /// Epoch of this opening.
    pub(super) epoch: Epoch,
    /// The first epoch whose log and marks are valid.
    pub(super) valid_from: Epoch,
    /// Whether earlier openings may have left dirty blocks.
    pub(super) may_be_dirty: bool,
    /// State of the cache after a crash.
    pub(super) after_crash: AfterCrash,
    /// Memory for a paged index and all else that grows with the shard. `None`: the index is a table.
    pub(super) index_memory: Option<u64>,
}

impl ShardIdentity {
    /// The number of a block on the exported device.
    pub(super) fn global(&self, block: LocalBlock) -> BlockNumber {
        block.global(self.number, self.layout.shard_count)
    }

    /// The number of a block within this shard.
    pub(super) fn local(&self, block: BlockNumber) -> LocalBlock {
        let (shard, local) = block.in_shard(self.layout.shard_count);
        assert!(shard == self.number, "a block of shard {shard}");
        local
    }

    /// A region, for reading it.
    pub(super) fn region(&self, number: u32) -> RegionPlace<'_> {
        RegionPlace {
            layout: &self.layout,
            cache_id: self.cache_id,
            shard: self.number,
            number,
        }
    }

    /// Start of a region on the cache device.
    pub(super) fn position_of(&self, region: u32) -> u64 {
        self.layout.region_offset(self.number, region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::GeometryOptions;

    #[test]
    fn blocks_and_regions_of_the_second_shard() {
        let wish = GeometryOptions {
            shard_count: Some(2),
            ..GeometryOptions::default()
        };
        let opened = Geometry::plan(32 << 20, 512, 64 << 20, wish).expect("fits");
        let id = ShardIdentity {
            number: 1,
            layout: opened.layout,
            opened,
            cache_id: 7,
            epoch: Epoch(1),
            valid_from: Epoch(1),
            may_be_dirty: false,
            after_crash: AfterCrash::Warm,
            index_memory: None,
        };
        let block = LocalBlock(5);
        assert_eq!(id.local(id.global(block)), block);
        assert_ne!(id.global(block).0, block.0);
        assert_eq!(
            id.position_of(2) - id.position_of(0),
            4 * id.layout.region_bytes,
            "the regions of both shards alternate"
        );
    }
}
