//! Creating an empty cache.

use std::num::NonZeroU64;

use flaz_codec::CodecChoice;
use flaz_device::{Device, DeviceError, IoBuf};
use uuid::Uuid;
use zerocopy::IntoBytes;

use super::error::CacheError;
use crate::format::geometry::{
    Geometry, GeometryOptions, PAGE_BYTES, REGIONS_MIN, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS,
};
use crate::format::intent::IntentSector;
use crate::format::manifest::{ManifestEntry, ManifestSector};
use crate::format::superblock::{State, Superblock};
use crate::settings::{AfterCrash, StoredSettings};
use crate::units::Epoch;

/// The sizes of a new cache.
#[derive(Clone, Copy, Debug)]
pub enum Sizes {
    /// As [`Geometry::plan`] fits them to the device.
    Fitted(GeometryOptions),
    /// Planned before. On a device whose space is shared, by [`Geometry::plan_shared`].
    Planned(Geometry),
}

impl From<GeometryOptions> for Sizes {
    fn from(wish: GeometryOptions) -> Self {
        Self::Fitted(wish)
    }
}

/// Options of a new cache.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The cache's UUID.
    pub uuid: Uuid,
    /// Current time, seconds since 1970.
    pub created_unix_s: u64,
    /// Its sizes.
    pub wish: Sizes,
    /// Codec for new blocks.
    pub codec: CodecChoice,
    /// Size of the origin in bytes.
    pub origin_len: u64,
    /// Identity of the origin.
    pub origin_identity: String,
    /// Path of the origin.
    pub origin_path: String,
}

/// Lays out an empty cache. The old contents of the device are discarded.
///
/// # Errors
/// [`CacheError`] if the layout is invalid (nothing is written then) or the device fails.
pub async fn create<C: Device>(cache: &C, options: CreateOptions) -> Result<Superblock, CacheError> {
    let sector_bytes = cache.alignment().max(512);
    let mut index_memory = None;
    let geometry = match options.wish {
        Sizes::Fitted(wish) => {
            index_memory = wish.index_memory.and_then(NonZeroU64::new);
            Geometry::plan(cache.len(), sector_bytes, options.origin_len, wish)?
        }
        Sizes::Planned(geometry) => {
            geometry.check(cache.len())?;
            assert!(
                geometry.origin_len == options.origin_len && geometry.sector_bytes == sector_bytes,
                "planned for these devices"
            );
            geometry
        }
    };
    let superblock = Superblock {
        uuid: options.uuid,
        generation: 1,
        created_unix_s: options.created_unix_s,
        geometry,
        state: State::Empty,
        epoch: Epoch(0),
        valid_from_epoch: Epoch(1),
        after_crash: AfterCrash::Warm,
        dirty: false,
        contradicted: false,
        codec: options.codec,
        settings: StoredSettings::default(),
        budget_used: Some(0),
        index_memory,
        origin_fingerprint: None,
        origin_created_len: options.origin_len,
        origin_identity: options.origin_identity,
        origin_path: options.origin_path,
    };
    let page = superblock.to_bytes()?;
    assert_eq!(page.len(), SUPERBLOCK_BYTES);
    // An old superblock must not survive an interrupted create.
    for slot in SUPERBLOCK_SLOTS {
        cache
            .write_at(slot, IoBuf::zeroed(SUPERBLOCK_BYTES), false)
            .await
            .1?;
    }
    cache.flush().await?;
    for shard in 0..geometry.shard_count {
        cache
            .write_at(
                geometry.shard_state_offset(shard),
                IoBuf::zeroed(PAGE_BYTES),
                false,
            )
            .await
            .1?;
    }
    clear_manifest(cache, &geometry, superblock.cache_id()).await?;
    clear_intents(cache, &geometry).await?;
    if cache.is_sparse() {
        // Enough to run, with index pages and dictionaries. The other regions get their space when they are first used: see `Shard::start`.
        let start = geometry.index_offset();
        let len = geometry.region_offset(0, REGIONS_MIN) - start;
        cache.allocate(start, len).await?;
    }
    cache
        .discard(geometry.data_offset(), geometry.end() - geometry.data_offset())
        .await?;
    cache.flush().await?;
    for slot in SUPERBLOCK_SLOTS {
        cache.write_at(slot, IoBuf::copy_of(&page), false).await.1?;
        cache.flush().await?;
    }
    Ok(superblock)
}

/// Writes sectors of epoch 0, with all regions free: no opening has that epoch.
pub(crate) async fn clear_manifest<C: Device>(
    cache: &C,
    geometry: &Geometry,
    cache_id: u32,
) -> Result<(), DeviceError> {
    let sector_bytes = geometry.sector_bytes as usize;
    for shard in 0..geometry.shard_count {
        let mut buf = IoBuf::zeroed(geometry.manifest_copy_len() as usize);
        for (sector, place) in (0..geometry.shard_manifest_sectors()).zip(buf.chunks_exact_mut(sector_bytes))
        {
            let clear = ManifestSector {
                cache: cache_id,
                number: geometry.manifest_sector_number(shard, sector),
                generation: 0,
                epoch: Epoch(0),
                entries: vec![ManifestEntry::FREE; geometry.manifest_regions(sector).len()],
            };
            clear.write(place);
        }
        for copy in 0..2 {
            let position = geometry.manifest_sector_offset(shard, 0, copy);
            cache.write_at(position, IoBuf::copy_of(&buf), false).await.1?;
        }
    }
    Ok(())
}

/// Clears all bits of the intent bitmap.
pub(crate) async fn clear_intents<C: Device>(cache: &C, geometry: &Geometry) -> Result<(), DeviceError> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let mut at = 0;
    while at < geometry.intent_len() {
        let len = CHUNK_BYTES.min(geometry.intent_len() - at);
        let mut buf = IoBuf::new(len as usize);
        for (i, sector) in buf.chunks_exact_mut(512).enumerate() {
            let number = (at / 512) as u32 + i as u32;
            sector.copy_from_slice(IntentSector::clear(number, 0).as_bytes());
        }
        cache
            .write_at(geometry.intent_offset() + at, buf, false)
            .await
            .1?;
        at += len;
    }
    Ok(())
}
