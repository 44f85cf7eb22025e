//! No space: dirty blocks up to their limit, on caches of every size.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceOp, Env, IoBuf};
use flaz_engine::format::manifest::RegionUse;
use flaz_engine::format::summary::Summary;
use flaz_engine::settings::Mode;
use flaz_engine::shard::WRITES_IN_FLIGHT_MAX;
use flaz_engine::volume::{IoError, Volume};
use flaz_sim::{DiskConfig, EventStage, FaultRates, Rng};
use futures_util::future::{Either, join, join_all, select};

use crate::faults::world::{BLOCK, BLOCKS, Left, Live, STRIPE, World, contents};

/// A cache device with space for the metadata and `regions` regions.
fn sized(seed: u64, regions: u64, dirty_percent: u8) -> World {
    let world = World::sized(seed, Mode::WriteBack, (192 << 10) + regions * (128 << 10));
    world.dirty_percent.set(dirty_percent);
    world
}

/// The smallest cache that can be created.
fn regions_min() -> u64 {
    (3..20)
        .find(|&regions| {
            let env = flaz_sim::Sim::new(0);
            let disk = flaz_sim::SimDisk::new(
                &env.env(),
                flaz_sim::DiskConfig::fast((192 << 10) + regions * (128 << 10)),
            );
            env.block_on(flaz_engine::cache::create(
                &disk,
                crate::faults::world::options(1),
            ))
            .is_ok()
        })
        .expect("some size is enough")
}

#[test]
fn a_full_dirty_cache_throttles_writers_and_continues() {
    let least = regions_min();
    for (regions, dirty_percent) in [
        (least, 50),
        (least, 1),
        (least + 1, 50),
        (8, 50),
        (8, 25),
        (46, 50),
    ] {
        let world = sized(regions, regions, dirty_percent);
        world.sim.block_on(async {
            let live = world.serve().await;
            for turn in 0..2 {
                let writers = (0..16).map(|writer| {
                    let live = &live;
                    async move {
                        for block in (writer..BLOCKS).step_by(16) {
                            live.write(block).await;
                        }
                    }
                });
                join_all(writers).await;
                if turn == 0 {
                    live.warm(0..BLOCKS).await;
                }
                live.check_all().await;
            }
            let stats = live.stats();
            assert!(
                stats.counts.dirty_waits > 0,
                "{regions}, {dirty_percent} %: no limit"
            );
            assert!(stats.holdings.dirty_device_bytes <= stats.holdings.dirty_limit_bytes);
            assert!(!live.failed());
            live.cleaned().await;
            world.assert_origin_complete(&live);
            live.stop().await.expect("stops in order");
        });
        world.check();
    }
}

/// The device stalls for a while, and more writes arrive than may be in flight: they wait, in a queue that does not grow,
/// while reads of uncached blocks go to the origin.
#[test]
fn full_queues_hold_writes_up_and_fail_nothing() {
    let world = sized(4, 46, 90);
    world.sim.block_on(async {
        let live = world.serve().await;
        world.cache.stall(Duration::from_secs(5));
        let begun = live.env.now();
        let writes = join_all((0..BLOCKS / 2).map(|block| live.write(block)));
        let reads = async {
            join_all((BLOCKS / 2..BLOCKS).map(|block| live.read(block))).await;
            live.env.now().since(begun)
        };
        let (_, read_in) = join(writes, reads).await;
        assert!(read_in < Duration::from_secs(5), "reads waited for a place");
        assert!(live.env.now().since(begun) >= Duration::from_secs(5));
        let stats = live.stats();
        assert!(stats.counts.cache_writes_full > 0, "nothing was full");
        let peak = stats.holdings.cache_writes.peak;
        assert!(
            peak <= 2 * WRITES_IN_FLIGHT_MAX as u64,
            "{peak} writes were under way"
        );
        assert!(!stats.holdings.cache_failed);
        live.check_all().await;
        live.volume.flush().await.expect("both devices are well");
    });
    world.reboot(5).check();
}

/// The origin fails for a while, and dirty blocks reach the limit; then the process is killed.
#[test]
fn a_full_dirty_cache_recovers_and_continues() {
    for (regions, dirty_percent) in [(regions_min(), 50), (8, 50), (12, 50)] {
        let world = sized(100 + regions, regions, dirty_percent);
        world.sim.block_on(async {
            let live = world.serve().await;
            world.origin.set_dead(true);
            let mut block = 0;
            while live.try_write(block).await.is_ok() {
                // Earlier blocks are written repeatedly: regions with dirty blocks are reclaimed.
                for _ in 0..3 {
                    if live.try_write(block / 2).await.is_err() {
                        break;
                    }
                }
                block += 1;
                assert!(block < BLOCKS, "there is no limit");
            }
            assert!(live.dirty() > 0);
            for block in 0..block / 2 {
                live.read(block).await;
            }
        });
        world.origin.set_dead(false);
        let next = world.reboot(regions);
        next.sim.block_on(async {
            let live = next.serve().await;
            for block in 0..64 {
                live.write(block).await;
            }
            live.volume.flush().await.expect("flushes");
            live.cleaned().await;
            live.stop().await.expect("stops in order");
        });
    }
}

/// The region that is being reclaimed, if only one free region is left.
fn victim(world: &World) -> Option<u32> {
    let manifest = world.manifest(&world.cache.snapshot());
    let free = manifest
        .iter()
        .filter(|entry| matches!(entry.state, RegionUse::Free | RegionUse::Recovering));
    let tight = free.count() <= 1;
    let victim = manifest
        .iter()
        .position(|entry| entry.state == RegionUse::Reclaiming);
    victim.filter(|_| tight).map(|number| number as u32)
}

/// Damages every extent of a region.
fn damage(world: &World, number: u32) {
    let geometry = &world.geometry;
    let start = geometry.region_offset(0, number);
    let region = world.cache.peek(start, geometry.region_bytes as usize);
    let summary = Summary::parse(&region).expect("it has one");
    for extent in &summary.extents {
        let header_bytes = geometry.header_bytes() as u64;
        if u64::from(extent.len) > header_bytes {
            world
                .cache
                .flip_bit(start + u64::from(extent.offset) + header_bytes + 20, 3);
        }
    }
}

impl Live {
    /// The version of each block, `None` if it is lost.
    async fn versions(&self) -> Vec<Option<u64>> {
        let mut versions = Vec::new();
        for block in 0..BLOCKS {
            versions.push(match self.try_read(block).await {
                Ok(version) => Some(version),
                Err(IoError::DirtyLost { .. }) => None,
                Err(error) => panic!("{error}"),
            });
        }
        versions
    }
}

/// The process is killed during a reclaim with one region left, and dirty blocks in the reclaimed region have rotted. There
/// is space for the records that these are lost, and for the other blocks.
#[test]
pub fn a_crash_in_a_reclaim_leaves_room_for_lost_records() {
    let (mut tried, mut lost) = (0, 0);
    for seed in 0..8 {
        let world = sized(200 + seed, 8, 50);
        let moments = world.sim.block_on(async {
            let live = world.serve().await;
            let moments = world.watch();
            let mut rng = Rng::new(seed);
            for block in 0..80 {
                live.write(block).await;
            }
            // Dirty blocks stay dirty, and are moved by each reclaim that the reads cause.
            world.origin.set_faults(FaultRates {
                write_error_ppm: 1_000_000,
                ..FaultRates::default()
            });
            for _ in 0..80 {
                let _ = live.try_write(rng.below(80)).await;
                let first = 256 + rng.below(1000);
                live.warm(first..first + 8).await;
            }
            world.unwatch();
            moments.take()
        });
        let landed = moments
            .iter()
            .filter(|moment| moment.is(true, EventStage::Completed, DeviceOp::Write))
            .filter(|moment| world.in_regions(moment.offset));
        for moment in landed {
            let next = world.boot(seed, moment.kill(Left::Nothing, Left::Everything));
            let Some(victim) = victim(&next) else { continue };
            tried += 1;
            damage(&next, victim);
            let seen = next.sim.block_on(async { next.serve().await.versions().await });
            lost += seen.iter().filter(|version| version.is_none()).count();
            let last = next.reboot(seed + 1);
            last.sim.block_on(async {
                let live = last.serve().await;
                assert_eq!(
                    live.versions().await,
                    seen,
                    "seed {seed}, event {}",
                    moment.number
                );
                let writes = async {
                    for block in 0..BLOCKS {
                        live.write(block).await;
                    }
                };
                let late = live.env.sleep(Duration::from_secs(3600));
                assert!(
                    matches!(select(pin!(writes), pin!(late)).await, Either::Left(_)),
                    "seed {seed}, event {}: writers wait for ever",
                    moment.number
                );
                live.check_all().await;
                live.cleaned().await;
                live.stop().await.expect("stops in order");
            });
        }
    }
    assert!(tried > 20 && lost > 50, "{tried} crashes, {lost} lost");
}

/// A same-filled block has no fragment, but counts towards the records that a region may have.
#[test]
fn blocks_of_zeroes_are_held_up_at_the_dirty_limit_like_others() {
    for parts in [1, 32] {
        let world = sized(8, 8, 50);
        world.sim.block_on(async {
            let live = world.serve().await;
            world.origin.set_dead(true);
            let writers = (0..parts).map(|part| {
                let live = &live;
                async move {
                    for block in (part..BLOCKS).step_by(parts as usize) {
                        let zeroes = [IoBuf::zeroed(BLOCK as usize)].into();
                        if live.volume.write(block * BLOCK, zeroes, false).await.is_err() {
                            return true;
                        }
                    }
                    false
                }
            });
            let late = live.env.sleep(Duration::from_secs(120));
            let refused = match select(pin!(join_all(writers)), pin!(late)).await {
                Either::Left((refused, _)) => refused,
                Either::Right(_) => panic!("{parts}: writers wait for ever"),
            };
            assert!(refused.contains(&true), "{parts}: there is no limit");
            let reclaimed = live.stats().counts.regions_reclaimed;
            assert!(reclaimed < 20, "{parts}: {reclaimed} regions were moved about");
            assert!(live.dirty() > 300, "{parts}: only {} fit", live.dirty());
            world.origin.set_dead(false);
            live.cleaned().await;
            live.stop().await.expect("stops in order");
        });
    }
}

#[test]
fn a_stop_while_writers_wait_for_a_dead_origin_ends() {
    let world = sized(7, 8, 50);
    world.sim.block_on(async {
        let live = world.serve().await;
        world.origin.set_dead(true);
        let writers = (0..BLOCKS).map(|block| live.try_write(block));
        let outcomes = join_all(writers).await;
        let refused = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        assert!(refused > 100 && refused < BLOCKS as usize);
        let begun = live.env.now();
        let env = live.env.clone();
        live.stop().await.expect_err("the origin cannot be flushed");
        assert!(env.now().since(begun) < Duration::from_secs(60));
    });
    world.origin.set_dead(false);
    let next = world.reboot(8);
    next.sim.block_on(async {
        let live = next.serve().await;
        assert!(live.dirty() > 0);
        live.cleaned().await;
    });
}

/// A writer that waited for the writeback worker and was dropped must not hurry it indefinitely: a single dirty block waits
/// for others.
#[test]
fn a_dropped_writer_waiting_for_room_is_forgotten() {
    let world = sized(9, 8, 50);
    world.sim.block_on(async {
        let live = world.serve().await;
        world.origin.set_dead(true);
        let writers = join_all((0..BLOCKS).map(|block| live.try_write(block)));
        let all_clean = live.cache.clean_all();
        let soon = live.env.sleep(Duration::from_secs(1));
        let waiting = join(writers, all_clean);
        select(pin!(waiting), pin!(soon)).await;
        assert!(live.stats().counts.dirty_waits > 0, "nobody waited");
        world.origin.set_dead(false);
        live.cleaned().await;
        live.write(5).await;
        live.env.sleep(Duration::from_millis(500)).await;
        assert_eq!(live.dirty(), 1, "cleaned at once");
        live.cleaned().await;
    });
}

/// Eight regions, on a device with such slow flushes that reclaim is slow.
fn slow_to_reclaim(seed: u64) -> World {
    let cache = DiskConfig {
        flush_latency: Duration::from_millis(200)..=Duration::from_millis(200),
        ..DiskConfig::fast((192 << 10) + 8 * (128 << 10))
    };
    World::on(seed, Mode::WriteBack, cache, 1)
}

/// Reads blocks, which then wait to be stored.
async fn queue(live: &Live, blocks: std::ops::Range<u64>) {
    let reads = blocks
        .step_by(8)
        .map(|block| live.volume.read(block * BLOCK, 8 * BLOCK as u32));
    for outcome in join_all(reads).await {
        outcome.expect("the origin is well");
    }
}

/// Writes the first version of adjacent blocks in one request. Returns the time it took.
async fn write_many(live: &Live, first: u64, count: u64) -> Duration {
    let begun = live.env.now();
    let data: Vec<u8> = (first..first + count)
        .flat_map(|block| contents(block, 1))
        .collect();
    let data = [IoBuf::copy_of(&data)].into();
    live.volume
        .write(first * BLOCK, data, false)
        .await
        .expect("writes");
    live.env.now().since(begun)
}

/// Space that a write reserved and does not need is available for the next one, regardless of the writeback worker.
#[test]
fn a_write_that_fits_after_packing_waits_for_no_writeback() {
    let world = sized(10, 8, 50);
    // Packing is spread over the cores, so that another write runs in between.
    world.sim.set_parallelism(4);
    world.sim.block_on(async {
        let live = world.serve().await;
        world.origin.stall(Duration::from_secs(60));
        let writes = join(write_many(&live, 0, 40), write_many(&live, STRIPE, 30)).await;
        assert!(live.stats().counts.dirty_waits > 0, "both fit at once");
        for took in [writes.0, writes.1] {
            assert!(took < Duration::from_secs(1), "{took:?}");
        }
        assert_eq!(live.dirty(), 70);
    });
}

/// Nothing is dirty, a write with a permit waits for a region, and another does not fit in the limit with it: it waits, and
/// does not keep the writeback worker busy.
#[test]
fn a_write_that_waits_while_nothing_is_dirty_does_so_quietly() {
    let world = slow_to_reclaim(11);
    world.sim.block_on(async {
        let live = world.serve().await;
        queue(&live, 512..BLOCKS).await;
        live.env.sleep(Duration::from_millis(50)).await;
        assert!(live.stats().holdings.admission_queue > 50, "there is room");
        // None of these blocks is small enough for a gap in which no other block fits.
        let data = |seed| {
            let mut data = vec![0; 40 * BLOCK as usize];
            Rng::new(seed).fill(&mut data);
            [IoBuf::copy_of(&data)].into()
        };
        world.sim.set_step_limit(world.sim.steps() + 100_000);
        let writes = join(
            live.volume.write(0, data(1), false),
            live.volume.write(STRIPE * BLOCK, data(2), false),
        );
        let looks = async {
            live.env.sleep(Duration::from_millis(10)).await;
            assert_eq!(live.dirty(), 0, "the first one has found a place");
            assert!(live.stats().counts.dirty_waits > 0, "both fit at once");
        };
        let (outcomes, ()) = join(writes, looks).await;
        outcomes.0.expect("writes");
        outcomes.1.expect("writes");
    });
}

/// A read of the origin fails, and a request that had joined it reads again: by then the block was written and is dirty,
/// and the origin's data is old. While that data waits to be stored, the block is cleaned and its region reclaimed: the
/// index no longer shows that it was cached.
#[test]
fn origin_data_under_a_lost_dirty_block_is_not_cached() {
    let world = slow_to_reclaim(12);
    world.sim.block_on(async {
        let live = world.serve().await;
        // The queue is long: all regions are filled more than once before it is empty.
        queue(&live, 256..BLOCKS).await;
        assert!(live.stats().holdings.admission_queue > 50, "there is room");
        world.origin.stall(Duration::from_secs(2));
        world.origin.fail_nth(DeviceOp::Read, 1);
        let readers = join(live.try_read(5), live.try_read(5));
        let writer = async {
            live.env.sleep(Duration::from_millis(1)).await;
            live.write(5).await;
            assert_eq!(world.origin.stats().errors, 0, "the write came too late");
        };
        let ((first, second), ()) = join(readers, writer).await;
        first.expect_err("the origin failed it");
        assert_eq!(second.expect("read again"), 0, "the origin had nothing newer");
        assert_eq!(live.stats().counts.joined_reads, 1);
        live.stored().await;
        live.cleaned().await;
        live.read(5).await;
        live.read(5).await;
        world.check_twice(&live).await;
    });
}

/// Dirty blocks that reclaim moves while they are on the worker's list are written to the origin anyway, before the request
/// for that is acknowledged.
#[test]
fn blocks_moved_during_a_drain_are_written_back_too() {
    let world = sized(13, 12, 50);
    let blocks: Vec<u64> = (0..40).map(|block| 2 * block).collect();
    world.sim.block_on(async {
        let live = world.serve().await;
        // A pass is running when a drain is requested: it covers one block. The next pass is delayed.
        live.write(STRIPE).await;
        let (origin, begun) = (world.origin.clone(), Rc::new(Cell::new(false)));
        let seen = Rc::clone(&begun);
        world
            .sim
            .set_observer(move |event| match (event.op, event.stage) {
                (DeviceOp::Write, EventStage::Issued) if event.disk == origin.number() => seen.set(true),
                (DeviceOp::Flush, EventStage::Completed) if event.disk == origin.number() => {
                    origin.stall(Duration::from_secs(10));
                }
                _ => {}
            });
        world.origin.stall(Duration::from_secs(4));
        while !begun.get() {
            live.env.sleep(Duration::from_millis(100)).await;
        }
        for &block in &blocks {
            live.write(block).await;
        }
        let others = async {
            while live.dirty() != blocks.len() as u64 {
                live.env.sleep(Duration::from_millis(10)).await;
            }
            world.unwatch();
            live.env.sleep(Duration::from_millis(100)).await;
            for turn in 0..4000 {
                live.write(STRIPE + turn % 4).await;
                if live.stats().counts.dirty_moved_blocks > 2 * blocks.len() as u64 {
                    break;
                }
            }
        };
        let cleaned = async {
            let outcome = live.cache.clean_all().await;
            let left: Vec<u64> = blocks
                .iter()
                .copied()
                .filter(|&block| world.on_origin(block) == 0)
                .collect();
            (outcome, left)
        };
        let ((outcome, left), ()) = join(cleaned, others).await;
        assert!(live.stats().counts.dirty_moved_blocks > 0, "none was moved");
        outcome.expect("the origin takes everything");
        assert!(left.is_empty(), "not on the origin: {left:?}");
    });
}

/// A block that is rewritten constantly while everything is cleaned stays dirty, and is not damaged: the user must not be
/// told to discard it.
#[test]
fn a_block_rewritten_constantly_stays_dirty_not_damaged() {
    let world = sized(14, 12, 50);
    world.sim.block_on(async {
        let live = world.serve().await;
        live.write(5).await;
        let again = async {
            loop {
                live.write(5).await;
            }
        };
        match select(pin!(live.cache.clean_all()), pin!(again)).await {
            Either::Left((cleaned, _)) => cleaned.expect("what was dirty then is on the origin"),
            Either::Right(_) => unreachable!("it has no end"),
        }
        let holdings = live.stats().holdings;
        assert_eq!((holdings.dirty_blocks, holdings.damaged_blocks), (1, 0));
        live.cleaned().await;
    });
}
