//! The options of `create` and `serve`, after they were checked and defaults were filled in.

use std::path::PathBuf;

use flaz_codec::CodecSpec;
use flaz_control::settings::Emulation;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{AfterCrash, Mode, Settings};
use flaz_nbd::NbdAddress;

use crate::block_device::BlockDeviceSpec;
use crate::safety::Claim;

/// A cache to create.
#[derive(Debug)]
pub struct CreateSpec {
    /// The cache device: open for reading and writing, checked, and held exclusively while this lives.
    pub cache: Claim,
    /// The origin: exists, is a file or a block device, and is not the cache device.
    pub origin: PathBuf,
    /// Codec for new blocks, stored in the superblock.
    pub codec: CodecSpec,
    /// Size of a full extent in bytes: a power of two, 32 KiB to 256 KiB.
    pub extent_bytes: u64,
    /// Size of a region in bytes; by default it depends on the size of the cache.
    pub region_bytes: Option<u64>,
    /// Number of shards; by default it depends on the size of the cache.
    pub shards: Option<u32>,
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
    /// Mode, policy and sequential cut-off.
    pub mode: Mode,
    /// Admission and reclaim.
    pub policy: PolicyKind,
    /// Sequential runs longer than this many bytes are not admitted; 0 admits all.
    pub sequential_cutoff: u64,
    /// Maximum share of the cache device for dirty blocks, in percent.
    pub dirty_percent: u8,
    /// When the stable mark that follows a flush is written.
    pub strict_flush: flaz_engine::settings::StrictFlush,
    /// Codec for new blocks; by default the one in the superblock.
    pub codec: Option<CodecSpec>,
    /// Threads that drive shards; by default one for every two cores.
    pub threads: Option<u32>,
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
    /// The settings at the start, given the codec in the superblock.
    #[must_use]
    pub fn settings(&self, superblock_codec: CodecSpec) -> Settings {
        Settings {
            mode: self.mode,
            policy: self.policy,
            codec: self.codec.unwrap_or(superblock_codec),
            sequential_cutoff: self.sequential_cutoff,
            dirty_percent: self.dirty_percent,
            strict_flush: self.strict_flush,
        }
    }
}
