//! The layout of a cache device.
//!
//! ```text
//! 0        superblock, slot 0 (64 KiB, of which 8 KiB are in use with one volume)
//! 64 KiB   superblock, slot 1
//! 128 KiB  shard states, one 4 KiB page a shard
//!          manifest, twice for each shard, whole pages
//!          intent bitmap, 512-byte sectors, whole pages a shard
//!          (rounded up to 64 KiB)
//!          shard 0: regions; shard 1: regions; ...
//! ```

use crate::format::FormatError;
use crate::format::intent::INTENT_STRIPES;
use crate::format::manifest::{REGION_BYTES_MAX, regions_per_sector};
use crate::units::{BLOCK_BYTES, BlockNumber, LocalBlock, Location};
use crate::volume::STRIPE_BYTES;

/// Byte offsets of the two superblock slots.
pub const SUPERBLOCK_SLOTS: [u64; 2] = [0, 64 << 10];
/// Bytes of a page: the first part of a superblock, and a shard state.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a superblock in use: a page, and the strings of its volumes.
pub const SUPERBLOCK_BYTES: usize = 2 * PAGE_BYTES;
const SHARD_STATES_OFFSET: u64 = 128 << 10;
const AREA_ALIGNMENT: u64 = 64 << 10;

/// Most shards a cache can have.
pub const SHARDS_MAX: u32 = 256;
/// Fewest regions of a shard: two open, two free, and two to reclaim.
pub const REGIONS_MIN: u32 = 6;
/// Most regions of a shard.
pub const REGIONS_MAX: u32 = 1 << 20;
/// Smallest and largest extent, in bytes.
pub const EXTENT_BYTES: std::ops::RangeInclusive<u32> = (32 << 10)..=(256 << 10);
/// Smallest and largest region, in bytes.
pub const REGION_BYTES: std::ops::RangeInclusive<u64> = (128 << 10)..=(256 << 20);
const _: () = assert!(*REGION_BYTES.end() <= REGION_BYTES_MAX);
/// Most records of a region for each 4 KiB of it: limits the index for any data.
pub const RECORDS_PER_BLOCK_MAX: u64 = 8;

/// The layout of a cache device. Fixed when the cache is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the cache device that the cache uses.
    pub device_len: u64,
    /// Granularity of writes: 512 or 4096 bytes.
    pub sector_bytes: u32,
    /// Bytes of a full extent.
    pub extent_bytes: u32,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Number of shards.
    pub shard_count: u32,
    /// Regions of each shard.
    pub regions_per_shard: u32,
    /// Byte size of the origin that the intent bitmap covers.
    pub origin_len: u64,
}

/// Sizes that the user asked for; `None` selects the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct GeometryOptions {
    /// Bytes of a full extent.
    pub extent_bytes: Option<u32>,
    /// Bytes of a region.
    pub region_bytes: Option<u64>,
    /// Number of shards.
    pub shard_count: Option<u32>,
}

impl Geometry {
    /// Plans the layout of a cache on a device of `device_len` bytes.
    ///
    /// Defaults: 64 KiB extents; up to 8 shards of at least 64 MiB; regions of a 128th of a shard, between 256 KiB and 16
    /// MiB.
    ///
    /// # Errors
    /// [`FormatError::Field`] if an option cannot be met or the device is too small; it names the accepted values.
    pub fn plan(
        device_len: u64,
        sector_bytes: u32,
        origin_len: u64,
        wish: GeometryOptions,
    ) -> Result<Self, FormatError> {
        let extent_bytes = wish.extent_bytes.unwrap_or(64 << 10);
        let shard_count = wish.shard_count.unwrap_or_else(|| {
            ((device_len / (64 << 20)).clamp(1, 8) as u32)
                .next_power_of_two()
                .min(8)
        });
        let mut geometry = Self {
            device_len,
            sector_bytes,
            extent_bytes,
            region_bytes: 0,
            shard_count,
            regions_per_shard: 0,
            origin_len,
        };
        if shard_count == 0 || shard_count > SHARDS_MAX {
            return Err(FormatError::field(
                "geometry",
                "shards",
                format!("1 to {SHARDS_MAX}"),
                shard_count,
            ));
        }
        let shards = u64::from(shard_count);
        let room = device_len.saturating_sub(geometry.data_offset()) / shards;
        let floor = (256 << 10).max(u64::from(extent_bytes) * 4);
        geometry.region_bytes = wish.region_bytes.unwrap_or_else(|| {
            let share = (room / 128).max(1);
            let power = 1u64 << (63 - share.leading_zeros());
            power.clamp(floor, (16 << 20).max(floor))
        });
        let regions = room.checked_div(geometry.region_bytes).unwrap_or(0);
        geometry.regions_per_shard = regions.min(u64::from(REGIONS_MAX)) as u32;
        // The manifest grows with the number of regions, and takes space from them.
        let needed = |geometry: &Self| geometry.data_offset() + geometry.shard_len() * shards;
        while geometry.regions_per_shard > 0 && needed(&geometry) > device_len {
            geometry.regions_per_shard -= 1;
        }
        geometry.check(device_len)?;
        Ok(geometry)
    }

    /// Checks every field against the others and against a device of `device_len` bytes.
    ///
    /// # Errors
    /// [`FormatError::Field`] for the first invalid field.
    pub fn check(&self, device_len: u64) -> Result<(), FormatError> {
        let fail = |field, expected: String, found: String| {
            Err(FormatError::field("geometry", field, expected, found))
        };
        if !matches!(self.sector_bytes, 512 | 4096) {
            return fail("sector size", "512 or 4096".into(), self.sector_bytes.to_string());
        }
        if !EXTENT_BYTES.contains(&self.extent_bytes) || !self.extent_bytes.is_power_of_two() {
            return fail(
                "extent size",
                "a power of two from 32 KiB to 256 KiB".into(),
                self.extent_bytes.to_string(),
            );
        }
        if !REGION_BYTES.contains(&self.region_bytes)
            || !self.region_bytes.is_power_of_two()
            || self.region_bytes < u64::from(self.extent_bytes) * 4
        {
            return fail(
                "region size",
                "a power of two from 128 KiB to 256 MiB, at least four extents".into(),
                self.region_bytes.to_string(),
            );
        }
        if self.shard_count == 0 || self.shard_count > SHARDS_MAX {
            return fail(
                "shards",
                format!("1 to {SHARDS_MAX}"),
                self.shard_count.to_string(),
            );
        }
        if self.origin_len == 0 || self.origin_len > BlockNumber::MAX.offset() {
            return fail(
                "origin size",
                format!("1 to {} bytes", BlockNumber::MAX.offset()),
                self.origin_len.to_string(),
            );
        }
        if self.regions_per_shard < REGIONS_MIN || self.regions_per_shard > REGIONS_MAX {
            return fail(
                "regions a shard",
                format!(
                    "{REGIONS_MIN} to {REGIONS_MAX} (use a larger cache device, a smaller --region-size or fewer --shards)"
                ),
                self.regions_per_shard.to_string(),
            );
        }
        if self.shard_len() > Location::MAX.offset() {
            return fail(
                "shard size",
                format!("at most {} bytes (use more --shards)", Location::MAX.offset()),
                self.shard_len().to_string(),
            );
        }
        if self.data_offset() + self.shard_len() * u64::from(self.shard_count)
            > device_len.min(self.device_len)
        {
            return fail(
                "device size",
                "room for all the shards".into(),
                format!("{device_len} bytes"),
            );
        }
        Ok(())
    }

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

    /// Sectors of one shard's manifest.
    #[must_use]
    pub fn shard_manifest_sectors(&self) -> u32 {
        self.regions_per_shard
            .div_ceil(regions_per_sector(self.sector_bytes))
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
        assert!(region < self.regions_per_shard);
        region / regions_per_sector(self.sector_bytes)
    }

    /// The regions that a sector of a shard's manifest describes.
    #[must_use]
    pub fn manifest_regions(&self, sector: u32) -> std::ops::Range<u32> {
        let count = regions_per_sector(self.sector_bytes);
        (sector * count).min(self.regions_per_shard)..((sector + 1) * count).min(self.regions_per_shard)
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

    /// Most stripes of the origin that one shard can own.
    #[must_use]
    pub fn local_stripes(&self) -> u64 {
        let stripes = self.origin_len.div_ceil(STRIPE_BYTES);
        stripes.div_ceil(u64::from(self.shard_count))
    }

    /// Byte offset of shard 0's first region.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        (self.intent_offset() + self.intent_len()).next_multiple_of(AREA_ALIGNMENT)
    }

    /// Bytes of one shard's part of the device.
    #[must_use]
    pub fn shard_len(&self) -> u64 {
        self.region_bytes * u64::from(self.regions_per_shard)
    }

    /// Byte offset on the device of a shard's part.
    #[must_use]
    pub fn shard_offset(&self, shard: u32) -> u64 {
        debug_assert!(shard <= self.shard_count);
        self.data_offset() + self.shard_len() * u64::from(shard)
    }

    /// Bytes at the start of an extent for its header and records.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.extent_bytes as usize / 128
    }

    /// Most records of one region.
    #[must_use]
    pub fn region_records_max(&self) -> usize {
        (self.region_bytes / BLOCK_BYTES as u64 * RECORDS_PER_BLOCK_MAX) as usize
    }

    /// Most blocks of the origin that one shard can own: the range of its [`LocalBlock`]s.
    #[must_use]
    pub fn local_blocks(&self) -> LocalBlock {
        LocalBlock(self.local_stripes() * crate::units::STRIPE_BLOCKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_fit_their_devices() {
        for len in [4u64 << 20, 64 << 20, 256 << 20, 10 << 30, 4 << 40] {
            let plan = Geometry::plan(len, 512, 100 << 30, GeometryOptions::default()).expect("fits");
            assert!(plan.shard_offset(plan.shard_count) <= len);
            assert!(plan.regions_per_shard >= REGIONS_MIN);
        }
    }

    #[test]
    fn a_device_that_is_too_small_is_refused() {
        let error = Geometry::plan(1 << 20, 512, 1 << 30, GeometryOptions::default()).expect_err("too small");
        assert!(error.to_string().contains("regions a shard"), "{error}");
    }
}
