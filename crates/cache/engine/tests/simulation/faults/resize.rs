//! A cache grows and shrinks while it is served; the process is killed or the power fails at every event of that.

use std::time::Duration;

use flaz_device::{DeviceOp, Env};
use flaz_engine::cache::resize::Resizing;
use flaz_engine::cache::{CacheError, ResizeError};
use flaz_engine::format::geometry::{Geometry, REGIONS_MIN, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use flaz_sim::{DiscardMode, DiskConfig, EventStage, FaultRates};

use super::world::{BLOCKS, CACHE_LEN, CLEARED, Left, Live, Moment, World};

const MODES: [Mode; 2] = [Mode::WriteThrough, Mode::WriteBack];
/// Longest time that a shrink takes here.
const SHRINK_MOST: Duration = Duration::from_secs(600);

/// The bytes of a cache with so many regions.
fn bytes_of(geometry: &Geometry, regions: u32) -> u64 {
    geometry.region_offset(0, regions)
}

fn regions(live: &Live) -> u32 {
    live.cache.superblock().geometry.regions_per_shard
}

/// Changes the size until that is done.
async fn try_resize(live: &mut Live, len: u64) -> Result<(), CacheError> {
    let begun = live.env.now();
    let mut step = live.cache.begin_resize(len).await?;
    while let Resizing::Shrinking(state) = step {
        assert!(
            live.env.now().since(begun) < SHRINK_MOST,
            "it does not end: {state:?}"
        );
        live.env.sleep(Duration::from_millis(5)).await;
        step = live.cache.continue_resize().await?;
    }
    Ok(())
}

async fn resize(live: &mut Live, len: u64) {
    try_resize(live, len).await.expect("it is possible");
}

/// A full cache: clean blocks, and in write-back dirty ones too. All that was written is stable.
async fn filled(world: &World) -> Live {
    let live = world.open().await;
    live.warm(0..1000).await;
    for block in (0..BLOCKS).step_by(9) {
        live.write(block).await;
    }
    live.warm(1000..1400).await;
    live.volume.flush().await.expect("flushes");
    live.stored().await;
    live
}

/// Boots after a crash at each of these moments, or at most about so many, and reads everything. The cache has one of these numbers
/// of regions; the second one at every power cut after the first that leaves nothing unflushed and finds it. Returns at how many
/// moments which one was found.
fn crash_at_each(world: &World, moments: &[Moment], sizes: [u32; 2], most: usize) -> [u32; 2] {
    let changes = |moment: &&Moment| {
        let flushed = moment.op == DeviceOp::Flush && moment.stage == EventStage::Completed;
        moment.on_cache && (flushed || matches!(moment.op, DeviceOp::Write | DeviceOp::Discard))
    };
    let superblock =
        |moment: &Moment| moment.op == DeviceOp::Write && moment.offset < world.geometry.manifest_offset();
    let moments: Vec<&Moment> = moments.iter().filter(changes).collect();
    let step = moments.len().div_ceil(most);
    let mut found = [0; 2];
    let mut stable = false;
    for (number, moment) in moments.iter().enumerate() {
        let near = number.saturating_sub(2)..(number + 3).min(moments.len());
        if !number.is_multiple_of(step) && !moments[near].iter().any(|moment| superblock(moment)) {
            continue;
        }
        for (cut, disks) in [
            (true, moment.cut(Left::Nothing, Left::Nothing)),
            (false, moment.cut(Left::Everything, Left::Nothing)),
            (false, moment.kill(Left::Nothing, Left::Everything)),
        ] {
            let next = world.boot(moment.number, disks);
            let now = next.sim.block_on(async {
                let live = next.open().await;
                live.check_all().await;
                regions(&live)
            });
            let which = sizes.iter().position(|&size| size == now);
            let which = which.unwrap_or_else(|| panic!("{now} regions, expected one of {sizes:?}"));
            found[which] += 1;
            assert!(
                !stable || which == 1,
                "the old size is back at event {}",
                moment.number
            );
            stable |= cut && which == 1;
        }
    }
    found
}

#[test]
fn a_crash_in_a_shrink_leaves_the_old_or_the_new_cache() {
    for mode in MODES {
        let world = World::new(1, mode);
        let before = world.geometry.regions_per_shard;
        let moments = world.sim.block_on(async {
            let mut live = filled(&world).await;
            let dirty = live.dirty();
            assert_eq!(dirty > 100, mode == Mode::WriteBack, "{dirty} dirty blocks");
            let index_bytes = live.stats().holdings.index_bytes;
            let moments = world.watch();
            resize(&mut live, bytes_of(&world.geometry, 10)).await;
            world.unwatch();
            assert!(live.stats().holdings.index_bytes < index_bytes * 2 / 3);
            assert_eq!(regions(&live), 10);
            assert_eq!(
                live.stats().holdings.capacity_bytes,
                10 * world.geometry.region_bytes
            );
            live.check_all().await;
            moments
        });
        let found = crash_at_each(&world, &moments.take(), [before, 10], 60);
        assert!(found[0] > 30 && found[1] > 0, "{mode}: {found:?}");
        world.reboot(2).check();
    }
}

#[test]
fn a_crash_in_a_growth_leaves_the_old_or_the_new_cache() {
    for mode in MODES {
        let world = World::new(3, mode);
        let whole = world.geometry.regions_per_shard;
        let moments = world.sim.block_on(async {
            let mut live = world.open().await;
            resize(&mut live, bytes_of(&world.geometry, 12)).await;
            live.stop().await.expect("stops");
            let mut live = filled(&world).await;
            assert_eq!(regions(&live), 12);
            let moments = world.watch();
            resize(&mut live, CACHE_LEN).await;
            live.warm(1400..1700).await;
            world.unwatch();
            assert_eq!(regions(&live), whole);
            let used = live.stats().holdings.used_bytes;
            assert!(used > 14 * world.geometry.region_bytes, "{used} bytes are used");
            moments
        });
        let found = crash_at_each(&world, &moments.take(), [12, whole], 60);
        assert!(found[0] > 0 && found[1] > 30, "{mode}: {found:?}");
        world.reboot(4).check();
    }
}

/// The regions that are given up keep their bytes. When the cache grows again, the manifest calls them free.
#[test]
fn contents_of_given_up_regions_never_come_back() {
    for mode in MODES {
        let disk = DiskConfig {
            discard_mode: DiscardMode::Old,
            ..DiskConfig::fast(CACHE_LEN)
        };
        let world = World::on(5, mode, disk, 1);
        world.sim.block_on(async {
            let mut live = filled(&world).await;
            resize(&mut live, bytes_of(&world.geometry, 8)).await;
            // The last versions in the given-up regions are older than these.
            for block in 0..BLOCKS {
                live.write(block).await;
            }
            live.volume.flush().await.expect("flushes");
            live.env.sleep(CLEARED).await;
            resize(&mut live, CACHE_LEN).await;
            live.check_all().await;
            live.volume.flush().await.expect("flushes");
        });
        for left in Left::ALL {
            let (cache, origin) = (world.cache.crash(&left.plan()), world.origin.crash(&left.plan()));
            world.boot(6, (cache, origin, world.host.memory())).check();
        }
        let next = world.reboot(7);
        next.check();
        assert!(next.damage().is_empty(), "{:?}", next.damage());
    }
}

#[test]
fn a_resized_cache_stops_and_starts_warm() {
    for mode in MODES {
        let world = World::shards(8, mode, 2);
        world.sim.block_on(async {
            let mut live = filled(&world).await;
            resize(&mut live, bytes_of(&world.geometry, 9)).await;
            live.check_all().await;
            live.stop().await.expect("stops");
            let mut live = world.open().await;
            assert!(live.cache.start.keeps_contents());
            assert!(live.stats().holdings.cached_blocks > 100);
            assert_eq!(regions(&live), 9);
            resize(&mut live, CACHE_LEN).await;
            live.check_all().await;
            live.stop().await.expect("stops");
        });
        assert!(world.damage().is_empty(), "{:?}", world.damage());
        world.check();
    }
}

/// A stop calls the shrink off, and does not wait for it.
#[test]
fn a_stop_during_a_shrink_leaves_the_old_size() {
    for mode in MODES {
        let world = World::new(9, mode);
        let before = world.geometry.regions_per_shard;
        world.sim.block_on(async {
            let mut live = filled(&world).await;
            let step = live
                .cache
                .begin_resize(bytes_of(&world.geometry, REGIONS_MIN))
                .await;
            assert!(matches!(step, Ok(Resizing::Shrinking(state)) if state.regions_left > 10));
            let again = live.cache.begin_resize(CACHE_LEN).await;
            assert!(matches!(again, Err(CacheError::Resize(ResizeError::UnderWay))));
            live.stop().await.expect("stops");
            let live = world.open().await;
            assert!(live.cache.start.keeps_contents());
            assert_eq!(regions(&live), before);
            live.check_all().await;
        });
    }
}

#[test]
fn a_shrink_that_is_called_off_changes_only_what_is_cached() {
    for mode in MODES {
        let world = World::new(10, mode);
        let before = world.geometry.regions_per_shard;
        world.sim.block_on(async {
            let mut live = filled(&world).await;
            let limit = live.stats().holdings.dirty_limit_bytes;
            let step = live.cache.begin_resize(bytes_of(&world.geometry, 8)).await;
            assert!(matches!(step, Ok(Resizing::Shrinking(_))));
            assert!(
                live.stats().holdings.dirty_limit_bytes < limit,
                "writers are throttled at once"
            );
            live.env.sleep(Duration::from_millis(20)).await;
            live.cache.cancel_resize().await.expect("the shards are there");
            let gone = live.cache.continue_resize().await;
            assert!(matches!(gone, Err(CacheError::Resize(ResizeError::CalledOff))));
            assert_eq!(live.stats().holdings.dirty_limit_bytes, limit);
            live.warm(0..BLOCKS).await;
            let used = live.stats().holdings.used_bytes;
            assert!(used > 30 * world.geometry.region_bytes, "{used} bytes are used");
            live.check_all().await;
            assert_eq!(regions(&live), before);
        });
        world.reboot(11).check();
    }
}

#[test]
fn dirty_data_that_does_not_fit_refuses_a_shrink() {
    let world = World::new(12, Mode::WriteBack);
    let before = world.geometry.regions_per_shard;
    world.dirty_percent.set(50);
    world.sim.block_on(async {
        let mut live = world.open().await;
        world.origin.set_faults(FaultRates {
            write_error_ppm: 1_000_000,
            ..FaultRates::default()
        });
        for block in 0..400 {
            live.write(block).await;
        }
        let refused = try_resize(&mut live, bytes_of(&world.geometry, REGIONS_MIN)).await;
        assert!(
            matches!(refused, Err(CacheError::Resize(ResizeError::Dirty { bytes })) if bytes > 0),
            "{refused:?}"
        );
        assert_eq!(regions(&live), before);
        world.origin.set_faults(FaultRates::default());
        live.env.sleep(Duration::from_secs(3)).await;
        resize(&mut live, bytes_of(&world.geometry, REGIONS_MIN)).await;
        live.check_all().await;
    });
    world.reboot(13).check();
}

#[test]
fn impossible_sizes_and_a_fenced_cache_are_refused() {
    let world = World::new(14, Mode::WriteThrough);
    world.sim.block_on(async {
        let mut live = filled(&world).await;
        let least = bytes_of(&world.geometry, REGIONS_MIN);
        let error = |outcome: Result<(), CacheError>| match outcome {
            Err(CacheError::Resize(error)) => error,
            other => panic!("expected a refusal, found {other:?}"),
        };
        let small = error(try_resize(&mut live, least - 1).await);
        assert!(
            matches!(small, ResizeError::Size { least: named, .. } if named == least),
            "{small}"
        );
        let large = error(try_resize(&mut live, CACHE_LEN + 4096).await);
        assert!(
            matches!(large, ResizeError::DeviceTooSmall { found: CACHE_LEN, .. }),
            "{large}"
        );
        world.cache.set_dead(true);
        while !live.failed() {
            live.warm(1400..1600).await;
            live.env.sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(error(try_resize(&mut live, least).await), ResizeError::Fenced);
        world.cache.set_dead(false);
    });
}

/// The device fails during a shrink.
#[test]
fn a_fence_during_a_shrink_calls_it_off() {
    for mode in MODES {
        let world = World::new(15, mode);
        world.sim.block_on(async {
            let mut live = filled(&world).await;
            let step = live.cache.begin_resize(bytes_of(&world.geometry, 8)).await;
            assert!(matches!(step, Ok(Resizing::Shrinking(_))));
            for nth in 1..20 {
                world.cache.fail_nth(DeviceOp::Write, nth);
            }
            let mut outcome = Ok(Resizing::Done);
            for _ in 0..10_000 {
                outcome = live.cache.continue_resize().await;
                if outcome.is_err() {
                    break;
                }
                live.env.sleep(Duration::from_millis(5)).await;
            }
            let refused = matches!(outcome, Err(CacheError::Resize(ResizeError::Fenced)));
            assert!(refused, "{mode}: {outcome:?}");
            live.check_all().await;
        });
        world.reboot(16).check();
    }
}

/// The flushes of the cache device up to the first write of a superblock, of these events.
fn flushes_before_superblock(world: &World, moments: &[Moment]) -> u64 {
    let superblock = |moment: &Moment| {
        moment.is(true, EventStage::Issued, DeviceOp::Write)
            && moment.offset < world.geometry.shard_state_offset(0)
    };
    let before = moments.iter().take_while(|moment| !superblock(moment));
    before
        .filter(|moment| moment.is(true, EventStage::Issued, DeviceOp::Flush))
        .count() as u64
}

/// A flush before or after the write of the superblock fails. The shards use the smaller size, which is right whatever the device
/// has; after a crash it has either.
#[test]
fn a_superblock_that_cannot_be_written_loses_nothing() {
    for mode in MODES {
        for (from, to) in [(46, 10), (10, 46)] {
            let len = |world: &World, regions| match regions {
                46 => CACHE_LEN,
                _ => bytes_of(&world.geometry, regions),
            };
            let run = |fail: Option<u64>| {
                let world = World::new(17, mode);
                let moments = world.sim.block_on(async {
                    let mut live = filled(&world).await;
                    resize(&mut live, len(&world, from)).await;
                    let moments = world.watch();
                    if let Some(nth) = fail {
                        world.cache.fail_nth(DeviceOp::Flush, nth);
                    }
                    let outcome = try_resize(&mut live, len(&world, to)).await;
                    world.unwatch();
                    if fail.is_some() {
                        assert!(
                            matches!(outcome, Err(CacheError::Device(_))),
                            "{mode}: {outcome:?}"
                        );
                        assert_eq!(regions(&live), 10, "{mode}: the smaller one");
                    }
                    live.check_all().await;
                    moments.take()
                });
                (world, moments)
            };
            let (world, moments) = run(None);
            let before = flushes_before_superblock(&world, &moments);
            assert!(before > 0, "one precedes the superblock");
            for nth in [before, before + 1] {
                let (world, _) = run(Some(nth));
                for left in Left::ALL {
                    let (cache, origin) = (world.cache.crash(&left.plan()), world.origin.crash(&left.plan()));
                    world.boot(18, (cache, origin, world.host.memory())).check();
                }
            }
        }
    }
}

/// The superblock cannot be written, and the command is repeated: when that succeeds, no start finds another size.
#[test]
fn a_repeated_resize_leaves_no_other_size() {
    let mut repeated = 0;
    for (from, to) in [(46, 10), (10, 46)] {
        let len = |world: &World, regions| match regions {
            46 => CACHE_LEN,
            _ => bytes_of(&world.geometry, regions),
        };
        for op in [DeviceOp::Write, DeviceOp::Flush] {
            for nth in 1..40 {
                let world = World::new(23, Mode::WriteThrough);
                let again = world.sim.block_on(async {
                    let mut live = filled(&world).await;
                    resize(&mut live, len(&world, from)).await;
                    world.cache.fail_nth(op, nth);
                    let failed = try_resize(&mut live, len(&world, to)).await.is_err();
                    failed && try_resize(&mut live, len(&world, to)).await.is_ok()
                });
                if !again {
                    continue;
                }
                repeated += 1;
                for left in Left::ALL {
                    let (cache, origin) = (world.cache.crash(&left.plan()), world.origin.crash(&left.plan()));
                    for slot in SUPERBLOCK_SLOTS {
                        let bytes = cache.read(slot, SUPERBLOCK_BYTES);
                        let found = Superblock::parse(&bytes, cache.len()).expect("it is whole");
                        assert_eq!(found.geometry.regions_per_shard, to, "{op} {nth}, {left:?}");
                    }
                    world.boot(24, (cache, origin, world.host.memory())).check();
                }
            }
        }
    }
    assert!(repeated > 0, "some commands failed and were repeated");
}

/// A cache on a sparse file: new regions take space when they are used, and the others are given up with or without it.
#[test]
fn a_sparse_cache_grows_and_shrinks() {
    for mode in MODES {
        let world = World::new(19, mode);
        world.cache.set_space(64 << 20);
        world.sim.block_on(async {
            let mut live = world.open().await;
            live.warm(0..300).await;
            resize(&mut live, bytes_of(&world.geometry, 9)).await;
            live.check_all().await;
            assert_eq!(
                live.stats().holdings.capacity_bytes,
                9 * world.geometry.region_bytes
            );
            resize(&mut live, CACHE_LEN).await;
            assert!(live.stats().holdings.withheld_bytes > 30 * world.geometry.region_bytes);
            for block in 0..BLOCKS {
                live.write(block).await;
            }
            live.warm(0..BLOCKS).await;
            assert!(live.stats().holdings.withheld_bytes < 10 * world.geometry.region_bytes);
            live.check_all().await;
            live.volume.flush().await.expect("flushes");
        });
        world.reboot(20).check();
    }
}
