//! The origin grows, and its cache takes over the new size: while it is served, and while it is idle.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceOp, Env, IoBuf};
use flaz_engine::cache::resize::Resizing;
use flaz_engine::cache::{CacheError, GrownOrigin, GrowthError, Start, grow_idle_origin, read_superblock};
use flaz_engine::format::geometry::REGIONS_MIN;
use flaz_engine::format::superblock::State;
use flaz_engine::settings::Mode;
use flaz_engine::volume::{IoError, Volume};
use flaz_sim::EventStage;
use flaz_sim::FaultRates;
use futures_util::future::join;

use super::world::{
    BLOCK, BLOCKS as ORIGIN_BLOCKS, CLEARED, Found, Left, Live, Moment, STRIPE, TIMEOUT_MOST, World,
    contents, version_of,
};

pub const ALL_MODES: [Mode; 3] = [Mode::WriteThrough, Mode::WriteAround, Mode::WriteBack];
/// Whole blocks of the origin, which ends within a stripe ...
const BLOCKS: u64 = ORIGIN_BLOCKS - 16;
/// ... in a block that is partial.
const OLD: u64 = BLOCKS * BLOCK + 512;
/// It ends in a partial block again, two stripes and a little later.
const NEW: u64 = OLD + 2 * STRIPE * BLOCK + 8 * BLOCK;
/// Of the first block that was partial, and of others beyond the old end.
const BEYOND: [u64; 4] = [BLOCKS, BLOCKS + 3, BLOCKS + STRIPE, BLOCKS + 2 * STRIPE + 7];
/// Blocks within the old size that are written meanwhile.
const WITHIN: [u64; 6] = [0, 5, STRIPE + 1, BLOCKS - 1, BLOCKS - 2, 3 * STRIPE];

async fn take_over(world: &World, live: &mut Live) {
    world.origin.grow(NEW);
    let grown = live.cache.grow_origin(NEW).await.expect("the device is well");
    let (before, after) = (OLD, NEW);
    assert_eq!(grown, GrownOrigin { before, after });
    live.volume.grow(NEW);
}

/// The cache becomes smaller while a larger origin is taken over: neither undoes the other.
#[test]
fn an_origin_grows_while_the_cache_shrinks() {
    let world = World::of_size(67, Mode::WriteThrough, 1, OLD);
    world.sim.block_on(async {
        let mut live = world.open().await;
        live.warm(0..BLOCKS).await;
        let smaller = world.geometry.region_offset(0, REGIONS_MIN);
        let mut step = live.cache.begin_resize(smaller).await.expect("it is possible");
        assert_ne!(step, Resizing::Done, "regions are in use");
        take_over(&world, &mut live).await;
        while step != Resizing::Done {
            live.env.sleep(Duration::from_millis(5)).await;
            step = live.cache.continue_resize().await.expect("it goes on");
        }
        let after = live.cache.superblock().geometry;
        assert_eq!((after.regions_per_shard, after.origin_len), (REGIONS_MIN, NEW));
        live.stop().await.expect("stops in order");
    });
    let found = world
        .sim
        .block_on(read_superblock(&world.cache))
        .expect("it has one");
    assert_eq!(found.geometry.origin_len, NEW);
}

/// A write that was sent, one that was acknowledged, or a flush.
#[derive(Clone, Copy)]
enum Done {
    Sent { block: u64 },
    Write { block: u64, version: u64 },
    Flush,
}

/// What was acknowledged, each with the number of events before it.
type Log = Rc<RefCell<Vec<(usize, Done)>>>;

/// The version that a block must have at least after a crash at this moment.
fn promised(log: &Log, at: usize, power_cut: bool, wanted: u64) -> u64 {
    let log = log.borrow();
    let done: Vec<Done> = (log.iter().filter(|(events, _)| *events <= at))
        .map(|(_, done)| *done)
        .collect();
    let count = match power_cut {
        true => done.iter().rposition(|done| matches!(done, Done::Flush)),
        false => Some(done.len()),
    };
    let versions = done[..count.unwrap_or(0)].iter().map(|done| match *done {
        Done::Write { block, version } if block == wanted => version,
        _ => 0,
    });
    versions.max().unwrap_or(0)
}

/// Whether a write of a block is under way at this moment: after a crash the block may have a part of it.
fn is_written(log: &Log, at: usize, wanted: u64) -> bool {
    let log = log.borrow();
    let before = log.iter().filter(|(events, _)| *events <= at);
    let mut last = before.filter_map(|(_, done)| match *done {
        Done::Sent { block } if block == wanted => Some(true),
        Done::Write { block, .. } if block == wanted => Some(false),
        _ => None,
    });
    last.next_back() == Some(true)
}

/// Starts after a crash, and reads what was written.
fn check(world: &World, moment: &Moment, at: usize, log: &Log, found: Found, power_cut: bool) -> u64 {
    let next = world.boot(moment.number, found);
    next.sim.block_on(async {
        let live = next.open().await;
        let size = live.volume.size();
        assert!(size == OLD || size == NEW, "{size}");
        for block in WITHIN.into_iter().chain(BEYOND).chain([7, 2 * STRIPE]) {
            if is_written(log, at, block) {
                continue;
            }
            let least = promised(log, at, power_cut, block);
            if (block + 1) * BLOCK > size {
                assert_eq!(
                    least, 0,
                    "event {}: block {block} is beyond the end",
                    moment.number
                );
                continue;
            }
            for _ in 0..2 {
                let version = live.try_read(block).await.expect("reads");
                assert!(
                    version >= least,
                    "{}, event {}: block {block} has version {version}, expected {least} at least",
                    world.mode,
                    moment.number
                );
            }
        }
        size
    })
}

/// The origin grows under writes. Whatever happens at any moment, all that was promised is there, and a write beyond the old end
/// is acknowledged only when the next start knows the new one.
#[test]
pub fn growth_survives_every_kill_and_cut() {
    for (mode, shards) in ALL_MODES.into_iter().flat_map(|mode| [(mode, 1), (mode, 2)]) {
        let world = World::of_size(61, mode, shards, OLD);
        let log = Log::default();
        let moments = world.sim.block_on(async {
            let mut live = world.open().await;
            live.warm(0..16).await;
            for block in WITHIN {
                live.write(block).await;
            }
            live.volume.flush().await.expect("the devices are well");
            let moments = world.watch();
            let events = || moments.borrow().len();
            let (volume, last) = (live.volume.clone(), Cell::new(1));
            let write = async |block: u64| {
                let version = last.get() + 1;
                last.set(version);
                let data = [IoBuf::copy_of(&contents(block, version))].into();
                log.borrow_mut().push((events(), Done::Sent { block }));
                volume.write(block * BLOCK, data, false).await?;
                log.borrow_mut().push((events(), Done::Write { block, version }));
                Ok::<_, IoError>(())
            };
            let flush = async || {
                volume.flush().await.expect("the devices are well");
                log.borrow_mut().push((events(), Done::Flush));
            };
            // The versions of before are all 1.
            for block in WITHIN {
                log.borrow_mut().push((0, Done::Write { block, version: 1 }));
            }
            log.borrow_mut().push((0, Done::Flush));
            let writer = async {
                for _ in 0..3 {
                    for block in WITHIN {
                        write(block).await.expect("within the old size");
                    }
                }
            };
            join(writer, take_over(&world, &mut live)).await;
            flush().await;
            for block in BEYOND {
                write(block).await.expect("within the new size");
            }
            flush().await;
            world.unwatch();
            moments.take()
        });
        let (mut old, mut new) = (0, 0);
        for (at, moment) in moments.iter().enumerate() {
            if moment.op == DeviceOp::Read || moment.stage != EventStage::Completed {
                continue;
            }
            for left in Left::ALL {
                let cut = check(&world, moment, at, &log, moment.cut(left, left), true);
                let kill = check(&world, moment, at, &log, moment.kill(left, left), false);
                for size in [cut, kill] {
                    *(if size == OLD { &mut old } else { &mut new }) += 1;
                }
            }
        }
        assert!(
            old > 4 && new > 20,
            "{mode}: {old} starts at the old size, {new} at the new one"
        );
    }
}

/// A request beyond the old end is refused before. Afterwards blocks there are cached, also the one that was partial, and a clean
/// stop keeps them.
#[test]
fn blocks_beyond_the_old_end_are_cached_after_growth() {
    for (mode, shards) in [
        (Mode::WriteThrough, 1),
        (Mode::WriteThrough, 3),
        (Mode::WriteBack, 1),
        (Mode::WriteBack, 3),
    ] {
        let world = World::of_size(62, mode, shards, OLD);
        world.sim.block_on(async {
            let mut live = world.open().await;
            live.warm(BLOCKS - 8..BLOCKS).await;
            let tail = live.volume.read(BLOCKS * BLOCK, 512).await.expect("reads");
            assert_eq!(tail[0][..], contents(BLOCKS, 0)[..512]);
            for block in BEYOND {
                let error = live.try_write(block).await.expect_err("beyond the end");
                assert!(matches!(error, IoError::OutOfRange { size: OLD, .. }), "{error}");
                live.try_read(block).await.expect_err("beyond the end");
            }
            // A write to a part of the last block, in the cache as far as it is whole.
            let sector = IoBuf::copy_of(&contents(BLOCKS, 0)[..512]);
            let before = contents(BLOCKS - 1, 0);
            let data = [IoBuf::copy_of(&[&before[..], &sector[..]].concat())].into();
            live.volume
                .write((BLOCKS - 1) * BLOCK, data, false)
                .await
                .expect("writes");
            take_over(&world, &mut live).await;
            for block in BEYOND {
                live.read(block).await;
                live.write(block).await;
                live.read(block).await;
            }
            live.stored().await;
            for block in BEYOND {
                assert!(live.is_cached(block), "{mode}, {shards} shards: block {block}");
            }
            let beyond = live.volume.read(NEW / BLOCK * BLOCK, 1024).await;
            assert!(matches!(beyond, Err(IoError::OutOfRange { size: NEW, .. })));
            if mode == Mode::WriteBack {
                assert!(live.dirty() >= BEYOND.len() as u64);
            }
            live.env.sleep(CLEARED).await;
            live.stop().await.expect("stops in order");
        });
        assert!(world.damage().is_empty(), "{:?}", world.damage());
        world.sim.block_on(async {
            let live = world.open().await;
            assert!(
                matches!(live.cache.start, Start::Warm(_)),
                "{:?}",
                live.cache.start
            );
            assert_eq!(live.cache.superblock().origin_created_len, OLD);
            for block in BEYOND {
                assert!(live.is_cached(block), "{mode}: block {block} after a stop");
                live.read(block).await;
            }
        });
    }
}

/// Partitions near the end of the origin and beyond it: the fingerprint of the larger origin is another one.
fn partitioned(world: &World) {
    let mut table = vec![0; 512];
    for (entry, start) in table[446..510]
        .chunks_exact_mut(16)
        .zip([OLD - 65_536, OLD + 65_536])
    {
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&u32::try_from(start / 512).expect("small").to_le_bytes());
        entry[12..16].copy_from_slice(&64u32.to_le_bytes());
    }
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    world.origin.poke(0, &table);
}

#[test]
fn a_grown_origin_is_the_same_origin_after_a_crash() {
    for mode in ALL_MODES {
        let world = World::of_size(63, mode, 2, OLD);
        partitioned(&world);
        world.sim.block_on(async {
            let mut live = world.open().await;
            live.write(1).await;
            live.volume.flush().await.expect("the devices are well");
            take_over(&world, &mut live).await;
        });
        let next = world.reboot(64);
        next.sim.block_on(async {
            let live = next.open().await;
            assert_eq!((live.cache.start, live.volume.size()), (Start::Recovered, NEW));
            live.read(1).await;
            // The fingerprint of the new size is recorded now.
            live.write(1).await;
            live.volume.flush().await.expect("the devices are well");
            live.cleaned().await;
            live.env.sleep(CLEARED).await;
            live.env.sleep(CLEARED).await;
        });
        assert_eq!(
            next.host.memory().expect("a record").origin.expect("noted").len,
            NEW
        );
        let last = next.reboot(65);
        last.sim.block_on(async { last.open().await.read(1).await });
        let changed = last.reboot(66);
        changed.origin.poke(OLD + 65_536 + 1024, b"mounted");
        changed.sim.block_on(async {
            let error = changed.try_open().await.err().expect("changed");
            assert!(matches!(error, CacheError::OriginChanged { .. }), "{error}");
        });
    }
}

/// The state in which an idle cache is.
fn idle(mode: Mode, state: State) -> World {
    let world = World::of_size(67, mode, 2, OLD);
    partitioned(&world);
    if state == State::Empty {
        return world;
    }
    world.sim.block_on(async {
        let live = world.open().await;
        live.warm(1..32).await;
        for block in &WITHIN[1..] {
            live.write(*block).await;
        }
        live.volume.flush().await.expect("the devices are well");
        if state == State::Clean {
            live.stop().await.expect("stops in order");
        }
    });
    world.reboot(68)
}

#[test]
fn an_idle_cache_takes_over_a_grown_origin_in_any_state() {
    for (mode, state) in ALL_MODES
        .into_iter()
        .flat_map(|mode| [State::Clean, State::Open, State::Empty].map(|state| (mode, state)))
    {
        let world = idle(mode, state);
        world.origin.grow(NEW);
        // The larger origin alone changes nothing.
        let unchanged = world.reboot(69);
        let before = unchanged.sim.block_on(async {
            let live = unchanged.open().await;
            assert_eq!(live.volume.size(), OLD);
            live.cache.start
        });
        let moments = world.watch();
        let grown = world.sim.block_on(async {
            let mut superblock = read_superblock(&world.cache).await.expect("a cache");
            assert_eq!(superblock.state, state);
            grow_idle_origin(&world.cache, &world.origin, &mut superblock, "sim:origin")
                .await
                .expect("it has grown")
        });
        world.unwatch();
        assert_eq!((grown.before, grown.after), (OLD, NEW));
        let mut founds: Vec<(u64, Found)> = moments
            .take()
            .iter()
            .flat_map(|moment| Left::ALL.map(|left| (moment.number, moment.cut(left, left))))
            .collect();
        founds.push((1, world.now()));
        let mut sizes = Vec::new();
        for (number, found) in founds {
            let next = world.boot(number, found);
            next.sim.block_on(async {
                let live = next.open().await;
                assert_eq!(live.cache.start, before, "{mode}, {state:?}, event {number}");
                sizes.push(live.volume.size());
                for block in 1..64 {
                    live.read(block).await;
                }
                if live.volume.size() == NEW {
                    for block in BEYOND {
                        live.write(block).await;
                        live.read(block).await;
                    }
                }
            });
        }
        assert!(sizes.contains(&OLD) && sizes.ends_with(&[NEW]), "{sizes:?}");
    }
}

/// As a start would refuse it.
#[test]
fn an_idle_cache_does_not_take_over_a_changed_origin() {
    let world = idle(Mode::WriteThrough, State::Clean);
    world.origin.grow(NEW);
    world.origin.poke(1024 + 52, b"mounted");
    world.sim.block_on(async {
        let mut superblock = read_superblock(&world.cache).await.expect("a cache");
        let error = grow_idle_origin(&world.cache, &world.origin, &mut superblock, "sim:origin")
            .await
            .expect_err("changed");
        assert!(matches!(error, CacheError::OriginChanged { .. }), "{error}");
        let found = read_superblock(&world.cache).await.expect("a cache");
        assert_eq!(found.geometry.origin_len, OLD);
    });
}

#[test]
fn a_size_that_does_not_fit_is_refused_and_changes_nothing() {
    let world = World::of_size(70, Mode::WriteThrough, 1, OLD);
    world.sim.block_on(async {
        let mut live = world.open().await;
        let largest = live.cache.superblock().geometry.origin_len_max();
        world.origin.grow(largest + 512);
        for (len, smaller) in [(OLD - 512, true), (largest + 512, false)] {
            let error = live.cache.grow_origin(len).await.expect_err("refused");
            match error {
                CacheError::Growth(GrowthError::Smaller { expected: OLD, found }) => {
                    assert!(smaller && found == len);
                }
                CacheError::Growth(GrowthError::Larger { expected, found }) => {
                    assert!(!smaller && expected == largest && found == len);
                }
                other => panic!("{other}"),
            }
        }
        let generation = live.cache.superblock().generation;
        let same = live.cache.grow_origin(OLD).await.expect("nothing to do");
        assert_eq!((same.before, same.after), (OLD, OLD));
        assert_eq!(
            live.cache.superblock().generation,
            generation,
            "nothing is written"
        );
        // The largest one: its last stripe has room in the intent bitmap.
        live.cache.grow_origin(largest).await.expect("there is room");
        live.volume.grow(largest);
        let last = largest / BLOCK - 1;
        live.write(last).await;
        live.volume.flush().await.expect("the devices are well");
        live.stored().await;
        assert!(live.is_cached(last));
    });
    let next = world.reboot(71);
    next.sim.block_on(async {
        let live = next.open().await;
        let last = live.volume.size() / BLOCK - 1;
        let data = next.origin.peek(last * BLOCK, BLOCK as usize);
        assert_eq!(version_of(last, &data), 1);
        live.read(last).await;
    });
}

/// The superblock cannot be written: clients are served the old size, and the next attempt succeeds. A fenced cache refuses.
#[test]
fn growth_on_a_failing_cache_device_is_refused() {
    let world = World::of_size(72, Mode::WriteThrough, 1, OLD);
    world.sim.block_on(async {
        let mut live = world.open().await;
        world.origin.grow(NEW);
        world.cache.fail_nth(DeviceOp::Write, 1);
        let error = live.cache.grow_origin(NEW).await.expect_err("the write fails");
        assert!(matches!(error, CacheError::Device(_)), "{error}");
        assert_eq!(live.cache.superblock().geometry.origin_len, OLD);
        live.cache
            .grow_origin(NEW)
            .await
            .expect("the device is well again");
        live.volume.grow(NEW);
        live.write(BLOCKS).await;
        world.cache.set_faults(FaultRates {
            write_error_ppm: 1_000_000,
            ..FaultRates::default()
        });
        for block in 0..8 {
            live.write(block).await;
        }
        live.env.sleep(TIMEOUT_MOST).await;
        assert!(live.failed());
        world.origin.grow(NEW + 512);
        let error = live.cache.grow_origin(NEW + 512).await.expect_err("fenced");
        assert!(matches!(error, CacheError::Fenced), "{error}");
        live.read(BLOCKS).await;
    });
}
