//! A cache between two simulated disks, and helpers to use it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flaz_codec::CodecChoice;
use flaz_device::{Env, IoBuf};
use flaz_engine::cache::{CacheError, CreateOptions, LocalCache, create};
use flaz_engine::check::{Finding, walk};
use flaz_engine::format::geometry::GeometryOptions;
use flaz_engine::format::superblock::Superblock;
use flaz_engine::policy::PolicyKind;
use flaz_engine::router::CachedVolume;
use flaz_engine::settings::Settings;
use flaz_engine::volume::{Volume, segment_lens};
use flaz_sim::{DiscardMode, DiskConfig, DiskImage, Sim, SimDisk, SimEnv};
use uuid::Uuid;

use crate::platform::{AnyDevice, Simulated, SimulatedVolume};

/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Bytes before the regions of a cache with one shard and a small origin.
pub const FRONT_BYTES: u64 = 192 << 10;
/// The smallest sizes.
pub const SMALLEST: GeometryOptions = GeometryOptions {
    extent_bytes: Some(32 << 10),
    region_bytes: Some(128 << 10),
    shard_count: Some(1),
    threads: None,
    index_memory: None,
    dictionary_bytes: None,
};
/// Length of the smallest cache.
pub const SMALLEST_LEN: u64 = FRONT_BYTES + 8 * (128 << 10);

/// Settings with this codec and policy, otherwise defaults.
pub fn settings(codec: &str, policy: PolicyKind) -> Settings {
    let codec = codec.parse().expect("a codec");
    Settings {
        policy,
        codec,
        ..Settings::default()
    }
}

/// A disk that stores its contents once and reads zeroes where nothing was written.
pub fn plain_disk(len: u64) -> DiskConfig {
    let fast = DiskConfig::fast(len);
    DiskConfig {
        discard_mode: DiscardMode::Zero,
        write_cache_bytes_max: 0,
        tear_in_flight: false,
        ..fast
    }
}

/// A disk whose block `n` has the contents that `fill(n, block)` generates, until it is written.
pub fn filled_disk(len: u64, fill: fn(u64, &mut [u8; 4096])) -> DiskConfig {
    DiskConfig {
        background: Some(Arc::new(fill)),
        ..plain_disk(len)
    }
}

/// Two disks in one simulation.
pub struct Rig {
    pub sim: Sim,
    pub origin: SimDisk,
    pub disk: SimDisk,
}

impl Rig {
    pub fn new(seed: u64, origin: DiskConfig, cache: DiskConfig) -> Self {
        Self::from_images(seed, &DiskImage::new(origin), &DiskImage::new(cache))
    }

    pub fn from_images(seed: u64, origin: &DiskImage, cache: &DiskImage) -> Self {
        let sim = Sim::new(seed);
        let env = sim.env();
        Self {
            origin: SimDisk::from_image(&env, origin),
            disk: SimDisk::from_image(&env, cache),
            sim,
        }
    }

    /// Creates an empty cache.
    pub fn create(&self, origin_len: u64, wish: GeometryOptions) -> Superblock {
        let options = CreateOptions {
            uuid: Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
            created_unix_s: 1_700_000_000,
            wish: wish.into(),
            codec: CodecChoice::default(),
            origin_len,
            origin_identity: "sim:origin".into(),
            origin_path: "/dev/slow".into(),
        };
        self.sim
            .block_on(create(&self.disk, options))
            .expect("the cache fits")
    }

    pub async fn open(&self, settings: Settings) -> Result<Open, CacheError> {
        let (cache, origin) = (AnyDevice::disk(&self.disk), AnyDevice::disk(&self.origin));
        let cutoff = settings.sequential_cutoff;
        let cache = LocalCache::open(self.sim.env(), cache, Rc::clone(&origin), settings).await?;
        let size = cache.superblock().geometry.origin_len;
        let volume = CachedVolume::new(cache.shards(), origin, size, cutoff);
        Ok(Open {
            env: self.sim.env(),
            cache,
            volume,
        })
    }

    /// Opens a cache that must open.
    pub async fn opened(&self, settings: Settings) -> Open {
        self.open(settings).await.expect("the cache opens")
    }

    /// All findings of a check.
    pub async fn check(&self) -> Result<Vec<Finding>, CacheError> {
        let mut findings = Vec::new();
        walk(&self.disk, &mut |finding, _, _| findings.push(finding)).await?;
        Ok(findings)
    }
}

/// An open cache.
pub struct Open {
    env: SimEnv,
    pub cache: LocalCache<Simulated>,
    pub volume: SimulatedVolume,
}

impl Open {
    pub async fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let segments = self
            .volume
            .read(offset, len as u32)
            .await
            .expect("the origin is well");
        segments
            .iter()
            .flat_map(|segment| segment.iter().copied())
            .collect()
    }

    /// Writes, and waits until the data has been stored.
    pub async fn write(&self, offset: u64, data: &[u8]) {
        let mut rest = data;
        let segments = segment_lens(offset, data.len() as u64).map(|len| {
            let (head, tail) = rest.split_at(len);
            rest = tail;
            IoBuf::copy_of(head)
        });
        let segments = segments.collect();
        self.volume
            .write(offset, segments, false)
            .await
            .expect("the origin is well");
        self.stored().await;
    }

    /// Reads blocks `range` into the cache, if they are missing there.
    pub async fn prefetch(&self, range: std::ops::Range<u64>) {
        for first in range.clone().step_by(32) {
            let blocks = (range.end - first).min(32);
            self.volume
                .prefetch(first * BLOCK, blocks * BLOCK)
                .await
                .expect("the origin is well");
            self.stored().await;
        }
    }

    /// Waits until no admission is waiting.
    pub async fn stored(&self) {
        while self.cache.stats().holdings.admission_queue > 0 {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }

    pub fn cached_blocks(&self) -> u64 {
        self.cache.stats().holdings.cached_blocks
    }

    pub async fn stop(self) -> Result<Superblock, CacheError> {
        drop(self.volume);
        self.cache.stop().await
    }
}
