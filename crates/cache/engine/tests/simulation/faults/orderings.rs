//! The required orderings, by name: checked in the events of both devices, and in the state after a crash in between.
//!
//! "Before" refers to completion and issue: the first operation had completed when the second was issued to its device.
//! `a_write_that_overtakes_an_admission_wins` in `model` checks that a stale admission loses against the write
//! that overtook it.

use std::time::Duration;

use flaz_device::{DeviceOp, Env, IoBuf};
use flaz_engine::cache::Start;
use flaz_engine::format::extent::ExtentHeader;
use flaz_engine::format::geometry::{SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use flaz_engine::format::intent::IntentSector;
use flaz_engine::format::manifest::{ManifestEntry, RegionUse};
use flaz_engine::format::summary::Summary;
use flaz_engine::format::superblock::{State, Superblock};
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::Mode;
use flaz_engine::volume::Volume;
use flaz_sim::{DiscardMode, DiskConfig, DiskImage, EventStage};
use futures_util::future::{join_all, join3};

use super::world::{BLOCK, BLOCKS, CLEARED, Left, MODES, Moment, STRIPE, World, Wrong, contents};

use DeviceOp::{Discard, Flush, Write};
use EventStage::{Completed, Issued};

/// Whether the image's bitmap has the bit of a stripe set.
fn intent_of(world: &World, cache: &DiskImage, stripe: u64) -> bool {
    let bytes = cache.read(world.geometry.intent_offset(), 512);
    let sector = IntentSector::parse(&bytes.try_into().expect("512 bytes"), 0).expect("a sector");
    sector.has(stripe)
}

/// Index of the first moment from `from` on that fits.
fn find(moments: &[Moment], from: usize, fits: impl Fn(&Moment) -> bool) -> usize {
    let found = moments[from..].iter().position(fits);
    from + found.expect("it happens")
}

/// A cache with blocks of the first two stripes, idle; then one write of block 5, watched until it is acknowledged.
fn one_write(seed: u64, mode: Mode) -> (World, Vec<Moment>) {
    let world = World::new(seed, mode);
    let moments = world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..512).await;
        live.env.sleep(CLEARED).await;
        assert!(live.is_cached(5));
        let moments = world.watch();
        live.write(5).await;
        world.unwatch();
        moments.take()
    });
    (world, moments)
}

#[test]
pub fn an_intent_is_stable_before_its_write_reaches_the_origin() {
    for mode in MODES {
        let (world, moments) = one_write(1, mode);
        let origin = find(&moments, 0, |m| m.is(false, Issued, Write));
        let moment = &moments[origin];
        assert_eq!(moment.offset, 5 * BLOCK);
        let (cache, ..) = moment.cut(Left::Nothing, Left::Nothing);
        assert!(intent_of(&world, &cache, 0), "{mode}: not stable");
        assert!(
            !intent_of(&world, &cache, 1),
            "{mode}: the other stripe is at rest"
        );
        let before = &moments[..origin];
        assert!(
            before
                .iter()
                .any(|m| m.is(true, Completed, Write) && world.in_intents(m.offset)),
            "{mode}"
        );
    }
}

/// Two consecutive reads of an opening after a crash return zeroes; every pair is tried. If both read the bitmap, its bits
/// count as set in memory. They must also be set on the device before a write reaches the origin.
#[test]
fn an_intent_assumed_after_a_misread_is_written() {
    for mode in MODES {
        let world = World::new(3, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..512).await;
            live.env.sleep(CLEARED).await;
        });
        let (mut checked, mut misread) = (0, 0);
        for nth in 1.. {
            let next = world.reboot(nth);
            let reads = next.misread_each(nth..nth + 2, Wrong::Zeroes);
            let opened = next.sim.block_on(async {
                let Ok(live) = next.try_open().await else {
                    return true;
                };
                let opened = reads.get() >= nth;
                misread += u64::from(!live.is_cached(5));
                let moments = next.watch();
                live.write(5).await;
                next.unwatch();
                let moments = moments.take();
                for moment in moments.iter().filter(|m| m.is(false, Issued, Write)) {
                    let (cache, ..) = moment.cut(Left::Nothing, Left::Nothing);
                    assert!(intent_of(&next, &cache, 0), "{mode}: read {nth} was wrong");
                    checked += 1;
                }
                opened
            });
            if !opened {
                break;
            }
        }
        assert!(
            checked > 2 && misread > 0,
            "{mode}: {checked} writes checked, {misread} cold"
        );
    }
}

#[test]
pub fn a_crash_before_the_origin_write_reads_the_old_block() {
    for mode in MODES {
        let (world, moments) = one_write(2, mode);
        let origin = find(&moments, 0, |m| m.is(false, Issued, Write));
        world.versions.borrow_mut().clear();
        let next = world.boot(3, moments[origin].cut(Left::Everything, Left::Nothing));
        next.sim.block_on(async {
            let live = next.open().await;
            assert_eq!(live.cache.start, Start::Recovered);
            assert!(
                !live.is_cached(5) && !live.is_cached(6),
                "{mode}: its stripe is cold"
            );
            assert!(live.is_cached(STRIPE + 5), "{mode}: the others are warm");
            live.check_all().await;
        });
    }
}

/// The origin has the new block, and the copy of the old one is still cached: that copy is never served.
#[test]
pub fn a_cut_before_cache_invalidation_serves_no_old_copy() {
    for mode in MODES {
        let (world, moments) = one_write(4, mode);
        let written = find(&moments, 0, |m| m.is(false, Completed, Write));
        for left in Left::ALL {
            for disks in [
                moments[written].cut(left, Left::Everything),
                moments[written].kill(left, Left::Everything),
            ] {
                let next = world.boot(5, disks);
                next.sim.block_on(async {
                    let live = next.open().await;
                    assert!(!live.is_cached(5), "{mode}: the copy of the old block is back");
                    assert!(live.is_cached(STRIPE + 5), "{mode}: the others are warm");
                    live.check_all().await;
                });
            }
        }
    }
}

/// No data of a write goes to the cache before the origin has replied: so after a crash, no block in the cache is newer
/// than the origin.
#[test]
pub fn an_extent_is_written_after_the_origin_has_answered() {
    let world = World::new(6, Mode::WriteThrough);
    let moments = world.sim.block_on(async {
        let live = world.open().await;
        let moments = world.watch();
        // More than an extent, so that it is sealed at once; and the origin is slow.
        let data: Vec<u8> = (0..32).flat_map(|block| contents(block, 1)).collect();
        world.origin.stall(Duration::from_secs(2));
        let write = live.volume.write(0, [IoBuf::copy_of(&data)].into(), false);
        write.await.expect("writes");
        live.stored().await;
        world.unwatch();
        moments.take()
    });
    let writes = |stage| find(&moments, 0, move |m| m.is(false, stage, Write));
    let (sent, answered) = (writes(Issued), writes(Completed));
    let extent = find(&moments, 0, |m| {
        m.is(true, Issued, Write) && world.in_regions(m.offset)
    });
    assert!(answered > sent);
    assert!(extent > answered, "it is in the log, and not yet on the origin");
}

/// The extent is on the device, and the origin has lost its write: reads return the origin's contents, now and later.
#[test]
pub fn an_extent_does_not_outlive_its_lost_origin_write() {
    let world = World::new(7, Mode::WriteThrough);
    let moments = world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..64).await;
        live.volume.flush().await.expect("flushes");
        live.env.sleep(CLEARED).await;
        let moments = world.watch();
        for block in 0..64 {
            live.write(block).await;
        }
        live.stored().await;
        world.unwatch();
        moments.take()
    });
    let last = moments.last().expect("something happened");
    let landed = moments
        .iter()
        .filter(|m| m.is(true, Completed, Write) && world.in_regions(m.offset))
        .count();
    assert!(landed > 2);
    let disks = last.cut(Left::Everything, Left::Nothing);
    world.versions.borrow_mut().clear();
    let next = world.boot(8, disks);
    next.sim.block_on(async {
        let live = next.open().await;
        assert_eq!(live.cache.start, Start::Recovered);
        live.check_all().await;
        live.check_all().await;
    });
}

#[test]
pub fn an_intent_is_cleared_after_origin_flush_and_stable_log() {
    for mode in MODES {
        let world = World::new(9, mode);
        let moments = world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            live.env.sleep(CLEARED).await;
            let moments = world.watch();
            live.write(5).await;
            live.stored().await;
            live.env.sleep(CLEARED).await;
            world.unwatch();
            moments.take()
        });
        let written = find(&moments, 0, |m| m.is(false, Completed, Write));
        let cleared = find(&moments, written, |m| {
            m.is(true, Issued, Write) && world.in_intents(m.offset)
        });
        let flush = find(&moments, written, |m| m.is(false, Issued, Flush));
        let flushed = find(&moments, flush, |m| m.is(false, Completed, Flush));
        let record = find(&moments, written, |m| {
            m.is(true, Completed, Write) && world.in_regions(m.offset)
        });
        let log = find(&moments, record, |m| m.is(true, Issued, Flush));
        let logged = find(&moments, log, |m| m.is(true, Completed, Flush));
        assert!(flushed < cleared && logged < cleared, "{mode}");
        // From here on, the bit may be clear and all other volatile writes lost.
        let clear = find(&moments, cleared, |m| m.is(true, Completed, Write));
        let (cache, ..) = moments[clear].cut(Left::Everything, Left::Nothing);
        assert!(!intent_of(&world, &cache, 0), "{mode}");
        for left in Left::ALL {
            let next = world.boot(10, moments[clear].cut(left, Left::Nothing));
            next.check();
        }
    }
}

/// A block that was written past the cache leaves a tombstone in the ring of its copy; with the intent clear, only the
/// tombstone prevents the copy from coming back.
#[test]
pub fn a_tombstone_is_stable_before_its_intent_is_cleared() {
    let world = World::new(11, Mode::WriteAround);
    let moments = world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..64).await;
        live.env.sleep(CLEARED).await;
        live.write(5).await;
        assert!(!live.is_cached(5));
        let moments = world.watch();
        live.env.sleep(CLEARED).await;
        world.unwatch();
        moments.take()
    });
    let cleared = find(&moments, 0, |m| {
        m.is(true, Completed, Write) && world.in_intents(m.offset)
    });
    let found = moments[cleared].cut(Left::Everything, Left::Nothing);
    assert!(!intent_of(&world, &found.0, 0));
    let next = world.boot(12, found);
    next.sim.block_on(async {
        let live = next.open().await;
        assert_eq!(live.cache.start, Start::Recovered);
        assert!(live.is_cached(6), "its stripe is warm");
        assert!(!live.is_cached(5), "the copy of the old block is back");
        live.check_all().await;
    });
}

/// Checks that all stable data according to the manifest is on a cache device.
fn check_manifest(world: &World, cache: &DiskImage, at: u64) {
    let geometry = &world.geometry;
    let header_bytes = geometry.header_bytes();
    for (number, entry) in (0..).zip(world.manifest(cache)) {
        let start = geometry.data_offset() + number * geometry.region_bytes;
        if entry.state == RegionUse::Free {
            continue;
        }
        let mut within = 0;
        while within < u64::from(entry.len) {
            let bytes = cache.read(start + within, header_bytes);
            let header = ExtentHeader::parse(&bytes, header_bytes);
            let header =
                header.unwrap_or_else(|error| panic!("event {at}, region {number} at {within}: {error}"));
            assert_eq!(
                header.generation, entry.generation,
                "event {at}, region {number} at {within}"
            );
            within += u64::from(header.extent_bytes);
        }
        assert_eq!(within, u64::from(entry.len), "event {at}, region {number}");
        if matches!(entry.state, RegionUse::Full | RegionUse::Reclaiming) {
            let region = cache.read(start, geometry.region_bytes as usize);
            let summary = Summary::parse(&region).unwrap_or_else(|error| panic!("event {at}: {error}"));
            assert_eq!(
                summary.generation, entry.generation,
                "event {at}, region {number}"
            );
        }
    }
}

/// The order of a region's states in the manifest.
fn progress(entry: &ManifestEntry) -> (u64, u8, u32) {
    let state = match entry.state {
        RegionUse::Free => return (u64::MAX, 0, 0),
        RegionUse::Open | RegionUse::Recovering => 0,
        RegionUse::Full => 1,
        RegionUse::Reclaiming => 2,
    };
    (entry.generation.0, state, entry.len)
}

/// After any power cut, the data in the manifest is present, and the manifest never goes back.
#[test]
pub fn the_manifest_says_what_is_stable_and_takes_nothing_back() {
    for mode in MODES {
        let world = World::sized(13, mode, (192 << 10) + 10 * (128 << 10));
        let moments = world.sim.block_on(async {
            let live = world.open().await;
            let moments = world.watch();
            live.warm(0..800).await;
            for block in (0..64).step_by(3) {
                live.write(block).await;
                live.write(block + STRIPE).await;
            }
            live.warm(800..1200).await;
            live.env.sleep(CLEARED).await;
            world.unwatch();
            moments.take()
        });
        let mut before: Vec<ManifestEntry> = Vec::new();
        let (mut full, mut reclaimed) = (0, 0);
        for moment in moments.iter().filter(|m| m.on_cache && m.stage == Completed) {
            let (cache, ..) = moment.cut(Left::Nothing, Left::Nothing);
            check_manifest(&world, &cache, moment.number);
            let now = world.manifest(&cache);
            for (number, (before, now)) in before.iter().zip(&now).enumerate() {
                let (was, is) = (progress(before), progress(now));
                let freed = before.state == RegionUse::Reclaiming && now.state == RegionUse::Free;
                let reused = before.state == RegionUse::Free || was.0 < is.0 && is.0 != u64::MAX;
                assert!(
                    is >= was || freed || reused,
                    "event {}, region {number}: {before:?}, {now:?}",
                    moment.number
                );
                full += u32::from(was.1 == 0 && is.1 == 1);
                reclaimed += u32::from(freed);
            }
            let reclaiming = now.iter().filter(|entry| entry.state == RegionUse::Reclaiming);
            assert!(reclaiming.count() <= 1, "one reclaim at a time");
            before = now;
        }
        assert!(full > 5 && reclaimed > 3, "{full} were filled, {reclaimed} freed");
    }
}

#[test]
pub fn a_region_is_free_in_the_manifest_before_its_discard() {
    let world = World::sized(14, Mode::WriteThrough, (192 << 10) + 10 * (128 << 10));
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..800).await;
        let moments = world.watch();
        live.warm(800..1200).await;
        world.unwatch();
        let mut looked = 0;
        for moment in moments.take().iter().filter(|m| m.is(true, Issued, Discard)) {
            let (cache, ..) = moment.cut(Left::Nothing, Left::Nothing);
            let number = (moment.offset - world.geometry.data_offset()) / world.geometry.region_bytes;
            let entry = world.manifest(&cache)[number as usize];
            assert_eq!(entry, ManifestEntry::FREE, "region {number}");
            looked += 1;
        }
        assert!(looked > 3, "only {looked} regions were reclaimed");
    });
}

/// Reads take half a second here, and a region is reclaimed in less time: the reclaim has to wait for them, or they would
/// read data of other blocks.
#[test]
pub fn a_region_is_not_discarded_while_it_is_read() {
    let long = Duration::from_millis(500);
    let cache = DiskConfig {
        read_latency: long..=long,
        discard_mode: DiscardMode::Zero,
        ..DiskConfig::fast((192 << 10) + 10 * (128 << 10))
    };
    let world = World::on(15, Mode::WriteThrough, cache, 1);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..700).await;
        let reclaimed = live.stats().counts.regions_reclaimed;
        let cached: Vec<u64> = (0..700).filter(|&block| live.is_cached(block)).collect();
        // One by one, so that some are in flight whenever a region is due to be discarded.
        let reads = async {
            for &block in &cached[..cached.len().min(20)] {
                live.read(block).await;
            }
        };
        let oldest = join_all(cached.iter().step_by(4).map(|&block| live.read(block)));
        let fill = async {
            for block in 1000..1600 {
                live.write(block).await;
            }
        };
        join3(reads, oldest, fill).await;
        let counts = live.stats().counts;
        assert!(counts.regions_reclaimed > reclaimed, "{counts:?}");
        assert_eq!(counts.checksum_failures, 0, "{counts:?}");
    });
}

#[test]
pub fn a_cache_says_open_before_the_first_write_reaches_the_origin() {
    for mode in MODES {
        let world = World::new(15, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            live.stop().await.expect("stops in order");
            let moments = world.watch();
            let live = world.open().await;
            live.write(5).await;
            world.unwatch();
            let moments = moments.take();
            let origin = find(&moments, 0, |m| m.is(false, Issued, Write));
            let (cache, ..) = moments[origin].cut(Left::Nothing, Left::Nothing);
            for slot in SUPERBLOCK_SLOTS {
                let superblock =
                    Superblock::parse(&cache.read(slot, SUPERBLOCK_BYTES), cache.len()).expect("valid");
                assert_eq!(superblock.state, State::Open, "{mode}: slot at {slot}");
            }
        });
    }
}

#[test]
pub fn a_cache_is_marked_clean_after_image_and_origin_are_stable() {
    for mode in MODES {
        let world = World::new(16, mode);
        let moments = world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..512).await;
            live.write(5).await;
            let moments = world.watch();
            live.stop().await.expect("stops in order");
            world.unwatch();
            moments.take()
        });
        let clean = moments
            .iter()
            .rposition(|m| m.is(true, Issued, Write))
            .expect("it is written");
        assert!(
            moments[clean].offset < world.geometry.intent_offset(),
            "{mode}: the superblock"
        );
        let image = moments[..clean]
            .iter()
            .rposition(|m| m.is(true, Completed, Write))
            .expect("it has an image");
        let flush = find(&moments, image, |m| m.is(true, Issued, Flush));
        assert!(
            find(&moments, flush, |m| m.is(true, Completed, Flush)) < clean,
            "{mode}"
        );
        assert!(
            find(&moments, 0, |m| m.is(false, Completed, Flush)) < clean,
            "{mode}"
        );
        // Clean with nothing else lost: warm, and correct.
        let end = moments.last().expect("it ends");
        let next = world.boot(17, end.cut(Left::Nothing, Left::Nothing));
        next.sim.block_on(async {
            let live = next.open().await;
            assert!(matches!(live.cache.start, Start::Warm(_)), "{mode}");
            live.check_all().await;
        });
        // Not marked clean yet, although everything else has landed: a recovery, and correct.
        let next = world.boot(18, moments[clean].cut(Left::Everything, Left::Nothing));
        next.sim.block_on(async {
            let live = next.open().await;
            for block in (0..BLOCKS).step_by(5) {
                live.read(block).await;
            }
        });
    }
}

/// The rule of the host record: the fence is recorded before the first write that the cache device does not know of.
#[test]
pub fn a_fence_is_recorded_before_a_write_without_intent() {
    for mode in MODES {
        let world = World::new(19, mode);
        world.sim.block_on(async {
            let live = world.open().await;
            live.warm(0..64).await;
            live.env.sleep(CLEARED).await;
            world.cache.set_dead(true);
            let (host, number) = (std::rc::Rc::clone(&world.host), world.cache.number());
            world.sim.set_observer(move |event| {
                if event.disk != number && event.stage == Issued && event.op == Write {
                    assert!(
                        host.noted_fenced.get() > 0,
                        "a write went past a cache that nobody gave up"
                    );
                }
            });
            live.write(5).await;
            live.write(STRIPE + 5).await;
            assert!(live.failed(), "{mode}");
            world.unwatch();
        });
    }
}

/// Recovery closes an open region: the contents that it found must be stable before the manifest marks them stable.
#[test]
pub fn a_region_closed_by_recovery_is_stable_before_its_mark() {
    let world = World::new(22, Mode::WriteThrough);
    let killed = world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..100).await;
        world.cache.moment().kill(|_, _| true)
    });
    let next = world.boot(23, (killed, world.origin.snapshot(), world.host.memory()));
    let moments = next.watch();
    next.sim.block_on(async {
        let live = next.open().await;
        assert_eq!(live.cache.start, Start::Recovered);
        live.write(5).await;
    });
    next.unwatch();
    let moments = moments.take();
    let closed = |m: &&Moment| m.is(true, Completed, Write) && next.in_manifest(m.offset);
    assert!(moments.iter().any(|m| closed(&m)), "an open region is closed");
    for moment in moments.iter().filter(closed) {
        let (cache, ..) = moment.cut(Left::Nothing, Left::Nothing);
        check_manifest(&next, &cache, moment.number);
    }
}

/// A region that was open at a clean stop is filled further, and the stable length in the manifest stays.
#[test]
pub fn a_region_that_was_open_at_a_clean_stop_stays_stable() {
    let world = World::new(24, Mode::WriteThrough);
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(0..100).await;
        live.stop().await.expect("stops in order");
    });
    let open = |world: &World| {
        let entries = world.manifest(&world.now().0).into_iter();
        let open = entries.filter(|entry| entry.state == RegionUse::Open && entry.len > 0);
        open.collect::<Vec<_>>()
    };
    let before = open(&world);
    assert!(!before.is_empty());
    let world = world.reboot(25);
    world.sim.block_on(async {
        let live = world.open().await;
        assert!(matches!(live.cache.start, Start::Warm(_)));
        live.write(300).await;
        live.env.sleep(CLEARED).await;
    });
    for (before, after) in before.iter().zip(open(&world)) {
        assert!(
            after.generation == before.generation && after.len >= before.len,
            "{after:?}"
        );
    }
}

/// A power cut takes a tombstone, while a newer record of its block in the other ring stays: that record would hide the
/// stale copy, and be destroyed before it. So until a tombstone is stable, newer records go to its ring.
#[test]
pub fn what_follows_a_tombstone_that_is_not_stable_goes_to_its_ring() {
    /// Number of blocks written past the cache: more than the records of one extent. The first extent has `LOST` of them.
    const WRITTEN: usize = 30;
    const LOST: usize = 8;
    let world = World::sized(5, Mode::WriteAround, (192 << 10) + 12 * (128 << 10));
    world.policy.set(PolicyKind::S3Fifo);
    let (found, kept) = world.sim.block_on(async {
        let live = world.open().await;
        // Used blocks go to the main ring when their region is reclaimed, the others are dropped.
        // Two regions with other blocks are older there: recovery examines the oldest one.
        for (used, others) in [(1800..1900, 512..1024), (0..64, 1024..1536)] {
            live.warm(used.clone()).await;
            for block in used {
                live.read(block).await;
            }
            live.warm(others).await;
        }
        let mut kept: Vec<u64> = (0..64).filter(|&block| live.is_cached(block)).collect();
        assert!(kept.len() >= WRITTEN, "{} are in main", kept.len());
        kept.truncate(WRITTEN);
        // No region is reclaimed for a while; a reclaim would make all of this stable.
        let reclaimed = live.stats().counts.regions_reclaimed;
        let mut next = 1536;
        while live.stats().counts.regions_reclaimed == reclaimed {
            live.warm(next..next + 8).await;
            next += 8;
        }
        live.warm(next..next + 24).await;
        // The intent of their stripe is set and cleared, with the log stable.
        live.write(255).await;
        live.env.sleep(CLEARED).await;
        for &block in &kept {
            live.write(block).await;
        }
        live.stored().await;
        // Missed now, and stored again: blocks whose tombstone is not in an extent that is still open.
        for &block in &kept[..24] {
            live.read(block).await;
        }
        live.stored().await;
        live.env.sleep(Duration::from_millis(10)).await;
        let moment = world.cache.moment();
        let writes = moment.volatile_writes();
        let tombstones = |index: usize| world.in_regions(writes[index].offset) && writes[index].len <= 1024;
        assert!((0..writes.len()).any(tombstones), "{writes:?}");
        let cache = moment.cut(|index, _| !tombstones(index));
        ((cache, world.origin.snapshot(), world.host.memory()), kept)
    });
    let next = world.boot(6, found);
    next.sim.block_on(async {
        let live = next.open().await;
        assert_eq!(live.cache.start, Start::Recovered);
        assert!(
            live.cache.recovered.dropped >= LOST as u64,
            "{:?}",
            live.cache.recovered
        );
        // Probation is reclaimed once completely.
        live.warm(512..BLOCKS).await;
        live.env.sleep(CLEARED).await;
        assert!(
            kept[..LOST].iter().all(|&block| !live.is_cached(block)),
            "read again"
        );
    });
    next.reboot(7).check();
}
