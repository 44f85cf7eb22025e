//! The cache device is absent, rolled back, or returns after a fence, with dirty blocks on it.

use flaz_device::{DeviceOp, Env};
use flaz_engine::cache::{CacheError, Start};
use flaz_engine::host_record::HostRecord;
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};

use super::world;
use crate::faults::world::{CLEARED, STRIPE, World};

#[test]
fn dirty_blocks_survive_the_absence_of_the_cache_device() {
    let world = world(1);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..32 {
            live.write(block).await;
        }
        live.stop().await.expect("stops in order");
    });
    world.cache.set_dead(true);
    let writes = world.origin.stats().writes;
    let error = world.sim.block_on(world.try_open()).err().expect("it is away");
    assert!(matches!(error, CacheError::Device(_)), "{error}");
    assert_eq!(world.origin.stats().writes, writes);
    world.cache.set_dead(false);
    world.sim.block_on(async {
        let live = world.serve().await;
        assert!(matches!(live.cache.start, Start::Warm(_)));
        assert_eq!(live.dirty(), 32);
        world.check_twice(&live).await;
    });
}

/// It vanishes with dirty blocks, and the origin is written to without it: when it returns, the dirty blocks are still
/// valid, and the clean ones are not trusted.
#[test]
fn only_dirty_blocks_are_kept_of_a_device_that_returns() {
    let world = world(2);
    world.sim.block_on(async {
        let live = world.serve().await;
        live.warm(STRIPE..STRIPE + 256).await;
        for block in 0..32 {
            live.write(block).await;
        }
        world.cache.set_dead(true);
        live.try_write(STRIPE).await.expect_err("it cannot be kept");
        for block in 0..32 {
            let error = live.try_read(block).await.expect_err("the origin has older ones");
            assert!(matches!(error, IoError::DirtyLost { .. }), "{error}");
            live.try_write(block)
                .await
                .expect_err("nothing newer may be on the origin");
        }
        assert!(live.failed());
        for block in STRIPE + 1..STRIPE + 64 {
            live.write(block).await;
            live.read(block).await;
        }
        live.stop().await.expect_err("it cannot be marked");
    });
    world.cache.set_dead(false);
    let next = world.reboot(3);
    next.sim.block_on(async {
        let live = next.serve().await;
        assert_eq!(live.cache.start, Start::Recovered);
        assert!(!live.is_cached(STRIPE + 100), "what is clean has missed writes");
        // Of the refused block, either version is valid.
        let version = live.try_read(STRIPE).await.expect("reads");
        assert!(version <= 1);
        if version == 1 {
            live.write(STRIPE).await;
        }
        next.check_twice(&live).await;
        live.cleaned().await;
        next.assert_origin_complete(&live);
    });
    next.reboot(4).check();
}

/// A cache device is fenced with dirty blocks, the cache is stopped, and the origin is changed without it: the dirty blocks
/// no longer fit the origin. Neither the superblock nor the intents show this, but the host record has the origin's
/// fingerprint at the stop.
#[test]
fn an_origin_changed_after_a_fenced_stop_is_refused() {
    for vanishes in [false, true] {
        let world = world(11);
        world.sim.block_on(async {
            let live = world.serve().await;
            live.warm(STRIPE..STRIPE + 64).await;
            for block in 40..56 {
                live.write(block).await;
            }
            world.cache.fail_nth(DeviceOp::Flush, 1);
            live.volume.flush().await.expect_err("it is not stable");
            world.cache.set_dead(vanishes);
            // Clients continue, also in stripes of the fingerprint.
            for block in [0, 1, STRIPE] {
                live.write(block).await;
            }
            live.stop().await.expect_err("it cannot be marked");
        });
        world.cache.set_dead(false);
        let origin = world.origin.peek(1024, 512);
        world.origin.poke(1024 + 52, b"mounted");
        for seed in [12, 13] {
            let next = world.reboot(seed);
            let error = next.sim.block_on(next.try_open()).err().expect("changed");
            let text = error.to_string();
            assert!(text.contains("changed since the cache was stopped"), "{text}");
            assert_eq!(next.origin.stats().writes, 0);
        }
        world.origin.poke(1024, &origin);
        let next = world.reboot(14);
        next.sim.block_on(async {
            let live = next.serve().await;
            assert_eq!(live.dirty(), 16);
            next.check_twice(&live).await;
        });
    }
}

/// The same when nothing is dirty any more, but the device does not have that yet and cannot be written: when it returns,
/// it has dirty blocks again.
#[test]
fn an_origin_changed_after_an_unmarked_stop_is_refused() {
    let world = world(15);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in 40..56 {
            live.write(block).await;
        }
        live.cleaned().await;
        world.cache.set_dead(true);
        for block in 40..56 {
            live.read(block).await;
        }
        for block in [0, 1, STRIPE] {
            live.write(block).await;
        }
        assert!(live.failed());
        assert_eq!(live.dirty(), 0);
        live.stop().await.expect_err("it cannot be marked");
    });
    world.cache.set_dead(false);
    world.origin.poke(1024 + 52, b"mounted");
    let next = world.reboot(16);
    let error = next.sim.block_on(next.try_open()).err().expect("changed");
    assert!(
        error.to_string().contains("changed since the cache was stopped"),
        "{error}"
    );
    assert_eq!(next.origin.stats().writes, 0);
}

/// The host compares the identity of the origin, and some disks have nothing to identify them: then the fingerprint
/// decides.
#[test]
fn a_dirty_cache_with_a_changed_origin_is_refused() {
    let world = world(17);
    world.sim.block_on(async {
        let live = world.serve().await;
        live.warm(STRIPE..STRIPE + 64).await;
        for block in 40..72 {
            live.write(block).await;
        }
        live.stop().await.expect("stops in order");
    });
    let other = World::new(18, Mode::WriteBack);
    other.origin.poke(1024, b"another one");
    let (cache, origin, memory) = world.now();
    let elsewhere = other.origin.snapshot();
    for (seed, memory) in [(19, memory), (20, None)] {
        // A retry must not succeed either.
        let mut found = (cache.clone(), elsewhere.clone(), memory);
        for _ in 0..2 {
            let next = world.boot(seed, found);
            let error = next.sim.block_on(next.try_open()).err().expect("another one");
            assert!(matches!(error, CacheError::OriginChanged { .. }), "{error}");
            assert_eq!(next.origin.stats().writes, 0);
            assert_eq!(next.on_origin(40), 0);
            found = next.now();
        }
        let (cache, _, memory) = found;
        let next = world.boot(seed, (cache, origin.clone(), memory));
        next.sim.block_on(async {
            let live = next.serve().await;
            assert_eq!(live.dirty(), 32);
            next.check_twice(&live).await;
            live.cleaned().await;
            next.assert_origin_complete(&live);
        });
    }
}

#[test]
fn a_rolled_back_device_with_dirty_blocks_is_refused() {
    let world = world(5);
    let old = world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..32 {
            live.write(block).await;
        }
        live.stop().await.expect("stops in order");
        let old = world.cache.snapshot();
        let live = world.serve().await;
        for block in 0..32 {
            live.write(block).await;
        }
        live.cleaned().await;
        live.stop().await.expect("stops in order");
        old
    });
    let next = world.boot(6, (old, world.origin.snapshot(), world.host.memory()));
    let error = next
        .sim
        .block_on(next.try_open())
        .err()
        .expect("newer ones are missing");
    assert!(matches!(error, CacheError::DirtyUnreadable { .. }), "{error}");
    assert!(error.to_string().contains("--discard-dirty"), "{error}");
    assert_eq!(next.origin.stats().writes, 0);
    // The device that is not rolled back still works.
    world.check();
}

/// Data that only the device has must be found again: a log with a gap is not usable. That applies all the more to a device
/// that was fenced, according to the host record.
#[test]
fn a_cache_whose_log_lost_what_was_stable_is_refused() {
    for given_up in [false, true] {
        refused_with_a_hole(given_up);
    }
}

fn refused_with_a_hole(given_up: bool) {
    let world = world(7);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..32 {
            live.write(block).await;
        }
        // An intent is written, and with it the mark of the log.
        live.cleaned().await;
        world.switch(&live, Mode::WriteThrough);
        live.write(STRIPE).await;
        live.stored().await;
        world.switch(&live, Mode::WriteBack);
        live.env.sleep(CLEARED).await;
        live.write(1).await;
    });
    world.cache.poke(world.geometry.data_offset(), &[0; 4096]);
    let mut next = world.reboot(8);
    if given_up {
        let (cache, origin, memory) = next.now();
        let lost = |memory: HostRecord| HostRecord {
            fenced: true,
            ..memory
        };
        next = next.boot(9, (cache, origin, memory.map(lost)));
    }
    // A retry must not succeed either.
    for _ in 0..2 {
        let outcome = next.sim.block_on(next.try_open());
        let error = outcome.err().expect("part of the log is gone");
        assert!(matches!(error, CacheError::DirtyUnreadable { .. }), "{error}");
        next = next.reboot(10);
    }
}

/// Only the new mode is write-back: according to the superblock, nothing is dirty. A start must not be refused with a
/// request to discard writes that never existed.
#[test]
fn a_clean_log_with_a_hole_starts_cold_in_write_back() {
    let mut world = World::new(42, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..16).await;
        live.env.sleep(CLEARED).await;
        live.write(STRIPE).await;
        live.stored().await;
        live.env.sleep(CLEARED).await;
        live.write(1).await;
    });
    // All of the first extent: its header has a copy.
    let extent = vec![0; world.geometry.extent_bytes as usize];
    world.cache.poke(world.geometry.data_offset(), &extent);
    world.mode = Mode::WriteBack;
    let next = world.reboot(43);
    let start = next.sim.block_on(async {
        let live = next.open().await;
        live.write(2).await;
        live.check_all().await;
        assert!(live.cache.superblock().dirty);
        live.cache.start
    });
    assert_eq!(start, Start::Cold);
}

#[test]
fn dirty_blocks_survive_a_stop_and_a_change_of_mode() {
    for mode in [Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough] {
        let mut world = world(9);
        world.sim.block_on(async {
            let live = world.serve().await;
            for block in 0..32 {
                live.write(block).await;
            }
            live.stop().await.expect("stops in order");
        });
        world.mode = mode;
        world.sim.block_on(async {
            let live = world.serve().await;
            assert_eq!(live.dirty(), 32, "{mode}");
            for block in (0..64).step_by(3) {
                live.write(block).await;
            }
            live.check_all().await;
            live.cleaned().await;
            world.assert_origin_complete(&live);
        });
        world.reboot(10).check();
    }
}
