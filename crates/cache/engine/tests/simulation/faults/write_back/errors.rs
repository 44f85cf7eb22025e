//! Failed operations of the cache device, and failed flushes of both devices, with dirty blocks in the cache.

use std::time::Duration;

use flaz_device::{DeviceOp, Env, IoBuf};
use flaz_engine::cache::read_superblock;
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};
use flaz_sim::{CrashPlan, DiskConfig};
use futures_util::future::{join, join_all};

use super::world;
use crate::faults::world::{BLOCK, BLOCKS, CACHE_LEN, CLEARED, Live, STRIPE, World, contents};

const NO_SPACE: i32 = 28;
const IO: i32 = 5;

#[test]
fn a_failed_cache_flush_fails_later_flushes_and_keeps_dirty() {
    let world = world(1);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..16 {
            live.write(block).await;
        }
        world.cache.fail_nth(DeviceOp::Flush, 1);
        let flushes = world.cache.stats().flushes;
        let error = live.volume.flush().await.expect_err("it is not stable");
        assert!(matches!(error, IoError::CacheFailed(_)), "{error}");
        assert!(live.failed());
        live.volume.flush().await.expect_err("nor is it later");
        live.try_write_fua(0, true)
            .await
            .expect_err("nor is anything new");
        live.env.sleep(CLEARED).await;
        assert_eq!(live.dirty(), 16, "dirty blocks are kept");
        assert!(
            world.cache.stats().flushes <= flushes + 4,
            "but for the mark that the cache is out of date the device is not asked again"
        );
        assert_eq!(world.origin.stats().writes, 0, "nothing of them is on the origin");
        live.write(STRIPE).await;
        live.stop().await.expect_err("it is not stopped in order");
    });
    let next = world.reboot(2);
    next.sim.block_on(async {
        let live = next.serve().await;
        assert_eq!(live.dirty(), 16, "what was not dirty is dropped");
        next.check_twice(&live).await;
        live.cleaned().await;
        next.assert_origin_complete(&live);
    });
}

/// Losing the cache device loses no data: everything is on the origin, and a flush may succeed.
#[test]
fn a_cache_device_that_dies_when_all_is_clean_fails_no_flush() {
    let world = world(3);
    world.sim.block_on(async {
        let live = world.serve().await;
        live.warm(0..64).await;
        for block in 0..16 {
            live.write(block).await;
        }
        live.cleaned().await;
        world.cache.set_dead(true);
        // The write during which the failure was noticed is refused; others bypass the device.
        live.try_write(STRIPE).await.expect_err("it cannot be kept");
        assert!(live.failed());
        for block in 8..24 {
            live.write(STRIPE + block).await;
        }
        for block in (0..64).chain(STRIPE + 8..STRIPE + 24) {
            live.read(block).await;
        }
        live.volume.flush().await.expect("the origin has everything");
    });
}

#[test]
fn a_failed_origin_flush_in_writeback_keeps_blocks_dirty() {
    let world = world(4);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..16 {
            live.write(block).await;
        }
        world.origin.fail_nth(DeviceOp::Flush, 1);
        while world.origin.stats().errors == 0 {
            live.env.sleep(Duration::from_millis(10)).await;
        }
        live.env.sleep(Duration::from_millis(10)).await;
        let written = world.origin.stats().writes;
        assert_eq!(live.dirty(), 16);
        live.volume.flush().await.expect_err("passed on to who asks next");
        live.cleaned().await;
        assert!(world.origin.stats().writes >= 2 * written, "not written again");
        live.volume.flush().await.expect("once");
    });
    let cut = (
        world.cache.crash(&CrashPlan::Nothing),
        world.origin.crash(&CrashPlan::Nothing),
        world.host.memory(),
    );
    let next = world.boot(5, cut);
    next.sim.block_on(async {
        let live = next.serve().await;
        next.check_twice(&live).await;
    });
}

/// Requests that cause every kind of write: extents, summaries, void marks, intents; `width` at a time. Adds failed writes
/// to `doubtful`.
async fn work(live: &Live, width: usize, doubtful: &mut Vec<u64>) {
    let blocks: Vec<u64> = (0..96).chain(STRIPE..STRIPE + 8).collect();
    for turn in 0..3 {
        for some in blocks.chunks(width) {
            let some = some.iter().filter(|block| !doubtful.contains(block));
            let failed = some.map(async |&block| live.try_write(block).await.err().map(|_| block));
            let failed = join_all(failed.collect::<Vec<_>>()).await;
            doubtful.extend(failed.into_iter().flatten());
        }
        // This may fail after an error; acknowledged data is still there after a kill.
        let _ = live.volume.flush().await;
        if turn == 1 {
            live.env.sleep(CLEARED).await;
        }
    }
}

/// Every acknowledged block is read, or refused: never an older version. Returns the refused blocks.
async fn look(live: &Live, doubtful: &[u64]) -> Vec<u64> {
    let mut refused = Vec::new();
    for block in (0..96).chain(STRIPE..STRIPE + 8) {
        match live.try_read(block).await {
            Ok(version) if doubtful.contains(&block) => {
                assert!((live.expected(block)..=live.expected(block) + 1).contains(&version));
            }
            Ok(version) => assert_eq!(version, live.expected(block), "block {block}"),
            Err(IoError::CacheFailed(_) | IoError::DirtyLost { .. }) => refused.push(block),
            Err(error) => panic!("{error}"),
        }
    }
    refused
}

/// Each write or flush of a workload fails, and the next `times` - 1 ones too.
fn each_failed(op: DeviceOp, os_error: i32, times: u64, width: usize) -> u64 {
    let total = {
        let world = world(1);
        world.sim.block_on(async {
            let live = world.serve().await;
            world.cache.reset_stats();
            work(&live, width, &mut Vec::new()).await;
            live.stop().await.expect("nothing has failed yet");
            let stats = world.cache.stats();
            if op == DeviceOp::Flush {
                stats.flushes
            } else {
                stats.writes
            }
        })
    };
    for nth in 1..=total {
        let world = world(1);
        let (mut doubtful, mut seen) = (Vec::new(), Vec::new());
        world.sim.block_on(async {
            let live = world.serve().await;
            for again in 0..times {
                world.cache.fail_nth_with(op, nth + again, os_error);
            }
            work(&live, width, &mut doubtful).await;
            let refused = look(&live, &doubtful).await;
            assert!(
                refused.iter().all(|block| doubtful.contains(block)),
                "{op} {nth}: the device is there, and {refused:?} are refused"
            );
            for block in &doubtful {
                seen.push((*block, live.try_read(*block).await.ok()));
            }
            let _ = live.stop().await;
        });
        assert!(world.cache.stats().errors >= 1, "{op} {nth} did not fail");
        // The process is killed, the machine continues: all acknowledged data must be present.
        let next = world.reboot(nth);
        next.sim.block_on(async {
            let live = next.serve().await;
            assert_eq!(look(&live, &doubtful).await, [0; 0], "{op} {nth}: after a kill");
            for (block, before) in &seen {
                let after = live.try_read(*block).await.expect("reads");
                let same = before.is_none_or(|before| before == after);
                assert!(
                    same,
                    "{op} {nth}: block {block} was {before:?}, and {after} after a kill"
                );
            }
            assert_eq!(look(&live, &doubtful).await, [0; 0], "{op} {nth}");
        });
    }
    total
}

#[test]
fn each_cache_write_failed_once_loses_nothing() {
    let writes = each_failed(DeviceOp::Write, IO, 1, 1);
    assert!(writes > 100, "only {writes} writes");
}

#[test]
fn each_cache_write_without_space_once_loses_nothing() {
    each_failed(DeviceOp::Write, NO_SPACE, 1, 1);
}

/// After three failures in a row the device is fenced, with its writes in flight.
#[test]
fn each_cache_write_failed_for_a_while_loses_nothing() {
    for os_error in [IO, NO_SPACE] {
        each_failed(DeviceOp::Write, os_error, 3, 1);
        each_failed(DeviceOp::Write, os_error, 3, 16);
    }
}

#[test]
fn each_cache_flush_failed_once_loses_nothing() {
    let flushes = each_failed(DeviceOp::Flush, IO, 1, 1);
    assert!(flushes > 4, "only {flushes} flushes");
}

/// A cache device that fails all writes: acknowledged data is kept; new data is refused if it must be dirty, and goes to
/// the origin otherwise.
#[test]
fn a_full_cache_device_is_fenced_and_dirty_blocks_are_read() {
    let world = world(6);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..16 {
            live.write(block).await;
        }
        for nth in 1..400 {
            world.cache.fail_nth_with(DeviceOp::Write, nth, NO_SPACE);
        }
        live.try_write(3).await.expect_err("it cannot be kept");
        assert!(live.failed());
        live.write(STRIPE).await;
        for block in (0..16).filter(|&block| block != 3) {
            live.read(block).await;
            live.try_write(block)
                .await
                .expect_err("nothing newer may be on the origin");
            live.read(block).await;
        }
        for block in 16..BLOCKS {
            live.read(block).await;
        }
    });
}

/// If everything is clean, the cache device may fail: a second later, writes to cleaned blocks bypass it like all others.
#[test]
fn blocks_clean_before_a_failure_are_written_to_the_origin() {
    let world = world(17);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..16 {
            live.write(block).await;
        }
        live.cleaned().await;
        world.switch(&live, Mode::WriteThrough);
        live.env.sleep(Duration::from_secs(3)).await;
        world.cache.set_dead(true);
        for block in (0..32).chain(0..16) {
            live.write(block).await;
            live.read(block).await;
        }
        assert!(live.failed());
        world.assert_origin_complete(&live);
    });
}

/// Reading the latest write fails if it is not on the device, even if it is same-filled and therefore in the index: a read
/// must not return data that is lost when the process is killed.
#[test]
fn writes_that_missed_a_fenced_device_are_not_read() {
    for zeroes in [false, true] {
        let world = world(16);
        let seen = world.sim.block_on(async {
            let live = world.serve().await;
            for block in 0..16 {
                live.write(block).await;
            }
            for nth in 1..400 {
                world.cache.fail_nth_with(DeviceOp::Write, nth, NO_SPACE);
            }
            if zeroes {
                let zeroing = live.volume.write_zeroes(3 * BLOCK, BLOCK, true, false);
                zeroing.await.expect_err("it cannot be kept");
            } else {
                live.try_write(3).await.expect_err("it cannot be kept");
            }
            assert!(live.failed());
            live.volume.read(3 * BLOCK, BLOCK as u32).await
        });
        let error = seen.expect_err("it is gone with the process");
        assert!(matches!(error, IoError::CacheFailed(_)), "{error}");
    }
}

/// The device refuses some writes while others wait for their turn, in extents that were never sent: these go to the
/// origin, as do all later ones, and no later start finds records that conflict with them. Extents that were sent may be on
/// the device.
#[test]
fn unsent_writes_go_to_the_origin_after_a_fence() {
    const ODD: u64 = 200;
    let world = world(18);
    let refused = world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..8 {
            live.write(block).await;
        }
        for nth in 1..400 {
            world.cache.fail_nth_with(DeviceOp::Write, nth, NO_SPACE);
        }
        let blocks: Vec<u64> = (0..4).chain(100..160).collect();
        let writes = blocks
            .iter()
            .map(|&block| live.try_write_fua(block, block % 2 == 0));
        let odd = live
            .volume
            .write(ODD * BLOCK + 512, [IoBuf::copy_of(&[7; 1024])].into(), false);
        let (outcomes, odd) = join(join_all(writes), odd).await;
        assert!(live.failed());
        odd.expect("goes to the origin");
        let mut refused = Vec::new();
        for (&block, outcome) in blocks.iter().zip(&outcomes) {
            if let Err(error) = outcome {
                assert!(matches!(error, IoError::CacheFailed(_)), "{error}");
                refused.push(block);
            } else {
                assert_eq!(world.on_origin(block), live.expected(block));
                live.read(block).await;
                live.write(block).await;
                live.read(block).await;
            }
        }
        assert!(
            refused.starts_with(&[0, 1, 2, 3]),
            "what was dirty has nothing newer on the origin"
        );
        // Full extents had been sent before the first refusal.
        assert!(
            refused.len() > 4 && refused.len() + 8 < blocks.len(),
            "{refused:?}"
        );
        live.stop().await.expect_err("it is not stopped in order");
        refused
    });
    let mut odd = contents(ODD, 0);
    odd[512..1536].fill(7);
    let next = world.reboot(19);
    next.sim.block_on(async {
        let live = next.serve().await;
        for _ in 0..2 {
            for block in (0..BLOCKS).filter(|&block| block != ODD) {
                let version = live.try_read(block).await.expect("reads");
                let doubt = u64::from(refused.contains(&block));
                assert!((live.expected(block)..=live.expected(block) + doubt).contains(&version));
            }
            let read = live.volume.read(ODD * BLOCK, BLOCK as u32).await.expect("reads");
            assert!(read[0][..] == odd);
            live.cleaned().await;
        }
    });
}

/// An error of one read is not a miss if the block is dirty; nor is it permanent.
#[test]
fn each_cache_read_failed_once_fails_only_dirty_blocks() {
    let world = world(7);
    world.sim.block_on(async {
        let live = world.serve().await;
        live.warm(100..200).await;
        for block in 0..100 {
            live.write(block).await;
        }
        for block in (0..200).step_by(40) {
            world.cache.fail_nth(DeviceOp::Read, 1);
            if block < 100 {
                let error = live
                    .try_read(block)
                    .await
                    .expect_err("the origin has an older one");
                assert!(matches!(error, IoError::DirtyLost { .. }), "{error}");
            }
            live.read(block).await;
        }
        assert_eq!(live.stats().counts.cache_read_errors, 5);
        assert!(!live.failed());
    });
}

/// Write-back is selected while the cache is served, and the superblock cannot be written. A retry must not succeed
/// falsely, and after a failed flush no successful flush of the device is trusted.
#[test]
fn no_block_is_dirty_before_the_superblock_says_so() {
    let failures = (1..=2)
        .map(|nth| (DeviceOp::Write, nth))
        .chain((1..=3).map(|nth| (DeviceOp::Flush, nth)));
    for (op, nth) in failures {
        let mut world = World::new(8, Mode::WriteThrough);
        let mut live = world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..32).await;
            live.volume.flush().await.expect("flushes");
            live
        });
        world.sim.block_on(async {
            let what = format!("{op} {nth}");
            world.cache.fail_nth(op, nth);
            live.cache.permit_write_back().await.expect_err(&what);
            assert_eq!(world.cache.stats().errors, 1, "{what}");
            world.switch(&live, Mode::WriteBack);
            live.write(3).await;
            assert_eq!((live.dirty(), world.on_origin(3)), (0, 1), "{what}");
            let permitted = live.cache.permit_write_back().await.is_ok();
            assert_eq!(permitted, op == DeviceOp::Write, "{what}");
            for block in 0..16 {
                live.write(block).await;
            }
            assert_eq!(live.dirty(), if permitted { 16 } else { 0 }, "{what}");
            live.volume.flush().await.expect("flushes");
            let superblock = read_superblock(&world.cache).await.expect("is there");
            assert!(
                superblock.dirty || !permitted,
                "{what}: the medium says that all is clean"
            );
        });
        drop(live);
        world.mode = Mode::WriteBack;
        let cut = (
            world.cache.crash(&CrashPlan::Nothing),
            world.origin.crash(&CrashPlan::Nothing),
            world.host.memory(),
        );
        let next = world.boot(nth, cut);
        next.sim.block_on(async {
            let live = next.serve().await;
            next.check_twice(&live).await;
        });
    }
}

/// A cache device whose writes each take a millisecond.
fn slow_to_write(seed: u64) -> World {
    let took = Duration::from_millis(1);
    let cache = DiskConfig {
        write_latency: took..=took,
        ..DiskConfig::fast(CACHE_LEN)
    };
    World::on(seed, Mode::WriteBack, cache, 1)
}

/// Two extents of one region are in flight. The device permanently fails the first and takes the second, which no later
/// start examines. Reads of the second extent must then return the same as after a kill.
#[test]
fn extents_behind_a_refused_one_are_read_as_after_a_kill() {
    let world = slow_to_write(20);
    let seen = world.sim.block_on(async {
        let live = world.serve().await;
        live.write(2).await;
        // The second write of the device from now on is the second extent.
        for nth in [1, 3, 4] {
            world.cache.fail_nth_with(DeviceOp::Write, nth, NO_SPACE);
        }
        let second = async {
            live.env.sleep(Duration::from_micros(500)).await;
            live.try_write(2).await
        };
        let (first, second) = join(live.try_write(1), second).await;
        first.expect_err("it cannot be kept");
        second.expect_err("nor can what is behind it");
        assert!(live.failed());
        live.env.sleep(Duration::from_secs(1)).await;
        live.try_read(2).await
    });
    let next = world.reboot(21);
    let after = next.sim.block_on(async {
        let live = next.serve().await;
        live.try_read(2).await
    });
    let after = after.expect("it was acknowledged once");
    if let Ok(seen) = seen {
        assert_eq!(seen, after, "read before the kill, and after it");
    }
}

/// A long write over dirty blocks waits for its turn at the device when a flush fails: the last part of its records is in
/// an extent that is never sent. Reads of that part must return the same as after a kill.
#[test]
fn writes_in_memory_at_a_fence_are_read_as_after_a_kill() {
    let world = slow_to_write(22);
    let seen = world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..200 {
            live.write(block).await;
        }
        live.volume.flush().await.expect("flushes");
        live.write(250).await;
        world.cache.fail_nth(DeviceOp::Flush, 1);
        let data: Vec<u8> = (0..200)
            .flat_map(|block| contents(block, live.expected(block) + 1))
            .collect();
        let long = live.volume.write(0, [IoBuf::copy_of(&data)].into(), false);
        let flush = async {
            live.env.sleep(Duration::from_micros(100)).await;
            live.volume.flush().await
        };
        let (long, flush) = join(long, flush).await;
        long.expect_err("it cannot be kept");
        flush.expect_err("it has failed");
        assert!(live.failed());
        live.env.sleep(Duration::from_secs(1)).await;
        let mut seen = Vec::new();
        for block in 0..200 {
            seen.push(live.try_read(block).await.ok());
        }
        seen
    });
    let next = world.reboot(23);
    let wrong = next.sim.block_on(async {
        let live = next.serve().await;
        let mut wrong = Vec::new();
        for (block, seen) in seen.into_iter().enumerate() {
            let after = live.try_read(block as u64).await.expect("reads");
            if let Some(seen) = seen
                && seen != after
            {
                wrong.push((block, seen, after));
            }
        }
        wrong
    });
    assert!(
        wrong.is_empty(),
        "(block, read before the kill, and after it): {wrong:?}"
    );
}

/// The device permanently fails an extent, and has taken a part of it. Reads of that part must return the same as after a
/// kill.
#[test]
fn the_landed_part_of_a_failed_extent_reads_as_after_a_kill() {
    let mut wrong = Vec::new();
    for seed in 100..140 {
        let world = world(seed);
        let seen = world.sim.block_on(async {
            let live = world.serve().await;
            for block in 0..8 {
                live.write(block).await;
            }
            for nth in 1..=3 {
                world.cache.fail_nth(DeviceOp::Write, nth);
            }
            let data: Vec<u8> = (0..8).flat_map(|block| contents(block, 2)).collect();
            let write = live.volume.write(0, [IoBuf::copy_of(&data)].into(), false);
            write.await.expect_err("it cannot be kept");
            assert!(live.failed());
            live.env.sleep(Duration::from_secs(1)).await;
            let mut seen = Vec::new();
            for block in 0..8 {
                seen.push(live.try_read(block).await.ok());
            }
            seen
        });
        let next = world.reboot(seed + 1000);
        next.sim.block_on(async {
            let live = next.serve().await;
            for (block, seen) in seen.into_iter().enumerate() {
                let after = live.try_read(block as u64).await.expect("reads");
                if let Some(seen) = seen
                    && seen != after
                {
                    wrong.push((seed, block, seen, after));
                }
            }
        });
    }
    assert!(
        wrong.is_empty(),
        "(seed, block, read before the kill, and after it): {wrong:?}"
    );
}

/// The sectors of one dirty block cannot be read. Those of its neighbours on the device can, and reading them, however
/// often, neither loses them nor fences the device.
#[test]
fn an_unreadable_gap_between_dirty_blocks_fails_neither() {
    const BETWEEN: u64 = 300;
    let world = world(24);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in [0, BETWEEN, 1] {
            live.write(block).await;
        }
        let device = world.cache.peek(0, CACHE_LEN as usize);
        let wanted = &contents(BETWEEN, 1)[64..128];
        let at = device
            .windows(64)
            .position(|bytes| bytes == wanted)
            .expect("it is there");
        world.cache.mark_bad(at as u64 / 512 * 512, 512);
        for block in [0, 1] {
            live.read(block).await;
        }
        let mut failed = 0;
        for _ in 0..10 {
            failed += u32::from(live.volume.read(0, 2 * BLOCK as u32).await.is_err());
        }
        assert_eq!(
            (failed, live.failed()),
            (0, false),
            "reads that failed, and whether the device was given up"
        );
    });
}
