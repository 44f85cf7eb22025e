//! Extents: a header, its block records, then fragments back to back, then a copy of records and header.
//!
//! ```text
//! 0                 64                      header_bytes                                      extent length
//! +-----------------+-----------+-----------+--------------+-----+----------+---------+------------------+
//! | header, 64 B    | record 0  | record 1… | fragment 0   | pad | fragment…| zeroes  | records, header  |
//! +-----------------+-----------+-----------+--------------+-----+----------+---------+------------------+
//! ```
//!
//! The space for header and records is chosen when the extent is opened, because the place of a fragment is final when it is
//! appended. The header says how much it is.
//!
//! A fragment is an 8-byte header and its stored bytes, padded to 8 bytes. Fragments are in the order of the records that
//! have one, so a fragment's location follows from the lengths before it. A fragment of several blocks, a *group*, begins at a
//! multiple of 64 bytes, and its stored bytes begin with the checksums of all members but the first.
//!
//! Until a region is full and has a summary, the copy is the second place of the records: damage to the header of a stable
//! extent loses none.
//!
//! The header has a checksum of all bytes between it and the copy. So an extent that a crash has interrupted is recognised without
//! decoding anything.

use std::ops::Range;

use flaz_codec::CodecId;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::FormatError;
use crate::format::group::{GROUP_ALIGN_BYTES, GROUP_BLOCKS_MAX, GROUP_STORED_MAX, Members, group_of};
use crate::policy::Ring;
use crate::units::{BLOCK_BYTES, BlockNumber, Epoch, Location, Sequence};

const MAGIC: u32 = u32::from_le_bytes(*b"FLZX");
const MAGIC_OF_COPY: u32 = u32::from_le_bytes(*b"FLZY");
const WHAT: &str = "extent header";
const WHAT_COPY: &str = "copy of an extent header";
/// Bytes of an extent's header without its records.
pub const EXTENT_HEADER_BYTES: usize = 64;
/// Least space for the header of an extent and its records.
pub const HEADER_BYTES_MIN: usize = 128;
/// Bytes of a block record.
pub const RECORD_BYTES: usize = 8;
/// Bytes of a fragment's header.
pub const FRAGMENT_HEADER_BYTES: usize = 8;
/// Most bytes a fragment of one block can take, header included.
pub const FRAGMENT_BYTES_MAX: usize = FRAGMENT_HEADER_BYTES + BLOCK_BYTES;

/// Space for a header with at least `records` records, as far as an extent may have as much.
#[must_use]
pub fn header_bytes_for(records: usize, header_bytes_max: usize) -> usize {
    let wanted = EXTENT_HEADER_BYTES + records * RECORD_BYTES;
    wanted
        .next_power_of_two()
        .clamp(HEADER_BYTES_MIN, header_bytes_max)
}

/// Number of records that a header of this size has space for.
#[must_use]
pub fn records_max(header_bytes: usize) -> usize {
    (header_bytes - EXTENT_HEADER_BYTES) / RECORD_BYTES
}

/// Whether an extent may have a header of this size.
#[must_use]
pub fn is_header_size(header_bytes: usize, header_bytes_max: usize) -> bool {
    header_bytes.is_power_of_two() && (HEADER_BYTES_MIN..=header_bytes_max).contains(&header_bytes)
}

/// The contents of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// Stored as a fragment of this many bytes (without header and padding).
    Fragment {
        /// Stored bytes: 1 to 4096.
        stored: u16,
        /// Newer than the origin.
        dirty: bool,
    },
    /// Stored together as one fragment of this many bytes (without header and padding), clean. The record's block is the first
    /// one of the aligned four.
    Group {
        /// The blocks that the record is about. The fragment may have more.
        members: Members,
        /// Stored bytes: 1 to [`GROUP_STORED_MAX`].
        stored: u16,
    },
    /// All 4096 bytes have this value; there is no fragment.
    SameFilled {
        /// The value.
        value: u8,
        /// Newer than the origin.
        dirty: bool,
    },
    /// The block is no longer cached: its earlier records are void.
    Tombstone,
    /// The contents of the block's latest earlier record are on the origin, stable.
    Cleaned,
}

const KIND_FRAGMENT: u64 = 0;
const KIND_FRAGMENT_DIRTY: u64 = 1;
const KIND_SAME_FILLED: u64 = 2;
const KIND_SAME_FILLED_DIRTY: u64 = 3;
const KIND_TOMBSTONE: u64 = 4;
const KIND_CLEANED: u64 = 5;
const MEMBERS_SHIFT: u32 = 60;
/// Of the value of a group beyond 13 bits.
const MORE_SHIFT: u32 = 56;
const VALUE_BITS: u32 = 13;

/// One entry of an extent's list: 64 bits, from the highest: members 4, more of the value 4, block 40, kind 3, value 13.
///
/// Without members, the record is about one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The block.
    pub block: BlockNumber,
    /// What the record says about the block.
    pub kind: RecordKind,
}

impl Record {
    /// The 64-bit on-disk form.
    #[must_use]
    pub fn pack(self) -> u64 {
        let (kind, value) = match self.kind {
            RecordKind::Fragment { stored, dirty: false } => (KIND_FRAGMENT, u64::from(stored)),
            RecordKind::Fragment { stored, dirty: true } => (KIND_FRAGMENT_DIRTY, u64::from(stored)),
            RecordKind::SameFilled { value, dirty: false } => (KIND_SAME_FILLED, u64::from(value)),
            RecordKind::SameFilled { value, dirty: true } => (KIND_SAME_FILLED_DIRTY, u64::from(value)),
            RecordKind::Tombstone => (KIND_TOMBSTONE, 0),
            RecordKind::Cleaned => (KIND_CLEANED, 0),
            RecordKind::Group { members, stored } => {
                let stored = u64::from(stored);
                let more = stored >> VALUE_BITS << MORE_SHIFT;
                let value = stored & ((1 << VALUE_BITS) - 1);
                (
                    KIND_FRAGMENT,
                    u64::from(members.bits()) << MEMBERS_SHIFT | more | value,
                )
            }
        };
        self.block.0 << 16 | kind << VALUE_BITS | value
    }

    /// Parses the 64-bit on-disk form.
    ///
    /// # Errors
    /// [`FormatError::Field`] for an unknown kind or an invalid length.
    pub fn unpack(bits: u64) -> Result<Self, FormatError> {
        let block = BlockNumber((bits >> 16) & BlockNumber::MAX.0);
        let value = bits & ((1 << VALUE_BITS) - 1);
        if bits >> MORE_SHIFT != 0 {
            return Self::unpack_group(bits, block, value);
        }
        let dirty = (bits >> 13) & 1 == 1;
        let kind = match (bits >> 13) & 7 {
            KIND_FRAGMENT | KIND_FRAGMENT_DIRTY if (1..=BLOCK_BYTES as u64).contains(&value) => {
                RecordKind::Fragment {
                    stored: value as u16,
                    dirty,
                }
            }
            KIND_SAME_FILLED | KIND_SAME_FILLED_DIRTY if value <= 255 => RecordKind::SameFilled {
                value: value as u8,
                dirty,
            },
            KIND_TOMBSTONE if value == 0 => RecordKind::Tombstone,
            KIND_CLEANED if value == 0 => RecordKind::Cleaned,
            _ => {
                return Err(FormatError::field(
                    "block record",
                    "kind and value",
                    "a known pair",
                    format!("{bits:#x}"),
                ));
            }
        };
        Ok(Self { block, kind })
    }

    fn unpack_group(bits: u64, block: BlockNumber, value: u64) -> Result<Self, FormatError> {
        let field =
            |field, expected| FormatError::field("block record", field, expected, format!("{bits:#x}"));
        let members = Members::from_bits((bits >> MEMBERS_SHIFT) as u8)
            .ok_or_else(|| field("members", "at least one, or all high bits 0".into()))?;
        if (bits >> VALUE_BITS) & 7 != KIND_FRAGMENT || group_of(block) != block {
            return Err(field(
                "kind and block of a group",
                format!("kind {KIND_FRAGMENT} and a multiple of {GROUP_BLOCKS_MAX}"),
            ));
        }
        let stored = ((bits >> MORE_SHIFT) & 0xf) << VALUE_BITS | value;
        if !(1..=GROUP_STORED_MAX as u64).contains(&stored) {
            return Err(field("length of a group", format!("1 to {GROUP_STORED_MAX}")));
        }
        let kind = RecordKind::Group {
            members,
            stored: stored as u16,
        };
        Ok(Self { block, kind })
    }

    /// The blocks that the record is about.
    pub fn blocks(self) -> impl Iterator<Item = BlockNumber> {
        let one = Members::from_bits(1 << (self.block.0 % GROUP_BLOCKS_MAX as u64));
        let members = match self.kind {
            RecordKind::Group { members, .. } => Some(members),
            _ => one,
        };
        let members = members.expect("a bit is set");
        members.blocks(self.block)
    }

    /// Whether a fragment belongs to it.
    #[must_use]
    pub fn has_fragment(self) -> bool {
        matches!(self.kind, RecordKind::Fragment { .. } | RecordKind::Group { .. })
    }

    /// Bytes that the record's fragment takes in the extent, including header and padding.
    #[must_use]
    pub fn fragment_bytes(self) -> usize {
        match self.kind {
            RecordKind::Fragment { stored, .. } | RecordKind::Group { stored, .. } => {
                fragment_bytes(usize::from(stored))
            }
            RecordKind::SameFilled { .. } | RecordKind::Tombstone | RecordKind::Cleaned => 0,
        }
    }

    /// Where the record's fragment lies in the extent, header and padding included, if the one before it ends at `at`.
    #[must_use]
    pub fn place(self, at: usize) -> Range<usize> {
        let start = match self.kind {
            RecordKind::Group { .. } => at.next_multiple_of(GROUP_ALIGN_BYTES),
            _ => at,
        };
        start..start + self.fragment_bytes()
    }
}

/// Bytes that a fragment of `stored` bytes takes, including header and padding.
#[must_use]
pub fn fragment_bytes(stored: usize) -> usize {
    (FRAGMENT_HEADER_BYTES + stored).next_multiple_of(8)
}

/// The header before every fragment's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FragmentHeader {
    /// CRC-32C, see [`fragment_checksum`]. Of a group, that of its first member.
    pub checksum: U32,
    /// Stored bytes that follow.
    pub stored: U16,
    /// Codec of the stored bytes.
    pub codec: u8,
    /// The blocks in the fragment, if it is a group ([`Members`]); else 0.
    pub members: u8,
}

const _: () = assert!(size_of::<FragmentHeader>() == FRAGMENT_HEADER_BYTES);

/// Identifies a fragment: no other fragment that could be in its place has the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentIdentity {
    /// First four bytes of the cache's UUID.
    pub cache: u32,
    /// The block.
    pub block: BlockNumber,
    /// Location of the fragment's header in the shard's part of the device.
    pub location: Location,
    /// Generation of the region.
    pub generation: Sequence,
}

impl FragmentIdentity {
    /// The same of another block of the fragment.
    #[must_use]
    pub fn with_block(self, block: BlockNumber) -> Self {
        Self { block, ..self }
    }

    /// CRC-32C of the identity with what the fragment's header says.
    #[must_use]
    pub fn checksum(
        &self,
        Packing {
            stored,
            codec,
            members,
        }: Packing,
    ) -> u32 {
        let mut bytes = [0u8; 32];
        bytes[..8].copy_from_slice(&self.block.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.location.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.0.to_le_bytes());
        bytes[24..26].copy_from_slice(&stored.to_le_bytes());
        bytes[26] = codec.0;
        bytes[27] = members;
        bytes[28..].copy_from_slice(&self.cache.to_le_bytes());
        crc32c::crc32c(&bytes)
    }
}

/// What the header of a fragment says besides a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Stored bytes.
    pub stored: u16,
    /// Their codec.
    pub codec: CodecId,
    /// The blocks, if there are several ([`Members`]); else 0.
    pub members: u8,
}

impl Packing {
    /// Of one block.
    #[must_use]
    pub fn of_one(stored: u16, codec: CodecId) -> Self {
        Self {
            stored,
            codec,
            members: 0,
        }
    }
}

impl FragmentHeader {
    /// With this checksum.
    #[must_use]
    pub fn new(checksum: u32, packing: Packing) -> Self {
        Self {
            checksum: checksum.into(),
            stored: packing.stored.into(),
            codec: packing.codec.0,
            members: packing.members,
        }
    }

    /// All but the checksum.
    #[must_use]
    pub fn packing(&self) -> Packing {
        Packing {
            stored: self.stored.get(),
            codec: CodecId(self.codec),
            members: self.members,
        }
    }
}

/// Checksum of a block in a fragment: CRC-32C of the 4096 bytes that the codec returns, exclusive-or CRC-32C of the block's
/// identity and the fragment's header.
///
/// This detects damage, a wrong decoder, and a wrong fragment: one written elsewhere, or left from an earlier use of the
/// region. A fragment can move without being decoded: see [`moved_checksum`].
#[must_use]
pub fn fragment_checksum(identity: &FragmentIdentity, packing: Packing, plain_crc: u32) -> u32 {
    plain_crc ^ identity.checksum(packing)
}

/// Checksum of a block after a move of its fragment. The move does not hide damage: a wrong checksum stays wrong.
#[must_use]
pub fn moved_checksum(
    checksum: u32,
    packing: Packing,
    from: &FragmentIdentity,
    to: &FragmentIdentity,
) -> u32 {
    checksum ^ from.checksum(packing) ^ to.checksum(packing)
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtentHeader {
    magic: U32,
    checksum: U32,
    cache: U32,
    extent_bytes: U32,
    sequence: U64,
    generation: U64,
    position: U64,
    flushes: U64,
    epoch: U32,
    record_count: U16,
    shard: U16,
    ring: u8,
    reserved: u8,
    header_bytes: U16,
    contents_checksum: U32,
}

const _: () = assert!(size_of::<RawExtentHeader>() == EXTENT_HEADER_BYTES);

/// The header of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentHeader {
    /// First four bytes of the cache's UUID: extents of an earlier cache on this device are ignored.
    pub cache: u32,
    /// Bytes of the extent on the device, header included: a multiple of the sector size.
    pub extent_bytes: u32,
    /// Order within the shard, both rings together.
    pub sequence: Sequence,
    /// Generation of the region.
    pub generation: Sequence,
    /// Byte offset of the extent on the device.
    pub position: u64,
    /// Flushes acknowledged before the extent was sealed. Written as 0; reserved for ordered write-back.
    pub flushes: u64,
    /// Epoch of the opening that wrote the extent.
    pub epoch: Epoch,
    /// Number of records that follow.
    pub record_count: u16,
    /// The shard.
    pub shard: u16,
    /// The ring that the region belonged to.
    pub ring: Ring,
    /// Bytes of header and records, and the offset of the first fragment: see [`is_header_size`].
    pub header_bytes: u16,
    /// CRC-32C of the bytes between header and copy. [`ExtentHeader::write`] computes it.
    pub contents_checksum: u32,
}

/// Bytes of the copy of a header and this many records, at the end of the extent.
#[must_use]
pub const fn header_copy_bytes(records: usize) -> usize {
    records * RECORD_BYTES + EXTENT_HEADER_BYTES
}

impl ExtentHeader {
    /// Writes header, records and checksums to the start of `extent`, and their copy to its end.
    ///
    /// # Panics
    /// If the records do not fit.
    pub fn write(mut self, records: &[u64], extent: &mut [u8]) {
        assert_eq!(records.len(), usize::from(self.record_count));
        self.contents_checksum = crc32c::crc32c(self.contents(extent).expect("the copy has space"));
        let header_bytes = usize::from(self.header_bytes);
        let area = &mut extent[..header_bytes];
        area.fill(0);
        area[..EXTENT_HEADER_BYTES].copy_from_slice(self.to_raw(MAGIC).as_bytes());
        write_records(records, &mut area[EXTENT_HEADER_BYTES..]);
        let checksum = crc32c::crc32c(area);
        area[4..8].copy_from_slice(&checksum.to_le_bytes());

        let (_, behind) = extent.split_at_mut(header_bytes);
        let at = behind.len() - header_copy_bytes(records.len());
        let (list, copy) = behind[at..].split_at_mut(records.len() * RECORD_BYTES);
        write_records(records, list);
        copy.copy_from_slice(self.to_raw(MAGIC_OF_COPY).as_bytes());
        let checksum = crc32c::crc32c(&behind[at..]);
        let at = behind.len() - EXTENT_HEADER_BYTES + 4;
        behind[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// What lies between the header and the copy of this extent.
    fn contents<'a>(&self, extent: &'a [u8]) -> Option<&'a [u8]> {
        let copy = header_copy_bytes(usize::from(self.record_count));
        extent.get(usize::from(self.header_bytes)..extent.len().checked_sub(copy)?)
    }

    /// Whether the extent has the contents that it was written with. A header may have landed without them.
    #[must_use]
    pub fn is_whole(&self, extent: &[u8]) -> bool {
        extent.len() == self.extent_bytes as usize
            && (self.contents(extent))
                .is_some_and(|contents| crc32c::crc32c(contents) == self.contents_checksum)
    }

    /// The position in the header at the start of `extent`, even if the rest is damaged.
    #[must_use]
    pub fn position_of(extent: &[u8]) -> Option<u64> {
        let (raw, _) = RawExtentHeader::read_from_prefix(extent).ok()?;
        (raw.magic.get() == MAGIC).then(|| raw.position.get())
    }

    /// Parses the header of the extent at the start of `extent`, which has at least `header_bytes_max` bytes.
    ///
    /// Lengths are checked against each other, not against the region: the caller knows how much of the region is left.
    ///
    /// # Errors
    /// [`FormatError`] if there is no extent, or it is damaged.
    pub fn parse(extent: &[u8], header_bytes_max: usize) -> Result<Self, FormatError> {
        let Some(area) = extent.get(..header_bytes_max) else {
            return Err(FormatError::field(WHAT, "bytes", header_bytes_max, extent.len()));
        };
        let (raw, _) = RawExtentHeader::read_from_prefix(area)
            .map_err(|_| FormatError::field(WHAT, "bytes", EXTENT_HEADER_BYTES, area.len()))?;
        raw.check_magic(WHAT, MAGIC)?;
        let header_bytes = raw.header_bytes(WHAT, header_bytes_max)?;
        raw.check_checksum(WHAT, super::checksum_without(&area[..header_bytes], 4))?;
        Self::from_raw(&raw, WHAT, header_bytes)
    }

    /// Parses the copy of the header, and of its records, at the end of `extent`, whose start may be missing.
    ///
    /// # Errors
    /// [`FormatError`] if no copy ends there, or it is damaged.
    pub fn parse_copy(extent: &[u8], header_bytes_max: usize) -> Result<(Self, Vec<u64>), FormatError> {
        let (_, raw) = RawExtentHeader::read_from_suffix(extent)
            .map_err(|_| FormatError::field(WHAT_COPY, "bytes", EXTENT_HEADER_BYTES, extent.len()))?;
        raw.check_magic(WHAT_COPY, MAGIC_OF_COPY)?;
        let header = Self::from_raw(&raw, WHAT_COPY, raw.header_bytes(WHAT_COPY, header_bytes_max)?)?;
        let bytes = header_copy_bytes(usize::from(header.record_count));
        let Some(at) = extent.len().checked_sub(bytes) else {
            return Err(FormatError::field(WHAT_COPY, "bytes", bytes, extent.len()));
        };
        let copy = &extent[at..];
        let of_checksum = bytes - EXTENT_HEADER_BYTES + 4;
        raw.check_checksum(WHAT_COPY, super::checksum_without(copy, of_checksum))?;
        Ok((header, read_records(copy, header.record_count).collect()))
    }

    fn to_raw(self, magic: u32) -> RawExtentHeader {
        RawExtentHeader {
            magic: U32::new(magic),
            checksum: U32::new(0),
            cache: U32::new(self.cache),
            extent_bytes: U32::new(self.extent_bytes),
            sequence: U64::new(self.sequence.0),
            generation: U64::new(self.generation.0),
            position: U64::new(self.position),
            flushes: U64::new(self.flushes),
            epoch: U32::new(self.epoch.0),
            record_count: U16::new(self.record_count),
            shard: U16::new(self.shard),
            ring: self.ring.number(),
            reserved: 0,
            header_bytes: U16::new(self.header_bytes),
            contents_checksum: U32::new(self.contents_checksum),
        }
    }

    fn from_raw(raw: &RawExtentHeader, what: &'static str, header_bytes: usize) -> Result<Self, FormatError> {
        let records_max = records_max(header_bytes);
        if usize::from(raw.record_count.get()) > records_max {
            let found = raw.record_count.get();
            return Err(FormatError::field(
                what,
                "records",
                format!("at most {records_max}"),
                found,
            ));
        }
        let Some(ring) = Ring::from_number(raw.ring) else {
            return Err(FormatError::field(what, "ring", "0 or 1", raw.ring));
        };
        if (raw.extent_bytes.get() as usize) < header_bytes {
            let expected = format!("at least {header_bytes}");
            return Err(FormatError::field(
                what,
                "length",
                expected,
                raw.extent_bytes.get(),
            ));
        }
        Ok(Self {
            cache: raw.cache.get(),
            extent_bytes: raw.extent_bytes.get(),
            sequence: Sequence(raw.sequence.get()),
            generation: Sequence(raw.generation.get()),
            position: raw.position.get(),
            flushes: raw.flushes.get(),
            epoch: Epoch(raw.epoch.get()),
            record_count: raw.record_count.get(),
            shard: raw.shard.get(),
            ring,
            header_bytes: raw.header_bytes.get(),
            contents_checksum: raw.contents_checksum.get(),
        })
    }
}

impl RawExtentHeader {
    /// The space for header and records, if it can be.
    fn header_bytes(&self, what: &'static str, most: usize) -> Result<usize, FormatError> {
        let found = usize::from(self.header_bytes.get());
        match is_header_size(found, most) {
            true => Ok(found),
            false => {
                let expected = format!("a power of two from {HEADER_BYTES_MIN} to {most}");
                Err(FormatError::field(what, "header bytes", expected, found))
            }
        }
    }

    fn check_magic(&self, what: &'static str, expected: u32) -> Result<(), FormatError> {
        match self.magic.get() == expected {
            true => Ok(()),
            false => Err(FormatError::Magic {
                what,
                expected: u64::from(expected),
                found: u64::from(self.magic.get()),
            }),
        }
    }

    fn check_checksum(&self, what: &'static str, computed: u32) -> Result<(), FormatError> {
        match self.checksum.get() == computed {
            true => Ok(()),
            false => Err(FormatError::Checksum {
                what,
                stored: self.checksum.get(),
                computed,
            }),
        }
    }
}

fn write_records(records: &[u64], area: &mut [u8]) {
    let room = area.chunks_exact_mut(RECORD_BYTES);
    assert!(
        room.len() >= records.len(),
        "{} records do not fit",
        records.len()
    );
    for (place, record) in room.zip(records) {
        place.copy_from_slice(&record.to_le_bytes());
    }
}

fn read_records(area: &[u8], count: u16) -> impl Iterator<Item = u64> {
    area.chunks_exact(RECORD_BYTES)
        .take(usize::from(count))
        .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes")))
}

/// The packed records of an extent whose header has been parsed.
pub fn records(extent: &[u8], count: u16) -> impl Iterator<Item = u64> {
    read_records(&extent[EXTENT_HEADER_BYTES..], count)
}

#[cfg(test)]
mod tests;
