//! A cache device that fails writes is fenced, and no request fails.

use flaz_engine::cache::Start;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::shard::CACHE_ERRORS_MAX;
use flaz_engine::stats::Counts;
use flaz_engine::volume::Volume;
use flaz_sim::{FaultRates, Rng};

use crate::whole_cache::rig::{BLOCK, Open, Rig, SMALLEST, filled_disk, plain_disk, settings};

const ORIGIN_LEN: u64 = 4 << 20;
const ALWAYS: u32 = 1_000_000;

fn random(number: u64, block: &mut [u8; 4096]) {
    Rng::new(number).fill(block);
}

fn block(number: u64, version: u64) -> Vec<u8> {
    let mut block = [0; 4096];
    random(number + version * 10_000, &mut block);
    block.to_vec()
}

/// Writes some blocks and reads all.
async fn work(open: &Open, version: u64) {
    for number in (0..ORIGIN_LEN / BLOCK).step_by(2) {
        open.write(number * BLOCK, &block(number, version)).await;
    }
    for number in 0..ORIGIN_LEN / BLOCK {
        let version = if number % 2 == 0 { version } else { 0 };
        assert!(
            open.read(number * BLOCK, BLOCK).await == block(number, version),
            "block {number}"
        );
    }
    open.volume.flush().await.expect("the origin is well");
}

fn survives(faults: FaultRates) -> Counts {
    let rig = Rig::new(3, filled_disk(ORIGIN_LEN, random), plain_disk(6 << 20));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let fifo = settings("lz4", PolicyKind::Fifo);
        let open = rig.opened(fifo.clone()).await;
        work(&open, 1).await;
        rig.disk.set_faults(faults);
        work(&open, 2).await;
        work(&open, 3).await;
        let stats = open.cache.stats();
        assert!(stats.holdings.cache_failed, "{faults:?}");
        let most = CACHE_ERRORS_MAX + flaz_engine::shard::WRITES_IN_FLIGHT_MAX as u64;
        assert!(
            stats.counts.cache_errors <= most,
            "{} errors",
            stats.counts.cache_errors
        );
        assert_eq!(stats.counts.origin_errors, 0);
        // Passed through: the cache device is not used.
        rig.disk.reset_stats();
        work(&open, 4).await;
        let disk = rig.disk.stats();
        assert_eq!((disk.reads, disk.writes, disk.errors), (0, 0, 0));
        rig.disk.set_faults(FaultRates::default());
        open.stop().await.expect_err("a failed cache is not marked clean");
        // The disk works again: the cache starts cold and is useful again.
        let open = rig.opened(fifo).await;
        assert_eq!(open.cache.start, Start::Cold);
        assert_eq!(open.cached_blocks(), 0);
        work(&open, 4).await;
        work(&open, 5).await;
        assert!(open.cache.stats().counts.hit_blocks > 500);
        open.stop().await.expect("stops in order");
        stats.counts
    })
}

/// The cause is known: it is not the device.
#[test]
fn a_full_cache_device_is_fenced() {
    let counts = survives(FaultRates {
        write_no_space_ppm: ALWAYS,
        ..FaultRates::default()
    });
    assert!(counts.cache_no_space > 0);
}

#[test]
fn a_read_only_cache_device_is_fenced() {
    let counts = survives(FaultRates {
        write_error_ppm: ALWAYS,
        ..FaultRates::default()
    });
    assert_eq!(counts.cache_no_space, 0);
}

#[test]
fn a_missing_cache_device_is_fenced() {
    let gone = FaultRates {
        read_error_ppm: ALWAYS,
        write_error_ppm: ALWAYS,
        flush_error_ppm: ALWAYS,
        discard_error_ppm: ALWAYS,
        ..FaultRates::default()
    };
    survives(gone);
}

#[test]
fn errors_below_the_limit_lose_blocks_and_nothing_else() {
    let rig = Rig::new(4, filled_disk(ORIGIN_LEN, random), plain_disk(6 << 20));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let open = rig.opened(settings("lz4", PolicyKind::Fifo)).await;
        for nth in 1..CACHE_ERRORS_MAX {
            rig.disk.fail_nth_with(flaz_device::DeviceOp::Write, nth * 5, 28);
        }
        for version in 1..4 {
            work(&open, version).await;
        }
        let stats = open.cache.stats();
        assert_eq!(stats.counts.cache_errors, CACHE_ERRORS_MAX - 1);
        assert!(!stats.holdings.cache_failed);
        assert!(stats.counts.hit_blocks > 500);
        // The index dropped blocks that did not reach the device: the others may be used again.
        open.stop().await.expect("stops in order");
        let open = rig.opened(settings("lz4", PolicyKind::Fifo)).await;
        assert_eq!(open.cache.start, Start::Warm(flaz_engine::units::Epoch(1)));
        for number in 0..ORIGIN_LEN / BLOCK {
            let version = if number % 2 == 0 { 3 } else { 0 };
            assert!(
                open.read(number * BLOCK, BLOCK).await == block(number, version),
                "block {number}"
            );
        }
        open.stop().await.expect("stops in order");
    });
}

#[test]
fn a_cache_device_that_fails_at_the_start_is_refused() {
    let rig = Rig::new(5, filled_disk(ORIGIN_LEN, random), plain_disk(6 << 20));
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let fifo = settings("lz4", PolicyKind::Fifo);
        rig.disk.set_faults(FaultRates {
            write_no_space_ppm: ALWAYS,
            ..FaultRates::default()
        });
        let error = rig
            .open(fifo.clone())
            .await
            .err()
            .expect("it cannot be marked as open");
        assert!(error.to_string().starts_with("cache device: write"), "{error}");
        rig.disk.set_faults(FaultRates::default());
        let open = rig.opened(fifo).await;
        work(&open, 1).await;
        open.stop().await.expect("stops in order");
    });
}

/// A sparse cache file on a file system that becomes full: the cache uses what space there is, and more when there is more.
#[test]
fn a_sparse_cache_without_space_is_a_smaller_cache() {
    const LEN: u64 = 6 << 20;
    let rig = Rig::new(6, filled_disk(ORIGIN_LEN, random), plain_disk(LEN));
    rig.disk.set_space(2 << 20);
    rig.create(ORIGIN_LEN, SMALLEST);
    rig.sim.block_on(async {
        let fifo = settings("none", PolicyKind::Fifo);
        let open = rig.opened(fifo.clone()).await;
        for version in 1..6 {
            work(&open, version).await;
        }
        let stats = open.cache.stats();
        assert!(!stats.holdings.cache_failed);
        assert!(stats.counts.allocations_without_space > 0);
        assert_eq!((stats.counts.cache_errors, stats.counts.cache_no_space), (0, 0));
        assert!(stats.counts.regions_reclaimed > 5);
        // Recently written blocks are cached.
        for number in (0..64).step_by(2) {
            open.write(number * BLOCK, &block(number, 5)).await;
        }
        let hits = open.cache.stats().counts.hit_blocks;
        for number in (0..64).step_by(2) {
            assert!(open.read(number * BLOCK, BLOCK).await == block(number, 5));
        }
        assert_eq!(open.cache.stats().counts.hit_blocks, hits + 32);
        let (small, withheld) = (stats.holdings.cached_blocks, stats.holdings.withheld_bytes);
        assert!(
            small * BLOCK < 2 << 20 && withheld > 3 << 20,
            "{small}, {withheld}"
        );
        open.stop().await.expect("stops in order");
        // The next start is warm, and finds the same.
        let open = rig.opened(fifo.clone()).await;
        assert_eq!(open.cache.start, Start::Warm(flaz_engine::units::Epoch(1)));
        work(&open, 6).await;
        assert!(open.cache.stats().holdings.withheld_bytes > 3 << 20);
        // Somebody frees space: no restart is needed.
        rig.disk.set_space(LEN);
        for version in 7..12 {
            work(&open, version).await;
        }
        let stats = open.cache.stats();
        assert!(
            stats.holdings.cached_blocks > small + 200,
            "{}",
            stats.holdings.cached_blocks
        );
        assert!(!stats.holdings.cache_failed && stats.counts.cache_errors == 0);
        open.stop().await.expect("stops in order");
    });
}

/// Dirty blocks are written back rather than lost, and a crash loses none of them.
#[test]
fn a_sparse_cache_without_space_keeps_dirty_blocks() {
    for seed in 0..20 {
        let rig = Rig::new(seed, filled_disk(ORIGIN_LEN, random), plain_disk(6 << 20));
        rig.sim.set_step_limit(20_000_000);
        rig.disk.set_space((1 << 20) + (seed << 16));
        rig.create(ORIGIN_LEN, SMALLEST);
        let back = Settings {
            mode: Mode::WriteBack,
            ..settings("none", PolicyKind::S3Fifo)
        };
        rig.sim.block_on(async {
            let open = rig.opened(back.clone()).await;
            for version in 1..4 {
                work(&open, version).await;
            }
            let stats = open.cache.stats();
            assert!(!stats.holdings.cache_failed, "seed {seed}");
            assert!(stats.counts.allocations_without_space > 0, "seed {seed}");
            std::mem::forget(open);
        });
        rig.sim.kill_tasks();
        rig.sim.block_on(async {
            let open = rig.opened(back).await;
            for number in 0..ORIGIN_LEN / BLOCK {
                let version = if number % 2 == 0 { 3 } else { 0 };
                let found = open.read(number * BLOCK, BLOCK).await;
                assert!(found == block(number, version), "seed {seed}, block {number}");
            }
            work(&open, 4).await;
            assert!(!open.cache.stats().holdings.cache_failed, "seed {seed}");
            open.stop().await.expect("stops in order");
        });
    }
}
