//! Sectors of the manifest: the state of each region of a shard.
//!
//! The manifest decides which contents of a region are valid. An extent or a summary of a generation other than the one
//! in the manifest is left from an earlier use of the region and is ignored. Data that the manifest calls stable must be
//! present; other data was never promised.
//!
//! Each sector has two copies on the device. Of two valid copies, the one with the higher epoch and generation counts.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::{FormatError, checksum_without};
use crate::policy::Ring;
use crate::units::{Epoch, Sequence};

const MAGIC: u32 = u32::from_le_bytes(*b"FLZM");
const WHAT: &str = "manifest sector";
/// Bytes of a sector before its entries.
pub const MANIFEST_HEADER_BYTES: usize = 32;
/// Bytes of an entry.
pub const MANIFEST_ENTRY_BYTES: usize = 12;
/// Granularity of the lengths in entries, in bytes.
const LENGTH_UNIT: u32 = 512;
const LENGTH_BITS: u32 = 20;
/// Longest region that an entry can describe.
pub(super) const REGION_BYTES_MAX: u64 = LENGTH_UNIT as u64 * ((1 << LENGTH_BITS) - 1);
const STATE_SHIFT: u32 = LENGTH_BITS;
const RING_SHIFT: u32 = STATE_SHIFT + 3;

/// The state of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegionUse {
    /// Not in use: its contents are void.
    #[default]
    Free,
    /// Extents are appended to it, or were when the process ended. Extents up to the length are stable; beyond it a reader
    /// accepts whole extents, up to the first gap.
    Open,
    /// Closed: it has all its extents, up to the length, and a summary, all of them stable.
    Full,
    /// Like full, but its blocks are being dropped and moved: only dirty ones count.
    Reclaiming,
    /// It takes the blocks that a reclaim moves after a crash interrupted it. Its contents do not count until the reclaim
    /// is finished, so a second crash leaves it free.
    Recovering,
}

/// The manifest's entry for one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The state of the region.
    pub state: RegionUse,
    /// The ring it belongs to.
    pub ring: Ring,
    /// Identifies this use of the region.
    pub generation: Sequence,
    /// Stable bytes from the region's start; for a full region, all used bytes.
    pub len: u32,
}

/// A checksum of the entries of a shard at a clean stop. It differs from that of a manifest of which the device has lost writes.
#[must_use]
pub fn entries_checksum(entries: impl IntoIterator<Item = ManifestEntry>) -> u32 {
    entries.into_iter().fold(0, |checksum, entry| {
        let mut bytes = [0; 14];
        (bytes[0], bytes[1]) = (entry.state as u8, entry.ring as u8);
        bytes[2..10].copy_from_slice(&entry.generation.0.to_le_bytes());
        bytes[10..].copy_from_slice(&entry.len.to_le_bytes());
        crc32c::crc32c_append(checksum, &bytes)
    })
}

impl ManifestEntry {
    /// A region that is not in use.
    pub const FREE: Self = Self {
        state: RegionUse::Free,
        ring: Ring::Probation,
        generation: Sequence(0),
        len: 0,
    };

    fn pack(self) -> RawEntry {
        assert!(self.len.is_multiple_of(LENGTH_UNIT), "extents end on sectors");
        let state = match self.state {
            RegionUse::Free => 0,
            RegionUse::Open => 1,
            RegionUse::Full => 2,
            RegionUse::Reclaiming => 3,
            RegionUse::Recovering => 4,
        };
        RawEntry {
            generation: U64::new(self.generation.0),
            bits: U32::new(
                (self.len / LENGTH_UNIT) | state << STATE_SHIFT | u32::from(self.ring.number()) << RING_SHIFT,
            ),
        }
    }

    fn unpack(raw: RawEntry, region_bytes: u64) -> Result<Self, FormatError> {
        let bits = raw.bits.get();
        let len = (bits & ((1 << LENGTH_BITS) - 1)) * LENGTH_UNIT;
        let state = match bits >> STATE_SHIFT & 7 {
            0 if bits == 0 && raw.generation.get() == 0 => return Ok(Self::FREE),
            1 => RegionUse::Open,
            2 => RegionUse::Full,
            3 => RegionUse::Reclaiming,
            4 => RegionUse::Recovering,
            _ => {
                return Err(FormatError::field(WHAT, "region state", "a known one", bits));
            }
        };
        if bits >> (RING_SHIFT + 1) != 0 {
            return Err(FormatError::field(WHAT, "reserved bits", 0, bits));
        }
        let generation = Sequence(raw.generation.get());
        if generation == Sequence(0) || generation > Sequence::MAX_READ {
            let expected = format!("1 to {}", Sequence::MAX_READ.0);
            return Err(FormatError::field(
                WHAT,
                "region generation",
                expected,
                generation.0,
            ));
        }
        let empty = len == 0 && matches!(state, RegionUse::Full | RegionUse::Reclaiming);
        if u64::from(len) > region_bytes || empty {
            let expected = format!("at most {region_bytes}, and not 0 if it is full");
            return Err(FormatError::field(WHAT, "region length", expected, len));
        }
        let ring = Ring::from_number((bits >> RING_SHIFT & 1) as u8).expect("a bit");
        Ok(Self {
            state,
            ring,
            generation,
            len,
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    generation: U64,
    bits: U32,
}

const _: () = assert!(size_of::<RawEntry>() == MANIFEST_ENTRY_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    checksum: U32,
    cache: U32,
    number: U32,
    generation: U64,
    epoch: U32,
    reserved: U32,
}

const _: () = assert!(size_of::<RawHeader>() == MANIFEST_HEADER_BYTES);

/// A sector of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestSector {
    /// First four bytes of the cache's UUID.
    pub cache: u32,
    /// Number of the sector in the whole manifest, over all shards: detects misdirected writes.
    pub number: u32,
    /// Increases with every write of the shard's manifest in an opening.
    pub generation: u64,
    /// Epoch of the opening that wrote the sector.
    pub epoch: Epoch,
    /// Regions in order of their numbers.
    pub entries: Vec<ManifestEntry>,
}

/// Number of regions that one sector describes.
#[must_use]
pub const fn regions_per_sector(sector_bytes: u32) -> u32 {
    (sector_bytes - MANIFEST_HEADER_BYTES as u32) / MANIFEST_ENTRY_BYTES as u32
}

impl ManifestSector {
    /// Writes the sector over all of `sector`.
    ///
    /// # Panics
    /// If there are more entries than [`regions_per_sector`].
    pub fn write(&self, sector: &mut [u8]) {
        sector.fill(0);
        let header = RawHeader {
            magic: U32::new(MAGIC),
            checksum: U32::new(0),
            cache: U32::new(self.cache),
            number: U32::new(self.number),
            generation: U64::new(self.generation),
            epoch: U32::new(self.epoch.0),
            reserved: U32::new(0),
        };
        let (head, rest) = sector.split_at_mut(MANIFEST_HEADER_BYTES);
        head.copy_from_slice(header.as_bytes());
        let places = rest.chunks_exact_mut(MANIFEST_ENTRY_BYTES);
        assert!(
            self.entries.len() <= places.len(),
            "a sector has room for its regions"
        );
        for (place, entry) in places.zip(&self.entries) {
            place.copy_from_slice(entry.pack().as_bytes());
        }
        let checksum = crc32c::crc32c(sector);
        sector[4..8].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Parses sector `number` of a cache, with `count` regions of `region_bytes` bytes.
    ///
    /// # Errors
    /// [`FormatError`] if it is not a manifest sector, a different one, or has an invalid entry.
    pub fn parse(
        sector: &[u8],
        cache: u32,
        number: u32,
        count: usize,
        region_bytes: u64,
    ) -> Result<Self, FormatError> {
        let (header, rest) = RawHeader::read_from_prefix(sector)
            .map_err(|_| FormatError::field(WHAT, "bytes", MANIFEST_HEADER_BYTES, sector.len()))?;
        if header.magic.get() != MAGIC {
            return Err(FormatError::Magic {
                what: WHAT,
                expected: u64::from(MAGIC),
                found: u64::from(header.magic.get()),
            });
        }
        let computed = checksum_without(sector, 4);
        if header.checksum.get() != computed {
            return Err(FormatError::Checksum {
                what: WHAT,
                stored: header.checksum.get(),
                computed,
            });
        }
        if header.cache.get() != cache {
            return Err(FormatError::field(WHAT, "cache", cache, header.cache.get()));
        }
        if header.number.get() != number {
            return Err(FormatError::field(WHAT, "number", number, header.number.get()));
        }
        let entries = rest
            .chunks_exact(MANIFEST_ENTRY_BYTES)
            .take(count)
            .map(|bytes| {
                let raw = RawEntry::read_from_bytes(bytes).expect("sizes are equal");
                ManifestEntry::unpack(raw, region_bytes)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            cache,
            number,
            generation: header.generation.get(),
            epoch: Epoch(header.epoch.get()),
            entries,
        })
    }

    /// Of two copies of a sector, the one with the higher age was written later.
    #[must_use]
    pub fn age(&self) -> (u32, u64) {
        (self.epoch.0, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION_BYTES: u64 = 256 << 20;

    fn entries() -> Vec<ManifestEntry> {
        let mut entries = vec![ManifestEntry::FREE];
        for (state, ring, len) in [
            (RegionUse::Open, Ring::Main, 0),
            (RegionUse::Full, Ring::Probation, REGION_BYTES as u32),
            (RegionUse::Reclaiming, Ring::Main, 512),
            (RegionUse::Recovering, Ring::Main, 1024),
        ] {
            let generation = Sequence::MAX_READ;
            entries.push(ManifestEntry {
                state,
                ring,
                generation,
                len,
            });
        }
        entries
    }

    #[test]
    fn a_sector_reads_back_and_finds_damage_and_misdirection() {
        for sector_bytes in [512, 4096] {
            let mut all = entries();
            all.resize(regions_per_sector(sector_bytes) as usize, ManifestEntry::FREE);
            let written = ManifestSector {
                cache: 7,
                number: 3,
                generation: 9,
                epoch: Epoch(2),
                entries: all,
            };
            let mut bytes = vec![1; sector_bytes as usize];
            written.write(&mut bytes);
            let count = written.entries.len();
            let read = |bytes: &[u8], cache, number| {
                ManifestSector::parse(bytes, cache, number, count, REGION_BYTES)
            };
            assert_eq!(read(&bytes, 7, 3), Ok(written));
            assert!(read(&bytes, 8, 3).is_err() && read(&bytes, 7, 4).is_err());
            for at in 0..bytes.len() {
                bytes[at] ^= 1;
                assert!(read(&bytes, 7, 3).is_err(), "byte {at}");
                bytes[at] ^= 1;
            }
        }
    }

    #[test]
    fn entries_that_cannot_be_are_refused() {
        let refused = |generation: u64, bits: u32| {
            let raw = RawEntry {
                generation: U64::new(generation),
                bits: U32::new(bits),
            };
            ManifestEntry::unpack(raw, 128 << 10).is_err()
        };
        let full = 2 << STATE_SHIFT;
        assert!(!refused(1, full | 256));
        assert!(refused(1, full | 257), "longer than the region");
        assert!(refused(1, full), "full of nothing");
        assert!(refused(0, full | 1), "no generation");
        assert!(refused(u64::MAX, full | 1), "a generation that no cache reaches");
        assert!(refused(1, 5 << STATE_SHIFT | 1) && refused(1, 1 << 31 | full | 1));
        assert!(refused(1, 0), "free, with a generation");
    }
}
