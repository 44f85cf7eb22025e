//! The cache device is absent, a different one, an older copy, or returns after a fence.

use flaz_device::Env;
use flaz_engine::cache::{CacheError, Start, create};
use flaz_engine::format::geometry::{SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use flaz_sim::SimDisk;

use super::world::{BLOCKS, CLEARED, Left, MODES, STRIPE, World, options};

/// Writes one block of every stripe.
async fn write_everywhere(live: &super::world::Live) {
    for block in (3..BLOCKS).step_by(STRIPE as usize) {
        live.write(block).await;
    }
}

#[test]
fn an_absent_cache_device_is_refused() {
    for mode in MODES {
        let world = World::new(1, mode);
        world.cache.set_dead(true);
        let error = world
            .sim
            .block_on(world.try_open())
            .err()
            .expect("nothing is there");
        assert!(matches!(error, CacheError::Device(_)), "{error}");
        assert_eq!(world.origin.stats().writes, 0);
        world.cache.set_dead(false);
        world.check();
    }
}

#[test]
fn a_device_that_returns_after_a_kill_is_not_trusted() {
    for mode in MODES {
        let world = World::new(2, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..BLOCKS / 2).await;
            live.env.sleep(CLEARED).await;
            // Absent: every operation fails, so the fence mark cannot be written.
            world.cache.set_dead(true);
            write_everywhere(&live).await;
            live.check_all().await;
            assert!(live.failed(), "{mode}");
            assert_eq!(world.host.noted_fenced.get(), 1, "{mode}");
        });
        world.cache.set_dead(false);
        let next = world.reboot(3);
        let start = next.sim.block_on(async {
            let live = next.open().await;
            live.check_all().await;
            live.cache.start
        });
        assert_eq!(start, Start::Cold, "{mode}");
        // Once discarded, it is as good as any other device.
        let next = next.reboot(4);
        let start = next.sim.block_on(async { next.open().await.cache.start });
        assert_eq!(start, Start::Recovered, "{mode}");
        next.reboot(5).check();
    }
}

#[test]
fn a_device_that_returns_after_a_stop_is_not_trusted() {
    let world = World::new(6, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..BLOCKS / 2).await;
        live.env.sleep(CLEARED).await;
        world.cache.set_dead(true);
        write_everywhere(&live).await;
        live.stop().await.expect_err("it cannot be marked");
    });
    world.cache.set_dead(false);
    let next = world.reboot(7);
    assert_eq!(
        next.sim.block_on(async { next.open().await.cache.start }),
        Start::Cold
    );
    next.reboot(8).check();
}

/// No write bypassed it, so its contents are still valid.
#[test]
fn a_device_that_returns_without_missed_writes_is_warm() {
    let world = World::new(25, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..BLOCKS / 2).await;
        write_everywhere(&live).await;
        live.stored().await;
        live.env.sleep(CLEARED).await;
        world.cache.set_dead(true);
        live.check_all().await;
        assert!(live.failed());
        assert_eq!(world.host.noted_fenced.get(), 0);
    });
    world.cache.set_dead(false);
    let next = world.reboot(26);
    next.sim.block_on(async {
        let live = next.open().await;
        assert_eq!(live.cache.start, Start::Recovered);
        assert!(live.stats().holdings.cached_blocks > BLOCKS / 4);
        live.check_all().await;
    });
}

/// The negative control of the tests above: why the host record is needed.
#[test]
fn without_a_host_record_a_returned_device_is_trusted() {
    let world = World::new(9, Mode::WriteThrough);
    world.host.broken.set(true);
    let block = world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..BLOCKS / 2).await;
        live.env.sleep(CLEARED).await;
        world.cache.set_dead(true);
        write_everywhere(&live).await;
        3
    });
    world.cache.set_dead(false);
    let next = world.reboot(10);
    next.sim.block_on(async {
        let live = next.open().await;
        assert_eq!(live.cache.start, Start::Recovered);
        let version = live.try_read(block).await.expect("reads");
        assert!(
            version < live.expected(block),
            "no stale block, so nothing is proved"
        );
    });
}

#[test]
fn a_rolled_back_device_is_not_trusted() {
    for mode in MODES {
        let world = World::new(11, mode);
        let old = world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..BLOCKS / 2).await;
            live.stop().await.expect("stops in order");
            let old = world.cache.snapshot();
            let live = world.open().await;
            assert!(matches!(live.cache.start, Start::Warm(_)));
            write_everywhere(&live).await;
            live.stop().await.expect("stops in order");
            old
        });
        let next = world.boot(12, (old.clone(), world.origin.snapshot(), world.host.memory()));
        next.sim.block_on(async {
            let live = next.open().await;
            assert_eq!(live.cache.start, Start::Cold, "{mode}");
            live.check_all().await;
            live.stop().await.expect("stops in order");
            // From now on its numbers are ahead of those of the copy.
            assert!(matches!(next.open().await.cache.start, Start::Warm(_)), "{mode}");
        });
        // The same copy again is detected again.
        let last = next.boot(13, (old, next.origin.snapshot(), next.host.memory()));
        let start = last.sim.block_on(async { last.open().await.cache.start });
        assert_eq!(start, Start::Cold, "{mode}");
    }
}

/// An opening raises the numbers of an old copy beyond the recorded ones. From then on only the superblock shows that the
/// copy must not be trusted, so it must be marked before the cache is fully discarded.
#[test]
fn an_older_copy_is_not_trusted_after_a_crashed_opening() {
    for mode in MODES {
        let world = World::new(40, mode);
        let old = world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..BLOCKS / 2).await;
            live.env.sleep(CLEARED).await;
            live.stop().await.expect("stops in order");
            let old = world.cache.snapshot();
            let live = world.open().await;
            write_everywhere(&live).await;
            live.stop().await.expect("stops in order");
            old
        });
        let next = world.boot(41, (old, world.origin.snapshot(), world.host.memory()));
        let moments = next.watch();
        let start = next.sim.block_on(async { next.open().await.cache.start });
        assert_eq!(start, Start::Cold, "{mode}");
        next.unwatch();
        let mut states = 0;
        for moment in moments.take().into_iter().filter(|moment| moment.on_cache) {
            for disks in Left::ALL.map(|left| moment.kill(left, left)) {
                let again = next.boot(moment.number, disks);
                let start = again.sim.block_on(async {
                    let live = again.open().await;
                    live.check_all().await;
                    live.cache.start
                });
                assert!(!matches!(start, Start::Warm(_)), "{mode}");
                states += 1;
            }
        }
        assert!(states > 20, "{mode}: only {states} states");
    }
}

/// A copy made while the cache was served is older than the clean stop that followed.
#[test]
fn a_copy_made_while_in_use_is_not_trusted_after_a_stop() {
    let world = World::new(14, Mode::WriteThrough);
    let old = world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..BLOCKS / 2).await;
        live.env.sleep(CLEARED).await;
        let old = world.cache.snapshot();
        write_everywhere(&live).await;
        live.stop().await.expect("stops in order");
        old
    });
    let next = world.boot(15, (old, world.origin.snapshot(), world.host.memory()));
    assert_eq!(
        next.sim.block_on(async { next.open().await.cache.start }),
        Start::Cold
    );
    next.reboot(16).check();
}

/// The device has lost stable data, including the open mark of an epoch: the contents written in that epoch must not be
/// taken for those of the next one.
#[test]
fn openings_that_the_cache_device_forgot_are_counted_on() {
    let world = World::new(17, Mode::WriteThrough);
    let slots = world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..64).await;
        live.stop().await.expect("stops in order");
        let slots = SUPERBLOCK_SLOTS.map(|at| (at, world.cache.peek(at, SUPERBLOCK_BYTES)));
        let live = world.open().await;
        live.warm(0..BLOCKS / 2).await;
        live.env.sleep(CLEARED).await;
        write_everywhere(&live).await;
        slots
    });
    for (at, page) in slots {
        world.cache.poke(at, &page);
    }
    let next = world.reboot(18);
    let epoch = next.sim.block_on(async {
        let live = next.open().await;
        assert_eq!(live.cache.start, Start::Cold);
        live.cache.superblock().epoch
    });
    assert!(epoch > world.host.memory().expect("noted").epoch);
    next.reboot(19).check();
}

/// A new cache on the same device, or a different device in its place: the records of the old cache do not apply.
#[test]
fn another_cache_in_its_place_starts_with_what_is_its_own() {
    let world = World::new(20, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..BLOCKS / 2).await;
        write_everywhere(&live).await;
        live.stop().await.expect("stops in order");
        // Same size, same layout, and all contents of the old cache still on the device.
        create(&world.cache, options(2)).await.expect("fits");
    });
    // Records belong to a cache: this one has none.
    let (cache, origin, _) = world.now();
    let next = world.boot(21, (cache, origin, None));
    let (start, cached) = next.sim.block_on(async {
        let live = next.open().await;
        (live.cache.start, live.stats().holdings.cached_blocks)
    });
    assert_eq!((start, cached), (Start::Empty, 0));
    next.reboot(22).check();
}

/// In write-back the dirty blocks of a lost cache are the only copies; the clean ones are stale.
#[test]
fn only_dirty_blocks_of_a_returned_device_are_trusted() {
    let world = World::new(30, Mode::WriteBack);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..BLOCKS / 2).await;
        live.volume.flush().await.expect("flushes");
        live.env.sleep(CLEARED).await;
        for block in 0..16 {
            live.write(block).await;
        }
        live.volume.flush().await.expect("flushes");
        world.cache.set_dead(true);
        // Writes fail until the device is fenced; then they bypass the cache, except those to dirty blocks.
        let mut past = 0;
        for block in (300..600).step_by(3) {
            past += u32::from(live.try_write(block).await.is_ok());
        }
        assert!(live.failed() && past > 10, "{past} writes went past the cache");
        live.try_write(0)
            .await
            .expect_err("its latest contents are on the cache device");
        live.try_read(1)
            .await
            .expect_err("never the old contents of the origin");
        live.volume.flush().await.ok();
    });
    world.cache.set_dead(false);
    let next = world.reboot(31);
    next.sim.block_on(async {
        let live = next.open().await;
        assert_eq!(live.cache.start, Start::Recovered);
        for block in (1..16).chain((300..600).step_by(3)) {
            live.read(block).await;
        }
        live.cache.clean_all().await.expect("the origin is well");
        for block in 1..16 {
            live.read(block).await;
        }
    });
}

#[test]
fn a_rolled_back_device_that_had_dirty_blocks_is_refused() {
    for clean_copy in [false, true] {
        let world = World::new(
            32,
            if clean_copy {
                Mode::WriteThrough
            } else {
                Mode::WriteBack
            },
        );
        let old = world.sim.block_on(async {
            let live = world.open().await;
            live.write(1).await;
            live.stop().await.expect("stops in order");
            world.cache.snapshot()
        });
        let mut world = world;
        world.mode = Mode::WriteBack;
        world.sim.block_on(async {
            let live = world.open().await;
            live.write(2).await;
            live.volume.flush().await.expect("flushes");
        });
        let next = world.boot(33, (old, world.origin.snapshot(), world.host.memory()));
        let error = next
            .sim
            .block_on(next.try_open())
            .err()
            .expect("block 2 is missing");
        assert!(matches!(error, CacheError::DirtyUnreadable { .. }), "{error}");
        assert!(error.to_string().contains("holds an older state"), "{error}");
    }
}

#[test]
fn a_device_that_is_no_cache_is_refused() {
    let world = World::new(23, Mode::WriteThrough);
    let blank = SimDisk::new(&world.sim.env(), flaz_sim::DiskConfig::fast(6 << 20)).snapshot();
    let next = world.boot(24, (blank, world.origin.snapshot(), None));
    let error = next.sim.block_on(next.try_open()).err().expect("no superblock");
    assert!(matches!(error, CacheError::NoSuperblock { .. }), "{error}");
}
