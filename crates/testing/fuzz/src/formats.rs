//! The fixed structures, one by one: bytes in, a value or an error out. A value is written and read again.
//!
//! The first byte of an input says whether the structure is sealed before it is read, so that a fuzzer need not find
//! checksums by chance.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use flaz_codec::{CodecChoice, CodecId, Decoders, Dictionaries, Dictionary, Effort, encoder_with};
use flaz_engine::format::dictionary::{DICTIONARY_HEADER_BYTES, DictionarySlot, StoredDictionary};
use flaz_engine::format::extent::{
    ExtentHeader, FRAGMENT_HEADER_BYTES, FragmentHeader, FragmentIdentity, Record, fragment_checksum,
    header_copy_bytes, records,
};
use flaz_engine::format::geometry::{Geometry, GeometryOptions, PAGE_BYTES, SUPERBLOCK_BYTES};
use flaz_engine::format::group::{GROUP_STORED_MAX, Members};
use flaz_engine::format::intent::{INTENT_STRIPES, IntentSector};
use flaz_engine::format::manifest::{ManifestSector, regions_per_sector};
use flaz_engine::format::shard_state::ShardState;
use flaz_engine::format::summary::{Summary, check_extents, summary_bytes};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::settings::AfterCrash;
use flaz_engine::shard::unpack_fragment;
use flaz_engine::units::{BLOCK_BYTES, BlockNumber, Location, Sequence};
use flaz_pool::format::{Owner, PoolLayout, PoolSuperblock, TableSector, VolumeEntry};
use flaz_pool::table::Table;
use zerocopy::{FromBytes, IntoBytes};

use crate::sectors::sectors;
use crate::structure::{Kind, seal};

/// Number of bytes that are read for superblocks.
const DEVICE_LEN: u64 = 2 << 20;

fn geometry() -> Geometry {
    let wish = GeometryOptions {
        extent_bytes: Some(32 << 10),
        region_bytes: Some(128 << 10),
        shard_count: Some(1),
        threads: None,
        index_memory: None,
        dictionary_bytes: None,
    };
    Geometry::plan(DEVICE_LEN, 512, 1 << 20, wish).expect("it fits")
}

/// The structure in an input, cut or padded to `len` bytes, and sealed if the input says so.
fn structure(kind: Kind, data: &[u8], len: usize) -> Vec<u8> {
    let (mode, rest) = data.split_first().map_or((0, data), |(mode, rest)| (*mode, rest));
    let mut bytes = rest.to_vec();
    bytes.resize(len, 0);
    if mode & 1 == 0 {
        seal(kind, &mut bytes);
    }
    bytes
}

/// A superblock page.
///
/// # Panics
/// If a value differs after it was written and read again, or cannot exist on the device.
pub fn superblock(data: &[u8]) {
    let page = structure(Kind::Superblock, data, SUPERBLOCK_BYTES);
    let Ok(parsed) = Superblock::parse(&page, DEVICE_LEN) else {
        return;
    };
    let geometry = parsed.geometry;
    assert!(geometry.end() <= DEVICE_LEN);
    assert!(geometry.intent_offset() + geometry.intent_len() <= geometry.data_offset());
    let mut again =
        Superblock::parse(&parsed.to_bytes().expect("it was read"), DEVICE_LEN).expect("was valid");
    again.after_crash = AfterCrash::Warm;
    assert_eq!(again, parsed);
}

/// A superblock of a cache device that volumes share, or a sector of its chunk table: a valid one with some other bytes, sealed or
/// not. The input has the places and values of the bytes.
///
/// # Panics
/// If a value differs after it was written and read again, or cannot exist on the device.
pub fn pool(data: &[u8]) {
    let (mode, rest) = data.split_first().map_or((0, data), |(mode, rest)| (*mode, rest));
    let changed = |mut bytes: Vec<u8>, checksum: usize| {
        for change in rest.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
            bytes[at] = change[2];
        }
        if mode & 1 == 0 {
            bytes[checksum..checksum + 4].fill(0);
            let sum = crc32c::crc32c(&bytes);
            bytes[checksum..checksum + 4].copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    };
    if mode & 2 == 0 {
        let slot = changed(pool_superblock().to_bytes().expect("valid"), 12);
        let Ok(parsed) = PoolSuperblock::parse(&slot, DEVICE_LEN) else {
            return;
        };
        assert!(parsed.layout.chunk_offset(parsed.chunks) <= DEVICE_LEN);
        assert!(
            parsed.layout.chunks_max <= 1 << 11,
            "memory for a device of {DEVICE_LEN} bytes"
        );
        let again = PoolSuperblock::parse(&parsed.to_bytes().expect("it was read"), DEVICE_LEN);
        assert_eq!(again.expect("was valid"), parsed);
        return;
    }
    let owners = (0..TABLE_OWNERS).map(|index| (index % 3 > 0).then_some(Owner { volume: index, index }));
    let valid = TableSector {
        pool: 7,
        number: 0,
        generation: 5,
        owners: owners.collect(),
    };
    let mut sector = vec![0; 512];
    valid.write(&mut sector);
    let parse = |bytes: &[u8]| TableSector::parse(bytes, 7, 0, TABLE_OWNERS as usize);
    let Ok(parsed) = parse(&changed(sector, 4)) else {
        return;
    };
    let mut again = vec![0; 512];
    parsed.write(&mut again);
    assert_eq!(parse(&again).expect("it was read"), parsed);
    // Sectors of a pool that shrinks: of two chunks of a part the lower one counts.
    let usable = u32::from(mode).min(TABLE_OWNERS);
    let is_known = |volume| volume % 5 > 0;
    if let Ok(table) = Table::new(&parsed.owners, usable, is_known) {
        let owners: Vec<Owner> = (0..table.len()).filter_map(|chunk| table.owner(chunk)).collect();
        let parts: BTreeSet<Owner> = owners.iter().copied().collect();
        assert_eq!((parts.len(), table.used() as usize), (owners.len(), owners.len()));
        assert!(
            table
                .copies()
                .all(|chunk| chunk >= usable && table.owner(chunk).is_none())
        );
    }
}

/// Chunks that a sector of the table describes.
const TABLE_OWNERS: u32 = 60;

fn pool_superblock() -> PoolSuperblock {
    let (layout, chunks) = PoolLayout::plan(DEVICE_LEN, 512, 128 << 10).expect("it fits");
    let volume = |number: u32, name: &str| VolumeEntry {
        number,
        uuid: uuid::Uuid::from_u128(number.into()),
        name: name.to_owned(),
        front_bytes: 128 << 10,
        least: 1,
        at_least: 1,
        at_most: 7 * number,
    };
    PoolSuperblock {
        uuid: uuid::Uuid::from_u128(7),
        generation: 9,
        layout,
        chunks,
        chunks_before: chunks + 3,
        shrink_to: Some(chunks - 2),
        next_volume: 4,
        volumes: vec![volume(1, "home"), volume(3, "db")],
        budget: flaz_pool::PoolBudget::full(1 << 40, 1 << 41).ok(),
    }
}

/// A shard's state page.
///
/// # Panics
/// If a value differs after it was written and read again.
pub fn shard_state(data: &[u8]) {
    let page = structure(Kind::State, data, PAGE_BYTES);
    let _ = ShardState::parse(data, 0);
    let Ok(parsed) = ShardState::parse(&page, 0) else {
        return;
    };
    assert_eq!(ShardState::parse(&parsed.to_bytes(), 0), Ok(parsed));
}

/// A sector of the intent bitmap.
///
/// # Panics
/// If a value differs after it was written and read again.
pub fn intent(data: &[u8]) {
    let bytes: [u8; 512] = structure(Kind::Intent, data, 512).try_into().expect("512 bytes");
    let Ok(mut parsed) = IntentSector::parse(&bytes, 0) else {
        return;
    };
    let set = (0..INTENT_STRIPES).filter(|&bit| parsed.has(bit)).count();
    assert!(set as u64 <= INTENT_STRIPES);
    parsed.seal();
    assert_eq!(parsed.as_bytes(), bytes);
}

const IDENTITY: FragmentIdentity = FragmentIdentity {
    cache: 0x1234_5678,
    block: BlockNumber(42),
    location: Location(7),
    generation: Sequence(9),
};

/// The contents of the dictionary that fragments may need.
fn contents() -> Vec<u8> {
    let blocks: Vec<u8> = (0..64).flat_map(|number| sectors(8 * number, 8, 1)).collect();
    Dictionary::train(&blocks, BLOCK_BYTES, 8 << 10).expect("they have enough in common")
}

/// The dictionaries that fragments may need: one, with number 0.
pub(crate) fn dictionaries() -> Dictionaries {
    static MADE: OnceLock<Option<Arc<Dictionary>>> = OnceLock::new();
    let made = MADE.get_or_init(|| Dictionary::new(&contents()).map(Arc::new));
    [made.clone(), None]
}

fn decoders() -> Decoders {
    let mut decoders = Decoders::new();
    decoders.set_dictionaries(dictionaries());
    decoders
}

const SLOT: DictionarySlot = DictionarySlot {
    cache: 0x1234_5678,
    shard: 0,
    number: 0,
};

/// A dictionary in its slot, as an input of the target.
pub(crate) fn stored_dictionary() -> Vec<u8> {
    let stored = StoredDictionary {
        generation: 1,
        contents: contents(),
    };
    [&[0][..], &stored.to_bytes(SLOT)].concat()
}

/// A dictionary, and fragments that are restored with it.
///
/// # Panics
/// If a value differs after it was written and read again.
pub fn dictionary(data: &[u8]) {
    let (mode, rest) = data.split_first().map_or((0, data), |(mode, rest)| (*mode, rest));
    let mut parsed = StoredDictionary::parse(rest, SLOT);
    if mode & 1 == 0 && rest.len() > DICTIONARY_HEADER_BYTES {
        // With a correct header.
        let stored = StoredDictionary {
            generation: u32::from(mode),
            contents: rest[DICTIONARY_HEADER_BYTES..].to_vec(),
        };
        parsed = StoredDictionary::parse(&stored.to_bytes(SLOT), SLOT);
        assert_eq!(parsed, Ok(Some(stored)));
    }
    let Ok(Some(stored)) = parsed else { return };
    let effort = match mode & 2 {
        0 => Effort::Usual,
        _ => Effort::High,
    };
    let codec = CodecChoice::Auto.second(effort, true).expect("it has one");
    let Some(dictionary) = Dictionary::new(&stored.contents).map(Arc::new) else {
        return;
    };
    let block = sectors(8, 8, 2);
    let (mut out, mut found) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    let mut decoders = Decoders::new();
    decoders.set_dictionaries([Some(Arc::clone(&dictionary)), None]);
    let id = CodecId::ZSTD.with_dictionary(0);
    let mut encoder = encoder_with(&dictionary, codec);
    if let Some(len) = encoder
        .as_mut()
        .and_then(|encoder| encoder.compress(&block, &mut out))
    {
        // Contents that the codec takes may still be no good dictionary: it must restore the block, or fail.
        let restored = decoders.decompress(id, &out[..len], &mut found);
        assert!(restored.is_err() || found == block);
    }
    let tail = &rest[rest.len().saturating_sub(64)..];
    let _ = decoders.decompress(id, tail, &mut found);
}

/// An extent: header, records and some of its fragments, each decoded.
///
/// # Panics
/// If an accepted length exceeds its container.
pub fn extent(data: &[u8]) {
    let longest = geometry().header_bytes();
    let mut bytes = structure(Kind::Extent, data, data.len().clamp(longest, 32 << 10));
    if data.first().is_some_and(|mode| mode & 1 == 0) {
        let said = usize::from(u16::from_le_bytes([bytes[58], bytes[59]]));
        seal(Kind::Extent, &mut bytes[..said.clamp(64, longest)]);
    }
    let Ok(header) = ExtentHeader::parse(&bytes, longest) else {
        return;
    };
    let mut decoders = decoders();
    let mut at = usize::from(header.header_bytes);
    for bits in records(&bytes, header.record_count) {
        let Ok(record) = Record::unpack(bits) else { break };
        assert_eq!(record.pack(), bits, "a record has one form");
        let place = record.place(at);
        let Some(fragment) = bytes.get(place.clone()) else {
            break;
        };
        if record.has_fragment() {
            for block in record.blocks() {
                let identity = FragmentIdentity { block, ..IDENTITY };
                let _ = unpack_fragment(&mut decoders, fragment, &identity, &mut [0; 4096]);
            }
        }
        at = place.end;
    }
    let listed: Vec<u64> = records(&bytes, header.record_count).collect();
    let mut again = vec![0; longest + header_copy_bytes(listed.len())];
    header.write(&listed, &mut again);
    let written = ExtentHeader::parse(&again, longest).expect("it was just written");
    assert_eq!(
        ExtentHeader {
            contents_checksum: header.contents_checksum,
            ..written
        },
        header
    );
    assert_eq!(ExtentHeader::parse_copy(&again, longest), Ok((written, listed)));
    let _ = header.is_whole(&bytes);
    let of_length = ExtentHeader {
        extent_bytes: again.len() as u32,
        ..written
    };
    assert!(of_length.is_whole(&again), "as it was written");
    let at = usize::from(written.header_bytes);
    let end = again.len() - header_copy_bytes(written.record_count.into());
    if at < end {
        again[at + (end - at) / 2] ^= 1;
        assert!(!of_length.is_whole(&again), "a bit is wrong");
    }
}

/// Restores the block of a group that the target asks for; false: it is not there.
fn group(
    decoders: &mut Decoders,
    header: &FragmentHeader,
    members: Members,
    stored: &[u8],
    block: &mut [u8],
) -> bool {
    let Some(ordinal) = members.ordinal(IDENTITY.block) else {
        return false;
    };
    let mut blocks = vec![0; (ordinal + 1) * BLOCK_BYTES];
    let checksums = 4 * (members.count() - 1);
    let restored = (checksums + 1..=GROUP_STORED_MAX).contains(&stored.len())
        && decoders
            .decompress_first(
                CodecId(header.codec),
                &stored[checksums..],
                BLOCK_BYTES,
                &mut blocks,
            )
            .is_ok();
    block.copy_from_slice(&blocks[ordinal * BLOCK_BYTES..]);
    restored
}

/// A fragment: its header and its contents.
///
/// # Panics
/// If the result depends on the earlier contents of the buffer, or a valid fragment is refused.
pub fn fragment(data: &[u8]) {
    let (mode, rest) = data.split_first().map_or((0, data), |(mode, rest)| (*mode, rest));
    let mut bytes = rest.to_vec();
    let decoders = &mut decoders();
    let mut expected = None;
    if mode & 1 == 0
        && let Ok((header, stored)) = FragmentHeader::read_from_prefix(&bytes)
        && let Some(stored) = stored.get(..usize::from(header.stored.get()))
    {
        let (codec, mut block) = (CodecId(header.codec), vec![0; BLOCK_BYTES]);
        let whole = if let Some(members) = Members::from_bits(header.members) {
            group(decoders, &header, members, stored, &mut block)
        } else if codec == CodecId::RAW {
            stored.len() == BLOCK_BYTES && {
                block.copy_from_slice(stored);
                true
            }
        } else {
            (1..=BLOCK_BYTES).contains(&stored.len())
                && decoders.decompress(codec, stored, &mut block).is_ok()
        };
        let checksum = fragment_checksum(&IDENTITY, header.packing(), crc32c::crc32c(&block));
        let ordinal = Members::from_bits(header.members).and_then(|members| members.ordinal(IDENTITY.block));
        let at = match ordinal {
            None | Some(0) => 0,
            Some(ordinal) => FRAGMENT_HEADER_BYTES + 4 * (ordinal - 1),
        };
        if let Some(place) = bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&checksum.to_le_bytes());
        }
        let is_known = header.members <= 0xf;
        expected = (whole && is_known).then_some(block);
    }
    let mut unpack = |fill: u8| {
        let mut block = vec![fill; BLOCK_BYTES];
        unpack_fragment(decoders, &bytes, &IDENTITY, &mut block).map(|()| block)
    };
    let (first, second) = (unpack(0).ok(), unpack(0xa5).ok());
    assert!(first == second, "earlier contents show through");
    assert!(
        expected.is_none() || first == expected,
        "it is valid, but refused"
    );
    assert!(first.is_none() || bytes.len() > FRAGMENT_HEADER_BYTES);
}

/// A region's summary, at the end of the input.
///
/// # Panics
/// If a value differs after it was written and read again.
pub fn summary(data: &[u8]) {
    let bytes = structure(Kind::Summary, data, data.len().saturating_sub(1));
    let _ = Summary::parse_len(&bytes, 128 << 10);
    let Ok(parsed) = Summary::parse(&bytes) else {
        return;
    };
    if let Ok(end) = check_extents(&parsed.extents, &geometry()) {
        assert!(end <= geometry().region_bytes);
    }
    let len = summary_bytes(parsed.extents.len(), parsed.records.len(), 512);
    let mut area = vec![0; len as usize];
    parsed.write(&mut area);
    assert_eq!(Summary::parse(&area), Ok(parsed));
}

/// A sector of the manifest.
///
/// # Panics
/// If what is read is not what is written again.
pub fn manifest(data: &[u8]) {
    let bytes = structure(Kind::Manifest, data, 512);
    let count = regions_per_sector(512) as usize;
    let Ok(parsed) = ManifestSector::parse(&bytes, 7, 0, count, 128 << 10) else {
        return;
    };
    let mut again = vec![0; 512];
    parsed.write(&mut again);
    assert_eq!(ManifestSector::parse(&again, 7, 0, count, 128 << 10), Ok(parsed));
}
