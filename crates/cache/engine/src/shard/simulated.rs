//! A shard alone on simulated disks, for tests of its parts.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use flaz_codec::{CodecChoice, CodecId};
use flaz_device::Device;
use flaz_sim::{DiskConfig, Sim, SimDisk, SimEnv};

use super::log::{Append, Class, Lsn};
use super::{OriginWrites, Platform, Shard, ShardParts};
use crate::cache::{clear_intents, clear_manifest};
use crate::format::geometry::{Geometry, GeometryOptions};
use crate::policy::{PolicyKind, Ring};
use crate::settings::{AfterCrash, DIRTY_PERCENT_DEFAULT, Mode, Settings};
use crate::units::{BLOCK_BYTES, BlockNumber, Epoch, LocalBlock};

const ORIGIN_LEN: u64 = 16 << 20;
const CACHE_ID: u32 = 7;

/// Counts the calls of its waker.
#[derive(Default)]
pub(super) struct WakeCount(AtomicUsize);

impl WakeCount {
    pub(super) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) struct Simulated;

impl Platform for Simulated {
    type Env = SimEnv;
    type Cache = SimDisk;
    type Origin = SimDisk;
}

/// A shard of a cache in write-through, in opening `epoch`, over an origin of zeroes. It is not started.
pub(super) fn shard(env: &SimEnv, cache: &SimDisk, geometry: Geometry, epoch: u32) -> Rc<Shard<Simulated>> {
    let origin = SimDisk::new(env, DiskConfig::fast(geometry.origin_len));
    shard_over(env, cache, &origin, geometry, epoch, false)
}

/// Two disks, and openings of a shard on them.
pub(super) struct Disks {
    pub(super) sim: Sim,
    pub(super) env: SimEnv,
    pub(super) cache: SimDisk,
    pub(super) origin: SimDisk,
    pub(super) geometry: Geometry,
}

impl Disks {
    /// Disks of `len` bytes.
    pub(super) fn new(len: u64, wish: GeometryOptions) -> Self {
        Self::on(1, DiskConfig::fast(len), wish)
    }

    /// A cache of so many regions of 128 KiB, in extents of 32 KiB.
    pub(super) fn of_small_regions(regions: u64) -> Self {
        let wish = GeometryOptions {
            extent_bytes: Some(32 << 10),
            region_bytes: Some(128 << 10),
            ..GeometryOptions::default()
        };
        Self::new((192 << 10) + regions * (128 << 10), wish)
    }

    /// A cache device of any kind.
    pub(super) fn on(seed: u64, config: DiskConfig, wish: GeometryOptions) -> Self {
        let shard_count = Some(1);
        let wish = GeometryOptions { shard_count, ..wish };
        let geometry = Geometry::plan(config.len, 512, ORIGIN_LEN, wish).expect("fits");
        let sim = Sim::new(seed);
        let env = sim.env();
        let cache = SimDisk::new(&env, config);
        sim.block_on(async {
            clear_manifest(&cache, &geometry, CACHE_ID)
                .await
                .expect("it is well");
            clear_intents(&cache, &geometry).await.expect("it is well");
            cache.flush().await.expect("it is well");
        });
        Self {
            cache,
            origin: SimDisk::new(&env, DiskConfig::fast(ORIGIN_LEN)),
            sim,
            env,
            geometry,
        }
    }

    /// A shard of a cache that may have dirty blocks, in opening `epoch`.
    pub(super) fn shard(&self, epoch: u32) -> Rc<Shard<Simulated>> {
        shard_over(&self.env, &self.cache, &self.origin, self.geometry, epoch, true)
    }

    /// The first opening of a shard that keeps blocks that were read.
    pub(super) fn shard_with_s3_fifo(&self) -> Rc<Shard<Simulated>> {
        let shard = self.shard(1);
        let settings = Settings {
            policy: PolicyKind::S3Fifo,
            ..shard.tuning.settings().clone()
        };
        shard.set(&settings);
        shard
    }

    pub(super) async fn recovered(&self, epoch: u32) -> Rc<Shard<Simulated>> {
        let shard = self.shard(epoch);
        shard.recover(|| ()).await.expect("recovers");
        shard
    }

    /// Where a region of the shard begins on the cache device.
    pub(super) fn region(&self, number: u32) -> u64 {
        self.geometry.region_offset(0, number)
    }
}

/// Appends a record to the open extent of a ring.
pub(super) fn append(shard: &Rc<Shard<Simulated>>, ring: Ring, block: u64, what: Append<'_>) -> Lsn {
    let appended = shard.log.append(ring, BlockNumber(block), what, Class::Reclaim);
    appended.expect("there is room").lsn
}

/// Appends a record of a block, and sets its entry.
#[cfg(feature = "planted-bugs")]
pub(super) async fn store(shard: &Rc<Shard<Simulated>>, ring: Ring, block: u64, what: Append<'_>) {
    shard.load_page(LocalBlock(block)).await;
    let appended = shard.log.append(ring, BlockNumber(block), what, Class::Reclaim);
    let entry = appended.expect("there is room").entry;
    shard.map.install(&shard.log, LocalBlock(block), entry);
}

/// A dirty block that is stored as it is.
pub(super) fn raw(data: &[u8]) -> Append<'_> {
    Append::Packed {
        codec: CodecId::RAW,
        stored: data,
        plain_crc: crc32c::crc32c(data),
        dirty: true,
    }
}

/// What a block reads as, if it can be read.
pub(super) async fn contents(shard: &Rc<Shard<Simulated>>, block: u64) -> Option<Vec<u8>> {
    let mut out = vec![0; BLOCK_BYTES];
    let read = shard.read_block(LocalBlock(block), &mut out).await;
    read.is_ok().then_some(out)
}

/// The same over a given origin.
fn shard_over(
    env: &SimEnv,
    cache: &SimDisk,
    origin: &SimDisk,
    geometry: Geometry,
    epoch: u32,
    may_be_dirty: bool,
) -> Rc<Shard<Simulated>> {
    Shard::new(ShardParts {
        number: 0,
        geometry,
        cache_id: CACHE_ID,
        epoch: Epoch(epoch),
        valid_from: Epoch(1),
        may_be_dirty,
        after_crash: AfterCrash::Warm,
        env: env.clone(),
        cache: Rc::new(cache.clone()),
        origin: Rc::new(origin.clone()),
        settings: Settings {
            mode: Mode::WriteThrough,
            policy: PolicyKind::Fifo,
            codec: CodecChoice::default(),
            sequential_cutoff: 0,
            dirty_percent: DIRTY_PERCENT_DEFAULT,
            strict_flush: crate::settings::StrictFlush::Auto,
            write_budget: crate::write_budget::WriteBudget::None,
        },
        budget_used: None,
        origin_writes: OriginWrites::default(),
        host_records: None,
        codec_samples: crate::advise::SharedSamples::default(),
        shared_budget: None,
        index_memory: None,
    })
}
