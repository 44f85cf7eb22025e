//! What tells an origin that was mounted or written to from one that was left alone, while its cache was off.
//!
//! A hash of the first [`FINGERPRINT_BYTES`] of the origin and of each of its partitions: there file systems count
//! their mounts, writes and generations, whatever else they change. No CRC: file systems put CRCs of their own there, and
//! a change of some bytes together with the CRC-32C behind them leaves the CRC-32C of the whole as it was. What lies in a volume manager, a RAID or an
//! encrypted volume is not looked for.
//!
//! The partition tables are whatever somebody wrote there. Of what they say, starts alone are used, and only those
//! within the origin; their numbers are bounded below. As the length of a sector is not told by an MBR, both usual ones
//! are tried: a place too many makes the checksum cover more than it must, and no more. Layouts: UEFI 2.10 section 5.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::Hasher;
use std::iter;
use std::num::NonZeroU32;

use flaz_device::{Device, IoBuf};
use twox_hash::XxHash64;

use crate::cache::CacheError;
use crate::volume::STRIPE_BYTES;

/// Bytes that a fingerprint covers at the start of the origin and of each partition: the superblocks of ext4, xfs and
/// btrfs, partition tables.
pub const FINGERPRINT_BYTES: u64 = 128 << 10;
/// Entries of a GPT that are looked at, which is what everybody makes.
pub const GPT_ENTRIES_MAX: u32 = 128;
/// Longest entry of a GPT, in bytes. The usual one has 128.
const GPT_ENTRY_BYTES_MAX: u32 = 4096;
/// Logical partitions of an MBR that are looked at.
pub const LOGICAL_MAX: u32 = 60;
/// Partitions that are looked at in all.
pub const PARTITIONS_MAX: usize = 192;
/// Lengths of a sector in which partition tables count, in bytes.
const SECTOR_BYTES: [u64; 2] = [512, 4096];

/// A partition of an origin, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as Linux counts.
    pub number: u32,
    /// Where it begins, in bytes; inside the origin.
    pub start: u64,
}

/// What an origin begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Low half of the XXH64 (seed 0) of its first 128 KiB and of those of each partition. Never zero.
    pub value: NonZeroU32,
    /// CRC-32C of the same bytes, which is what caches have whose server was built before. Never zero.
    pub crc: NonZeroU32,
    /// The stripes that were looked at: as long as nobody writes there it stays the same.
    pub stripes: BTreeSet<u64>,
}

impl Fingerprint {
    /// Whether the origin is what it was when this was noted.
    #[must_use]
    pub fn fits(&self, noted: NonZeroU32) -> bool {
        noted == self.value || noted == self.crc
    }
}

/// Reads an origin, and notes where.
struct Reader<'a, O> {
    origin: &'a O,
    stripes: RefCell<BTreeSet<u64>>,
}

impl<'a, O: Device> Reader<'a, O> {
    fn new(origin: &'a O) -> Self {
        Self {
            origin,
            stripes: RefCell::default(),
        }
    }

    fn len(&self) -> u64 {
        self.origin.len()
    }

    async fn read(&self, start: u64, len: u64) -> Result<Vec<u8>, CacheError> {
        let end = start.saturating_add(len).min(self.origin.len());
        if start < end {
            let stripes = start / STRIPE_BYTES..end.div_ceil(STRIPE_BYTES);
            self.stripes.borrow_mut().extend(stripes);
        }
        read_start(self.origin, start, len).await
    }
}

/// Reads bytes of an origin, fewer where it ends.
///
/// # Errors
/// [`CacheError::Origin`] when the origin fails.
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

/// The partitions of an origin, in the order of its tables; none where it has no table.
///
/// # Errors
/// [`CacheError::Origin`] when the origin fails.
pub async fn partitions<O: Device>(origin: &O) -> Result<Vec<Partition>, CacheError> {
    partitions_of(&Reader::new(origin)).await
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

/// Tells an origin that was mounted or written to from one that was left alone.
///
/// # Errors
/// [`CacheError::Origin`] when the origin fails.
pub async fn fingerprint<O: Device>(origin: &O) -> Result<Fingerprint, CacheError> {
    let reader = Reader::new(origin);
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

/// Adds what a GPT lists, if there is one whose sectors have this length.
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

/// An entry of an MBR or of an extended boot record: kind and first sector.
struct MbrEntry {
    kind: u8,
    first: u64,
}

impl MbrEntry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }
}

/// The four entries of a boot record, if it is one. Boot sectors of file systems bear the same signature, but their code
/// is hardly ever a table of partitions.
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

/// Adds what an MBR lists, its sectors taken to have this length.
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
        // 0xee stands for a GPT.
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

/// Adds the partitions in an extended one: a chain of boot records, each with one partition and the place of the next.
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
