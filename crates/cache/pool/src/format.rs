//! The bytes of a pool: its superblock in two slots, and the table of chunks with two copies of each sector. Pure.
//!
//! ```text
//! 0        superblock, slot 0 (64 KiB, of which 12 KiB are in use)
//! 64 KiB   superblock, slot 1
//! 128 KiB  chunk table, copy 0, whole pages; copy 1
//!          (rounded up to 64 KiB)
//!          chunk 0, chunk 1, ...
//! ```

use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::budget::PoolBudget;
use crate::error::PoolError;

/// First eight bytes of a cache device.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FLAZPOOL");
/// The version of this format.
pub const VERSION: u32 = 3;
/// Byte offsets of the superblock's slots.
pub const SLOTS: [u64; 2] = [0, 64 << 10];
/// Bytes of a slot in use.
pub const SUPERBLOCK_BYTES: usize = 12 << 10;
/// Most volumes of a pool.
pub const VOLUMES_MAX: usize = 64;
/// Longest name of a volume, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Fewest chunks of a pool.
pub const CHUNKS_MIN: u32 = 8;
/// Most chunks of a pool.
pub const CHUNKS_LIMIT: u32 = 1 << 25;
/// Smallest and largest chunk, in bytes.
pub const CHUNK_BYTES: std::ops::RangeInclusive<u64> = (128 << 10)..=(256 << 20);
/// A pool can grow to as many times its size.
pub const GROWTH_MAX: u32 = 8;
/// A pool can shrink to this part of the size that it was made with.
pub const SHRINK_MAX: u32 = 16;
const TABLE_OFFSET: u64 = 128 << 10;
const PAGE_BYTES: u64 = 4096;
const AREA_ALIGNMENT: u64 = 64 << 10;
const TABLE_MAGIC: u32 = u32::from_le_bytes(*b"FLZP");
const TABLE_HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 8;
const GENERATION_MAX: u64 = u64::MAX / 2;

/// Where everything lies on the cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLayout {
    /// Granularity of writes: 512 or 4096 bytes.
    pub sector_bytes: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Most chunks: the table has room for them.
    pub chunks_max: u32,
}

impl PoolLayout {
    /// Chunks that one sector of the table describes.
    #[must_use]
    pub fn chunks_per_sector(&self) -> u32 {
        (self.sector_bytes as usize - TABLE_HEADER_BYTES) as u32 / ENTRY_BYTES as u32
    }

    /// Sectors of one copy of the table.
    #[must_use]
    pub fn table_sectors(&self) -> u32 {
        self.chunks_max.div_ceil(self.chunks_per_sector())
    }

    /// Sectors of one copy that describe the first `chunks` chunks. The others are written when the pool grows.
    #[must_use]
    pub fn sectors_of(&self, chunks: u32) -> u32 {
        chunks.div_ceil(self.chunks_per_sector())
    }

    /// Byte offset of one copy (0 or 1) of a sector of the table.
    #[must_use]
    pub fn table_offset(&self, sector: u32, copy: usize) -> u64 {
        assert!(sector < self.table_sectors() && copy < 2, "sector {sector}");
        TABLE_OFFSET + copy as u64 * self.copy_len() + u64::from(sector) * u64::from(self.sector_bytes)
    }

    fn copy_len(&self) -> u64 {
        (u64::from(self.table_sectors()) * u64::from(self.sector_bytes)).next_multiple_of(PAGE_BYTES)
    }

    /// Byte offset of a chunk; of the number of chunks, the end of the last one.
    #[must_use]
    pub fn chunk_offset(&self, chunk: u32) -> u64 {
        let data = (TABLE_OFFSET + 2 * self.copy_len()).next_multiple_of(AREA_ALIGNMENT);
        data + u64::from(chunk) * self.chunk_bytes
    }

    /// The layout of a new pool, and how many chunks a device of `len` bytes has.
    ///
    /// # Errors
    /// [`PoolError::Field`]: the device is too small or too large, or a size cannot be used.
    pub fn plan(len: u64, sector_bytes: u32, chunk_bytes: u64) -> Result<(Self, u32), PoolError> {
        let rough = u32::try_from(len / chunk_bytes.max(1))
            .unwrap_or(u32::MAX)
            .min(CHUNKS_LIMIT / GROWTH_MAX);
        let layout = Self {
            sector_bytes,
            chunk_bytes,
            chunks_max: (rough * GROWTH_MAX).max(CHUNKS_MIN),
        };
        layout.check()?;
        let chunks = layout.chunks_of(len);
        if chunks < CHUNKS_MIN {
            let expected = format!("at least {} bytes", layout.chunk_offset(CHUNKS_MIN));
            return Err(PoolError::field("device size", expected, len));
        }
        Ok((layout, chunks))
    }

    /// How many chunks a device of `len` bytes has room for.
    #[must_use]
    pub fn chunks_of(&self, len: u64) -> u32 {
        let chunks = len.saturating_sub(self.chunk_offset(0)) / self.chunk_bytes;
        chunks.min(self.chunks_max.into()) as u32
    }

    fn check(&self) -> Result<(), PoolError> {
        if !matches!(self.sector_bytes, 512 | 4096) {
            return Err(PoolError::field("sector size", "512 or 4096", self.sector_bytes));
        }
        if !self.chunk_bytes.is_power_of_two() || !CHUNK_BYTES.contains(&self.chunk_bytes) {
            let expected = "a power of two from 128 KiB to 256 MiB";
            return Err(PoolError::field("chunk size", expected, self.chunk_bytes));
        }
        if !(CHUNKS_MIN..=CHUNKS_LIMIT).contains(&self.chunks_max) {
            let expected = format!("{CHUNKS_MIN} to {CHUNKS_LIMIT}");
            return Err(PoolError::field("most chunks", expected, self.chunks_max));
        }
        Ok(())
    }
}

/// A volume in the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Never used twice. 0 is no volume.
    pub number: u32,
    /// Of the volume's cache.
    pub uuid: Uuid,
    /// The volume's name.
    pub name: String,
    /// Bytes of its own cache device before the first region.
    pub front_bytes: u64,
    /// Chunks without which its cache cannot work: its front, and the fewest regions.
    pub least: u32,
    /// Chunks that no other volume gets.
    pub at_least: u32,
    /// Most chunks that it gets; 0: no limit.
    pub at_most: u32,
}

impl VolumeEntry {
    /// Chunks that the volume always has, or can have.
    #[must_use]
    pub fn guarantee(&self) -> u32 {
        self.least.max(self.at_least)
    }
}

/// Identity and volumes of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSuperblock {
    /// Of the pool.
    pub uuid: Uuid,
    /// Increases with every write.
    pub generation: u64,
    /// Where everything lies.
    pub layout: PoolLayout,
    /// Chunks now.
    pub chunks: u32,
    /// Most chunks that there ever were: the devices of the volumes have so many parts.
    pub chunks_before: u32,
    /// Chunks from this one on are being emptied, and no volume gets them.
    pub shrink_to: Option<u32>,
    /// The next volume's number.
    pub next_volume: u32,
    /// The volumes, in the order of their numbers.
    pub volumes: Vec<VolumeEntry>,
    /// What all volumes together may write.
    pub budget: Option<PoolBudget>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    magic: U64,
    version: U32,
    checksum: U32,
    uuid: [u8; 16],
    generation: U64,
    chunk_bytes: U64,
    sector_bytes: U32,
    chunks: U32,
    chunks_max: U32,
    next_volume: U32,
    volume_count: U32,
    chunks_before: U32,
    /// 0: all chunks may be used.
    shrink_to: U32,
    reserved: U32,
    /// 0: no budget.
    budget_per_day: U64,
    budget_used: U64,
    budget_at_ms: U64,
    reserved_for_more: [u8; 3992],
    volumes: [RawVolume; VOLUMES_MAX],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawVolume {
    number: U32,
    name_len: U32,
    uuid: [u8; 16],
    front_bytes: U64,
    at_least: U32,
    at_most: U32,
    least: U32,
    reserved: [u8; 20],
    name: [u8; NAME_BYTES_MAX],
}

const _: () = assert!(size_of::<RawVolume>() == 128);
const _: () = assert!(size_of::<RawSuperblock>() == 4096 + 8192);
const _: () = assert!(size_of::<RawSuperblock>() <= SUPERBLOCK_BYTES);

impl PoolSuperblock {
    /// First four bytes of the UUID: identifies the pool in its table.
    #[must_use]
    pub fn id(&self) -> u32 {
        let bytes = self.uuid.as_bytes();
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// The bytes of a slot.
    ///
    /// # Errors
    /// [`PoolError::Field`]: it would not be read back.
    pub fn to_bytes(&self) -> Result<Vec<u8>, PoolError> {
        self.check()?;
        let mut raw = RawSuperblock::new_zeroed();
        raw.magic = U64::new(MAGIC);
        raw.version = U32::new(VERSION);
        raw.uuid = *self.uuid.as_bytes();
        raw.generation = U64::new(self.generation);
        raw.chunk_bytes = U64::new(self.layout.chunk_bytes);
        raw.sector_bytes = U32::new(self.layout.sector_bytes);
        raw.chunks = U32::new(self.chunks);
        raw.chunks_max = U32::new(self.layout.chunks_max);
        raw.next_volume = U32::new(self.next_volume);
        raw.volume_count = U32::new(self.volumes.len() as u32);
        raw.chunks_before = U32::new(self.chunks_before);
        raw.shrink_to = U32::new(self.shrink_to.unwrap_or(0));
        if let Some(budget) = &self.budget {
            raw.budget_per_day = U64::new(budget.per_day);
            raw.budget_used = U64::new(budget.used);
            raw.budget_at_ms = U64::new(budget.at_ms);
        }
        for (raw, volume) in raw.volumes.iter_mut().zip(&self.volumes) {
            raw.number = U32::new(volume.number);
            raw.name_len = U32::new(volume.name.len() as u32);
            raw.uuid = *volume.uuid.as_bytes();
            raw.front_bytes = U64::new(volume.front_bytes);
            raw.at_least = U32::new(volume.at_least);
            raw.at_most = U32::new(volume.at_most);
            raw.least = U32::new(volume.least);
            raw.name[..volume.name.len()].copy_from_slice(volume.name.as_bytes());
        }
        raw.checksum = U32::new(crc32c::crc32c(raw.as_bytes()));
        Ok(raw.as_bytes().to_vec())
    }

    /// Parses a slot and checks it against a device of `device_len` bytes.
    ///
    /// # Errors
    /// [`PoolError::Field`]: not a superblock, damaged, of another version, or it does not fit the device.
    pub fn parse(slot: &[u8], device_len: u64) -> Result<Self, PoolError> {
        let (raw, _) = RawSuperblock::read_from_prefix(slot)
            .map_err(|_| PoolError::field("superblock size", SUPERBLOCK_BYTES, slot.len()))?;
        if raw.magic.get() != MAGIC {
            return Err(PoolError::field(
                "magic number",
                format!("{MAGIC:#x}"),
                format!("{:#x}", raw.magic.get()),
            ));
        }
        let computed = checksum(raw.as_bytes(), 12);
        if raw.checksum.get() != computed {
            return Err(PoolError::field("checksum", raw.checksum.get(), computed));
        }
        if raw.version.get() != VERSION {
            return Err(PoolError::field("format version", VERSION, raw.version.get()));
        }
        let count = raw.volume_count.get() as usize;
        let Some(volumes) = raw.volumes.get(..count) else {
            return Err(PoolError::field(
                "volumes",
                format!("at most {VOLUMES_MAX}"),
                count,
            ));
        };
        let volumes = volumes.iter().map(parse_volume).collect::<Result<_, _>>()?;
        let parsed = Self {
            uuid: Uuid::from_bytes(raw.uuid),
            generation: raw.generation.get(),
            layout: PoolLayout {
                sector_bytes: raw.sector_bytes.get(),
                chunk_bytes: raw.chunk_bytes.get(),
                chunks_max: raw.chunks_max.get(),
            },
            chunks: raw.chunks.get(),
            chunks_before: raw.chunks_before.get(),
            shrink_to: (raw.shrink_to.get() > 0).then_some(raw.shrink_to.get()),
            next_volume: raw.next_volume.get(),
            volumes,
            budget: (raw.budget_per_day.get() > 0).then_some(PoolBudget {
                per_day: raw.budget_per_day.get(),
                used: raw.budget_used.get(),
                at_ms: raw.budget_at_ms.get(),
            }),
        };
        parsed.check()?;
        let end = parsed.layout.chunk_offset(parsed.chunks);
        if end > device_len {
            return Err(PoolError::field(
                "device size",
                format!("at least {end} bytes"),
                device_len,
            ));
        }
        Ok(parsed)
    }

    fn check(&self) -> Result<(), PoolError> {
        self.layout.check()?;
        if let Some(budget) = &self.budget {
            budget.check()?;
        }
        if !(CHUNKS_MIN..=self.layout.chunks_max).contains(&self.chunks) {
            let expected = format!("{CHUNKS_MIN} to {}", self.layout.chunks_max);
            return Err(PoolError::field("chunks", expected, self.chunks));
        }
        if !(self.chunks..=self.layout.chunks_max).contains(&self.chunks_before) {
            let expected = format!("{} to {}", self.chunks, self.layout.chunks_max);
            return Err(PoolError::field("chunks before", expected, self.chunks_before));
        }
        if let Some(target) = self.shrink_to
            && !(CHUNKS_MIN..self.chunks).contains(&target)
        {
            let expected = format!("{CHUNKS_MIN} to {}", self.chunks - 1);
            return Err(PoolError::field("chunks after a shrink", expected, target));
        }
        // Memory is taken for them: no more than a device of this size can need.
        let room = self.usable().saturating_mul(SHRINK_MAX * GROWTH_MAX);
        if self.layout.chunks_max > room {
            return Err(PoolError::field(
                "most chunks",
                format!("at most {room}"),
                self.layout.chunks_max,
            ));
        }
        if self.generation > GENERATION_MAX || self.volumes.len() > VOLUMES_MAX {
            let found = format!("{}, {}", self.generation, self.volumes.len());
            return Err(PoolError::field(
                "generation and volumes",
                "smaller numbers",
                found,
            ));
        }
        let front_max = self.layout.chunk_bytes * u64::from(self.layout.chunks_max);
        for (at, volume) in self.volumes.iter().enumerate() {
            let before = self.volumes[..at].iter();
            let rising = before.clone().all(|other| other.number < volume.number);
            if volume.number == 0 || volume.number >= self.next_volume || !rising {
                let expected = format!("rising ones from 1 to {}", self.next_volume.saturating_sub(1));
                return Err(PoolError::field("number of a volume", expected, volume.number));
            }
            let same = before
                .clone()
                .any(|other| other.name == volume.name || other.uuid == volume.uuid);
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let is_name =
                (1..=NAME_BYTES_MAX).contains(&volume.name.len()) && volume.name.bytes().all(is_plain);
            if same || !is_name {
                let expected =
                    format!("another one, of 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'");
                return Err(PoolError::field("name of a volume", expected, &volume.name));
            }
            if volume.front_bytes == 0
                || volume.front_bytes > front_max
                || !volume.front_bytes.is_multiple_of(self.layout.sector_bytes.into())
            {
                let expected = format!("1 to {front_max} bytes in whole sectors");
                return Err(PoolError::field(
                    "front of a volume",
                    expected,
                    volume.front_bytes,
                ));
            }
            if volume.at_most > 0 && volume.at_most < volume.guarantee() {
                let expected = format!("at least {}", volume.guarantee());
                return Err(PoolError::field(
                    "most chunks of a volume",
                    expected,
                    volume.at_most,
                ));
            }
        }
        Ok(())
    }

    /// Chunks that volumes may use: those before the end of a shrink.
    #[must_use]
    pub fn usable(&self) -> u32 {
        self.shrink_to.unwrap_or(self.chunks)
    }

    /// Fewest chunks to which the pool can shrink: the volumes need, or are guaranteed, some, and the table is not too large for them.
    #[must_use]
    pub fn chunks_least(&self) -> u32 {
        let guaranteed: u64 = self
            .volumes
            .iter()
            .map(|volume| u64::from(volume.guarantee()))
            .sum();
        let least = self
            .layout
            .chunks_max
            .div_ceil(SHRINK_MAX * GROWTH_MAX)
            .max(CHUNKS_MIN);
        u32::try_from(guaranteed).unwrap_or(u32::MAX).max(least)
    }

    /// Chunks of a volume's cache device before its first region.
    #[must_use]
    pub fn front_chunks(&self, volume: &VolumeEntry) -> u32 {
        volume.front_bytes.div_ceil(self.layout.chunk_bytes) as u32
    }
}

fn parse_volume(raw: &RawVolume) -> Result<VolumeEntry, PoolError> {
    let len = raw.name_len.get() as usize;
    let name = raw
        .name
        .get(..len)
        .and_then(|bytes| std::str::from_utf8(bytes).ok());
    let name = name.ok_or_else(|| PoolError::field("name of a volume", "UTF-8 of its length", len))?;
    Ok(VolumeEntry {
        number: raw.number.get(),
        uuid: Uuid::from_bytes(raw.uuid),
        name: name.to_owned(),
        front_bytes: raw.front_bytes.get(),
        at_least: raw.at_least.get(),
        at_most: raw.at_most.get(),
        least: raw.least.get(),
    })
}

/// The owner of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// Number of the volume.
    pub volume: u32,
    /// Which chunk of the volume's cache device lies there.
    pub index: u32,
}

/// A sector of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSector {
    /// Identifies the pool.
    pub pool: u32,
    /// Number of the sector.
    pub number: u32,
    /// Increases with each write of the sector.
    pub generation: u64,
    /// The owners of its chunks.
    pub owners: Vec<Option<Owner>>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTableHeader {
    magic: U32,
    checksum: U32,
    pool: U32,
    number: U32,
    generation: U64,
    reserved: [u8; 8],
}

const _: () = assert!(size_of::<RawTableHeader>() == TABLE_HEADER_BYTES);

impl TableSector {
    /// Fills `out`, a whole sector.
    ///
    /// # Panics
    /// When the entries do not fit.
    pub fn write(&self, out: &mut [u8]) {
        out.fill(0);
        let header = RawTableHeader {
            magic: U32::new(TABLE_MAGIC),
            checksum: U32::new(0),
            pool: U32::new(self.pool),
            number: U32::new(self.number),
            generation: U64::new(self.generation),
            reserved: [0; 8],
        };
        let (head, entries) = out.split_at_mut(TABLE_HEADER_BYTES);
        head.copy_from_slice(header.as_bytes());
        assert!(self.owners.len() <= entries.len() / ENTRY_BYTES, "they fit");
        for (place, owner) in entries.chunks_exact_mut(ENTRY_BYTES).zip(&self.owners) {
            let (volume, index) = owner.map_or((0, 0), |owner| (owner.volume, owner.index));
            place[..4].copy_from_slice(&volume.to_le_bytes());
            place[4..].copy_from_slice(&index.to_le_bytes());
        }
        let checksum = checksum(out, 4);
        out[4..8].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Parses a sector that must describe `count` chunks.
    ///
    /// # Errors
    /// [`PoolError::Field`]: damaged, or another sector.
    pub fn parse(bytes: &[u8], pool: u32, number: u32, count: usize) -> Result<Self, PoolError> {
        let (header, entries) = RawTableHeader::read_from_prefix(bytes)
            .map_err(|_| PoolError::field("sector size", TABLE_HEADER_BYTES, bytes.len()))?;
        if header.magic.get() != TABLE_MAGIC {
            return Err(PoolError::field("magic number", TABLE_MAGIC, header.magic.get()));
        }
        let computed = checksum(bytes, 4);
        if header.checksum.get() != computed {
            return Err(PoolError::field("checksum", header.checksum.get(), computed));
        }
        let place = (header.pool.get(), header.number.get());
        if place != (pool, number) {
            return Err(PoolError::field(
                "pool and number",
                format!("{:?}", (pool, number)),
                format!("{place:?}"),
            ));
        }
        if header.generation.get() > GENERATION_MAX {
            return Err(PoolError::field(
                "generation",
                GENERATION_MAX,
                header.generation.get(),
            ));
        }
        let owner = |entry: &[u8]| {
            let word =
                |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
            let (volume, index) = (word(0), word(4));
            (volume > 0).then_some(Owner { volume, index })
        };
        let owners: Vec<_> = entries.chunks_exact(ENTRY_BYTES).take(count).map(owner).collect();
        if owners.len() != count {
            return Err(PoolError::field("chunks of a sector", owners.len(), count));
        }
        Ok(Self {
            pool,
            number,
            generation: header.generation.get(),
            owners,
        })
    }
}

/// CRC-32C of a structure whose checksum field, at byte `at`, counts as zero.
fn checksum(bytes: &[u8], at: usize) -> u32 {
    let crc = crc32c::crc32c(&bytes[..at]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &bytes[at + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> PoolSuperblock {
        let (layout, chunks) = PoolLayout::plan(64 << 20, 512, 256 << 10).expect("fits");
        let volume = |number, name: &str| VolumeEntry {
            least: 3,
            number,
            uuid: Uuid::from_u128(number.into()),
            name: name.into(),
            front_bytes: 192 << 10,
            at_least: 8,
            at_most: 0,
        };
        PoolSuperblock {
            uuid: Uuid::from_bytes([7; 16]),
            generation: 3,
            layout,
            chunks,
            chunks_before: chunks + 4,
            shrink_to: Some(chunks - 4),
            next_volume: 9,
            volumes: vec![volume(2, "databases"), volume(5, "images")],
            budget: PoolBudget::full(1 << 40, 1 << 41).ok(),
        }
    }

    #[test]
    fn a_superblock_reads_back_and_finds_every_flipped_byte() {
        let mut bytes = superblock().to_bytes().expect("valid");
        assert_eq!(
            PoolSuperblock::parse(&bytes, 64 << 20).expect("valid"),
            superblock()
        );
        for at in 0..bytes.len() {
            bytes[at] ^= 4;
            assert!(PoolSuperblock::parse(&bytes, 64 << 20).is_err(), "byte {at}");
            bytes[at] ^= 4;
        }
        assert!(
            PoolSuperblock::parse(&bytes, 32 << 20).is_err(),
            "a smaller device"
        );
    }

    #[test]
    fn absurd_superblocks_are_refused() {
        let change: [fn(&mut PoolSuperblock); 13] = [
            |it| it.chunks = 0,
            |it| it.chunks = it.layout.chunks_max + 1,
            |it| it.chunks_before = it.chunks - 1,
            |it| it.chunks_before = it.layout.chunks_max + 1,
            |it| it.shrink_to = Some(it.chunks),
            |it| it.shrink_to = Some(CHUNKS_MIN - 1),
            |it| it.layout.chunk_bytes = 3,
            |it| it.layout.sector_bytes = 1024,
            |it| it.next_volume = 5,
            |it| it.volumes[1].name = "databases".into(),
            |it| it.volumes[1].number = 1,
            |it| it.volumes[0].front_bytes = 1 << 60,
            |it| it.budget.as_mut().expect("there is one").used = u64::MAX,
        ];
        for (number, change) in change.iter().enumerate() {
            let mut absurd = superblock();
            change(&mut absurd);
            assert!(absurd.to_bytes().is_err(), "change {number}");
        }
    }

    #[test]
    fn a_sector_of_the_table_reads_back() {
        let layout = superblock().layout;
        let count = layout.chunks_per_sector() as usize;
        assert_eq!(count, 60);
        let sector = TableSector {
            pool: 7,
            number: 1,
            generation: 4,
            owners: (0..count as u32)
                .map(|index| {
                    (index % 3 > 0).then_some(Owner {
                        volume: index % 3,
                        index,
                    })
                })
                .collect(),
        };
        let mut bytes = [0; 512];
        sector.write(&mut bytes);
        assert_eq!(TableSector::parse(&bytes, 7, 1, count).expect("valid"), sector);
        assert!(
            TableSector::parse(&bytes, 8, 1, count).is_err(),
            "of another pool"
        );
        for at in 0..512 {
            bytes[at] ^= 1;
            assert!(TableSector::parse(&bytes, 7, 1, count).is_err(), "byte {at}");
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn the_parts_of_a_device_do_not_overlap() {
        for (len, sector, chunk) in [
            (4u64 << 20, 512, 128u64 << 10),
            (64 << 30, 4096, 16 << 20),
            (1 << 40, 512, 16 << 20),
        ] {
            let (layout, chunks) = PoolLayout::plan(len, sector, chunk).expect("fits");
            let last = layout.table_sectors() - 1;
            let copy_end = layout.table_offset(last, 0) + u64::from(sector);
            assert!(copy_end <= layout.table_offset(0, 1));
            assert!(layout.table_offset(last, 1) + u64::from(sector) <= layout.chunk_offset(0));
            assert!(layout.chunk_offset(chunks) <= len && layout.chunk_offset(chunks + 1) > len);
            assert!(u64::from(layout.chunks_max) >= 8 * u64::from(chunks));
        }
        assert!(PoolLayout::plan(1 << 20, 512, 256 << 10).is_err());
    }
}
