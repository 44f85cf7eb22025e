//! Changes of a pool, with crashes at every event of its device.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flaz_device::{Device, DeviceOp, IoBuf};
use flaz_pool::budget::PER_DAY_MIN;
use flaz_pool::{Pool, PoolError, VolumeOptions};
use flaz_sim::{CrashPlan, DiskConfig, DiskMoment, Rng, Sim, SimDisk};
use uuid::Uuid;

const CHUNK: u64 = 128 << 10;

fn options(name: &str, at_least: u32) -> VolumeOptions {
    VolumeOptions {
        uuid: Uuid::from_u128(name.bytes().fold(1, |sum, byte| sum * 256 + u128::from(byte))),
        name: name.to_owned(),
        front_bytes: CHUNK + 4096,
        least: 2,
        at_least,
        at_most: 0,
    }
}

/// What clients were told, and what is under way.
#[derive(Clone, Debug, Default)]
struct Model {
    /// By name: the chunk of each part.
    volumes: BTreeMap<String, BTreeMap<u32, u32>>,
    /// The volume that is being added or removed.
    changing: Option<String>,
    /// The part that is being taken or given back.
    changing_part: Option<(String, u32)>,
    /// The part that moves to another chunk: it has its contents all the time.
    moving: Option<(String, u32)>,
    /// A shrink is under way.
    shrinking: bool,
    /// Bytes taken from the write budget, once there is one; and those that are being taken or given back.
    used: Option<u64>,
    using: u64,
}

/// What a part of a volume contains.
fn stamp(number: u32, index: u32) -> IoBuf {
    let mut buf = IoBuf::zeroed(512);
    buf[..8].copy_from_slice(&[1, number as u8, index as u8, 7, 7, 7, 7, 7]);
    buf
}

fn offset_of(index: u32) -> u64 {
    match index.checked_sub(2) {
        None => u64::from(index) * CHUNK,
        Some(region) => CHUNK + 4096 + u64::from(region) * CHUNK,
    }
}

/// A part gets its contents, stable.
async fn write_stamp(pool: &Rc<Pool<SimDisk>>, number: u32, index: u32) {
    let device = pool.open_volume(number).expect("it exists");
    let written = device
        .write_at(offset_of(index), stamp(number, index), true)
        .await;
    written.1.expect("it is well");
}

/// Adds a volume.
async fn add(pool: &Rc<Pool<SimDisk>>, model: &RefCell<Model>, name: &str) -> u32 {
    model.borrow_mut().changing = Some(name.to_owned());
    let prepared = pool.prepare(options(name, 3)).await.expect("there is room");
    let number = prepared.number();
    for index in 0..2 {
        write_stamp(pool, number, index).await;
    }
    pool.commit(prepared).await.expect("it is well");
    let map = pool.map(number).expect("it exists");
    let parts = (0..map.parts()).filter_map(|index| Some((index, map.chunk(index)?)));
    let mut model = model.borrow_mut();
    model.changing = None;
    model.volumes.insert(name.to_owned(), parts.collect());
    number
}

/// Takes a part of a volume, if a chunk is free, or gives it back.
async fn change(pool: &Rc<Pool<SimDisk>>, model: &RefCell<Model>, name: &str, index: u32, take: bool) {
    let number = pool.volume(name).expect("it exists").number;
    let device = pool.open_volume(number).expect("it exists");
    let (offset, free) = (offset_of(index), pool.free_chunks());
    model.borrow_mut().changing_part = Some((name.to_owned(), index));
    if !take {
        device.deallocate(offset, CHUNK).await.expect("it is well");
    } else if let Err(error) = device.allocate(offset, CHUNK).await {
        assert!(
            error.source.kind() == std::io::ErrorKind::StorageFull && free < 10,
            "{error}"
        );
    } else {
        write_stamp(pool, number, index).await;
    }
    let mut model = model.borrow_mut();
    model.changing_part = None;
    let parts = model.volumes.get_mut(name).expect("it exists");
    match pool.map(number).expect("it exists").chunk(index) {
        Some(chunk) => drop(parts.insert(index, chunk)),
        None => drop(parts.remove(&index)),
    }
}

/// Shrinks the pool, goes on with that, or calls it off in the middle.
async fn shrink(pool: &Rc<Pool<SimDisk>>, model: &RefCell<Model>, rng: &mut Rng) {
    let superblock = pool.superblock();
    let (least, most) = (superblock.chunks_least(), superblock.usable());
    let target = least + rng.below(u64::from(most.saturating_sub(least) + 1)) as u32;
    model.borrow_mut().shrinking = true;
    pool.begin_shrink(target).await.expect("they fit");
    // Every volume can give back what is not its front.
    for volume in &superblock.volumes {
        for index in (2..8).take_while(|_| pool.chunks_too_many() > 0) {
            change(pool, model, &volume.name, index, false).await;
        }
    }
    let patience = rng.below(20);
    let mut moved = 0;
    for volume in &superblock.volumes {
        for index in pool.parts_beyond(volume.number) {
            if moved == patience {
                pool.cancel_shrink().await.expect("it is well");
                model.borrow_mut().shrinking = false;
                return;
            }
            model.borrow_mut().moving = Some((volume.name.clone(), index));
            let ready = std::future::pending();
            pool.move_part(volume.number, index, ready)
                .await
                .expect("one is free");
            let chunk = pool.map(volume.number).expect("it exists").chunk(index);
            let mut model = model.borrow_mut();
            model.moving = None;
            let parts = model.volumes.get_mut(&volume.name).expect("it exists");
            parts.insert(index, chunk.expect("it has one"));
            moved += 1;
        }
    }
    assert!(
        pool.end_shrink().await.expect("it is well"),
        "nothing is beyond the end"
    );
    assert_eq!(pool.superblock().chunks, target);
    model.borrow_mut().shrinking = false;
}

/// Takes and gives back some parts of all volumes.
async fn go_on(pool: &Rc<Pool<SimDisk>>, model: &RefCell<Model>, rng: &mut Rng) {
    for volume in pool.superblock().volumes {
        for index in 2..5 {
            change(pool, model, &volume.name, index, rng.coin()).await;
        }
    }
}

/// Takes credit from the write budget, or gives some back. The clock stands still.
async fn spend(pool: &Rc<Pool<SimDisk>>, model: &RefCell<Model>, rng: &mut Rng) {
    let Some(used) = model.borrow().used else {
        pool.set_budget(Some(PER_DAY_MIN), 0).await.expect("it is well");
        model.borrow_mut().used = Some(0);
        return;
    };
    let (owed, wanted) = (rng.below(2) * 100, PER_DAY_MIN / 1024 + rng.below(1000));
    model.borrow_mut().using = owed + wanted;
    let used = match rng.below(3) {
        0 => {
            let back = used.min(wanted);
            pool.return_credit(back).await.expect("it is well");
            used - back
        }
        _ => {
            let taken = pool.take_credit(owed, wanted, 0).await.expect("it is well");
            let (left, granted) = taken.expect("there is a budget");
            assert_eq!(granted, wanted, "little of it is used");
            assert_eq!(left.left, PER_DAY_MIN - used - owed - granted);
            used + owed + granted
        }
    };
    let mut model = model.borrow_mut();
    (model.used, model.using) = (Some(used), 0);
}

/// Takes, gives back, adds, removes, shrinks and grows, as the seed decides.
async fn work(pool: Rc<Pool<SimDisk>>, model: Rc<RefCell<Model>>, seed: u64) {
    let mut rng = Rng::new(seed);
    for name in ["one", "two"] {
        add(&pool, &model, name).await;
    }
    for turn in 0..26 {
        match turn {
            8 => drop(add(&pool, &model, "three").await),
            12 | 20 => shrink(&pool, &model, &mut rng).await,
            16 => {
                model.borrow_mut().changing = Some("one".to_owned());
                pool.remove("one").await.expect("it is well");
                let mut model = model.borrow_mut();
                model.changing = None;
                model.volumes.remove("one");
            }
            2 | 5 | 9 | 10 | 13 | 18 => spend(&pool, &model, &mut rng).await,
            22 => drop(pool.grow(u64::MAX).await.expect("it is well")),
            _ => {
                let names: Vec<String> = model.borrow().volumes.keys().cloned().collect();
                let name = &names[rng.below(names.len() as u64) as usize];
                let take = rng.below(3) > 0;
                change(&pool, &model, name, 2 + rng.below(6) as u32, take).await;
            }
        }
    }
}

/// The device at an event, and what clients knew.
struct Moment {
    disk: DiskMoment,
    model: Model,
}

fn moments(seed: u64) -> Vec<Moment> {
    let sim = Sim::new(seed);
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(4 << 20));
    let model: Rc<RefCell<Model>> = Rc::default();
    let all: Rc<RefCell<Vec<Moment>>> = Rc::default();
    sim.block_on(async {
        let pool = Pool::create(Rc::new(disk.clone()), Uuid::from_u128(77), CHUNK)
            .await
            .expect("fits");
        let (noted, watched, known) = (Rc::clone(&all), disk.clone(), Rc::clone(&model));
        sim.set_observer(move |_| {
            noted.borrow_mut().push(Moment {
                disk: watched.moment(),
                model: known.borrow().clone(),
            });
        });
        work(pool, Rc::clone(&model), seed).await;
        sim.set_observer(|_| ());
    });
    all.take()
}

/// The pool is what clients were told, but for what was under way.
async fn check(pool: &Rc<Pool<SimDisk>>, model: &Model, what: &str) {
    let superblock = pool.superblock();
    let names: Vec<&String> = superblock.volumes.iter().map(|volume| &volume.name).collect();
    for name in model.volumes.keys() {
        let known = names.contains(&name) || model.changing.as_ref() == Some(name);
        assert!(known, "{what}: volume {name} is lost");
    }
    if let Some(used) = model.used {
        let found = superblock.budget.map(|budget| budget.used);
        let found = found.unwrap_or_else(|| panic!("{what}: the write budget is lost"));
        assert!(
            found.abs_diff(used) <= model.using,
            "{what}: {found} bytes of the write budget are used, expected {used}"
        );
    }
    let mut chunks = Vec::new();
    for volume in &superblock.volumes {
        let name = &volume.name;
        let expected = model.volumes.get(name);
        assert!(
            expected.is_some() || model.changing.as_ref() == Some(name),
            "{what}: volume {name} is back"
        );
        let map = pool.map(volume.number).expect("it exists");
        for index in 0..map.parts() {
            chunks.extend(map.chunk(index));
            let is = |part: &Option<(String, u32)>| part.as_ref() == Some(&(name.clone(), index));
            let Some(expected) = expected.filter(|_| !is(&model.changing_part)) else {
                continue;
            };
            let expected = expected.get(&index).copied();
            match is(&model.moving) {
                true => assert!(map.chunk(index).is_some(), "{what}: part {index} of {name}"),
                false => assert_eq!(map.chunk(index), expected, "{what}: part {index} of {name}"),
            }
            if expected.is_some() {
                let device = pool.open_volume(volume.number).expect("it exists");
                let (read, result) = device.read_at(offset_of(index), IoBuf::new(512)).await;
                result.expect("it is well");
                let is_same = read[..] == stamp(volume.number, index)[..];
                assert!(is_same, "{what}: the contents of part {index} of {name} are lost");
            }
        }
    }
    let count = chunks.len();
    chunks.sort_unstable();
    chunks.dedup();
    assert_eq!(chunks.len(), count, "{what}: a chunk has two owners");
    assert_eq!(
        pool.free_chunks() as usize,
        (superblock.usable() as usize).saturating_sub(count),
        "{what}"
    );
}

#[test]
fn a_crash_leaves_what_clients_were_told() {
    let (mut tried, mut shrinking) = (0, 0);
    for seed in 0..6 {
        for (number, moment) in moments(seed).iter().enumerate() {
            let cut = [CrashPlan::Nothing, CrashPlan::Everything, CrashPlan::Random(seed)];
            let images = cut.iter().map(|plan| moment.disk.cut(plan.chooser()));
            let kill = CrashPlan::Random(number as u64);
            for (turn, image) in images.chain([moment.disk.kill(kill.chooser())]).enumerate() {
                let sim = Sim::new(seed);
                let disk = Rc::new(SimDisk::from_image(&sim.env(), &image));
                let what = format!("seed {seed}, event {number}, crash {turn}");
                sim.block_on(async {
                    let pool = Pool::open(Rc::clone(&disk))
                        .await
                        .unwrap_or_else(|error| panic!("{what}: {error}"));
                    check(&pool, &moment.model, &what).await;
                    // It goes on, and the next opening agrees.
                    pool.grow(u64::MAX).await.expect("it is well");
                    let prepared = pool.prepare(options("next", 0)).await.expect("there is room");
                    pool.commit(prepared).await.expect("it is well");
                    let again = Pool::open(Rc::clone(&disk))
                        .await
                        .unwrap_or_else(|error| panic!("{what}, again: {error}"));
                    assert_eq!(again.superblock(), pool.superblock(), "{what}");
                    assert_eq!(again.free_chunks(), pool.free_chunks(), "{what}");
                });
                tried += 1;
                shrinking += u32::from(moment.model.shrinking);
            }
        }
    }
    eprintln!("{tried} crashes, {shrinking} of them during a shrink");
    assert!(
        tried > 3000 && shrinking > 1000,
        "{tried} crashes, {shrinking} during a shrink"
    );
}

/// What an open pool says, as clients were told.
fn found(pool: &Rc<Pool<SimDisk>>) -> Model {
    let mut model = Model::default();
    for volume in pool.superblock().volumes {
        let map = pool.map(volume.number).expect("it exists");
        let parts = (0..map.parts()).filter_map(|index| Some((index, map.chunk(index)?)));
        model.volumes.insert(volume.name, parts.collect());
    }
    model
}

/// Another process goes on from what a killed one has written, which nothing has made stable. What it then does must not depend on
/// that: after a power cut, no chunk has two owners, and no volume is missing.
fn kill_go_on_and_cut(seeds: std::ops::Range<u64>) -> (u64, u64) {
    let (mut tried, mut shrinking) = (0, 0);
    for seed in seeds {
        for (number, moment) in moments(seed).iter().enumerate().step_by(5) {
            let kill = CrashPlan::Random(number as u64);
            let sim = Sim::new(seed);
            let disk = SimDisk::from_image(&sim.env(), &moment.disk.kill(kill.chooser()));
            let model: Rc<RefCell<Model>> = Rc::default();
            let next: Rc<RefCell<Vec<Moment>>> = Rc::default();
            sim.block_on(async {
                let pool = Pool::open(Rc::new(disk.clone())).await.expect("opens");
                model.replace(found(&pool));
                // Perhaps it got its chunk, and nothing was written to it.
                if let Some((name, index)) = &moment.model.changing_part
                    && let Ok(volume) = pool.volume(name)
                    && model.borrow().volumes[name].contains_key(index)
                {
                    write_stamp(&pool, volume.number, *index).await;
                }
                let (noted, watched, known) = (Rc::clone(&next), disk.clone(), Rc::clone(&model));
                sim.set_observer(move |_| {
                    noted.borrow_mut().push(Moment {
                        disk: watched.moment(),
                        model: known.borrow().clone(),
                    });
                });
                let mut rng = Rng::new(number as u64);
                match rng.below(3) {
                    0 => shrink(&pool, &model, &mut rng).await,
                    1 => drop(pool.grow(u64::MAX).await.expect("it is well")),
                    _ => {}
                }
                go_on(&pool, &model, &mut rng).await;
                pool.grow(u64::MAX).await.expect("it is well");
                add(&pool, &model, "later").await;
                sim.set_observer(|_| ());
            });
            for (event, moment) in next.take().iter().enumerate() {
                for plan in [CrashPlan::Nothing, CrashPlan::Random(event as u64)] {
                    let sim = Sim::new(seed);
                    let disk = SimDisk::from_image(&sim.env(), &moment.disk.cut(plan.chooser()));
                    let what = format!("seed {seed}, killed at {number}, cut at {event}, {plan:?}");
                    sim.block_on(async {
                        let pool = Pool::open(Rc::new(disk)).await;
                        let pool = pool.unwrap_or_else(|error| panic!("{what}: {error}"));
                        check(&pool, &moment.model, &what).await;
                    });
                    tried += 1;
                    shrinking += u64::from(moment.model.shrinking);
                }
            }
        }
    }
    (tried, shrinking)
}

#[test]
fn another_process_goes_on_after_a_kill_and_a_power_cut() {
    let (tried, shrinking) = kill_go_on_and_cut(0..6);
    eprintln!("{tried} crashes, {shrinking} of them during a shrink");
    assert!(
        tried > 3000 && shrinking > 300,
        "{tried} crashes, {shrinking} during a shrink"
    );
}

/// The simulation can find what it looks for.
#[cfg(feature = "planted-bugs")]
#[test]
fn planted_copies_that_come_back_are_found() {
    use flaz_pool::planted::{PlantedBug, plant};
    for bug in [PlantedBug::CopyForgotten, PlantedBug::MovedUnflushed] {
        plant(Some(bug));
        let found = std::panic::catch_unwind(|| kill_go_on_and_cut(0..12));
        plant(None);
        assert!(found.is_err(), "{bug:?} is not found");
    }
}

/// One damaged copy of anything loses nothing; two are refused.
#[test]
fn one_damaged_copy_loses_nothing() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(4 << 20));
    let model = Rc::new(RefCell::new(Model::default()));
    sim.block_on(async {
        let pool = Pool::create(Rc::new(disk.clone()), Uuid::from_u128(77), CHUNK)
            .await
            .expect("fits");
        let layout = pool.superblock().layout;
        work(pool, Rc::clone(&model), 3).await;
        let places = [
            [0, 64 << 10],
            [layout.table_offset(0, 0), layout.table_offset(0, 1)],
        ];
        for copies in places {
            for place in copies {
                disk.flip_bit(place + 40, 3);
                let pool = Pool::open(Rc::new(disk.clone()))
                    .await
                    .expect("the other copy is well");
                let model = model.borrow().clone();
                check(&pool, &model, "one copy is damaged").await;
                disk.flip_bit(place + 40, 3);
            }
            copies.iter().for_each(|place| disk.flip_bit(place + 40, 3));
            assert!(
                Pool::open(Rc::new(disk.clone())).await.is_err(),
                "both are damaged"
            );
            copies.iter().for_each(|place| disk.flip_bit(place + 40, 3));
        }
    });
}

#[test]
fn shares_are_guaranteed_and_capped() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(4 << 20));
    sim.block_on(async {
        let pool = Pool::create(Rc::new(disk), Uuid::from_u128(77), CHUNK)
            .await
            .expect("fits");
        let mut devices = Vec::new();
        for (name, at_least) in [("one", 0), ("two", 10)] {
            let prepared = pool
                .prepare(options(name, at_least))
                .await
                .expect("there is room");
            devices.push(pool.open_volume(prepared.number()).expect("it is prepared"));
            pool.commit(prepared).await.expect("it is well");
        }
        let front = CHUNK + 4096;
        let take =
            async |device: usize, part: u64| devices[device].allocate(front + part * CHUNK, CHUNK).await;
        let mut parts = 0;
        while take(0, parts).await.is_ok() {
            parts += 1;
        }
        assert_eq!(pool.free_chunks(), 8, "two has its front, and ten are guaranteed");
        for part in 0..8 {
            take(1, part).await.expect("guaranteed");
        }
        let error = take(1, 8).await.expect_err("none is free");
        assert_eq!(error.source.kind(), std::io::ErrorKind::StorageFull);
        devices[0].deallocate(front, CHUNK).await.expect("it is well");
        pool.set_share("two", Some(0), Some(10))
            .await
            .expect("it is well");
        let error = take(1, 8).await.expect_err("capped").to_string();
        assert!(error.contains("as many as it may have"), "{error}");
        take(0, 0).await.expect("one is free");
        let error = pool
            .set_share("two", Some(1 << 20), Some(0))
            .await
            .expect_err("too many");
        assert!(matches!(error, PoolError::Guarantees { .. }), "{error}");
    });
}

/// A device that fails while a part moves: the part has its contents and takes writes, or it fails them until it is known where the
/// part lies; the move is done later, and a power cut loses nothing.
#[test]
fn each_request_failed_while_a_part_moves() {
    let (mut moved, mut unknown) = (0, 0);
    let failures = (1..=6).flat_map(|nth| [(DeviceOp::Write, nth, 1), (DeviceOp::Write, nth, 3)]);
    for (op, nth, count) in failures.chain([(DeviceOp::Flush, 1, 1), (DeviceOp::Read, 1, 1)]) {
        let sim = Sim::new(nth);
        let disk = SimDisk::new(&sim.env(), DiskConfig::fast(4 << 20));
        let (number, version) = sim.block_on(async {
            let pool = Pool::create(Rc::new(disk.clone()), Uuid::from_u128(77), CHUNK);
            let pool = pool.await.expect("fits");
            let prepared = pool.prepare(options("one", 0)).await.expect("there is room");
            let number = prepared.number();
            pool.commit(prepared).await.expect("it is well");
            let device = pool.open_volume(number).expect("it exists");
            for index in (2..12).rev() {
                let taken = device.allocate(offset_of(index), CHUNK).await;
                taken.expect("there are enough");
                write_stamp(&pool, number, index).await;
            }
            for index in 6..12 {
                let given = device.deallocate(offset_of(index), CHUNK).await;
                given.expect("it is well");
            }
            pool.begin_shrink(8).await.expect("they fit");
            let beyond = pool.parts_beyond(number);
            assert_eq!(beyond, [5, 4, 3, 2]);
            (0..count).for_each(|more| disk.fail_nth(op, nth + more));
            let begun = pool.move_part(number, 5, std::future::pending()).await;
            assert_eq!(begun.is_err(), op != DeviceOp::Write || nth <= 5, "{op} {nth}");
            assert_eq!(pool.failed_flushes() > 0, op == DeviceOp::Flush);
            let mut version = stamp(number, 5);
            version[100] = 1;
            let write = async || {
                let buf = IoBuf::copy_of(&version);
                device.write_at(offset_of(5), buf, true).await.1
            };
            let (_, read) = device.read_at(offset_of(5), IoBuf::new(512)).await;
            read.expect("the chunks are well");
            for turn in 0..5 {
                let Err(error) = write().await else { break };
                unknown += u32::from(
                    error
                        .source
                        .to_string()
                        .contains("chunk table could not be written"),
                );
                assert!(turn < 4, "{op} {nth}: {error}");
                // Its own writes may fail too.
                drop(pool.reload(true).await);
            }
            moved += u32::from(begun.is_ok());
            (number, version)
        });
        let image = disk.crash(&CrashPlan::Nothing);
        let sim = Sim::new(nth);
        let disk = Rc::new(SimDisk::from_image(&sim.env(), &image));
        sim.block_on(async {
            let pool = Pool::open(disk).await.expect("opens");
            let device = pool.open_volume(number).expect("it exists");
            let (read, result) = device.read_at(offset_of(5), IoBuf::new(512)).await;
            result.expect("it is well");
            assert!(read[..] == version[..], "{op} {nth}: the write is lost");
            for index in pool.parts_beyond(number) {
                let done = pool.move_part(number, index, std::future::pending()).await;
                done.expect("it is well");
            }
            assert!(pool.end_shrink().await.expect("it is well"));
            assert_eq!(pool.superblock().chunks, 8);
            let (read, result) = device.read_at(offset_of(5), IoBuf::new(512)).await;
            result.expect("it is well");
            assert!(
                read[..] == version[..],
                "{op} {nth}: the write is lost in the second move"
            );
        });
    }
    assert!(moved > 0 && unknown > 0, "{moved}, {unknown}");
}

/// No chunk beyond the end is handed out, and none that the parts beyond it need; a size that cannot be is refused.
#[test]
fn a_pool_that_shrinks_hands_out_what_there_will_be() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(4 << 20));
    sim.block_on(async {
        let pool = Pool::create(Rc::new(disk.clone()), Uuid::from_u128(77), CHUNK);
        let pool = pool.await.expect("fits");
        let chunks = pool.superblock().chunks;
        for (name, at_least) in [("one", 0), ("two", 10)] {
            let prepared = pool
                .prepare(options(name, at_least))
                .await
                .expect("there is room");
            pool.commit(prepared).await.expect("it is well");
        }
        let one = pool.volume("one").expect("it exists").number;
        let device = pool.open_volume(one).expect("it exists");
        let len = device.len();
        for index in 2..16 {
            let taken = device.allocate(offset_of(index), CHUNK).await;
            taken.expect("there are enough");
        }
        let error = pool.begin_shrink(11).await.expect_err("12 are guaranteed");
        let least = pool.superblock().layout.chunk_offset(12);
        assert!(
            error.to_string().contains(&format!("at least {least} bytes")),
            "{error}"
        );
        assert_eq!(pool.superblock().shrink_to, None);
        pool.begin_shrink(17).await.expect("they can give back");
        assert_eq!((pool.chunks_too_many(), pool.free_chunks()), (1, 0));
        let error = pool.move_part(one, 15, std::future::pending()).await;
        let error = error.expect_err("all before the end are in use").to_string();
        assert!(error.contains("have not given enough back"), "{error}");
        let full = device
            .allocate(offset_of(20), CHUNK)
            .await
            .expect_err("none is free");
        assert_eq!(full.source.kind(), std::io::ErrorKind::StorageFull);
        assert!(
            !pool.end_shrink().await.expect("it is well"),
            "one is beyond the end"
        );
        for index in 2..8 {
            let given = device.deallocate(offset_of(index), CHUNK).await;
            given.expect("it is well");
        }
        for index in pool.parts_beyond(one) {
            let done = pool.move_part(one, index, std::future::pending()).await;
            done.expect("there is room");
        }
        assert!(pool.end_shrink().await.expect("it is well"));
        assert_eq!(
            (pool.superblock().chunks, device.len()),
            (17, len),
            "the device is as long as before"
        );
        let again = Pool::open(Rc::new(disk.clone())).await.expect("opens");
        assert_eq!(again.free_chunks(), pool.free_chunks());
        assert_eq!(pool.grow(u64::MAX).await.expect("it is well"), chunks);
        assert_eq!(device.len(), len);
    });
}

/// The entry of a chunk that could not be given back may be gone. The part takes it again only with a new one.
#[test]
fn a_chunk_whose_return_failed_is_taken_again() {
    for nth in 1..=2 {
        let sim = Sim::new(nth);
        let disk = SimDisk::new(&sim.env(), DiskConfig::fast(4 << 20));
        let (front, data) = (CHUNK + 4096, IoBuf::copy_of(&[7; 512]));
        let number = sim.block_on(async {
            let pool = Pool::create(Rc::new(disk.clone()), Uuid::from_u128(77), CHUNK);
            let pool = pool.await.expect("fits");
            let prepared = pool.prepare(options("one", 0)).await.expect("there is room");
            let number = prepared.number();
            pool.commit(prepared).await.expect("it is well");
            let device = pool.open_volume(number).expect("it exists");
            device.allocate(front, CHUNK).await.expect("there is room");
            let free = pool.free_chunks();
            disk.fail_nth(DeviceOp::Write, nth);
            device.deallocate(front, CHUNK).await.expect_err("it has failed");
            assert!(!device.has_space(front, CHUNK) && pool.free_chunks() == free);
            device.allocate(front, CHUNK).await.expect("it has one");
            assert_eq!(pool.free_chunks(), free);
            device
                .write_at(front, data, true)
                .await
                .1
                .expect("it has its chunk");
            disk.fail_nth(DeviceOp::Write, nth);
            let second = front + CHUNK;
            device.allocate(second, CHUNK).await.expect_err("it has failed");
            device.deallocate(second, CHUNK).await.expect("it is well");
            assert_eq!(pool.free_chunks(), free, "the failed attempt leaves nothing");
            number
        });
        let image = disk.crash(&CrashPlan::Nothing);
        let sim = Sim::new(nth);
        let disk = Rc::new(SimDisk::from_image(&sim.env(), &image));
        sim.block_on(async {
            let pool = Pool::open(disk).await.expect("opens");
            let device = pool.open_volume(number).expect("it exists");
            assert!(device.has_space(front, CHUNK), "write {nth}");
            let (read, result) = device.read_at(front, IoBuf::new(512)).await;
            result.expect("it is well");
            assert_eq!(read[..], [7; 512]);
        });
    }
}

/// What is written through a volume's device is read through it, wherever its chunks lie.
#[test]
fn a_volume_reads_what_it_wrote() {
    let sim = Sim::new(1);
    let disk = SimDisk::new(&sim.env(), DiskConfig::fast(4 << 20));
    sim.block_on(async {
        let pool = Pool::create(Rc::new(disk), Uuid::from_u128(77), CHUNK)
            .await
            .expect("fits");
        let mut devices = Vec::new();
        for name in ["one", "two"] {
            let prepared = pool.prepare(options(name, 0)).await.expect("there is room");
            devices.push(pool.open_volume(prepared.number()).expect("it is prepared"));
            pool.commit(prepared).await.expect("it is well");
        }
        let (front, mut rng) = (CHUNK + 4096, Rng::new(5));
        for part in [3, 1, 0, 2] {
            for device in &devices {
                device
                    .allocate(front + part * CHUNK, CHUNK)
                    .await
                    .expect("there is room");
            }
        }
        let len = front + 4 * CHUNK;
        let mut plain = [vec![0; len as usize], vec![0; len as usize]];
        for turn in 0..200_u64 {
            let which = (turn % 2) as usize;
            let start = rng.below(len / 512) * 512;
            let bytes = (1 + rng.below(600)).min((len - start) / 512) * 512;
            let mut buf = IoBuf::new(bytes as usize);
            buf.fill(turn as u8);
            devices[which]
                .write_at(start, buf, turn % 7 == 0)
                .await
                .1
                .expect("it is well");
            plain[which][start as usize..(start + bytes) as usize].fill(turn as u8);
            for (device, plain) in devices.iter().zip(&plain) {
                let (read, result) = device.read_at(start, IoBuf::new(bytes as usize)).await;
                result.expect("it is well");
                assert!(
                    read[..] == plain[start as usize..(start + bytes) as usize],
                    "turn {turn}"
                );
            }
        }
        for (offset, bytes) in [(0, CHUNK), (front + 512, CHUNK), (front, 512)] {
            let given = devices[0].deallocate(offset, bytes).await;
            given.expect_err("it is not a region");
        }
        let beyond = devices[0].write_at(len, IoBuf::zeroed(512), false).await.1;
        beyond.expect_err("it has no chunk there");
    });
}

/// The device reports a failed flush once, and the next one, which another process may do, succeeds: all must know by then.
#[test]
fn a_failed_flush_is_told_before_the_next_one() {
    let mut told_of = 0;
    for nth in 1..12 {
        let sim = Sim::new(nth);
        let disk = SimDisk::new(&sim.env(), DiskConfig::fast(4 << 20));
        sim.block_on(async {
            let uuid = Uuid::from_u128(77);
            let pool = Pool::create(Rc::new(disk.clone()), uuid, CHUNK);
            drop(pool.await.expect("fits"));
            let before = disk.stats().flushes;
            let told = Rc::new(RefCell::new(Vec::new()));
            let tell = {
                let (told, disk) = (Rc::clone(&told), disk.clone());
                move |pool| told.borrow_mut().push((pool, disk.stats().flushes))
            };
            disk.fail_nth(DeviceOp::Flush, nth);
            if let Ok(pool) = Pool::open_telling(Rc::new(disk.clone()), Box::new(tell)).await
                && pool.reload(true).await.is_ok()
                && let Ok(prepared) = pool.prepare(options("one", 0)).await
            {
                // Whatever becomes of it.
                let _ = pool.commit(prepared).await;
            }
            let failed = disk.stats().errors as usize;
            let expected = vec![(uuid, before + nth - 1); failed];
            assert_eq!(*told.borrow(), expected, "flush {nth}");
            told_of += failed;
        });
    }
    assert!(told_of > 5, "{told_of} failed");
}
