//! Addresses as types: a block, a place in a shard's log.

use serde::Serialize;

/// Bytes of a block: the unit of lookup and of compression.
pub const BLOCK_BYTES: usize = 4096;
/// Blocks of one stripe, the unit by which blocks map to shards.
pub const STRIPE_BLOCKS: u64 = crate::volume::STRIPE_BYTES / BLOCK_BYTES as u64;
/// Granularity of places in the log, in bytes.
pub const UNIT_BYTES: u64 = 8;

/// A 4 KiB block of the exported device, counted from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct BlockNumber(pub u64);

impl BlockNumber {
    /// Largest number a record on the cache device can name (40 bits: 4 PiB).
    pub const MAX: Self = Self((1 << 40) - 1);

    /// Byte offset on the exported device.
    #[must_use]
    pub fn offset(self) -> u64 {
        self.0 * BLOCK_BYTES as u64
    }

    /// The shard that owns the block, and the block's number inside it (dense within the shard).
    #[must_use]
    pub fn in_shard(self, shard_count: u32) -> (u32, LocalBlock) {
        let (stripe, within) = (self.0 / STRIPE_BLOCKS, self.0 % STRIPE_BLOCKS);
        let shards = u64::from(shard_count);
        (
            (stripe % shards) as u32,
            LocalBlock((stripe / shards) * STRIPE_BLOCKS + within),
        )
    }
}

/// A block's number inside its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalBlock(pub u64);

impl LocalBlock {
    /// The block of the exported device.
    #[must_use]
    pub fn global(self, shard: u32, shard_count: u32) -> BlockNumber {
        let (stripe, within) = (self.0 / STRIPE_BLOCKS, self.0 % STRIPE_BLOCKS);
        BlockNumber((stripe * u64::from(shard_count) + u64::from(shard)) * STRIPE_BLOCKS + within)
    }
}

/// A place in a shard's part of the cache device, in units of [`UNIT_BYTES`] from the part's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location(pub u64);

impl Location {
    /// Largest location an index entry can hold (37 bits: 1 TiB a shard).
    pub const MAX: Self = Self((1 << 37) - 1);

    /// The location at byte `offset` of the shard's part.
    ///
    /// # Panics
    /// If `offset` is not a multiple of [`UNIT_BYTES`].
    #[must_use]
    pub fn at(offset: u64) -> Self {
        assert!(
            offset.is_multiple_of(UNIT_BYTES),
            "offset {offset} is not a multiple of {UNIT_BYTES}"
        );
        Self(offset / UNIT_BYTES)
    }

    /// Byte offset in the shard's part.
    #[must_use]
    pub fn offset(self) -> u64 {
        self.0 * UNIT_BYTES
    }
}

/// Order of extents within a shard. Grows for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Sequence(pub u64);

impl Sequence {
    /// Largest one that is taken over from a device: far from the end of the numbers, so that none overflows.
    pub const MAX_READ: Self = Self(u64::MAX / 2);

    /// The first one of an opening: above all that were used in those before it.
    #[must_use]
    pub const fn first_of(epoch: Epoch) -> Self {
        Self((epoch.0 as u64) << 32)
    }
}

/// One opening of the cache, from serve to stop or crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Epoch(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_map_to_shards_and_back() {
        for shards in [1, 2, 3, 8] {
            for block in (0..20_000).step_by(37) {
                let (shard, local) = BlockNumber(block).in_shard(shards);
                assert!(shard < shards);
                assert_eq!(local.global(shard, shards), BlockNumber(block));
            }
        }
    }
}
