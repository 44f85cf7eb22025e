//! `--codec auto`: blocks that stay are compressed again where that pays.

use std::ops::Range;
use std::time::Duration;

use flaz_device::Env;
use flaz_engine::check::Object;
use flaz_engine::policy::PolicyKind;
use flaz_engine::stats::Counts;
use flaz_engine::units::BlockNumber;
use flaz_engine::volume::Volume;
use flaz_sim::{DiskConfig, Rng};

use crate::whole_cache::rig::{BLOCK, FRONT_BYTES, Open, Rig, SMALLEST, filled_disk, plain_disk, settings};

/// Blocks that are used again and again.
const USED: Range<u64> = 0..160;
/// Bytes of the origin.
const ORIGIN_LEN: u64 = 48 << 20;

/// Words in random order: LZ4 saves about half, zstd more.
fn words(number: u64, block: &mut [u8; 4096]) {
    let mut rng = Rng::new(number);
    for place in block.chunks_mut(8) {
        let word = format!("{:<8}", rng.below(40) * 7_919);
        place.copy_from_slice(&word.as_bytes()[..place.len()]);
    }
}

fn noise(number: u64, block: &mut [u8; 4096]) {
    Rng::new(number).fill(block);
}

fn rig(fill: fn(u64, &mut [u8; 4096]), origin_read: Duration) -> Rig {
    let origin = DiskConfig {
        read_latency: origin_read..=origin_read,
        ..filled_disk(ORIGIN_LEN, fill)
    };
    let rig = Rig::new(11, origin, plain_disk(3 << 20));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig
}

/// Uses some blocks often and others once, until `regions` have been reclaimed.
async fn use_blocks(open: &Open, regions: u64) -> Counts {
    let mut next = USED.end;
    loop {
        let counts = open.cache.stats().counts;
        if counts.regions_reclaimed >= regions {
            return counts;
        }
        for number in USED {
            open.read(number * BLOCK, BLOCK).await;
        }
        open.prefetch(next..next + 64).await;
        next += 64;
        assert!(next * BLOCK < ORIGIN_LEN, "{counts:?}");
    }
}

/// Uses some blocks often and others at random, so that main is filled, until so many more regions have been reclaimed.
async fn use_main(open: &Open, regions: u64) -> Counts {
    let before = open.cache.stats().counts.regions_reclaimed;
    let mut rng = Rng::new(before);
    for turn in 0.. {
        let counts = open.cache.stats().counts;
        if counts.regions_reclaimed >= before + regions {
            return counts;
        }
        assert!(turn < 2000, "{counts:?}");
        for _ in 0..8 {
            let first = USED.end + rng.below(400) * 8;
            open.read(first * BLOCK, 8 * BLOCK).await;
        }
        open.stored().await;
        if turn % 8 == 0 {
            for number in USED {
                open.read(number * BLOCK, BLOCK).await;
            }
        }
    }
    unreachable!("it returns")
}

/// How many of the blocks that are used often are cached.
fn cached(open: &Open) -> usize {
    let shards = open.cache.shards();
    let is_cached = |number: &u64| {
        let number = BlockNumber(*number);
        shards.iter().any(|shard| shard.is_cached(number))
    };
    USED.filter(is_cached).count()
}

async fn check_contents(open: &Open, fill: fn(u64, &mut [u8; 4096])) {
    let mut block = [0; 4096];
    for number in USED {
        fill(number, &mut block);
        assert!(open.read(number * BLOCK, BLOCK).await == block, "block {number}");
    }
}

#[test]
fn what_stays_is_compressed_again_and_reads_the_same() {
    let rig = rig(words, Duration::from_millis(2));
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        let counts = use_blocks(&open, 40).await;
        assert!(counts.repacked_blocks >= USED.end / 2, "{counts:?}");
        assert!(counts.repacked_saved_bytes > 0, "{counts:?}");
        assert!(counts.grouped_blocks >= USED.end / 2, "{counts:?}");
        check_contents(&open, words).await;
        std::mem::forget(open);
    });
    // Killed, and after a clean stop.
    rig.sim.kill_tasks();
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        check_contents(&open, words).await;
        open.stop().await.expect("stops");
        let findings = rig.check().await.expect("has a superblock");
        assert!(findings.iter().all(|finding| finding.object.is_ok()));
        let live = |kind: &str| {
            let live = |object: &Object| matches!(object, Object::Fragment { live: Some(true), .. });
            let of_kind = findings.iter().filter(|finding| finding.kind == kind);
            of_kind
                .filter(|finding| finding.object.as_ref().is_ok_and(live))
                .count()
        };
        assert!(live("group-zstd") > USED.end as usize / 2 && live("fragment-lz4") > 0);
    });
}

#[test]
fn a_fast_origin_and_busy_processors_leave_blocks_as_they_are() {
    for (origin_us, busy) in [(100, false), (2000, true)] {
        let rig = rig(words, Duration::from_micros(origin_us));
        rig.sim.set_busy(busy);
        rig.sim.set_parallelism(2);
        rig.sim.block_on(async {
            let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
            let counts = use_blocks(&open, 40).await;
            assert!(counts.reinserted_blocks > 0, "{counts:?}");
            assert_eq!(counts.repacked_blocks, 0, "{origin_us} us, busy: {busy}");
            check_contents(&open, words).await;
            open.stop().await.expect("stops");
            let findings = rig.check().await.expect("has a superblock");
            assert!(findings.iter().all(|finding| !finding.kind.ends_with("zstd")));
        });
    }
}

#[test]
fn blocks_that_do_not_compress_stay_as_they_are() {
    let rig = rig(noise, Duration::from_millis(2));
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        let counts = use_blocks(&open, 60).await;
        assert!(counts.reinserted_blocks > 0, "{counts:?}");
        assert_eq!(counts.repacked_blocks, 0);
        check_contents(&open, noise).await;
        open.stop().await.expect("stops");
    });
}

/// A damaged fragment is not given a correct checksum: its block is dropped, and read from the origin.
#[test]
fn damage_is_found_before_a_block_is_compressed_again() {
    let rig = rig(words, Duration::from_millis(2));
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        // Used once, and not yet stored again. Reads of the newest blocks would not count.
        open.prefetch(0..USED.end + 400).await;
        for number in USED {
            open.read(number * BLOCK, BLOCK).await;
        }
        let before = open.cache.stats().counts;
        assert_eq!(before.regions_reclaimed, 0);
        // One bit in each sector of the regions: most fragments still decode.
        for at in (FRONT_BYTES..FRONT_BYTES + (2 << 20)).step_by(512) {
            rig.disk.flip_bit(at + 300, 4);
        }
        // No client reads them before they are compressed again.
        let mut next = 4096;
        while open.cache.stats().counts.regions_reclaimed < 20 {
            open.prefetch(next..next + 64).await;
            next += 64;
        }
        let counts = open.cache.stats().counts;
        assert!(counts.checksum_failures > before.checksum_failures, "{counts:?}");
        check_contents(&open, words).await;
        open.stop().await.expect("stops");
    });
}

#[cfg(feature = "planted-bugs")]
#[test]
fn planted_damage_is_noticed() {
    use flaz_engine::planted::{PlantedBug, plant};
    plant(Some(PlantedBug::RepackedDamaged));
    let outcome = std::panic::catch_unwind(damage_is_found_before_a_block_is_compressed_again);
    plant(None);
    assert!(outcome.is_err(), "nothing notices that damage becomes valid");
}

/// A write or a trim of one member takes that member out of its group, and no other, also after further reclaims and a kill, and
/// where the processors are busy, so that groups move as they are.
#[test]
fn members_of_a_group_change_alone() {
    let counts = members_change_alone(80, true);
    assert!(counts.groups_divided > 0, "{counts:?}");
    for regions in [2, 4, 8, 16] {
        members_change_alone(regions, false);
    }
}

/// So many regions are reclaimed while the processors are busy. With `repacked`, the groups that lost members are compressed again
/// before the kill.
fn members_change_alone(regions: u64, repacked: bool) -> Counts {
    let rig = rig(words, Duration::from_millis(2));
    let check = async |open: &Open| {
        let mut block = [0; 4096];
        for number in USED {
            words(number, &mut block);
            match number % 8 {
                1 => words(number + 9999, &mut block),
                6 => block = [0; 4096],
                _ => {}
            }
            assert!(open.read(number * BLOCK, BLOCK).await == block, "block {number}");
        }
        // Several at once.
        for number in USED.step_by(8) {
            let found = open.read(number * BLOCK, 8 * BLOCK).await;
            words(number + 3, &mut block);
            assert!(found[3 * 4096..4 * 4096] == block, "block {}", number + 3);
        }
    };
    let counts = rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        let counts = use_blocks(&open, 40).await;
        assert!(counts.grouped_blocks >= USED.end / 2, "{counts:?}");
        let before = cached(&open);
        for number in USED.step_by(8) {
            let mut block = [0; 4096];
            words(number + 1 + 9999, &mut block);
            open.write((number + 1) * BLOCK, &block).await;
            let trimmed = open.volume.trim((number + 6) * BLOCK, BLOCK, false);
            trimmed.await.expect("trims");
            open.stored().await;
        }
        let after = cached(&open);
        assert!(after + 30 >= before, "{after} of {before} are left");
        check(&open).await;
        rig.sim.set_busy(true);
        let counts = use_main(&open, regions).await;
        check(&open).await;
        rig.sim.set_busy(false);
        if repacked {
            use_main(&open, 40).await;
            check(&open).await;
        }
        // Until no stripe has an intent: the next start would drop its blocks.
        open.volume.flush().await.expect("the devices are well");
        rig.sim.env().sleep(Duration::from_secs(60)).await;
        std::mem::forget(open);
        counts
    });
    rig.sim.kill_tasks();
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        check(&open).await;
        open.stop().await.expect("stops");
        let findings = rig.check().await.expect("has a superblock");
        assert!(findings.iter().all(|finding| finding.object.is_ok()));
    });
    counts
}

/// Without the second codec, groups stay readable, and are divided when few of their blocks stay.
#[test]
fn groups_outlive_a_change_of_the_codec() {
    let rig = rig(words, Duration::from_millis(2));
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        let counts = use_blocks(&open, 40).await;
        assert!(counts.grouped_blocks >= USED.end / 2, "{counts:?}");
        for codec in ["none", "zlib:1"] {
            open.cache.set(&settings(codec, PolicyKind::S3Fifo));
            use_main(&open, 80).await;
            check_contents(&open, words).await;
        }
        open.stop().await.expect("stops");
    });
}
