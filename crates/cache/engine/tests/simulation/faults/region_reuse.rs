//! Regions that are filled again after their reclaim, on a device whose discards have no effect: contents of an earlier
//! generation are still present if a write of the next one fails.

use std::collections::BTreeSet;

use flaz_device::{DeviceOp, Env};
use flaz_engine::format::extent::ExtentHeader;
use flaz_engine::format::manifest::RegionUse;
use flaz_engine::settings::Mode;
use flaz_sim::{DiscardMode, DiskConfig, EventStage};
use futures_util::future::join_all;

use super::world::{CLEARED, Left, Live, Moment, World, Wrong, read_up_to};

/// Blocks that are written repeatedly: two regions.
const BUSY: u64 = 96;
/// Twelve regions.
const CACHE_LEN: u64 = (192 << 10) + 12 * (128 << 10);

fn world(seed: u64) -> World {
    let disk = DiskConfig {
        discard_mode: DiscardMode::Old,
        ..DiskConfig::fast(CACHE_LEN)
    };
    World::on(seed, Mode::WriteThrough, disk, 1)
}

/// Fills every region several times: new versions of blocks whose old versions are still present. Ends when a write has
/// failed.
async fn work(world: &World, live: &Live) {
    live.warm(0..512).await;
    for _ in 0..20 {
        join_all((0..BUSY).map(|block| live.write(block))).await;
        live.stored().await;
        if world.cache.stats().errors > 0 {
            break;
        }
    }
}

/// Numbers of the writes that start a later generation of a region.
fn first_extents() -> Vec<u64> {
    let world = world(7);
    world.sim.block_on(async {
        let live = world.open().await;
        let moments = world.watch();
        work(&world, &live).await;
        world.unwatch();
        let moments = moments.take();
        let writes = moments
            .iter()
            .filter(|m| m.is(true, EventStage::Issued, DeviceOp::Write))
            .enumerate();
        let mut filled = BTreeSet::new();
        let begins = |offset: u64| {
            world.in_regions(offset)
                && (offset - world.geometry.data_offset()).is_multiple_of(world.geometry.region_bytes)
        };
        writes
            .filter(|(_, m)| begins(m.offset) && m.len > 4096 && !filled.insert(m.offset))
            .map(|(number, _)| number as u64 + 1)
            .collect()
    })
}

/// The first extent of a region fails, later ones succeed. Contents of an earlier generation in its place must not hide
/// newer ones.
#[test]
fn a_region_whose_first_extent_failed_is_found_by_its_summary() {
    let numbers = first_extents();
    assert!(
        numbers.len() > 5,
        "only {} regions were filled again",
        numbers.len()
    );
    for number in numbers {
        let world = world(7);
        let moments = world.sim.block_on(async {
            let live = world.open().await;
            world.cache.fail_nth(DeviceOp::Write, number);
            work(&world, &live).await;
            let moments = world.watch();
            live.env.sleep(CLEARED).await;
            world.unwatch();
            moments.take()
        });
        assert_eq!(world.cache.stats().errors, 1, "write {number}");
        let pages =
            |m: &&Moment| m.is(true, EventStage::Completed, DeviceOp::Write) && world.in_intents(m.offset);
        for moment in moments.iter().filter(pages) {
            for cache in Left::ALL {
                let next = world.boot(8, moment.cut(cache, Left::Everything));
                next.check();
            }
        }
        world.reboot(9).check();
    }
}

/// The same, and at the next start the summary cannot be read, once or permanently. Only the summary has the contents of
/// the region: its first extent is of an earlier generation.
#[test]
fn a_region_with_a_lost_first_extent_and_summary_is_found() {
    let mut tried = 0;
    for number in first_extents() {
        let world = world(7);
        world.sim.block_on(async {
            let live = world.open().await;
            world.cache.fail_nth(DeviceOp::Write, number);
            work(&world, &live).await;
            live.env.sleep(CLEARED).await;
        });
        let region_bytes = world.geometry.region_bytes;
        let manifest = world.manifest(&world.now().0);
        let header_bytes = world.geometry.header_bytes();
        // The manifest marks it full, and its first extent is missing.
        let lacks_first = |region: &u64| {
            let entry = manifest[*region as usize];
            let start = world.geometry.data_offset() + region * region_bytes;
            let first = ExtentHeader::parse(&world.cache.peek(start, header_bytes), header_bytes);
            entry.state == RegionUse::Full && first.is_ok_and(|first| first.generation != entry.generation)
        };
        let Some(region) = (0..12).find(lacks_first) else {
            continue;
        };
        tried += 1;
        let end = world.geometry.data_offset() + (region + 1) * region_bytes;
        let next = world.reboot(8);
        let moments = next.watch();
        next.sim.block_on(next.open());
        next.unwatch();
        let nth = read_up_to(&moments.take(), end);
        let next = world.reboot(8);
        next.cache.fail_nth(DeviceOp::Read, nth);
        next.check();
        let next = world.reboot(8);
        next.misread(Some((nth, Wrong::Zeroes)));
        next.check();
        // A permanently damaged summary is also detected.
        let next = world.reboot(8);
        next.cache.flip_bit(end - 80, 0);
        next.check();
    }
    assert!(tried > 3, "only {tried}");
}
