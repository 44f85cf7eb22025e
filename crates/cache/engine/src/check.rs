//! Checking a cache device that is not served, structure by structure: for `flaz check` and `flaz dump`.
//!
//! The manifest lists what must be present; everything missing or damaged is a finding. A region that was open at a crash
//! ends where recovery would end it: an extent that was never known to be stable and that a power cut tore is no damage.

use std::cell::Cell;
use std::sync::Arc;

use flaz_codec::{CodecId, DICTIONARIES_MAX, Decoders, Dictionaries, Dictionary};
use flaz_device::{Device, IoBuf};

use crate::cache::{CacheError, Unreadable};
use crate::format::dictionary::{DictionarySlot, StoredDictionary};
use crate::format::extent::{ExtentHeader, FragmentIdentity, Record, RecordKind, header_copy_bytes};
use crate::format::geometry::{PAGE_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use crate::format::manifest::{ManifestEntry, RegionUse, entries_checksum};
use crate::format::summary::SummaryExtent;
use crate::format::superblock::{State, Superblock};
use crate::index::{Entry, Index, PageImage};
use crate::policy::Ring;
use crate::shard::{
    Found, Guess, ImageContents, ImageError, IndexKind, IntentReader, ManifestPlace, RegionPlace, Regions,
    count_entry, read_image, read_manifest, read_region, read_state, unpack_fragment,
};
use crate::units::{BLOCK_BYTES, BlockNumber, Epoch, Location, Sequence, UNIT_BYTES};

/// Bytes read at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes of a sector of the intent bitmap.
const SECTOR: u64 = 512;

/// A valid structure on a cache device.
#[derive(Clone, Debug)]
pub enum Object {
    /// A superblock slot.
    Superblock(Box<Superblock>),
    /// Sectors of the intent bitmap.
    Intents {
        /// Number of sectors.
        sectors: u64,
        /// Stripes whose bit is set.
        set: u64,
    },
    /// The manifest of a shard.
    Manifest {
        /// The shard.
        shard: u32,
        /// Regions in use.
        in_use: u64,
    },
    /// A dictionary of a shard.
    Dictionary {
        /// The shard.
        shard: u32,
        /// Its number in the shard.
        number: u8,
        /// Blocks are compressed with the one of the highest generation.
        generation: u32,
        /// Bytes of its contents.
        bytes: u64,
    },
    /// The index image of a shard.
    Index {
        /// The shard.
        shard: u32,
        /// Number of blocks in it.
        entries: u64,
    },
    /// A region in use.
    Region {
        /// The shard.
        shard: u32,
        /// Number within the shard.
        number: u32,
        /// The ring it belongs to.
        ring: Ring,
        /// Sequence of its first extent.
        generation: Sequence,
        /// Used bytes.
        used: u32,
    },
    /// A region's summary.
    Summary {
        /// Number of extents in it.
        extents: u64,
        /// Number of records in it.
        records: u64,
    },
    /// An extent's header.
    Extent(ExtentHeader),
    /// A fragment that decodes and has a correct checksum.
    Fragment {
        /// Its block.
        block: BlockNumber,
        /// Its codec.
        codec: CodecId,
        /// Stored bytes.
        stored: u16,
        /// Whether the block is dirty.
        dirty: bool,
        /// The index names it; `None` if there is no index.
        live: Option<bool>,
    },
    /// A same-filled block.
    SameFilled {
        /// Its block.
        block: BlockNumber,
        /// The value.
        value: u8,
        /// The index names it; `None` if there is no index.
        live: Option<bool>,
    },
    /// The block is no longer cached.
    Tombstone {
        /// Its block.
        block: BlockNumber,
    },
    /// The contents of the block's latest record are on the origin.
    Cleaned {
        /// Its block.
        block: BlockNumber,
    },
    /// Valid index entries.
    Entries {
        /// The shard.
        shard: u32,
        /// Number of entries.
        count: u64,
    },
}

/// The index that a clean stop has left of a shard.
struct FoundIndex {
    table: Option<Index>,
    /// Number of valid entries.
    entries: u64,
    /// Invalid entries.
    refused: u64,
    /// Offset and length, and what is wrong.
    damaged_pages: Vec<(u64, u64, String)>,
}

/// The result of checking one structure.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Kind of the structure: `superblock`, `extent`, `fragment-lz4`, ..
    pub kind: String,
    /// Byte offset on the device.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Number of structures that this finding covers (1 except for index entries).
    pub count: u64,
    /// The structure, or what is wrong with it.
    pub object: Result<Object, String>,
}

impl Finding {
    fn good(kind: &str, offset: u64, len: u64, object: Object) -> Self {
        Self {
            kind: kind.to_owned(),
            offset,
            len,
            count: 1,
            object: Ok(object),
        }
    }

    fn bad(kind: &str, offset: u64, len: u64, error: impl ToString) -> Self {
        Self {
            kind: kind.to_owned(),
            offset,
            len,
            count: 1,
            object: Err(error.to_string()),
        }
    }
}

/// Checks everything on a cache device. Calls `visit` with each finding, the bytes done and the total bytes.
///
/// # Errors
/// [`CacheError`] if the device fails or there is no valid superblock.
pub async fn walk<C: Device>(
    cache: &C,
    visit: &mut impl FnMut(Finding, u64, u64),
) -> Result<Superblock, CacheError> {
    let superblock = crate::cache::read_superblock(cache).await?;
    let mut walk = Walk {
        cache,
        superblock: &superblock,
        may_be_dirty: superblock.dirty,
        visit,
        done: 0,
        decoders: Decoders::default(),
    };
    walk.superblocks().await?;
    walk.intents().await?;
    for shard in 0..superblock.geometry.shard_count {
        walk.dictionaries(shard).await?;
        walk.shard(shard).await?;
    }
    Ok(superblock)
}

struct Walk<'a, C, V> {
    cache: &'a C,
    superblock: &'a Superblock,
    /// A superblock says that blocks may be dirty, or is damaged and may have said so.
    may_be_dirty: bool,
    visit: &'a mut V,
    done: u64,
    decoders: Decoders,
}

impl<C: Device, V: FnMut(Finding, u64, u64)> Walk<'_, C, V> {
    fn tell(&mut self, finding: Finding) {
        (self.visit)(finding, self.done, self.superblock.geometry.device_len);
    }

    async fn superblocks(&mut self) -> Result<(), CacheError> {
        for slot in SUPERBLOCK_SLOTS {
            let (page, result) = self.cache.read_at(slot, IoBuf::new(SUPERBLOCK_BYTES)).await;
            result?;
            let len = SUPERBLOCK_BYTES as u64;
            let parsed = Superblock::parse(&page, self.cache.len());
            self.may_be_dirty |= parsed.is_err();
            self.tell(match parsed {
                Ok(parsed) if parsed.contradicted => {
                    Finding::bad("superblock", slot, len, Unreadable::Contradicted)
                }
                Ok(parsed) => Finding::good("superblock", slot, len, Object::Superblock(Box::new(parsed))),
                Err(error) => Finding::bad("superblock", slot, len, error),
            });
        }
        Ok(())
    }

    async fn intents(&mut self) -> Result<(), CacheError> {
        let (offset, len) = (
            self.superblock.geometry.intent_offset(),
            self.superblock.geometry.intent_len(),
        );
        let (cache, geometry) = (self.cache, &self.superblock.geometry);
        let mut set = 0;
        for shard in 0..geometry.shard_count {
            let reader = IntentReader::new(cache, geometry, shard);
            for part in reader.parts() {
                for page in reader.read(part).await? {
                    if let Some(error) = page.error {
                        return Err(error.into());
                    }
                    for sector in page.sectors {
                        self.done += SECTOR;
                        match sector.bits {
                            Ok(bits) => set += bits.set_count(),
                            Err(error) => {
                                self.tell(Finding::bad("intent-sector", sector.offset, SECTOR, error));
                            }
                        }
                    }
                }
            }
        }
        let object = Object::Intents {
            sectors: len / SECTOR,
            set,
        };
        self.tell(Finding::good("intent-bitmap", offset, len, object));
        Ok(())
    }

    async fn read(&mut self, offset: u64, len: u64) -> Result<Vec<u8>, CacheError> {
        let mut bytes = Vec::with_capacity(len as usize);
        let mut at = offset;
        while at < offset + len {
            let part = CHUNK_BYTES.min(offset + len - at);
            let (buf, result) = self.cache.read_at(at, IoBuf::new(part as usize)).await;
            result?;
            bytes.extend_from_slice(&buf);
            at += part;
            self.done += part;
        }
        Ok(bytes)
    }

    /// The dictionaries of a shard, for its fragments.
    async fn dictionaries(&mut self, shard: u32) -> Result<(), CacheError> {
        let geometry = self.superblock.geometry;
        let len = u64::from(geometry.dictionary_bytes);
        let mut dictionaries = Dictionaries::default();
        for number in (0..DICTIONARIES_MAX as u8).filter(|_| len > 0) {
            let offset = geometry.dictionary_offset(shard, number);
            let bytes = self.read(offset, len).await?;
            let slot = DictionarySlot {
                cache: self.superblock.cache_id(),
                shard,
                number,
            };
            let stored = match StoredDictionary::parse(&bytes, slot) {
                Ok(None) => continue,
                Ok(Some(stored)) => stored,
                Err(error) => {
                    self.tell(Finding::bad("dictionary", offset, len, error));
                    continue;
                }
            };
            let usable = Dictionary::new(&stored.contents);
            self.tell(match &usable {
                Some(_) => {
                    let object = Object::Dictionary {
                        shard,
                        number,
                        generation: stored.generation,
                        bytes: stored.contents.len() as u64,
                    };
                    Finding::good("dictionary", offset, len, object)
                }
                None => Finding::bad("dictionary", offset, len, "the codec does not take its contents"),
            });
            dictionaries[usize::from(number)] = usable.map(Arc::new);
        }
        self.decoders.set_dictionaries(dictionaries);
        Ok(())
    }

    async fn shard(&mut self, shard: u32) -> Result<(), CacheError> {
        let geometry = self.superblock.geometry;
        let Some(manifest) = self.manifest(shard).await else {
            return Ok(());
        };
        let index = self.index(shard, &manifest).await;
        let (mut named, guess) = (0, Guess::default());
        for (number, entry) in (0..).zip(&manifest) {
            if matches!(entry.state, RegionUse::Free | RegionUse::Recovering) {
                self.done += geometry.region_bytes;
                continue;
            }
            named += self.region(shard, number, entry, index.as_ref(), &guess).await?;
        }
        if let Some(index) = &index {
            let (offset, len) = (geometry.region_offset(shard, 0), geometry.shard_len());
            let missing = index.len() as u64 - named.min(index.len() as u64);
            let object = Object::Entries { shard, count: named };
            self.tell(Finding {
                count: named,
                ..Finding::good("index-entry", offset, len, object)
            });
            if missing > 0 {
                let message = format!("{missing} index entries of shard {shard} point to missing records");
                self.tell(Finding {
                    count: missing,
                    ..Finding::bad("index-entry", offset, len, message)
                });
            }
        }
        Ok(())
    }

    async fn manifest(&mut self, shard: u32) -> Option<Vec<ManifestEntry>> {
        let geometry = self.superblock.geometry;
        let offset = geometry.manifest_sector_offset(shard, 0, 0);
        let sector_bytes = u64::from(geometry.sector_bytes);
        let place = ManifestPlace {
            geometry: &geometry,
            cache_id: self.superblock.cache_id(),
            shard,
            valid_from: self.superblock.valid_from_epoch,
            until: Epoch(self.superblock.epoch.0.saturating_add(1)),
        };
        match read_manifest(self.cache, &place).await {
            Ok(manifest) => {
                for copy in &manifest.damaged {
                    self.tell(Finding::bad(
                        "manifest-sector",
                        copy.position,
                        sector_bytes,
                        &copy.error,
                    ));
                }
                let in_use = manifest
                    .entries
                    .iter()
                    .filter(|entry| entry.state != RegionUse::Free);
                let object = Object::Manifest {
                    shard,
                    in_use: in_use.count() as u64,
                };
                self.tell(Finding::good(
                    "manifest",
                    offset,
                    2 * geometry.manifest_copy_len(),
                    object,
                ));
                Some(manifest.entries)
            }
            Err(error) => {
                self.tell(Finding::bad(
                    "manifest",
                    offset,
                    2 * geometry.manifest_copy_len(),
                    error,
                ));
                None
            }
        }
    }

    /// Checks the index that a clean stop has left of a shard. Returns it if it is a table: one in pages may be larger than memory.
    async fn index(&mut self, shard: u32, manifest: &[ManifestEntry]) -> Option<Index> {
        if self.superblock.state != State::Clean {
            return None;
        }
        let geometry = &self.superblock.geometry;
        let (offset, len) = (geometry.shard_state_offset(shard), PAGE_BYTES as u64);
        let found = match self.read_index(shard, manifest).await {
            Ok(found) => found?,
            Err(error) => {
                self.tell(Finding::bad("index-image", offset, len, error));
                return None;
            }
        };
        let entries = found.entries;
        let object = Object::Index { shard, entries };
        self.tell(Finding::good("index-image", offset, len, object));
        for (offset, len, what) in found.damaged_pages {
            self.tell(Finding::bad("index-page", offset, len, what));
        }
        if found.refused > 0 {
            let message = format!("{} index entries of shard {shard} are invalid", found.refused);
            self.tell(Finding {
                count: found.refused,
                ..Finding::bad("index-entry", offset, len, message)
            });
        }
        found.table
    }

    async fn read_index(
        &self,
        shard: u32,
        manifest: &[ManifestEntry],
    ) -> Result<Option<FoundIndex>, ImageError> {
        let (geometry, epoch) = (&self.superblock.geometry, self.superblock.epoch);
        let state = read_state(self.cache, geometry, shard, self.superblock.cache_id(), epoch).await?;
        let found = entries_checksum(manifest.iter().copied());
        let may_be_paged = geometry.index_bytes > 0;
        if may_be_paged && found != state.manifest_checksum {
            let expected = state.manifest_checksum;
            let what = format!("the manifest has checksum {found:#010x}, expected {expected:#010x}");
            return Err(ImageError::Contradiction { shard, what });
        }
        if may_be_paged && state.image_bytes == 0 {
            return Ok(None);
        }
        let damaged = |what| ImageError::Contents { shard, what };
        let image = read_image(self.cache, geometry, &state).await?;
        let mut contents = ImageContents::parse(&image, geometry, &state, manifest).map_err(damaged)?;
        match contents.kind {
            IndexKind::Table => {
                let (table, refused) = contents.table(geometry, shard).map_err(damaged)?;
                Ok(Some(FoundIndex {
                    entries: table.len() as u64,
                    table: Some(table),
                    refused: refused as u64,
                    damaged_pages: Vec::new(),
                }))
            }
            IndexKind::Pages => {
                let image = contents.pages(geometry).map_err(damaged)?;
                let found = self.read_pages(shard, image, &mut contents.regions);
                Ok(Some(found.await))
            }
        }
    }

    /// Checks each page as a start does.
    async fn read_pages(&self, shard: u32, mut image: PageImage, regions: &mut Regions) -> FoundIndex {
        let (geometry, len, pages) = (&self.superblock.geometry, image.page_bytes(), image.pages());
        let (mut damaged_pages, mut refused) = (Vec::new(), 0);
        for (slots, some) in image.runs(&pages) {
            let offset = geometry.shard_index_offset(shard) + u64::from(slots.start) * len as u64;
            let (read, result) = self.cache.read_at(offset, IoBuf::new(slots.len() * len)).await;
            let result = result.map_err(|error| error.to_string());
            for page in some {
                let at = (page.slot - slots.start) as usize * len;
                let entries = result.clone().and_then(|()| {
                    let mut entries = image.entries(*page, slots.start, &read)?;
                    let all = entries.len();
                    entries.retain(|(block, entry)| {
                        let allowed = self.superblock.dirty || !entry.dirty();
                        allowed && count_entry(regions, geometry, shard, *block, *entry)
                    });
                    refused += (all - entries.len()) as u64;
                    image.count(&entries)
                });
                if let Err(what) = entries {
                    damaged_pages.push((offset + at as u64, len as u64, what));
                }
            }
        }
        FoundIndex {
            table: None,
            entries: image.blocks(),
            refused,
            damaged_pages,
        }
    }

    /// Checks one region in use; returns the number of its records that the index names.
    async fn region(
        &mut self,
        shard: u32,
        number: u32,
        entry: &ManifestEntry,
        index: Option<&Index>,
        guess: &Guess,
    ) -> Result<u64, CacheError> {
        let geometry = self.superblock.geometry;
        let place = RegionPlace {
            layout: &geometry,
            cache_id: self.superblock.cache_id(),
            shard,
            number,
        };
        let start = place.device_offset();
        let read = read_region(self.cache, &place, entry, guess, &Cell::new(0)).await;
        let contents = match read.map_err(|error| error.to_string()) {
            Ok(Found::Contents(contents)) => contents,
            Ok(Found::Damaged(what)) | Err(what) => {
                self.tell(Finding::bad("region", start, geometry.region_bytes, what));
                self.done += geometry.region_bytes;
                return Ok(0);
            }
        };
        let object = Object::Region {
            shard,
            number,
            ring: entry.ring,
            generation: entry.generation,
            used: contents.used,
        };
        self.tell(Finding::good("region", start, geometry.region_bytes, object));
        let bytes = self.read(start, u64::from(contents.used)).await?;
        let mut records = &contents.records[..];
        let mut named = 0;
        for extent in &contents.extents {
            let (at, len) = (extent.offset as usize, extent.len as usize);
            let offset = start + u64::from(extent.offset);
            let list;
            (list, records) = records.split_at(usize::from(extent.record_count));
            let header = ExtentHeader::parse(&bytes[at..], geometry.header_bytes())
                .map_err(|error| error.to_string())
                .and_then(|header| check_extent(header, &place, offset, entry, extent));
            if let Ok(header) = &header {
                let copy = ExtentHeader::parse_copy(&bytes[at..at + len], geometry.header_bytes());
                if !copy.is_ok_and(|(copy, copied)| copy == *header && copied == list) {
                    let copied = header_copy_bytes(list.len()) as u64;
                    let what = "the copy of the header is damaged";
                    self.tell(Finding::bad(
                        "extent-copy",
                        offset + len as u64 - copied,
                        copied,
                        what,
                    ));
                }
            }
            self.tell(match header {
                Ok(header) => Finding::good("extent", offset, len as u64, Object::Extent(header)),
                Err(error) => Finding::bad("extent", offset, geometry.header_bytes() as u64, error),
            });
            named += self.extent(
                &place,
                entry.generation,
                &bytes[at..at + len],
                (offset, extent.header_bytes.into()),
                list,
                index,
            );
        }
        if entry.state != RegionUse::Open {
            let (extents, records) = (contents.extents.len() as u64, contents.records.len() as u64);
            let end = start + geometry.region_bytes - 64;
            self.tell(match contents.has_summary {
                true => Finding::good("region-summary", end, 64, Object::Summary { extents, records }),
                false => Finding::bad(
                    "region-summary",
                    end,
                    64,
                    "the summary of a full region cannot be read",
                ),
            });
        }
        self.done += geometry.region_bytes - u64::from(contents.used);
        Ok(named)
    }

    fn extent(
        &mut self,
        place: &RegionPlace<'_>,
        generation: Sequence,
        extent: &[u8],
        (offset, header_bytes): (u64, usize),
        records: &[u64],
        index: Option<&Index>,
    ) -> u64 {
        let (geometry, shard) = (self.superblock.geometry, place.shard);
        let within = offset - place.device_offset();
        let extent_location =
            Location((u64::from(place.number) * geometry.region_bytes + within) / UNIT_BYTES);
        let mut at = header_bytes;
        let mut named = 0;
        for &bits in records {
            let record = match Record::unpack(bits) {
                Ok(record) => record,
                Err(error) => {
                    self.tell(Finding::bad("record", offset, 8, error));
                    break;
                }
            };
            let range = record.place(at);
            if range.end > extent.len() {
                // The offset may also be outside the shard's part.
                self.tell(Finding::bad(
                    "record",
                    offset,
                    8,
                    "its fragment ends after the extent",
                ));
                break;
            }
            let location = Location(extent_location.0 + range.start as u64 / UNIT_BYTES);
            let entry = Entry::of_record(record, extent_location, location);
            let is_live = |block: BlockNumber| {
                let index = index?;
                let (owner, local) = block.in_shard(geometry.shard_count);
                let ours = owner == shard && block.offset() < geometry.origin_len;
                let now = if ours { index.get(local) } else { None };
                Some(entry.is_some_and(|entry| now.is_some_and(|now| now.same_place(entry))))
            };
            let position = offset + range.start as u64;
            for block in record.blocks() {
                let live = is_live(block);
                named += u64::from(live == Some(true));
                let finding = match record.kind {
                    RecordKind::Fragment { .. } | RecordKind::Group { .. } => {
                        let identity = FragmentIdentity {
                            cache: place.cache_id,
                            block,
                            location,
                            generation,
                        };
                        let fragment = extent.get(range.clone()).unwrap_or_default();
                        self.fragment(fragment, &identity, position, record, live)
                    }
                    RecordKind::SameFilled { value, .. } => Finding::good(
                        "same-filled",
                        offset,
                        8,
                        Object::SameFilled { block, value, live },
                    ),
                    RecordKind::Tombstone => {
                        Finding::good("tombstone", offset, 8, Object::Tombstone { block })
                    }
                    RecordKind::Cleaned => Finding::good("cleaned", offset, 8, Object::Cleaned { block }),
                };
                self.tell(finding);
            }
            at = range.end;
        }
        named
    }

    /// Checks a fragment, or the part of a group's that is one block's.
    fn fragment(
        &mut self,
        bytes: &[u8],
        identity: &FragmentIdentity,
        offset: u64,
        record: Record,
        live: Option<bool>,
    ) -> Finding {
        let codec = CodecId(bytes.get(6).copied().unwrap_or(u8::MAX));
        let stored = bytes.get(4..6).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
        let dirty = matches!(record.kind, RecordKind::Fragment { dirty: true, .. });
        let is_group = matches!(record.kind, RecordKind::Group { .. });
        let mut block = [0; BLOCK_BYTES];
        // The bytes of a group count with its first member.
        let is_first = record.blocks().next() == Some(identity.block);
        let len = if is_first { bytes.len() as u64 } else { 0 };
        match unpack_fragment(&mut self.decoders, bytes, identity, &mut block) {
            Ok(()) => {
                let object = Object::Fragment {
                    block: identity.block,
                    codec,
                    stored,
                    dirty,
                    live,
                };
                let name = codec.name().filter(|_| codec != CodecId::RAW).unwrap_or("raw");
                let kind = if is_group { "group" } else { "fragment" };
                let with = codec.dictionary().map_or("", |_| "-dictionary");
                Finding::good(&format!("{kind}-{name}{with}"), offset, len, object)
            }
            // The origin has older contents, unless a later record marks the block as cleaned, as one does for every block if
            // the superblock says that none is dirty.
            Err(error) if dirty && self.may_be_dirty && live != Some(false) => {
                let first = identity.block.0 * BLOCK_BYTES as u64;
                let what = format!(
                    "bytes {first} to {} of the origin: {error}",
                    first + BLOCK_BYTES as u64 - 1
                );
                Finding::bad("fragment-dirty", offset, len, what)
            }
            Err(error) => Finding::bad("fragment", offset, len, error),
        }
    }
}

/// Whether the header of an extent matches its region and the summary.
fn check_extent(
    header: ExtentHeader,
    place: &RegionPlace<'_>,
    offset: u64,
    entry: &ManifestEntry,
    extent: &SummaryExtent,
) -> Result<ExtentHeader, String> {
    let (cache, shard, generation) = (place.cache_id, place.shard, entry.generation.0);
    let checks = [
        (
            header.cache == cache,
            format!("of cache {:#x}, expected {cache:#x}", header.cache),
        ),
        (
            header.position == offset,
            format!("written for offset {}", header.position),
        ),
        (
            u32::from(header.shard) == shard,
            format!("of shard {}, expected {shard}", header.shard),
        ),
        (
            header.extent_bytes == extent.len,
            format!("{} bytes long, expected {}", header.extent_bytes, extent.len),
        ),
        (
            header.record_count == extent.record_count,
            format!(
                "of {} records, expected {}",
                header.record_count, extent.record_count
            ),
        ),
        (
            header.generation.0 == generation,
            format!("of generation {}, expected {generation}", header.generation.0),
        ),
    ];
    match checks.into_iter().find(|(ok, _)| !ok) {
        Some((_, error)) => Err(format!("extent is {error}")),
        None => Ok(header),
    }
}
