//! The origin fails, disappears, stalls and returns, with dirty blocks in the cache.

use std::time::Duration;

use flaz_device::{DeviceOp, Env, IoBuf};
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};
use futures_util::future::{join, join_all};

use super::world;
use crate::faults::world::{BLOCK, BLOCKS, STRIPE};

/// Without a request: no limit is reached, nothing is flushed.
#[test]
fn the_cleaner_begins_by_itself() {
    let world = world(1);
    world.sim.block_on(async {
        let live = world.serve().await;
        for turn in 1..4 {
            for block in 0..8 {
                live.write(block).await;
            }
            assert_eq!(live.dirty(), 8);
            assert_eq!(world.on_origin(3), turn - 1, "it lets writes gather");
            live.env.sleep(Duration::from_secs(10)).await;
            assert_eq!((live.dirty(), world.on_origin(3)), (0, turn));
        }
    });
}

#[test]
fn a_missing_origin_throttles_writers_until_it_returns() {
    let world = world(2);
    world.sim.block_on(async {
        let live = world.serve().await;
        live.warm(0..64).await;
        live.volume.flush().await.expect("all is well");
        for block in 0..32 {
            live.write(block).await;
        }
        world.origin.set_dead(true);
        live.env.sleep(Duration::from_secs(30)).await;
        assert_eq!(live.dirty(), 32, "dirty blocks are kept");
        for block in 0..64 {
            live.read(block).await;
        }
        assert!(matches!(
            live.try_read(STRIPE).await.expect_err("nobody has it"),
            IoError::Origin(_)
        ));
        // Up to the limit writes are acknowledged, then they wait for the writeback worker, but not indefinitely.
        let mut block = 0;
        let begun = loop {
            let begun = live.env.now();
            match live.try_write(block % BLOCKS).await {
                Ok(_) => assert!(live.env.now().since(begun) < Duration::from_secs(1)),
                Err(error) => {
                    assert!(matches!(error, IoError::CacheFailed(_)), "{error}");
                    break begun;
                }
            }
            block += 1;
            assert!(block < BLOCKS, "there is no limit");
        };
        let took = live.env.now().since(begun);
        assert!(
            took >= Duration::from_secs(10) && took < Duration::from_secs(20),
            "{took:?}"
        );
        assert!(block > 300 && !live.failed());
        let tries = world.origin.stats().errors;
        assert!(tries < 20_000, "{tries} tries in a minute");
        live.volume.flush().await.expect("the cache device has it all");
        for block in 0..block {
            live.read(block).await;
        }
        world.origin.set_dead(false);
        for other in 0..16 {
            live.write(block + other).await;
        }
        live.cleaned().await;
        world.assert_origin_complete(&live);
        world.check_twice(&live).await;
        live.stop().await.expect("stops in order");
    });
    world.check();
}

#[test]
fn cleaning_everything_fails_while_the_origin_is_gone() {
    let world = world(3);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..8 {
            live.write(block).await;
        }
        world.origin.set_dead(true);
        let error = live
            .cache
            .clean_all()
            .await
            .expect_err("nothing is on the origin");
        assert!(matches!(error, IoError::CacheFailed(_)), "{error}");
        assert_eq!(live.dirty(), 8);
        world.origin.set_dead(false);
        live.cache.clean_all().await.expect("it is back");
        assert_eq!(live.dirty(), 0);
        world.assert_origin_complete(&live);
    });
}

/// Dirty blocks stay in place during a stop without an origin, and during a start with one.
#[test]
fn a_stop_without_an_origin_keeps_dirty_blocks() {
    let world = world(4);
    let dirty = world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..200 {
            live.write(block).await;
        }
        world.origin.set_dead(true);
        live.env.sleep(Duration::from_secs(20)).await;
        let dirty = live.dirty();
        live.stop().await.expect_err("the origin cannot be flushed");
        dirty
    });
    world.origin.set_dead(false);
    let next = world.reboot(5);
    next.sim.block_on(async {
        let live = next.serve().await;
        // The worker may have begun.
        assert_eq!(live.dirty() + live.cache.stats().counts.cleaned_blocks, dirty);
        assert!(dirty > 190);
        next.check_twice(&live).await;
        live.cache.clean_all().await.expect("the origin is back");
        next.assert_origin_complete(&live);
    });
}

#[test]
fn each_origin_write_failed_once_is_retried_by_writeback() {
    for nth in 1..=12 {
        let world = world(nth);
        world.sim.block_on(async {
            let live = world.serve().await;
            for block in (0..48).step_by(2) {
                live.write(block).await;
            }
            world.origin.fail_nth(DeviceOp::Write, nth);
            live.env.sleep(Duration::from_secs(15)).await;
            assert_eq!(world.origin.stats().errors, 1, "write {nth} did not fail");
            assert_eq!(live.dirty(), 0);
            world.assert_origin_complete(&live);
            live.volume.flush().await.expect("nothing is lost");
        });
    }
}

#[test]
fn a_stalled_origin_throttles_at_the_dirty_limit() {
    let world = world(6);
    world.sim.block_on(async {
        let live = world.serve().await;
        live.warm(0..32).await;
        world.origin.stall(Duration::from_secs(60));
        let begun = live.env.now();
        join_all((0..1200).map(|block| live.write(block))).await;
        let took = live.env.now().since(begun);
        assert!(
            took >= Duration::from_secs(55) && took < Duration::from_secs(90),
            "{took:?}"
        );
        assert!(live.stats().counts.dirty_waits > 0);
        live.cleaned().await;
        world.assert_origin_complete(&live);
        world.check_twice(&live).await;
        live.stop().await.expect("stops in order");
    });
    world.check();
}

/// A failed FUA write may have failed in its flush, which may also have lost writes of the worker. Even so, a client that
/// retries such a write repeatedly must not stop the worker.
#[test]
fn failing_fua_writes_do_not_stop_writeback() {
    let world = world(8);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..32 {
            live.write(block).await;
        }
        world.switch(&live, Mode::WriteThrough);
        // The sector cannot be read, so it cannot be written partially.
        let bad = 5 * STRIPE * BLOCK;
        world.origin.mark_bad(bad, 512);
        let begun = live.env.now();
        let over = || live.dirty() == 0 || live.env.now().since(begun) > Duration::from_secs(30);
        let writer = || async {
            let mut failed = 0;
            while !over() {
                let data = [IoBuf::copy_of(&[7; 20])].into();
                let error = live.volume.write(bad + 100, data, true).await.expect_err("bad");
                assert!(matches!(error, IoError::Origin(_)), "{error}");
                failed += 1;
            }
            failed
        };
        let (failed, _) = join(writer(), writer()).await;
        assert!(failed > 100, "{failed} writes failed");
        assert_eq!(live.dirty(), 0);
        world.assert_origin_complete(&live);
        // A whole write makes it readable again.
        live.write(5 * STRIPE).await;
        live.stop().await.expect("stops in order");
    });
    world.check();
}
