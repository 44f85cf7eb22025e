//! Where everything lies on a cache device. Nothing here changes while a cache exists, whatever its size.
//!
//! The regions of the shards alternate, so a cache that grows or shrinks gets or loses regions at its end, and no other region
//! moves. The manifest and the intent bitmap have room for a larger cache and a larger origin.

use flaz_codec::DICTIONARIES_MAX;

use crate::format::intent::INTENT_STRIPES;
use crate::format::manifest::regions_per_sector;
use crate::units::{BLOCK_BYTES, LocalBlock, Location, STRIPE_BLOCKS};

use super::geometry::{PAGE_BYTES, RECORDS_PER_BLOCK_MAX};

const SHARD_STATES_OFFSET: u64 = 128 << 10;
/// Most records of a region, whatever its size: its live blocks, four a record at most, are counted in 20 bits.
pub(crate) const REGION_RECORDS_MAX: usize = (1 << 18) - 1;
const AREA_ALIGNMENT: u64 = 64 << 10;
/// The index is divided for a shard of this share of its largest size, with blocks that halve.
const INDEX_SHARE: u64 = 8;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Granularity of writes: 512 or 4096 bytes.
    pub sector_bytes: u32,
    /// Bytes of a full extent.
    pub extent_bytes: u32,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Number of shards.
    pub shard_count: u32,
    /// Most regions of a shard: the manifest has room for them.
    pub regions_max: u32,
    /// Most stripes of the exported device: the intent bitmap has room for them.
    pub stripes_max: u64,
    /// Bytes of the area for index pages, of all shards. 0: there is none, and the index is always in memory.
    pub index_bytes: u64,
    /// Bytes of the space for one dictionary of a shard. 0: there is none.
    pub dictionary_bytes: u32,
}

impl Layout {
    /// Byte offset of a shard's state page.
    #[must_use]
    pub fn shard_state_offset(&self, shard: u32) -> u64 {
        debug_assert!(shard <= self.shard_count, "{shard}");
        SHARD_STATES_OFFSET + u64::from(shard) * PAGE_BYTES as u64
    }

    /// Byte offset of the manifest.
    #[must_use]
    pub fn manifest_offset(&self) -> u64 {
        self.shard_state_offset(self.shard_count)
    }

    /// Sectors of one shard's manifest, with the room for more regions.
    #[must_use]
    pub fn shard_manifest_sectors(&self) -> u32 {
        self.manifest_sectors_of(self.regions_max)
    }

    /// Sectors of one shard's manifest that describe its first `regions` regions.
    #[must_use]
    pub fn manifest_sectors_of(&self, regions: u32) -> u32 {
        regions.div_ceil(regions_per_sector(self.sector_bytes))
    }

    /// Bytes of one copy of a shard's manifest, in whole pages.
    #[must_use]
    pub fn manifest_copy_len(&self) -> u64 {
        (u64::from(self.shard_manifest_sectors()) * u64::from(self.sector_bytes))
            .next_multiple_of(PAGE_BYTES as u64)
    }

    /// Bytes of the manifest: two copies for each shard, one after the other.
    #[must_use]
    pub fn manifest_len(&self) -> u64 {
        2 * self.manifest_copy_len() * u64::from(self.shard_count)
    }

    /// Byte offset of one copy (0 or 1) of a sector of a shard's manifest.
    #[must_use]
    pub fn manifest_sector_offset(&self, shard: u32, sector: u32, copy: usize) -> u64 {
        assert!(shard < self.shard_count && sector < self.shard_manifest_sectors() && copy < 2);
        self.manifest_offset()
            + (2 * u64::from(shard) + copy as u64) * self.manifest_copy_len()
            + u64::from(sector) * u64::from(self.sector_bytes)
    }

    /// The sector of a shard's manifest that describes a region.
    #[must_use]
    pub fn manifest_sector_of(&self, region: u32) -> u32 {
        assert!(region < self.regions_max);
        region / regions_per_sector(self.sector_bytes)
    }

    /// The regions that a sector of a shard's manifest describes, also those that the shard does not have now.
    #[must_use]
    pub fn manifest_regions(&self, sector: u32) -> std::ops::Range<u32> {
        let count = regions_per_sector(self.sector_bytes);
        (sector * count).min(self.regions_max)..((sector + 1) * count).min(self.regions_max)
    }

    /// Number of a sector of a shard's manifest in the whole manifest.
    #[must_use]
    pub fn manifest_sector_number(&self, shard: u32, sector: u32) -> u32 {
        assert!(shard < self.shard_count && sector < self.shard_manifest_sectors());
        shard * self.shard_manifest_sectors() + sector
    }

    /// Byte offset of the intent bitmap.
    #[must_use]
    pub fn intent_offset(&self) -> u64 {
        self.manifest_offset() + self.manifest_len()
    }

    /// Bytes of the intent bitmap: the shards' parts, back to back.
    #[must_use]
    pub fn intent_len(&self) -> u64 {
        self.shard_intent_len() * u64::from(self.shard_count)
    }

    /// Byte offset of one shard's part of the intent bitmap.
    #[must_use]
    pub fn shard_intent_offset(&self, shard: u32) -> u64 {
        debug_assert!(shard <= self.shard_count);
        self.intent_offset() + self.shard_intent_len() * u64::from(shard)
    }

    /// Bytes of one shard's part of the intent bitmap, in whole pages, so that no two shards write the same page.
    #[must_use]
    pub fn shard_intent_len(&self) -> u64 {
        (self.local_stripes().div_ceil(INTENT_STRIPES) * 512).next_multiple_of(PAGE_BYTES as u64)
    }

    /// Most stripes of the exported device that one shard can own.
    #[must_use]
    pub fn local_stripes(&self) -> u64 {
        self.stripes_max.div_ceil(u64::from(self.shard_count))
    }

    /// Most blocks of the exported device that one shard can own: the range of its [`LocalBlock`]s.
    #[must_use]
    pub fn local_blocks(&self) -> LocalBlock {
        LocalBlock(self.local_stripes() * STRIPE_BLOCKS)
    }

    /// Byte offset of the area for index pages.
    #[must_use]
    pub fn index_offset(&self) -> u64 {
        self.intent_offset() + self.intent_len()
    }

    /// Byte offset of one shard's part of the area for index pages.
    #[must_use]
    pub fn shard_index_offset(&self, shard: u32) -> u64 {
        debug_assert!(shard < self.shard_count);
        self.index_offset() + self.shard_index_len() * u64::from(shard)
    }

    /// Bytes of one shard's part of the area for index pages.
    #[must_use]
    pub fn shard_index_len(&self) -> u64 {
        self.index_bytes / u64::from(self.shard_count)
    }

    /// Byte offset of the space for dictionaries.
    #[must_use]
    pub fn dictionaries_offset(&self) -> u64 {
        self.index_offset() + self.index_bytes
    }

    /// Byte offset of dictionary `number` of a shard.
    #[must_use]
    pub fn dictionary_offset(&self, shard: u32, number: u8) -> u64 {
        debug_assert!(shard < self.shard_count && usize::from(number) < DICTIONARIES_MAX);
        let before = u64::from(shard) * DICTIONARIES_MAX as u64 + u64::from(number);
        self.dictionaries_offset() + before * u64::from(self.dictionary_bytes)
    }

    /// Bytes of the space for all dictionaries of all shards.
    #[must_use]
    pub fn dictionaries_len(&self) -> u64 {
        u64::from(self.dictionary_bytes) * DICTIONARIES_MAX as u64 * u64::from(self.shard_count)
    }

    /// Byte offset of the first region.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        (self.dictionaries_offset() + self.dictionaries_len()).next_multiple_of(AREA_ALIGNMENT)
    }

    /// Byte offset of a region.
    #[must_use]
    pub fn region_offset(&self, shard: u32, region: u32) -> u64 {
        debug_assert!(
            shard < self.shard_count && region <= self.regions_max,
            "region {region} of shard {shard}"
        );
        self.data_offset()
            + (u64::from(region) * u64::from(self.shard_count) + u64::from(shard)) * self.region_bytes
    }

    /// The region of a shard that a location is in.
    #[must_use]
    pub fn region_of(&self, location: Location) -> u32 {
        (location.offset() / self.region_bytes) as u32
    }

    /// Byte offset of a location of a shard.
    #[must_use]
    pub fn position(&self, shard: u32, location: Location) -> u64 {
        self.region_offset(shard, self.region_of(location)) + location.offset() % self.region_bytes
    }

    /// Most bytes at the start of an extent for its header and records, and least bytes of an extent.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.extent_bytes as usize / 128
    }

    /// Most records of one region.
    #[must_use]
    pub fn region_records_max(&self) -> usize {
        let records = (self.region_bytes / BLOCK_BYTES as u64 * RECORDS_PER_BLOCK_MAX) as usize;
        records.min(REGION_RECORDS_MAX)
    }

    /// The number of blocks of a shard that its index is divided for.
    #[must_use]
    pub fn blocks_planned(&self) -> u64 {
        let largest = self.region_bytes * u64::from(self.regions_max) / BLOCK_BYTES as u64;
        2 * largest / INDEX_SHARE
    }
}
