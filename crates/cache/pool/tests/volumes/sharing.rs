//! Chunks move from one volume to another, while both are served.

use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Device, DeviceOp, Env, IoBuf};
use flaz_engine::cache::Start;
use flaz_engine::cache::resize::Resizing;
use flaz_engine::check::{Finding, walk};
use flaz_engine::settings::Mode;
use flaz_engine::units::Epoch;
use flaz_engine::volume::Volume;
use flaz_pool::Pool;
use flaz_sim::{DiskConfig, FaultRates, Sim, SimDisk, SimEnv};
use uuid::Uuid;

use crate::sectors::{BLOCK_SECTORS, Print, SECTOR, fill, print_of};
use crate::world::{BLOCK, CHUNK, Live, ORIGIN_LEN, POOL_LEN, Spec, add, origin_config};

const REGIONS_MIN: u32 = 6;

/// A pool with these volumes, which are open.
struct Pair {
    sim: Sim,
    env: SimEnv,
    disk: SimDisk,
    pool: Rc<Pool<SimDisk>>,
    lives: Vec<Live>,
}

fn pair(seed: u64, specs: &[Spec]) -> Pair {
    pair_on(seed, POOL_LEN, specs)
}

fn pair_on(seed: u64, pool_len: u64, specs: &[Spec]) -> Pair {
    let sim = Sim::new(seed);
    let env = sim.env();
    let disk = SimDisk::new(&env, DiskConfig::fast(pool_len));
    let (pool, lives) = sim.block_on(async {
        let device = Rc::new(disk.clone());
        let pool = Pool::create(device, Uuid::from_u128(77), CHUNK)
            .await
            .expect("fits");
        let mut lives = Vec::new();
        for spec in specs {
            assert!(add(&pool, spec).await, "there is room");
            let origin = Rc::new(SimDisk::new(&env, origin_config()));
            let live = Live::open(&env, &pool, *spec, &origin).await;
            lives.push(live.expect("opens"));
        }
        (pool, lives)
    });
    Pair {
        sim,
        env,
        disk,
        pool,
        lives,
    }
}

impl Live {
    /// Reads blocks of the origin that nobody writes.
    async fn warm(&self, blocks: std::ops::Range<u64>) {
        for block in blocks {
            assert_eq!(self.version(block).await, Print::of_version(0), "block {block}");
        }
        while self.stats().holdings.admission_queue > 0 {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }

    async fn write(&self, block: u64, version: u64) {
        let mut data = IoBuf::new(BLOCK as usize);
        fill(block * BLOCK_SECTORS, version, &mut data);
        let written = self
            .volume
            .write(block * BLOCK, [data].into_iter().collect(), false);
        written.await.expect("it is well");
    }

    async fn version(&self, block: u64) -> Print {
        let read = self.volume.read(block * BLOCK, BLOCK as u32).await;
        let read = read.expect("it is well");
        let prints: Vec<Print> = (block * BLOCK_SECTORS..)
            .zip(read[0].chunks_exact(SECTOR))
            .map(|(sector, bytes)| print_of(sector, bytes))
            .collect();
        assert!(prints.iter().all(|print| *print == prints[0]), "one version");
        prints[0]
    }

    /// Nothing failed: no write has gone to a region without its chunk.
    fn assert_well(&self) {
        let stats = self.stats();
        assert!(!stats.holdings.cache_failed);
        assert_eq!((stats.counts.cache_errors, stats.counts.cache_no_space), (0, 0));
        assert_eq!(stats.counts.allocations_without_space, 0, "that is ordinary");
        let space = u64::from(self.regions_with_space()) * CHUNK;
        assert_eq!(stats.holdings.capacity_bytes, space);
        let used = stats.holdings.ring_bytes.iter().sum::<u64>();
        assert_eq!(used + stats.holdings.free_bytes, space);
    }
}

const BLOCKS: u64 = ORIGIN_LEN / BLOCK;

/// Another process holds the pool for a long time. The device is well: no cache stops using it, clients go on, and the chunks are given
/// back afterwards.
#[test]
fn a_pool_that_is_held_by_another_process_is_no_error_of_the_device() {
    for (seed, mode) in [(3, Mode::WriteThrough), (4, Mode::WriteBack)] {
        let Pair { sim, env, lives, .. } = pair(seed, &[Spec::new("one", mode)]);
        sim.block_on(async {
            let one = &lives[0];
            one.warm(0..BLOCKS).await;
            let before = one.regions_with_space();
            one.holds.set(true);
            let give = one.give_back(20, None);
            let others = async {
                for block in 0..BLOCKS {
                    one.write(block, 1 + block).await;
                    env.sleep(Duration::from_millis(1)).await;
                }
                assert_eq!(one.regions_with_space(), before);
                one.holds.set(false);
            };
            let (given, ()) = futures_util::future::join(give, others).await;
            assert!(given.expect("it is well"));
            assert_eq!(one.regions_with_space(), before - 20);
            one.assert_well();
            for block in (0..BLOCKS).step_by(7) {
                assert_eq!(one.version(block).await, Print::of_version(1 + block));
            }
        });
    }
}

/// On a large device, a volume takes chunks in advance. Those that it does not use are given back first, and it can give back all but
/// the least.
#[test]
fn chunks_taken_in_advance_are_given_back_too() {
    for (seed, shards) in [(5, 1), (6, 2)] {
        let mut spec = Spec::new("one", Mode::WriteThrough);
        spec.shards = shards;
        let Pair { sim, lives, .. } = pair_on(seed, 64 << 20, &[spec]);
        sim.block_on(async {
            let one = &lives[0];
            one.warm(0..BLOCKS / 4).await;
            let chunks = one.regions_with_space();
            let used = one.stats().holdings.capacity_bytes / CHUNK;
            let unused = u64::from(chunks) - used;
            assert!(unused > 1, "{chunks} chunks, {used} used");
            assert!(one.give_back(1, None).await.expect("it is well"));
            assert_eq!(one.regions_with_space(), chunks - 1);
            one.assert_well();
            assert_eq!(
                one.stats().counts.regions_reclaimed,
                0,
                "nothing is dropped for that"
            );
            assert!(one.give_back(1000, None).await.expect("it is well"));
            assert_eq!(one.regions_with_space(), REGIONS_MIN * shards);
            one.assert_well();
        });
    }
}

/// A volume has parts for the growth of the device. Before that, it does not take chunks for them.
#[test]
fn no_chunks_are_taken_in_advance_for_parts_of_the_future() {
    let Pair { sim, pool, lives, .. } = pair_on(7, 64 << 20, &[Spec::new("one", Mode::WriteThrough)]);
    sim.block_on(async {
        let (number, map) = (lives[0].number, &lives[0].map);
        let parts = map.parts_now();
        assert!(map.parts() > parts);
        for (part, in_advance) in [(parts - 20, true), (parts - 1, false)] {
            let before = pool.free_chunks();
            pool.take_part(number, part).await.expect("chunks are free");
            assert_eq!(
                before - pool.free_chunks() > 1,
                in_advance,
                "part {part} of {parts}"
            );
        }
    });
}

/// What one volume gives back, the other one gets, in both modes; both find everything after a restart, and use their chunks first.
#[test]
fn chunks_move_from_one_volume_to_another() {
    for (seed, mode) in [(1, Mode::WriteThrough), (2, Mode::WriteBack)] {
        let mut specs = [Spec::new("one", mode), Spec::new("two", mode)];
        specs[1].shards = 2;
        let Pair {
            sim,
            env,
            disk,
            pool,
            lives,
        } = pair(seed, &specs);
        sim.block_on(async {
            let [one, two] = &lives[..] else { panic!("two") };
            assert_eq!((one.regions_with_space(), two.regions_with_space()), (6, 12));
            one.warm(0..BLOCKS).await;
            assert_eq!(pool.free_chunks(), 0, "it takes all");
            let large = one.regions_with_space();
            for block in (0..BLOCKS).step_by(40) {
                one.write(block, 1 + block).await;
                two.write(block, 2 + block).await;
            }
            assert_eq!(two.regions_with_space(), 12);
            for live in &lives {
                live.assert_well();
            }
            let limit = one.stats().holdings.dirty_limit_bytes;
            assert!(one.give_back(10, None).await.expect("it is well"));
            assert_eq!((one.regions_with_space(), pool.free_chunks()), (large - 10, 10));
            assert!(one.stats().holdings.dirty_limit_bytes < limit);
            one.warm(1001..1020).await;
            two.warm(1..2).await;
            // It does not take them again.
            for block in (1..BLOCKS).step_by(40) {
                one.write(block, 3 + block).await;
            }
            assert_eq!(one.regions_with_space(), large - 10);
            for block in (2..BLOCKS).step_by(2) {
                two.write(block, 3 + block).await;
            }
            assert_eq!((two.regions_with_space(), pool.free_chunks()), (22, 0));
            // No more than all but the least regions, which reclaim needs.
            assert!(one.give_back(1000, None).await.expect("it is well"));
            assert_eq!(one.regions_with_space(), REGIONS_MIN);
            let before = two.regions_with_space();
            assert!(two.give_back(9, None).await.expect("it is well"));
            assert_eq!(two.regions_with_space(), before - 9, "of both shards together");
            for live in &lives {
                live.assert_well();
            }
        });
        let expected = |number: usize, block: u64| match (number, block) {
            (0, block) if block % 40 == 0 => 1 + block,
            (0, block) if block % 40 == 1 => 3 + block,
            (1, 0) => 2,
            (1, block) if block.is_multiple_of(2) => 3 + block,
            _ => 0,
        };
        sim.block_on(async {
            let origins: Vec<_> = lives.iter().map(|live| Rc::clone(&live.origin)).collect();
            let mut before = Vec::new();
            for live in lives {
                before.push(live.regions_with_space());
                live.stop().await.expect("stops");
            }
            let pool = Pool::open(Rc::new(disk.clone())).await.expect("opens");
            for (number, spec) in specs.iter().enumerate() {
                let live = Live::open(&env, &pool, *spec, &origins[number])
                    .await
                    .expect("opens");
                assert_eq!(live.regions_with_space(), before[number]);
                assert_eq!(live.start(), Start::Warm(Epoch(1)));
                live.assert_well();
                let mut findings = Vec::new();
                walk(&live.device, &mut |finding: Finding, _, _| {
                    findings.extend(finding.object.err());
                })
                .await
                .expect("it can be walked");
                assert_eq!(findings, Vec::<String>::new());
                for block in 0..BLOCKS {
                    let version = Print::of_version(expected(number, block));
                    assert_eq!(live.version(block).await, version, "block {block}");
                }
                live.stop().await.expect("stops");
            }
        });
    }
}

/// Writes of either volume may be lost, and the device reports a failed flush once: to a volume, or to the pool.
#[test]
fn a_failed_flush_is_told_to_both_volumes() {
    for seed in 0..9 {
        let specs = ["one", "two"].map(|name| Spec::new(name, Mode::WriteBack));
        let pair = pair(seed, &specs);
        pair.sim.block_on(async {
            for (number, live) in pair.lives.iter().enumerate() {
                live.write(7, 1 + number as u64).await;
            }
            pair.disk.fail_nth(DeviceOp::Flush, 1);
            match pair.lives.get((seed % 3) as usize) {
                Some(first) => drop(first.volume.flush().await.expect_err("it has failed")),
                None => drop(
                    pair.pool
                        .set_share("one", Some(3), None)
                        .await
                        .expect_err("it has failed"),
                ),
            }
            for live in &pair.lives {
                live.volume.flush().await.expect_err("its writes may be lost");
            }
        });
    }
}

/// The volume of a failing origin serves what it has, and gives space to the other one.
#[test]
fn a_failing_origin_leaves_the_other_volume_alone() {
    let specs = ["one", "two"].map(|name| Spec::new(name, Mode::WriteThrough));
    let pair = pair(5, &specs);
    let [one, two] = &pair.lives[..] else {
        panic!("two")
    };
    pair.sim.block_on(async {
        one.warm(0..BLOCKS).await;
        one.origin.set_dead(true);
        let read = |block: u64| one.volume.read(block * BLOCK, BLOCK as u32);
        let mut cached = Vec::new();
        for block in 0..BLOCKS {
            if read(block).await.is_ok() {
                cached.push(block);
            }
        }
        assert!(
            cached.len() > 500 && (cached.len() as u64) < BLOCKS,
            "{}",
            cached.len()
        );
        let before = two.regions_with_space();
        assert!(one.give_back(10, None).await.expect("it is well"));
        two.warm(0..BLOCKS).await;
        assert_eq!(two.regions_with_space(), before + 10);
        for block in (0..BLOCKS).step_by(3) {
            two.write(block, 5).await;
        }
        two.volume.flush().await.expect("its origin is well");
        let mut left = 0;
        for block in cached {
            left += u32::from(read(block).await.is_ok());
        }
        assert!(left > 200, "{left} blocks are still cached");
        one.assert_well();
        two.assert_well();
    });
}

/// Dirty blocks that do not fit in the rest are written to the origin first. If it takes none, nothing is given back.
#[test]
fn dirty_blocks_are_written_before_space_is_given() {
    for fails in [false, true] {
        let pair = pair(9, &[Spec::new("one", Mode::WriteBack)]);
        let one = &pair.lives[0];
        pair.sim.block_on(async {
            one.warm(0..BLOCKS).await;
            one.origin.set_faults(FaultRates {
                write_error_ppm: if fails { 1_000_000 } else { 0 },
                stall_ppm: 1_000_000,
                stall: Duration::from_millis(20),
                ..FaultRates::default()
            });
            for block in 0..400 {
                one.write(block, 1).await;
            }
            let before = one.stats().holdings;
            let space = one.regions_with_space();
            one.failed.set(fails);
            let given = one.give_back(space.into(), None).await;
            let after = one.stats().holdings;
            if fails {
                let error = given.expect_err("they cannot be written").to_string();
                assert!(error.contains("bytes of dirty data do not fit"), "{error}");
                assert_eq!((one.regions_with_space(), after.dirty_blocks), (space, 400));
                assert_eq!(
                    after.dirty_limit_bytes, before.dirty_limit_bytes,
                    "it was called off"
                );
                one.origin.set_faults(FaultRates::default());
            } else {
                assert!(given.expect("it is well"));
                assert_eq!(one.regions_with_space(), REGIONS_MIN);
                assert!(before.dirty_device_bytes > after.dirty_limit_bytes, "{before:?}");
                assert!(after.dirty_device_bytes <= after.dirty_limit_bytes, "{after:?}");
            }
            one.assert_well();
            for block in 0..400 {
                assert_eq!(one.version(block).await, Print::of_version(1), "block {block}");
            }
        });
    }
}

impl Live {
    async fn resize(&self, len: u64) {
        let mut cache = self.cache.take().expect("one change at a time");
        let mut step = cache.begin_resize(len).await.expect("it is possible");
        while step != Resizing::Done {
            self.env.sleep(Duration::from_millis(2)).await;
            step = cache.continue_resize().await.expect("it is well");
        }
        *self.cache.borrow_mut() = Some(cache);
    }
}

/// More regions need no chunks, and regions that are removed keep none: also if a crash has left one to them.
#[test]
fn a_volume_has_more_and_fewer_regions() {
    let spec = Spec::new("one", Mode::WriteBack);
    let Pair {
        sim,
        env,
        disk,
        pool,
        mut lives,
    } = pair(11, &[spec]);
    let live = lives.remove(0);
    let origin = Rc::clone(&live.origin);
    sim.block_on(async {
        live.warm(0..BLOCKS).await;
        let geometry = live.superblock().geometry;
        let (before, chunks) = (live.regions_with_space(), pool.superblock().chunks);
        assert_eq!(pool.free_chunks(), 0);
        disk.grow(2 * POOL_LEN);
        assert!(pool.grow(u64::MAX).await.expect("it is well") > chunks);
        live.map.set_limit(0);
        live.resize(live.device.len()).await;
        assert_eq!(
            live.superblock().geometry.regions_per_shard,
            pool.superblock().chunks
        );
        assert_eq!(live.regions_with_space(), before, "they have no chunks yet");
        live.map.set_limit(u32::MAX);
        live.warm(0..BLOCKS).await;
        assert!(live.regions_with_space() > before);
        live.assert_well();
        for block in (0..BLOCKS).step_by(9) {
            live.write(block, 1).await;
        }
        live.resize(geometry.region_offset(0, 10)).await;
        assert_eq!(live.superblock().geometry.regions_per_shard, 10);
        assert!(live.regions_with_space() <= 10);
        live.assert_well();
        let number = live.number;
        let beyond = live.map.front_parts() + 12;
        live.stop().await.expect("stops");
        pool.take_part(number, beyond).await.expect("one is free");
        let live = Live::open(&env, &pool, spec, &origin).await.expect("opens");
        assert_eq!(live.map.chunk(beyond), None);
        live.assert_well();
        for block in 0..BLOCKS {
            let version = u64::from(block.is_multiple_of(9));
            assert_eq!(
                live.version(block).await,
                Print::of_version(version),
                "block {block}"
            );
        }
    });
}

/// A write of the manifest that fails fences the cache; one of the chunk table leaves a region withheld, until a start looks again.
#[test]
fn each_write_failed_once_while_space_is_given_back() {
    let (mut withheld, mut fenced) = (0, 0);
    for nth in 1..40 {
        let spec = Spec::new("one", Mode::WriteThrough);
        let Pair {
            sim,
            env,
            disk,
            mut lives,
            ..
        } = pair(13, &[spec]);
        let live = lives.remove(0);
        let origin = Rc::clone(&live.origin);
        sim.block_on(async {
            live.warm(0..BLOCKS).await;
            disk.fail_nth(DeviceOp::Write, nth);
            let given = live.give_back(8, None).await;
            live.warm(0..200).await;
            let stats = live.stats();
            if stats.holdings.cache_failed {
                given.expect_err("the cache is not used");
                fenced += 1;
                return;
            }
            assert!(given.expect("the other regions are given back"));
            let space = u64::from(live.regions_with_space()) * CHUNK;
            withheld += u32::from(stats.holdings.capacity_bytes < space);
            assert!(stats.holdings.capacity_bytes + CHUNK >= space);
            live.stop().await.expect("stops");
            let pool = Pool::open(Rc::new(disk.clone())).await.expect("opens");
            let live = Live::open(&env, &pool, spec, &origin).await.expect("opens");
            live.assert_well();
            live.warm(0..BLOCKS).await;
            live.assert_well();
        });
    }
    assert!(withheld > 3 && fenced > 3, "{withheld}, {fenced}");
}
