//! Structures that one life of a cache leaves on its device bind the next life only as far as they are still used.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceOp, Env};
use flaz_engine::cache::{Start, mark_clean, mark_empty, mark_void, read_superblock, write_superblock};
use flaz_engine::format::geometry::{PAGE_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use flaz_engine::format::superblock::State;
use flaz_engine::host_record::HostRecord;
use flaz_engine::settings::{AfterCrash, Mode, Settings};
use flaz_engine::units::Epoch;
use flaz_engine::volume::Volume;

use flaz_sim::{CrashPlan, DiskConfig, EventStage};

use super::world::{BLOCK, CLEARED, Left, STRIPE, STRIPES, World, Wrong, contents};

/// A life that leaves marks of its open region in every shard, and ends cleanly.
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

/// Marks give the part of a region that must be present. This does not apply to a discarded region.
#[test]
fn fence_marks_do_not_affect_later_epochs() {
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
                // Or the cache was fenced, according to the host record.
                let (cache, origin, memory) = world.now();
                let memory = memory.map(|memory| HostRecord {
                    fenced: !detached,
                    ..memory
                });
                let mut next = world.boot(50, (cache, origin, memory));
                next.mode = mode;
                next.sim.block_on(async {
                    let live = next.open().await;
                    let begun = if detached { Start::Empty } else { Start::Cold };
                    assert_eq!(live.cache.start, begun, "{what}");
                    // For the second shard; the first one gets nothing.
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

/// A flush that fails at the start may lose writes of an earlier process: a client that depends on them must be told.
#[test]
fn a_failed_origin_flush_at_opening_is_reported_later() {
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
    // The intent of that write stays, too: the cache must not have data that the origin may have lost.
    let dropped = next.reboot(72);
    let stripes = dropped
        .sim
        .block_on(async { dropped.open().await.cache.recovered.stripes });
    assert!(stripes > 0, "the intent was cleared");
}

/// A failed flush may lose earlier writes, and a later successful flush does not bring them back.
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
        // Checked sector by sector.
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

/// The same without intents, because a crash leaves nothing of the cache: a clean stop keeps its contents.
#[test]
fn a_stop_without_intents_drops_blocks_of_a_failed_flush() {
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
            // Rounds of clearing have no intents to clear here.
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

/// Writes that a failed flush has lost are still readable at the stop, and gone after a power cut: the origin was not
/// changed without the cache, so the opening is not refused.
#[test]
fn an_origin_start_lost_in_a_failed_flush_is_not_refused() {
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

/// The power cut has torn one superblock, and the other one is unreadable and then misread before it is read correctly.
#[test]
fn a_superblock_misread_twice_beside_a_torn_one_is_found() {
    let world = World::new(19, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..64).await;
    });
    for [torn, other] in [[0, 1], [1, 0]] {
        let next = world.reboot(20);
        next.cache.flip_bit(SUPERBLOCK_SLOTS[torn] + 100, 0);
        // The slots are read in order, an invalid one four times.
        let first = if other == 0 { 1 } else { 5 };
        next.cache.fail_nth(DeviceOp::Read, first);
        next.misread(Some((first + 1, Wrong::Zeroes)));
        next.sim.block_on(async {
            let live = next.open().await;
            live.check_all().await;
        });
        assert_eq!(next.cache.stats().errors, 1);
    }
}

/// Either one is permanently damaged, after a stop with dirty blocks or a kill: no data is lost, the start is not cold,
/// regardless of the generation in the host record.
#[test]
fn either_superblock_says_all_that_both_do() {
    for (mode, stopped) in [Mode::WriteThrough, Mode::WriteBack]
        .into_iter()
        .flat_map(|mode| [(mode, true), (mode, false)])
    {
        let world = World::new(21, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            for block in 0..32 {
                live.write(block).await;
            }
            live.volume.flush().await.expect("flushes");
            if stopped {
                live.stop().await.expect("stops in order");
            }
        });
        for slot in SUPERBLOCK_SLOTS {
            let next = world.reboot(22);
            next.cache.flip_bit(slot + 40, 0);
            next.sim.block_on(async {
                let live = next.open().await;
                let begun = live.cache.start;
                assert_eq!(
                    matches!(begun, Start::Warm(_)),
                    stopped,
                    "{mode}, {slot}: {begun:?}"
                );
                assert_eq!(begun == Start::Recovered, !stopped, "{mode}, {slot}: {begun:?}");
                live.check_all().await;
            });
        }
    }
}

/// A slot that is damaged at rest is written before the good one: a torn write of the good one would leave none.
#[test]
fn an_opening_that_is_cut_leaves_the_superblock_that_was_good() {
    let mut cut = 0;
    // In each opening, the first write may fail.
    for (damaged, tries, failing) in [
        (0, 1, false),
        (1, 1, false),
        (0, 2, false),
        (1, 2, false),
        (0, 1, true),
        (1, 1, true),
        (0, 2, true),
        (1, 2, true),
    ] {
        let world = World::new(23, Mode::WriteBack);
        world.sim.block_on(async {
            let live = world.open().await;
            for block in 0..32 {
                live.write(block).await;
            }
            live.volume.flush().await.expect("flushes");
            live.stop().await.expect("stops in order");
        });
        let next = world.reboot(24);
        next.cache.flip_bit(SUPERBLOCK_SLOTS[damaged] + 40, 0);
        for _ in 0..tries {
            let pages = || SUPERBLOCK_SLOTS.map(|slot| next.cache.peek(slot, SUPERBLOCK_BYTES));
            let before = pages();
            // The first flush is the one before the first slot, the second the one after it. If that slot is written once
            // more, there is one more flush before it.
            if failing {
                next.cache.fail_nth(DeviceOp::Write, 1);
            }
            next.cache.fail_nth(DeviceOp::Flush, 2 + u64::from(failing));
            next.sim
                .block_on(async { next.try_open().await.err().expect("a flush fails") });
            let after = pages();
            for slot in (0..2).filter(|&slot| before[slot] != after[slot]) {
                assert_eq!(slot, damaged, "the good one is written");
                let mut torn = before[slot].clone();
                torn[..512].copy_from_slice(&after[slot][..512]);
                next.cache.poke(SUPERBLOCK_SLOTS[slot], &torn);
            }
            cut += usize::from(before != after);
        }
        let last = next.reboot(25);
        last.sim.block_on(async { last.open().await.check_all().await });
    }
    assert!(cut >= 9, "{cut} openings were cut");
}

/// The same if it rots while the cache is served, and the stop is interrupted.
#[test]
fn a_stop_that_is_cut_after_a_superblock_has_rotted_leaves_one() {
    let mut written = 0;
    for (damaged, place) in SUPERBLOCK_SLOTS.into_iter().enumerate() {
        for nth in 1..16 {
            let world = World::new(34, Mode::WriteBack);
            let pages = || SUPERBLOCK_SLOTS.map(|slot| world.cache.peek(slot, SUPERBLOCK_BYTES));
            let before = world.sim.block_on(async {
                let live = world.open().await;
                for block in 0..32 {
                    live.write(block).await;
                }
                live.volume.flush().await.expect("flushes");
                world.cache.flip_bit(place + 40, 0);
                let before = pages();
                world.cache.fail_nth(DeviceOp::Flush, nth);
                // Depending on `nth`, the stop may fail.
                let _ = live.stop().await;
                before
            });
            let after = pages();
            let changed = |slot: usize| before[slot] != after[slot];
            if changed(damaged) == changed(1 - damaged) {
                continue;
            }
            written += 1;
            for slot in (0..2).filter(|&slot| changed(slot)) {
                let mut torn = before[slot].clone();
                torn[..512].copy_from_slice(&after[slot][..512]);
                world.cache.poke(SUPERBLOCK_SLOTS[slot], &torn);
            }
            let next = world.reboot(35);
            next.sim.block_on(async { next.open().await.check_all().await });
        }
    }
    assert!(written >= 2, "no stop was cut between its two writes");
}

/// If one slot can no longer be written, the other one must still be updated.
#[test]
fn a_cache_with_a_dead_superblock_slot_is_voided_in_the_other() {
    let mut done = 0;
    for place in SUPERBLOCK_SLOTS {
        let world = World::new(39, Mode::WriteThrough);
        world.sim.block_on(async {
            let mut superblock = live_and_stop(&world).await;
            superblock.state = State::Open;
            write_superblock(&world.cache, &mut superblock)
                .await
                .expect("is written");
            world.cache.flip_bit(place + 40, 0);
            for nth in 1..4 {
                world.cache.fail_nth(DeviceOp::Write, nth);
            }
            let marked = mark_void(&world.cache, &mut superblock).await;
            let found = read_superblock(&world.cache).await.expect("one is good");
            let is_void = found.valid_from_epoch > found.epoch;
            assert!(is_void || marked.is_err());
            done += u32::from(marked.is_ok());
        });
    }
    // If the damaged slot is next, the device has failed, as without the damage.
    assert_eq!(done, 1);
}

/// The largest valid numbers would be followed by invalid ones: the opening is refused, and the cache stays unchanged.
#[test]
fn a_superblock_at_the_last_generation_stays_readable() {
    for what in ["generation", "epoch"] {
        let world = World::new(38, Mode::WriteBack);
        world.alone.set(true);
        world.sim.block_on(async {
            let mut superblock = live_and_stop(&world).await;
            if what == "epoch" {
                superblock.epoch = Epoch(u32::MAX - 1);
            } else {
                superblock.generation = u64::MAX / 2 - 1;
            }
            write_superblock(&world.cache, &mut superblock)
                .await
                .expect("is one still");
            let error = world.try_open().await.err().expect("there is no next one");
            assert!(error.to_string().contains(what), "{error}");
            read_superblock(&world.cache).await.expect("is there");
        });
    }
}

/// If only the first slot were written, its rot would make the cache look older than its host record.
#[test]
fn a_failed_write_of_the_second_superblock_is_retried() {
    let world = World::new(24, Mode::WriteBack);
    world.sim.block_on(async {
        let mut superblock = live_and_stop(&world).await;
        world.cache.fail_nth(DeviceOp::Write, 2);
        mark_clean(&world.cache, &mut superblock)
            .await
            .expect("the first is written");
        let [first, second] = SUPERBLOCK_SLOTS.map(|slot| world.cache.peek(slot, SUPERBLOCK_BYTES));
        assert_eq!(world.cache.stats().errors, 1);
        assert!(first == second, "the second is older");
    });
}

/// Unflushed writes of an earlier process are read and cached by a cache that starts empty, and without an intent for the
/// case that a power cut takes them from the origin.
#[test]
pub fn a_start_that_begins_with_nothing_flushes_the_origin_first() {
    let world = World::new(17, Mode::WriteThrough);
    // With a host record, the origin is also flushed before its fingerprint is taken.
    world.alone.set(true);
    world.after_crash.set(AfterCrash::Cold);
    world.sim.block_on(async { world.open().await.write(5).await });
    world.sim.kill_tasks();
    world.after_crash.set(AfterCrash::Warm);
    let cut = world.sim.block_on(async {
        let live = world.open().await;
        assert_eq!(live.cache.start, Start::Cold);
        live.warm(0..64).await;
        live.read(5).await;
        (
            world.cache.crash(&CrashPlan::Everything),
            world.origin.crash(&CrashPlan::Nothing),
            world.host.memory(),
        )
    });
    let next = world.boot(18, cut);
    next.sim.block_on(async {
        let live = next.open().await;
        assert_eq!(live.cache.start, Start::Recovered);
        let version = live.try_read(5).await.expect("reads");
        assert_eq!(
            version,
            next.on_origin(5),
            "the cache has what the origin has not"
        );
    });
}

/// A cache of two shards that was stopped cleanly, full, partly dirty. A failed flush may have lost writes to all stripes:
/// their clean blocks must be dropped at the next start. The image of the second shard is damaged.
fn half_an_image(seed: u64, mode: Mode) -> World {
    let disk = DiskConfig {
        write_latency: Duration::from_micros(10)..=Duration::from_millis(3),
        ..DiskConfig::fast(4 << 20)
    };
    let mut world = World::on(seed, Mode::WriteBack, disk, 2);
    world.sim.block_on(async {
        let live = world.open().await;
        let switch = |mode| {
            live.cache.set(&Settings {
                mode,
                ..world.settings()
            });
        };
        switch(Mode::WriteThrough);
        for stripe in 0..STRIPES {
            live.write(stripe * STRIPE + 255).await;
        }
        world.origin.fail_nth(DeviceOp::Flush, 1);
        live.volume.flush().await.expect_err("it failed");
        switch(mode);
        for part in 0..STRIPE / 16 {
            for stripe in 0..STRIPES {
                let first = stripe * STRIPE + part * 16;
                live.warm(first + 1..first + 16).await;
                if mode == Mode::WriteBack {
                    live.write(first).await;
                }
            }
        }
        live.stop().await.expect("stops in order");
    });
    world
        .cache
        .poke(world.geometry.shard_state_offset(1), &[0; PAGE_BYTES]);
    world.mode = mode;
    world
}

/// A write of the first shard, in flight when both shards are dropped, would overwrite data of the next shards.
#[test]
fn no_io_is_in_flight_when_shards_are_dropped_at_a_start() {
    for seed in 0..20 {
        let mode = [Mode::WriteThrough, Mode::WriteBack][seed as usize % 2];
        let next = half_an_image(200 + seed, mode).reboot(seed);
        let cache = next.cache.clone();
        let tombstones = Rc::new(Cell::new(0));
        let (seen, data) = (Rc::clone(&tombstones), next.geometry.data_offset());
        next.sim.set_observer(move |event| {
            if event.disk != cache.number() || event.stage != EventStage::Issued {
                return;
            }
            let write = event.op == DeviceOp::Write;
            seen.set(seen.get() + u64::from(write && event.offset >= data));
            if write && event.offset <= SUPERBLOCK_SLOTS[1] {
                let late = cache.moment().unlanded_writes();
                let late = late
                    .iter()
                    .filter(|write| write.offset > SUPERBLOCK_SLOTS[1])
                    .count();
                assert_eq!(
                    late, 0,
                    "seed {seed}, {mode}: writes of shards that are thrown away"
                );
            }
        });
        next.sim.block_on(async {
            let live = next.open().await;
            assert!(!matches!(live.cache.start, Start::Warm(_)), "{mode}");
            assert!(tombstones.get() > 0, "{mode}");
            live.check_all().await;
        });
    }
}

/// The first shard makes space for its tombstones, and moves dirty blocks for that. Then it is dropped with the second
/// shard: the log, which is read instead, must have the moved blocks.
#[test]
fn blocks_moved_by_a_dropped_shard_are_found_by_the_next() {
    let mut moved = 0;
    for seed in 0..20 {
        let next = half_an_image(300 + seed, Mode::WriteBack).reboot(seed);
        let voids = Rc::new(Cell::new(0));
        let (seen, number) = (Rc::clone(&voids), next.cache.number());
        next.sim.set_observer(move |event| {
            let discards = event.disk == number && event.op == DeviceOp::Discard;
            seen.set(seen.get() + u64::from(discards && event.stage == EventStage::Issued));
        });
        next.sim.block_on(async {
            let live = next.open().await;
            moved += voids.get();
            assert_eq!(live.cache.start, Start::Recovered, "seed {seed}");
            live.check_all().await;
            live.cleaned().await;
            live.check_all().await;
        });
        next.unwatch();
        let last = next.reboot(seed);
        last.check();
    }
    assert!(moved > 0, "no region was reclaimed");
}
