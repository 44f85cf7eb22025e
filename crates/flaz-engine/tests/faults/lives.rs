//! What one life of a cache leaves on its device binds the next one only as far as that is still used.

use flaz_device::{DeviceOp, Env};
use flaz_engine::cache::{Start, mark_empty};
use flaz_engine::settings::{AfterCrash, Mode};
use flaz_engine::volume::Volume;
use flaz_engine::witness::Memory;

use crate::world::{BLOCK, CLEARED, Left, STRIPE, World, contents};

/// A life that leaves marks of its open region in every shard, and ends in order.
async fn live_and_stop(world: &World) -> flaz_engine::format::superblock::Superblock {
    let live = world.open().await;
    live.warm(0..4 * STRIPE).await;
    for block in [2 * STRIPE + 3, 3 * STRIPE + 3] {
        live.write(block).await;
    }
    live.stored().await;
    live.env.sleep(CLEARED).await;
    live.stop().await.expect("a clean stop")
}

/// The marks say how much of a region must be there. Of one that was thrown away nothing is.
#[test]
fn marks_of_a_life_that_was_given_up_bind_no_later_one() {
    for (number, mode) in [Mode::WriteThrough, Mode::WriteAround, Mode::WriteBack]
        .into_iter()
        .enumerate()
    {
        for detached in [true, false] {
            for written in [false, true] {
                let what = format!("{mode}, detached {detached}, written {written}");
                let world = World::shards(40 + number as u64, Mode::WriteThrough, 2);
                world.sim.block_on(async {
                    let mut superblock = live_and_stop(&world).await;
                    if detached {
                        mark_empty(&world.cache, &mut superblock).await.expect("marked");
                    }
                });
                // Or it was given up, as far as the host knows.
                let (cache, origin, memory) = world.now();
                let memory = memory.map(|memory| Memory {
                    lost: !detached,
                    ..memory
                });
                let mut next = world.boot(50, (cache, origin, memory));
                next.mode = mode;
                next.sim.block_on(async {
                    let live = next.open().await;
                    let begun = if detached { Start::Empty } else { Start::Cold };
                    assert_eq!(live.cache.start, begun, "{what}");
                    // Of the second shard; the first one gets nothing.
                    if written {
                        live.write(3 * STRIPE + 5).await;
                        live.volume.flush().await.expect("stable");
                    }
                });
                let cut = (
                    next.cache.crash(&Left::Nothing.plan()),
                    next.origin.crash(&Left::Nothing.plan()),
                    next.host.memory(),
                );
                let last = next.boot(60, cut);
                last.sim.block_on(async {
                    let live = last.open().await;
                    assert_eq!(live.cache.start, Start::Recovered, "{what}");
                    live.check_all().await;
                });
            }
        }
    }
}

/// What an earlier process wrote may be gone with a flush that fails at the start: who relies on it must hear of it.
#[test]
fn a_flush_of_the_origin_that_fails_at_an_opening_is_told_to_the_next_who_asks() {
    let world = World::new(70, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.write(2 * STRIPE + 7).await;
    });
    let next = world.reboot(71);
    next.origin.fail_nth(DeviceOp::Flush, 1);
    next.sim.block_on(async {
        let live = next.open().await;
        assert_eq!(live.cache.start, Start::Recovered);
        live.volume.flush().await.expect_err("it may be gone");
        live.volume.flush().await.expect("that was told");
        live.env.sleep(CLEARED).await;
    });
    // The intent of that write stays, too: the cache must not have what the origin may have lost.
    let dropped = next.reboot(72);
    let stripes = dropped
        .sim
        .block_on(async { dropped.open().await.cache.recovered.stripes });
    assert!(stripes > 0, "the intent was cleared");
}

/// A flush that fails may take what was written before with it, and a later one that succeeds does not bring it back.
#[test]
fn intents_of_what_a_failed_flush_may_have_lost_stay() {
    let mut lost = 0;
    for seed in 0..40 {
        let world = World::new(80 + seed, Mode::WriteThrough);
        let block = 2 * STRIPE + 3;
        let stop = seed % 2 == 1;
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(2 * STRIPE..2 * STRIPE + 64).await;
            live.env.sleep(CLEARED).await;
            live.write(block).await;
            live.stored().await;
            world.origin.fail_nth(DeviceOp::Flush, 1);
            live.volume.flush().await.expect_err("it failed");
            if seed % 4 > 1 {
                live.env.sleep(CLEARED).await;
            }
            if stop {
                live.stop().await.expect("stops in order");
            }
        });
        let cut = (
            world.cache.crash(&Left::Everything.plan()),
            world.origin.crash(&Left::Nothing.plan()),
            world.host.memory(),
        );
        let next = world.boot(seed, cut);
        // Sector by sector.
        let kept = next.origin.peek(block * BLOCK, BLOCK as usize);
        lost += u64::from(kept != contents(block, 1));
        next.sim.block_on(async {
            let live = next.open().await;
            let read = live
                .volume
                .read(block * BLOCK, BLOCK as u32)
                .await
                .expect("readable");
            let same = read.iter().flat_map(|part| part.iter()).eq(&kept);
            assert!(same, "seed {seed}: the cache has what its origin lost");
        });
    }
    assert!(lost > 5, "{lost} lost");
}

/// The same where no intents are set, for a crash leaves nothing of the cache: a clean stop leaves all of it.
#[test]
fn a_clean_stop_without_intents_keeps_nothing_that_a_failed_flush_may_have_lost() {
    let mut lost = 0;
    for seed in 0..40 {
        let world = World::new(130 + seed, Mode::WriteThrough);
        world.after_crash.set(AfterCrash::Cold);
        let (block, other) = (2 * STRIPE + 3, 3 * STRIPE + 3);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(2 * STRIPE..2 * STRIPE + 64).await;
            live.warm(3 * STRIPE..3 * STRIPE + 64).await;
            live.write(block).await;
            live.stored().await;
            // Rounds of clearing have nothing to clear here.
            live.env.sleep(CLEARED).await;
            world.origin.fail_nth(DeviceOp::Flush, 1);
            live.volume.flush().await.expect_err("it failed");
            live.stop().await.expect("stops in order");
        });
        let cut = (
            world.cache.crash(&Left::Everything.plan()),
            world.origin.crash(&Left::Nothing.plan()),
            world.host.memory(),
        );
        let next = world.boot(seed, cut);
        if seed % 2 == 0 {
            next.after_crash.set(AfterCrash::Warm);
        }
        let kept = next.origin.peek(block * BLOCK, BLOCK as usize);
        lost += u64::from(kept != contents(block, 1));
        next.sim.block_on(async {
            let live = next.open().await;
            assert!(matches!(live.cache.start, Start::Warm(_)));
            assert!(live.is_cached(other), "seed {seed}: nobody wrote there");
            let read = live
                .volume
                .read(block * BLOCK, BLOCK as u32)
                .await
                .expect("readable");
            let same = read.iter().flat_map(|part| part.iter()).eq(&kept);
            assert!(same, "seed {seed}: the cache has what its origin lost");
        });
    }
    assert!(lost > 5, "{lost} lost");
}

/// What a failed flush has lost is still to be read at the stop, and gone after a power cut: nobody has changed the origin
/// past the cache, so nobody is refused.
#[test]
fn an_origin_that_lost_what_it_begins_with_in_a_failed_flush_is_not_refused() {
    let mut lost = 0;
    for seed in 0..40 {
        let world = World::new(160 + seed, Mode::WriteThrough);
        world.sim.block_on(async {
            let live = world.open().await;
            live.write(3).await;
            world.origin.fail_nth(DeviceOp::Flush, 1);
            live.volume.flush().await.expect_err("it failed");
            live.stop().await.expect("stops in order");
        });
        let cut = (
            world.cache.crash(&Left::Nothing.plan()),
            world.origin.crash(&Left::Nothing.plan()),
            world.host.memory(),
        );
        let next = world.boot(seed, cut);
        let kept = next.origin.peek(3 * BLOCK, BLOCK as usize);
        lost += u64::from(kept != contents(3, 1));
        next.sim.block_on(async {
            let live = next.open().await;
            let read = live.volume.read(3 * BLOCK, BLOCK as u32).await.expect("readable");
            let same = read.iter().flat_map(|part| part.iter()).eq(&kept);
            assert!(same, "seed {seed}: the cache has what its origin lost");
        });
    }
    assert!(lost > 5, "{lost} lost");
}
