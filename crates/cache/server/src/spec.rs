//! What a command asks of the host, after options were checked and defaults found.

use std::path::PathBuf;

use flaz_codec::CodecSpec;
use flaz_control::settings::Emulation;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{AfterCrash, Mode, Settings};
use flaz_nbd::NbdAddress;

use crate::safety::Claim;

/// A cache to be made.
#[derive(Debug)]
pub struct CreateSpec {
    /// The cache device, open for reading and writing, checked, and held against others while this lives.
    pub cache: Claim,
    /// The origin: exists, is a file or a block device, and is not the cache.
    pub origin: PathBuf,
    /// Codec for new blocks, kept in the superblock.
    pub codec: CodecSpec,
    /// Size of a full extent in bytes: a power of two, 32 KiB to 256 KiB.
    pub extent_bytes: u64,
    /// Size of a region in bytes, or what suits the cache's size.
    pub region_bytes: Option<u64>,
    /// Number of shards, or what suits the cache's size.
    pub shards: Option<u32>,
}

/// A cache to be served.
#[derive(Clone, Debug)]
pub struct ServeSpec {
    /// The cache device.
    pub cache: PathBuf,
    /// Where the origin is, if not where the superblock says.
    pub origin: Option<PathBuf>,
    /// At least one address.
    pub nbd: Vec<NbdAddress>,
    /// Mode, policy and sequential cut-off.
    pub mode: Mode,
    /// Admission and reclaim.
    pub policy: PolicyKind,
    /// Sequential runs longer than this many bytes are not admitted; 0 admits all.
    pub sequential_cutoff: u64,
    /// Most of the cache device that dirty blocks may take, in percent.
    pub dirty_percent: u8,
    /// When the mark of a flush is stable.
    pub strict_flush: flaz_engine::settings::StrictFlush,
    /// Codec for new blocks, or what the superblock says.
    pub codec: Option<CodecSpec>,
    /// Threads that drive shards, or one for every two cores.
    pub threads: Option<u32>,
    /// Start empty where the cached data may not belong to the origin.
    pub discard_cache: bool,
    /// Give up writes that have not reached the origin.
    pub discard_dirty: bool,
    /// What a crash leaves.
    pub after_crash: AfterCrash,
    /// How long the cache device has for an operation; `None`: as long as it takes.
    pub device_timeout: Option<std::time::Duration>,
    /// Where this host remembers how far the cache device had come, if anywhere.
    pub state_dir: Option<PathBuf>,
    /// Refuse writes.
    pub read_only: bool,
    /// Slow the origin down.
    pub emulate_origin: Option<Emulation>,
    /// Slow the cache device down.
    pub emulate_cache: Option<Emulation>,
}

impl ServeSpec {
    /// The settings to start with, given the codec in the superblock.
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
