//! A device stops responding: the cache is bypassed after its deadline, the origin is waited for.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceOp, Env};
use flaz_engine::cache::Start;
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use flaz_sim::{EventStage, FaultRates};
use futures_util::future::{join, join_all};

use super::world::{CLEARED, MODES, STRIPE, TIMEOUT, TIMEOUT_MOST, World};

const LONG: Duration = Duration::from_secs(600);
/// A block of a stripe outside the origin's fingerprint: without host records, the intents of the others stay set.
const UNWATCHED: u64 = STRIPE + 3;

#[test]
fn reads_go_to_the_origin_when_the_cache_device_does_not_answer() {
    for mode in MODES {
        let world = World::new(1, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..256).await;
            // Only blocks that are no longer in memory have to be read from the device.
            world.cache.stall(LONG);
            let begun = live.env.now();
            live.read(0).await;
            let took = live.env.now().since(begun);
            assert!(took >= TIMEOUT && took < TIMEOUT_MOST, "{mode}: {took:?}");
            assert!(live.failed(), "{mode}");
            // From now on no request waits for it.
            let begun = live.env.now();
            live.check_all().await;
            assert!(live.env.now().since(begun) < TIMEOUT, "{mode}");
        });
    }
}

#[test]
fn many_readers_share_one_wait_for_a_stalled_device() {
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

/// A write that waits for its intent continues when the host has recorded the fence, although the device does not take the
/// mark; and no later start trusts the device's contents.
#[test]
fn a_write_continues_past_a_stalled_intent() {
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
            // The intent, and one second for the device to take the mark.
            assert!(
                took < TIMEOUT_MOST + Duration::from_secs(2),
                "{mode}: a write waited for {took:?}"
            );
            assert_eq!(world.host.noted_fenced.get(), 1, "{mode}: noted before the write");
            live.check_all().await;
        });
        // The machine goes down before the device has completed any operation, and the device works again.
        let next = world.reboot(4);
        let start = next.sim.block_on(async { next.open().await.cache.start });
        assert_eq!(start, Start::Cold, "{mode}");
        let next = world.reboot(5);
        next.check();
    }
}

/// Without host records, writers wait until the device is marked or the attempts end.
#[test]
fn a_write_waits_for_the_fence_mark_without_a_host_record() {
    let world = World::new(6, Mode::WriteThrough);
    world.host.broken.set(true);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..512).await;
        live.env.sleep(CLEARED).await;
        // Long enough for one operation to time out, short enough for the mark to succeed.
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
        // The intent, then three attempts to write the mark.
        assert!(live.env.now().since(begun) < TIMEOUT_MOST * 5);
        live.check_all().await;
    });
}

/// A round of clearing is writing clear bits when the device stalls; the fence mark, with all bits set, follows. The two
/// must end in the order of their issue, or the mark would be overwritten.
#[test]
fn a_late_write_does_not_undo_the_fence_mark() {
    for seed in 0..20 {
        let world = World::new(100 + seed, Mode::WriteThrough);
        world.host.broken.set(true);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..512).await;
            live.env.sleep(CLEARED).await;
            live.write(UNWATCHED).await;
            live.stored().await;
            // The log is stable, and the round is about to write its page.
            let (cache, armed) = (world.cache.clone(), Cell::new(true));
            let origin_flushed = Cell::new(false);
            world.sim.set_observer(move |event| {
                if event.stage != EventStage::Completed || event.op != DeviceOp::Flush {
                    return;
                }
                if event.disk != cache.number() {
                    origin_flushed.set(true);
                } else if origin_flushed.get() && armed.replace(false) {
                    cache.stall(Duration::from_secs(18));
                }
            });
            live.env.sleep(Duration::from_secs(60)).await;
            assert!(live.failed(), "seed {seed}: the page was not written in time");
            for block in [UNWATCHED, UNWATCHED + 1, UNWATCHED + STRIPE] {
                live.write(block).await;
            }
            world.unwatch();
        });
        world.reboot(9).check();
    }
}

/// The same with a page that is slow, not late: the cache is fenced for another reason in the meantime.
#[test]
fn the_fence_mark_waits_for_an_intent_page_in_flight() {
    let world = World::new(20, Mode::WriteThrough);
    world.host.broken.set(true);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..512).await;
        live.env.sleep(CLEARED).await;
        live.write(UNWATCHED).await;
        live.stored().await;
        let (cache, stage) = (world.cache.clone(), Rc::new(Cell::new(0)));
        let (geometry, seen) = (world.geometry, Rc::clone(&stage));
        world.sim.set_observer(move |event| {
            let on_cache = event.disk == cache.number();
            let now = match (seen.get(), on_cache, event.op, event.stage) {
                (0, false, DeviceOp::Flush, EventStage::Completed) => 1,
                // The mark of the log is written to the manifest, then the bit is cleared.
                (1, true, DeviceOp::Write, EventStage::Completed)
                    if event.offset < geometry.intent_offset() =>
                {
                    cache.stall(Duration::from_secs(5));
                    2
                }
                (2, true, DeviceOp::Write, EventStage::Issued) => {
                    assert_eq!(event.offset, geometry.intent_offset());
                    // This page is slow; later operations are not, and reads fail.
                    cache.stall(Duration::ZERO);
                    cache.set_faults(FaultRates {
                        read_error_ppm: 1_000_000,
                        ..FaultRates::default()
                    });
                    3
                }
                (stage, ..) => stage,
            };
            seen.set(now);
        });
        while stage.get() < 3 {
            live.env.sleep(Duration::from_millis(10)).await;
        }
        for block in UNWATCHED + 1..UNWATCHED + 16 {
            live.read(block).await;
        }
        assert!(live.failed());
        live.write(UNWATCHED).await;
        live.env.sleep(Duration::from_secs(10)).await;
        live.write(UNWATCHED + 1).await;
        world.unwatch();
    });
    world.reboot(21).check();
}

/// Dirty blocks have no other copy, so the cache cannot be bypassed.
#[test]
fn a_stalled_cache_device_is_back_pressure_in_write_back() {
    let world = World::new(22, Mode::WriteBack);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..256).await;
        for block in 0..64 {
            live.write(block).await;
        }
        world.cache.stall(Duration::from_secs(120));
        let begun = live.env.now();
        let reads = join_all((0..256).map(|block| live.read(block)));
        let writes = join_all((300..400).map(|block| live.write(block)));
        join(reads, writes).await;
        let took = live.env.now().since(begun);
        assert!(took >= Duration::from_secs(119), "{took:?}");
        assert!(
            took < Duration::from_secs(180),
            "everything resumes, after {took:?}"
        );
        assert!(!live.failed());
        live.volume.flush().await.expect("the device is back");
        live.check_all().await;
        live.stop().await.expect("stops in order");
    });
    world.check();
}

/// The origin of a write-back cache is absent: dirty blocks stay in the cache until it is back.
#[test]
fn a_stalled_origin_keeps_dirty_blocks_in_the_cache() {
    let world = World::new(23, Mode::WriteBack);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..256).await;
        world.origin.stall(Duration::from_secs(60));
        let begun = live.env.now();
        for block in 0..256 {
            live.write(block).await;
            live.read(block).await;
        }
        assert!(
            live.env.now().since(begun) < Duration::from_secs(10),
            "writes waited for the origin"
        );
        live.cache.clean_all().await.expect("when the origin is back");
        live.check_all().await;
        live.stop().await.expect("stops in order");
    });
    world.check();
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

/// Rounds of clearing flush the origin: a flush that takes minutes delays only the rounds.
#[test]
fn a_stalled_origin_flush_delays_no_hit_and_bounds_a_stop() {
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
