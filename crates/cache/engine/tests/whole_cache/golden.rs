//! Golden images of the format.
//!
//! `raw.img.zst` is written again byte for byte, `codecs.img.zst` is only read (the output of a codec may change with its
//! library, the decoded data must not). After an intended change of format, with a new version: `FLAZ_BLESS=1 cargo test -p
//! flaz-engine --test whole_cache golden`.

use std::path::PathBuf;

use flaz_engine::cache::{Start, read_superblock, write_superblock};

use flaz_engine::check::Object;
use flaz_engine::policy::PolicyKind;
use flaz_engine::units::Epoch;
use flaz_engine::volume::Volume;
use flaz_sim::{DiskImage, SimDisk};

use crate::rig::{BLOCK, Rig, SMALLEST, SMALLEST_LEN, filled_disk, plain_disk, settings};

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

/// Opens a stored image over an origin with different contents: correct data must come from the cache.
fn check_stored(name: &str, fragments: &[&str]) {
    let mut image = DiskImage::new(plain_disk(SMALLEST_LEN));
    image.write(0, &stored(name));
    let rig = Rig::from_images(2, &DiskImage::new(filled_disk(ORIGIN_LEN, other_text)), &image);
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
        let named = findings.iter().find_map(|finding| match finding.object {
            Ok(Object::Entries { count, .. }) => Some(count),
            _ => None,
        });
        assert_eq!(named, Some(BLOCKS - 2));
        // The origin is intentionally a different one: remove its fingerprint.
        let mut superblock = read_superblock(&rig.disk).await.expect("has a superblock");
        superblock.origin_fingerprint = None;
        write_superblock(&rig.disk, &mut superblock)
            .await
            .expect("writes");
        let open = rig.opened(settings("none", PolicyKind::S3Fifo)).await;
        assert_eq!(open.cache.start, Start::Warm(Epoch(1)));
        for number in 0..BLOCKS {
            let right = expected(number).unwrap_or_else(|| text(number, 999));
            assert!(
                open.read(number * BLOCK, BLOCK).await == right,
                "{name}: block {number} is wrong"
            );
        }
        let counts = open.cache.stats().counts;
        assert_eq!((counts.hit_blocks, counts.miss_blocks), (BLOCKS - 2, 2));
    });
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
    check_stored("raw.img.zst", &["fragment-raw", "region-summary"]);
}

#[test]
fn fragments_of_every_codec_are_read() {
    const CODECS: [&str; 5] = ["lz4", "none", "zstd:3", "zlib:6", "lzo"];
    bless("codecs.img.zst", &make(&CODECS));
    check_stored(
        "codecs.img.zst",
        &[
            "fragment-lz4",
            "fragment-raw",
            "fragment-zstd",
            "fragment-zlib",
            "fragment-lzo",
        ],
    );
}
