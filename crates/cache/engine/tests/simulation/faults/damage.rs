//! Rotten bits, misdirected writes, torn extents, flushes that do nothing.

use flaz_device::{DeviceOp, Env};
use flaz_engine::format::manifest::RegionUse;
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use flaz_sim::{CrashPlan, EventStage, FaultRates};

use super::world::{BLOCKS, CLEARED, MODES, STRIPE, World};

#[test]
fn bit_rot_on_the_cache_device_is_a_miss_and_counted() {
    for mode in MODES {
        let world = World::new(1, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..1000).await;
            live.stop().await.expect("stops in order");
            let live = world.open().await;
            let (start, len) = (world.geometry.data_offset(), 1000 * 2200);
            for _ in 0..300 {
                world.cache.rot(start, len);
            }
            live.check_all().await;
            live.check_all().await;
            let counts = live.stats().counts;
            assert!(
                counts.checksum_failures > 50,
                "{mode}: {}",
                counts.checksum_failures
            );
            assert!(counts.hit_blocks > 500, "{mode}");
            assert!(!live.failed(), "{mode}: damage is no failure of the device");
        });
        world.reboot(2).check();
    }
}

#[test]
fn a_misdirected_write_on_the_cache_device_is_a_miss() {
    for seed in 0..10 {
        let world = World::new(seed, Mode::WriteThrough);
        let bad = world.sim.block_on(async {
            let live = world.open().await;
            world.cache.set_faults(FaultRates {
                write_misdirected_ppm: 100_000,
                write_lost_ppm: 50_000,
                ..FaultRates::default()
            });
            live.warm(0..1000).await;
            for block in (0..1000).step_by(3) {
                live.write(block).await;
            }
            world.cache.set_faults(FaultRates::default());
            live.check_all().await;
            live.check_all().await;
            live.stats().counts.checksum_failures
        });
        assert!(world.cache.stats().silent_faults > 0);
        assert!(bad > 0, "seed {seed}: no block was met that had gone elsewhere");
    }
}

/// Only the header of an extent lands: recovery must not assume that its fragments did.
#[test]
fn a_torn_extent_is_dropped_by_recovery() {
    let world = World::new(3, Mode::WriteThrough);
    let moments = world.watch();
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..256).await;
    });
    let moments = moments.take();
    let torn: Vec<_> = moments
        .iter()
        .filter(|moment| {
            moment.is(true, EventStage::Issued, DeviceOp::Write)
                && world.in_regions(moment.offset)
                && moment.len > 16 << 10
        })
        .collect();
    assert!(torn.len() > 5);
    let mut recovered = 0;
    for (turn, moment) in torn.iter().enumerate() {
        // A header and its first records fit in one sector.
        let (first, last) = (moment.offset / 512, (moment.offset + moment.len) / 512);
        for sectors in [1, 2, 40] {
            let cut = (
                moment
                    .cache
                    .cut(|_, sector| !(first + sectors..last).contains(&sector)),
                moment.origin.cut(|_, _| true),
                moment.memory,
            );
            let next = world.boot(turn as u64, cut);
            assert_eq!(next.damage(), Vec::<String>::new(), "a look before recovery");
            let stats = next.check();
            assert_eq!(next.damage(), Vec::<String>::new(), "a look after recovery");
            recovered += stats.counts.hit_blocks;
            assert_eq!(
                stats.counts.checksum_failures, 0,
                "what is torn is not believed in the first place"
            );
        }
    }
    assert!(recovered > 0);
}

/// The contract does not cover a device that lies about flushes; such a device may lose its contents, but nothing else.
#[test]
fn a_cache_device_that_lies_about_flushes_makes_nothing_panic() {
    for seed in 0..40 {
        let world = World::new(seed, Mode::WriteThrough);
        world.sim.block_on(async {
            let live = world.open().await;
            world.cache.set_faults(FaultRates {
                flush_lie_ppm: 1_000_000,
                ..FaultRates::default()
            });
            live.warm(0..512).await;
            for block in (0..BLOCKS).step_by(STRIPE as usize / 4) {
                live.write(block).await;
            }
            if seed % 2 == 0 {
                live.env.sleep(CLEARED).await;
            }
            live.volume.flush().await.expect("the origin is honest");
            live.check_all().await;
        });
        let plan = if seed < 2 {
            CrashPlan::Nothing
        } else {
            CrashPlan::Random(seed)
        };
        let next = world.boot(
            seed,
            (
                world.cache.crash(&plan),
                world.origin.crash(&CrashPlan::Nothing),
                world.host.memory(),
            ),
        );
        next.sim.block_on(async {
            let Ok(live) = next.try_open().await else { return };
            for block in 0..BLOCKS {
                // Some version of this block, and of no other.
                let version = live.try_read(block).await.expect("the origin is well");
                assert!(version <= live.expected(block));
            }
        });
    }
}

/// Recovery misreads a region as empty, and the next one reads it correctly. Writes past the cache leave no tombstones for
/// blocks that were not found: those blocks must not come back.
#[test]
fn a_region_that_was_taken_for_empty_once_stays_empty() {
    for at in [100, 400] {
        let world = World::new(20, Mode::WriteAround);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..160).await;
        });
        let manifest = world.manifest(&world.cache.snapshot());
        let open = manifest.iter().position(|entry| entry.state == RegionUse::Open);
        let open = open.expect("one is being filled") as u64;
        let start = world.geometry.data_offset() + open * world.geometry.region_bytes;
        let next = world.reboot(21);
        next.sim.block_on(async {
            let live = next.open().await;
            assert!((0..160).filter(|block| live.is_cached(*block)).count() > 130);
        });
        let next = world.reboot(21);
        next.cache.flip_bit(start + at, 0);
        next.sim.block_on(async {
            let live = next.open().await;
            next.cache.flip_bit(start + at, 0);
            // Otherwise tombstones of the other blocks would be the first records in the region.
            for block in (0..160).filter(|block| !live.is_cached(*block)) {
                live.write(block).await;
            }
            live.env.sleep(CLEARED).await;
        });
        next.reboot(22).check();
    }
}
