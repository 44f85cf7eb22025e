//! Rotten bits, misdirected writes, torn extents, with dirty blocks in the cache.

use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

use flaz_device::{DeviceOp, Env, IoBuf};
use flaz_engine::cache::CacheError;
use flaz_engine::format::extent::{ExtentHeader, header_copy_bytes};
use flaz_engine::format::geometry::SUPERBLOCK_SLOTS;
use flaz_engine::format::manifest::RegionUse;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};
use flaz_sim::{CrashPlan, DiskImage, EventStage, FaultRates};
use futures_util::future::{Either, select};

use super::world;
use crate::faults::world::{BLOCK, Live, World, Wrong, contents};

/// Reads a block, which must be correct or refused. Returns whether it was refused.
async fn right_or_refused(live: &Live, block: u64) -> bool {
    match live.try_read(block).await {
        Ok(version) => {
            assert_eq!(version, live.expected(block), "block {block} is stale");
            false
        }
        Err(IoError::DirtyLost { block: lost }) => {
            assert_eq!(lost, block);
            true
        }
        Err(error) => panic!("{error}"),
    }
}

/// A cache that was stopped with 64 dirty blocks and 64 clean ones, with rot in both.
fn rotten(seed: u64) -> World {
    let world = world(seed);
    world.sim.block_on(async {
        let live = world.serve().await;
        live.warm(64..128).await;
        for block in 0..64 {
            live.write(block).await;
        }
        live.volume.flush().await.expect("flushes");
        live.stop().await.expect("stops in order");
    });
    let (start, len) = (world.geometry.data_offset(), 128 * 2200);
    for _ in 0..60 {
        world.cache.rot(start, len);
    }
    world
}

#[test]
fn bit_rot_misses_clean_blocks_and_fails_dirty_ones() {
    let world = rotten(1);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in 64..128 {
            live.read(block).await;
        }
        let mut lost = Vec::new();
        for block in 0..64 {
            if right_or_refused(&live, block).await {
                lost.push(block);
            }
        }
        assert!(lost.len() > 5 && lost.len() < 60, "{} lost", lost.len());
        let (&first, rest) = lost.split_first().expect("some are");
        // A partial write does not restore the rest.
        let part = [IoBuf::copy_of(&contents(first, 9)[..512])].into();
        live.volume
            .write(first * BLOCK, part, false)
            .await
            .expect_err("the rest is lost");
        assert!(right_or_refused(&live, first).await);
        live.write(first).await;
        live.read(first).await;
        // Zeroes over the whole block do.
        let last = *rest.last().expect("more than one");
        live.volume
            .write_zeroes(last * BLOCK, BLOCK, true, false)
            .await
            .expect("whole");
        let zeroes = live.volume.read(last * BLOCK, BLOCK as u32).await.expect("reads");
        assert!(zeroes[0].iter().all(|&byte| byte == 0));
        // Unreadable blocks cannot be written back; all others can.
        live.cache.clean_all().await.expect_err("some are lost");
        assert_eq!(live.dirty(), lost.len() as u64 - 2);
        for &block in &rest[..rest.len() - 1] {
            assert_eq!(world.on_origin(block), 0);
            live.write(block).await;
        }
        live.cache.clean_all().await.expect("all of it can be read");
        assert_eq!(live.dirty(), 0);
    });
}

/// The reported reason for dirty blocks must lead the user to the right device; and the number of lost blocks must be the
/// number to write again.
#[test]
fn damage_is_counted_as_damage_until_overwritten() {
    let world = rotten(2);
    world.sim.block_on(async {
        let live = world.serve().await;
        live.env.sleep(Duration::from_secs(30)).await;
        let lost = live.dirty();
        assert!(lost > 5 && lost < 60, "{lost} lost");
        let holdings = || live.stats().holdings;
        assert_eq!(
            (holdings().writeback_failing, holdings().damaged_blocks),
            (0, lost)
        );
        for block in 0..64 {
            let _ = right_or_refused(&live, block).await;
            let _ = right_or_refused(&live, block).await;
        }
        assert_eq!(holdings().damaged_blocks, lost, "each counts once");
        live.write(100).await;
        world.origin.set_dead(true);
        live.env.sleep(Duration::from_secs(10)).await;
        assert_eq!(
            (holdings().writeback_failing, holdings().damaged_blocks),
            (1, lost)
        );
        world.origin.set_dead(false);
        for block in 0..64 {
            live.write(block).await;
        }
        live.cleaned().await;
        // The writeback worker pauses before it reports its result.
        live.env.sleep(Duration::from_secs(5)).await;
        assert_eq!((holdings().writeback_failing, holdings().damaged_blocks), (0, 0));
    });
}

/// A block that the writeback worker cannot read, but another task can before the pass ends, does not become clean by that.
#[test]
fn a_dirty_block_readable_again_is_written_back() {
    let world = world(3);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in [5, 300] {
            live.write(block).await;
            live.volume.flush().await.expect("flushes");
        }
    });
    let next = world.reboot(4);
    next.sim.block_on(async {
        let live = next.serve().await;
        let fragment = next.geometry.data_offset() + next.geometry.header_bytes() as u64 + 100;
        next.cache.flip_bit(fragment, 3);
        live.try_read(5).await.expect_err("it is damaged");
        next.origin.set_faults(FaultRates {
            stall_ppm: 1_000_000,
            stall: Duration::from_secs(2),
            ..FaultRates::default()
        });
        // Readable while the origin flushes the other blocks, and damaged again when the worker retries it.
        let (cache, origin, damaged) = (next.cache.clone(), next.origin.number(), Cell::new(true));
        next.sim.set_observer(move |event| {
            let well = match (event.op, event.stage) {
                (DeviceOp::Flush, EventStage::Issued) => true,
                (DeviceOp::Flush, EventStage::Completed) => false,
                _ => return,
            };
            if event.disk == origin && damaged.replace(!well) == well {
                cache.flip_bit(fragment, 3);
            }
        });
        let others = async {
            for turn in (0..8).cycle() {
                live.write(300 + 2 * turn).await;
                live.env.sleep(Duration::from_secs(1)).await;
                let _ = live.try_read(5).await;
            }
        };
        match select(pin!(live.cache.clean_all()), pin!(others)).await {
            Either::Left((cleaned, _)) => {
                let on_origin = next.on_origin(5);
                assert!(
                    cleaned.is_err() || on_origin == 1,
                    "{cleaned:?}, version {on_origin}"
                );
            }
            Either::Right(_) => unreachable!("it has no end"),
        }
        next.unwatch();
        next.cache.poke(fragment, &world.cache.peek(fragment, 1));
        live.cleaned().await;
        next.assert_origin_complete(&live);
    });
}

/// A read finds a damaged extent, and its block is written again. The damage must not refuse the start after a crash, although the
/// header that recovery would walk by is damaged too.
#[test]
fn healed_damage_does_not_refuse_a_later_start() {
    let world = world(3);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in [5, 300] {
            live.write(block).await;
            live.volume.flush().await.expect("flushes");
        }
        let extent = world.geometry.data_offset();
        world.cache.flip_bit(extent + 30, 3);
        world
            .cache
            .flip_bit(extent + world.geometry.header_bytes() as u64 + 100, 3);
        live.try_read(5).await.expect_err("it is damaged");
        live.write(5).await;
        live.volume.flush().await.expect("flushes");
        live.env.sleep(Duration::from_millis(100)).await;
    });
    let next = world.reboot(4);
    next.sim.block_on(async {
        let live = next.serve().await;
        live.check_all().await;
        assert!(live.dirty() > 0, "the log was recovered");
    });
}

/// The device has acknowledged writes of the manifest and lost them. The index image would not fit the older manifest, and the
/// log that it describes lacks dirty blocks.
#[test]
fn a_clean_stop_replaces_a_manifest_that_lost_writes() {
    let world = world(3);
    world.sim.block_on(async {
        let live = world.serve().await;
        let (start, len) = (world.geometry.manifest_offset(), world.geometry.manifest_len());
        let older = world.cache.peek(start, len as usize);
        for block in 0..64 {
            live.write(block).await;
        }
        live.volume.flush().await.expect("flushes");
        live.env.sleep(Duration::from_millis(100)).await;
        assert_ne!(
            older,
            world.cache.peek(start, len as usize),
            "regions were opened"
        );
        world.cache.poke(start, &older);
        live.stop().await.expect("stops in order");
    });
    let next = world.reboot(4);
    next.sim.block_on(async {
        let live = next.serve().await;
        for block in 0..64 {
            assert!(
                !right_or_refused(&live, block).await,
                "block {block} is on the device"
            );
        }
    });
}

/// After a clean stop, one sector of the manifest is as it was after the stop before. What the index image knows and the manifest
/// does not would be read from the origin, or recovered from an older record.
#[test]
fn a_manifest_older_than_the_index_image_refuses_the_start() {
    let world = world(3);
    let at = |sector: u32, copy| world.geometry.manifest_sector_offset(0, sector, copy);
    let len = world.geometry.sector_bytes as usize;
    let both = |disk: &DiskImage, sector| [0, 1].map(|copy| disk.read(at(sector, copy), len));
    let fill = || {
        world.sim.block_on(async {
            let live = world.serve().await;
            for block in 0..400 {
                live.write(block).await;
            }
            live.volume.flush().await.expect("flushes");
            live.stop().await.expect("stops in order");
        });
    };
    fill();
    let old = world.cache.snapshot();
    fill();
    let mut refused = 0;
    for sector in 0..world.geometry.shard_manifest_sectors() {
        let (next, before) = (world.reboot(4), refused);
        for (copy, older) in both(&old, sector).iter().enumerate() {
            next.cache.poke(at(sector, copy), older);
        }
        next.sim.block_on(async {
            match next.try_open().await {
                Ok(live) => {
                    for block in 0..400 {
                        live.read(block).await;
                    }
                }
                Err(CacheError::DirtyUnreadable { why }) => {
                    assert!(why.to_string().contains("contradict"), "{why}");
                    refused += 1;
                    // A service is started again and again.
                    match next.try_open().await {
                        Err(CacheError::DirtyUnreadable { why }) => {
                            assert!(why.to_string().contains("earlier start"), "{why}");
                        }
                        Err(error) => panic!("{error}"),
                        Ok(_) => panic!("the next start follows the log"),
                    }
                }
                Err(error) => panic!("{error}"),
            }
        });
        let found = next.damage();
        let says = found.iter().any(|finding| finding.contains("earlier start"));
        assert_eq!(says, refused > before, "{found:?}");
    }
    assert!(refused > 0, "the second turn used other regions");
}

#[test]
fn a_lost_dirty_block_stays_lost_over_reclaim_stop_and_crash() {
    let world = rotten(2);
    let lost = world.sim.block_on(async {
        let live = world.serve().await;
        let mut lost = Vec::new();
        for block in 0..64 {
            if right_or_refused(&live, block).await {
                lost.push(block);
            }
        }
        // Every region is reclaimed.
        while live.stats().counts.regions_reclaimed < 60 {
            live.warm(512..1536).await;
            live.write(100).await;
        }
        live.env.sleep(Duration::from_secs(5)).await;
        for &block in &lost {
            assert!(right_or_refused(&live, block).await, "block {block} is back");
        }
        lost
    });
    let next = world.reboot(3);
    next.sim.block_on(async {
        let live = next.serve().await;
        for &block in &lost {
            assert!(right_or_refused(&live, block).await, "block {block} is back");
        }
        live.stop().await.expect("stops in order");
        let live = next.serve().await;
        for &block in &lost {
            assert!(right_or_refused(&live, block).await, "block {block} is back");
        }
    });
}

#[test]
fn misdirected_and_lost_writes_fail_dirty_blocks() {
    let mut refused = 0;
    for seed in 0..20 {
        let world = world(seed);
        world.sim.block_on(async {
            let live = world.serve().await;
            world.cache.set_faults(FaultRates {
                write_misdirected_ppm: 30_000,
                write_lost_ppm: 30_000,
                ..FaultRates::default()
            });
            for block in (0..300).chain(0..100) {
                let _ = live.try_write(block).await;
            }
            world.cache.set_faults(FaultRates::default());
            for block in 0..300 {
                refused += u32::from(right_or_refused(&live, block).await);
            }
        });
    }
    assert!(refused > 20, "only {refused}");
}

/// Some sectors of an unflushed extent are present after a power cut: its record is ignored, and the previous version is
/// served.
#[test]
fn a_torn_extent_is_ignored_and_the_older_version_served() {
    let world = world(5);
    let moments = world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..12 {
            live.write(block).await;
        }
        live.volume.flush().await.expect("flushes");
        let moments = world.watch();
        for block in 0..12 {
            live.write(block).await;
            // A write in flight does not count as acknowledged.
            live.env.sleep(Duration::from_micros(10)).await;
        }
        world.unwatch();
        moments.take()
    });
    let torn: Vec<_> = moments
        .iter()
        .filter(|m| m.is(true, EventStage::Completed, DeviceOp::Write) && world.in_regions(m.offset))
        .collect();
    assert!(torn.len() >= 12);
    for moment in torn {
        let (first, last) = (moment.offset / 512, (moment.offset + moment.len) / 512);
        for sectors in [1, 2, 3] {
            let cut = (
                moment
                    .cache
                    .cut(|_, sector| !(first + sectors..last).contains(&sector)),
                moment.origin.cut(|_, _| true),
                moment.memory,
            );
            let next = world.boot(sectors, cut);
            next.sim.block_on(async {
                let live = next.serve().await;
                let mut old = 0;
                for block in 0..12 {
                    let version = live.try_read(block).await.expect("none is lost");
                    assert!(version == 1 || version == 2, "block {block} is version {version}");
                    old += u32::from(version == 1);
                }
                assert!(old > 0, "the torn one is believed");
                assert_eq!(live.stats().counts.checksum_failures, 0);
            });
        }
    }
}

/// The contract does not cover this, least of all in write-back; but nothing panics, no block returns another's data, and a
/// gap before stable data is detected.
#[test]
fn lying_flushes_cause_detected_gaps_and_no_panic() {
    let mut gaps = 0;
    for seed in 0..40 {
        let world = world(seed);
        world.sim.block_on(async {
            let live = world.serve().await;
            world.cache.set_faults(FaultRates {
                flush_lie_ppm: 1_000_000,
                ..FaultRates::default()
            });
            for block in (0..400).chain(0..200) {
                live.write(block).await;
            }
            if seed % 2 == 0 {
                live.cleaned().await;
            }
            live.volume.flush().await.expect("it lies");
        });
        let cut = (
            world.cache.crash(&CrashPlan::Random(seed)),
            world.origin.crash(&CrashPlan::Nothing),
            world.host.memory(),
        );
        let next = world.boot(seed, cut);
        next.sim.block_on(async {
            let live = match next.try_open().await {
                Ok(live) => live,
                Err(CacheError::DirtyUnreadable { why }) => {
                    gaps +=
                        u32::from(why.to_string().contains("stable") || why.to_string().contains("is gone"));
                    return;
                }
                Err(_) => return,
            };
            for block in 0..400 {
                // Some version of this block, or an error.
                if let Ok(version) = live.try_read(block).await {
                    assert!(version <= live.expected(block));
                }
            }
        });
    }
    assert!(gaps > 10, "{gaps} gaps were seen");
}

/// One sector cannot be read when the cache is opened: all other data is present, and no older data than was written.
#[test]
fn a_sector_that_cannot_be_read_at_a_start_costs_what_is_in_it() {
    let region = 128 << 10;
    let front = |world: &World| {
        let intents = world.geometry.intent_offset();
        // The newer superblock is in the second slot: without it the cache looks like an older copy of itself.
        let manifest = world.geometry.manifest_sector_offset(0, 0, 0);
        [
            (SUPERBLOCK_SLOTS[0], "superblock"),
            (manifest, "manifest"),
            (intents, "intents"),
        ]
    };
    for seed in 0..4 {
        let world = world(seed);
        world.sim.block_on(async {
            let live = world.serve().await;
            live.warm(0..800).await;
            for block in 0..40 {
                live.write(block * 3).await;
            }
            live.volume.flush().await.expect("flushes");
        });
        let regions = (0..8).flat_map(|number| {
            let start = world.geometry.data_offset() + number * region;
            let end = start + region;
            let full = world.manifest(&world.cache.snapshot())[number as usize].state == RegionUse::Full;
            // Read together with a summary.
            let places = [(end - 512, "summary"), (end - (20 << 10), "contents")];
            places.into_iter().filter(move |_| full)
        });
        for (offset, what) in front(&world).into_iter().chain(regions) {
            let next = world.reboot(seed + 1);
            next.cache.mark_bad(offset, 512);
            next.sim.block_on(async {
                let live = next.serve().await;
                assert!(live.dirty() > 0, "{what} at {offset}");
                let counts = live.stats().counts;
                // Failed reads of superblocks and the manifest are reported by a warning.
                let failed = counts.cache_read_errors;
                let is_counted = match what {
                    "intents" => failed == 1,
                    "summary" => failed > 0,
                    // They may be read together with a summary, more than once.
                    "contents" => true,
                    _ => failed == 0,
                };
                assert!(is_counted, "{what} at {offset}: {failed} failed reads");
                assert_eq!(counts.cache_write_errors, 0, "{what} at {offset}");
                live.check_all().await;
                live.cleaned().await;
                next.assert_origin_complete(&live);
            });
        }
    }
}

/// Of writes that were flushed one by one, none is lost silently when a bit rots in the open region and the process is
/// killed: a damaged header has a copy, reading damaged contents gives an error, and if it is unknown which data is missing,
/// the start is refused. Immediately after the last reply the manifest may not have the mark yet.
#[test]
fn bit_rot_in_an_open_region_loses_no_flushed_block() {
    for after_ms in [0, 1200] {
        rots_while_it_is_filled(Duration::from_millis(after_ms));
    }
}

fn rots_while_it_is_filled(after: Duration) {
    let world = world(33);
    world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..8 {
            live.write(block).await;
        }
        for block in 0..8 {
            live.write(block).await;
            live.volume.flush().await.expect("flushes");
        }
        live.env.sleep(after).await;
        assert_eq!(live.dirty(), 8);
    });
    let noted = !after.is_zero();
    let header_bytes = world.geometry.header_bytes();
    let extents: Vec<u64> = (world.geometry.data_offset()..world.geometry.data_offset() + (128 << 10))
        .step_by(512)
        .filter(|&at| ExtentHeader::parse(&world.cache.peek(at, header_bytes), header_bytes).is_ok())
        .collect();
    assert!(extents.len() >= 16, "each write was an extent: {extents:?}");
    let told = match noted {
        true => &extents[..],
        false => &extents[..extents.len() - 1],
    };
    let open = |damage: &dyn Fn(&World)| {
        let next = world.reboot(34);
        damage(&next);
        let opened = next.sim.block_on(next.try_open());
        (next, opened)
    };
    let whole = |extent: u64| {
        let header =
            ExtentHeader::parse(&world.cache.peek(extent, header_bytes), header_bytes).expect("it is one");
        (
            header.extent_bytes as usize,
            header_copy_bytes(header.record_count.into()) as u64,
        )
    };
    // The copy of the header tells the records.
    for (&extent, kind) in told
        .iter()
        .flat_map(|extent| (0..3).map(move |kind| (extent, kind)))
    {
        let (next, opened) = open(&|next| match kind {
            0 => next.cache.flip_bit(extent + 8, 0),
            1 => next.cache.poke(extent, &[0; 512]),
            _ => next.cache.mark_bad(extent, 512),
        });
        next.sim.block_on(async {
            let live = opened.unwrap_or_else(|error| panic!("header at {extent}: {error}"));
            let mut lost = 0;
            for block in 0..8 {
                lost += u32::from(right_or_refused(&live, block).await);
            }
            // A sector of the header may also have a part of a fragment.
            assert!(lost <= u32::from(kind > 0), "header at {extent}: {lost} blocks");
        });
    }
    for (&extent, all) in told
        .iter()
        .flat_map(|extent| [true, false].map(|all| (extent, all)))
    {
        let (len, copied) = whole(extent);
        let (_, opened) = open(&|next| match all {
            true => next.cache.poke(extent, &vec![0; len]),
            false => {
                next.cache.flip_bit(extent + 8, 0);
                next.cache.flip_bit(extent + len as u64 - copied, 0);
            }
        });
        match opened.map(|_| ()) {
            Err(CacheError::DirtyUnreadable { why }) => {
                assert!(why.to_string().contains("were stable"), "{why}");
            }
            other => panic!("extent at {extent}: {other:?}"),
        }
    }
    for &extent in &told[8..] {
        let (next, opened) = open(&|next| next.cache.flip_bit(extent + header_bytes as u64 + 100, 0));
        next.sim.block_on(async {
            let live = opened.unwrap_or_else(|error| panic!("contents at {extent}: {error}"));
            let mut lost = 0;
            for block in 0..8 {
                lost += u32::from(right_or_refused(&live, block).await);
            }
            assert_eq!(lost, 1, "contents at {extent}");
        });
    }
}

/// A cache that stores hot blocks again at reclaim: of 12 regions, so that they are reclaimed soon.
fn hot_world(seed: u64, mode: Mode) -> World {
    let world = World::sized(seed, mode, (192 << 10) + 12 * (128 << 10));
    world.policy.set(PolicyKind::SecondTouch);
    world
}

/// Damages hot blocks, and has their region reclaimed: its intact fragments, and damaged ones if they are moved unverified,
/// are then in the open region.
async fn move_rotten(world: &World, live: &Live) {
    for blocks in [0..50, 50..400] {
        live.warm(blocks.clone()).await;
        live.warm(blocks).await;
    }
    for block in 0..50 {
        assert!(live.is_cached(block), "block {block} entered at its second miss");
        live.read(block).await;
    }
    // About every third fragment of the region that was filled first; its summary stays.
    for at in (300..110 << 10).step_by(6 << 10) {
        world.cache.flip_bit(world.geometry.data_offset() + at, 3);
    }
    let mut block = 400;
    while live.stats().counts.regions_reclaimed == 0 {
        live.warm(block..block + 4).await;
        live.warm(block..block + 4).await;
        block += 4;
        assert!(block < 1000, "no region is reclaimed");
    }
    let moved = live.stats().counts.reinserted_blocks;
    assert!(moved > 20, "only {moved} are written again");
}

/// Writes that are acknowledged and stable, in the open region; then the process is killed.
async fn write_behind(live: &Live) {
    for block in 1024..1028 {
        live.write(block).await;
    }
    live.volume.flush().await.expect("flushes");
    assert!(live.dirty() > 0, "they are not dirty");
}

fn assert_kept(world: &World, seed: u64) {
    let next = world.reboot(seed);
    next.sim.block_on(async {
        let live = next.serve().await;
        for block in 1024..1028 {
            assert!(!right_or_refused(&live, block).await, "block {block} is lost");
        }
        next.check_twice(&live).await;
        live.cleaned().await;
        next.assert_origin_complete(&live);
    });
}

/// Reclaim stores hot clean blocks again before any block is dirty, some of them rotten. If recovery took an extent with them for a torn
/// one, dirty blocks beyond it would be lost.
#[test]
fn bit_rot_before_the_first_dirty_block_hides_none() {
    let world = hot_world(6, Mode::WriteBack);
    world.sim.block_on(async {
        let live = world.serve().await;
        move_rotten(&world, &live).await;
        write_behind(&live).await;
    });
    assert_kept(&world, 7);
}

/// The same if the region was filled in write-through, and is filled further after a clean stop.
#[test]
fn bit_rot_before_a_stop_hides_no_later_dirty_block() {
    let mut world = hot_world(8, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        move_rotten(&world, &live).await;
        live.stop().await.expect("stops in order");
    });
    world.mode = Mode::WriteBack;
    world.sim.block_on(async {
        let live = world.serve().await;
        write_behind(&live).await;
    });
    assert_kept(&world, 9);
}

/// The same if the mode is changed while the cache is served.
#[test]
fn bit_rot_in_write_through_hides_no_later_dirty_block() {
    let mut world = hot_world(10, Mode::WriteThrough);
    let mut live = world.sim.block_on(async {
        let live = world.open().await;
        move_rotten(&world, &live).await;
        live
    });
    world.mode = Mode::WriteBack;
    world.sim.block_on(async {
        live.cache.permit_write_back().await.expect("the device is well");
        world.switch(&live, Mode::WriteBack);
        write_behind(&live).await;
    });
    drop(live);
    assert_kept(&world, 11);
}

/// Each read of a start after a kill returns a wrong bit, once, at one of several offsets, or zeroes: no acknowledged data
/// is lost, then or at the next start, because the medium is intact, and the start is not refused.
#[test]
fn one_wrong_read_at_a_start_loses_no_acknowledged_write() {
    let world = world(30);
    world.sim.block_on(async {
        let live = world.serve().await;
        live.warm(0..100).await;
        for block in (0..40).chain(0..60) {
            live.write(block).await;
        }
    });
    let read_all = |live: Live| async move {
        for block in 0..100 {
            live.read(block).await;
        }
    };
    let start = |seed: u64, wrong: Option<(u64, Wrong)>| {
        let next = world.reboot(seed);
        let reads = next.misread(wrong);
        let opened = next.sim.block_on(next.try_open());
        next.unwatch();
        let reads = reads.get();
        match opened {
            Ok(live) => next.sim.block_on(read_all(live)),
            Err(error) => panic!("refused after read {wrong:?}: {error}"),
        }
        let last = next.reboot(seed + 1);
        last.sim.block_on(async { read_all(last.open().await).await });
        reads
    };
    let reads = start(31, None);
    assert!(reads > 50, "only {reads}");
    for nth in 1..=reads {
        for wrong in [Wrong::Bit(0), Wrong::Bit(1), Wrong::Bit(8), Wrong::Zeroes] {
            start(31, Some((nth, wrong)));
        }
    }
}
