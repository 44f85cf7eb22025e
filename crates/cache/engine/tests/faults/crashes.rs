//! The process or the power goes in the middle of a recovery or of a reclaim, at every event.

use std::collections::BTreeSet;
use std::time::Duration;

use flaz_device::{DeviceOp, Env};
use flaz_engine::cache::Start;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::volume::Volume;
use flaz_sim::{CrashPlan, DiskConfig, EventStage, VolatileWrite};

use crate::world::{BLOCKS, CLEARED, Left, Live, MODES, STRIPE, World};

/// A cache with full and open regions, tombstones and set intents, killed.
fn killed(seed: u64, mode: Mode) -> World {
    let world = World::new(seed, mode);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..700).await;
        for block in (0..512).step_by(7) {
            live.write(block).await;
        }
        live.stored().await;
        live.env.sleep(CLEARED).await;
        live.warm(700..800).await;
        for block in 600..610 {
            live.write(block).await;
        }
        live.volume.flush().await.expect("flushes");
    });
    world.reboot(seed + 1)
}

fn cached(live: &Live) -> BTreeSet<u64> {
    (0..BLOCKS).filter(|&block| live.is_cached(block)).collect()
}

#[test]
fn a_recovery_that_is_cut_at_every_event_comes_to_the_same() {
    for mode in MODES {
        let world = killed(1, mode);
        let moments = world.watch();
        let whole = world.sim.block_on(async {
            let live = world.open().await;
            assert_eq!(live.cache.start, Start::Recovered);
            cached(&live)
        });
        assert!(whole.len() > 200, "{mode}: {} blocks", whole.len());
        let stripe = |block: u64| block / STRIPE;
        assert!(whole.iter().all(|&block| stripe(block) != stripe(600)), "{mode}");
        let mut states = 0;
        for moment in moments.take() {
            if moment.op == DeviceOp::Read || moment.on_cache && moment.op == DeviceOp::Status {
                continue;
            }
            for left in Left::ALL {
                for disks in [
                    moment.cut(left, Left::Nothing),
                    moment.kill(left, Left::Everything),
                ] {
                    let next = world.boot(moment.number, disks);
                    next.sim.block_on(async {
                        let live = next.open().await;
                        let again = cached(&live);
                        assert_eq!(again, whole, "{mode}: cut at event {}", moment.number);
                        for block in (0..BLOCKS).step_by(3) {
                            live.read(block).await;
                        }
                    });
                    states += 1;
                }
            }
        }
        assert!(states > 20, "{mode}: only {states} states");
    }
}

#[test]
fn a_reclaim_that_is_cut_at_every_event_revives_nothing() {
    let world = World::sized(2, Mode::WriteThrough, (192 << 10) + 10 * (128 << 10));
    let moments = world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..700).await;
        for block in (0..700).step_by(3) {
            live.write(block).await;
        }
        live.volume.flush().await.expect("flushes");
        live.env.sleep(CLEARED).await;
        let moments = world.watch();
        let before = live.stats().counts.regions_reclaimed;
        let mut block = 700;
        while live.stats().counts.regions_reclaimed < before + 3 {
            live.warm(block..block + 32).await;
            block += 32;
        }
        moments
    });
    let mut states = 0;
    for moment in moments.take() {
        let changes = matches!(moment.op, DeviceOp::Write | DeviceOp::Discard)
            || moment.op == DeviceOp::Flush && moment.stage == EventStage::Completed;
        if !moment.on_cache || !changes {
            continue;
        }
        for left in Left::ALL {
            let next = world.boot(moment.number, moment.cut(left, Left::Nothing));
            next.sim.block_on(async {
                let live = next.open().await;
                for block in 0..700 {
                    live.read(block).await;
                }
            });
            states += 1;
        }
    }
    assert!(states > 40, "only {states} states");
}

/// The power fails when a region says that it is void, and still has its summary. The next start makes an end of that. If
/// it cannot read the summary it must do so all the same: filled anew, the region would have it back after the next crash.
#[test]
fn a_half_void_region_with_an_unreadable_end_is_voided() {
    const READS_MAX: u64 = 60;
    let world = World::sized(2, Mode::WriteThrough, (192 << 10) + 10 * (128 << 10));
    let moments = world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..700).await;
        live.volume.flush().await.expect("flushes");
        live.env.sleep(CLEARED).await;
        let moments = world.watch();
        let before = live.stats().counts.regions_reclaimed;
        let mut block = 700;
        while live.stats().counts.regions_reclaimed < before + 2 {
            live.write(block).await;
            block += 1;
        }
        moments
    });
    let moments = moments.take();
    let half_void: Vec<_> = moments
        .iter()
        .filter(|moment| moment.is(true, EventStage::Completed, DeviceOp::Write) && moment.len == 512)
        .filter(|moment| world.in_regions(moment.offset))
        .collect();
    assert!(half_void.len() > 1, "{} moments", half_void.len());
    let mut failed = 0;
    for moment in half_void {
        for nth in 1..READS_MAX {
            let next = world.boot(nth, moment.cut(Left::Everything, Left::Everything));
            next.cache.fail_nth(DeviceOp::Read, nth);
            next.sim.block_on(async {
                let Ok(live) = next.try_open().await else { return };
                failed += next.cache.stats().errors;
                // Some of these leave the region that was half void, filled in part.
                for block in 100..100 + nth {
                    live.write(block).await;
                }
                live.env.sleep(CLEARED).await;
            });
            let last = next.reboot(nth);
            last.sim.block_on(async {
                let live = last.open().await;
                assert_eq!(live.cache.start, Start::Recovered, "read {nth}");
                for block in 0..700 {
                    live.read(block).await;
                }
            });
        }
    }
    assert!(failed > 20, "only {failed} reads failed");
}

/// A region of probation is being reclaimed, and what was used of it has been stored in main, when the power goes: the
/// older copies are there again. They must go before main forgets what became of those blocks.
#[test]
fn a_reclaim_that_was_cut_short_is_finished_before_another_one() {
    const REGION: u64 = 128 << 10;
    // Of 24 regions probation may have one. Flushes take long, and so it does until a region is void for good.
    let cache = DiskConfig {
        flush_latency: Duration::from_millis(200)..=Duration::from_millis(200),
        ..DiskConfig::fast((192 << 10) + 24 * REGION)
    };
    for stop in [false, true] {
        let world = World::on(3, Mode::WriteThrough, cache.clone(), 1);
        let data = world.geometry.data_offset();
        let (cut, moved) = world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..1200).await;
            live.cache.set(&Settings {
                policy: PolicyKind::S3Fifo,
                ..world.settings()
            });
            // A region of probation, which is used, and the first block of another one.
            live.warm(1300..1362).await;
            for block in 1300..1361 {
                live.read(block).await;
            }
            live.env.sleep(Duration::from_secs(5)).await;
            let is_void = |write: &VolatileWrite| write.offset >= data && write.len == 512;
            let voided = || world.cache.volatile_writes().iter().any(is_void);
            let mut block = 0;
            while !voided() {
                live.write(block % STRIPE).await;
                block += 1;
                assert!(block < 2000, "nothing is reclaimed");
            }
            assert!(live.stats().counts.reinserted_blocks > 40, "not of probation");
            let moved: Vec<u64> = (1300..1330).filter(|&block| live.is_cached(block)).collect();
            let writes = world.cache.volatile_writes();
            let cut = (
                world.cache.crash_with(|write, _| !is_void(&writes[write])),
                world.origin.crash(&CrashPlan::Everything),
                world.host.memory(),
            );
            (cut, moved)
        });
        let next = world.boot(4, cut);
        next.policy.set(PolicyKind::S3Fifo);
        next.sim.block_on(async {
            let mut live = next.open().await;
            assert_eq!(live.cache.start, Start::Recovered);
            for &block in &moved {
                assert!(live.is_cached(block));
                live.write(block).await;
            }
            live.stored().await;
            if stop {
                live.stop().await.expect("stops in order");
                live = next.open().await;
            }
            // All of that was in main, and stays there.
            let mut turn = 0;
            while moved.iter().any(|&block| live.is_cached(block)) {
                live.write(STRIPE + turn % STRIPE).await;
                turn += 1;
                if turn.is_multiple_of(32) {
                    live.stored().await;
                }
                assert!(turn < 30_000, "main forgets nothing");
            }
            live.env.sleep(CLEARED).await;
            live.volume.flush().await.expect("flushes");
        });
        let last = next.reboot(5);
        last.sim.block_on(async {
            let live = last.open().await;
            for &block in &moved {
                live.read(block).await;
            }
        });
    }
}
