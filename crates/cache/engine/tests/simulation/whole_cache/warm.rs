//! After a clean stop nothing is missing.

use std::time::Duration;

use flaz_device::Env;
use flaz_engine::cache::Start;
use flaz_engine::check::Object;
use flaz_engine::format::geometry::GeometryOptions;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::units::Epoch;
use flaz_engine::volume::Volume;
use flaz_sim::Rng;
use futures_util::future::join_all;

use crate::whole_cache::rig::{BLOCK, Open, Rig, SMALLEST, filled_disk, plain_disk, settings};

/// Half random, half zeroes: about 2:1.
fn half_random(number: u64, block: &mut [u8; 4096]) {
    block.fill(0);
    Rng::new(number).fill(&mut block[..2048]);
}

fn block(number: u64) -> Vec<u8> {
    let mut block = [0; 4096];
    half_random(number, &mut block);
    block.to_vec()
}

/// Two shards of 32 regions over 16 MiB.
fn small() -> Rig {
    let wish = GeometryOptions {
        shard_count: Some(2),
        ..SMALLEST
    };
    let rig = Rig::new(
        7,
        filled_disk(24 << 20, half_random),
        plain_disk((8 << 20) + (256 << 10)),
    );
    rig.create(24 << 20, wish);
    rig
}

async fn check_warm(open: &Open, epoch: u32, cached: u64, blocks: std::ops::Range<u64>) {
    assert_eq!(open.cache.start, Start::Warm(Epoch(epoch)));
    assert_eq!(open.cached_blocks(), cached);
    for number in blocks.clone() {
        assert!(
            open.read(number * BLOCK, BLOCK).await == block(number),
            "block {number}"
        );
    }
    let counts = open.cache.stats().counts;
    assert_eq!(
        (counts.hit_blocks, counts.miss_blocks),
        (blocks.end - blocks.start, 0)
    );
}

#[test]
fn every_entry_is_there_after_a_clean_stop_and_hits_at_once() {
    let rig = small();
    rig.sim.block_on(async {
        let open = rig.opened(settings("lz4", PolicyKind::S3Fifo)).await;
        open.prefetch(0..1000).await;
        assert_eq!(open.cached_blocks(), 1000);
        open.stop().await.expect("stops");
        // Several times: a stop that stored nothing new must keep the existing contents.
        for epoch in 1..4 {
            let open = rig.opened(settings("lz4", PolicyKind::S3Fifo)).await;
            rig.origin.reset_stats();
            check_warm(&open, epoch, 1000, 0..1000).await;
            assert_eq!(rig.origin.stats().reads, 0);
            open.stop().await.expect("stops");
        }
    });
}

#[test]
fn other_settings_find_the_same_blocks() {
    let rig = small();
    rig.sim.block_on(async {
        let mut open = rig.opened(settings("lz4", PolicyKind::S3Fifo)).await;
        open.prefetch(0..300).await;
        let turns = [
            settings("zstd:1", PolicyKind::Fifo),
            settings("none", PolicyKind::SecondTouch),
            Settings {
                mode: Mode::WriteAround,
                ..settings("lzo", PolicyKind::S3Fifo)
            },
            Settings {
                mode: Mode::PassThrough,
                ..settings("zlib:1", PolicyKind::Fifo)
            },
            settings("lz4", PolicyKind::S3Fifo),
        ];
        let mut cached = open.cached_blocks();
        for (turn, changed) in turns.into_iter().enumerate() {
            // Changed while the cache is served, stopped, and opened with the same settings.
            open.cache.set(&changed);
            let first = 300 + turn as u64 * 50;
            open.prefetch(first..first + 50).await;
            cached = open.cached_blocks().max(cached);
            open.stop().await.expect("stops");
            open = rig.opened(changed.clone()).await;
            assert_eq!(open.cached_blocks(), cached, "after {changed:?}");
            if changed.mode != Mode::PassThrough {
                check_warm(&open, turn as u32 + 1, cached, 0..300).await;
            }
        }
    });
}

#[test]
fn hit_counters_survive() {
    let rig = small();
    rig.sim.block_on(async {
        let kept = settings("lz4", PolicyKind::S3Fifo);
        let open = rig.opened(kept.clone()).await;
        open.prefetch(0..600).await;
        // Reads of the newest blocks of a shard would not count.
        for number in (0..440).step_by(8) {
            open.read(number * BLOCK, BLOCK).await;
        }
        open.stop().await.expect("stops");
        let open = rig.opened(kept).await;
        // Enough to reclaim every full region once, and not twice.
        let mut next = 600;
        while open.cache.stats().counts.reclaimed_blocks < 540 {
            open.prefetch(next..next + 32).await;
            next += 32;
        }
        let counts = open.cache.stats().counts;
        assert!(
            counts.reinserted_blocks >= 50,
            "what was used before the stop is kept: {counts:?}"
        );
        rig.origin.reset_stats();
        for number in (0..440).step_by(8) {
            assert!(
                open.read(number * BLOCK, BLOCK).await == block(number),
                "block {number}"
            );
        }
        assert_eq!(rig.origin.stats().reads, 0, "used blocks survived");
        open.stop().await.expect("stops");
    });
}

fn one_value(number: u64, block: &mut [u8; 4096]) {
    block.fill(number as u8);
}

#[test]
fn an_image_larger_than_what_is_free_makes_room_for_itself() {
    // A same-filled block costs a record of 8 bytes and an entry of 9: the index is as large as the log.
    let rig = Rig::new(9, filled_disk(512 << 20, one_value), plain_disk(40 << 20));
    rig.create(512 << 20, SMALLEST);
    rig.sim.block_on(async {
        let open = rig.opened(settings("lz4", PolicyKind::Fifo)).await;
        let mut number = 0;
        while open.cache.stats().counts.regions_reclaimed < 4 {
            open.prefetch(number..number + 1024).await;
            number += 1024;
        }
        let holdings = open.cache.stats().holdings;
        assert!(holdings.index_bytes > 2 * holdings.free_bytes, "{holdings:?}");
        open.stop().await.expect("stops");
        let findings = rig.check().await.expect("has a superblock");
        assert!(findings.iter().all(|finding| finding.object.is_ok()));
        let entries = findings.iter().find_map(|finding| match finding.object {
            Ok(Object::Entries { count, .. }) => Some(count),
            _ => None,
        });
        let open = rig.opened(settings("lz4", PolicyKind::Fifo)).await;
        assert_eq!(open.cache.start, Start::Warm(Epoch(1)));
        assert_eq!(Some(open.cached_blocks()), entries);
        eprintln!(
            "{} same-filled blocks cached, index {} bytes, {} free; {} after the stop",
            holdings.cached_blocks,
            holdings.index_bytes,
            holdings.free_bytes,
            open.cached_blocks()
        );
        assert!(
            open.cached_blocks() * 10 > holdings.cached_blocks * 9,
            "only what was in the way is gone"
        );
        for first in (0..number).step_by(512) {
            let data = open.read(first * BLOCK, BLOCK).await;
            assert!(data.iter().all(|&byte| byte == first as u8), "block {first}");
        }
        open.stop().await.expect("stops");
    });
}

#[test]
fn a_stop_in_the_middle_of_reclaim_is_in_order() {
    let mut reclaiming = 0;
    for seed in 0..80 {
        let rig = Rig::new(
            seed,
            filled_disk(16 << 20, half_random),
            plain_disk((8 << 20) + (256 << 10)),
        );
        rig.create(
            16 << 20,
            GeometryOptions {
                shard_count: Some(2),
                ..SMALLEST
            },
        );
        rig.sim.block_on(async {
            let policy = PolicyKind::ALL[seed as usize % 3];
            let open = rig.opened(settings("lz4", policy)).await;
            for first in (0..3600).step_by(600) {
                // Twice: second-touch admits nothing the first time.
                open.prefetch(first..first + 600).await;
                open.prefetch(first..first + 600).await;
            }
            let mut rng = Rng::new(seed);
            // More concurrent reads than the admission queue takes; then a stop shortly after.
            let reads = (0..64).map(|_| {
                let first = rng.below(4096 - 32);
                open.volume.prefetch(first * BLOCK, 32 * BLOCK)
            });
            join_all(reads.collect::<Vec<_>>())
                .await
                .into_iter()
                .for_each(|read| read.expect("reads"));
            rig.sim.env().sleep(Duration::from_micros(rng.below(6000))).await;
            let stats = open.cache.stats();
            let busy = stats.holdings.admission_queue > 0 || stats.holdings.cache_writes_queued > 0;
            reclaiming += u32::from(busy && stats.counts.regions_reclaimed > 0);
            open.stop().await.expect("stops");
            let findings = rig.check().await.expect("has a superblock");
            let bad: Vec<_> = findings
                .iter()
                .filter(|finding| finding.object.is_err())
                .collect();
            assert!(bad.is_empty(), "seed {seed}: {bad:?}");
            // Nothing is admitted, so that reading everything in order drops no block.
            let no_admission = Settings {
                sequential_cutoff: 1,
                ..settings("lz4", policy)
            };
            let open = rig.opened(no_admission).await;
            assert_eq!(open.cache.start, Start::Warm(Epoch(1)));
            assert!(open.cached_blocks() > 500);
            for number in (0..4096).step_by(16) {
                let data = open.read(number * BLOCK, 16 * BLOCK).await;
                let right: Vec<u8> = (number..number + 16).flat_map(block).collect();
                assert!(data == right, "seed {seed}: blocks from {number}");
            }
            assert!(open.cache.stats().counts.hit_blocks > 500);
            open.stop().await.expect("stops");
        });
    }
    assert!(reclaiming > 10, "only {reclaiming} stops met work going on");
}
