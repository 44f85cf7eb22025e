//! A cache between two simulated disks, with helpers to drive it.

use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Env, IoBuf};
use flaz_engine::cache::{CacheError, LocalCache};
use flaz_engine::check::walk;
use flaz_engine::format::superblock::Superblock;
use flaz_engine::router::{CachedVolume, LocalShards};
use flaz_engine::settings::{DIRTY_PERCENT_MAX, Settings};
use flaz_engine::shard::Platform;
use flaz_engine::volume::{IoError, Volume, segment_lens};
use flaz_sim::{DiskImage, Sim, SimDisk, SimEnv};

use crate::shape::Shape;

/// The engine on simulated disks.
#[derive(Debug)]
pub struct Simulated;

impl Platform for Simulated {
    type Env = SimEnv;
    type Cache = SimDisk;
    type Origin = SimDisk;
}

/// Two disks in one simulation.
pub struct World {
    /// The executor.
    pub sim: Sim,
    /// The origin.
    pub origin: SimDisk,
    /// The cache device.
    pub cache: SimDisk,
}

impl World {
    /// A world with these disks.
    #[must_use]
    pub fn new(seed: u64, origin: &DiskImage, cache: &DiskImage) -> Self {
        let sim = Sim::new(seed);
        let env = sim.env();
        Self {
            origin: SimDisk::from_image(&env, origin),
            cache: SimDisk::from_image(&env, cache),
            sim,
        }
    }

    /// Opens the cache as its shape says.
    ///
    /// # Errors
    /// [`CacheError`]: it is refused.
    pub async fn open(&self, shape: &Shape) -> Result<Served, CacheError> {
        shape.apply();
        let settings = Settings {
            mode: shape.mode,
            policy: shape.policy,
            codec: shape.codec.parse().expect("a codec's name"),
            // The maximum, so that little is written back soon.
            dirty_percent: DIRTY_PERCENT_MAX,
            ..Settings::default()
        };
        let (cache, origin) = (Rc::new(self.cache.clone()), Rc::new(self.origin.clone()));
        let cache = LocalCache::open(self.sim.env(), cache, Rc::clone(&origin), settings).await?;
        let size = cache.superblock().geometry.origin_len;
        let volume = CachedVolume::new(cache.shards(), origin, size, 0);
        Ok(Served {
            env: self.sim.env(),
            cache,
            volume,
        })
    }

    /// Walks the cache device as `flaz check` does; returns the number of problems.
    ///
    /// # Errors
    /// [`CacheError`]: there is no superblock.
    pub async fn check(&self) -> Result<u64, CacheError> {
        let mut findings = 0;
        walk(&self.cache, &mut |_, _, _| findings += 1).await?;
        Ok(findings)
    }

    /// The disks after the process was killed.
    #[must_use]
    pub fn killed(self) -> (DiskImage, DiskImage) {
        self.sim.kill_tasks();
        self.origin.settle();
        self.cache.settle();
        (self.origin.snapshot(), self.cache.snapshot())
    }
}

/// An open cache.
pub struct Served {
    env: SimEnv,
    /// The cache.
    pub cache: LocalCache<Simulated>,
    /// The volume for clients.
    pub volume: CachedVolume<LocalShards<Simulated>, SimDisk>,
}

impl Served {
    /// Size of the volume in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.volume.size()
    }

    /// Reads, without errors of the origin.
    pub async fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        self.try_read(offset, len).await.expect("the origin works")
    }

    /// Reads.
    ///
    /// # Errors
    /// [`IoError`]: a dirty block may be damaged.
    pub async fn try_read(&self, offset: u64, len: u64) -> Result<Vec<u8>, IoError> {
        let segments = self.volume.read(offset, len as u32).await?;
        Ok(segments
            .iter()
            .map(|segment| &segment[..])
            .collect::<Vec<_>>()
            .concat())
    }

    /// Writes, and waits until the block is stored.
    pub async fn write(&self, offset: u64, data: &[u8]) {
        self.try_write(offset, data).await.expect("the origin works");
    }

    /// Writes, and waits until the block is stored.
    ///
    /// # Errors
    /// [`IoError`]: in write-back, the cache device must accept it.
    pub async fn try_write(&self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let mut rest = data;
        let segments = segment_lens(offset, data.len() as u64).map(|len| {
            let (head, tail) = rest.split_at(len);
            rest = tail;
            IoBuf::copy_of(head)
        });
        let segments = segments.collect();
        self.volume.write(offset, segments, false).await?;
        self.stored().await;
        Ok(())
    }

    /// Waits until the admission queue is empty.
    pub async fn stored(&self) {
        let waits = || {
            let holdings = self.cache.stats().holdings;
            holdings.admission_queue > 0 && !holdings.cache_failed
        };
        while waits() {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Stops cleanly.
    ///
    /// # Errors
    /// [`CacheError`]: the next start is cold or runs crash recovery.
    pub async fn stop(self) -> Result<Superblock, CacheError> {
        drop(self.volume);
        self.cache.stop().await
    }
}
