//! Images with valid checksums and absurd values: no panic, no hang, no access beyond the device (the simulated disk panics
//! then), and later writes are read back.

use std::time::Duration;

use flaz_engine::cache::{Start, read_superblock, write_superblock};
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{Mode, Settings};
use flaz_sim::{DiskConfig, DiskImage, Rng};

use crate::whole_cache::image::{ORIGIN_LEN, Victim};
use crate::whole_cache::rig::{BLOCK, Rig, SMALLEST, SMALLEST_LEN, filled_disk, plain_disk, settings};

/// More polls than any of these runs needs.
const STEPS_MAX: u64 = 1_000_000;

fn refusal(victim: &Victim, image: &DiskImage) -> Option<String> {
    let rig = Rig::from_images(1, &victim.origin, image);
    let opened = rig.sim.block_on(rig.open(settings("none", PolicyKind::Fifo)));
    opened.err().map(|error| error.to_string())
}

/// Uses a cache as far as possible: check, open, read all, overwrite until every region has been reclaimed, stop, open
/// again. Returns how it started, if it did.
fn use_it(victim: &Victim, image: &DiskImage, seed: u64) -> Option<Start> {
    let rig = Rig::from_images(seed, &victim.origin, image);
    rig.sim.set_step_limit(STEPS_MAX);
    let blocks = ORIGIN_LEN / BLOCK;
    rig.sim.block_on(async {
        let _ = rig.check().await;
        let fifo = settings("none", PolicyKind::Fifo);
        let open = rig.open(fifo.clone()).await.ok()?;
        let start = open.cache.start;
        for first in (0..blocks).step_by(16) {
            open.read(first * BLOCK, 16 * BLOCK).await;
        }
        let mut now: Vec<Option<Vec<u8>>> = vec![None; blocks as usize];
        let mut rng = Rng::new(seed);
        for turn in 0..340 {
            let number = (turn * 7) % blocks;
            let mut data = vec![0; BLOCK as usize];
            rng.fill(&mut data);
            open.write(number * BLOCK, &data).await;
            now[number as usize] = Some(data);
        }
        for _ in 0..2 {
            for (number, right) in now.iter().enumerate() {
                let Some(right) = right else { continue };
                assert!(
                    open.read(number as u64 * BLOCK, BLOCK).await == *right,
                    "block {number}"
                );
            }
        }
        let stopped = open.stop().await;
        let _ = rig.check().await;
        if stopped.is_ok() {
            let open = rig.opened(fifo).await;
            for (number, right) in now.iter().enumerate() {
                let Some(right) = right else { continue };
                assert!(
                    open.read(number as u64 * BLOCK, BLOCK).await == *right,
                    "block {number}, later"
                );
            }
        }
        Some(start)
    })
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

#[test]
fn absurd_superblocks_are_refused() {
    let victim = Victim::new();
    let (u32s, u64s) = (
        |n: u32| n.to_le_bytes().to_vec(),
        |n: u64| n.to_le_bytes().to_vec(),
    );
    let cases = [
        (
            8,
            u32s(10),
            "made by an older flaz (format 10, this program has 11)",
        ),
        (
            8,
            u32s(12),
            "made by a newer flaz (format 12, this program has 11)",
        ),
        (16, u64s(4), "features"),
        (40, u64s(u64::MAX), "generation"),
        (56, u64s(1 << 20), "device size"),
        (64, u64s(0), "region size"),
        (64, u64s(100_000), "region size"),
        (64, u64s(1 << 63), "region size"),
        (64, u64s(256 << 20), "device size"),
        (72, u32s(0), "sector size"),
        (72, u32s(1024), "sector size"),
        (76, u32s(0), "extent size"),
        (76, u32s(48 << 10), "extent size"),
        (76, u32s(64 << 10), "region size"),
        (80, u32s(0), "shards"),
        (80, u32s(2), "device size"),
        (80, u32s(257), "shards"),
        (80, u32s(u32::MAX), "shards"),
        (84, u32s(0), "regions a shard"),
        (84, u32s(5), "regions a shard"),
        (84, u32s(9), "device size"),
        (84, u32s(1 << 20), "most regions"),
        (84, u32s(u32::MAX), "regions a shard"),
        (164, u32s(2048), "bytes of a dictionary"),
        (164, u32s(12 << 10), "bytes of a dictionary"),
        (164, u32s(u32::MAX), "bytes of a dictionary"),
        (164, u32s(256 << 10), "device size"),
        (160, u32s(0), "most regions"),
        (160, u32s(u32::MAX), "most regions"),
        (88, u32s(0), "stripe size"),
        (92, u32s(7), "state"),
        (96, u32s(u32::MAX), "epoch"),
        (100, u32s(2), "valid-from epoch"),
        (104, u32s(99), "codec"),
        (104, u32s(0x100), "codec"),
        (108, u32s(100), "codec"),
        (112, u32s(0), "volumes"),
        (112, u32s(u32::MAX), "volumes"),
        (120, u64s(0), "stripes"),
        (120, u64s(u64::MAX), "stripes"),
        (136, u64s(4096), "index pages"),
        (144, vec![5], "mode"),
        (145, vec![4], "policy"),
        (146, vec![255], "strict flush"),
        (147, vec![51], "dirty limit"),
        (528, u64s(0), "origin size"),
        (528, u64s(u64::MAX), "origin size"),
        (528, u64s(1 << 50), "most stripes"),
        (528, u64s(ORIGIN_LEN + 4096), "origin"),
        (536, u64s(1), "first stripe"),
        (4096 + 2, vec![193, 0], "origin identity"),
        (4096 + 2, vec![255, 255], "origin identity"),
        (4096 + 4, vec![129, 2], "origin path"),
        (4096 + 4, vec![255, 255], "origin path"),
    ];
    for (at, value, expected) in cases {
        let image = victim.with_superblock(|page| put(page, at, &value));
        let error = refusal(&victim, &image).unwrap_or_else(|| panic!("{value:?} at {at} was taken"));
        assert!(error.contains(expected), "{value:?} at {at}: {error}");
        use_it(&victim, &image, 1);
    }
    let other_checksum = victim.with_superblock(|_| {});
    assert_eq!(
        use_it(&victim, &other_checksum, 1),
        Some(Start::Warm(flaz_engine::units::Epoch(1)))
    );
}

#[test]
fn a_truncated_cache_device_is_refused() {
    let victim = Victim::new();
    let front = victim.cache.read(0, SMALLEST_LEN as usize);
    for (len, expected) in [
        (0, "needs at least"),
        (4096, "needs at least"),
        (65_536, "needs at least"),
        (69_632, "needs at least"),
        (73_728, "device size"),
        (200_704, "device size"),
        (SMALLEST_LEN - 512, "device size"),
    ] {
        let mut short = DiskImage::new(plain_disk(len));
        short.write(0, &front[..len as usize]);
        let error = refusal(&victim, &short).unwrap_or_else(|| panic!("{len} bytes are enough"));
        assert!(error.contains(expected), "{len} bytes: {error}");
    }
}

#[test]
fn a_truncated_origin_is_refused() {
    let mut victim = Victim::new();
    let contents = victim.origin.read(0, ORIGIN_LEN as usize);
    victim.origin = DiskImage::new(plain_disk(ORIGIN_LEN - 512));
    let error = refusal(&victim, &victim.cache).expect("the origin is too short");
    assert!(
        error.contains("origin") && error.contains("524288") && error.contains("523776"),
        "{error}"
    );
    // An origin that has grown is accepted: the original part is served.
    victim.origin = DiskImage::new(plain_disk(ORIGIN_LEN + 4096));
    victim.origin.write(0, &contents);
    assert_eq!(refusal(&victim, &victim.cache), None);
    // An origin with different first bytes than at the stop is refused.
    victim.origin.write(1024, &[contents[1024] ^ 1]);
    let error = refusal(&victim, &victim.cache).expect("the origin was changed");
    assert!(error.contains("has been changed"), "{error}");
}

#[test]
fn a_device_with_larger_sectors_is_refused() {
    let rig = Rig::new(1, plain_disk(ORIGIN_LEN), plain_disk(SMALLEST_LEN));
    rig.create(ORIGIN_LEN, SMALLEST);
    let mut large = DiskImage::new(DiskConfig {
        alignment: 4096,
        ..plain_disk(SMALLEST_LEN)
    });
    large.write(0, &rig.disk.peek(0, SMALLEST_LEN as usize));
    let victim = Victim::new();
    let error = refusal(&victim, &large).expect("sectors of 512 bytes cannot be written");
    assert!(error.contains("512") && error.contains("4096"), "{error}");
}

/// Bytes to write at offsets.
type Patches<'a> = &'a [(usize, &'a [u8])];

#[test]
fn absurd_shard_states_start_cold() {
    let victim = Victim::new();
    let many: Vec<u8> = std::iter::repeat_n(victim.state.image_regions[0].to_le_bytes(), 64)
        .flatten()
        .collect();
    let cases: [(&str, Patches<'_>); 8] = [
        ("no image", &[(48, &[0; 4])]),
        ("65 regions", &[(48, &65u32.to_le_bytes())]),
        ("a region that is not there", &[(52, &8u32.to_le_bytes())]),
        (
            "one region many times",
            &[
                (32, &(8u64 << 20).to_le_bytes()),
                (48, &64u32.to_le_bytes()),
                (52, &many),
            ],
        ),
        ("an endless image", &[(32, &[0xff; 8])]),
        ("an image of another length", &[(32, &100u64.to_le_bytes())]),
        ("another cache", &[(16, &[9; 4])]),
        ("the last sequence", &[(24, &[0xff; 8])]),
    ];
    for (name, patches) in cases {
        let image = victim.with_state(|page| patches.iter().for_each(|(at, value)| put(page, *at, value)));
        assert_eq!(use_it(&victim, &image, 1), Some(Start::Cold), "{name}");
    }
}

/// An excessive image length is refused even if enough regions are listed for it: otherwise memory would be allocated
/// first.
#[test]
fn an_image_that_is_longer_than_any_is_not_read() {
    let victim = Victim::new();
    let image = victim.with_state(|page| {
        put(page, 32, &(2 * victim.geometry.region_bytes).to_le_bytes());
        put(page, 48, &2u32.to_le_bytes());
        put(page, 52, &[6, 0, 0, 0, 7, 0, 0, 0]);
    });
    let rig = Rig::from_images(1, &victim.origin, &image);
    let findings = rig.sim.block_on(rig.check()).expect("has a superblock");
    let mut wrong = findings.into_iter().filter_map(|finding| finding.object.err());
    assert!(wrong.any(|error| error.contains("do not fit")));
}

#[test]
fn absurd_index_images_start_cold() {
    let victim = Victim::new();
    // Header 32, one open region, then the index.
    let open = 32;
    let bytes = victim.cache.read(
        victim.index.start,
        (victim.index.end - victim.index.start) as usize,
    );
    let index_bytes = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes")) as usize;
    let index = bytes.len() - index_bytes;
    let huge = [0xff; 8];
    let cases: [(&str, usize, &[u8]); 9] = [
        ("magic", 0, &[0; 8]),
        ("index bytes", 8, &huge),
        ("open regions", 16, &[0; 4]),
        ("more open regions", 16, &[2]),
        ("sequence of an extent", open + 16 + 8, &huge),
        ("which region is open", open, &huge[..4]),
        ("extents of the open region", open + 4, &huge[..4]),
        ("records of the open region", open + 8, &huge[..4]),
        ("buckets", index, &huge),
    ];
    for (name, at, value) in cases {
        let image = victim.with_index(|index| put(index, at, value));
        assert_eq!(use_it(&victim, &image, 2), Some(Start::Cold), "{name}");
    }
    for len in [0, 40, 100, index, bytes.len() - 8] {
        let image = victim.with_index(|index| index.truncate(len));
        assert_eq!(use_it(&victim, &image, 3), Some(Start::Cold), "{len} bytes");
    }
    // An open region whose list is too long: its summary would be written before the start of the region.
    let records = 40_000u32;
    let image = victim.with_index(|index| {
        let old = u32::from_le_bytes(index[open + 8..open + 12].try_into().expect("four bytes"));
        let extents = u32::from_le_bytes(index[open + 4..open + 8].try_into().expect("four bytes"));
        put(index, open + 8, &records.to_le_bytes());
        let end = open + 16 + extents as usize * 24 + old as usize * 8;
        let more = vec![0; (records - old) as usize * 8];
        index.splice(end..end, more);
    });
    use_it(&victim, &image, 4);
    let image = victim.with_index(|index| put(index, open + 16, &3u32.to_le_bytes()));
    assert_eq!(
        use_it(&victim, &image, 5),
        Some(Start::Cold),
        "an extent at an odd place"
    );
}

/// Values in a manifest with a valid checksum are checked too, and compared with the image.
#[test]
fn absurd_manifests_start_cold() {
    let victim = Victim::new();
    let manifest = victim
        .cache
        .read(victim.geometry.manifest_sector_offset(0, 0, 0), 512);
    let entries = || manifest[32..].chunks_exact(12);
    let state = |entry: &[u8]| entry[10] >> 4 & 7;
    let [open, full, free] = [1, 2, 0].map(|wanted| {
        let found = entries().position(|entry| state(entry) == wanted);
        32 + 12 * found.expect("there is one")
    });
    let cases: [(&str, usize, &[u8]); 13] = [
        ("magic", 0, &[0; 4]),
        ("cache", 8, &[0xff; 4]),
        ("number", 12, &[1]),
        ("epoch", 24, &[0xff; 4]),
        ("generation of a region", full, &[0xff; 8]),
        ("generation of a region", full, &[0; 8]),
        ("length of a region", full + 8, &[0xff; 2]),
        ("state of a region", full + 10, &[0x70]),
        ("a full region is free", full, &[0; 12]),
        ("reserved bits of a region", full + 11, &[0xff]),
        ("no region is open", open, &[0; 12]),
        ("another length of the open region", open + 8, &[1, 0]),
        ("a free region has a generation", free, &[1]),
    ];
    for (name, at, value) in cases {
        let image = victim.with_manifest(|sector| put(sector, at, value));
        let start = use_it(&victim, &image, 2);
        // Index entries in a free region are left out.
        let left_out = name == "a full region is free" && matches!(start, Some(Start::Warm(_)));
        assert!(start == Some(Start::Cold) || left_out, "{name}: {start:?}");
    }
}

#[test]
fn index_entries_that_point_anywhere_are_left_out_or_miss() {
    let victim = Victim::new();
    let len = (victim.index.end - victim.index.start) as usize;
    let bytes = victim.cache.read(victim.index.start, len);
    let index_bytes = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes")) as usize;
    let first = len - index_bytes + 8;
    let mut rng = Rng::new(5);
    for turn in 0..60 {
        let image = victim.with_index(|index| {
            for slot in index[first..].chunks_exact_mut(8) {
                let bits = u64::from_le_bytes(slot.try_into().expect("eight bytes"));
                // Never a same-filled block: its value is stored only in the entry.
                let changed = match turn % 4 {
                    0 if bits != 0 => bits & !((1 << 37) - 1) | rng.below(1 << 37),
                    1 if bits != 0 => bits & !((1 << 37) - 1) | rng.below(1 << 17),
                    2 if bits != 0 => bits ^ rng.below(16) << 37,
                    3 => rng.next_u64(),
                    _ => bits,
                };
                slot.copy_from_slice(&(changed & !(1 << 41)).to_le_bytes());
            }
        });
        let rig = Rig::from_images(turn, &victim.origin, &image);
        rig.sim.block_on(async {
            rig.check().await.expect("the superblock is well");
            let open = rig.opened(settings("none", PolicyKind::Fifo)).await;
            for number in 0..ORIGIN_LEN / BLOCK {
                assert!(
                    open.read(number * BLOCK, BLOCK).await == victim.block(number),
                    "turn {turn}, block {number}"
                );
            }
        });
        use_it(&victim, &image, turn);
    }
}

#[test]
fn absurd_extents_and_summaries_do_no_harm() {
    let victim = Victim::new();
    let region = victim.geometry.region_bytes as u32;
    let extents: [(&str, usize, &[u8]); 10] = [
        ("length", 12, &[0xff; 4]),
        ("odd length", 12, &(256u32 + 24).to_le_bytes()),
        ("short", 12, &[0; 4]),
        ("records", 52, &[0xff; 2]),
        ("ring", 56, &[7]),
        ("no header", 58, &[0; 2]),
        ("odd header", 58, &136u16.to_le_bytes()),
        ("header beyond the extent", 58, &0x8000u16.to_le_bytes()),
        ("record of no kind", 64, &[0xff; 8]),
        ("record of a block that is not there", 66, &[0xff; 5]),
    ];
    for (name, at, value) in extents {
        for number in 0..victim.extents.len() {
            let image = victim.with_extent(number, |header| put(header, at, value));
            assert!(use_it(&victim, &image, 1).is_some(), "{name} of extent {number}");
        }
    }
    let summaries: [(&str, usize, Vec<u8>); 10] = [
        ("odd offset", 0, 3u32.to_le_bytes().to_vec()),
        ("offset beyond the region", 0, region.to_le_bytes().to_vec()),
        ("offset beyond the shard", 0, vec![0xff; 4]),
        ("length", 4, vec![0xff; 4]),
        ("extents out of order", 24, 0u32.to_le_bytes().to_vec()),
        ("an extent far behind", 0, (region - 512).to_le_bytes().to_vec()),
        ("records of an extent", 20, vec![0xff; 2]),
        ("no header", 22, vec![0; 2]),
        ("odd header", 22, 129u16.to_le_bytes().to_vec()),
        ("header beyond the extent", 22, 0x8000u16.to_le_bytes().to_vec()),
    ];
    for (name, at, value) in summaries {
        let image = victim.with_summary(|summary| put(summary, at, &value));
        assert!(use_it(&victim, &image, 2).is_some(), "{name}");
    }
}

/// Nothing is read beyond the end of an extent: after the last one the device may end.
#[test]
fn a_record_that_ends_behind_its_extent_is_damage() {
    let victim = Victim::new();
    // In a region that has no summary yet.
    let last = victim.extents.len() - 1;
    let image = victim.with_extent(last, |header| {
        let records = (header.len() - 64) / 8;
        put(header, 52, &(records as u16).to_le_bytes());
        header[64..].copy_from_slice(&BLOCK.to_le_bytes().repeat(records));
    });
    let rig = Rig::from_images(1, &victim.origin, &image);
    let findings = rig.sim.block_on(rig.check()).expect("has a superblock");
    let bad = |kind: &str| {
        let of_kind = findings.iter().filter(|finding| finding.kind == kind);
        of_kind.filter(|finding| finding.object.is_err()).count()
    };
    assert_eq!(bad("record"), 1);
    use_it(&victim, &image, 1);
}

#[test]
fn random_values_in_structures_with_right_checksums_do_no_harm() {
    let victim = Victim::new();
    let interesting = |rng: &mut Rng| match rng.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => rng.below(16),
        3 => 1 << rng.below(64),
        4 => (1 << rng.below(64)) - 1,
        5 => rng.below(1 << 20) * 512,
        _ => rng.next_u64(),
    };
    let started = std::cell::Cell::new(0);
    flaz_sim::check_seeds(160, |seed| {
        let mut rng = Rng::new(seed);
        let kind = seed % 5;
        let mut change = |bytes: &mut [u8]| {
            for _ in 0..1 + rng.below(3) {
                // Mostly in the used part.
                let end = if rng.below(4) > 0 {
                    bytes.len().min(256)
                } else {
                    bytes.len()
                };
                let width = [1, 2, 4, 8][rng.below(4) as usize];
                let at = rng.below((end - width) as u64 + 1) as usize;
                let at = if rng.below(8) == 0 { at } else { at / width * width };
                let value = interesting(&mut rng).to_le_bytes();
                put(bytes, at, &value[..width]);
            }
        };
        let image = match kind {
            0 => victim.with_superblock(change),
            1 => victim.with_state(change),
            2 => victim.with_index(|index| change(index)),
            3 => victim.with_summary(change),
            _ => victim.with_extent(seed as usize % victim.extents.len(), change),
        };
        started.set(started.get() + u32::from(use_it(&victim, &image, seed).is_some()));
    });
    let one_seed = std::env::var_os("FLAZ_SEED").is_some();
    assert!(
        one_seed || started.get() > 60,
        "only {} of the images opened",
        started.get()
    );
}

#[test]
fn a_cache_of_zeroes_or_noise_is_refused() {
    let victim = Victim::new();
    let noise = |number: u64, block: &mut [u8; 4096]| Rng::new(number).fill(block);
    for image in [
        DiskImage::new(plain_disk(SMALLEST_LEN)),
        DiskImage::new(filled_disk(SMALLEST_LEN, noise)),
    ] {
        let error = refusal(&victim, &image).expect("no superblock");
        assert!(
            error.contains("not a flaz cache") && error.contains("flaz create"),
            "{error}"
        );
    }
}

/// The superblock is marked dirty before the first block is dirty: without that mark, records and images with dirty blocks
/// are damaged or forged, and the origin's contents are correct.
#[test]
fn impossible_dirty_blocks_are_refused() {
    for stopped in [true, false] {
        let long = Duration::from_secs(5)..=Duration::from_secs(5);
        let origin = DiskConfig {
            write_latency: long,
            ..filled_disk(ORIGIN_LEN, |number, block| block.fill(number as u8))
        };
        let rig = Rig::new(1, origin, plain_disk(SMALLEST_LEN));
        rig.create(ORIGIN_LEN, SMALLEST);
        let back = Settings {
            mode: Mode::WriteBack,
            ..settings("none", PolicyKind::Fifo)
        };
        rig.sim.block_on(async {
            let open = rig.opened(back).await;
            for number in 0..20 {
                let mut data = vec![0; BLOCK as usize];
                Rng::new(number).fill(&mut data);
                open.write(number * BLOCK, &data).await;
            }
            let dirty = open.cache.stats().holdings.dirty_blocks;
            assert!(dirty > 10, "{dirty} blocks");
            if stopped {
                let kept = open.stop().await.expect("stops").dirty;
                assert!(kept, "a stop keeps what is dirty");
            }
        });
        rig.sim.kill_tasks();
        rig.origin.settle();
        rig.disk.settle();
        let again = |known: bool| {
            let again = Rig::from_images(2, &rig.origin.snapshot(), &rig.disk.snapshot());
            again.sim.block_on(async {
                if !known {
                    let mut superblock = read_superblock(&again.disk).await.expect("it is good");
                    superblock.dirty = false;
                    for _ in 0..2 {
                        write_superblock(&again.disk, &mut superblock)
                            .await
                            .expect("the device is well");
                    }
                }
                let open = again.opened(settings("none", PolicyKind::Fifo)).await;
                let mut as_of_origin = 0;
                for number in 0..20 {
                    let data = open.read(number * BLOCK, BLOCK).await;
                    as_of_origin += usize::from(data == again.origin.peek(number * BLOCK, BLOCK as usize));
                }
                (open.cache.start, as_of_origin)
            })
        };
        assert!(again(true).1 < 10, "they were dirty");
        let start = if stopped { Start::Cold } else { Start::Recovered };
        assert_eq!(again(false), (start, 20));
    }
}
