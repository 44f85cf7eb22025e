//! The origin fails, disappears, and returns.

use flaz_device::{DeviceOp, Env};
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};

use super::world::{BLOCK, CLEARED, Live, MODES, STRIPE, World, contents};

#[test]
fn a_missing_origin_fails_misses_and_writes_but_not_hits() {
    for mode in MODES {
        let world = World::new(1, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.write(5).await;
            live.warm(0..256).await;
            live.env.sleep(CLEARED).await;
            world.origin.set_dead(true);
            for block in 0..256 {
                live.read(block).await;
            }
            for block in STRIPE..STRIPE + 8 {
                let error = live.try_read(block).await.expect_err("nobody has it");
                assert!(matches!(error, IoError::Origin(_)), "{error}");
            }
            live.try_write(7).await.expect_err("the origin is gone");
            live.volume.flush().await.expect_err("the origin is gone");
            // It is unknown whether the origin has the old or the new block 7: the copy in the cache may be wrong.
            live.try_read(7).await.expect_err("not from the cache");
            live.read(8).await;
            assert!(!live.failed(), "{mode}: the cache is well");
            world.origin.set_dead(false);
            live.check_all().await;
            for block in 0..16 {
                live.write(block).await;
            }
            live.check_all().await;
            live.volume.flush().await.expect("the origin is back");
            live.stop().await.expect("stops in order");
        });
        world.check();
    }
}

#[test]
fn each_origin_write_failed_once_reads_consistently() {
    for mode in MODES {
        for nth in 1..=24 {
            let world = World::new(nth, mode);
            let (block, seen) = world.sim.block_on(async {
                let live = world.open().await;
                live.warm(0..64).await;
                world.origin.fail_nth(DeviceOp::Write, nth);
                let mut failed = None;
                for block in 0..24 {
                    if live.try_write(block).await.is_err() {
                        assert_eq!(failed.replace(block), None, "one failed");
                    }
                }
                let block = failed.expect("one failed");
                let seen = raw(&live, block).await;
                let (old, new) = (contents(block, 0), contents(block, 1));
                for at in (0..BLOCK as usize).step_by(512) {
                    let sector = at..at + 512;
                    assert!(
                        seen[sector.clone()] == old[sector.clone()] || seen[sector.clone()] == new[sector],
                        "{mode}: sector at {at} of block {block} is neither old nor new"
                    );
                }
                live.stored().await;
                assert!(raw(&live, block).await == seen, "{mode}, {nth}");
                live.volume.flush().await.expect("flushes");
                for other in (0..64).filter(|&other| other != block) {
                    live.read(other).await;
                }
                (block, seen)
            });
            let next = world.reboot(nth);
            next.sim.block_on(async {
                let live = next.open().await;
                assert!(raw(&live, block).await == seen, "{mode}, {nth}: after a crash");
            });
        }
    }
}

/// A block with any contents.
async fn raw(live: &Live, block: u64) -> Vec<u8> {
    live.volume
        .read(block * BLOCK, BLOCK as u32)
        .await
        .expect("reads")[0]
        .to_vec()
}

#[test]
fn each_read_of_the_origin_failed_once_fails_its_readers_alone() {
    let world = World::new(2, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        for block in 0..100 {
            if block % 10 == 3 {
                world.origin.fail_nth(DeviceOp::Read, 1);
                live.try_read(block).await.expect_err("the origin failed");
                assert!(!live.is_cached(block));
            }
            live.read(block).await;
        }
        assert_eq!(live.stats().counts.origin_errors, 10);
    });
}

#[test]
fn a_start_without_a_readable_origin_is_refused() {
    let world = World::new(3, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..64).await;
        live.stop().await.expect("stops in order");
        world.origin.set_dead(true);
        let error = world
            .try_open()
            .await
            .err()
            .expect("its fingerprint cannot be read");
        assert!(error.to_string().starts_with("origin:"), "{error}");
        world.origin.set_dead(false);
        let live = world.open().await;
        assert!(
            matches!(live.cache.start, flaz_engine::cache::Start::Warm(_)),
            "nothing was marked"
        );
    });
}
