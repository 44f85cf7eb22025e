//! Reading a cache device that nobody serves, structure by structure: for `flaz check` and `flaz dump`.
//!
//! After a clean stop the index images say what must be there, and everything that is missing or damaged is a
//! finding. After a crash only what can be found by walking is looked at, as recovery does it: a region ends where its
//! summary says, else at the first place without an extent. An extent that was never known to be stable and of which a
//! power cut left a part is such a place, and no damage.

use flaz_codec::{CodecId, Decoders};
use flaz_device::{Device, IoBuf};

use crate::cache::CacheError;
use crate::format::extent::{
    ExtentHeader, FRAGMENT_HEADER_BYTES, FragmentIdentity, Record, RecordKind, records,
};
use crate::format::geometry::{PAGE_BYTES, SUPERBLOCK_SLOTS};
use crate::format::intent::{DurableMark, IntentSector};
use crate::format::summary::{Summary, check_extents};
use crate::format::superblock::{State, Superblock};
use crate::index::Entry;
use crate::policy::Ring;
use crate::shard::{ImageContents, RegionState, read_image, read_state, unpack_fragment};
use crate::units::{BLOCK_BYTES, BlockNumber, Location, Sequence, UNIT_BYTES};

/// Bytes read at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// Something that was found on a cache device and is as it should be.
#[derive(Clone, Debug)]
pub enum Thing {
    /// A superblock slot.
    Superblock(Box<Superblock>),
    /// Sectors of the intent bitmap.
    Intents {
        /// How many.
        sectors: u64,
        /// Stripes whose bit is set.
        set: u64,
    },
    /// The index image of a shard.
    Index {
        /// The shard.
        shard: u32,
        /// Blocks it names.
        entries: u64,
    },
    /// A region with something in it.
    Region {
        /// The shard.
        shard: u32,
        /// Number within the shard.
        number: u32,
        /// The ring it belongs to.
        ring: Ring,
        /// Sequence of its first extent.
        fill: Sequence,
        /// Bytes filled.
        used: u32,
    },
    /// A region's summary.
    Summary {
        /// Extents that it lists.
        extents: u64,
        /// Records that it lists.
        records: u64,
    },
    /// An extent's header.
    Extent(ExtentHeader),
    /// A fragment that decodes and has the right checksum.
    Fragment {
        /// Its block.
        block: BlockNumber,
        /// Its codec.
        codec: CodecId,
        /// Stored bytes.
        stored: u16,
        /// Newer than the origin.
        dirty: bool,
        /// The index names it; `None` if there is no index.
        live: Option<bool>,
    },
    /// A block of equal bytes.
    Fill {
        /// Its block.
        block: BlockNumber,
        /// The value.
        value: u8,
        /// The index names it; `None` if there is no index.
        live: Option<bool>,
    },
    /// A block that is no longer cached.
    Tombstone {
        /// Its block.
        block: BlockNumber,
    },
    /// A block whose latest contents are on the origin.
    Cleaned {
        /// Its block.
        block: BlockNumber,
    },
    /// Index entries that name something that is there.
    Entries {
        /// The shard.
        shard: u32,
        /// How many.
        count: u64,
    },
}

/// Something that was looked at.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What it is: `superblock`, `extent`, `fragment-lz4`, ..
    pub kind: String,
    /// Byte offset on the device.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// How many of it are wrong, or count as one (1 but for index entries).
    pub count: u64,
    /// The thing, or what is wrong with it.
    pub thing: Result<Thing, String>,
}

impl Finding {
    fn good(kind: &str, offset: u64, len: u64, thing: Thing) -> Self {
        Self {
            kind: kind.to_owned(),
            offset,
            len,
            count: 1,
            thing: Ok(thing),
        }
    }

    fn bad(kind: &str, offset: u64, len: u64, error: impl ToString) -> Self {
        Self {
            kind: kind.to_owned(),
            offset,
            len,
            count: 1,
            thing: Err(error.to_string()),
        }
    }
}

/// Looks at everything on a cache device. `visit` is told each finding, and bytes done and in all.
///
/// # Errors
/// [`CacheError`] when the device fails or there is no superblock at all.
pub async fn walk<C: Device>(
    cache: &C,
    visit: &mut impl FnMut(Finding, u64, u64),
) -> Result<Superblock, CacheError> {
    let superblock = crate::cache::read_superblock(cache).await?;
    let mut walk = Walk {
        cache,
        superblock: &superblock,
        visit,
        done: 0,
        marks: Vec::new(),
        decoders: Decoders::default(),
    };
    walk.superblocks().await?;
    walk.intents().await?;
    for shard in 0..superblock.geometry.shard_count {
        walk.shard(shard).await?;
    }
    Ok(superblock)
}

struct Walk<'a, C, V> {
    cache: &'a C,
    superblock: &'a Superblock,
    visit: &'a mut V,
    done: u64,
    /// How much of the open regions of each shard was stable.
    marks: Vec<[DurableMark; 2]>,
    decoders: Decoders,
}

/// What a region should hold.
#[derive(Clone, Copy)]
struct Expected {
    full: bool,
    fill: Sequence,
    used: u64,
}

impl<C: Device, V: FnMut(Finding, u64, u64)> Walk<'_, C, V> {
    fn tell(&mut self, finding: Finding) {
        (self.visit)(finding, self.done, self.superblock.geometry.device_len);
    }

    async fn superblocks(&mut self) -> Result<(), CacheError> {
        for slot in SUPERBLOCK_SLOTS {
            let (page, result) = self.cache.read_at(slot, IoBuf::new(PAGE_BYTES)).await;
            result?;
            let len = PAGE_BYTES as u64;
            self.tell(match Superblock::parse(&page, self.cache.len()) {
                Ok(parsed) => Finding::good("superblock", slot, len, Thing::Superblock(Box::new(parsed))),
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
        let sectors_a_shard = (self.superblock.geometry.shard_intent_len() / 512).max(1);
        let mut newest =
            vec![((0, 0), [DurableMark::default(); 2]); self.superblock.geometry.shard_count as usize];
        let (mut set, mut number) = (0, 0_u64);
        // The bitmap of a device that is said to be huge takes hundreds of MiB.
        for at in (0..len).step_by(CHUNK_BYTES as usize) {
            let bytes = self.read(offset + at, CHUNK_BYTES.min(len - at)).await?;
            for sector in bytes.as_chunks::<512>().0 {
                match IntentSector::parse(sector, number as u32) {
                    Ok(sector) => {
                        let age = sector.age();
                        if let Some(newest) = newest.get_mut((number / sectors_a_shard) as usize)
                            && age >= newest.0
                            && sector.epoch.get() >= self.superblock.valid_from_epoch.0
                        {
                            *newest = (age, sector.durable());
                        }
                        let ones = sector.bits.iter().map(|byte| u64::from(byte.count_ones()));
                        set += ones.sum::<u64>();
                    }
                    Err(error) => {
                        let at = offset + number * 512;
                        self.tell(Finding::bad("intent-sector", at, 512, error));
                    }
                }
                number += 1;
            }
        }
        self.marks = newest.into_iter().map(|(_, marks)| marks).collect();
        let thing = Thing::Intents {
            sectors: len / 512,
            set,
        };
        self.tell(Finding::good("intent-bitmap", offset, len, thing));
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

    async fn shard(&mut self, shard: u32) -> Result<(), CacheError> {
        let geometry = self.superblock.geometry;
        let contents = self.image(shard).await;
        let mut named = 0;
        for number in 0..geometry.regions_per_shard {
            let offset = geometry.shard_offset(shard) + u64::from(number) * geometry.region_bytes;
            let expected = match &contents {
                Some(contents) => {
                    let region = contents.regions.at(number);
                    if region.state == RegionState::Free {
                        self.done += geometry.region_bytes;
                        continue;
                    }
                    let full = region.state == RegionState::Full;
                    Some(Expected {
                        full,
                        fill: region.fill,
                        used: u64::from(region.used),
                    })
                }
                None => None,
            };
            let bytes = self.read(offset, geometry.region_bytes).await?;
            named += self.region(shard, number, &bytes, expected, contents.as_ref());
        }
        if let Some(contents) = &contents {
            let (offset, len) = (geometry.shard_offset(shard), geometry.shard_len());
            let missing = contents.index.len() as u64 - named.min(contents.index.len() as u64);
            let thing = Thing::Entries { shard, count: named };
            self.tell(Finding {
                count: named,
                ..Finding::good("index-entry", offset, len, thing)
            });
            if missing > 0 {
                let message = format!("{missing} index entries of shard {shard} name nothing that is there");
                self.tell(Finding {
                    count: missing,
                    ..Finding::bad("index-entry", offset, len, message)
                });
            }
        }
        Ok(())
    }

    async fn image(&mut self, shard: u32) -> Option<ImageContents> {
        if self.superblock.state != State::Clean {
            return None;
        }
        let geometry = &self.superblock.geometry;
        let offset = geometry.shard_state_offset(shard);
        let read = async {
            let epoch = self.superblock.epoch;
            let state = read_state(self.cache, geometry, shard, self.superblock.cache_id(), epoch).await?;
            let image = read_image(self.cache, geometry, &state).await?;
            let contents = ImageContents::parse(&image, geometry, &state);
            contents.map_err(|what| crate::shard::ImageError::Contents { shard, what })
        };
        match read.await {
            Ok(contents) => {
                let entries = contents.index.len() as u64;
                self.tell(Finding::good(
                    "index-image",
                    offset,
                    PAGE_BYTES as u64,
                    Thing::Index { shard, entries },
                ));
                if contents.refused > 0 {
                    let message = format!("{} index entries of shard {shard} cannot be", contents.refused);
                    let bad = Finding::bad("index-entry", offset, PAGE_BYTES as u64, message);
                    self.tell(Finding {
                        count: contents.refused as u64,
                        ..bad
                    });
                }
                Some(contents)
            }
            Err(error) => {
                self.tell(Finding::bad("index-image", offset, PAGE_BYTES as u64, error));
                None
            }
        }
    }

    /// Walks one region; returns the number of its records that the index names.
    fn region(
        &mut self,
        shard: u32,
        number: u32,
        bytes: &[u8],
        expected: Option<Expected>,
        contents: Option<&ImageContents>,
    ) -> u64 {
        let geometry = self.superblock.geometry;
        let start = geometry.shard_offset(shard) + u64::from(number) * geometry.region_bytes;
        let header_bytes = geometry.header_bytes();
        let expected = expected.or_else(|| self.by_summary(bytes, start));
        let mut at = 0usize;
        let mut named = 0;
        while at + header_bytes <= bytes.len() && expected.is_none_or(|e| (at as u64) < e.used) {
            let offset = start + at as u64;
            let header = ExtentHeader::parse(&bytes[at..], header_bytes)
                .map_err(|error| error.to_string())
                .and_then(|header| self.check_extent(header, shard, offset, bytes.len() - at, expected));
            let header = match header {
                Ok(header) => header,
                Err(error) => {
                    // Without an index nothing says that there should be an extent.
                    if expected.is_some() {
                        self.tell(Finding::bad("extent", offset, header_bytes as u64, error));
                    }
                    break;
                }
            };
            if expected.is_none()
                && !self.is_stable(shard, &header, at)
                && !self.is_whole(shard, &header, &bytes[at..], offset)
            {
                break;
            }
            if at == 0 {
                let used = expected.map_or(0, |e| e.used as u32);
                let thing = Thing::Region {
                    shard,
                    number,
                    ring: header.ring,
                    fill: header.fill,
                    used,
                };
                self.tell(Finding::good("region", start, geometry.region_bytes, thing));
            }
            let len = header.extent_bytes as usize;
            self.tell(Finding::good("extent", offset, len as u64, Thing::Extent(header)));
            named += self.extent(shard, &header, &bytes[at..at + len], offset, contents);
            at += len;
        }
        if expected.is_some_and(|e| e.full) {
            self.summary(start, bytes, expected);
        }
        named
    }

    /// What a region holds by its own summary, where no index says it.
    fn by_summary(&self, bytes: &[u8], start: u64) -> Option<Expected> {
        let geometry = &self.superblock.geometry;
        let summary = Summary::parse(bytes).ok()?;
        let header = ExtentHeader::parse(bytes, geometry.header_bytes()).ok()?;
        // An older one may be left behind the extents of a new filling.
        let ours = summary.cache == self.superblock.cache_id()
            && summary.position == start
            && summary.fill == header.fill;
        let used = check_extents(&summary.extents, geometry).ok()?;
        ours.then_some(Expected {
            full: true,
            fill: summary.fill,
            used,
        })
    }

    /// Whether an extent that begins at `at` in its region was known to be stable.
    fn is_stable(&self, shard: u32, header: &ExtentHeader, at: usize) -> bool {
        let marks = self.marks.get(shard as usize).copied().unwrap_or_default();
        let mark = marks[header.ring.index()];
        mark.fill == header.fill && at + header.extent_bytes as usize <= mark.used as usize
    }

    /// Whether everything that a header promises is there. `bytes` begin with it.
    fn is_whole(&mut self, shard: u32, header: &ExtentHeader, bytes: &[u8], offset: u64) -> bool {
        let geometry = self.superblock.geometry;
        let units = (offset - geometry.shard_offset(shard)) / UNIT_BYTES;
        let mut at = geometry.header_bytes();
        let mut block = [0; BLOCK_BYTES];
        for bits in records(bytes, header.record_count) {
            let Ok(record) = Record::unpack(bits) else {
                return false;
            };
            let end = at + record.fragment_bytes();
            if let RecordKind::Fragment { .. } = record.kind {
                let identity = FragmentIdentity {
                    cache: header.cache,
                    volume: record.volume,
                    block: record.block,
                    location: Location(units + at as u64 / UNIT_BYTES),
                    fill: header.fill,
                };
                let fragment = bytes.get(at..end).unwrap_or_default();
                if unpack_fragment(&mut self.decoders, fragment, &identity, &mut block).is_err() {
                    return false;
                }
            }
            at = end;
        }
        true
    }

    fn check_extent(
        &self,
        header: ExtentHeader,
        shard: u32,
        offset: u64,
        left: usize,
        expected: Option<Expected>,
    ) -> Result<ExtentHeader, String> {
        let cache = self.superblock.cache_id();
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
                header
                    .extent_bytes
                    .is_multiple_of(self.superblock.geometry.sector_bytes),
                format!("{} bytes long, not a multiple of the sector", header.extent_bytes),
            ),
            (
                header.extent_bytes as usize <= left,
                format!("{} bytes long, {left} are left", header.extent_bytes),
            ),
            (
                expected.is_none_or(|e| e.fill == header.fill),
                format!(
                    "of fill {}, expected {:?}",
                    header.fill.0,
                    expected.map(|e| e.fill.0)
                ),
            ),
        ];
        match checks.into_iter().find(|(ok, _)| !ok) {
            Some((_, error)) => Err(format!("extent is {error}")),
            None => Ok(header),
        }
    }

    fn extent(
        &mut self,
        shard: u32,
        header: &ExtentHeader,
        extent: &[u8],
        offset: u64,
        contents: Option<&ImageContents>,
    ) -> u64 {
        let geometry = self.superblock.geometry;
        let extent_location = Location((offset - geometry.shard_offset(shard)) / UNIT_BYTES);
        let mut at = geometry.header_bytes();
        let mut named = 0;
        for bits in records(extent, header.record_count) {
            let record = match Record::unpack(bits) {
                Ok(record) => record,
                Err(error) => {
                    self.tell(Finding::bad("record", offset, 8, error));
                    break;
                }
            };
            let len = record.fragment_bytes();
            if at + len > extent.len() {
                // Nor need there be such a place in the shard's part.
                self.tell(Finding::bad(
                    "record",
                    offset,
                    8,
                    "its fragment ends behind the extent",
                ));
                break;
            }
            let location = Location(extent_location.0 + at as u64 / UNIT_BYTES);
            let entry = match record.kind {
                RecordKind::Fragment { stored, .. } => Some(Entry::fragment(
                    location,
                    FRAGMENT_HEADER_BYTES + usize::from(stored),
                )),
                RecordKind::Fill { value, .. } => Some(Entry::fill(extent_location, value)),
                RecordKind::Tombstone | RecordKind::Cleaned => None,
            };
            let live = contents.map(|contents| {
                let (owner, local) = record.block.in_shard(geometry.shard_count);
                let ours = owner == shard && record.block.offset() < geometry.origin_len;
                let now = if ours { contents.index.get(local) } else { None };
                entry.is_some_and(|entry| now.is_some_and(|now| now.same_place(entry)))
            });
            named += u64::from(live == Some(true));
            let position = offset + at as u64;
            let finding = match record.kind {
                RecordKind::Fragment { dirty, .. } => {
                    let fragment = extent.get(at..at + len).unwrap_or_default();
                    let identity = FragmentIdentity {
                        cache: header.cache,
                        volume: record.volume,
                        block: record.block,
                        location,
                        fill: header.fill,
                    };
                    self.fragment(fragment, &identity, position, dirty, live)
                }
                RecordKind::Fill { value, .. } => Finding::good(
                    "fill",
                    offset,
                    8,
                    Thing::Fill {
                        block: record.block,
                        value,
                        live,
                    },
                ),
                RecordKind::Tombstone => {
                    Finding::good("tombstone", offset, 8, Thing::Tombstone { block: record.block })
                }
                RecordKind::Cleaned => {
                    Finding::good("cleaned", offset, 8, Thing::Cleaned { block: record.block })
                }
            };
            self.tell(finding);
            at += len;
        }
        named
    }

    fn fragment(
        &mut self,
        bytes: &[u8],
        identity: &FragmentIdentity,
        offset: u64,
        dirty: bool,
        live: Option<bool>,
    ) -> Finding {
        let codec = CodecId(bytes.get(6).copied().unwrap_or(u8::MAX));
        let stored = bytes.get(4..6).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
        let mut block = [0; BLOCK_BYTES];
        let len = bytes.len() as u64;
        match unpack_fragment(&mut self.decoders, bytes, identity, &mut block) {
            Ok(()) => {
                let thing = Thing::Fragment {
                    block: identity.block,
                    codec,
                    stored,
                    dirty,
                    live,
                };
                let name = codec.name().filter(|_| codec != CodecId::RAW).unwrap_or("raw");
                Finding::good(&format!("fragment-{name}"), offset, len, thing)
            }
            // The origin has nothing as new, unless a later record says that it was cleaned.
            Err(error) if dirty && live != Some(false) => {
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

    fn summary(&mut self, start: u64, bytes: &[u8], expected: Option<Expected>) {
        let end = start + bytes.len() as u64;
        let parsed = Summary::parse(bytes)
            .map_err(|error| error.to_string())
            .and_then(|summary| {
                let fill = expected.map(|e| e.fill);
                if summary.position != start || fill.is_some_and(|fill| fill != summary.fill) {
                    return Err(format!(
                        "summary of fill {} at {}, expected fill {:?} at {start}",
                        summary.fill.0,
                        summary.position,
                        fill.map(|fill| fill.0)
                    ));
                }
                Ok(summary)
            });
        self.tell(match parsed {
            Ok(summary) => {
                let (extents, records) = (summary.extents.len() as u64, summary.records.len() as u64);
                Finding::good(
                    "region-summary",
                    end - 64,
                    64,
                    Thing::Summary { extents, records },
                )
            }
            Err(error) => Finding::bad("region-summary", end - 64, 64, error),
        });
    }
}
