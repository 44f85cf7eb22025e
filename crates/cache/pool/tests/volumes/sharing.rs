//! Chunks move from one volume to another, while both are served.

use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Env, IoBuf};
use flaz_engine::cache::Start;
use flaz_engine::check::{Finding, walk};
use flaz_engine::settings::Mode;
use flaz_engine::units::Epoch;
use flaz_engine::volume::Volume;
use flaz_pool::Pool;
use flaz_sim::{DiskConfig, Sim, SimDisk, SimEnv};
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
    let sim = Sim::new(seed);
    let env = sim.env();
    let disk = SimDisk::new(&env, DiskConfig::fast(POOL_LEN));
    let (pool, lives) = sim.block_on(async {
        let device = Rc::new(disk.clone());
        let pool = Pool::create(device, Uuid::from_u128(77), CHUNK)
            .await
            .expect("fits");
        let mut lives = Vec::new();
        for spec in specs {
            add(&pool, spec).await;
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
                let start = live.cache.borrow().as_ref().expect("open").start;
                assert_eq!(start, Start::Warm(Epoch(1)));
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
