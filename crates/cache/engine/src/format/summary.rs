//! Region summaries: the contents of a full region, so that reclaim and recovery need not read the whole region.
//!
//! ```text
//! region end - summary length                                  region end - 64   region end
//! +--------------------------------+---------------------------+-----------------+
//! | extent entries, 24 B each      | packed records, 8 B each  | trailer, 64 B   |
//! +--------------------------------+---------------------------+-----------------+
//! ```
//!
//! The trailer is the region's last 64 bytes, so it can be found first. Records are in the order of their extents.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::extent::{RECORD_BYTES, is_header_size};
use crate::format::layout::Layout;
use crate::format::{FormatError, checksum_without};
use crate::policy::Ring;
use crate::units::{Epoch, Sequence};

const MAGIC: u32 = u32::from_le_bytes(*b"FLZS");
const WHAT: &str = "region summary";
/// Bytes of the trailer at the region's end.
pub const TRAILER_BYTES: usize = 64;
/// Bytes of an extent's entry.
pub const ENTRY_BYTES: usize = 24;

/// One extent in a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryExtent {
    /// Byte offset in the region.
    pub offset: u32,
    /// Bytes of the extent.
    pub len: u32,
    /// Order within the shard.
    pub sequence: Sequence,
    /// Epoch of the opening that wrote the extent.
    pub epoch: Epoch,
    /// Number of its records in the summary.
    pub record_count: u16,
    /// Offset of its first fragment: see [`is_header_size`].
    pub header_bytes: u16,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    offset: U32,
    len: U32,
    sequence: U64,
    epoch: U32,
    record_count: U16,
    header_bytes: U16,
}

const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTrailer {
    magic: U32,
    checksum: U32,
    cache: U32,
    extent_count: U32,
    record_count: U32,
    shard: U32,
    generation: U64,
    position: U64,
    ring: u8,
    reserved: [u8; 23],
}

const _: () = assert!(size_of::<RawTrailer>() == TRAILER_BYTES);

/// The contents of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// First four bytes of the cache's UUID.
    pub cache: u32,
    /// The shard.
    pub shard: u32,
    /// The ring.
    pub ring: Ring,
    /// Sequence of the region's first extent.
    pub generation: Sequence,
    /// Byte offset of the region on the device.
    pub position: u64,
    /// The extents, in order.
    pub extents: Vec<SummaryExtent>,
    /// The packed records of all of them, in order.
    pub records: Vec<u64>,
}

/// Bytes of a summary, including the trailer, rounded up to sectors.
#[must_use]
pub fn summary_bytes(extents: usize, records: usize, sector_bytes: u32) -> u64 {
    ((extents * ENTRY_BYTES + records * RECORD_BYTES + TRAILER_BYTES) as u64)
        .next_multiple_of(u64::from(sector_bytes))
}

/// Most bytes that a region's summary can have: with extents of one sector each.
#[must_use]
pub fn summary_bytes_max(layout: &Layout) -> u64 {
    let extents = layout.region_bytes / u64::from(layout.sector_bytes);
    summary_bytes(extents as usize, layout.region_records_max(), layout.sector_bytes)
}

/// Checks that extents are contiguous from the start of their region, and returns the bytes that they fill.
///
/// # Errors
/// [`FormatError::Field`] for the first extent that does not fit.
pub fn check_extents(extents: &[SummaryExtent], layout: &Layout) -> Result<u64, FormatError> {
    let mut end = 0u64;
    for extent in extents {
        if u64::from(extent.offset) != end {
            return Err(FormatError::field(WHAT, "extent offset", end, extent.offset));
        }
        let len = extent.len;
        if !len.is_multiple_of(layout.sector_bytes) || (len as usize) < layout.header_bytes() {
            return Err(FormatError::field(
                WHAT,
                "extent length",
                "whole sectors, the longest header included",
                len,
            ));
        }
        let header_bytes = extent.header_bytes;
        if !is_header_size(header_bytes.into(), layout.header_bytes()) {
            return Err(FormatError::field(
                WHAT,
                "header bytes of an extent",
                "a size that a header can have",
                header_bytes,
            ));
        }
        end += u64::from(len);
        if end > layout.region_bytes {
            return Err(FormatError::field(
                WHAT,
                "end of the extents",
                format!("at most {}", layout.region_bytes),
                end,
            ));
        }
    }
    Ok(end)
}

impl Summary {
    /// Writes the summary at the end of `area`, and zeroes before it.
    ///
    /// # Panics
    /// If `area` is smaller than [`summary_bytes`].
    pub fn write(&self, area: &mut [u8]) {
        area.fill(0);
        let total = self.extents.len() * ENTRY_BYTES + self.records.len() * RECORD_BYTES + TRAILER_BYTES;
        let start = area.len() - total;
        let body = &mut area[start..];
        let (entries, rest) = body.split_at_mut(self.extents.len() * ENTRY_BYTES);
        for (place, extent) in entries.chunks_exact_mut(ENTRY_BYTES).zip(&self.extents) {
            let raw = RawEntry {
                offset: U32::new(extent.offset),
                len: U32::new(extent.len),
                sequence: U64::new(extent.sequence.0),
                epoch: U32::new(extent.epoch.0),
                record_count: U16::new(extent.record_count),
                header_bytes: U16::new(extent.header_bytes),
            };
            place.copy_from_slice(raw.as_bytes());
        }
        let (records, trailer) = rest.split_at_mut(self.records.len() * RECORD_BYTES);
        for (place, record) in records.chunks_exact_mut(RECORD_BYTES).zip(&self.records) {
            place.copy_from_slice(&record.to_le_bytes());
        }
        let raw = RawTrailer {
            magic: U32::new(MAGIC),
            checksum: U32::new(0),
            cache: U32::new(self.cache),
            extent_count: U32::new(self.extents.len() as u32),
            record_count: U32::new(self.records.len() as u32),
            shard: U32::new(self.shard),
            generation: U64::new(self.generation.0),
            position: U64::new(self.position),
            ring: self.ring.number(),
            reserved: [0; 23],
        };
        trailer.copy_from_slice(raw.as_bytes());
        let checksum = crc32c::crc32c(body);
        let at = total - TRAILER_BYTES + 4;
        body[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Parses the trailer at the end of `tail` and returns the length of the whole summary.
    ///
    /// # Errors
    /// [`FormatError`] if there is no trailer or the length exceeds `len_max` bytes.
    pub fn parse_len(tail: &[u8], len_max: u64) -> Result<usize, FormatError> {
        let trailer = RawTrailer::read_from_suffix(tail)
            .map_err(|_| FormatError::field(WHAT, "bytes", TRAILER_BYTES, tail.len()))?
            .1;
        if trailer.magic.get() != MAGIC {
            return Err(FormatError::Magic {
                what: WHAT,
                expected: u64::from(MAGIC),
                found: u64::from(trailer.magic.get()),
            });
        }
        let total = u64::from(trailer.extent_count.get()) * ENTRY_BYTES as u64
            + u64::from(trailer.record_count.get()) * RECORD_BYTES as u64
            + TRAILER_BYTES as u64;
        if total > len_max {
            return Err(FormatError::field(
                WHAT,
                "length",
                format!("at most {len_max}"),
                total,
            ));
        }
        Ok(total as usize)
    }

    /// Parses a summary that ends at the end of `tail`.
    ///
    /// # Errors
    /// [`FormatError`] if it is damaged, or its parts contradict each other.
    pub fn parse(tail: &[u8]) -> Result<Self, FormatError> {
        let total = Self::parse_len(tail, tail.len() as u64)?;
        let body = &tail[tail.len() - total..];
        let (rest, trailer) = RawTrailer::read_from_suffix(body)
            .map_err(|_| FormatError::field(WHAT, "bytes", TRAILER_BYTES, body.len()))?;
        let computed = checksum_without(body, total - TRAILER_BYTES + 4);
        if trailer.checksum.get() != computed {
            return Err(FormatError::Checksum {
                what: WHAT,
                stored: trailer.checksum.get(),
                computed,
            });
        }
        let Some(ring) = Ring::from_number(trailer.ring) else {
            return Err(FormatError::field(WHAT, "ring", "0 or 1", trailer.ring));
        };
        let (entries, records) = rest.split_at(trailer.extent_count.get() as usize * ENTRY_BYTES);
        let mut extents = Vec::with_capacity(entries.len() / ENTRY_BYTES);
        let mut listed = 0u64;
        for bytes in entries.chunks_exact(ENTRY_BYTES) {
            let raw = RawEntry::read_from_bytes(bytes).expect("chunks have the entry's size");
            listed += u64::from(raw.record_count.get());
            extents.push(SummaryExtent {
                offset: raw.offset.get(),
                len: raw.len.get(),
                sequence: Sequence(raw.sequence.get()),
                epoch: Epoch(raw.epoch.get()),
                record_count: raw.record_count.get(),
                header_bytes: raw.header_bytes.get(),
            });
        }
        if listed != u64::from(trailer.record_count.get()) {
            return Err(FormatError::field(
                WHAT,
                "records of all extents",
                trailer.record_count.get(),
                listed,
            ));
        }
        let records = records
            .chunks_exact(RECORD_BYTES)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes")))
            .collect();
        Ok(Self {
            cache: trailer.cache.get(),
            shard: trailer.shard.get(),
            ring,
            generation: Sequence(trailer.generation.get()),
            position: trailer.position.get(),
            extents,
            records,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        Summary {
            cache: 5,
            shard: 2,
            ring: Ring::Probation,
            generation: Sequence(77),
            position: 3 << 20,
            extents: (0..4)
                .map(|i| SummaryExtent {
                    offset: i * 65_536,
                    len: 65_536,
                    sequence: Sequence(77 + u64::from(i)),
                    epoch: Epoch(1),
                    record_count: 2,
                    header_bytes: 128,
                })
                .collect(),
            records: (0..8).map(|i| i << 16 | 100).collect(),
        }
    }

    #[test]
    fn a_summary_reads_back_and_finds_every_flipped_byte() {
        let len = summary_bytes(4, 8, 512) as usize;
        let mut area = vec![1; len];
        summary().write(&mut area);
        assert_eq!(Summary::parse(&area).expect("valid"), summary());
        let total = 4 * ENTRY_BYTES + 8 * RECORD_BYTES + TRAILER_BYTES;
        for at in len - total..len {
            area[at] ^= 0x40;
            assert!(Summary::parse(&area).is_err(), "byte {at}");
            area[at] ^= 0x40;
        }
    }

    /// Several regions are read at a time. The length that a trailer claims must not make the reader allocate too much
    /// memory.
    #[test]
    fn the_longest_summary_is_a_small_part_of_its_region() {
        use crate::format::geometry::{Geometry, GeometryOptions, REGION_BYTES};

        for region_bytes in [*REGION_BYTES.start(), *REGION_BYTES.end()] {
            let wish = GeometryOptions {
                extent_bytes: Some(32 << 10),
                region_bytes: Some(region_bytes),
                shard_count: Some(1),
                threads: None,
                index_memory: None,
                dictionary_bytes: None,
            };
            let geometry = Geometry::plan(4 << 30, 512, 1 << 30, wish).expect("fits");
            let most = summary_bytes_max(&geometry);
            assert!(most < region_bytes / 12, "{most} bytes of {region_bytes}");
            let mut promises = summary();
            promises.extents = vec![promises.extents[0]; most as usize / ENTRY_BYTES];
            let mut area = vec![0; summary_bytes(promises.extents.len(), 8, 512) as usize];
            promises.write(&mut area);
            assert!(Summary::parse_len(&area, most).is_err());
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_anything_is_read() {
        let mut area = vec![0; 1024];
        summary().write(&mut area);
        area[1024 - TRAILER_BYTES + 16..1024 - TRAILER_BYTES + 20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Summary::parse_len(&area[512..], 1 << 20).is_err());
    }
}
