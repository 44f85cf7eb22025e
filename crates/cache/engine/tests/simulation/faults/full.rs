//! No space: on the cache device, in the queues.

use std::time::Duration;

use flaz_device::{Env, IoBuf};
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use futures_util::future::join_all;

use super::world::{BLOCK, BLOCKS, MODES, World};

/// Metadata and eight regions: a tenth of the blocks that are read.
const SMALL: u64 = (192 << 10) + 8 * (128 << 10);

#[test]
fn a_full_cache_makes_room_and_fails_nothing() {
    for mode in MODES {
        let world = World::sized(1, mode, SMALL);
        world.sim.block_on(async {
            let live = world.open().await;
            for turn in 0..3 {
                live.warm(0..BLOCKS).await;
                for block in (turn..BLOCKS).step_by(5) {
                    live.write(block).await;
                }
                live.check_all().await;
            }
            let stats = live.stats();
            assert!(stats.counts.regions_reclaimed > 20, "{mode}");
            assert!(stats.holdings.cached_blocks < BLOCKS / 2, "{mode}");
            assert_eq!(stats.counts.cache_errors, 0);
            live.stop().await.expect("stops in order");
        });
        world.check();
    }
}

/// Same-filled blocks take space only in the lists of extents and regions. When these are full, new ones are started.
#[test]
fn lists_of_blocks_that_are_full_fail_nothing() {
    for mode in [Mode::WriteThrough, Mode::WriteAround, Mode::WriteBack] {
        let world = World::new(3, mode);
        let value = |turn: u64, block: u64| ((turn * 7 + block) % 251) as u8;
        let last = world.sim.block_on(async {
            let live = world.open().await;
            let records = world.geometry.region_records_max() as u64;
            let turns = 6 * records / BLOCKS + 2;
            for turn in 0..turns {
                let writes = (0..BLOCKS).map(|block| {
                    let data = [IoBuf::copy_of(&[value(turn, block); BLOCK as usize])].into();
                    live.volume.write(block * BLOCK, data, false)
                });
                for outcome in join_all(writes).await {
                    outcome.expect("there is room");
                }
                live.stored().await;
                live.warm(0..BLOCKS).await;
            }
            let counts = live.stats().counts;
            assert!(counts.admitted_blocks > 4 * records, "{mode}: {counts:?}");
            assert_eq!(counts.codec_out_bytes, 0, "{mode}");
            turns - 1
        });
        let next = world.reboot(4);
        next.sim.block_on(async {
            let live = next.open().await;
            for block in 0..BLOCKS {
                let read = live
                    .volume
                    .read(block * BLOCK, BLOCK as u32)
                    .await
                    .expect("reads");
                assert!(
                    read[0].iter().all(|&byte| byte == value(last, block)),
                    "{mode}: block {block}"
                );
            }
            live.stop().await.expect("stops in order");
        });
    }
}

/// The device stalls for a while: blocks wait to be stored up to the limit, then data of reads is not stored, and writes
/// wait for space in the queue.
#[test]
fn full_queues_bypass_reads_and_hold_writes_up() {
    let world = World::new(2, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        for stripe in 0..8 {
            live.write(stripe * 256).await;
        }
        world.cache.stall(Duration::from_secs(5));
        let begun = live.env.now();
        let reads = (0..BLOCKS).map(|block| live.read(block));
        join_all(reads).await;
        assert!(
            live.env.now().since(begun) < Duration::from_secs(5),
            "reads waited for a place"
        );
        let writes = (0..BLOCKS).map(|block| live.write(block));
        join_all(writes).await;
        let stats = live.stats();
        assert!(stats.counts.refused_queue_full > 0, "nothing was full");
        assert!(stats.holdings.admission.peak <= flaz_engine::shard::JOBS_MAX as u64);
        assert!(!stats.holdings.cache_failed);
        live.check_all().await;
        live.volume.flush().await.expect("the origin is well");
        live.stop().await.expect("stops in order");
    });
    world.check();
}
