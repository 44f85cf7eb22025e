//! Data that a flush or a FUA write covered is damaged after a crash: an error, or a refused start, and never older data.

use std::time::Duration;

use flaz_device::{DeviceOp, Env};
use flaz_engine::cache::CacheError;
use flaz_engine::settings::StrictFlush;
use flaz_engine::volume::{IoError, Volume};
use flaz_sim::EventStage;

use super::world;
use crate::faults::world::{Found, Left, World};

/// Blocks that are written twice, first without and then with a flush.
const BLOCKS_WRITTEN: u64 = 12;
/// Time after the reply within which a following mark is stable, on these disks.
const MARKED_WITHIN: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Flush,
    Fua,
}

/// A cache whose blocks were written twice, the second time as `asked`, and the state after a kill or a power cut `wait`
/// after the reply. Also returns the extents of the second writes: position and length.
fn written_twice(
    strict_flush: StrictFlush,
    asked: Asked,
    wait: Duration,
    seed: u64,
) -> (World, Vec<Found>, Vec<(u64, u64)>) {
    let world = world(seed);
    world.strict_flush.set(strict_flush);
    let (found, extents) = world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..BLOCKS_WRITTEN {
            live.write(block).await;
        }
        live.volume.flush().await.expect("flushes");
        live.env.sleep(Duration::from_millis(100)).await;
        let moments = world.watch();
        for block in 0..BLOCKS_WRITTEN {
            let fua = asked == Asked::Fua;
            live.try_write_fua(block, fua).await.expect("writes");
        }
        if asked == Asked::Flush {
            live.volume.flush().await.expect("flushes");
        }
        live.env.sleep(wait).await;
        world.unwatch();
        let (cache, origin) = (world.cache.moment(), world.origin.moment());
        let plan = || Left::Nothing.plan().chooser();
        let memory = world.host.memory();
        let found = vec![
            (cache.kill(plan()), origin.kill(plan()), memory),
            (cache.cut(plan()), origin.cut(plan()), memory),
        ];
        let moments = moments.take();
        let written = moments
            .iter()
            .filter(|m| m.is(true, EventStage::Completed, DeviceOp::Write) && world.in_regions(m.offset));
        (found, written.map(|m| (m.offset, m.len)).collect::<Vec<_>>())
    });
    assert!(!extents.is_empty());
    (world, found, extents)
}

/// Starts with one wrong bit on the cache device and reads everything. Returns how many blocks are older than at the reply
/// of the flush, and whether the damage was reported at all.
fn older_after(world: &World, found: Found, at: u64, seed: u64) -> (u64, bool) {
    let next = world.boot(seed, found);
    next.cache.flip_bit(at, (seed % 8) as u8);
    next.sim.block_on(async {
        let live = match next.try_open().await {
            Ok(live) => live,
            Err(CacheError::DirtyUnreadable { .. }) => return (0, true),
            Err(error) => panic!("{error}"),
        };
        let (mut older, mut told) = (0, false);
        for block in 0..BLOCKS_WRITTEN {
            match live.try_read(block).await {
                Ok(version) => older += u64::from(version != live.expected(block)),
                Err(IoError::DirtyLost { .. }) => told = true,
                Err(error) => panic!("{error}"),
            }
        }
        (older, told)
    })
}

/// Flips a bit in each sector of each extent in turn. Returns how many damaged caches served older data.
fn trials_with_older_data(strict_flush: StrictFlush, asked: Asked, wait: Duration) -> u64 {
    let (world, found, extents) = written_twice(strict_flush, asked, wait, 1);
    let (mut wrong, mut told, mut trials) = (0, 0, 0);
    for found in found {
        for &(start, len) in &extents {
            for at in (start..start + len).step_by(512) {
                trials += 1;
                let (older, was_told) = older_after(&world, found.clone(), at + trials % 512, trials);
                wrong += u64::from(older > 0);
                told += u64::from(was_told);
            }
        }
    }
    // The other bits are in the padding of an extent.
    assert!(told + wrong > trials / 2, "{told} of {trials}");
    wrong
}

#[test]
pub fn damage_after_a_strict_fua_write_is_found() {
    let wrong = trials_with_older_data(StrictFlush::Always, Asked::Fua, Duration::ZERO);
    assert_eq!(wrong, 0, "older data");
}

#[test]
pub fn damage_after_a_strict_flush_is_found() {
    let wrong = trials_with_older_data(StrictFlush::Always, Asked::Flush, Duration::ZERO);
    assert_eq!(wrong, 0, "older data");
}

/// The mark follows the reply. Immediately after it there is none yet, which shows that these trials can fail.
#[test]
pub fn damage_after_a_marked_flush_is_found() {
    for asked in [Asked::Flush, Asked::Fua] {
        let wrong = trials_with_older_data(StrictFlush::Never, asked, Duration::ZERO);
        assert!(wrong > 0, "{asked:?}: not even in the window");
        let wrong = trials_with_older_data(StrictFlush::Never, asked, MARKED_WITHIN);
        assert_eq!(wrong, 0, "{asked:?}: older data");
    }
}

/// Nothing was dirty since the last mark: a flush causes no write.
#[test]
fn a_flush_without_new_data_writes_no_mark() {
    for strict_flush in [StrictFlush::Always, StrictFlush::Never] {
        let world = world(2);
        world.strict_flush.set(strict_flush);
        world.sim.block_on(async {
            let live = world.serve().await;
            live.write(1).await;
            live.volume.flush().await.expect("flushes");
            live.env.sleep(MARKED_WITHIN).await;
            let before = world.cache.stats().writes;
            live.volume.flush().await.expect("flushes");
            live.env.sleep(MARKED_WITHIN).await;
            assert_eq!(world.cache.stats().writes, before, "{strict_flush:?}");
        });
    }
}

/// If flushes follow each other immediately, only the last mark needs a flush of its own.
#[test]
fn marks_between_flushes_cost_no_flush_each() {
    const FLUSHES: u64 = 50;
    let world = world(3);
    world.strict_flush.set(StrictFlush::Never);
    world.sim.block_on(async {
        let live = world.serve().await;
        let before = world.cache.stats().flushes;
        for block in 0..FLUSHES {
            live.try_write_fua(block % 8, true).await.expect("writes");
        }
        live.env.sleep(MARKED_WITHIN).await;
        let flushes = world.cache.stats().flushes - before;
        assert!((FLUSHES..FLUSHES + 10).contains(&flushes), "{flushes} flushes");
    });
}
