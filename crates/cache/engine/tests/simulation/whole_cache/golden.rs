//! Golden images of the format.
//!
//! `raw.img.zst` is written again byte for byte. `codecs.img.zst`, `groups.img.zst` and `dictionary.img.zst` are only read (the output of
//! a codec may change with its library, the decoded data must not). After an intended change of format, with a new version: `FLAZ_BLESS=1 cargo test -p
//! flaz-engine --test simulation golden`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use flaz_codec::Dictionary;
use flaz_device::{Device, IoBuf};
use flaz_engine::cache::{Start, read_superblock, write_superblock};
use flaz_engine::check::{Finding, Object};
use flaz_engine::format::dictionary::{DictionarySlot, StoredDictionary};
use flaz_engine::format::geometry::GeometryOptions;
use flaz_engine::format::superblock::Superblock;
use flaz_engine::policy::PolicyKind;
use flaz_engine::units::Epoch;
use flaz_engine::volume::Volume;
use flaz_sim::{DiskConfig, DiskImage, Rng, SimDisk};

use crate::whole_cache::rig::{BLOCK, Rig, SMALLEST, SMALLEST_LEN, filled_disk, plain_disk, settings};

const ORIGIN_LEN: u64 = 1 << 20;
/// All contents are in the first blocks.
const BLOCKS: u64 = 96;

/// A block of a repeated short text: any codec compresses it, and so does the compression of the image file.
fn text(number: u64, version: u64) -> Vec<u8> {
    let line = format!("block {number:06} version {version} of the golden image\n");
    line.bytes().cycle().take(BLOCK as usize).collect()
}

fn origin_text(number: u64, block: &mut [u8; 4096]) {
    block.copy_from_slice(&text(number, 0));
}

fn other_text(number: u64, block: &mut [u8; 4096]) {
    block.copy_from_slice(&text(number, 999));
}

/// The contents of the golden caches: blocks 0 to 95 except 5 and 37, which were trimmed.
fn expected(number: u64) -> Option<Vec<u8>> {
    match number {
        5 | 37 => None,
        3 => Some(text(3, 2)),
        40 => Some(vec![0xaa; 4096]),
        41 => Some(vec![0; 4096]),
        42 => Some(vec![0xff; 4096]),
        0..40 => Some(text(number, 1)),
        _ => Some(text(number, 0)),
    }
}

/// Fills a cache: raw or compressed blocks in both rings, same-filled blocks, an overwritten block, tombstones, admitted
/// reads, hits; in the raw image some regions are full and have a summary. The codecs of `codecs` take turns.
fn make(codecs: &[&str]) -> SimDisk {
    let rig = Rig::new(1, filled_disk(ORIGIN_LEN, origin_text), plain_disk(SMALLEST_LEN));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let open = rig.opened(settings(codecs[0], PolicyKind::S3Fifo)).await;
        for number in 0..40 {
            let codec = codecs[number as usize % codecs.len()];
            open.cache.set(&settings(codec, PolicyKind::S3Fifo));
            open.write(number * BLOCK, &text(number, 1)).await;
        }
        open.write(3 * BLOCK, &text(3, 2)).await;
        for (number, value) in [(40, 0xaa), (41, 0), (42, 0xff)] {
            open.write(number * BLOCK, &[value; 4096]).await;
        }
        for number in [5, 37] {
            open.volume
                .trim(number * BLOCK, BLOCK, false)
                .await
                .expect("trims");
            open.stored().await;
        }
        open.cache.set(&settings(codecs[0], PolicyKind::Fifo));
        for number in 43..BLOCKS {
            open.prefetch(number..number + 1).await;
        }
        for (number, hits) in [(7, 1), (8, 2), (50, 3)] {
            for _ in 0..hits {
                assert_eq!(
                    open.read(number * BLOCK, BLOCK).await,
                    expected(number).expect("cached")
                );
            }
        }
        open.stop().await.expect("stops in order");
    });
    rig.disk
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

#[expect(
    clippy::disallowed_methods,
    reason = "golden images are files of the repository"
)]
fn bless(name: &str, disk: &SimDisk) {
    if std::env::var_os("FLAZ_BLESS").is_some() {
        let bytes = disk.peek(0, SMALLEST_LEN as usize);
        let packed = zstd::bulk::compress(&bytes, 19).expect("compresses");
        std::fs::write(path(name), packed).expect("the golden image can be written");
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "golden images are files of the repository"
)]
fn stored(name: &str) -> Vec<u8> {
    let packed = std::fs::read(path(name)).expect("the golden image is there");
    zstd::bulk::decompress(&packed, SMALLEST_LEN as usize).expect("the golden image unpacks")
}

/// Opens a stored image over an origin with different contents: the first `blocks` blocks, unless nothing is `expected` of them, must
/// come from the cache. Returns what a check finds.
fn check_stored(
    name: &str,
    fragments: &[&str],
    origin_len: u64,
    blocks: u64,
    expected: impl Fn(u64) -> Option<Vec<u8>>,
) -> Vec<Finding> {
    let mut image = DiskImage::new(plain_disk(SMALLEST_LEN));
    image.write(0, &stored(name));
    let rig = Rig::from_images(2, &DiskImage::new(filled_disk(origin_len, other_text)), &image);
    rig.sim.block_on(async {
        let findings = rig.check().await.expect("has a superblock");
        let bad: Vec<_> = findings
            .iter()
            .filter(|finding| finding.object.is_err())
            .collect();
        assert!(bad.is_empty(), "{name}: {bad:?}");
        for kind in fragments
            .iter()
            .copied()
            .chain(["same-filled", "tombstone", "index-image"])
        {
            assert!(
                findings.iter().any(|finding| finding.kind == kind),
                "{name} has no {kind}"
            );
        }
        // The origin is intentionally a different one: remove its fingerprint.
        let mut superblock = read_superblock(&rig.disk).await.expect("has a superblock");
        superblock.origin_fingerprint = None;
        write_superblock(&rig.disk, &mut superblock)
            .await
            .expect("writes");
        let open = rig.opened(settings("none", PolicyKind::S3Fifo)).await;
        assert_eq!(open.cache.start, Start::Warm(Epoch(1)));
        for number in 0..blocks {
            let right = expected(number).unwrap_or_else(|| text(number, 999));
            assert!(
                open.read(number * BLOCK, BLOCK).await == right,
                "{name}: block {number} is wrong"
            );
        }
        let counts = open.cache.stats().counts;
        let cached = (0..blocks).filter(|number| expected(*number).is_some()).count() as u64;
        assert_eq!((counts.hit_blocks, counts.miss_blocks), (cached, blocks - cached));
        findings
    })
}

/// Number of blocks in the index image.
fn indexed(findings: &[Finding]) -> Option<u64> {
    findings.iter().find_map(|finding| match finding.object {
        Ok(Object::Entries { count, .. }) => Some(count),
        _ => None,
    })
}

#[test]
fn the_raw_image_is_written_byte_for_byte() {
    let disk = make(&["none"]);
    bless("raw.img.zst", &disk);
    let (found, expected) = (disk.peek(0, SMALLEST_LEN as usize), stored("raw.img.zst"));
    assert_eq!(found.len(), expected.len());
    let differs = found
        .iter()
        .zip(&expected)
        .position(|(found, expected)| found != expected);
    if let Some(at) = differs {
        panic!(
            "byte {at:#x} is {:#04x}, the golden image has {:#04x}",
            found[at], expected[at]
        );
    }
}

#[test]
fn the_raw_image_is_read() {
    let fragments = ["fragment-raw", "region-summary"];
    let findings = check_stored("raw.img.zst", &fragments, ORIGIN_LEN, BLOCKS, expected);
    assert_eq!(indexed(&findings), Some(BLOCKS - 2));
}

#[test]
fn fragments_of_every_codec_are_read() {
    const CODECS: [&str; 5] = ["lz4", "none", "zstd:3", "zlib:6", "lzo"];
    bless("codecs.img.zst", &make(&CODECS));
    let fragments = [
        "fragment-lz4",
        "fragment-raw",
        "fragment-zstd",
        "fragment-zlib",
        "fragment-lzo",
    ];
    let findings = check_stored("codecs.img.zst", &fragments, ORIGIN_LEN, BLOCKS, expected);
    assert_eq!(indexed(&findings), Some(BLOCKS - 2));
}

/// Blocks of the image with groups that are used, and stored together.
const GROUPED: u64 = 30;

/// The contents of the image with groups: five blocks have changed since they were stored with their neighbours, of which the second
/// was trimmed.
fn expected_grouped(number: u64) -> Option<Vec<u8>> {
    match number {
        6 => None,
        12 => Some(vec![0xaa; 4096]),
        1 | 16 | 19 => Some(text(number, 1)),
        _ => Some(text(number, 0)),
    }
}

/// After the blocks that are used: the same bytes in each, but for its number. Each fills a block of the cache, all together hardly
/// the image file.
fn origin_of_groups(number: u64, block: &mut [u8; 4096]) {
    match number {
        0..GROUPED => origin_text(number, block),
        _ => {
            Rng::new(5).fill(block);
            block[..8].copy_from_slice(&number.to_le_bytes());
        }
    }
}

/// The same blocks with a dictionary, or without.
fn make_groups(dictionary: bool) -> SimDisk {
    let origin = DiskConfig {
        read_latency: Duration::from_millis(2)..=Duration::from_millis(2),
        ..filled_disk(8 * ORIGIN_LEN, origin_of_groups)
    };
    let rig = Rig::new(1, origin, plain_disk(SMALLEST_LEN));
    let dictionary_bytes = dictionary.then_some(4 << 10);
    let superblock = rig.create(
        8 * ORIGIN_LEN,
        GeometryOptions {
            dictionary_bytes,
            ..SMALLEST
        },
    );
    rig.sim.block_on(async {
        if dictionary {
            store_dictionary(&rig.disk, &superblock).await;
        }
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        let mut next = GROUPED;
        while open.cache.stats().counts.grouped_blocks < GROUPED - 6 {
            for number in 0..GROUPED {
                open.read(number * BLOCK, BLOCK).await;
            }
            open.prefetch(next..next + 16).await;
            next += 16;
            assert!(
                (next + 16) * BLOCK < 8 * ORIGIN_LEN,
                "{:?}",
                open.cache.stats().counts
            );
        }
        // Those that were not stored again.
        for number in 0..GROUPED {
            open.read(number * BLOCK, BLOCK).await;
            open.stored().await;
        }
        for number in [1, 16, 19, 12] {
            let contents = expected_grouped(number).expect("it is cached");
            open.write(number * BLOCK, &contents).await;
        }
        open.volume.trim(6 * BLOCK, BLOCK, false).await.expect("trims");
        open.stored().await;
        open.stop().await.expect("stops in order");
    });
    rig.disk
}

/// Stores a dictionary of the used blocks as the first one.
async fn store_dictionary(disk: &SimDisk, superblock: &Superblock) {
    let mut blocks = vec![0; 64 * BLOCK as usize];
    for (number, block) in (0..).zip(blocks.as_chunks_mut().0) {
        origin_of_groups(number % GROUPED, block);
    }
    let contents = Dictionary::train(&blocks, BLOCK as usize, 4000);
    let slot = DictionarySlot {
        cache: superblock.cache_id(),
        shard: 0,
        number: 0,
    };
    let stored = StoredDictionary {
        generation: 1,
        contents: contents.expect("they have something in common"),
    };
    let mut bytes = stored.to_bytes(slot);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    let at = superblock.geometry.dictionary_offset(0, 0);
    let written = disk.write_at(at, IoBuf::copy_of(&bytes), true).await;
    written.1.expect("the disk is well");
}

#[test]
fn groups_are_read() {
    bless("groups.img.zst", &make_groups(false));
    check_groups("groups.img.zst", "group-zstd");
}

#[test]
fn groups_with_a_dictionary_are_read() {
    bless("dictionary.img.zst", &make_groups(true));
    check_groups("dictionary.img.zst", "group-zstd-dictionary");
}

fn check_groups(name: &str, kind: &str) {
    let findings = check_stored(name, &[kind], 8 * ORIGIN_LEN, GROUPED, expected_grouped);
    let members = findings.iter().filter(|finding| finding.kind == kind);
    let members: BTreeMap<u64, bool> = members
        .filter_map(|finding| match finding.object {
            Ok(Object::Fragment { block, live, .. }) => Some((block.0, live == Some(true))),
            _ => None,
        })
        .collect();
    for (number, live) in [
        (0, true),
        (1, false),
        (5, true),
        (6, false),
        (12, false),
        (13, true),
        (16, false),
        (17, true),
        (19, false),
    ] {
        assert_eq!(members.get(&number), Some(&live), "block {number}: {members:?}");
    }
}
