//! A cache that was in write-back, and no longer is: when it stops being marked as dirty.

use std::time::Duration;

use flaz_device::{Env, IoBuf};
use flaz_engine::cache::{CacheError, Start, read_superblock};
use flaz_engine::format::geometry::{SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use futures_util::future::join;

use super::world;
use crate::faults::world::{BLOCK, Live, World, contents};

/// Whether the superblock on the device says that blocks may be dirty.
async fn is_marked(world: &World) -> bool {
    let superblock = read_superblock(&world.cache).await;
    superblock.expect("it is valid").dirty
}

/// Writes blocks in write-back, and then writes them to the origin in write-through.
async fn written_back(world: &World) -> Live {
    let live = world.serve().await;
    for block in 0..64 {
        live.write(block).await;
    }
    live.volume.flush().await.expect("flushes");
    world.switch(&live, Mode::WriteThrough);
    live.cache.clean_all().await.expect("the origin is well");
    live
}

/// Damages all of the cache device but the superblocks, kills the process and opens the cache in write-through.
fn open_damaged(world: &World) -> (World, Result<Start, CacheError>) {
    let from = SUPERBLOCK_SLOTS[1] + SUPERBLOCK_BYTES as u64;
    let zeroes = vec![0; (world.geometry.end() - from) as usize];
    world.cache.poke(from, &zeroes);
    let mut next = world.reboot(2);
    next.mode = Mode::WriteThrough;
    let opened = next
        .sim
        .block_on(async { next.try_open().await.map(|live| live.cache.start) });
    (next, opened)
}

/// The origin is complete, so the contents of the cache are not needed.
#[test]
fn damage_after_a_withdrawal_refuses_no_start() {
    for withdrawn in [false, true] {
        let world = world(1);
        world.sim.block_on(async {
            let mut live = written_back(&world).await;
            if withdrawn {
                assert!(
                    live.cache
                        .withdraw_write_back()
                        .await
                        .expect("the device is well")
                );
            }
            assert_eq!(is_marked(&world).await, !withdrawn);
            let memory = world.host.memory().expect("it is recorded");
            assert_eq!(memory.dirty, !withdrawn);
        });
        let (next, opened) = open_damaged(&world);
        match withdrawn {
            true => assert_eq!(opened.expect("nothing is dirty"), Start::Cold),
            false => {
                let refused = opened.expect_err("blocks may be dirty");
                assert!(matches!(refused, CacheError::DirtyUnreadable { .. }), "{refused}");
                continue;
            }
        }
        next.check();
    }
}

#[test]
fn a_cache_with_dirty_blocks_stays_marked() {
    let world = world(1);
    world.sim.block_on(async {
        let mut live = world.serve().await;
        live.write(7).await;
        world.switch(&live, Mode::WriteThrough);
        assert!(
            !live
                .cache
                .withdraw_write_back()
                .await
                .expect("the device is well")
        );
        assert!(is_marked(&world).await);
        live.cache.clean_all().await.expect("the origin is well");
        assert!(
            live.cache
                .withdraw_write_back()
                .await
                .expect("the device is well")
        );
        assert!(!is_marked(&world).await);
        // It is marked again before a block is dirty again.
        live.cache.permit_write_back().await.expect("the device is well");
        world.switch(&live, Mode::WriteBack);
        assert!(is_marked(&world).await);
        live.write(7).await;
        assert!(live.dirty() > 0);
    });
    let next = world.reboot(2);
    next.check();
}

/// It entered in write-back and waits for the origin, before it leaves a dirty block.
#[test]
fn a_cache_with_a_write_in_flight_stays_marked() {
    let world = world(1);
    world.sim.block_on(async {
        let mut live = world.serve().await;
        world.origin.stall(Duration::from_millis(500));
        let (env, volume) = (live.env.clone(), live.volume.clone());
        let part = [IoBuf::copy_of(&contents(7, 0)[..512])].into();
        let write = async { volume.write(7 * BLOCK, part, false).await.expect("writes") };
        let withdraw = async {
            env.sleep(Duration::from_millis(1)).await;
            world.switch(&live, Mode::WriteThrough);
            assert_eq!(live.dirty(), 0, "not yet");
            let withdrawn = live.cache.withdraw_write_back().await;
            assert!(!withdrawn.expect("the device is well"));
        };
        join(write, withdraw).await;
        assert!(live.dirty() > 0 && is_marked(&world).await);
    });
}
