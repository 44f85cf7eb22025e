//! Write-back over time: the cost of synchronous writes on the cache device, and the worker's effect on readers.
//!
//! On simulated devices in virtual time, so the figures are the same on every machine and every run.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use flaz_codec::CodecChoice;
use flaz_device::{Env, IoBuf};
use flaz_engine::cache::{CreateOptions, LocalCache, create};
use flaz_engine::format::geometry::GeometryOptions;
use flaz_engine::router::CachedVolume;
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::volume::Volume;
use flaz_runtime::emulate::{Emulated, Model};
use flaz_sim::{DiskConfig, Rng, Sim, SimDisk, SimEnv};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::platform::{AnyDevice, Simulated, SimulatedVolume};

const BLOCK: u64 = 4096;
const ORIGIN_BYTES: u64 = 1 << 30;
const CACHE_BYTES: u64 = 64 << 20;

struct World {
    env: SimEnv,
    cache: LocalCache<Simulated>,
    volume: SimulatedVolume,
}

impl World {
    /// A cache in write-back before an emulated disk.
    async fn open(env: SimEnv) -> Self {
        Self::open_with(env, 2).await
    }

    async fn open_with(env: SimEnv, shards: u32) -> Self {
        let disk = SimDisk::new(&env, DiskConfig::fast(CACHE_BYTES));
        let origin = SimDisk::new(&env, DiskConfig::fast(ORIGIN_BYTES));
        let options = CreateOptions {
            uuid: Uuid::from_u128(7),
            created_unix_s: 0,
            wish: GeometryOptions {
                region_bytes: Some(1 << 20),
                shard_count: Some(shards),
                ..GeometryOptions::default()
            }
            .into(),
            codec: CodecChoice::default(),
            origin_len: ORIGIN_BYTES,
            origin_identity: "sim".into(),
            origin_path: "sim".into(),
        };
        create(&disk, options).await.expect("the cache fits");
        let settings = Settings {
            mode: Mode::WriteBack,
            dirty_percent: 25,
            ..Settings::default()
        };
        let origin = Rc::new(AnyDevice::Slow(Emulated::new(origin, env.clone(), Model::HDD)));
        let cache = LocalCache::open(env.clone(), AnyDevice::disk(&disk), Rc::clone(&origin), settings)
            .await
            .expect("opens");
        let volume = CachedVolume::new(cache.shards(), origin, ORIGIN_BYTES, 0);
        Self { env, cache, volume }
    }

    async fn write(&self, block: u64, data: Vec<u8>) {
        let data = [IoBuf::copy_of(&data)].into();
        self.volume
            .write(block * BLOCK, data, false)
            .await
            .expect("all is well");
    }
}

/// A block that LZ4 compresses to half.
fn halves(rng: &mut Rng) -> Vec<u8> {
    let random = (0..2040).map(|_| rng.next_u64() as u8);
    random.chain(std::iter::repeat(0)).take(BLOCK as usize).collect()
}

/// Bytes of blocks per byte of the extents that hold them.
fn packing(depth: u64, stats: &StatsSnapshot) -> f64 {
    let counts = &stats.counts;
    let packed = (counts.ack_extent_blocks * BLOCK) as f64 / counts.ack_extent_bytes as f64;
    eprintln!(
        "{depth} writers of 4 KiB, each with a flush behind it, data that halves: {} blocks in {} early extents, {packed:.2} \
         bytes a byte",
        counts.ack_extent_blocks, counts.ack_extents
    );
    packed
}

#[test]
fn synchronous_writes_pack_well_and_better_in_company() {
    for (depth, least) in [(1, 1.55), (8, 1.55), (64, 1.7)] {
        let sim = Sim::new(depth);
        let env = sim.env();
        let stats = sim.block_on(async {
            let world = World::open(env).await;
            let writers = (0..depth).map(|writer| {
                let world = &world;
                async move {
                    let mut rng = Rng::new(writer);
                    for _ in 0..1024 / depth {
                        let block = rng.below(ORIGIN_BYTES / BLOCK);
                        world.write(block, halves(&mut rng)).await;
                        world.volume.flush().await.expect("all is well");
                    }
                }
            });
            join_all(writers.collect::<Vec<_>>()).await;
            world.cache.stats()
        });
        assert!(packing(depth, &stats) > least, "expected over {least}");
    }
}

/// Writers that wait at the same time share extents: few writes of the cache device for many of clients, and nearly the ratio of the
/// codec. A writer alone has an extent for each block.
#[test]
fn writers_of_one_shard_share_extents() {
    for (depth, blocks_min, part_min) in [(1, 1.0, 0.75), (16, 7.0, 0.94), (64, 8.0, 0.93)] {
        let sim = Sim::new(depth);
        let env = sim.env();
        let counts = sim.block_on(async {
            let world = World::open_with(env, 1).await;
            let writers = (0..depth).map(|writer| {
                let world = &world;
                async move {
                    let mut rng = Rng::new(writer);
                    for _ in 0..2048 / depth {
                        let block = rng.below(ORIGIN_BYTES / BLOCK);
                        world.write(block, halves(&mut rng)).await;
                    }
                }
            });
            join_all(writers.collect::<Vec<_>>()).await;
            world.cache.stats().counts
        });
        let blocks = counts.ack_extent_blocks as f64 / counts.ack_extents as f64;
        let ratio = counts.codec_in_bytes as f64 / counts.codec_out_bytes as f64;
        let part = (counts.ack_extent_blocks * BLOCK) as f64 / counts.ack_extent_bytes as f64 / ratio;
        eprintln!("{depth} writers: {blocks:.1} blocks an extent, {part:.2} of the codec's ratio");
        assert!(
            blocks >= blocks_min && part >= part_min,
            "{depth} writers: {blocks:.1} blocks an extent, {part:.2} of the codec's ratio"
        );
    }
}

/// The reported age of dirty data follows the worker's passes: it stays small under steady writes, although some block is always
/// dirty, and is zero when all is clean.
#[test]
fn the_age_of_dirty_data_follows_the_worker() {
    let sim = Sim::new(5);
    let env = sim.env();
    sim.block_on(async {
        let world = World::open(env).await;
        let age = || Duration::from_nanos(world.cache.stats().holdings.dirty_ns);
        assert_eq!(age(), Duration::ZERO);
        let mut rng = Rng::new(5);
        let (mut oldest, mut always_dirty) = (Duration::ZERO, true);
        for second in 0..300 {
            for _ in 0..8 {
                world
                    .write(rng.below(ORIGIN_BYTES / BLOCK), halves(&mut rng))
                    .await;
            }
            world.env.sleep(Duration::from_secs(1)).await;
            always_dirty &= second < 1 || world.cache.stats().holdings.dirty_blocks > 0;
            oldest = oldest.max(age());
        }
        assert!(always_dirty && oldest >= Duration::from_secs(1), "{oldest:?}");
        assert!(oldest < Duration::from_secs(30), "{oldest:?}");
        world.env.sleep(Duration::from_secs(60)).await;
        assert_eq!(world.cache.stats().holdings.dirty_blocks, 0);
        assert_eq!(age(), Duration::ZERO);
    });
}

/// Readers that miss share a disk with the worker: their slowest second is not much slower than the average, even while the
/// writeback worker uses the disk.
#[test]
fn the_cleaner_does_not_starve_readers_of_the_origin() {
    for readers in [1, 2, 4, 16] {
        beside_the_cleaner(readers);
    }
}

fn beside_the_cleaner(readers: u64) {
    const SECONDS: usize = 300;
    const WARM_UP: usize = 100;
    let sim = Sim::new(1);
    let env = sim.env();
    let (seconds, counts) = sim.block_on(async {
        let world = World::open(env).await;
        let done = Cell::new(false);
        let seconds = RefCell::new(vec![0_u32; SECONDS]);
        let started = world.env.now();
        let readers = (0..readers).map(|reader| {
            let (world, done, seconds) = (&world, &done, &seconds);
            async move {
                let mut rng = Rng::new(100 + reader);
                while !done.get() {
                    // In the upper half, which is not written.
                    let block = ORIGIN_BYTES / BLOCK / 2 + rng.below(ORIGIN_BYTES / BLOCK / 2);
                    world.volume.read(block * BLOCK, 4096).await.expect("all is well");
                    let second = world.env.now().since(started).as_secs() as usize;
                    if let Some(count) = seconds.borrow_mut().get_mut(second) {
                        *count += 1;
                    }
                }
            }
        });
        // Bursts larger than such a disk can write while it serves its readers, with pauses: the dirty limit is reached.
        let writer = async {
            let mut rng = Rng::new(1);
            while world.env.now().since(started) < Duration::from_secs(SECONDS as u64) {
                for _ in 0..512 {
                    let block = rng.below(ORIGIN_BYTES / BLOCK / 2);
                    world.write(block, halves(&mut rng)).await;
                }
                world.env.sleep(Duration::from_secs(10)).await;
            }
            done.set(true);
        };
        futures_util::future::join(join_all(readers.collect::<Vec<_>>()), writer).await;
        (seconds.into_inner(), world.cache.stats().counts)
    });
    assert!(
        counts.cleaned_blocks > 1000,
        "the writeback worker had something to do"
    );
    for (what, window) in [
        ("from the first second on", 0..SECONDS - 1),
        ("while more and more is dirty", 0..WARM_UP),
        ("at the dirty limit", WARM_UP..SECONDS - 1),
    ] {
        let window = &seconds[window];
        let mean = f64::from(window.iter().sum::<u32>()) / window.len() as f64;
        let worst = window.iter().copied().min().unwrap_or(0);
        eprintln!(
            "{readers} readers beside the writeback worker, {what}: {mean:.1} reads a second, {worst} in the worst ({:.2}x); {} blocks \
             cleaned",
            f64::from(worst) / mean,
            counts.cleaned_blocks
        );
        assert!(
            f64::from(worst) >= 0.8 * mean,
            "{readers} readers, {what}: the worst second has {worst} reads, the mean one {mean:.1}"
        );
    }
}

/// While dirty blocks go to a hard disk as fast as it takes them, a read of another block does not wait behind many of them.
/// Writers go on at the speed of the disk.
#[test]
fn a_reader_that_comes_rarely_does_not_wait_behind_writeback() {
    const SECONDS: u64 = 120;
    let sim = Sim::new(1);
    let env = sim.env();
    let (longest, longest_write, counts) = sim.block_on(async {
        let world = World::open(env).await;
        let started = world.env.now();
        let goes_on = || world.env.now().since(started) < Duration::from_secs(SECONDS);
        let (longest, longest_write) = (Cell::new(Duration::ZERO), Cell::new(Duration::ZERO));
        let reader = async {
            let mut rng = Rng::new(100);
            while goes_on() {
                world.env.sleep(Duration::from_millis(300 + rng.below(100))).await;
                // In the upper half, which is not written.
                let block = ORIGIN_BYTES / BLOCK / 2 + rng.below(ORIGIN_BYTES / BLOCK / 2);
                let before = world.env.now();
                world.volume.read(block * BLOCK, 4096).await.expect("all is well");
                longest.set(longest.get().max(world.env.now().since(before)));
            }
        };
        let writers = (0..16).map(|writer| {
            let (world, goes_on, longest_write) = (&world, &goes_on, &longest_write);
            async move {
                let mut rng = Rng::new(writer);
                while goes_on() {
                    let block = rng.below(ORIGIN_BYTES / BLOCK / 2);
                    let before = world.env.now();
                    world.write(block, halves(&mut rng)).await;
                    longest_write.set(longest_write.get().max(world.env.now().since(before)));
                }
            }
        });
        futures_util::future::join(reader, join_all(writers.collect::<Vec<_>>())).await;
        (longest.get(), longest_write.get(), world.cache.stats().counts)
    });
    let rate = counts.cleaned_blocks / SECONDS;
    eprintln!(
        "the longest read took {longest:?}, the longest write {longest_write:?}, {rate} blocks a second were written back"
    );
    assert!(longest < Duration::from_millis(100), "a read took {longest:?}");
    assert!(
        longest_write < Duration::from_secs(2),
        "a write took {longest_write:?}"
    );
    assert!(rate >= 60, "{rate} blocks a second: such a disk writes 79");
}
