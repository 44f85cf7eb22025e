//! Shard states: the location of a shard's index image after a clean stop.
//!
//! A state is valid only while the superblock says *clean* and both name the same epoch. The next opening voids it just
//! by writing the superblock.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::geometry::PAGE_BYTES;
use crate::format::{FormatError, checksum_without};
use crate::units::{Epoch, Sequence};

const MAGIC: u64 = u64::from_le_bytes(*b"FLZSHARD");
const WHAT: &str = "shard state";
/// Most regions that an index image can occupy: as many as fit in the page. With default sizes, a cache of 6 TiB needs this
/// many in the worst case.
pub const IMAGE_REGIONS_MAX: usize = 1011;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawShardState {
    magic: U64,
    checksum: U32,
    shard: U32,
    cache: U32,
    epoch: U32,
    next_sequence: U64,
    image_bytes: U64,
    image_checksum: U32,
    manifest_checksum: U32,
    image_region_count: U32,
    image_regions: [U32; IMAGE_REGIONS_MAX],
}

const _: () = assert!(size_of::<RawShardState>() == PAGE_BYTES);

/// State of one shard at a clean stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardState {
    /// First four bytes of the cache's UUID.
    pub cache: u32,
    /// The shard.
    pub shard: u32,
    /// Epoch of the opening that wrote the state.
    pub epoch: Epoch,
    /// Sequence of the next extent.
    pub next_sequence: Sequence,
    /// Bytes of the index image.
    pub image_bytes: u64,
    /// CRC-32C of the image.
    pub image_checksum: u32,
    /// [`entries_checksum`](crate::format::manifest::entries_checksum) of the manifest, for a start that reads the log instead of the
    /// image. It counts only in a cache with an area for index pages: in others, the manifest is not written at a stop.
    pub manifest_checksum: u32,
    /// Regions (numbers within the shard) that hold the image, in order, each one full except the last.
    pub image_regions: Vec<u32>,
}

impl ShardState {
    /// The on-disk page.
    ///
    /// # Panics
    /// If the image lies in more than [`IMAGE_REGIONS_MAX`] regions.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        assert!(self.image_regions.len() <= IMAGE_REGIONS_MAX);
        let mut raw = RawShardState {
            magic: U64::new(MAGIC),
            checksum: U32::new(0),
            shard: U32::new(self.shard),
            cache: U32::new(self.cache),
            epoch: U32::new(self.epoch.0),
            next_sequence: U64::new(self.next_sequence.0),
            image_bytes: U64::new(self.image_bytes),
            image_checksum: U32::new(self.image_checksum),
            manifest_checksum: U32::new(self.manifest_checksum),
            image_region_count: U32::new(self.image_regions.len() as u32),
            image_regions: [U32::new(0); IMAGE_REGIONS_MAX],
        };
        for (place, region) in raw.image_regions.iter_mut().zip(&self.image_regions) {
            *place = U32::new(*region);
        }
        raw.checksum = U32::new(crc32c::crc32c(raw.as_bytes()));
        raw.as_bytes().to_vec()
    }

    /// Parses the page of `shard`.
    ///
    /// # Errors
    /// [`FormatError`] if it is damaged or belongs to another shard.
    pub fn parse(page: &[u8], shard: u32) -> Result<Self, FormatError> {
        let raw = RawShardState::read_from_bytes(page)
            .map_err(|_| FormatError::field(WHAT, "bytes", PAGE_BYTES, page.len()))?;
        if raw.magic.get() != MAGIC {
            return Err(FormatError::Magic {
                what: WHAT,
                expected: MAGIC,
                found: raw.magic.get(),
            });
        }
        let computed = checksum_without(page, 8);
        if raw.checksum.get() != computed {
            return Err(FormatError::Checksum {
                what: WHAT,
                stored: raw.checksum.get(),
                computed,
            });
        }
        if raw.shard.get() != shard {
            return Err(FormatError::field(WHAT, "shard", shard, raw.shard.get()));
        }
        let count = raw.image_region_count.get() as usize;
        if count > IMAGE_REGIONS_MAX {
            return Err(FormatError::field(
                WHAT,
                "image regions",
                format!("at most {IMAGE_REGIONS_MAX}"),
                count,
            ));
        }
        Ok(Self {
            cache: raw.cache.get(),
            shard,
            epoch: Epoch(raw.epoch.get()),
            next_sequence: Sequence(raw.next_sequence.get()),
            image_bytes: raw.image_bytes.get(),
            image_checksum: raw.image_checksum.get(),
            manifest_checksum: raw.manifest_checksum.get(),
            image_regions: raw.image_regions[..count].iter().map(|r| r.get()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reads_back_and_finds_damage() {
        let state = ShardState {
            cache: 1,
            shard: 3,
            epoch: Epoch(9),
            next_sequence: Sequence(100),
            image_bytes: 12_345,
            image_checksum: 7,
            manifest_checksum: 8,
            image_regions: vec![5, 6],
        };
        let mut page = state.to_bytes();
        assert_eq!(ShardState::parse(&page, 3).expect("valid"), state);
        assert!(ShardState::parse(&page, 2).is_err());
        for at in 0..PAGE_BYTES {
            page[at] ^= 0x10;
            assert!(ShardState::parse(&page, 3).is_err(), "byte {at}");
            page[at] ^= 0x10;
        }
    }
}
