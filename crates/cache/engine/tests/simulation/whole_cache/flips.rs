//! Damage of one byte, anywhere: correct data or a refusal, and a check that reports it.

use flaz_engine::policy::PolicyKind;
use flaz_sim::DiskImage;

use crate::whole_cache::image::{ORIGIN_LEN, Victim};
use crate::whole_cache::rig::{Rig, settings};

/// Prints the damaged byte if there is a panic.
struct Place(&'static str, u64);

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("damaged was byte {} of the device ({})", self.1, self.0);
        }
    }
}

fn damaged(victim: &Victim, offset: u64) -> DiskImage {
    let mut image = victim.cache.clone();
    let byte = image.read(offset, 1)[0] ^ 1 << (offset % 8);
    image.write(offset, &[byte]);
    image
}

/// Opens the cache, and reads everything if `all`.
fn check_read(victim: &Victim, image: &DiskImage, all: bool) {
    const CHUNK_BYTES: u64 = 128 << 10;
    let rig = Rig::from_images(1, &victim.origin, image);
    rig.sim.block_on(async {
        let Ok(open) = rig.open(settings("none", PolicyKind::Fifo)).await else {
            return;
        };
        for at in (0..ORIGIN_LEN).step_by(CHUNK_BYTES as usize).filter(|_| all) {
            let right = &victim.right[at as usize..][..CHUNK_BYTES as usize];
            assert!(open.read(at, CHUNK_BYTES).await == right, "wrong data from {at}");
        }
    });
}

/// Checks the cache, and counts the problems.
fn problems(victim: &Victim, image: &DiskImage) -> usize {
    let rig = Rig::from_images(1, &victim.origin, image);
    match rig.sim.block_on(rig.check()) {
        Ok(findings) => findings.iter().filter(|finding| finding.object.is_err()).count(),
        Err(_) => 1,
    }
}

fn check_part(part: &str) {
    let victim = Victim::new();
    assert_eq!(problems(&victim, &victim.cache), 0);
    let mut bytes = 0;
    for (name, range) in victim.metadata().into_iter().filter(|(name, _)| *name == part) {
        let start = range.start;
        for offset in range {
            let _place = Place(name, offset);
            let image = damaged(&victim, offset);
            // Most of a page is reserved: damage there has the same effect everywhere.
            let all = offset - start < 128 || offset.is_multiple_of(16);
            check_read(&victim, &image, all);
            assert!(
                problems(&victim, &image) > 0,
                "nothing is said about byte {offset} ({name})"
            );
            bytes += 1;
        }
    }
    assert!(bytes > 400, "only {bytes} bytes of {part}");
}

#[test]
fn every_byte_of_the_superblocks() {
    check_part("superblock");
}

#[test]
fn every_byte_of_the_manifest() {
    check_part("manifest");
}

#[test]
fn every_byte_of_the_shard_state() {
    check_part("shard state");
}

#[test]
fn every_byte_of_the_intent_bitmap() {
    check_part("intents");
}

#[test]
fn every_byte_of_the_index_image() {
    check_part("index image");
}

#[test]
fn every_byte_of_the_extent_headers() {
    check_part("extent header");
    check_part("copy of extent header");
}

#[test]
fn every_byte_of_the_summary() {
    check_part("summary");
}

/// Damages one byte of each fragment at a time, the same in all: fragments are decoded independently of each other.
fn check_fragments(codec: &str) {
    let victim = Victim::of_codec(codec);
    let longest = victim.fragments.iter().map(|range| range.end - range.start).max();
    let longest = longest.expect("there are fragments");
    let (mut flipped, mut told) = (0, 0);
    for byte in 0..longest {
        let _place = Place("fragments, each", byte);
        let mut image = victim.cache.clone();
        for range in victim
            .fragments
            .iter()
            .filter(|range| range.start + byte < range.end)
        {
            let offset = range.start + byte;
            let damaged = image.read(offset, 1)[0] ^ 1 << (byte % 8);
            image.write(offset, &[damaged]);
            flipped += 1;
        }
        check_read(&victim, &image, true);
        told += problems(&victim, &image);
    }
    // The formats of some codecs have bits that do not change the decoded data, and only that is checked.
    let least = if codec == "none" {
        flipped
    } else {
        flipped * 99 / 100
    };
    assert!(told >= least, "{codec}: {told} told of {flipped}");
    assert!(flipped > 40 * 1400, "{codec}: {flipped}");
}

#[test]
fn every_byte_of_every_raw_block() {
    check_fragments("none");
}

#[test]
fn every_byte_of_every_fragment() {
    for codec in ["lz4", "zstd", "zlib", "lzo"] {
        check_fragments(codec);
    }
}
