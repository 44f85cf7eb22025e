//! The layout of a cache device, and the sizes of a cache.
//!
//! ```text
//! 0        superblock, slot 0 (64 KiB, of which 8 KiB are in use with one volume)
//! 64 KiB   superblock, slot 1
//! 128 KiB  shard states, one 4 KiB page a shard
//!          manifest, twice for each shard, whole pages
//!          intent bitmap, 512-byte sectors, whole pages a shard
//!          area for index pages, if the cache has one: the parts of the shards, one after the other
//!          (rounded up to 64 KiB)
//!          region 0 of shard 0, of shard 1, ...; region 1 of shard 0, of shard 1, ...
//! ```

use std::ops::{Deref, RangeInclusive};

use crate::format::FormatError;
use crate::format::layout::Layout;
use crate::format::manifest::REGION_BYTES_MAX;
use crate::planted::is_index_paged;
use crate::units::{BlockNumber, Location};
use crate::volume::STRIPE_BYTES;

/// Byte offsets of the two superblock slots.
pub const SUPERBLOCK_SLOTS: [u64; 2] = [0, 64 << 10];
/// Bytes of a page: the first part of a superblock, and a shard state.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a superblock in use: a page, and the strings of its volumes.
pub const SUPERBLOCK_BYTES: usize = 2 * PAGE_BYTES;

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
/// Shards of a cache, if not given: as many as this, of at least these bytes and regions. A cache that is too large for them
/// has more.
const SHARDS_DEFAULT_MAX: u32 = 8;
const SHARD_BYTES_DEFAULT_MIN: u64 = 64 << 20;
const SHARD_REGIONS_DEFAULT_MIN: u64 = 16;
/// Size of a region, if not given: this share of a shard, within these limits.
const REGION_SHARE_DEFAULT: u64 = 128;
const REGION_BYTES_DEFAULT: std::ops::RangeInclusive<u64> = (256 << 10)..=(16 << 20);
/// Most records of a region for each 4 KiB of it: limits the index for any data.
pub const RECORDS_PER_BLOCK_MAX: u64 = 8;

/// The area for index pages takes this share of the cache: 16 bytes for each block, if blocks are stored in a quarter of their size.
/// Pages are at least half full in the long run, with 8 bytes for each entry.
const INDEX_AREA_SHARE: u64 = 64;

/// The shards of a volume's cache, if not given, are so many that this many such volumes have space on a shared device.
pub const VOLUMES_PLANNED: u32 = 64;
/// A cache can grow to this many times the size with which it was created.
pub const GROWTH_MAX: u32 = 8;
/// An origin can grow to as many times its size, or to as many times the size of the cache if that is more ...
const ORIGIN_GROWTH: u64 = 4;
const ORIGIN_TO_CACHE: u64 = 64;
/// The same of a volume's cache on a shared device: each volume's index has empty slots for that.
const ORIGIN_TO_SHARED: u64 = 4;
/// ... but only to as many times the size of the cache, unless it is larger from the beginning: the index has more empty slots
/// for larger origins.
const ORIGIN_TO_CACHE_MAX: u64 = 1024;

/// Bytes of the space for a dictionary, unless there is none.
const DICTIONARY_BYTES: RangeInclusive<u32> = 4 << 10..=256 << 10;
/// Without a wish, no less.
const DICTIONARY_BYTES_DEFAULT_MIN: u32 = 8 << 10;
/// Each of the two dictionaries of a shard has at most this share of its space.
const DICTIONARY_SHARE: u64 = 256;

/// The layout of a cache device, which is fixed when the cache is created, and the sizes of the cache, which may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Where everything lies.
    pub layout: Layout,
    /// Bytes of the cache device that the cache uses.
    pub device_len: u64,
    /// Regions of each shard.
    pub regions_per_shard: u32,
    /// Bytes of the origin that are served.
    pub origin_len: u64,
}

impl Deref for Geometry {
    type Target = Layout;

    fn deref(&self) -> &Layout {
        &self.layout
    }
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
    /// Bytes of memory for the index when the cache is served: lay out an area for the pages that do not fit.
    pub index_memory: Option<u64>,
    /// Bytes of the space for one dictionary of a shard: 0, or a power of two from 4 to 256 KiB.
    pub dictionary_bytes: Option<u32>,
    /// Number of threads that are to drive the shards: no more shards than that are planned for them, because each shard packs
    /// the writes in flight into extents of its own.
    pub threads: Option<u32>,
}

/// A cache device that several volumes share, as one of them sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedSpace {
    /// Bytes of a chunk: a region of each volume's cache.
    pub chunk_bytes: u64,
    /// Number of chunks of the whole device.
    pub chunks: u32,
}

impl Geometry {
    /// Plans the layout of a cache on a device of `device_len` bytes.
    ///
    /// Defaults: 64 KiB extents; as many shards as threads (8 at most) of at least 64 MiB and 16 regions, and more if a shard would
    /// be larger than records can address; regions of a 128th of a shard, between 256 KiB and 16 MiB; for each of the two dictionaries of
    /// a shard a 256th of it, at most 256 KiB.
    ///
    /// # Errors
    /// [`FormatError::Field`] if an option cannot be met, or the device is too small or too large; it names the accepted
    /// values.
    pub fn plan(
        device_len: u64,
        sector_bytes: u32,
        origin_len: u64,
        wish: GeometryOptions,
    ) -> Result<Self, FormatError> {
        if is_index_paged() && wish.index_memory.is_none() {
            // For tests: each cache that has space for it has an area.
            let paged = GeometryOptions {
                index_memory: Some(0),
                ..wish
            };
            if let Ok(plan) = Self::plan(device_len, sector_bytes, origin_len, paged) {
                return Ok(plan);
            }
        }
        let least = Self::smallest(sector_bytes, origin_len, wish);
        least.check_options()?;
        let mut roomy = least;
        roomy.layout.stripes_max = stripes_room(origin_len, device_len, ORIGIN_TO_CACHE);
        // The smallest devices have no space for a larger bitmap, or for dictionaries.
        roomy
            .fill(device_len, wish)
            .or_else(|_| least.fill(device_len, wish))
            .or_else(|refused| match wish.dictionary_bytes {
                None => least.fill(
                    device_len,
                    GeometryOptions {
                        dictionary_bytes: Some(0),
                        ..wish
                    },
                ),
                Some(_) => Err(refused),
            })
    }

    /// Plans the layout of the cache of one volume on a device that several share. Its own device has the metadata first, and
    /// then all chunks of the shared one: a region each, of which only some have space at a time. Both sizes follow from the
    /// layout: [`Geometry::device_len`], and [`Layout::data_offset`].
    ///
    /// Defaults: 64 KiB extents; as many shards as threads, 8 at most, but so few that the least regions of [`VOLUMES_PLANNED`] such
    /// volumes take at most half of the chunks, and more if a shard would be larger than records can address.
    ///
    /// # Errors
    /// [`FormatError::Field`] if an option cannot be met, or there are too few or too many chunks; it names the accepted values.
    pub fn plan_shared(
        space: SharedSpace,
        sector_bytes: u32,
        origin_len: u64,
        wish: GeometryOptions,
    ) -> Result<Self, FormatError> {
        let SharedSpace { chunk_bytes, chunks } = space;
        if wish.region_bytes.is_some_and(|region| region != chunk_bytes) {
            let expected = format!("{chunk_bytes} bytes, as the chunks of the cache device");
            return fail(
                "region size",
                expected,
                wish.region_bytes.unwrap_or(0).to_string(),
            );
        }
        let wish = GeometryOptions {
            region_bytes: Some(chunk_bytes),
            ..wish
        };
        let mut plan = Self::smallest(sector_bytes, origin_len, wish);
        plan.check_options()?;
        let limit = regions_limit(chunk_bytes);
        plan.layout.shard_count = wish
            .shard_count
            .unwrap_or_else(|| shards_shared(chunks, limit, wish.threads));
        let regions = chunks / plan.shard_count;
        if regions < REGIONS_MIN {
            let expected = format!(
                "at least {REGIONS_MIN}, which needs {} chunks (use a larger cache device, smaller chunks or fewer --shards)",
                REGIONS_MIN * plan.shard_count
            );
            return fail("regions a shard", expected, regions.to_string());
        }
        if regions > limit {
            let expected = format!("at most {limit} (use more --shards, or larger chunks)");
            return fail("regions a shard", expected, regions.to_string());
        }
        let planned = chunk_bytes * u64::from(chunks / VOLUMES_PLANNED);
        plan.layout.dictionary_bytes = plan.dictionary_bytes_for(planned, wish);
        plan.regions_per_shard = regions;
        plan.layout.regions_max = regions.saturating_mul(GROWTH_MAX).min(limit);
        plan.layout.stripes_max = stripes_room(origin_len, chunk_bytes * u64::from(chunks), ORIGIN_TO_SHARED);
        plan.device_len = plan.data_offset() + chunk_bytes * u64::from(chunks);
        plan.check(plan.device_len)?;
        Ok(plan)
    }

    /// The layout with as many regions as a device has space for.
    fn fill(mut self, device_len: u64, wish: GeometryOptions) -> Result<Self, FormatError> {
        self.device_len = device_len;
        if device_len < self.end() {
            return Err(too_small(&self, wish));
        }
        self.regions_per_shard = 0;
        self.layout.regions_max = 0;
        self.layout.shard_count = wish.shard_count.unwrap_or_else(|| self.default_shards(wish));
        if wish.index_memory.is_some() {
            let of_each = device_len / INDEX_AREA_SHARE / u64::from(self.shard_count);
            self.layout.index_bytes =
                of_each.next_multiple_of(PAGE_BYTES as u64) * u64::from(self.shard_count);
        }
        self.layout.dictionary_bytes = self.dictionary_bytes_for(device_len, wish);
        let room = self.room() / u64::from(self.shard_count);
        if wish.region_bytes.is_none() {
            let share = (room / REGION_SHARE_DEFAULT).max(1);
            let (floor, ceiling) = region_bytes_default(self.extent_bytes);
            self.layout.region_bytes = (1u64 << share.ilog2()).clamp(floor, ceiling);
        }
        let regions = room / self.region_bytes;
        let limit = regions_limit(self.region_bytes);
        self.regions_per_shard = regions.min(limit.into()) as u32;
        self.layout.regions_max = self.regions_per_shard.saturating_mul(GROWTH_MAX).min(limit);
        let unused = device_len.saturating_sub(self.end());
        if regions > limit.into() && unused >= self.region_bytes * u64::from(self.shard_count) {
            return Err(too_large(&self, wish));
        }
        // The manifest grows with the number of regions, and takes space from them.
        while self.regions_per_shard > 0 && self.end() > device_len {
            self.regions_per_shard -= 1;
        }
        self.check(device_len)?;
        Ok(self)
    }

    /// Smallest device in bytes for which [`Geometry::plan`] finds a layout. The options must be valid.
    #[must_use]
    pub fn device_len_min(sector_bytes: u32, origin_len: u64, wish: GeometryOptions) -> u64 {
        Self::smallest(sector_bytes, origin_len, wish).end()
    }

    /// The smallest layout with these options, valid or not.
    fn smallest(sector_bytes: u32, origin_len: u64, wish: GeometryOptions) -> Self {
        let extent_bytes = wish.extent_bytes.unwrap_or(64 << 10);
        Self {
            layout: Layout {
                sector_bytes,
                extent_bytes,
                region_bytes: wish.region_bytes.unwrap_or(region_bytes_default(extent_bytes).0),
                shard_count: wish.shard_count.unwrap_or(1),
                regions_max: REGIONS_MIN * GROWTH_MAX,
                stripes_max: origin_len.div_ceil(STRIPE_BYTES),
                index_bytes: 0,
                dictionary_bytes: 0,
            },
            device_len: 0,
            regions_per_shard: REGIONS_MIN,
            origin_len,
        }
    }

    /// Shards of a cache whose number of shards is not given, of a layout without regions.
    fn default_shards(&self, wish: GeometryOptions) -> u32 {
        let room_of_each = |shard_count| {
            let layout = Layout {
                shard_count,
                ..self.layout
            };
            Self { layout, ..*self }.room() / u64::from(shard_count)
        };
        let mut shards = 1;
        while shards < shards_default_max(wish.threads)
            && self.device_len / u64::from(2 * shards) >= SHARD_BYTES_DEFAULT_MIN
            && room_of_each(2 * shards) >= self.region_bytes * SHARD_REGIONS_DEFAULT_MIN
        {
            shards *= 2;
        }
        let region_bytes = wish
            .region_bytes
            .unwrap_or(region_bytes_default(self.extent_bytes).1);
        let limit = u64::from(regions_limit(region_bytes));
        while shards < SHARDS_MAX && room_of_each(shards) / region_bytes > limit {
            shards *= 2;
        }
        shards
    }

    /// Bytes of the space for one dictionary of a cache of so many bytes.
    fn dictionary_bytes_for(&self, cache_bytes: u64, wish: GeometryOptions) -> u32 {
        wish.dictionary_bytes.unwrap_or_else(|| {
            let share = cache_bytes / DICTIONARY_SHARE / u64::from(self.shard_count);
            let most = share.min(u64::from(*DICTIONARY_BYTES.end())) as u32;
            match most.checked_ilog2().map_or(0, |log| 1 << log) {
                bytes if bytes >= DICTIONARY_BYTES_DEFAULT_MIN => bytes,
                _ => 0,
            }
        })
    }

    /// Bytes of the device behind the metadata.
    fn room(&self) -> u64 {
        self.device_len.saturating_sub(self.data_offset())
    }

    /// Where the last region ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.region_offset(0, self.regions_per_shard)
    }

    /// The same cache on `device_len` bytes of its device: with more regions, or with fewer.
    ///
    /// # Errors
    /// The sizes that it can have, in bytes.
    pub fn resized(&self, device_len: u64) -> Result<Self, RangeInclusive<u64>> {
        let row = self.region_bytes * u64::from(self.shard_count);
        let least = self.region_offset(0, REGIONS_MIN);
        // So many times any size that gave the cache its regions; what the metadata takes of it is not used.
        let at_creation = self.region_offset(0, self.regions_max.div_ceil(GROWTH_MAX)) + row - 1;
        let most = at_creation.saturating_mul(u64::from(GROWTH_MAX));
        if !(least..=most).contains(&device_len) {
            return Err(least..=most);
        }
        let regions = (device_len - self.data_offset()) / row;
        Ok(Self {
            device_len,
            regions_per_shard: regions.min(self.regions_max.into()) as u32,
            ..*self
        })
    }

    /// Bytes of all regions of one shard.
    #[must_use]
    pub fn shard_len(&self) -> u64 {
        self.region_bytes * u64::from(self.regions_per_shard)
    }

    /// The largest origin that the layout has room for, in bytes.
    #[must_use]
    pub fn origin_len_max(&self) -> u64 {
        self.stripes_max
            .saturating_mul(STRIPE_BYTES)
            .min(BlockNumber::MAX.offset())
    }

    /// Checks every field against the others and against a device of `device_len` bytes.
    ///
    /// # Errors
    /// [`FormatError::Field`] for the first invalid field.
    pub fn check(&self, device_len: u64) -> Result<(), FormatError> {
        self.check_options()?;
        // Calculations with it must not overflow.
        let area = self.index_bytes.div_ceil(u64::from(self.shard_count)) / PAGE_BYTES as u64;
        let whole = PAGE_BYTES as u64 * u64::from(self.shard_count);
        if self.index_bytes > self.device_len.min(device_len)
            || !self.index_bytes.is_multiple_of(whole)
            || area > u64::from(u32::MAX)
        {
            return fail(
                "bytes of index pages",
                format!("a multiple of {whole}, less than the device"),
                self.index_bytes.to_string(),
            );
        }
        let is_size =
            DICTIONARY_BYTES.contains(&self.dictionary_bytes) && self.dictionary_bytes.is_power_of_two();
        if self.dictionary_bytes != 0 && !is_size {
            let (least, most) = (DICTIONARY_BYTES.start(), DICTIONARY_BYTES.end());
            return fail(
                "bytes of a dictionary",
                format!("0, or a power of two from {least} to {most}"),
                self.dictionary_bytes.to_string(),
            );
        }
        if self.regions_per_shard < REGIONS_MIN || self.regions_per_shard > REGIONS_MAX {
            return fail(
                "regions a shard",
                format!("{REGIONS_MIN} to {REGIONS_MAX}"),
                self.regions_per_shard.to_string(),
            );
        }
        let limit = regions_limit(self.region_bytes);
        if self.regions_max < self.regions_per_shard || self.regions_max > limit {
            return fail(
                "most regions a shard",
                format!("{} to {limit}", self.regions_per_shard),
                self.regions_max.to_string(),
            );
        }
        // Memory is taken for them: no more than a cache of this size can need.
        let largest = self.region_bytes * u64::from(self.regions_max) * u64::from(self.shard_count);
        let room = (2 * ORIGIN_TO_CACHE_MAX).saturating_mul(largest);
        let room = room.clamp(self.origin_len, BlockNumber::MAX.offset());
        let stripes = self.origin_len.div_ceil(STRIPE_BYTES)..=room.div_ceil(STRIPE_BYTES);
        if !stripes.contains(&self.stripes_max) {
            return fail(
                "most stripes",
                format!("{} to {}", stripes.start(), stripes.end()),
                self.stripes_max.to_string(),
            );
        }
        if self.end() > device_len.min(self.device_len) {
            // The superblock is of a larger device.
            return fail(
                "device size",
                format!(
                    "at least {} bytes: the cache was created on a device of {} bytes, and this one is truncated or another",
                    self.end(),
                    self.device_len
                ),
                format!("{device_len} bytes"),
            );
        }
        Ok(())
    }

    /// Checks the fields that do not depend on the size of the device.
    fn check_options(&self) -> Result<(), FormatError> {
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
        Ok(())
    }
}

fn fail<T>(field: &'static str, expected: String, found: String) -> Result<T, FormatError> {
    Err(FormatError::field("geometry", field, expected, found))
}

/// Stripes that a layout has room for: those of `origin_len` bytes that have grown, or of `ratio` times a cache of `cache_len` bytes.
fn stripes_room(origin_len: u64, cache_len: u64, ratio: u64) -> u64 {
    (ORIGIN_GROWTH.saturating_mul(origin_len))
        .max(ratio.saturating_mul(cache_len))
        .min(ORIGIN_TO_CACHE_MAX.saturating_mul(cache_len))
        .clamp(origin_len, BlockNumber::MAX.offset())
        .div_ceil(STRIPE_BYTES)
}

/// Most shards of a cache whose number of shards is not given, unless it is too large for them: a power of two, at least one for
/// each thread.
fn shards_default_max(threads: Option<u32>) -> u32 {
    let threads = threads.map_or(SHARDS_DEFAULT_MAX, |threads| threads.clamp(1, SHARDS_DEFAULT_MAX));
    threads.next_power_of_two()
}

/// Shards of a volume's cache whose number of shards is not given.
fn shards_shared(chunks: u32, regions_limit: u32, threads: Option<u32>) -> u32 {
    let mut shards = 1;
    while shards < shards_default_max(threads) && 2 * shards * REGIONS_MIN * VOLUMES_PLANNED <= chunks / 2 {
        shards *= 2;
    }
    while shards < SHARDS_MAX && chunks / shards > regions_limit {
        shards *= 2;
    }
    shards
}

/// Smallest and largest region whose size is not given, in bytes.
fn region_bytes_default(extent_bytes: u32) -> (u64, u64) {
    let floor = (*REGION_BYTES_DEFAULT.start()).max(u64::from(extent_bytes) * 4);
    (floor, (*REGION_BYTES_DEFAULT.end()).max(floor))
}

/// Most regions of a shard: limited by their number, and by the locations in it.
fn regions_limit(region_bytes: u64) -> u32 {
    (Location::MAX.offset() / region_bytes).min(u64::from(REGIONS_MAX)) as u32
}

/// The device is smaller than the smallest layout with the options, or than any layout.
fn too_small(smallest: &Geometry, wish: GeometryOptions) -> FormatError {
    let free = GeometryOptions {
        region_bytes: None,
        shard_count: None,
        ..wish
    };
    let (len, least) = (smallest.device_len, smallest.end());
    if len < Geometry::device_len_min(smallest.sector_bytes, smallest.origin_len, free) {
        return FormatError::TooSmall { found: len, least };
    }
    let room = smallest.room();
    FormatError::field(
        "geometry",
        "regions a shard",
        format!(
            "at least {REGIONS_MIN}, which needs {}KiB (use a larger cache device, a smaller --region-size or fewer \
             --shards)",
            least >> 10
        ),
        room / u64::from(smallest.shard_count) / smallest.region_bytes,
    )
}

/// The shards of a layout have as many regions as they can have, and do not fill the device.
fn too_large(largest: &Geometry, wish: GeometryOptions) -> FormatError {
    let (len, most) = (largest.device_len, largest.end());
    let advice = match (wish.shard_count, wish.region_bytes) {
        (None, None) => {
            return FormatError::field(
                "geometry",
                "device size",
                format!(
                    "at most {}GiB (use a smaller cache device, such as a partition)",
                    most >> 30
                ),
                format!("{len} bytes"),
            );
        }
        (Some(_), None) => "more --shards",
        (None, Some(_)) => "a larger --region-size",
        (Some(_), Some(_)) => "more --shards or a larger --region-size",
    };
    let room = largest.room();
    FormatError::field(
        "geometry",
        "regions a shard",
        format!(
            "at most {} (use {advice}, or a smaller cache device)",
            largest.regions_per_shard
        ),
        room / u64::from(largest.shard_count) / largest.region_bytes,
    )
}

#[cfg(test)]
mod tests;
