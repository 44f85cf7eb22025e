//! The structures on a cache device: their places in an image, their fields, their checksums.

use flaz_engine::format::extent::{EXTENT_HEADER_BYTES, ExtentHeader, RECORD_BYTES};
use flaz_engine::format::geometry::{Geometry, PAGE_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use flaz_engine::format::intent::IntentSector;
use flaz_engine::format::manifest::{MANIFEST_ENTRY_BYTES, MANIFEST_HEADER_BYTES};
use flaz_engine::format::shard_state::ShardState;
use flaz_engine::format::summary::{ENTRY_BYTES, Summary, TRAILER_BYTES};
use flaz_sim::DiskImage;

/// Kinds of structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One slot.
    Superblock,
    /// A shard's state page.
    State,
    /// A shard's index image.
    Image,
    /// A sector of the intent bitmap.
    Intent,
    /// Header and records of an extent.
    Extent,
    /// The summary at a region's end.
    Summary,
    /// A copy of a sector of the manifest.
    Manifest,
    /// An index page in its slot: the image has its seal.
    Page,
    /// A whole region: for swapping and copying, it has no seal of its own.
    Region,
}

impl Kind {
    /// All kinds with a checksum.
    pub const SEALED: [Self; 7] = [
        Self::Extent,
        Self::Summary,
        Self::Intent,
        Self::Superblock,
        Self::State,
        Self::Image,
        Self::Manifest,
    ];
}

/// A structure on a device.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// What it is.
    pub kind: Kind,
    /// Byte offset on the device.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// The shard; 0 for superblocks.
    pub shard: u32,
}

/// All structures on a device.
#[must_use]
pub fn places(image: &DiskImage, geometry: &Geometry, cache: u32) -> Vec<Place> {
    let mut all = Vec::new();
    let mut add = |kind, start, len, shard| {
        all.push(Place {
            kind,
            start,
            len,
            shard,
        });
    };
    for slot in SUPERBLOCK_SLOTS {
        add(Kind::Superblock, slot, SUPERBLOCK_BYTES as u64, 0);
    }
    for shard in 0..geometry.shard_count {
        let state = geometry.shard_state_offset(shard);
        add(Kind::State, state, 4096, shard);
        if let Ok(parsed) = ShardState::parse(&image.read(state, 4096), shard)
            && let [region] = parsed.image_regions[..]
        {
            let start = geometry.region_offset(shard, region);
            add(Kind::Image, start, parsed.image_bytes, shard);
        }
        for copy in 0..2 {
            for sector in 0..geometry.shard_manifest_sectors() {
                let start = geometry.manifest_sector_offset(shard, sector, copy);
                add(Kind::Manifest, start, geometry.sector_bytes.into(), shard);
            }
        }
        let intents = geometry.shard_intent_offset(shard);
        for sector in 0..geometry.shard_intent_len() / 512 {
            let at = intents + sector * 512;
            let number = (at - geometry.intent_offset()) / 512;
            let bytes: [u8; 512] = image.read(at, 512).try_into().expect("512 bytes");
            assert!(IntentSector::parse(&bytes, number as u32).is_ok());
            add(Kind::Intent, at, 512, shard);
        }
        let area = geometry.shard_index_offset(shard);
        let slot_bytes = u64::from(geometry.sector_bytes);
        for slot in 0..geometry.shard_index_len() / slot_bytes {
            let start = area + slot * slot_bytes;
            // Pages have a mark.
            if image.read(start + 8, 8) != [0; 8] {
                add(Kind::Page, start, slot_bytes, shard);
            }
        }
        for number in 0..geometry.regions_per_shard {
            let start = geometry.region_offset(shard, number);
            add(Kind::Region, start, geometry.region_bytes, shard);
            let bytes = image.read(start, geometry.region_bytes as usize);
            if let Ok(len) = Summary::parse_len(&bytes, geometry.region_bytes)
                && Summary::parse(&bytes).is_ok()
            {
                let len = len as u64;
                add(Kind::Summary, start + geometry.region_bytes - len, len, shard);
            }
            let mut at = 0;
            while let Some(rest) = bytes.get(at..)
                && let Ok(header) = ExtentHeader::parse(rest, geometry.header_bytes())
                && header.cache == cache
                && header.position == start + at as u64
            {
                let len = u64::from(header.header_bytes);
                add(Kind::Extent, start + at as u64, len, shard);
                at += header.extent_bytes as usize;
            }
        }
    }
    all
}

/// Fields named in `docs/format.md`, as offset and width, of a structure with these bytes.
#[must_use]
pub fn fields(kind: Kind, bytes: &[u8]) -> Vec<(usize, usize)> {
    let some = |fields: &[(usize, usize)]| fields.to_vec();
    match kind {
        Kind::Superblock => some(&[
            (8, 4),
            (16, 8),
            (24, 4),
            (40, 8),
            (56, 8),
            (64, 8),
            (72, 4),
            (76, 4),
            (80, 4),
            (84, 4),
            (88, 4),
            (92, 4),
            (96, 4),
            (100, 4),
            (104, 4),
            (108, 4),
            (112, 4),
            (120, 8),
            (128, 8),
            (136, 8),
            (144, 1),
            (164, 4),
            (145, 1),
            (146, 1),
            (147, 1),
            (152, 8),
            (528, 8),
            (536, 8),
            (544, 4),
            (PAGE_BYTES, 2),
            (PAGE_BYTES + 2, 2),
            (PAGE_BYTES + 4, 2),
        ]),
        Kind::State => some(&[
            (12, 4),
            (16, 4),
            (20, 4),
            (24, 8),
            (32, 8),
            (40, 4),
            (44, 4),
            (48, 4),
            (52, 4),
            (52, 4),
            (56, 4),
        ]),
        Kind::Intent => some(&[(8, 4), (12, 4), (16, 1), (17, 1), (511, 1)]),
        Kind::Manifest => {
            let mut all = some(&[(8, 4), (12, 4), (16, 8), (24, 4)]);
            let entries = MANIFEST_HEADER_BYTES..bytes.len() - MANIFEST_ENTRY_BYTES;
            // Generation, length, state and ring.
            let entry = |at: usize| [(at, 8), (at + 8, 2), (at + 10, 1), (at + 8, 4)];
            all.extend(entries.step_by(MANIFEST_ENTRY_BYTES).take(16).flat_map(entry));
            all
        }
        Kind::Page => some(&[(0, 5), (5, 2), (8, 8), (16, 1)]),
        Kind::Region => Vec::new(),
        Kind::Image => {
            let mut all = some(&[(8, 8), (16, 4), (20, 4)]);
            // Open regions, index entries, the head of an index in pages: numbers of 4 or 8 bytes.
            all.extend((32..bytes.len().saturating_sub(8)).step_by(4).map(|at| (at, 4)));
            all.extend((32..bytes.len().saturating_sub(8)).step_by(8).map(|at| (at, 8)));
            all
        }
        Kind::Extent => {
            let mut all = some(&[
                (8, 4),
                (12, 4),
                (16, 8),
                (24, 8),
                (32, 8),
                (40, 8),
                (48, 4),
                (52, 2),
                (54, 2),
                (56, 1),
                (58, 2),
                (60, 4),
            ]);
            let records = usize::from(u16::from_le_bytes([bytes[52], bytes[53]])).min(8);
            all.extend((0..records).flat_map(|i| record(EXTENT_HEADER_BYTES + i * RECORD_BYTES)));
            all
        }
        Kind::Summary => {
            let trailer = bytes.len() - TRAILER_BYTES;
            let mut all = some(&[
                (trailer + 8, 4),
                (trailer + 12, 4),
                (trailer + 16, 4),
                (trailer + 20, 4),
                (trailer + 24, 8),
                (trailer + 32, 8),
                (trailer + 40, 1),
            ]);
            let extents = number(&bytes[trailer + 12..trailer + 16]) as usize;
            let records = (extents * ENTRY_BYTES).min(trailer);
            for at in (0..records.saturating_sub(ENTRY_BYTES - 1)).step_by(ENTRY_BYTES) {
                all.extend([(at, 4), (at + 4, 4), (at + 8, 8), (at + 16, 4), (at + 20, 4)]);
            }
            all.extend((records..trailer).step_by(RECORD_BYTES).take(64).flat_map(record));
            all
        }
    }
}

/// The fields of a record: value and kind, block, group.
fn record(at: usize) -> [(usize, usize); 3] {
    [(at, 2), (at + 2, 4), (at + 7, 1)]
}

/// Parses a little-endian number.
#[must_use]
pub fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Corrects the checksum of a structure.
pub fn seal(kind: Kind, bytes: &mut [u8]) {
    let at = match kind {
        Kind::Superblock => 12,
        Kind::State => 8,
        Kind::Intent | Kind::Extent | Kind::Manifest => 4,
        Kind::Summary => bytes.len().saturating_sub(TRAILER_BYTES - 4),
        Kind::Image | Kind::Page | Kind::Region => return,
    };
    if kind == Kind::Superblock && bytes.len() == SUPERBLOCK_BYTES {
        // The texts have a checksum of their own, in the page.
        let texts = crc32c::crc32c(&bytes[PAGE_BYTES..]);
        bytes[116..120].copy_from_slice(&texts.to_le_bytes());
    }
    // A summary may have been told to be longer or shorter; the rest of it counts then.
    let from = match kind {
        Kind::Summary if bytes.len() >= TRAILER_BYTES => {
            Summary::parse_len(bytes, bytes.len() as u64).map_or(0, |len| bytes.len() - len)
        }
        _ => 0,
    };
    if at + 4 > bytes.len() {
        return;
    }
    bytes[at..at + 4].fill(0);
    let end = match kind {
        Kind::Superblock => PAGE_BYTES.min(bytes.len()),
        _ => bytes.len(),
    };
    let sum = crc32c::crc32c(&bytes[from..end]);
    bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}
