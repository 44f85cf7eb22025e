//! Damage that the contract promises to survive, crash or not, in every mode.
//!
//! The manifest marks a closed region full, and its summary lists all of its records, so damage to one extent hides no
//! other: all acknowledged data must still be read, or give an error. Extents of an open region are found by walking them
//! in order, and damage to one may hide later ones: only flushed data is guaranteed then.

use flaz_engine::format::extent::ExtentHeader;
use flaz_engine::format::geometry::{SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use flaz_engine::format::manifest::{ManifestEntry, ManifestSector, RegionUse};
use flaz_engine::format::summary::{Summary, check_extents};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::units::Sequence;
use flaz_sim::{Rng, SimDisk};

use super::sectors::SECTOR;

/// Start of the area where bits may rot: after both superblocks, one of which must be valid.
pub const ROT_FROM: u64 = SUPERBLOCK_SLOTS[1] + SUPERBLOCK_BYTES as u64;

/// A region that the manifest marks full, with its contents.
struct Closed {
    /// Byte offset on the device.
    position: u64,
    /// Bytes of extents.
    used: u64,
    /// Start and length of the summary.
    summary_at: u64,
    summary_len: u64,
    /// Offset within the region and length of each extent.
    extents: Vec<(u64, u64)>,
}

/// What to damage, and a number that decides the details.
#[derive(Clone, Copy, Debug)]
pub enum Damage {
    /// A closed region.
    Closed(u64),
    /// An extent of an open region.
    Newest(u64),
}

/// Permanently damages an extent of an open region; false: there is none. A bit of it, or all of it: a lost write.
pub fn damage_newest(disk: &SimDisk, pick: u64) -> bool {
    let mut rng = Rng::new(pick);
    let mut extents = open_extents(disk);
    extents.sort_unstable();
    // The last extents of each ring matter most.
    let last = extents
        .len()
        .saturating_sub(if rng.coin() { 2 } else { extents.len() });
    if extents.is_empty() {
        return false;
    }
    let (_, position, len) = extents[last + rng.below((extents.len() - last) as u64) as usize];
    match rng.below(6) {
        0 => disk.poke(position, &vec![0; len as usize]),
        1 => disk.flip_bit(position + rng.below(SECTOR as u64), rng.below(8) as u8),
        _ => disk.flip_bit(position + rng.below(len), rng.below(8) as u8),
    }
    true
}

/// Sequence, position and length of the extents of open regions.
fn open_extents(disk: &SimDisk) -> Vec<(Sequence, u64, u64)> {
    let Some(superblock) = superblock(disk) else {
        return Vec::new();
    };
    let geometry = superblock.geometry;
    let epochs = superblock.valid_from_epoch..=superblock.epoch;
    let mut found = Vec::new();
    for shard in 0..geometry.shard_count {
        for number in 0..geometry.regions_per_shard {
            let position = geometry.region_offset(shard, number);
            let end = position + geometry.region_bytes;
            let entry = entry(disk, &superblock, shard, number);
            if !entry.is_some_and(|entry| entry.state == RegionUse::Open) {
                continue;
            }
            let (mut at, mut first) = (position, None);
            while at + geometry.header_bytes() as u64 <= end {
                let bytes = disk.peek(at, geometry.header_bytes());
                let Ok(header) = ExtentHeader::parse(&bytes, geometry.header_bytes()) else {
                    break;
                };
                let ours = header.cache == superblock.cache_id()
                    && header.position == at
                    && epochs.contains(&header.epoch)
                    && *first.get_or_insert(header.generation) == header.generation;
                if !ours || header.extent_bytes == 0 {
                    break;
                }
                found.push((header.sequence, at, u64::from(header.extent_bytes)));
                at += u64::from(header.extent_bytes);
            }
        }
    }
    found
}

/// Permanently damages a closed region, chosen by `pick`; false: none is closed.
pub fn damage(disk: &SimDisk, pick: u64) -> bool {
    let mut rng = Rng::new(pick);
    let closed = closed_regions(disk);
    if closed.is_empty() {
        return false;
    }
    let region = &closed[rng.below(closed.len() as u64) as usize];
    let (from, len) = region.extents[rng.below(region.extents.len() as u64) as usize];
    match rng.below(4) {
        // A bit of an extent or of the summary.
        0 | 1 => {
            let at = if rng.below(8) == 0 {
                region.summary_at + rng.below(region.summary_len)
            } else {
                region.position + rng.below(region.used)
            };
            disk.flip_bit(at, rng.below(8) as u8);
        }
        // A lost write of an extent, or a misdirected one.
        kind => {
            let written = disk.peek(region.position + from, len as usize);
            let mut before = vec![0; len as usize];
            if rng.coin() {
                let other = &closed[rng.below(closed.len() as u64) as usize];
                let room = (other.used.saturating_sub(len)) / SECTOR as u64;
                before = disk.peek(other.position + rng.below(room + 1) * SECTOR as u64, len as usize);
            }
            disk.poke(region.position + from, &before);
            if kind == 3 {
                let fit: Vec<_> = closed.iter().filter(|other| other.used >= len).collect();
                let other = fit[rng.below(fit.len() as u64) as usize];
                let room = (other.used - len) / SECTOR as u64;
                disk.poke(other.position + rng.below(room + 1) * SECTOR as u64, &written);
            }
        }
    }
    true
}

fn superblock(disk: &SimDisk) -> Option<Superblock> {
    let len = flaz_device::Device::len(disk);
    let slots = SUPERBLOCK_SLOTS.map(|slot| Superblock::parse(&disk.peek(slot, SUPERBLOCK_BYTES), len).ok());
    slots.into_iter().flatten().max_by_key(|one| one.generation)
}

fn closed_regions(disk: &SimDisk) -> Vec<Closed> {
    let Some(superblock) = superblock(disk) else {
        return Vec::new();
    };
    let geometry = superblock.geometry;
    let epochs = superblock.valid_from_epoch..=superblock.epoch;
    let mut closed = Vec::new();
    for shard in 0..geometry.shard_count {
        for number in 0..geometry.regions_per_shard {
            let position = geometry.region_offset(shard, number);
            let end = position + geometry.region_bytes;
            let full = |entry: ManifestEntry| matches!(entry.state, RegionUse::Full | RegionUse::Reclaiming);
            if !entry(disk, &superblock, shard, number).is_some_and(full) {
                continue;
            }
            let Some((summary, summary_len)) = stable_summary(disk, position, end) else {
                continue;
            };
            let header_bytes = geometry.header_bytes();
            let header = ExtentHeader::parse(&disk.peek(position, header_bytes), header_bytes);
            let stable = ExtentHeader::parse(&disk.peek_durable(position, header_bytes), header_bytes);
            let filled = |header: Result<ExtentHeader, _>| {
                header.is_ok_and(|header| header.generation == summary.generation)
            };
            let ours = summary.cache == superblock.cache_id()
                && summary.shard == shard
                && summary.position == position
                && summary
                    .extents
                    .iter()
                    .all(|extent| epochs.contains(&extent.epoch))
                && filled(header)
                && filled(stable);
            let Some(used) = check_extents(&summary.extents, &geometry)
                .ok()
                .filter(|&used| ours && used > 0)
            else {
                continue;
            };
            closed.push(Closed {
                position,
                used,
                summary_at: end - summary_len,
                summary_len,
                extents: summary
                    .extents
                    .iter()
                    .map(|extent| (u64::from(extent.offset), u64::from(extent.len)))
                    .collect(),
            });
        }
    }
    closed
}

/// The manifest's entry of a region, if the power failed now.
fn entry(disk: &SimDisk, superblock: &Superblock, shard: u32, number: u32) -> Option<ManifestEntry> {
    let geometry = &superblock.geometry;
    let sector = geometry.manifest_sector_of(number);
    let regions = geometry.manifest_regions(sector);
    let copies = (0..2).filter_map(|copy| {
        let position = geometry.manifest_sector_offset(shard, sector, copy);
        let bytes = disk.peek_durable(position, geometry.sector_bytes as usize);
        let number = geometry.manifest_sector_number(shard, sector);
        let cache = superblock.cache_id();
        ManifestSector::parse(&bytes, cache, number, regions.len(), geometry.region_bytes).ok()
    });
    let newest = copies.max_by_key(ManifestSector::age)?;
    (newest.epoch >= superblock.valid_from_epoch).then(|| newest.entries[(number - regions.start) as usize])
}

/// The summary at the end of a region and its length.
fn summary(disk: &SimDisk, position: u64, end: u64) -> Option<(Summary, u64)> {
    let trailer = disk.peek(end - SECTOR as u64, SECTOR);
    let len = Summary::parse_len(&trailer, end - position).ok()? as u64;
    let summary = Summary::parse(&disk.peek(end - len, len as usize)).ok()?;
    Some((summary, len))
}

/// The same, if the summary is stable.
fn stable_summary(disk: &SimDisk, position: u64, end: u64) -> Option<(Summary, u64)> {
    let (summary, len) = summary(disk, position, end)?;
    let at = end - len;
    (disk.peek(at, len as usize) == disk.peek_durable(at, len as usize)).then_some((summary, len))
}
