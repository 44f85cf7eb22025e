//! Disks, a pool on one of them, and the caches of its volumes.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flaz_codec::CodecChoice;
use flaz_device::{Device, Env};
use flaz_engine::cache::resize::Resizing;
use flaz_engine::cache::{CacheError, CreateOptions, LocalCache, Sizes, Start, create};
use flaz_engine::format::geometry::{Geometry, GeometryOptions, SharedSpace};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::policy::PolicyKind;
use flaz_engine::router::{CachedVolume, LocalShards};
use flaz_engine::settings::{Mode, Settings};
use flaz_engine::shard::Platform;
use flaz_engine::stats::StatsSnapshot;
use flaz_engine::volume::IoError;
use flaz_pool::chunks::ChunksOf;
use flaz_pool::{Chunks, Pool, PoolError, VolumeDevice, VolumeMap, VolumeOptions};
use flaz_sim::{DiscardMode, DiskConfig, SimDisk, SimEnv};
use uuid::Uuid;

use crate::sectors::{BLOCK_SECTORS, fill};

pub const CHUNK: u64 = 128 << 10;
/// Two volumes with the least regions fill half of it.
pub const POOL_LEN: u64 = 6 << 20;
pub const ORIGIN_LEN: u64 = 8 << 20;
pub const BLOCK: u64 = 4096;
/// Longest time that giving back takes on devices that are well.
const GIVE_BACK_MOST: Duration = Duration::from_secs(60);

/// The device of a volume's cache.
pub type Shared = VolumeDevice<SimDisk, SimChunks>;

/// The chunks of a volume. While another process `holds` the pool, none changes hands.
#[derive(Clone)]
pub struct SimChunks {
    chunks: ChunksOf<SimDisk>,
    pub holds: Rc<Cell<bool>>,
}

impl SimChunks {
    fn refuse(&self, kind: ErrorKind) -> io::Result<()> {
        if self.holds.get() {
            Err(kind.into())
        } else {
            Ok(())
        }
    }
}

impl Chunks for SimChunks {
    async fn take(&self, index: u32) -> io::Result<()> {
        self.refuse(ErrorKind::StorageFull)?;
        self.chunks.take(index).await
    }

    async fn give(&self, index: u32) -> io::Result<()> {
        self.refuse(ErrorKind::ResourceBusy)?;
        self.chunks.give(index).await
    }

    fn failed_flushes(&self) -> u64 {
        self.chunks.failed_flushes()
    }

    fn note_failed_flush(&self) {
        self.chunks.note_failed_flush();
    }
}

pub struct Simulated;

impl Platform for Simulated {
    type Env = SimEnv;
    type Cache = Shared;
    type Origin = SimDisk;
}

/// What a volume is created with, and opened.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub name: &'static str,
    pub mode: Mode,
    pub shards: u32,
    pub policy: PolicyKind,
    pub codec: &'static str,
    pub dirty_percent: u8,
}

impl Spec {
    pub fn new(name: &'static str, mode: Mode) -> Self {
        Self {
            name,
            mode,
            shards: 1,
            policy: PolicyKind::S3Fifo,
            codec: "none",
            dirty_percent: 50,
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            mode: self.mode,
            policy: self.policy,
            codec: self.codec.parse().expect("a codec"),
            dirty_percent: self.dirty_percent,
            ..Settings::default()
        }
    }
}

/// An origin whose sectors have version 0.
pub fn origin_config() -> DiskConfig {
    DiskConfig {
        discard_mode: DiscardMode::Zero,
        background: Some(Arc::new(|page, bytes| fill(page * BLOCK_SECTORS, 0, bytes))),
        ..DiskConfig::fast(ORIGIN_LEN)
    }
}

/// Adds a volume to a pool, with an empty cache. False: there are too few chunks.
pub async fn add(pool: &Rc<Pool<SimDisk>>, spec: &Spec) -> bool {
    let superblock = pool.superblock();
    let space = SharedSpace {
        chunk_bytes: superblock.layout.chunk_bytes,
        chunks: superblock.chunks,
    };
    let wish = GeometryOptions {
        extent_bytes: Some(32 << 10),
        shard_count: Some(spec.shards),
        ..GeometryOptions::default()
    };
    let Ok(geometry) = Geometry::plan_shared(space, 512, ORIGIN_LEN, wish) else {
        return false;
    };
    // The first bytes distinguish the caches.
    let id = u128::from(crc32c::crc32c(spec.name.as_bytes()));
    let options = VolumeOptions {
        uuid: Uuid::from_u128(id << 96 | 1),
        name: spec.name.to_owned(),
        front_bytes: geometry.data_offset(),
        least: 0,
        at_least: 0,
        at_most: 0,
    };
    let uuid = options.uuid;
    let prepared = match pool.prepare(options).await {
        Ok(prepared) => prepared,
        Err(PoolError::NoChunk { .. }) => return false,
        Err(error) => panic!("{error}"),
    };
    let device = pool.open_volume(prepared.number()).expect("it is prepared");
    assert!(device.len() >= geometry.device_len, "as planned");
    let options = CreateOptions {
        uuid,
        created_unix_s: 0,
        wish: Sizes::Planned(geometry),
        codec: CodecChoice::default(),
        origin_len: ORIGIN_LEN,
        origin_identity: spec.name.into(),
        origin_path: spec.name.into(),
    };
    match create(&device, options).await {
        Ok(_) => {}
        Err(CacheError::Device(error)) if error.source.kind() == ErrorKind::StorageFull => {
            pool.abandon(prepared);
            return false;
        }
        Err(error) => panic!("{error}"),
    }
    pool.commit(prepared).await.expect("it is well");
    true
}

/// The cache of a volume, open.
pub struct Live {
    pub env: SimEnv,
    pub number: u32,
    pub pool: Rc<Pool<SimDisk>>,
    pub map: Arc<VolumeMap>,
    pub device: Shared,
    pub origin: Rc<SimDisk>,
    /// Another process holds the pool.
    pub holds: Rc<Cell<bool>>,
    /// `None` while it is being changed.
    pub cache: RefCell<Option<LocalCache<Simulated>>>,
    pub volume: CachedVolume<LocalShards<Simulated>, SimDisk>,
    /// Its origin has failed: requests may have failed too.
    pub failed: Cell<bool>,
}

impl Live {
    pub async fn open(
        env: &SimEnv,
        pool: &Rc<Pool<SimDisk>>,
        spec: Spec,
        origin: &Rc<SimDisk>,
    ) -> Result<Self, CacheError> {
        let number = pool.volume(spec.name).expect("it exists").number;
        let chunks = SimChunks {
            chunks: pool.chunks(number),
            holds: Rc::default(),
        };
        let holds = Rc::clone(&chunks.holds);
        let map = pool.map(number).expect("it exists");
        let device = VolumeDevice::new((**pool.device()).clone(), map, chunks);
        let cache = LocalCache::open(
            env.clone(),
            Rc::new(device.clone()),
            Rc::clone(origin),
            spec.settings(),
        );
        let cache = cache.await?;
        let volume = CachedVolume::new(cache.shards(), Rc::clone(origin), ORIGIN_LEN, 0);
        Ok(Self {
            env: env.clone(),
            number,
            pool: Rc::clone(pool),
            map: pool.map(number).expect("it exists"),
            device,
            origin: Rc::clone(origin),
            holds,
            cache: RefCell::new(Some(cache)),
            volume,
            failed: Cell::new(false),
        })
    }

    /// Chunks of regions; the volume also has those of its front.
    pub fn regions_with_space(&self) -> u32 {
        self.pool.chunks_of(self.number) - self.map.front_parts()
    }

    pub fn superblock(&self) -> Superblock {
        let cache = self.cache.borrow();
        cache.as_ref().expect("it is open").superblock().clone()
    }

    /// How the cache started.
    pub fn start(&self) -> Start {
        self.cache.borrow().as_ref().expect("it is open").start
    }

    pub fn stats(&self) -> StatsSnapshot {
        self.cache.borrow().as_ref().expect("it is open").stats()
    }

    /// Gives up to `regions` regions back; `patience` after that it is called off. Returns whether it ended. The volume takes no
    /// other ones until its limit is lifted.
    pub async fn give_back(&self, regions: u64, patience: Option<Duration>) -> Result<bool, CacheError> {
        let chunks = self.pool.chunks_of(self.number);
        self.map.set_limit(chunks.saturating_sub(regions as u32));
        let begun = self.env.now();
        let mut cache = self.cache.take().expect("one change at a time");
        let mut step = cache.begin_give_back(regions).await;
        let ended = loop {
            match step {
                Ok(Resizing::Done) => break Ok(true),
                Ok(Resizing::Shrinking(state)) => {
                    let took = self.env.now().since(begun);
                    assert!(
                        took < GIVE_BACK_MOST || self.failed.get(),
                        "it does not end: {state:?}"
                    );
                    if patience.is_some_and(|patience| took > patience) {
                        cache.cancel_give_back().await?;
                        break Ok(false);
                    }
                }
                Err(error) => break Err(error),
            }
            self.env.sleep(Duration::from_millis(2)).await;
            step = cache.continue_give_back().await;
        };
        *self.cache.borrow_mut() = Some(cache);
        ended
    }

    /// Writes everything dirty to the origin.
    pub async fn clean(&self) -> Result<(), IoError> {
        let cache = self.cache.take().expect("one change at a time");
        let cleaned = cache.clean_all().await;
        *self.cache.borrow_mut() = Some(cache);
        cleaned
    }

    pub async fn stop(self) -> Result<(), CacheError> {
        let cache = self.cache.take().expect("nobody changes it");
        drop(self.volume);
        cache.stop().await.map(drop)
    }
}
