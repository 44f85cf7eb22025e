//! An index in pages on the cache device: pages that are damaged, rolled back, or cannot be read or written.

use std::ops::Range;

use flaz_device::DeviceOp;
use flaz_engine::format::manifest::{ManifestEntry, RegionUse};
use flaz_engine::planted::page_index;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};
use flaz_sim::{DiskConfig, EventStage};

use super::growth::ALL_MODES;
use super::world::{BLOCKS, Left, Live, World};

/// Blocks that are used. Their pages do not fit in memory.
const USED: u64 = 300;

/// A cache with an area for index pages.
fn world(seed: u64, mode: Mode) -> World {
    page_index(true);
    let world = World::sized(seed, mode, 8 << 20);
    assert!(world.geometry.index_bytes > 0, "it has an area");
    world
}

/// Each block has its latest version, or fails: the latter only if the device was fenced and blocks are dirty. Returns how many fail.
async fn right_or_refused(live: &Live) -> u64 {
    let mut refused = 0;
    for block in 0..USED {
        match live.try_read(block).await {
            Ok(version) => assert_eq!(version, live.expected(block), "block {block} is stale"),
            Err(IoError::CacheFailed(_) | IoError::DirtyLost { .. }) => {
                assert!(live.failed() && live.dirty() > 0);
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    refused
}

/// Writes some blocks and reads all.
async fn used(live: &Live) {
    live.warm(0..USED).await;
    for block in (0..USED).step_by(3) {
        live.write(block).await;
    }
    live.volume.flush().await.expect("the devices are well");
    right_or_refused(live).await;
}

/// Starts again after a kill: the log has everything.
fn recovers(world: &World) {
    let next = world.reboot(99);
    next.sim.block_on(async {
        let live = next.open().await;
        assert_eq!(right_or_refused(&live).await, 0);
        let counts = live.stats().counts;
        assert!(counts.hit_blocks > 0, "it is warm");
        live.stop().await.expect("stops in order");
    });
}

#[test]
fn pages_come_and_go() {
    for mode in ALL_MODES {
        let world = world(1, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            used(&live).await;
            let (counts, holdings) = (live.stats().counts, live.stats().holdings);
            assert!(
                holdings.index_pages > 2 * holdings.index_pages_in_memory,
                "{mode}"
            );
            assert!(
                counts.index_page_reads > 0 && counts.index_page_writes > 0,
                "{mode}"
            );
            live.stop().await.expect("stops in order");
        });
        recovers(&world);
    }
}

/// Each sector of the area has a wrong bit from now on.
fn rot(world: &World) {
    for sector in 0..world.geometry.index_bytes / 512 {
        let at = world.geometry.index_offset() + sector * 512 + 40;
        world.cache.flip_bit(at, 1);
    }
}

/// All pages on the device are rotten at once: those that are used are rebuilt from the log. If that goes on, the device is fenced.
#[test]
fn damaged_pages_are_never_used() {
    for mode in ALL_MODES {
        let world = world(2, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            used(&live).await;
            rot(&world);
            assert_eq!(right_or_refused(&live).await, 0, "{mode}");
            let rebuilt = live.stats().counts.index_pages_rebuilt;
            assert!(rebuilt > 10 && !live.failed(), "{mode}: {rebuilt} rebuilt");
            for _ in 0..10 {
                rot(&world);
                right_or_refused(&live).await;
            }
            assert!(live.failed(), "{mode}: pages are damaged again and again");
            for block in (0..USED).step_by(7) {
                let _ = live.try_write(block).await;
            }
            right_or_refused(&live).await;
        });
        if world.mode == Mode::WriteBack {
            // What was written past the cache is on the origin, and the dirty blocks are in the log.
            recovers(&world);
        }
    }
}

/// A slot with the changes of several pages, or one between pages and their changes, cannot be read. One rebuild replaces all pages that
/// depend on it, and it is not used again: otherwise, each page would cost errors of the device, which is fenced after eight.
#[test]
fn an_unreadable_slot_fences_no_device() {
    for (mode, at) in [Mode::WriteThrough, Mode::WriteBack]
        .into_iter()
        .flat_map(|mode| [2, 3].map(|at| (mode, at)))
    {
        let mut most = 0;
        for row in 0..4 {
            let world = world(2, mode);
            world.sim.block_on(async {
                let live = world.open().await;
                used(&live).await;
                // The page of one block is always in memory.
                let change_all = async || {
                    for n in 0..USED {
                        live.write(n * 37 % USED).await;
                        assert_eq!(live.try_read(7).await.ok(), Some(live.expected(7)));
                    }
                };
                for _ in 0..10 {
                    change_all().await;
                }
                let slot = world.geometry.index_offset() + (8 * row + at) * 512;
                world.cache.mark_bad(slot, 512);
                for _ in 0..4 {
                    assert_eq!(right_or_refused(&live).await, 0, "{mode}, row {row}");
                    change_all().await;
                }
                assert!(!live.failed(), "{mode}, slot {at} of row {row}");
                most = most.max(live.stats().counts.index_pages_rebuilt);
            });
        }
        let expected = if at == 3 { 4..=7 } else { 1..=1 };
        assert!(expected.contains(&most), "{mode}: {most} pages were rebuilt");
    }
}

/// The power fails at each event of some reclaims. The next start finds one unfinished, and then pages are damaged.
#[test]
fn pages_are_rebuilt_after_a_reclaim_that_was_cut_short() {
    page_index(true);
    for mode in ALL_MODES {
        let world = World::sized(7, mode, (192 << 10) + 10 * (128 << 10));
        world.policy.set(PolicyKind::S3Fifo);
        let (moments, before) = world.sim.block_on(async {
            let live = world.open().await;
            used(&live).await;
            live.volume.flush().await.expect("the devices are well");
            let (moments, versions) = (world.watch(), world.versions.borrow().clone());
            let before = live.stats().counts.regions_reclaimed;
            let mut block = USED;
            while live.stats().counts.regions_reclaimed < before + 4 {
                live.warm(block % BLOCKS..block % BLOCKS + 32).await;
                for block in (0..USED).step_by(11) {
                    live.write(block).await;
                }
                block += 32;
            }
            (moments, versions)
        });
        let (mut states, mut unfinished, mut rebuilt) = (0, 0, 0);
        for moment in moments.take() {
            let changes = matches!(moment.op, DeviceOp::Write | DeviceOp::Discard)
                && moment.stage == EventStage::Completed;
            if !moment.on_cache || !changes || moment.number % 5 > 0 {
                continue;
            }
            for left in Left::ALL {
                let next = world.boot(moment.number, moment.kill(left, Left::Everything));
                let manifest = next.manifest(&next.cache.snapshot());
                let is_reclaiming = |entry: &ManifestEntry| entry.state == RegionUse::Reclaiming;
                unfinished += u64::from(manifest.iter().any(is_reclaiming));
                next.sim.block_on(async {
                    let live = next.open().await;
                    for _ in 0..2 {
                        rot(&next);
                        for block in 0..USED {
                            let version = live.try_read(block).await.expect("no block is lost");
                            let least = before.get(&block).copied().unwrap_or(0);
                            assert!(version >= least, "block {block} is stale");
                        }
                    }
                    assert!(!live.failed());
                    rebuilt += live.stats().counts.index_pages_rebuilt;
                });
                states += 1;
            }
        }
        assert!(
            states > 20 && unfinished > 3 && rebuilt > 100,
            "{mode}: {states}, {unfinished}, {rebuilt}"
        );
    }
    page_index(false);
}

/// A page cannot be read, and neither can a region of the log: the page cannot be rebuilt.
#[test]
fn a_page_is_not_rebuilt_from_a_part_of_the_log() {
    for mode in ALL_MODES {
        let world = world(2, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            used(&live).await;
            used(&live).await;
            let start = world.geometry.region_offset(0, 0);
            let len = world.geometry.region_bytes as usize;
            world.cache.poke(start, &vec![0; len]);
            rot(&world);
            right_or_refused(&live).await;
            assert!(live.failed(), "{mode}: a region is gone");
        });
    }
}

/// The area is again as it was some time ago: each page is an older version of itself, and then also another one.
pub fn rolled_back_pages_are_never_used() {
    let world = world(3, Mode::WriteBack);
    world.sim.block_on(async {
        let live = world.open().await;
        let (start, len) = (world.geometry.index_offset(), world.geometry.index_bytes as usize);
        let mut before = Vec::new();
        for _ in 0..40 {
            used(&live).await;
            before.push(world.now().0.read(start, len));
        }
        for old in before.iter().rev().skip(1) {
            let mut same = world.now().0.read(start, len);
            for now in same.chunks_exact_mut(512) {
                // Pages begin with their first block.
                let is_older =
                    |old: &&[u8]| now[..5] == old[..5] && *now != **old && old[8..16] == now[8..16];
                if let Some(old) = old.chunks_exact(512).find(is_older) {
                    now.copy_from_slice(old);
                }
            }
            for area in [&same, old] {
                world.cache.poke(start, area);
                right_or_refused(&live).await;
            }
        }
        assert!(live.failed(), "a page is not the latest");
    });
}

#[test]
fn rolled_back_pages_are_found() {
    rolled_back_pages_are_never_used();
}

/// One failure of a read or a write of pages at a time changes nothing.
#[test]
fn single_failures_of_pages_change_nothing() {
    for op in [DeviceOp::Read, DeviceOp::Write] {
        let world = world(4, Mode::WriteBack);
        world.sim.block_on(async {
            let live = world.open().await;
            used(&live).await;
            for round in 0..6 {
                world.cache.fail_nth(op, 1 + round);
                used(&live).await;
                assert!(!live.failed(), "{op:?}");
            }
        });
        recovers(&world);
    }
}

/// A cache in use, whose index was left by a clean stop, in the next boot; and how many blocks it had.
fn stopped(seed: u64, mode: Mode) -> (World, u64) {
    let world = world(seed, mode);
    let cached = world.sim.block_on(async {
        let live = world.open().await;
        used(&live).await;
        live.stored().await;
        let cached = live.stats().holdings.cached_blocks;
        assert_eq!(live.dirty() > 0, mode == Mode::WriteBack);
        live.stop().await.expect("stops in order");
        cached
    });
    (world.reboot(seed), cached)
}

/// Opens a cache that has all blocks, after reading `regions` of the log, and stops it.
fn warm(world: &World, cached: u64, regions: Range<u64>) {
    world.sim.block_on(async {
        let live = world.open().await;
        assert!(
            regions.contains(&live.cache.recovered.regions),
            "{:?}",
            live.cache.recovered
        );
        assert_eq!(live.stats().holdings.cached_blocks, cached);
        if regions == FROM_IMAGE {
            assert_eq!(live.stats().counts.index_page_reads, 0, "nothing was looked up");
        }
        assert_eq!(right_or_refused(&live).await, 0);
        assert!(!live.failed());
        live.stored().await;
        live.stop().await.expect("stops in order");
    });
}

const FROM_IMAGE: Range<u64> = 0..1;
const FROM_LOG: Range<u64> = 1..u64::MAX;

#[test]
fn a_start_after_a_clean_stop_reads_pages_and_not_the_log() {
    for mode in ALL_MODES {
        let (mut world, cached) = stopped(5, mode);
        for boot in 0..3 {
            assert_eq!(world.damage(), [""; 0], "{mode}");
            warm(&world, cached, FROM_IMAGE);
            world = world.reboot(boot);
        }
        // As a table, and in pages again.
        for (paged, regions) in [(false, FROM_LOG), (false, FROM_IMAGE), (true, FROM_LOG)] {
            page_index(paged);
            warm(&world, cached, regions);
            world = world.reboot(3);
        }
    }
}

/// While the cache is not served, a page is damaged.
#[test]
fn pages_that_were_damaged_since_the_stop_cost_a_slow_start() {
    for mode in ALL_MODES {
        let (world, cached) = stopped(6, mode);
        let (start, len) = (world.geometry.index_offset(), world.geometry.index_bytes as usize);
        let was = world.now().0.read(start, len);
        let in_use = |sector: &&[u8]| sector[8..16] != [0; 8];
        let count = was.chunks_exact(512).filter(in_use).count();
        let mut slow = 0;
        for slot in 0..len / 512 {
            if !in_use(&&was[slot * 512..][..512]) {
                continue;
            }
            let next = world.boot(slot as u64, world.now());
            next.cache.flip_bit(start + slot as u64 * 512 + 20, 1);
            let damaged = !next.damage().is_empty();
            warm(&next, cached, if damaged { FROM_LOG } else { FROM_IMAGE });
            slow += usize::from(damaged);
        }
        assert!(slow > 5 && slow <= count, "{mode}: {slow} of {count}");
        // The image itself, in a region that the log does not use.
        let state = world.geometry.shard_state_offset(0);
        let page = world.now().0.read(state, 4096);
        let region = u32::from_le_bytes(page[52..56].try_into().expect("4 bytes"));
        let next = world.boot(1, world.now());
        next.cache
            .flip_bit(next.geometry.region_offset(0, region) + 40, 1);
        warm(&next, cached, FROM_LOG);
    }
}

/// Uses a cache, and stops it while the write with this number fails. Returns whether it was stopped, and how many writes succeeded.
fn stopped_with_failure(mode: Mode, nth: Option<u64>) -> (World, bool, u64) {
    let world = world(7, mode);
    let (is_stopped, writes) = world.sim.block_on(async {
        let live = world.open().await;
        used(&live).await;
        live.stored().await;
        let before = world.cache.stats().writes;
        if let Some(nth) = nth {
            world.cache.fail_nth(DeviceOp::Write, nth);
        }
        let is_stopped = live.stop().await.is_ok();
        (is_stopped, world.cache.stats().writes - before)
    });
    (world, is_stopped, writes)
}

/// The cache device fails a write during the stop.
#[test]
fn a_stop_whose_writes_fail_leaves_nothing_stale() {
    for mode in ALL_MODES {
        let (_, is_stopped, writes) = stopped_with_failure(mode, None);
        assert!(is_stopped && writes > 5, "{mode}: {writes}");
        let mut stopped = 0;
        for nth in 1..=writes {
            let (world, is_stopped, _) = stopped_with_failure(mode, Some(nth));
            world.reboot(nth).check();
            stopped += u64::from(is_stopped);
        }
        // A failed write of a page is repeated, others end the use of the cache.
        assert!((1..writes).contains(&stopped), "{mode}: {stopped} of {writes}");
    }
}

/// While the cache is not served, a slot becomes what it was at the stop before.
#[test]
fn pages_that_were_rolled_back_since_the_stop_cost_a_slow_start() {
    let (world, _) = stopped(8, Mode::WriteBack);
    let (start, len) = (world.geometry.index_offset(), world.geometry.index_bytes as usize);
    let before = world.now().0.read(start, len);
    let cached = world.sim.block_on(async {
        let live = world.open().await;
        used(&live).await;
        live.stored().await;
        let cached = live.stats().holdings.cached_blocks;
        live.stop().await.expect("stops in order");
        cached
    });
    let world = world.reboot(8);
    let now = world.now().0.read(start, len);
    let mut slow = 0;
    for (slot, (old, new)) in before.chunks_exact(512).zip(now.chunks_exact(512)).enumerate() {
        if old == new {
            continue;
        }
        let next = world.boot(slot as u64, world.now());
        next.cache.poke(start + slot as u64 * 512, old);
        let is_in_use = !next.damage().is_empty();
        warm(&next, cached, if is_in_use { FROM_LOG } else { FROM_IMAGE });
        slow += u64::from(is_in_use);
    }
    assert!(slow > 1, "{slow}");
}

/// The area is full of other pages: a clean stop leaves no image, and the log has all blocks.
#[test]
fn a_stop_that_cannot_write_all_pages_leaves_no_image() {
    page_index(true);
    let cache = DiskConfig {
        alignment: 4096,
        ..DiskConfig::fast(1 << 20)
    };
    let world = World::on(9, Mode::WriteBack, cache, 1);
    let slots = world.geometry.index_bytes / 4096;
    let cached = world.sim.block_on(async {
        let live = world.open().await;
        used(&live).await;
        live.stored().await;
        let holdings = live.stats().holdings;
        assert!(
            holdings.index_pages > slots,
            "{} in {slots}",
            holdings.index_pages
        );
        live.stop().await.expect("stops in order");
        holdings.cached_blocks
    });
    warm(&world.reboot(9), cached, FROM_LOG);
}

/// One shard is warm and drops blocks whose intent is set, the index of another one is damaged: all are recovered from the log.
#[test]
fn a_warm_shard_that_is_recovered_after_all_leaves_nothing_behind() {
    page_index(true);
    for seed in 0..8 {
        let world = World::shards(seed, Mode::WriteBack, 2);
        assert!(world.geometry.index_bytes > 0, "it has an area");
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..2 * USED).await;
            used(&live).await;
            live.stop().await.expect("stops in order");
        });
        let next = world.reboot(seed);
        next.cache.flip_bit(next.geometry.shard_intent_offset(0) + 20, 1);
        let start = next.geometry.shard_index_offset(1);
        for slot in 0..next.geometry.shard_index_len() / 512 {
            next.cache.flip_bit(start + slot * 512 + 20, 1);
        }
        next.sim.block_on(async {
            let live = next.open().await;
            assert!(live.cache.recovered.regions > 0);
            for _ in 0..3 {
                assert_eq!(right_or_refused(&live).await, 0);
                used(&live).await;
            }
            assert!(!live.failed());
            live.stop().await.expect("stops in order");
        });
    }
}
