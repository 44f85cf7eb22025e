//! Reading a pool: the superblock, and the table as far as there are chunks. Nothing is written.

use flaz_device::{Device, IoBuf};

use crate::error::PoolError;
use crate::format::{MAGIC, PoolSuperblock, SLOTS, SUPERBLOCK_BYTES, TableSector};
use crate::table::Table;

/// With this begins the superblock of a cache of one origin.
const CACHE_MAGIC: &[u8] = b"FLAZCACH";
/// Bytes of the table that are read at a time.
const READ_BYTES: u32 = 1 << 20;

/// The newest superblock, and whether the slots differ.
async fn read_superblock<D: Device>(device: &D) -> Result<(PoolSuperblock, bool), PoolError> {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    let (mut has_pool, mut has_cache, mut is_read) = (false, false, true);
    for slot in SLOTS {
        let (buf, result) = device.read_at(slot, IoBuf::new(SUPERBLOCK_BYTES)).await;
        is_read &= result.is_ok();
        match result
            .map_err(PoolError::from)
            .and_then(|()| PoolSuperblock::parse(&buf, device.len()))
        {
            Ok(superblock) => found.push(superblock),
            Err(error) => errors.push(error.to_string()),
        }
        has_pool |= buf.starts_with(&MAGIC.to_le_bytes());
        has_cache |= buf.starts_with(CACHE_MAGIC);
    }
    let differ = found.len() < 2 || found[0] != found[1];
    let newest = found.into_iter().max_by_key(|superblock| superblock.generation);
    let newest = newest.ok_or_else(|| match (has_pool, has_cache) {
        (false, true) => PoolError::NotShared,
        (false, false) if is_read => PoolError::NoPool,
        _ => {
            let mut errors = errors.into_iter();
            let mut next = || errors.next().unwrap_or_default();
            PoolError::NoSuperblock(next(), next())
        }
    })?;
    Ok((newest, differ))
}

/// One copy of the first `sectors` sectors of the table.
async fn read_copy<D: Device>(
    device: &D,
    superblock: &PoolSuperblock,
    sectors: u32,
    copy: usize,
) -> Vec<Result<TableSector, PoolError>> {
    let layout = superblock.layout;
    let each = layout.sector_bytes;
    let mut found = Vec::with_capacity(sectors as usize);
    while (found.len() as u32) < sectors {
        let first = found.len() as u32;
        let some = (sectors - first).min(READ_BYTES / each);
        let position = layout.table_offset(first, copy);
        let (buf, result) = device.read_at(position, IoBuf::new((some * each) as usize)).await;
        if let Err(error) = result {
            if some > 1 {
                // One sector may be unreadable: they are read one by one.
                for number in first..first + some {
                    let position = layout.table_offset(number, copy);
                    let (buf, result) = device.read_at(position, IoBuf::new(each as usize)).await;
                    let result = result.map_err(PoolError::from);
                    found.push(result.and_then(|()| parse_sector(&buf, superblock, number)));
                }
            } else {
                found.push(Err(error.into()));
            }
            continue;
        }
        let bytes = buf.chunks_exact(each as usize);
        found.extend(
            (first..)
                .zip(bytes)
                .map(|(number, bytes)| parse_sector(bytes, superblock, number)),
        );
    }
    found
}

fn parse_sector(bytes: &[u8], superblock: &PoolSuperblock, number: u32) -> Result<TableSector, PoolError> {
    let layout = superblock.layout;
    let count = layout
        .chunks_per_sector()
        .min(layout.chunks_max - number * layout.chunks_per_sector());
    TableSector::parse(bytes, superblock.id(), number, count as usize)
}

/// What the device says.
pub(crate) struct Found {
    pub(crate) superblock: PoolSuperblock,
    pub(crate) table: Table,
    /// Of all sectors, those behind the last chunk too: these are 0, and the sectors are written when the pool grows.
    pub(crate) generations: Vec<u64>,
    /// Sectors whose copies differ, or that name a second chunk of a part.
    pub(crate) differ: Vec<u32>,
    pub(crate) slots_differ: bool,
}

/// Reads the superblock, and the table of the chunks that there are.
pub(crate) async fn read<D: Device>(device: &D) -> Result<Found, PoolError> {
    let (superblock, slots_differ) = read_superblock(device).await?;
    let layout = superblock.layout;
    let sectors = layout.sectors_of(superblock.chunks);
    let copies = [
        read_copy(device, &superblock, sectors, 0).await,
        read_copy(device, &superblock, sectors, 1).await,
    ];
    let [first, second] = copies;
    let (mut owners, mut generations, mut differ) = (Vec::new(), Vec::new(), Vec::new());
    for (number, pair) in (0..).zip(first.into_iter().zip(second)) {
        let newest = match pair {
            (Ok(one), Ok(other)) => {
                if one != other {
                    differ.push(number);
                }
                if one.generation >= other.generation {
                    one
                } else {
                    other
                }
            }
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => {
                differ.push(number);
                one
            }
            (Err(first), Err(second)) => {
                return Err(PoolError::Table {
                    sector: number,
                    first: first.to_string(),
                    second: second.to_string(),
                });
            }
        };
        generations.push(newest.generation);
        owners.extend(newest.owners);
    }
    generations.resize(layout.table_sectors() as usize, 0);
    let of = |number| superblock.volumes.iter().find(|volume| volume.number == number);
    owners.truncate(superblock.chunks as usize);
    for owner in owners.iter().flatten() {
        let parts = of(owner.volume).map(|volume| superblock.front_chunks(volume) + layout.chunks_max);
        if parts.is_some_and(|parts| owner.index >= parts) {
            let text = format!("volume {} has no part {}", owner.volume, owner.index);
            return Err(PoolError::Contradiction(text));
        }
    }
    let table = Table::new(&owners, superblock.usable(), |number| of(number).is_some())?;
    differ.extend(table.copies().map(|chunk| chunk / layout.chunks_per_sector()));
    differ.sort_unstable();
    differ.dedup();
    Ok(Found {
        superblock,
        table,
        generations,
        differ,
        slots_differ,
    })
}
