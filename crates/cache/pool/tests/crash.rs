//! Changes of a pool, with crashes at every event of its device.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flaz_device::{Device, DeviceOp, IoBuf};
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
    moving: Option<(String, u32)>,
}

/// Adds a volume.
async fn add(pool: &Rc<Pool<SimDisk>>, model: &RefCell<Model>, name: &str) -> u32 {
    model.borrow_mut().changing = Some(name.to_owned());
    let prepared = pool.prepare(options(name, 3)).await.expect("there is room");
    let number = prepared.number();
    pool.commit(prepared).await.expect("it is well");
    let map = pool.map(number).expect("it exists");
    let parts = (0..map.parts()).filter_map(|index| Some((index, map.chunk(index)?)));
    let mut model = model.borrow_mut();
    model.changing = None;
    model.volumes.insert(name.to_owned(), parts.collect());
    number
}

/// Takes and gives back some parts of all volumes.
async fn go_on(pool: &Rc<Pool<SimDisk>>, model: &RefCell<Model>, rng: &mut Rng) {
    for volume in pool.superblock().volumes {
        let device = pool.open_volume(volume.number).expect("it exists");
        let map = pool.map(volume.number).expect("it exists");
        for index in 2..5 {
            let offset = CHUNK + 4096 + u64::from(index - 2) * CHUNK;
            model.borrow_mut().moving = Some((volume.name.clone(), index));
            match rng.coin() {
                true => device.allocate(offset, CHUNK).await.expect("there are enough"),
                false => device.deallocate(offset, CHUNK).await.expect("it is well"),
            }
            let mut model = model.borrow_mut();
            model.moving = None;
            let parts = model.volumes.get_mut(&volume.name).expect("it exists");
            match map.chunk(index) {
                Some(chunk) => drop(parts.insert(index, chunk)),
                None => drop(parts.remove(&index)),
            }
        }
    }
}

/// Takes, gives back, adds and removes, as the seed decides.
async fn work(pool: Rc<Pool<SimDisk>>, model: Rc<RefCell<Model>>, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut numbers = BTreeMap::new();
    for name in ["one", "two"] {
        numbers.insert(name.to_owned(), add(&pool, &model, name).await);
    }
    for turn in 0..24 {
        let names: Vec<String> = numbers.keys().cloned().collect();
        let name = &names[rng.below(names.len() as u64) as usize];
        let device = pool.open_volume(numbers[name]).expect("it exists");
        let map = pool.map(numbers[name]).expect("it exists");
        let index = 2 + rng.below(6) as u32;
        let offset = CHUNK + 4096 + u64::from(index - 2) * CHUNK;
        match (turn, rng.below(3)) {
            (8, _) => {
                numbers.insert("three".to_owned(), add(&pool, &model, "three").await);
            }
            (16, _) => {
                model.borrow_mut().changing = Some("one".to_owned());
                pool.remove("one").await.expect("it is well");
                numbers.remove("one");
                let mut model = model.borrow_mut();
                model.changing = None;
                model.volumes.remove("one");
            }
            (_, 0) => {
                model.borrow_mut().moving = Some((name.clone(), index));
                device.deallocate(offset, CHUNK).await.expect("it is well");
                let mut model = model.borrow_mut();
                model.moving = None;
                model.volumes.get_mut(name).expect("it exists").remove(&index);
            }
            _ => {
                model.borrow_mut().moving = Some((name.clone(), index));
                device.allocate(offset, CHUNK).await.expect("there are enough");
                let chunk = map.chunk(index).expect("it was taken");
                let mut model = model.borrow_mut();
                model.moving = None;
                model
                    .volumes
                    .get_mut(name)
                    .expect("it exists")
                    .insert(index, chunk);
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
fn check(pool: &Rc<Pool<SimDisk>>, model: &Model, what: &str) {
    let superblock = pool.superblock();
    let names: Vec<&String> = superblock.volumes.iter().map(|volume| &volume.name).collect();
    for name in model.volumes.keys() {
        let known = names.contains(&name) || model.changing.as_ref() == Some(name);
        assert!(known, "{what}: volume {name} is lost");
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
            if let Some(expected) = expected
                && model.moving.as_ref() != Some(&(name.clone(), index))
            {
                assert_eq!(
                    map.chunk(index),
                    expected.get(&index).copied(),
                    "{what}: part {index} of {name}"
                );
            }
        }
    }
    let count = chunks.len();
    chunks.sort_unstable();
    chunks.dedup();
    assert_eq!(chunks.len(), count, "{what}: a chunk has two owners");
    assert_eq!(
        pool.free_chunks() as usize,
        superblock.chunks as usize - count,
        "{what}"
    );
}

#[test]
fn a_crash_leaves_what_clients_were_told() {
    let mut tried = 0;
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
                    check(&pool, &moment.model, &what);
                    // It goes on, and the next opening agrees.
                    let prepared = pool.prepare(options("next", 0)).await.expect("there is room");
                    pool.commit(prepared).await.expect("it is well");
                    let again = Pool::open(Rc::clone(&disk))
                        .await
                        .unwrap_or_else(|error| panic!("{what}, again: {error}"));
                    assert_eq!(again.superblock(), pool.superblock(), "{what}");
                    assert_eq!(again.free_chunks(), pool.free_chunks(), "{what}");
                });
                tried += 1;
            }
        }
    }
    assert!(tried > 3000, "{tried} crashes");
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
#[test]
fn another_process_goes_on_after_a_kill_and_a_power_cut() {
    let mut tried = 0;
    for seed in 0..6 {
        for (number, moment) in moments(seed).iter().enumerate().step_by(5) {
            let kill = CrashPlan::Random(number as u64);
            let sim = Sim::new(seed);
            let disk = SimDisk::from_image(&sim.env(), &moment.disk.kill(kill.chooser()));
            let model: Rc<RefCell<Model>> = Rc::default();
            let next: Rc<RefCell<Vec<Moment>>> = Rc::default();
            sim.block_on(async {
                let pool = Pool::open(Rc::new(disk.clone())).await.expect("opens");
                model.replace(found(&pool));
                let (noted, watched, known) = (Rc::clone(&next), disk.clone(), Rc::clone(&model));
                sim.set_observer(move |_| {
                    noted.borrow_mut().push(Moment {
                        disk: watched.moment(),
                        model: known.borrow().clone(),
                    });
                });
                add(&pool, &model, "later").await;
                go_on(&pool, &model, &mut Rng::new(number as u64)).await;
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
                        check(&pool, &moment.model, &what);
                    });
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 3000, "{tried} crashes");
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
                check(&pool, &model.borrow(), "one copy is damaged");
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
