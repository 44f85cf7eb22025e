//! A flush that fails and what it takes with it, where several ask for flushes of one device.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceOp, Env};
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use flaz_sim::{CrashPlan, EventStage};
use futures_util::future::join;

use crate::world::{STRIPE, STRIPES, World, contents};

const SHARDS: u32 = 4;
/// Seeds: what a failed flush leaves is drawn.
const SEEDS: u64 = 60;

/// The cleaners of all shards flush one origin. What one of them is told, the others are not.
#[test]
fn a_failed_flush_of_the_origin_is_no_success_for_another_shards_cleaner() {
    let mut failed = 0;
    for seed in 0..SEEDS {
        let world = World::shards(seed, Mode::WriteBack, SHARDS);
        world.sim.block_on(async {
            let live = world.open().await;
            for stripe in 0..STRIPES {
                live.write(stripe * STRIPE).await;
            }
            live.volume.flush().await.expect("flushes");
            world.origin.fail_nth(DeviceOp::Flush, 1);
            while live.dirty() > 0 {
                live.env.sleep(Duration::from_millis(50)).await;
            }
            failed += world.origin.stats().errors;
            for stripe in 0..STRIPES {
                let block = stripe * STRIPE;
                let stable = world.origin.peek_durable(block * 4096, 4096);
                let version = crate::world::version_of(block, &stable);
                assert_eq!(version, 1, "seed {seed}: block {block} counts as clean");
            }
        });
    }
    assert!(failed >= SEEDS, "only {failed} flushes failed");
}

/// A flush that fails takes with it what another client has written, and the system tells one of them.
#[test]
fn a_failed_flush_of_the_origin_is_no_success_for_another_client() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let world = World::new(seed, Mode::WriteThrough);
        let together = seed % 2 == 0;
        let durable = world.sim.block_on(async {
            let live = world.open().await;
            let other = live.volume.clone();
            live.write(1).await;
            world.origin.fail_nth(DeviceOp::Flush, 1);
            let (failed, flushed) = if together {
                join(other.flush(), live.volume.flush()).await
            } else {
                (other.flush().await, live.volume.flush().await)
            };
            failed.expect_err("it was told");
            if flushed.is_err() {
                live.volume.flush().await.expect("once");
                other.flush().await.expect("once");
                live.volume.clone().flush().await.expect("a new client");
            }
            flushed.is_ok()
        });
        let kept = world.origin.peek_durable(4096, 4096) == contents(1, 1);
        lost += u64::from(!kept);
        assert!(kept || !durable, "seed {seed}: it was durable");
    }
    assert!(lost > 5, "{lost} lost");
}

/// One shard closes a region, and the flush for its summary fails; another has a dirty block that had landed.
#[test]
fn a_failed_flush_of_the_cache_device_is_no_success_for_another_shard() {
    let mut failed = 0;
    for seed in 0..SEEDS {
        let world = World::shards(seed, Mode::WriteBack, 2);
        let durable = world.sim.block_on(async {
            let live = world.open().await;
            // The cleaner is at rest.
            live.env.sleep(Duration::from_millis(1)).await;
            live.write(STRIPE).await;
            world.cache.fail_nth(DeviceOp::Flush, 1);
            live.warm(0..200).await;
            while !live.failed() && live.dirty() > 0 {
                live.env.sleep(Duration::from_millis(1)).await;
            }
            failed += u64::from(live.failed());
            live.volume.flush().await.is_ok()
        });
        let cut = (
            world.cache.crash(&CrashPlan::Nothing),
            world.origin.crash(&CrashPlan::Nothing),
            world.host.memory(),
        );
        if durable {
            let next = world.boot(seed, cut);
            next.sim.block_on(async {
                // A cache that was given up may be refused, as long as nothing older is served.
                if let Ok(live) = next.try_open().await
                    && let Ok(version) = live.try_read(STRIPE).await
                {
                    assert_eq!(version, 1, "seed {seed}: it was durable");
                }
            });
        }
    }
    assert!(failed > SEEDS / 2, "only {failed} shards gave up");
}

/// A round of clearing waits for the cache device while the cache is given up: the mark that says so must stay.
#[test]
fn the_mark_of_a_cache_that_is_given_up_outlives_a_round_of_clearing() {
    let world = World::with_flushes_of(31, Mode::WriteThrough, Duration::from_millis(200));
    world.host.broken.set(true);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..512).await;
        live.env.sleep(crate::world::CLEARED).await;
        live.write(3).await;
        live.stored().await;
        let (cache, stage) = (world.cache.clone(), Rc::new(Cell::new(0)));
        let seen = Rc::clone(&stage);
        world.sim.set_observer(move |event| {
            let on_cache = event.disk == cache.number();
            let now = match (seen.get(), on_cache, event.op, event.stage) {
                (0, false, DeviceOp::Flush, EventStage::Completed) => 1,
                (1, true, DeviceOp::Flush, EventStage::Issued) => {
                    cache.mark_bad(0, 6 << 20);
                    2
                }
                (stage, ..) => stage,
            };
            seen.set(now);
        });
        while stage.get() < 2 {
            live.env.sleep(Duration::from_millis(1)).await;
        }
        for block in 16..32 {
            live.read(block).await;
        }
        assert!(live.failed());
        live.env.sleep(Duration::from_secs(2)).await;
        for block in 0..256 {
            live.write(block).await;
        }
        world.unwatch();
    });
    world.reboot(32).check();
}
