//! Reading an index image: each part is checked against the geometry, the manifest and the other parts.
//!
//! ```text
//! header (32 B): magic u64, index bytes u64, open regions u32, kind of the index u32, reserved (8 B)
//! open regions:  number u32, extents u32, records u32, reserved u32; extents (24 B each); records (8 B each)
//! index:         kind 0, a table: see Index::write_image; kind 1, in pages: see PageImage
//! ```

use flaz_device::{Device, IoBuf};

use super::errors::ImageError;
use super::log::{Region, RegionState, Regions};
use crate::format::FormatError;
use crate::format::geometry::{Geometry, PAGE_BYTES};
use crate::format::group::GROUP_BLOCKS_MAX;
use crate::format::layout::Layout;
use crate::format::manifest::{ManifestEntry, RegionUse};
use crate::format::shard_state::ShardState;
use crate::format::summary::{SummaryExtent, check_extents, summary_bytes};
use crate::index::{Entry, Index, PageImage, Place};
use crate::units::{BLOCK_BYTES, Epoch, LocalBlock, Sequence, UNIT_BYTES};

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"FLZIMAGE");
pub(super) const HEADER_BYTES: usize = 32;
/// Bytes of the image written or read at a time.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// An open region in an image.
#[derive(Debug)]
pub(crate) struct OpenRegionImage {
    pub(crate) number: u32,
    pub(crate) extents: Vec<SummaryExtent>,
    pub(crate) records: Vec<u64>,
}

/// How the index of an image is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexKind {
    Table = 0,
    Pages = 1,
}

/// The contents of an image. The index is not counted in the regions.
#[derive(Debug)]
pub(crate) struct ImageContents<'a> {
    pub(crate) regions: Regions,
    pub(crate) open: Vec<OpenRegionImage>,
    pub(crate) kind: IndexKind,
    index: &'a [u8],
}

/// Reads the state page of a shard and checks it against the superblock.
pub(crate) async fn read_state<C: Device>(
    cache: &C,
    geometry: &Geometry,
    shard: u32,
    cache_id: u32,
    epoch: Epoch,
) -> Result<ShardState, ImageError> {
    let (page, result) = cache
        .read_at(geometry.shard_state_offset(shard), IoBuf::new(PAGE_BYTES))
        .await;
    result.map_err(|source| ImageError::Device { shard, source })?;
    let state = ShardState::parse(&page, shard).map_err(|source| ImageError::Format { shard, source })?;
    let contents = |what: String| Err(ImageError::Contents { shard, what });
    if state.cache != cache_id {
        return contents(format!(
            "it belongs to cache {:#x}, this is {cache_id:#x}",
            state.cache
        ));
    }
    if state.epoch != epoch {
        return contents(format!(
            "it was written in epoch {}, the superblock says {}",
            state.epoch.0, epoch.0
        ));
    }
    let room = state.image_regions.len() as u64 * geometry.region_bytes;
    let mut numbers = state.image_regions.clone();
    numbers.sort_unstable();
    numbers.dedup();
    let distinct = numbers.len() == state.image_regions.len();
    let in_range = state
        .image_regions
        .iter()
        .all(|&number| number < geometry.regions_per_shard);
    // Checked before anything is allocated for it: regions may be larger than memory.
    if state.image_bytes > room.min(image_bytes_max(geometry)) || !in_range || !distinct {
        return contents(format!(
            "{} bytes do not fit regions {:?}",
            state.image_bytes, state.image_regions
        ));
    }
    if state.next_sequence > Sequence::MAX_READ {
        return contents(format!("its next sequence is {}", state.next_sequence.0));
    }
    Ok(state)
}

/// Most bytes that an image can have: every record that fits is of a group, all of them in the index, which is half empty, and two regions
/// are open and full of the shortest extents.
fn image_bytes_max(geometry: &Geometry) -> u64 {
    let blocks = u64::from(geometry.regions_per_shard)
        * geometry.region_records_max() as u64
        * GROUP_BLOCKS_MAX as u64;
    let index = empty_index(geometry).image_bytes() as u64 + blocks * 16;
    open_bytes_max(geometry) + index.max(PageImage::bytes_max(geometry, PageImage::changes_max(geometry)))
}

/// The same for one of an index in pages in so much memory.
pub(super) fn page_image_bytes_max(geometry: &Geometry, memory: Option<u64>) -> u64 {
    let changes = PageImage::changes_max(geometry);
    open_bytes_max(geometry)
        + PageImage::bytes_max(geometry, memory.map_or(changes, |memory| changes.min(memory)))
}

/// Of these, those before the index.
fn open_bytes_max(geometry: &Geometry) -> u64 {
    let extents = geometry.region_bytes / u64::from(geometry.sector_bytes);
    let open = 16 + extents * 24 + geometry.region_records_max() as u64 * 8;
    HEADER_BYTES as u64 + 2 * open
}

fn empty_index(geometry: &Layout) -> Index {
    Index::new(geometry.local_blocks(), geometry.blocks_planned())
}

/// Reads the image that a state page names.
pub(crate) async fn read_image<C: Device>(
    cache: &C,
    geometry: &Layout,
    state: &ShardState,
) -> Result<Vec<u8>, ImageError> {
    let shard = state.shard;
    let mut image = Vec::with_capacity(state.image_bytes as usize);
    let mut left = state.image_bytes as usize;
    for &number in &state.image_regions {
        let mut at = geometry.region_offset(shard, number);
        let mut part = left.min(geometry.region_bytes as usize);
        left -= part;
        while part > 0 {
            let len = part.min(CHUNK_BYTES);
            let buf = IoBuf::new(len.next_multiple_of(geometry.sector_bytes as usize));
            let (buf, result) = cache.read_at(at, buf).await;
            result.map_err(|source| ImageError::Device { shard, source })?;
            image.extend_from_slice(&buf[..len]);
            part -= len;
            at += len as u64;
        }
    }
    let computed = crc32c::crc32c(&image);
    if computed != state.image_checksum {
        let source = FormatError::Checksum {
            what: "index image",
            stored: state.image_checksum,
            computed,
        };
        return Err(ImageError::Format { shard, source });
    }
    Ok(image)
}

impl<'a> ImageContents<'a> {
    /// Parses the image that `state` describes.
    ///
    /// # Errors
    /// The defect, in words.
    pub(crate) fn parse(
        image: &'a [u8],
        geometry: &Layout,
        state: &ShardState,
        manifest: &[ManifestEntry],
    ) -> Result<Self, String> {
        let mut input = Input(image);
        if input.u64()? != MAGIC {
            return Err("no magic number".into());
        }
        let (index_bytes, open_count) = (input.u64()?, input.u32()?);
        let kind = match input.u32()? {
            0 => IndexKind::Table,
            1 if geometry.index_bytes > 0 => IndexKind::Pages,
            other => return Err(format!("an index of kind {other}")),
        };
        input.skip(HEADER_BYTES - 24)?;
        let open = (0..open_count.min(3))
            .map(|_| input.open_region())
            .collect::<Result<Vec<_>, _>>()?;
        check_open(manifest, &open, geometry)?;
        check_numbers(manifest, &open, state.next_sequence)?;
        let regions = regions_of(manifest, &open)?;
        if input.0.len() as u64 != index_bytes {
            return Err(format!(
                "{} bytes of index, expected {index_bytes}",
                input.0.len()
            ));
        }
        Ok(Self {
            regions,
            open,
            kind,
            index: input.0,
        })
    }

    /// The table of a shard, whose entries are then counted in the regions, and the number of invalid ones that were left out.
    ///
    /// # Errors
    /// The defect, in words.
    pub(crate) fn table(&mut self, geometry: &Geometry, shard: u32) -> Result<(Index, usize), String> {
        assert_eq!(self.kind, IndexKind::Table);
        let (mut index, regions) = (empty_index(geometry), &mut self.regions);
        let refused = index.read_image(self.index, |block, entry| {
            count_entry(regions, geometry, shard, block, entry)
        })?;
        Ok((index, refused))
    }

    /// The pages, which are to be read and counted.
    ///
    /// # Errors
    /// The defect, in words.
    pub(crate) fn pages(&self, geometry: &Geometry) -> Result<PageImage, String> {
        assert_eq!(self.kind, IndexKind::Pages);
        PageImage::parse(self.index, geometry)
    }
}

/// Counts an entry in its region; false if there is no such entry in a cache that lies in the used part of a region.
pub(crate) fn count_entry(
    regions: &mut Regions,
    geometry: &Geometry,
    shard: u32,
    block: LocalBlock,
    entry: Entry,
) -> bool {
    let whole_blocks = geometry.origin_len / BLOCK_BYTES as u64;
    let in_range = block.global(shard, geometry.shard_count).0 < whole_blocks;
    let number = entry_region(regions, entry, geometry).filter(|_| in_range);
    number.map(|number| regions.count_live(number, 1)).is_some()
}

/// The open regions must be those of the manifest, one a ring. Their extents must be contiguous, reach the stable length,
/// and leave space for the summary.
fn check_open(manifest: &[ManifestEntry], open: &[OpenRegionImage], geometry: &Layout) -> Result<(), String> {
    let is_open = |entry: &&ManifestEntry| entry.state == RegionUse::Open;
    let called_open = manifest.iter().filter(is_open).count();
    if called_open != open.len() {
        return Err(format!(
            "{called_open} regions are open, {} are described",
            open.len()
        ));
    }
    let mut seen = Vec::new();
    for one in open {
        let Some(entry) = manifest.get(one.number as usize).filter(is_open) else {
            return Err(format!("region {} is not open", one.number));
        };
        if seen.contains(&entry.ring) {
            return Err(format!("ring {} has two open regions", entry.ring));
        }
        seen.push(entry.ring);
        let end = check_extents(&one.extents, geometry).map_err(|error| error.to_string())?;
        let listed: usize = one
            .extents
            .iter()
            .map(|extent| usize::from(extent.record_count))
            .sum();
        let summary = summary_bytes(one.extents.len(), one.records.len(), geometry.sector_bytes);
        if end != u64::from(entry.len) || end + summary > geometry.region_bytes {
            return Err(format!(
                "open region {} has {end} bytes of extents, the manifest says {}",
                one.number, entry.len
            ));
        }
        if listed != one.records.len() || listed > geometry.region_records_max() {
            return Err(format!(
                "open region {} has {} records, its extents {listed}",
                one.number,
                one.records.len()
            ));
        }
    }
    Ok(())
}

/// Later writes must have higher numbers than everything present.
fn check_numbers(manifest: &[ManifestEntry], open: &[OpenRegionImage], next: Sequence) -> Result<(), String> {
    let generations = manifest.iter().map(|entry| entry.generation);
    let extents = open.iter().flat_map(|one| &one.extents);
    let last = generations.chain(extents.map(|extent| extent.sequence)).max();
    match last {
        Some(last) if last >= next => Err(format!("number {} is given, the next one is {}", last.0, next.0)),
        _ => Ok(()),
    }
}

/// The regions as in the manifest after a clean stop. An open region may be empty.
fn regions_of(manifest: &[ManifestEntry], open: &[OpenRegionImage]) -> Result<Regions, String> {
    let mut table = Vec::with_capacity(manifest.len());
    let mut full = Vec::new();
    for (number, entry) in (0..).zip(manifest) {
        let state = match entry.state {
            // A region that only an unfinished reclaim used counts as free.
            RegionUse::Free | RegionUse::Recovering => {
                table.push(Region::FREE);
                continue;
            }
            RegionUse::Open => RegionState::Open,
            RegionUse::Full => RegionState::Full,
            RegionUse::Reclaiming => {
                return Err(format!("the reclaim of region {number} was not finished"));
            }
        };
        if state == RegionState::Full {
            full.push((entry.generation, number));
        }
        table.push(Region {
            state,
            ring: entry.ring,
            generation: entry.generation,
            used: entry.len,
            live: 0,
        });
    }
    assert!(
        open.iter()
            .all(|one| table[one.number as usize].state == RegionState::Open)
    );
    assert_eq!(table.len(), manifest.len());
    let mut regions = Regions::from_table(&table);
    // The order of generations is the order of the rings.
    full.sort_unstable();
    for (_, number) in full {
        regions.enter_ring(number);
    }
    Ok(regions)
}

/// The region of an entry, if the entry lies in the used part of the region and the region's number of entries is below the
/// limit.
fn entry_region(regions: &Regions, entry: Entry, geometry: &Layout) -> Option<u32> {
    let (start, region_bytes) = (entry.location().offset(), geometry.region_bytes);
    let number = u32::try_from(start / region_bytes).ok()?;
    let region = regions.get(number)?;
    let (within, len) = match entry.place() {
        Place::Fragment { sectors, .. } => (start % region_bytes / 512 * 512, u64::from(sectors) * 512),
        Place::SameFilled { .. } => (start % region_bytes, UNIT_BYTES),
    };
    let filled =
        region.state != RegionState::Free && within + len <= u64::from(region.used).min(region_bytes);
    let live_max = geometry.region_records_max() * GROUP_BLOCKS_MAX;
    (filled && (region.live as usize) < live_max).then_some(number)
}

/// The unread part of an image.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or("image ends early")?;
        self.0 = rest;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, String> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.take().map(u64::from_le_bytes)
    }

    fn skip(&mut self, len: usize) -> Result<(), String> {
        self.0 = self.0.get(len..).ok_or("image ends early")?;
        Ok(())
    }

    fn open_region(&mut self) -> Result<OpenRegionImage, String> {
        let (number, extents, records) = (self.u32()?, self.u32()?, self.u32()?);
        self.skip(4)?;
        let bytes = u64::from(extents) * 24 + u64::from(records) * 8;
        if bytes > self.0.len() as u64 {
            return Err(format!(
                "open region {number} has {bytes} bytes, {} are left",
                self.0.len()
            ));
        }
        let extents = (0..extents)
            .map(|_| {
                Ok(SummaryExtent {
                    offset: self.u32()?,
                    len: self.u32()?,
                    sequence: Sequence(self.u64()?),
                    epoch: Epoch(self.u32()?),
                    record_count: self.u16()?,
                    header_bytes: self.u16()?,
                })
            })
            .collect::<Result<Vec<_>, String>>()?;
        let records = (0..records).map(|_| self.u64()).collect::<Result<_, _>>()?;
        Ok(OpenRegionImage {
            number,
            extents,
            records,
        })
    }
}
