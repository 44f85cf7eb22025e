//! The layout of a cache device, and the sizes of a cache.
//!
//! ```text
//! 0        superblock, slot 0 (64 KiB, of which 8 KiB are in use with one volume)
//! 64 KiB   superblock, slot 1
//! 128 KiB  shard states, one 4 KiB page a shard
//!          manifest, twice for each shard, whole pages
//!          intent bitmap, 512-byte sectors, whole pages a shard
//!          (rounded up to 64 KiB)
//!          region 0 of shard 0, of shard 1, ...; region 1 of shard 0, of shard 1, ...
//! ```

use std::ops::{Deref, RangeInclusive};

use crate::format::FormatError;
use crate::format::layout::Layout;
use crate::format::manifest::REGION_BYTES_MAX;
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
    /// be larger than records can address; regions of a 128th of a shard, between 256 KiB and 16 MiB.
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
        let least = Self::smallest(sector_bytes, origin_len, wish);
        least.check_options()?;
        let mut roomy = least;
        roomy.layout.stripes_max = stripes_room(origin_len, device_len, ORIGIN_TO_CACHE);
        // The smallest devices have no space for a larger bitmap.
        roomy
            .fill(device_len, wish)
            .or_else(|_| least.fill(device_len, wish))
    }

    /// Plans the layout of the cache of one volume on a device that several share. Its own device has the metadata first, and
    /// then all chunks of the shared one: a region each, of which only some have space at a time. Both sizes follow from the
    /// layout: [`Geometry::device_len`], and [`Layout::data_offset`].
    ///
    /// Defaults: 64 KiB extents; as many shards as threads, 8 at most, but so few that the least regions of [`VOLUMES_PLANNED`] such volumes take at
    /// most half of the chunks, and more if a shard would be larger than records can address.
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
        return FormatError::field(
            "geometry",
            "device size",
            format!("at least {}KiB (use a larger cache device)", least >> 10),
            format!("{len} bytes"),
        );
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plans_fit_their_devices() {
        for len in [4u64 << 20, 64 << 20, 256 << 20, 10 << 30, 4 << 40] {
            let plan = Geometry::plan(len, 512, 100 << 30, GeometryOptions::default()).expect("fits");
            assert!(plan.end() <= len);
            assert!(plan.regions_per_shard >= REGIONS_MIN);
        }
    }

    #[test]
    fn a_cache_can_grow_to_eight_times_its_size() {
        for len in [8 << 20, (1 << 30) + 4096, 64 << 30] {
            let plan = Geometry::plan(len, 512, 1 << 40, GeometryOptions::default()).expect("fits");
            assert_eq!(plan.resized(len), Ok(plan));
            let largest = plan.resized(8 * len).expect("eight times");
            assert_eq!(largest.regions_per_shard, plan.regions_max);
            let sizes = plan.resized(9 * len).expect_err("nine times");
            let least = plan.resized(*sizes.start()).expect("the least");
            assert_eq!(least.regions_per_shard, REGIONS_MIN);
            assert_eq!(plan.resized(sizes.start() - 1), Err(sizes.clone()));
            for resized in [least, largest, plan.resized(*sizes.end()).expect("the most")] {
                assert_eq!(resized.layout, plan.layout);
                assert_eq!(resized.check(resized.device_len), Ok(()));
            }
        }
    }

    #[test]
    fn a_layout_has_room_for_growth() {
        let plan = |len, origin| Geometry::plan(len, 512, origin, GeometryOptions::default()).expect("fits");
        let usual = plan(64 << 30, 1 << 40);
        assert_eq!(usual.regions_max, 8 * usual.regions_per_shard);
        assert_eq!(
            usual.stripes_max,
            4 << 20,
            "four times the origin, as 64 times the cache"
        );
        assert_eq!(plan(64 << 30, 1 << 30).stripes_max, 4 << 20, "64 times the cache");
        assert_eq!(
            plan(64 << 20, 1 << 40).stripes_max,
            1 << 20,
            "an origin that is large already"
        );
        assert_eq!(
            plan(1 << 30, 512 << 30).stripes_max,
            1 << 20,
            "1024 times the cache"
        );
    }

    #[test]
    fn the_regions_of_the_shards_alternate() {
        let plan = Geometry::plan(256 << 20, 512, 1 << 30, GeometryOptions::default()).expect("fits");
        let slots = (0..plan.regions_per_shard)
            .flat_map(|region| (0..plan.shard_count).map(move |shard| plan.region_offset(shard, region)));
        let expected = (plan.data_offset()..plan.end()).step_by(plan.region_bytes as usize);
        assert!(slots.eq(expected), "none twice, and none left out");
        let location = Location::at(3 * plan.region_bytes + 512);
        assert_eq!(plan.position(2, location), plan.region_offset(2, 3) + 512);
    }

    fn options(shard_count: Option<u32>, region_bytes: Option<u64>, extent_bytes: u32) -> GeometryOptions {
        GeometryOptions {
            extent_bytes: Some(extent_bytes),
            region_bytes,
            shard_count,
            threads: None,
        }
    }

    /// Sizes of any order of magnitude, and just below and above powers of two.
    fn sizes() -> impl Strategy<Value = u64> {
        let power = 12u32..=50;
        (power, 0u64..=u64::MAX, -2i64..=2).prop_map(|(power, bits, off)| match bits % 3 {
            0 => (1u64 << power).saturating_add_signed(off * 4096),
            _ => (1u64 << power) | (bits & ((1 << power) - 1)),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Without options, every size from the smallest to the largest has a layout that uses the device.
        #[test]
        fn every_size_has_a_layout(
            len in sizes(),
            origin in sizes().prop_map(|len| len.max(1)),
            sector in prop_oneof![Just(512u32), Just(4096)],
            extent in prop_oneof![Just(32u32 << 10), Just(64 << 10), Just(256 << 10)],
            region in prop_oneof![3 => Just(None), 1 => (17u32..=28).prop_map(|power| Some(1u64 << power))],
        ) {
            let wish = options(None, region, extent);
            prop_assume!(region.is_none_or(|region| region >= u64::from(extent) * 4));
            let least = Geometry::device_len_min(sector, origin, wish);
            match Geometry::plan(len, sector, origin, wish) {
                Ok(plan) => {
                    prop_assert!(len >= least);
                    prop_assert!(plan.end() <= len);
                    let unused = len - plan.end();
                    // What is left is less than two regions of each shard and the rounding of the metadata.
                    let granularity = plan.region_bytes * u64::from(plan.shard_count);
                    prop_assert!(unused < 2 * granularity, "{unused} unused of {len}: {plan:?}");
                    prop_assert!(plan.check(len).is_ok());
                }
                Err(error) => {
                    let region_bytes = region.unwrap_or(16 << 20);
                    let largest = 256 * u64::from(regions_limit(region_bytes)) * region_bytes;
                    prop_assert!(len < least || len > largest, "{len} bytes, least {least}: {error}");
                }
            }
        }

        /// With the number of shards given, any size that is large enough has a layout up to 1 TiB a shard.
        #[test]
        fn given_shards_fit_from_their_smallest_size(
            shards in 1u32..=SHARDS_MAX,
            more in 0u64..1 << 36,
            origin in sizes().prop_map(|len| len.max(1)),
        ) {
            let wish = options(Some(shards), None, 64 << 10);
            let least = Geometry::device_len_min(512, origin, wish);
            let plan = Geometry::plan(least + more, 512, origin, wish);
            prop_assert!(plan.is_ok_and(|plan| plan.shard_count == shards));
            prop_assert!(Geometry::plan(least - 1, 512, origin, wish).is_err());
        }
    }

    #[test]
    fn small_and_usual_caches_keep_their_shards() {
        for (len, shards, region_bytes) in [
            (4u64 << 20, 1, 256u64 << 10),
            (64 << 20, 1, 256 << 10),
            (256 << 20, 4, 256 << 10),
            (512 << 20, 8, 256 << 10),
            (100 << 30, 8, 16 << 20),
            (8 << 40, 8, 16 << 20),
            (10 << 40, 16, 16 << 20),
            (255 << 40, 256, 16 << 20),
        ] {
            let plan = Geometry::plan(len, 512, 100 << 30, GeometryOptions::default()).expect("fits");
            assert_eq!(
                (plan.shard_count, plan.region_bytes),
                (shards, region_bytes),
                "{len}"
            );
        }
    }

    #[test]
    fn no_more_shards_than_threads_are_planned_unless_the_device_is_too_large_for_them() {
        for (threads, shards) in [(0, 1), (1, 1), (2, 2), (3, 4), (8, 8), (64, 8)] {
            let wish = GeometryOptions {
                threads: Some(threads),
                ..GeometryOptions::default()
            };
            let plan = |len| {
                Geometry::plan(len, 512, 100 << 30, wish)
                    .expect("fits")
                    .shard_count
            };
            assert_eq!([plan(100 << 30), plan(64 << 20)], [shards, 1], "{threads}");
            assert_eq!(plan(10 << 40), 16, "a shard addresses 1 TiB");
            let space = SharedSpace {
                chunk_bytes: 16 << 20,
                chunks: 6144,
            };
            let shared = Geometry::plan_shared(space, 512, 100 << 30, wish).expect("fits");
            assert_eq!(shared.shard_count, shards, "{threads}");
        }
    }

    #[test]
    fn a_device_that_is_too_small_is_refused() {
        let default = GeometryOptions::default();
        for len in [0, 1 << 20] {
            let error = Geometry::plan(len, 512, 1 << 30, default).expect_err("too small");
            let least = Geometry::device_len_min(512, 1 << 30, default);
            let expected = format!("device size is {len} bytes, expected at least {}KiB", least >> 10);
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }

    #[test]
    fn a_device_that_is_too_large_is_refused() {
        for (shards, region, part) in [
            (None, None, "expected at most 262140GiB"),
            (Some(8), None, "expected at most 65535 (use more --shards,"),
            (
                None,
                Some(128 << 10),
                "expected at most 1048576 (use a larger --region-size,",
            ),
        ] {
            let error = Geometry::plan(300 << 40, 512, 1 << 30, options(shards, region, 32 << 10));
            let error = error.expect_err("too large").to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    fn shared(chunk_bytes: u64, chunks: u32, shard_count: Option<u32>) -> Result<Geometry, FormatError> {
        let space = SharedSpace { chunk_bytes, chunks };
        Geometry::plan_shared(space, 512, 100 << 30, options(shard_count, None, 32 << 10))
    }

    /// A region is a chunk, and the whole device fits behind the metadata, now and when it grows.
    #[test]
    fn a_volume_on_a_shared_device_has_all_its_chunks() {
        for (chunk_bytes, chunks, shard_count) in [
            (128 << 10, 8, None),
            (1 << 20, 1001, Some(4)),
            (16 << 20, 6000, None),
        ] {
            let plan = shared(chunk_bytes, chunks, shard_count).expect("fits");
            let data = u64::from(chunks) * chunk_bytes;
            assert_eq!(plan.device_len, plan.data_offset() + data);
            assert_eq!(
                (plan.region_bytes, plan.check(plan.device_len)),
                (chunk_bytes, Ok(()))
            );
            assert_eq!(plan.regions_per_shard, chunks / plan.shard_count);
            assert_eq!(plan.resized(plan.device_len), Ok(plan));
            let largest = plan.resized(plan.data_offset() + 8 * data).expect("eight times");
            assert_eq!(largest.layout, plan.layout, "the metadata has room for it");
            assert_eq!(largest.regions_per_shard, plan.regions_max);
        }
    }

    /// With more shards each, the last volumes would find no space.
    #[test]
    fn many_volumes_have_space_on_a_shared_device() {
        for (chunks, shards) in [
            (8, 1),
            (1535, 1),
            (1536, 2),
            (3071, 2),
            (3072, 4),
            (6144, 8),
            (1 << 20, 8),
        ] {
            let plan = shared(128 << 10, chunks, None).expect("fits");
            assert_eq!(plan.shard_count, shards, "{chunks} chunks");
        }
        // A shard addresses 1 TiB.
        assert_eq!(shared(256 << 20, 1 << 16, None).expect("fits").shard_count, 32);
    }

    #[test]
    fn a_shared_device_that_does_not_fit_is_refused() {
        for (chunk_bytes, chunks, shard_count, part) in [
            (
                128 << 10,
                11,
                Some(2),
                "regions a shard is 5, expected at least 6, which needs 12 chunks",
            ),
            (
                256 << 20,
                1 << 16,
                Some(8),
                "regions a shard is 8192, expected at most",
            ),
            (128 << 10, 100, Some(0), "shards is 0"),
            (100_000, 100, None, "region size is 100000"),
        ] {
            let error = shared(chunk_bytes, chunks, shard_count)
                .expect_err("refused")
                .to_string();
            assert!(error.contains(part), "{error}");
        }
        let space = SharedSpace {
            chunk_bytes: 128 << 10,
            chunks: 100,
        };
        for (wish, part) in [
            (
                options(None, Some(1 << 20), 32 << 10),
                "as the chunks of the cache device",
            ),
            (options(None, None, 64 << 10), "at least four extents"),
        ] {
            let error = Geometry::plan_shared(space, 512, 1 << 30, wish)
                .expect_err("refused")
                .to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    /// Of a device that became smaller, both sizes are named.
    #[test]
    fn a_truncated_device_is_refused_with_its_size() {
        let plan = Geometry::plan(64 << 20, 512, 1 << 30, GeometryOptions::default()).expect("fits");
        let error = plan.check(32 << 20).expect_err("truncated").to_string();
        let found = "device size is 33554432 bytes, expected at least";
        assert!(
            error.contains(found) && error.contains("a device of 67108864 bytes"),
            "{error}"
        );
    }
}
