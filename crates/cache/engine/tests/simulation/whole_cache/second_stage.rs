//! `--codec auto`: blocks that stay are compressed again where that pays.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use flaz_device::{Env, Load};
use flaz_engine::advise::{CACHES, GROUPS, History, Observed};
use flaz_engine::check::{Finding, Object};
use flaz_engine::format::geometry::GeometryOptions;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::stats::Counts;
use flaz_engine::units::BlockNumber;
use flaz_engine::volume::Volume;
use flaz_sim::{DiskConfig, Rng};

use crate::whole_cache::rig::{BLOCK, FRONT_BYTES, Open, Rig, SMALLEST, filled_disk, plain_disk, settings};

/// Blocks that are used again and again.
pub(super) const USED: Range<u64> = 0..160;
/// Bytes of the origin.
const ORIGIN_LEN: u64 = 48 << 20;

/// Words in random order: LZ4 saves about half, zstd more.
pub(super) fn words(number: u64, block: &mut [u8; 4096]) {
    let mut rng = Rng::new(number);
    for place in block.chunks_mut(8) {
        let word = format!("{:<8}", rng.below(40) * 7_919);
        place.copy_from_slice(&word.as_bytes()[..place.len()]);
    }
}

fn noise(number: u64, block: &mut [u8; 4096]) {
    Rng::new(number).fill(block);
}

pub(super) fn rig(fill: fn(u64, &mut [u8; 4096]), origin_read: Duration) -> Rig {
    let origin = DiskConfig {
        read_latency: origin_read..=origin_read,
        ..filled_disk(ORIGIN_LEN, fill)
    };
    let rig = Rig::new(11, origin, plain_disk(3 << 20));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig
}

/// Uses some blocks often and others once, until `regions` have been reclaimed.
pub(super) async fn use_blocks(open: &Open, regions: u64) -> Counts {
    use_blocks_apart(open, regions, 1).await
}

/// The same, of every few blocks one.
async fn use_blocks_apart(open: &Open, regions: u64, distance: usize) -> Counts {
    let mut next = USED.end;
    loop {
        let counts = open.cache.stats().counts;
        if counts.regions_reclaimed >= regions {
            return counts;
        }
        for number in USED.step_by(distance) {
            open.read(number * BLOCK, BLOCK).await;
        }
        // Misses of so few blocks get high effort.
        for _ in 0..4 {
            open.prefetch(next..next + 16).await;
            next += 16;
        }
        assert!(next * BLOCK < ORIGIN_LEN, "{counts:?}");
    }
}

/// Uses some blocks often and others at random, so that main is filled, until so many more regions have been reclaimed.
pub(super) async fn use_main(open: &Open, regions: u64) -> Counts {
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

pub(super) async fn check_contents(open: &Open, fill: fn(u64, &mut [u8; 4096])) {
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
        let groups = live("group-zstd") + live("group-zstd-dictionary");
        assert!(groups > USED.end as usize / 2 && live("fragment-lz4") > 0);
    });
}

#[test]
fn a_fast_origin_and_busy_processors_leave_blocks_as_they_are() {
    for (origin_us, load) in [(100, Load::Low), (2000, Load::High)] {
        let rig = rig(words, Duration::from_micros(origin_us));
        rig.sim.set_load(load);
        rig.sim.set_parallelism(2);
        rig.sim.block_on(async {
            let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
            let counts = use_blocks(&open, 40).await;
            assert!(counts.reinserted_blocks > 0, "{counts:?}");
            assert_eq!(counts.repacked_blocks, 0, "{origin_us} us, {load:?}");
            check_contents(&open, words).await;
            open.stop().await.expect("stops");
            let findings = rig.check().await.expect("has a superblock");
            assert!(findings.iter().all(|finding| !finding.kind.contains("zstd")));
        });
    }
}

#[test]
fn processors_with_little_to_do_save_more_bytes() {
    // Bytes of a block that stays, and kinds of fragments.
    let found = |load, distance| {
        let rig = rig(words, Duration::from_millis(2));
        rig.sim.set_load(load);
        rig.sim.set_parallelism(2);
        rig.sim.block_on(async {
            // New blocks use only what has been saved up.
            rig.sim.env().sleep(Duration::from_secs(20)).await;
            let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
            let counts = use_blocks_apart(&open, 40, distance).await;
            let has_effort = counts.high_effort_ns > 0;
            assert_eq!(has_effort, load == Load::Low, "{counts:?}");
            open.stop().await.expect("stops");
        });
        let findings = rig.sim.block_on(rig.check()).expect("has a superblock");
        let of_used = |finding: &&Finding| {
            let block = match finding.object {
                Ok(Object::Fragment {
                    block,
                    live: Some(true),
                    ..
                }) => block,
                _ => return false,
            };
            USED.contains(&block.0)
        };
        let used: Vec<_> = findings.iter().filter(of_used).collect();
        // A group counts with its first member.
        let bytes: u64 = used.iter().map(|finding| finding.len).sum();
        let kinds: BTreeSet<_> = findings.iter().map(|finding| finding.kind.clone()).collect();
        (bytes as f64 / used.len() as f64, kinds)
    };
    // Together, and each alone.
    for distance in [1, 4] {
        let (usual, usual_kinds) = found(Load::Medium, distance);
        let (high, high_kinds) = found(Load::Low, distance);
        assert!(
            high < usual * 0.98,
            "{high} bytes per block, {usual} with the usual effort"
        );
        assert!(usual_kinds.contains("fragment-lz4"), "{usual_kinds:?}");
        assert!(
            !high_kinds.contains("fragment-lz4"),
            "new blocks too: {high_kinds:?}"
        );
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
        rig.sim.set_load(Load::High);
        let counts = use_main(&open, regions).await;
        check(&open).await;
        rig.sim.set_load(Load::Medium);
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

/// Uses blocks often and others at random, until `count` dictionaries have been made since the cache was opened.
async fn use_until_dictionaries(open: &Open, count: u64) {
    let mut turns = 0;
    while open.cache.stats().counts.dictionaries_made < count {
        use_main(open, 8).await;
        turns += 1;
        assert!(turns < 100, "{:?}", open.cache.stats().counts);
    }
}

/// No fragment was damaged, so each was restored with its own dictionary.
pub(super) fn check_whole(open: &Open) {
    let counts = open.cache.stats().counts;
    assert_eq!(
        (counts.checksum_failures, counts.cache_errors),
        (0, 0),
        "{counts:?}"
    );
}

async fn live_blocks(rig: &Rig, kind: &str) -> usize {
    let findings = rig.check().await.expect("has a superblock");
    assert!(findings.iter().all(|finding| finding.object.is_ok()));
    let live = |object: &Object| matches!(object, Object::Fragment { live: Some(true), .. });
    let of_kind = findings.iter().filter(|finding| finding.kind == kind);
    of_kind
        .filter(|finding| finding.object.as_ref().is_ok_and(live))
        .count()
}

#[test]
fn what_stays_is_compressed_with_a_dictionary_also_after_a_kill_and_a_stop() {
    let rig = rig(words, Duration::from_millis(2));
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        use_until_dictionaries(&open, 1).await;
        use_main(&open, 60).await;
        check_contents(&open, words).await;
        check_whole(&open);
        std::mem::forget(open);
    });
    rig.sim.kill_tasks();
    let before = rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        check_contents(&open, words).await;
        // With the dictionary of the earlier opening.
        use_main(&open, 20).await;
        assert_eq!(open.cache.stats().counts.dictionaries_made, 0);
        check_whole(&open);
        let before = cached(&open);
        open.stop().await.expect("stops");
        before
    });
    rig.sim.block_on(async {
        let with_dictionary = live_blocks(&rig, "group-zstd-dictionary").await;
        assert!(with_dictionary > USED.end as usize / 2, "{with_dictionary}");
        // Another codec reads them.
        let open = rig.opened(settings("lz4", PolicyKind::S3Fifo)).await;
        assert_eq!(cached(&open), before);
        check_contents(&open, words).await;
        use_main(&open, 20).await;
        check_contents(&open, words).await;
        check_whole(&open);
        open.stop().await.expect("stops");
    });
}

/// A cache that has not reclaimed anything yet makes its first dictionary from new blocks, if it will use it. New blocks, too, need it
/// then, and outlive a kill.
#[test]
fn a_new_cache_has_a_dictionary_before_it_is_full() {
    let filled = |codec, origin_read| {
        let rig = rig(words, origin_read);
        rig.sim.set_parallelism(2);
        rig.sim.set_load(Load::Low);
        let counts = rig.sim.block_on(async {
            // New blocks use only the time that has been saved up.
            rig.sim.env().sleep(Duration::from_secs(20)).await;
            let open = rig.opened(settings(codec, PolicyKind::S3Fifo)).await;
            for first in (0..600).step_by(4) {
                open.prefetch(first..first + 4).await;
                rig.sim.env().sleep(Duration::from_millis(50)).await;
            }
            let counts = open.cache.stats().counts;
            std::mem::forget(open);
            counts
        });
        assert_eq!(counts.regions_reclaimed, 0, "{counts:?}");
        (rig, counts)
    };
    let slow = Duration::from_millis(2);
    let (rig, counts) = filled("auto", slow);
    assert_eq!(counts.dictionaries_made, 1, "{counts:?}");
    rig.sim.kill_tasks();
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        check_contents(&open, words).await;
        check_whole(&open);
        assert_eq!(cached(&open), USED.end as usize);
        open.stop().await.expect("stops");
        let with_dictionary = live_blocks(&rig, "fragment-zstd-dictionary").await;
        assert!(with_dictionary > 300, "{with_dictionary}");
    });
    assert_eq!(filled("lz4", slow).1.dictionaries_made, 0);
    assert_eq!(
        filled("auto", Duration::from_micros(50)).1.dictionaries_made,
        0,
        "hits stay quick"
    );
}

/// Without a dictionary, the advisor tries what one would save; with one, it needs no history for that.
#[test]
fn the_advisor_tries_what_a_dictionary_would_save_until_there_is_one() {
    let rig = rig(words, Duration::from_millis(2));
    rig.sim.block_on(async {
        let open = rig.opened(settings("lz4", PolicyKind::S3Fifo)).await;
        let observed = || open.cache.stats().observed;
        let tried = || observed().codecs.trials.iter().map(|of| of.blocks).sum::<f64>();
        while observed().codecs.count() < 25.0 {
            use_main(&open, 8).await;
        }
        assert_eq!(tried(), 0.0, "it would block the only processor");
        rig.sim.set_parallelism(2);
        for turn in 0.. {
            if tried() >= 3.0 {
                break;
            }
            assert!(turn < 100, "{:?}", observed().codecs);
            use_main(&open, 8).await;
        }
        let memory = observed().memory_bytes;
        open.cache.set(&settings("auto", PolicyKind::S3Fifo));
        use_until_dictionaries(&open, 1).await;
        for turn in 0.. {
            // The sample may have grown meanwhile.
            let freed = memory.saturating_sub(observed().memory_bytes);
            if freed >= History::BYTES_MAX as u64 * 9 / 10 {
                break;
            }
            assert!(turn < 100, "{freed} bytes freed");
            use_main(&open, 8).await;
        }
        let before = tried();
        use_main(&open, 80).await;
        assert_eq!(tried(), before);
        open.stop().await.expect("stops");
    });
}

/// All shards show their advisors the sizes with `auto`, from the samples of all: when enough are known, and when the codec changes.
#[test]
fn the_advisors_of_all_shards_know_the_samples_of_all() {
    let origin = DiskConfig {
        read_latency: Duration::from_millis(2)..=Duration::from_millis(2),
        ..filled_disk(ORIGIN_LEN, words)
    };
    let rig = Rig::new(12, origin, plain_disk(6 << 20));
    let two = GeometryOptions {
        shard_count: Some(2),
        ..SMALLEST
    };
    rig.create(ORIGIN_LEN, two);
    rig.sim.block_on(async {
        let open = rig.opened(settings("lz4", PolicyKind::S3Fifo)).await;
        let observed = || {
            open.cache
                .shards()
                .iter()
                .map(|shard| shard.stats().observed)
                .collect::<Vec<_>>()
        };
        let gains = || {
            let hits = |hits: &[f64; GROUPS]| hits.iter().sum::<f64>();
            let of = |it: &Observed| hits(&it.cache_hits[CACHES - 1]) - it.simulated() * it.sampled_reads;
            observed().iter().map(of).collect::<Vec<_>>()
        };
        let rng = RefCell::new(Rng::new(1));
        let use_both = async || {
            for _ in 0..64 {
                let rank = rng.borrow_mut().below(1500);
                let first = rng.borrow_mut().below(1 + rank) * 8;
                open.read(first * BLOCK, 8 * BLOCK).await;
            }
            open.stored().await;
        };
        while observed()[0].codecs.count() < 16.0 {
            use_both().await;
        }
        assert_eq!(gains(), [0.0; 2], "too few samples");
        while observed()[0].codecs.count() < 64.0 {
            use_both().await;
        }
        assert_eq!(observed()[1].codecs.count(), 0.0, "each sample counts once");
        assert!(gains().iter().all(|gain| *gain > 0.0), "{:?}", observed());
        open.cache.set(&settings("auto", PolicyKind::S3Fifo));
        assert_eq!(gains(), [0.0; 2], "it is in use");
        open.cache.set(&settings("lz4", PolicyKind::S3Fifo));
        assert!(gains().iter().all(|gain| *gain > 0.0), "{:?}", gains());
        open.stop().await.expect("stops");
    });
}

/// Words of one language in the first blocks, and of other languages elsewhere.
fn languages(number: u64, block: &mut [u8; 4096]) {
    let language = match number {
        number if USED.contains(&number) => 0,
        number => 1 + number / 3400,
    };
    let mut rng = Rng::new(number);
    for place in block.chunks_mut(16) {
        let mut word = [0; 16];
        Rng::new(language * 1000 + rng.below(400)).fill(&mut word);
        place.copy_from_slice(&word);
    }
}

/// Uses blocks of one language after another, so that new dictionaries replace earlier ones.
fn use_languages(rig: &Rig) -> Counts {
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        let mut rng = Rng::new(3);
        for turn in 0..1600 {
            let language = turn / 400;
            let first = USED.end + language * 3400;
            for _ in 0..8 {
                let four = (first + rng.below(150) * 16) / 4 * 4;
                open.read(four * BLOCK, 4 * BLOCK).await;
            }
            open.prefetch(first + 2600..first + 2600 + 16).await;
            open.prefetch(first + 2600 + turn % 400..first + 2616 + turn % 400)
                .await;
            open.stored().await;
        }
        let mut block = [0; 4096];
        for number in (0..14_000).step_by(7) {
            languages(number, &mut block);
            assert!(open.read(number * BLOCK, BLOCK).await == block, "block {number}");
        }
        let counts = open.cache.stats().counts;
        open.stop().await.expect("stops");
        counts
    })
}

fn a_dictionary_is_replaced_when_no_block_needs_it() {
    let rig = Rig::new(
        11,
        DiskConfig {
            read_latency: Duration::from_millis(2)..=Duration::from_millis(2),
            ..filled_disk(64 << 20, languages)
        },
        plain_disk(3 << 20),
    );
    rig.create(64 << 20, SMALLEST);
    let counts = use_languages(&rig);
    assert!(counts.dictionaries_made >= 3, "{counts:?}");
    assert_eq!(counts.checksum_failures, 0, "{counts:?}");
    rig.sim.block_on(async {
        let findings = rig.check().await.expect("has a superblock");
        assert!(findings.iter().all(|finding| finding.object.is_ok()));
    });
}

#[test]
fn dictionaries_are_replaced() {
    a_dictionary_is_replaced_when_no_block_needs_it();
}

#[cfg(feature = "planted-bugs")]
#[test]
fn dictionaries_that_are_replaced_too_early_are_noticed() {
    use flaz_engine::planted::{PlantedBug, plant};
    plant(Some(PlantedBug::DictionaryReplaced));
    let outcome = std::panic::catch_unwind(a_dictionary_is_replaced_when_no_block_needs_it);
    plant(None);
    assert!(
        outcome.is_err(),
        "nothing notices that blocks lose their dictionary"
    );
}

/// Blocks whose dictionary is damaged are misses. Another one is made.
#[test]
fn a_damaged_dictionary_costs_hits_and_no_data() {
    let rig = rig(words, Duration::from_millis(2));
    let geometry = rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        use_until_dictionaries(&open, 1).await;
        use_main(&open, 60).await;
        let geometry = open.cache.superblock().geometry;
        open.stop().await.expect("stops");
        geometry
    });
    rig.disk.flip_bit(geometry.dictionary_offset(0, 0) + 100, 3);
    rig.sim.block_on(async {
        let findings = rig.check().await.expect("has a superblock");
        let bad: Vec<_> = findings
            .iter()
            .filter(|finding| finding.object.is_err())
            .map(|finding| finding.kind.as_str())
            .collect();
        assert!(
            bad.contains(&"dictionary") && bad.contains(&"fragment"),
            "{bad:?}"
        );
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        check_contents(&open, words).await;
        assert!(open.cache.stats().counts.checksum_failures > 0);
        use_until_dictionaries(&open, 1).await;
        use_main(&open, 60).await;
        check_contents(&open, words).await;
        open.stop().await.expect("stops");
    });
    rig.sim.block_on(async {
        // Blocks that needed the damaged one may be left.
        let findings = rig.check().await.expect("has a superblock");
        let restored = |kind: &str| findings.iter().any(|finding| finding.kind == kind);
        assert!(restored("dictionary") && restored("group-zstd-dictionary"));
    });
}

/// Dirty blocks behind blocks that need a dictionary, which may be damaged, outlive a kill.
fn dirty_blocks_do_not_depend_on_a_dictionary(damaged: bool) {
    let rig = rig(words, Duration::from_millis(2));
    // With one core, admission leaves blocks to the first codec.
    rig.sim.set_parallelism(2);
    let write_back = Settings {
        mode: Mode::WriteBack,
        ..settings("auto", PolicyKind::S3Fifo)
    };
    rig.sim.block_on(async {
        let open = rig.opened(settings("auto", PolicyKind::S3Fifo)).await;
        use_until_dictionaries(&open, 1).await;
        use_main(&open, 40).await;
        open.stop().await.expect("stops");
    });
    let mut version = 0;
    for round in 0..12 {
        let geometry = rig.sim.block_on(async {
            let open = rig.opened(write_back.clone()).await;
            if !damaged {
                check_contents_but(&open, version).await;
            }
            use_main(&open, 2 + round % 3).await;
            // Blocks that were dropped not long ago are stored in main, with a dictionary, and nothing makes them stable.
            let mut rng = Rng::new(round);
            let before = open.cache.stats().counts.ghost_hits;
            while open.cache.stats().counts.ghost_hits < before + 8 {
                let first = USED.end + rng.below(400) * 8;
                open.read(first * BLOCK, 8 * BLOCK).await;
                open.stored().await;
            }
            version += 1;
            let mut block = [0; 4096];
            for number in USED.step_by(20) {
                words(number + version * 1000, &mut block);
                open.write(number * BLOCK, &block).await;
            }
            let geometry = open.cache.superblock().geometry;
            std::mem::forget(open);
            geometry
        });
        rig.sim.kill_tasks();
        if damaged {
            for number in 0..2 {
                rig.disk.flip_bit(geometry.dictionary_offset(0, number) + 700, 1);
            }
        }
        rig.sim.block_on(async {
            let open = rig.opened(write_back.clone()).await;
            check_contents_but(&open, version).await;
            open.stop().await.expect("stops");
        });
        if damaged {
            for number in 0..2 {
                rig.disk.flip_bit(geometry.dictionary_offset(0, number) + 700, 1);
            }
        }
    }
}

/// Checks all used blocks, of which every twentieth has been written.
async fn check_contents_but(open: &Open, version: u64) {
    let mut block = [0; 4096];
    for number in USED {
        let written = if number % 20 == 0 { version * 1000 } else { 0 };
        words(number + written, &mut block);
        assert!(open.read(number * BLOCK, BLOCK).await == block, "block {number}");
    }
}

#[test]
fn dirty_blocks_behind_a_dictionary_outlive_a_kill() {
    dirty_blocks_do_not_depend_on_a_dictionary(false);
}

#[test]
fn dirty_blocks_behind_a_damaged_dictionary_outlive_a_kill() {
    dirty_blocks_do_not_depend_on_a_dictionary(true);
}
