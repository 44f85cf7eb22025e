//! A device that stops answering: the cache is bypassed after its deadline, the origin is waited for.

use std::time::Duration;

use flaz_device::Env;
use flaz_engine::cache::Start;
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use futures_util::future::{join, join_all};

use crate::world::{CLEARED, MODES, STRIPE, TIMEOUT, TIMEOUT_MOST, World};

const LONG: Duration = Duration::from_secs(600);

#[test]
fn reads_go_to_the_origin_when_the_cache_device_does_not_answer() {
    for mode in MODES {
        let world = World::new(1, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..256).await;
            // Only what has left memory must be read from the device.
            world.cache.stall(LONG);
            let begun = live.env.now();
            live.read(0).await;
            let took = live.env.now().since(begun);
            assert!(took >= TIMEOUT && took < TIMEOUT_MOST, "{mode}: {took:?}");
            assert!(live.failed(), "{mode}");
            // From now on nobody waits for it.
            let begun = live.env.now();
            live.check_all().await;
            assert!(live.env.now().since(begun) < TIMEOUT, "{mode}");
        });
    }
}

#[test]
fn many_readers_wait_for_a_stalled_cache_device_no_longer_than_one() {
    let world = World::new(2, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..512).await;
        world.cache.stall(LONG);
        let begun = live.env.now();
        join_all((0..256).map(|block| live.read(block))).await;
        assert!(live.env.now().since(begun) < TIMEOUT_MOST);
    });
}

/// A write that waits for its intent goes on when the host has noted that the cache is lost, although the device takes
/// no mark; and what the device holds is not believed by any later start.
#[test]
fn a_write_goes_on_when_its_intent_stalls_and_the_copy_is_never_believed_again() {
    for mode in MODES {
        let world = World::new(3, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..512).await;
            live.env.sleep(CLEARED).await;
            world.cache.stall(LONG);
            let begun = live.env.now();
            live.write(7).await;
            live.write(STRIPE + 9).await;
            let took = live.env.now().since(begun);
            assert!(took < TIMEOUT_MOST, "{mode}: a write waited for {took:?}");
            assert_eq!(world.host.noted_lost.get(), 1, "{mode}: noted before the write");
            live.check_all().await;
        });
        // The machine goes down before the device has answered anything, and the device is well again.
        let next = world.reboot(4);
        let start = next.sim.block_on(async { next.open().await.cache.start });
        assert_eq!(start, Start::Cold, "{mode}");
        let next = world.reboot(5);
        next.check();
    }
}

/// Without a host that remembers, writers wait for the device to be marked, or for the tries to end.
#[test]
fn a_write_waits_for_the_mark_on_the_device_when_the_host_cannot_remember() {
    let world = World::new(6, Mode::WriteThrough);
    world.host.broken.set(true);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..512).await;
        live.env.sleep(CLEARED).await;
        // Long enough for one operation to fail, short enough for the mark to get through.
        world.cache.stall(Duration::from_secs(15));
        let begun = live.env.now();
        live.write(7).await;
        assert!(live.env.now().since(begun) > TIMEOUT);
        assert!(live.failed());
    });
    let next = world.reboot(7);
    let stats = next.check();
    assert!(stats.counts.hit_blocks > 0, "the second reading hits");
    let next = world.reboot(7);
    let cached = next
        .sim
        .block_on(async { next.open().await.stats().holdings.cached_blocks });
    assert_eq!(cached, 0, "every stripe was marked as out of date");
}

#[test]
fn tries_to_mark_a_stalled_cache_device_are_bounded() {
    let world = World::new(8, Mode::WriteThrough);
    world.host.broken.set(true);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..64).await;
        live.env.sleep(CLEARED).await;
        world.cache.stall(LONG);
        let begun = live.env.now();
        live.write(7).await;
        // The intent, then three tries to mark it.
        assert!(live.env.now().since(begun) < TIMEOUT_MOST * 5);
        live.check_all().await;
    });
}

/// What was on its way when the device was given up lands late: it must not undo the mark that came after it.
#[test]
fn a_late_write_does_not_undo_the_mark_of_a_cache_that_was_given_up() {
    for seed in 0..10 {
        let world = World::new(100 + seed, Mode::WriteThrough);
        world.host.broken.set(true);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..512).await;
            live.write(3).await;
            // A round of clearing, an intent and an extent are in flight when the device stalls, at some moment.
            live.env.sleep(Duration::from_millis(4_990 + seed * 4)).await;
            world.cache.stall(Duration::from_secs(18));
            join(live.write(STRIPE + 1), live.write(2 * STRIPE + 1)).await;
            live.write(3).await;
            live.env.sleep(Duration::from_secs(60)).await;
            live.write(4).await;
        });
        world.reboot(9).check();
    }
}

#[test]
fn a_stalled_origin_is_back_pressure_and_hits_are_still_served() {
    for mode in MODES {
        let world = World::new(10, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..512).await;
            world.origin.stall(Duration::from_secs(120));
            let begun = live.env.now();
            let misses = join_all((600..1400).map(|block| live.read(block)));
            let writes = join_all((1500..1900).map(|block| live.write(block)));
            let hits = async {
                for block in 0..512 {
                    live.read(block).await;
                }
                assert!(
                    live.env.now().since(begun) < Duration::from_secs(10),
                    "{mode}: hits waited for the origin"
                );
                assert!(!live.failed(), "{mode}: the cache is well");
            };
            join(hits, join(misses, writes)).await;
            let took = live.env.now().since(begun);
            assert!(took >= Duration::from_secs(119), "{mode}: {took:?}");
            assert!(
                took < Duration::from_secs(180),
                "{mode}: everything resumes when the origin is back, after {took:?}"
            );
            let stats = live.stats();
            assert_eq!(stats.counts.origin_errors, 0);
            assert!(!stats.holdings.cache_failed);
            live.check_all().await;
            live.volume.flush().await.expect("the origin is well");
            live.stop().await.expect("stops in order");
        });
    }
}

/// Intents are cleared by rounds that flush the origin: a flush that takes minutes holds up the rounds and nothing else.
#[test]
fn a_stalled_flush_of_the_origin_holds_up_no_hit_and_no_stop_for_ever() {
    let world = World::new(11, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..256).await;
        live.write(1).await;
        live.env.sleep(Duration::from_secs(9)).await;
        world.origin.stall(Duration::from_secs(100));
        live.env.sleep(Duration::from_secs(10)).await;
        for block in 0..256 {
            live.read(block).await;
        }
        live.stop().await.expect("stops when the origin is back");
    });
    assert!(matches!(
        world.sim.block_on(async { world.open().await.cache.start }),
        Start::Warm(_)
    ));
}
