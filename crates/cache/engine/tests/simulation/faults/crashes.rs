//! The process is killed or the power fails during a recovery or a reclaim, at every event.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use flaz_device::{DeviceOp, Env};
use flaz_engine::cache::Start;
use flaz_engine::format::extent::Record;
use flaz_engine::format::manifest::RegionUse;
use flaz_engine::format::summary::Summary;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::volume::Volume;
use flaz_sim::{CrashPlan, DiskConfig, EventStage, SimDisk};
use futures_util::future::join;

use super::world::{BLOCK, BLOCKS, CLEARED, Found, Left, Live, MODES, Moment, STRIPE, World, contents};

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

/// As if the index were larger than the memory for it.
#[cfg(feature = "planted-bugs")]
#[test]
fn a_recovery_by_passes_comes_to_the_same() {
    use flaz_engine::planted::recover_by_passes;
    for mode in MODES {
        let mut whole = None;
        for entries_max in [None, Some(16), Some(70)] {
            let world = killed(1, mode);
            recover_by_passes(entries_max);
            world.sim.block_on(async {
                let live = world.open().await;
                assert_eq!(live.cache.start, Start::Recovered);
                let found = cached(&live);
                assert_eq!(found, *whole.get_or_insert_with(|| found.clone()), "{mode}");
                for block in 0..BLOCKS {
                    live.read(block).await;
                }
            });
            recover_by_passes(None);
        }
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

/// The power fails while a region of probation is being reclaimed and its used blocks have been stored in main: the older
/// copies are present again. They must be removed before main loses the newer records of those blocks.
#[test]
fn a_reclaim_that_was_cut_short_is_finished_before_another_one() {
    const REGION: u64 = 128 << 10;
    // Probation may have one of 24 regions. Flushes are slow, so freeing a region is slow too.
    let cache = DiskConfig {
        flush_latency: Duration::from_millis(200)..=Duration::from_millis(200),
        ..DiskConfig::fast((192 << 10) + 24 * REGION)
    };
    for stop in [false, true] {
        let world = World::on(3, Mode::WriteThrough, cache.clone(), 1);
        let (cut, moved) = world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..1200).await;
            live.cache.set(&Settings {
                policy: PolicyKind::S3Fifo,
                ..world.settings()
            });
            // A region of probation with used blocks, and the first block of another region. The newest of the used blocks are in the
            // policy's window, and not kept.
            live.warm(1300..1362).await;
            for block in 1300..1361 {
                live.read(block).await;
            }
            live.env.sleep(Duration::from_secs(5)).await;
            let mut block = 0;
            while live.stats().counts.reinserted_blocks <= 30 {
                live.write(block % STRIPE).await;
                block += 1;
                assert!(block < 2000, "nothing is reclaimed");
            }
            // The moved blocks land; their old region is not free before two flushes have ended.
            live.env.sleep(Duration::from_millis(20)).await;
            let moved: Vec<u64> = (1300..1330).filter(|&block| live.is_cached(block)).collect();
            let cut = (
                world.cache.crash(&CrashPlan::Everything),
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
            // The last extent of moved blocks may not have been sent.
            let found = moved.iter().filter(|&&block| live.is_cached(block)).count();
            assert!(found > 10, "{found} were moved");
            for &block in &moved {
                live.write(block).await;
            }
            live.stored().await;
            if stop {
                live.stop().await.expect("stops in order");
                live = next.open().await;
            }
            // All of these blocks were in main, and stay there.
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

/// The version on the origin of blocks that were written past the cache.
const LATER: u64 = 77;

/// The process is killed. Blocks that are no longer cached may have been written past the cache, and their intents cleared:
/// their remaining records on the device must not count.
fn stays_dropped(world: &World, found: Found, blocks: &[u64], number: u64) {
    let next = world.boot(number, found);
    for &block in blocks {
        next.origin.poke(block * BLOCK, &contents(block, LATER));
    }
    next.sim.block_on(async {
        let live = next.open().await;
        for &block in blocks {
            let version = live.try_read(block).await.expect("reads");
            assert_eq!(version, LATER, "block {block}, event {number}");
        }
    });
}

#[test]
pub fn a_block_dropped_by_an_unfinished_reclaim_is_not_recovered() {
    let world = World::sized(9, Mode::WriteAround, (192 << 10) + 10 * (128 << 10));
    let moments = world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..700).await;
        live.env.sleep(CLEARED).await;
        let moments = world.watch();
        live.warm(700..900).await;
        world.unwatch();
        moments.take()
    });
    let mut tried = 0;
    let written = |m: &&Moment| m.is(true, EventStage::Completed, DeviceOp::Write);
    for moment in moments.iter().filter(written) {
        let found = moment.kill(Left::Nothing, Left::Everything);
        let manifest = world.manifest(&found.0);
        let victim = manifest
            .iter()
            .position(|entry| entry.state == RegionUse::Reclaiming);
        let Some(victim) = victim else { continue };
        let start = world.geometry.data_offset() + victim as u64 * world.geometry.region_bytes;
        let region = found.0.read(start, world.geometry.region_bytes as usize);
        let summary = Summary::parse(&region).expect("it is full");
        let records = summary
            .records
            .iter()
            .map(|&bits| Record::unpack(bits).expect("valid"));
        // Except blocks in the origin's fingerprint.
        let blocks: Vec<u64> = records
            .map(|record| record.block.0)
            .filter(|&block| block > 64)
            .collect();
        stays_dropped(&world, found, &blocks, moment.number);
        tried += 1;
    }
    assert!(tried > 5, "{tried} reclaims were cut short");
}

/// No block is dropped from a region before the region's state *reclaiming* is stable in the manifest.
#[test]
pub fn a_region_is_being_reclaimed_before_a_block_leaves_it() {
    let world = World::sized(9, Mode::WriteAround, (192 << 10) + 10 * (128 << 10));
    let (found, mut number) = (RefCell::new(Vec::new()), 0);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..700).await;
        live.env.sleep(CLEARED).await;
        let cached: Vec<u64> = (65..700).filter(|&block| live.is_cached(block)).collect();
        let look = async {
            for _ in 0..2000 {
                live.env.sleep(Duration::from_micros(50)).await;
                let dropped = cached.iter().copied().filter(|&block| !live.is_cached(block));
                let dropped: Vec<u64> = dropped.collect();
                let known = found
                    .borrow()
                    .last()
                    .map_or(0, |(_, dropped): &(_, Vec<u64>)| dropped.len());
                if dropped.len() > known {
                    let cut = |disk: &SimDisk| disk.moment().kill(Left::Nothing.plan().chooser());
                    let now = (cut(&world.cache), cut(&world.origin), world.host.memory());
                    found.borrow_mut().push((now, dropped));
                }
            }
        };
        join(look, live.warm(700..900)).await;
    });
    let found = found.take();
    assert!(found.len() > 2, "{} looks into a reclaim", found.len());
    for (found, dropped) in found {
        number += 1;
        stays_dropped(&world, found, &dropped, number);
    }
}
