//! Races and crashes that were found or feared, each by name.

use std::rc::Rc;

use flaz_codec::CodecChoice;
use flaz_device::{DeviceOp, Env, IoBuf};
use flaz_engine::cache::{CreateOptions, LocalCache, Start, create};
use flaz_engine::format::geometry::GeometryOptions;
use flaz_engine::policy::PolicyKind;
use flaz_engine::router::CachedVolume;
use flaz_engine::settings::{AfterCrash, Mode, Settings};
use flaz_engine::volume::Volume;
use flaz_sim::{DiskConfig, Sim, SimDisk, SimEnv, check_seeds};

use crate::platform::{AnyDevice, Simulated, SimulatedVolume};

use super::plan;

/// The stale-admission race, by name: a write overtakes the data of a reader.
#[test]
fn a_write_that_overtakes_an_admission_wins() {
    let sim = Sim::new(1);
    let env = sim.env();
    let origin = SimDisk::new(&env, DiskConfig::slow(4 << 20));
    let disk = SimDisk::new(&env, DiskConfig::fast(3 << 20));
    sim.block_on(async {
        let wish = GeometryOptions {
            extent_bytes: Some(32 << 10),
            region_bytes: Some(128 << 10),
            shard_count: Some(1),
            threads: None,
            index_memory: None,
            dictionary_bytes: None,
        };
        let options = CreateOptions {
            uuid: uuid::Uuid::from_u128(9),
            created_unix_s: 0,
            wish: wish.into(),
            codec: CodecChoice::default(),
            origin_len: 4 << 20,
            origin_identity: "sim".into(),
            origin_path: "sim".into(),
        };
        create(&disk, options).await.expect("fits");
        let settings = plan(0).settings;
        let settings = Settings {
            mode: Mode::WriteThrough,
            policy: PolicyKind::Fifo,
            sequential_cutoff: 0,
            dirty_percent: flaz_engine::settings::DIRTY_PERCENT_DEFAULT,
            ..settings
        };
        let (cache, base) = (AnyDevice::disk(&disk), AnyDevice::disk(&origin));
        let cache = LocalCache::<Simulated>::open(env.clone(), cache, Rc::clone(&base), settings)
            .await
            .expect("opens");
        let volume = CachedVolume::new(cache.shards(), base, 4 << 20, 0);
        for round in 0..200u64 {
            let (reader, writer) = (volume.clone(), volume.clone());
            let offset = (round % 7) * 4096;
            let new = IoBuf::copy_of(&[(round + 1) as u8; 4096]);
            let read = async { reader.read(offset, 4096).await.expect("reads") };
            let write = async { writer.write(offset, [new].into(), false).await.expect("writes") };
            futures_util::future::join(read, write).await;
            let seen = volume.read(offset, 4096).await.expect("reads");
            assert_eq!(
                seen[0][0],
                (round + 1) as u8,
                "round {round}: an overtaken admission was served"
            );
            env.sleep(std::time::Duration::from_millis(30)).await;
            let seen = volume.read(offset, 4096).await.expect("reads");
            assert_eq!(seen[0][0], (round + 1) as u8, "round {round}: served later");
            volume.trim(offset, 4096, false).await.expect("trims");
            volume
                .write(offset, [IoBuf::zeroed(4096)].into(), false)
                .await
                .expect("writes");
        }
        assert!(
            cache.stats().counts.refused_overtaken > 0,
            "the race never happened"
        );
    });
}

#[test]
fn two_readers_of_one_missed_block_cause_one_origin_read() {
    let sim = Sim::new(3);
    let env = sim.env();
    let origin = SimDisk::new(&env, DiskConfig::slow(4 << 20));
    let disk = SimDisk::new(&env, DiskConfig::fast(4 << 20));
    sim.block_on(async {
        let options = CreateOptions {
            uuid: uuid::Uuid::from_u128(9),
            created_unix_s: 0,
            wish: GeometryOptions::default().into(),
            codec: CodecChoice::default(),
            origin_len: 4 << 20,
            origin_identity: "sim".into(),
            origin_path: "sim".into(),
        };
        create(&disk, options).await.expect("fits");
        let (cache, base) = (AnyDevice::disk(&disk), AnyDevice::disk(&origin));
        let settings = Settings {
            mode: Mode::WriteThrough,
            ..plan(0).settings
        };
        let cache = LocalCache::<Simulated>::open(env.clone(), cache, Rc::clone(&base), settings)
            .await
            .expect("opens");
        let volume = CachedVolume::new(cache.shards(), base, 4 << 20, 0);
        origin.reset_stats();
        let reads = (0..5).map(|_| volume.read(0, 16 << 10));
        futures_util::future::join_all(reads).await;
        assert_eq!(origin.stats().reads, 1, "one read for five readers");
        // A failed origin read fails the request that made it; joined requests retry by themselves.
        origin.fail_nth(DeviceOp::Read, 1);
        let reads = (0..3).map(|_| volume.read(1 << 20, 4096));
        let failed = futures_util::future::join_all(reads)
            .await
            .iter()
            .filter(|read| read.is_err())
            .count();
        assert_eq!(failed, 1);
        assert!(volume.read(1 << 20, 4096).await.is_ok());
    });
}

/// A small cache of one shard, created on `disk`.
async fn create_small(disk: &SimDisk) {
    let options = CreateOptions {
        uuid: uuid::Uuid::from_u128(9),
        created_unix_s: 0,
        wish: GeometryOptions::default().into(),
        codec: CodecChoice::default(),
        origin_len: 4 << 20,
        origin_identity: "sim".into(),
        origin_path: "sim".into(),
    };
    create(disk, options).await.expect("fits");
}

async fn open_small(
    env: &SimEnv,
    disk: &SimDisk,
    origin: &SimDisk,
) -> (LocalCache<Simulated>, SimulatedVolume) {
    let settings = Settings {
        mode: Mode::WriteThrough,
        sequential_cutoff: 0,
        dirty_percent: flaz_engine::settings::DIRTY_PERCENT_DEFAULT,
        ..plan(0).settings
    };
    let (cache, base) = (AnyDevice::disk(disk), AnyDevice::disk(origin));
    let cache = LocalCache::open(env.clone(), cache, Rc::clone(&base), settings)
        .await
        .expect("opens");
    let volume = CachedVolume::new(cache.shards(), base, 4 << 20, 0);
    (cache, volume)
}

/// An image written while a write is in flight to the origin would contain the block's old contents.
#[test]
fn a_stop_waits_for_writes_in_flight() {
    check_seeds(20, |seed| {
        let sim = Sim::new(seed);
        let env = sim.env();
        let origin = SimDisk::new(&env, DiskConfig::slow(4 << 20));
        let disk = SimDisk::new(&env, DiskConfig::fast(4 << 20));
        sim.block_on(async {
            create_small(&disk).await;
            let (cache, volume) = open_small(&env, &disk, &origin).await;
            for block in 0..16 {
                volume
                    .write(block * 4096, [IoBuf::copy_of(&[1; 4096])].into(), false)
                    .await
                    .expect("writes");
            }
            env.sleep(std::time::Duration::from_millis(50)).await;
            let late = (0..16u64)
                .map(|block| volume.write(block * 4096, [IoBuf::copy_of(&[2; 4096])].into(), false));
            let late = futures_util::future::join_all(late);
            let stop = async {
                env.yield_now().await;
                cache.stop().await
            };
            let (late, stopped) = futures_util::future::join(late, stop).await;
            assert!(late.iter().all(Result::is_ok));
            stopped.expect("stops in order");
            let (cache, volume) = open_small(&env, &disk, &origin).await;
            assert!(matches!(cache.start, Start::Warm(_)));
            for block in 0..16u64 {
                let seen = volume.read(block * 4096, 4096).await.expect("reads");
                assert_eq!(
                    seen[0][0], 2,
                    "block {block} is served as it was before the last write"
                );
            }
        });
    });
}

/// Without intents a crash must leave nothing, even if the contents are still on the device.
#[test]
fn without_intents_a_crash_leaves_nothing() {
    let sim = Sim::new(6);
    let env = sim.env();
    let origin = SimDisk::new(&env, DiskConfig::slow(4 << 20));
    let disk = SimDisk::new(&env, DiskConfig::fast(4 << 20));
    sim.block_on(async {
        create_small(&disk).await;
        let open = async |after_crash| {
            let (cache, base) = (AnyDevice::disk(&disk), AnyDevice::disk(&origin));
            let settings = plan(1).settings;
            LocalCache::<Simulated>::open_with(env.clone(), cache, base, settings, after_crash)
                .await
                .expect("opens")
        };
        let write = async |cache: &LocalCache<Simulated>, value: u8| {
            let base = AnyDevice::disk(&origin);
            let volume = CachedVolume::new(cache.shards(), base, 4 << 20, 0);
            let data = [IoBuf::copy_of(&[value; 4096])].into();
            volume.write(0, data, true).await.expect("writes");
            volume
        };
        let cache = open(AfterCrash::Cold).await;
        write(&cache, 1).await;
        assert_eq!(cache.stats().counts.intent_writes, 0);
        cache.stop().await.expect("stops in order");
        let cache = open(AfterCrash::Cold).await;
        assert!(
            matches!(cache.start, Start::Warm(_)),
            "a clean stop is as good as ever"
        );
        write(&cache, 2).await;
        let again = open(AfterCrash::Warm).await;
        assert_eq!(again.start, Start::Cold);
        let volume = write(&again, 3).await;
        assert_eq!(volume.read(0, 4096).await.expect("reads")[0][0], 3);
        let last = open(AfterCrash::Warm).await;
        assert_eq!(last.start, Start::Recovered, "and with intents it is warm again");
    });
}

/// Losing either superblock slot after a crash must not revive an earlier clean stop.
#[test]
fn a_lost_superblock_slot_does_not_revive_an_old_clean_stop() {
    for slot in flaz_engine::format::geometry::SUPERBLOCK_SLOTS {
        let sim = Sim::new(5);
        let env = sim.env();
        let origin = SimDisk::new(&env, DiskConfig::slow(4 << 20));
        let disk = SimDisk::new(&env, DiskConfig::fast(4 << 20));
        sim.block_on(async {
            create_small(&disk).await;
            let (cache, volume) = open_small(&env, &disk, &origin).await;
            volume
                .write(0, [IoBuf::copy_of(&[1; 4096])].into(), false)
                .await
                .expect("writes");
            cache.stop().await.expect("stops in order");
            let (_crashed, volume) = open_small(&env, &disk, &origin).await;
            volume
                .write(0, [IoBuf::copy_of(&[2; 4096])].into(), true)
                .await
                .expect("writes");
            disk.settle();
            let after = SimDisk::from_image(&env, &disk.snapshot());
            after.poke(slot, &[0; 4096]);
            let (cache, volume) = open_small(&env, &after, &origin).await;
            assert_eq!(cache.start, Start::Recovered);
            assert_eq!(volume.read(0, 4096).await.expect("reads")[0][0], 2);
        });
    }
}
