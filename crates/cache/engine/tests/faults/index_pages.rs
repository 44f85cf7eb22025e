//! An index in pages on the cache device: pages that are damaged, rolled back, or cannot be read or written.

use flaz_device::DeviceOp;
use flaz_engine::planted::page_index;
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};

use crate::growth::ALL_MODES;
use crate::world::{Live, World};

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

/// All pages on the device are rotten at once.
#[test]
fn damaged_pages_are_never_used() {
    for mode in ALL_MODES {
        let world = world(2, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            used(&live).await;
            for sector in 0..world.geometry.index_bytes / 512 {
                world
                    .cache
                    .flip_bit(world.geometry.index_offset() + sector * 512 + 40, 1);
            }
            right_or_refused(&live).await;
            assert!(live.failed(), "{mode}: a page is damaged");
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
