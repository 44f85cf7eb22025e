//! Single failures of each operation of the cache device; flushes of both devices.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceOp, Env};
use flaz_engine::cache::read_superblock;
use flaz_engine::format::geometry::SUPERBLOCK_SLOTS;
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};
use flaz_sim::EventStage;

use super::world::{BLOCK, CLEARED, Left, Live, MODES, STRIPE, World};

const NO_SPACE: i32 = 28;
const IO: i32 = 5;

/// Requests that cause every kind of write: intents set and cleared, extents, summaries, tombstones, void marks.
async fn work(live: &Live) {
    live.warm(0..64).await;
    for block in (0..48).chain(STRIPE..STRIPE + 8) {
        live.write(block).await;
    }
    live.stored().await;
    live.env.sleep(CLEARED).await;
    live.warm(STRIPE..STRIPE + 64).await;
    live.write(2 * STRIPE).await;
    live.write(0).await;
    live.stored().await;
    live.volume.flush().await.expect("the origin is well");
}

async fn look(live: &Live) {
    for block in (0..64).chain(STRIPE..STRIPE + 64).chain([2 * STRIPE]) {
        live.read(block).await;
    }
}

/// Runs `work` once for each of its operations of a kind, and fails that operation. Afterwards no old data is read, even
/// after a power cut.
fn each_failed_once(op: DeviceOp, os_error: i32, mode: Mode) -> u64 {
    let world = World::new(1, mode);
    let total = world.sim.block_on(async {
        let live = world.open().await;
        world.cache.reset_stats();
        work(&live).await;
        live.stop().await.expect("nothing has failed yet");
        let stats = world.cache.stats();
        match op {
            DeviceOp::Write => stats.writes,
            DeviceOp::Flush => stats.flushes,
            DeviceOp::Discard => stats.discards,
            _ => stats.reads,
        }
    });
    for nth in 1..=total {
        let world = World::new(1, mode);
        let stopped = world.sim.block_on(async {
            let live = world.open().await;
            world.cache.fail_nth_with(op, nth, os_error);
            work(&live).await;
            look(&live).await;
            look(&live).await;
            live.stop().await.is_ok()
        });
        assert_eq!(world.cache.stats().errors, 1, "{op} {nth} did not fail");
        for left in Left::ALL {
            let cut = (
                world.cache.crash(&match left {
                    Left::Everything => flaz_sim::CrashPlan::Everything,
                    Left::Nothing => flaz_sim::CrashPlan::Nothing,
                }),
                world.origin.crash(&flaz_sim::CrashPlan::Nothing),
                world.host.memory(),
            );
            let next = world.boot(nth, cut);
            next.sim.block_on(async {
                let live = next.open().await;
                look(&live).await;
                look(&live).await;
                assert!(
                    !stopped || !matches!(live.cache.start, flaz_engine::cache::Start::Recovered),
                    "{mode}, {op} {nth}: a clean stop is followed by a recovery"
                );
            });
        }
    }
    total
}

#[test]
fn each_write_of_the_cache_device_failed_once_costs_hits_alone() {
    for mode in MODES {
        let writes = each_failed_once(DeviceOp::Write, IO, mode);
        assert!(writes > 10, "{mode}: only {writes} writes");
    }
}

#[test]
fn each_cache_write_without_space_once_costs_only_hits() {
    for mode in MODES {
        each_failed_once(DeviceOp::Write, NO_SPACE, mode);
    }
}

#[test]
fn each_flush_of_the_cache_device_failed_once_is_a_bypass() {
    for mode in MODES {
        let flushes = each_failed_once(DeviceOp::Flush, IO, mode);
        assert!(flushes > 2, "{mode}: only {flushes} flushes");
    }
}

#[test]
fn each_read_of_the_cache_device_failed_once_is_a_miss() {
    let world = World::new(2, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..256).await;
        for block in 0..200 {
            let before = live.stats().counts;
            if block % 40 == 0 {
                world.cache.fail_nth(DeviceOp::Read, 1);
            }
            live.read(block).await;
            let after = live.stats().counts;
            let failed = after.cache_read_errors - before.cache_read_errors;
            assert_eq!(after.miss_blocks - before.miss_blocks, failed, "block {block}");
        }
        assert_eq!(live.stats().counts.cache_read_errors, 5);
        assert!(!live.failed());
    });
}

#[test]
fn a_failed_flush_of_the_cache_device_is_not_asked_again() {
    let world = World::new(3, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..64).await;
        live.write(1).await;
        live.stored().await;
        world.cache.fail_nth(DeviceOp::Flush, 1);
        live.env.sleep(CLEARED).await;
        assert!(live.failed(), "the round of clearing has met it");
        look(&live).await;
        live.stop().await.expect_err("it is not marked clean");
    });
}

#[test]
fn a_failed_flush_of_the_origin_is_passed_on() {
    for mode in MODES {
        let world = World::new(4, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            live.write(1).await;
            world.origin.fail_nth(DeviceOp::Flush, 1);
            let error = live.volume.flush().await.expect_err("passed on");
            assert!(matches!(error, IoError::Origin(_)), "{mode}: {error}");
            assert!(!live.failed(), "{mode}: the cache is well");
            live.read(1).await;
            live.volume.flush().await.expect("the next one is another matter");
        });
    }
}

/// The client of a trim gets the result of the trim; its failed flush may have lost another client's writes.
#[test]
fn a_failed_origin_flush_of_a_trim_is_reported_later() {
    for mode in MODES {
        let world = World::new(6, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.write(1).await;
            world.origin.fail_nth(DeviceOp::Flush, 1);
            live.volume
                .trim(64 * BLOCK, BLOCK, true)
                .await
                .expect_err("it failed");
            live.volume.flush().await.expect_err("passed on");
            live.volume.flush().await.expect("once");
        });
    }
}

/// The operating system may report the failure only once: the next client that flushes must get it.
#[test]
fn a_failed_background_origin_flush_is_reported_later() {
    let world = World::new(5, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..64).await;
        live.write(1).await;
        world.origin.fail_nth(DeviceOp::Flush, 1);
        live.env.sleep(Duration::from_secs(12)).await;
        assert_eq!(world.origin.stats().errors, 1, "the round of clearing has met it");
        live.volume.flush().await.expect_err("passed on");
        live.volume.flush().await.expect("once");
    });
}

/// The contents of a slot after a failed write of the superblock are unknown: the next write must not touch the other slot,
/// the only one known to be good.
#[test]
fn a_failed_superblock_write_leaves_the_other_slot_alone() {
    for nth in [1, 2] {
        let world = World::new(nth, Mode::WriteThrough);
        world.sim.block_on(async {
            let mut live = world.open().await;
            let (cache, last) = (world.cache.clone(), Rc::new(Cell::new(0)));
            let slot = Rc::clone(&last);
            world.sim.set_observer(move |event| {
                let write = event.disk == cache.number() && event.op == DeviceOp::Write;
                if write && event.stage == EventStage::Issued && SUPERBLOCK_SLOTS.contains(&event.offset) {
                    slot.set(event.offset);
                }
            });
            for tries in 0..3 {
                world
                    .cache
                    .fail_nth(DeviceOp::Write, if tries == 0 { nth } else { 1 });
                live.cache.permit_write_back().await.expect_err("it failed");
                world.cache.poke(last.get(), &[0xa5; BLOCK as usize]);
                let found = read_superblock(&world.cache)
                    .await
                    .expect("the other slot is good");
                assert_eq!(found.epoch, live.cache.superblock().epoch);
            }
            live.cache.permit_write_back().await.expect("it can be written");
            assert!(read_superblock(&world.cache).await.expect("it was written").dirty);
            live.write(3).await;
            live.stop().await.expect("stops in order");
            world.unwatch();
        });
        world.reboot(nth).check();
    }
}
