//! The required orderings in write-back, by name; each test fails if its ordering is broken.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceOp, Env};
use flaz_engine::format::geometry::{SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use flaz_sim::EventStage;
use futures_util::future::join_all;

use super::world;
use crate::faults::world::{BLOCKS, Found, Left, Moment, World};

use DeviceOp::{Flush, Write};
use EventStage::{Completed, Issued};

/// Index of the first moment from `from` on that fits.
fn find(moments: &[Moment], from: usize, fits: impl Fn(&Moment) -> bool) -> usize {
    let found = moments[from..].iter().position(fits);
    from + found.expect("it happens")
}

/// When a write is acknowledged, its extent and every earlier one of its region have landed: a kill that loses everything
/// in flight keeps it.
#[test]
pub fn a_write_is_acknowledged_after_its_extents_landed() {
    let world = world(1);
    let states: Rc<RefCell<Vec<(u64, Found)>>> = Rc::default();
    world.sim.block_on(async {
        let live = world.serve().await;
        let clients = (0..8).map(|client| {
            let (live, states, world) = (&live, &states, &world);
            async move {
                for block in (client..64).step_by(8) {
                    live.write(block).await;
                    let cut = |disk: &flaz_sim::SimDisk| disk.moment().kill(Left::Nothing.plan().chooser());
                    let found = (cut(&world.cache), cut(&world.origin), world.host.memory());
                    states.borrow_mut().push((block, found));
                }
            }
        });
        join_all(clients).await;
    });
    assert_eq!(states.borrow().len(), 64);
    for (block, found) in states.take() {
        let next = world.boot(block, found);
        next.sim.block_on(async {
            let live = next.serve().await;
            assert_eq!(live.try_read(block).await.expect("reads"), 1, "block {block}");
        });
    }
}

#[test]
pub fn the_cache_is_flushed_before_writeback_to_the_origin() {
    let world = world(2);
    let moments = world.sim.block_on(async {
        let live = world.serve().await;
        let moments = world.watch();
        for block in 0..16 {
            live.write(block).await;
        }
        live.cleaned().await;
        world.unwatch();
        moments.take()
    });
    let origin = find(&moments, 0, |m| m.is(false, Issued, Write));
    let landed = moments[..origin]
        .iter()
        .rposition(|m| m.is(true, Completed, Write) && world.in_regions(m.offset))
        .expect("it has landed");
    let flush = find(&moments, landed, |m| m.is(true, Issued, Flush));
    let flushed = find(&moments, flush, |m| m.is(true, Completed, Flush));
    assert!(flushed < origin);
    // The origin may have any part of it now, and the cache device has everything.
    for left in Left::ALL {
        let next = world.boot(3, moments[origin].cut(left, Left::Everything));
        next.sim.block_on(async {
            let live = next.serve().await;
            next.check_twice(&live).await;
        });
    }
}

#[test]
pub fn the_origin_is_flushed_before_blocks_are_recorded_as_clean() {
    let world = world(4);
    let moments = world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..16 {
            live.write(block).await;
        }
        let moments = world.watch();
        live.cleaned().await;
        // The next round makes the records of this one stable.
        live.write(20).await;
        live.cleaned().await;
        world.unwatch();
        moments.take()
    });
    let origin = find(&moments, 0, |m| m.is(false, Completed, Write));
    let record = find(&moments, origin, |m| {
        m.is(true, Issued, Write) && world.in_regions(m.offset)
    });
    let flush = find(&moments, origin, |m| m.is(false, Issued, Flush));
    assert!(find(&moments, flush, |m| m.is(false, Completed, Flush)) < record);
    let end = moments.last().expect("it ends");
    world.versions.borrow_mut().remove(&20);
    let next = world.boot(5, end.cut(Left::Everything, Left::Nothing));
    next.sim.block_on(async {
        let live = next.serve().await;
        next.switch(&live, Mode::PassThrough);
        for block in 0..16 {
            live.read(block).await;
        }
    });
}

#[test]
pub fn clean_records_are_stable_before_a_write_bypasses_the_cache() {
    let world = world(6);
    let moments = world.sim.block_on(async {
        let live = world.serve().await;
        for block in 0..16 {
            live.write(block).await;
        }
        live.cleaned().await;
        world.switch(&live, Mode::WriteThrough);
        let moments = world.watch();
        live.write(5).await;
        world.unwatch();
        moments.take()
    });
    let origin = find(&moments, 0, |m| m.is(false, Issued, Write));
    let record = find(&moments, 0, |m| {
        m.is(true, Completed, Write) && world.in_regions(m.offset)
    });
    let flush = find(&moments, record, |m| m.is(true, Issued, Flush));
    assert!(find(&moments, flush, |m| m.is(true, Completed, Flush)) < origin);
    let end = moments.last().expect("it ends");
    for left in Left::ALL {
        let next = world.boot(7, end.cut(left, Left::Everything));
        next.sim.block_on(async {
            let live = next.serve().await;
            next.check_twice(&live).await;
        });
    }
}

/// A region with dirty blocks is reclaimed: the new records of these blocks are stable before it is free. Tested with power
/// cuts that keep, of all unflushed writes, only those of the manifest.
#[test]
pub fn the_log_is_stable_before_a_dirty_region_is_voided() {
    let world = World::sized(8, Mode::WriteBack, (192 << 10) + 10 * (128 << 10));
    world.dirty_percent.set(50);
    let moments = world.sim.block_on(async {
        let live = world.serve().await;
        // Dirty while regions are reclaimed: the origin fails writes.
        world.origin.set_dead(true);
        for block in 0..100 {
            live.write(block).await;
        }
        world.origin.set_dead(false);
        live.volume.flush().await.expect("flushes");
        world.origin.set_dead(true);
        let moments = world.watch();
        while live.stats().counts.dirty_moved_blocks < 60 {
            live.write(100).await;
        }
        world.unwatch();
        moments.take()
    });
    let of_manifest = |m: &&Moment| m.is(true, Completed, Write) && world.in_manifest(m.offset);
    let mut seen = 0;
    for moment in moments.iter().filter(of_manifest) {
        let marks = |_, sector: u64| world.in_manifest(sector * 512);
        let found = (
            moment.cache.cut(marks),
            moment.origin.cut(|_, _| true),
            moment.memory,
        );
        let next = world.boot(9, found);
        next.sim.block_on(async {
            let live = next.serve().await;
            for block in 0..100 {
                live.read(block).await;
            }
        });
        seen += 1;
    }
    assert!(seen > 5, "the manifest was written {seen} times");
}

#[test]
pub fn the_superblock_says_dirty_before_the_first_dirty_record() {
    let world = world(10);
    world.sim.block_on(async {
        let moments = world.watch();
        let live = world.open().await;
        live.write(5).await;
        world.unwatch();
        let moments = moments.take();
        let record = find(&moments, 0, |m| {
            m.is(true, Issued, Write) && world.in_regions(m.offset)
        });
        let (cache, ..) = moments[record].cut(Left::Nothing, Left::Nothing);
        for slot in SUPERBLOCK_SLOTS {
            let superblock =
                Superblock::parse(&cache.read(slot, SUPERBLOCK_BYTES), cache.len()).expect("valid");
            assert!(superblock.dirty, "slot at {slot}");
        }
    });
}

fn durable_when_answered(fua: bool) {
    let world = world(12);
    let found = world.sim.block_on(async {
        let live = world.serve().await;
        live.volume.flush().await.expect("flushes");
        let moments = world.watch();
        for block in 0..8 {
            live.try_write_fua(block, fua).await.expect("writes");
        }
        if !fua {
            live.volume.flush().await.expect("flushes");
        }
        world.unwatch();
        let moments = moments.take();
        let landed = |m: &Moment| m.is(true, Completed, Write) && world.in_regions(m.offset);
        let extent = moments.iter().rposition(landed);
        let flush = find(&moments, extent.expect("it landed"), |m| {
            m.is(true, Issued, Flush)
        });
        find(&moments, flush, |m| m.is(true, Completed, Flush));
        let end = moments.last().expect("it ends");
        end.cut(Left::Nothing, Left::Nothing)
    });
    let next = world.boot(13, found);
    next.sim.block_on(async {
        let live = next.serve().await;
        next.check_twice(&live).await;
    });
}

#[test]
pub fn the_cache_is_flushed_before_a_flush_is_answered() {
    durable_when_answered(false);
}

#[test]
pub fn the_cache_is_flushed_before_an_fua_write_is_answered() {
    durable_when_answered(true);
}

/// Cleaned, written again, and killed before any of that is stable: the newest version is read.
#[test]
pub fn a_block_written_after_writeback_is_dirty_after_a_crash() {
    let world = world(14);
    world.sim.block_on(async {
        let live = world.serve().await;
        for turn in 0..3 {
            for block in 0..16 {
                live.write(block).await;
            }
            if turn < 2 {
                live.cleaned().await;
            }
        }
        live.env.sleep(Duration::from_millis(1)).await;
    });
    let next = world.reboot(15);
    next.sim.block_on(async {
        let live = next.serve().await;
        assert_eq!(live.dirty(), 16);
        for block in 0..BLOCKS {
            live.read(block).await;
        }
        live.cleaned().await;
        next.assert_origin_complete(&live);
    });
}
