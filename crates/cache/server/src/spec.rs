//! The options of `create` and `serve`, after they were checked and defaults were filled in.

use std::path::PathBuf;

use flaz_codec::CodecChoice;
use flaz_control::settings::{Emulation, SettingsPatch};
use flaz_engine::format::superblock::Superblock;
use flaz_engine::settings::{AfterCrash, Settings};
use flaz_nbd::NbdAddress;

use crate::block_device::BlockDeviceSpec;
use crate::metrics::MetricsAddress;
use crate::safety::Claim;

/// A cache to create.
#[derive(Debug)]
pub struct CreateSpec {
    /// The cache device: open for reading and writing, checked, and held exclusively while this lives.
    pub cache: Claim,
    /// The origin: exists, is a file or a block device, and is not the cache device.
    pub origin: PathBuf,
    /// Codec for new blocks, stored in the superblock.
    pub codec: CodecChoice,
    /// Size of a full extent in bytes: a power of two, 32 KiB to 256 KiB.
    pub extent_bytes: u64,
    /// Size of a region in bytes; by default it depends on the size of the cache.
    pub region_bytes: Option<u64>,
    /// Number of shards; by default it depends on the size of the cache.
    pub shards: Option<u32>,
    /// Bytes of memory for the index, for the next starts; by default it depends on this machine.
    pub index_memory: Option<u64>,
}

/// A cache to serve.
#[derive(Clone, Debug)]
pub struct ServeSpec {
    /// The cache device.
    pub cache: PathBuf,
    /// Path of the origin, if it differs from the one in the superblock.
    pub origin: Option<PathBuf>,
    /// Addresses for NBD clients.
    pub nbd: Vec<NbdAddress>,
    /// A block device on this machine.
    pub device: Option<BlockDeviceSpec>,
    /// Name of the configuration, for reports.
    pub name: Option<String>,
    /// Where metrics are offered.
    pub metrics: Option<MetricsAddress>,
    /// Settings that were given; others are those in the superblock, else the defaults.
    pub settings: SettingsPatch,
    /// Threads that drive shards; by default one for every two cores.
    pub threads: Option<u32>,
    /// Bytes of memory for the index and all else that grows with the cache; by default as created, else it depends on this machine.
    pub index_memory: Option<u64>,
    /// Start with an empty cache if the cached data may not belong to the origin.
    pub discard_cache: bool,
    /// Discard writes that have not reached the origin.
    pub discard_dirty: bool,
    /// What the cache contains after a crash.
    pub after_crash: AfterCrash,
    /// Time limit of a cache device operation; `None`: no limit.
    pub device_timeout: Option<std::time::Duration>,
    /// Directory for per-host state, if any.
    pub state_dir: Option<PathBuf>,
    /// Refuse writes.
    pub read_only: bool,
    /// Slow the origin down.
    pub emulate_origin: Option<Emulation>,
    /// Slow the cache device down.
    pub emulate_cache: Option<Emulation>,
}

impl ServeSpec {
    /// The settings at the start.
    #[must_use]
    pub fn settings(&self, superblock: &Superblock) -> Settings {
        let stored = superblock.settings.with_codec(superblock.codec);
        self.settings.applied_to(&stored)
    }
}
