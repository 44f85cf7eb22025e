//! The fingerprint of an origin: shows whether the origin was mounted or written to while its cache was off.
//!
//! A hash of the first [`FINGERPRINT_BYTES`] of the origin and of each of its partitions: file systems keep counts of
//! mounts and writes, and generations, there. A CRC is not suitable: file systems store CRCs of their own there, and a
//! change of some bytes together with the CRC-32C behind them leaves the CRC-32C of the whole unchanged. The contents of
//! volume managers, RAIDs and encrypted volumes are not examined.
//!
//! Partition tables are untrusted input. Only the starts of partitions are used, and only those within the origin; their
//! number is limited below. An MBR does not give the sector size, so both usual sizes are tried: a wrong start only makes
//! the hash cover more than necessary. Layouts: UEFI 2.10 section 5.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::Hasher;
use std::iter;
use std::num::NonZeroU32;

use flaz_device::{Device, IoBuf};
use twox_hash::XxHash64;

use crate::cache::error::CacheError;
use crate::volume::STRIPE_BYTES;

/// Bytes that a fingerprint covers at the start of the origin and of each partition: the superblocks of ext4, xfs and
/// btrfs, partition tables.
pub const FINGERPRINT_BYTES: u64 = 128 << 10;
/// GPT entries that are examined: the usual number.
pub const GPT_ENTRIES_MAX: u32 = 128;
/// Longest entry of a GPT, in bytes. The usual length is 128.
const GPT_ENTRY_BYTES_MAX: u32 = 4096;
/// Logical partitions of an MBR that are examined.
pub const LOGICAL_MAX: u32 = 60;
/// Most partitions that are examined.
pub const PARTITIONS_MAX: usize = 192;
/// Sector sizes that partition tables may use, in bytes.
const SECTOR_BYTES: [u64; 2] = [512, 4096];

/// A partition of an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as in Linux.
    pub number: u32,
    /// Start in bytes; within the origin.
    pub start: u64,
}

/// The fingerprint of an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Low half of the XXH64 (seed 0) of its first 128 KiB and of those of each partition. Never zero.
    pub value: NonZeroU32,
    /// CRC-32C of the same bytes, as stored by older versions of flaz. Never zero.
    pub crc: NonZeroU32,
    /// The stripes that were read: while nothing is written to them, the fingerprint stays the same.
    pub stripes: BTreeSet<u64>,
}

impl Fingerprint {
    /// Whether the origin is unchanged since `noted` was recorded.
    #[must_use]
    pub fn fits(&self, noted: NonZeroU32) -> bool {
        noted == self.value || noted == self.crc
    }
}

/// Reads an origin, and records which stripes.
struct Reader<'a, O> {
    origin: &'a O,
    /// Bytes of the origin that count.
    len: u64,
    stripes: RefCell<BTreeSet<u64>>,
}

impl<'a, O: Device> Reader<'a, O> {
    fn new(origin: &'a O, len: u64) -> Self {
        Self {
            origin,
            len,
            stripes: RefCell::default(),
        }
    }

    fn len(&self) -> u64 {
        self.len
    }

    async fn read(&self, start: u64, len: u64) -> Result<Vec<u8>, CacheError> {
        let end = start.saturating_add(len).min(self.len);
        if start >= end {
            return Ok(Vec::new());
        }
        let stripes = start / STRIPE_BYTES..end.div_ceil(STRIPE_BYTES);
        self.stripes.borrow_mut().extend(stripes);
        read_start(self.origin, start, end - start).await
    }
}

/// Reads bytes of an origin, fewer at its end.
///
/// # Errors
/// [`CacheError::Origin`] if the origin fails.
pub async fn read_start<O: Device>(origin: &O, start: u64, len: u64) -> Result<Vec<u8>, CacheError> {
    let align = u64::from(origin.alignment());
    let end = start.saturating_add(len).min(origin.len());
    let from = start / align * align;
    let to = end.next_multiple_of(align).min(origin.len() / align * align);
    if to <= from {
        return Ok(Vec::new());
    }
    let (bytes, result) = origin.read_at(from, IoBuf::new((to - from) as usize)).await;
    result.map_err(CacheError::Origin)?;
    let (skip, keep) = ((start - from) as usize, (end.min(to) - from) as usize);
    Ok(bytes.get(skip..keep).unwrap_or_default().to_vec())
}

/// The partitions of an origin, in the order of its tables; none if it has no table.
///
/// # Errors
/// [`CacheError::Origin`] if the origin fails.
pub async fn partitions<O: Device>(origin: &O) -> Result<Vec<Partition>, CacheError> {
    partitions_of(&Reader::new(origin, origin.len())).await
}

async fn partitions_of<O: Device>(origin: &Reader<'_, O>) -> Result<Vec<Partition>, CacheError> {
    let start = origin.read(0, 2 * SECTOR_BYTES[1]).await?;
    let mut found = Vec::new();
    for sector in SECTOR_BYTES {
        gpt(origin, &start, sector, &mut found).await?;
    }
    for sector in SECTOR_BYTES {
        mbr(origin, &start, sector, &mut found).await?;
    }
    let mut seen = std::collections::BTreeSet::from([0]);
    found.retain(|partition: &Partition| partition.start < origin.len() && seen.insert(partition.start));
    found.truncate(PARTITIONS_MAX);
    Ok(found)
}

/// Computes the fingerprint of the first `len` bytes of an origin. A partition may begin, or have its first bytes, beyond them:
/// an origin that has grown has the same fingerprint only for the same `len`.
///
/// # Errors
/// [`CacheError::Origin`] if the origin fails.
pub async fn fingerprint<O: Device>(origin: &O, len: u64) -> Result<Fingerprint, CacheError> {
    let reader = Reader::new(origin, len);
    let (mut hash, mut crc) = (XxHash64::with_seed(0), 0);
    let starts = partitions_of(&reader)
        .await?
        .into_iter()
        .map(|partition| partition.start);
    for start in iter::once(0).chain(starts) {
        let bytes = reader.read(start, FINGERPRINT_BYTES).await?;
        hash.write(&bytes);
        crc = crc32c::crc32c_append(crc, &bytes);
    }
    let not_zero = |value| NonZeroU32::new(value).unwrap_or(NonZeroU32::MIN);
    Ok(Fingerprint {
        value: not_zero(hash.finish() as u32),
        crc: not_zero(crc),
        stripes: reader.stripes.into_inner(),
    })
}

/// Adds the partitions of a GPT, if there is one with this sector size.
async fn gpt<O: Device>(
    origin: &Reader<'_, O>,
    start: &[u8],
    sector: u64,
    found: &mut Vec<Partition>,
) -> Result<(), CacheError> {
    let Some(header) = start.get(sector as usize..).and_then(|from| from.get(..92)) else {
        return Ok(());
    };
    if !header.starts_with(b"EFI PART") {
        return Ok(());
    }
    let (at, count, entry_bytes) = (le64(header, 72), le32(header, 80), le32(header, 84));
    if !(128..=GPT_ENTRY_BYTES_MAX).contains(&entry_bytes) {
        return Ok(());
    }
    let Some(at) = at.checked_mul(sector).filter(|at| *at < origin.len()) else {
        return Ok(());
    };
    let len = u64::from(count.min(GPT_ENTRIES_MAX)) * u64::from(entry_bytes);
    let table = origin.read(at, len).await?;
    for (entry, number) in table.chunks_exact(entry_bytes as usize).zip(1..) {
        let used = entry[..16].iter().any(|byte| *byte != 0);
        if let Some(start) = le64(entry, 32).checked_mul(sector).filter(|_| used) {
            found.push(Partition { number, start });
        }
    }
    Ok(())
}

/// An entry of an MBR or of an extended boot record: type and first sector.
struct MbrEntry {
    kind: u8,
    first: u64,
}

impl MbrEntry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }
}

/// The four entries of a boot record, if it is one. Boot sectors of file systems have the same signature, but their code is
/// very unlikely to look like a partition table.
fn boot_record(sector: &[u8]) -> Option<[MbrEntry; 4]> {
    let sector = sector.get(..512)?;
    let entry = |number: usize| &sector[446 + 16 * number..][..16];
    let is_table = sector[510..] == [0x55, 0xaa] && (0..4).all(|number| entry(number)[0] & 0x7f == 0);
    is_table.then(|| {
        [0, 1, 2, 3].map(|number| MbrEntry {
            kind: entry(number)[4],
            first: u64::from(le32(entry(number), 8)),
        })
    })
}

/// Adds the partitions of an MBR, assuming this sector size.
async fn mbr<O: Device>(
    origin: &Reader<'_, O>,
    start: &[u8],
    sector: u64,
    found: &mut Vec<Partition>,
) -> Result<(), CacheError> {
    let Some(entries) = boot_record(start) else {
        return Ok(());
    };
    for (entry, number) in entries.iter().zip(1..) {
        let start = entry.first * sector;
        // 0xee marks a GPT.
        if entry.kind == 0 || entry.kind == 0xee || entry.first == 0 || start >= origin.len() {
            continue;
        }
        found.push(Partition { number, start });
        if entry.is_extended() {
            logical(origin, entry.first, sector, found).await?;
        }
    }
    Ok(())
}

/// Adds the partitions in an extended partition: a chain of boot records, each with one partition and the location of the
/// next.
async fn logical<O: Device>(
    origin: &Reader<'_, O>,
    extended: u64,
    sector: u64,
    found: &mut Vec<Partition>,
) -> Result<(), CacheError> {
    let mut record = extended;
    for number in (5..).take(LOGICAL_MAX as usize) {
        if record * sector >= origin.len() {
            break;
        }
        let Some([inside, next, ..]) = boot_record(&origin.read(record * sector, 512).await?) else {
            break;
        };
        if inside.kind != 0 && inside.first != 0 {
            let start = (record + inside.first) * sector;
            found.push(Partition { number, start });
        }
        if !next.is_extended() || next.first == 0 {
            break;
        }
        record = extended + next.first;
    }
    Ok(())
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}
