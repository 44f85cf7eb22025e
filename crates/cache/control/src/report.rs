//! Reports about a cache: the structs behind `flaz status`, `flaz check` and `flaz create`.
//!
//! The JSON form of these structs is an interface for scripts: a field keeps its name and unit once released, and
//! [`REPORT_SCHEMA`] is incremented when a field changes its meaning. Names end in their unit. Counters count from the
//! start of the daemon unless stated otherwise. Paths are strings with escapes for bytes that are not UTF-8: see
//! [`crate::path`].

mod advise;
#[doc(hidden)]
pub mod example;
mod health;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;

use flaz_codec::CodecChoice;
use flaz_engine::policy::Allowance;
use flaz_engine::settings::Settings;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::settings::Emulation;

pub use advise::{
    AdviseCodec, AdviseMeasured, AdvisePoint, AdviseRatio, AdviseReport, AdviseSize, AdviseWindow,
};
pub use health::{Health, HealthLevel};
pub use volumes::{
    ShareReport, SharedBudgetReport, SharedReport, SharedShrinkReport, VolumeReport, VolumesReport,
};

/// Version of the JSON form.
pub const REPORT_SCHEMA: u32 = 1;

/// Maximum number of problems that a check lists; further ones are only counted.
pub const PROBLEMS_LISTED_MAX: usize = 1000;

/// The report of `flaz status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StatusReport {
    /// [`REPORT_SCHEMA`] of the program that created the report.
    pub schema: u32,
    /// State of the cache and its daemon.
    pub state: CacheState,
    /// Whether something needs the attention of an administrator; absent in the report of an older daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// The cache device.
    pub cache: CacheReport,
    /// The origin.
    pub origin: OriginReport,
    /// Settings in force; if the cache is not running, the settings that it would start with. Absent if the superblock
    /// has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
    /// Whether the cache device has, or may have, data that the origin lacks.
    #[serde(default)]
    pub may_be_dirty: bool,
    /// Of a cache that is not running: why its next start will be refused, in a few words; `warnings` says what to do. Absent if
    /// nothing speaks against the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_refused: Option<String>,
    /// Only for a running cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveReport>,
    /// Warnings, most urgent first: emulation, a failed cache device, a full log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// State of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheState {
    /// Not running; the last daemon stopped cleanly, so the next start is warm.
    Clean,
    /// Not running; the last daemon did not stop cleanly.
    Unclean,
    /// Not running; never served.
    New,
    /// Opening devices, restoring the index.
    Starting,
    /// Serving.
    Running,
    /// Serving from the origin only: the cache device failed or was disabled.
    Degraded,
    /// Completing the requests in flight.
    Stopping,
}

impl CacheState {
    /// Whether a daemon is running.
    #[must_use]
    pub fn is_running(self) -> bool {
        matches!(
            self,
            Self::Starting | Self::Running | Self::Degraded | Self::Stopping
        )
    }
}

/// The cache device, from its superblock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CacheReport {
    /// Path.
    #[serde(with = "crate::path")]
    #[schemars(with = "String")]
    pub path: PathBuf,
    /// UUID, assigned at creation.
    pub uuid: Uuid,
    /// Version of the on-disk format.
    pub format_version: u32,
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// Bytes for extents; the rest is metadata.
    pub data_bytes: u64,
    /// Size of a full extent in bytes.
    pub extent_bytes: u64,
    /// Size of a region in bytes.
    pub region_bytes: u64,
    /// Number of regions.
    pub regions: u64,
    /// Number of shards.
    pub shards: u32,
}

/// The origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OriginReport {
    /// Path.
    #[serde(with = "crate::path")]
    #[schemars(with = "String")]
    pub path: PathBuf,
    /// Size in bytes; the size of the exported device.
    pub size_bytes: u64,
}

/// The state of a running cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LiveReport {
    /// The process.
    pub daemon: DaemonReport,
    /// Requests by operation: reads, writes, flushes, ..
    pub operations: Vec<OperationReport>,
    /// Upper bounds of [`OperationReport::latency_counts`] in seconds, ascending.
    #[serde(default)]
    pub latency_bounds_s: Vec<f64>,
    /// Reads by cache result.
    pub lookups: LookupReport,
    /// Blocks admitted and refused.
    pub admission: AdmissionReport,
    /// Compression.
    pub codec: CodecReport,
    /// Current contents.
    pub space: SpaceReport,
    /// Dirty blocks; absent in reports of older daemons.
    #[serde(default)]
    pub write_back: WriteBackReport,
    /// Absent unless the cache is that of a volume on a shared cache device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareReport>,
    /// Absent unless the cache becomes smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shrink: Option<ShrinkReport>,
    /// Bytes transferred to and from the devices.
    pub traffic: TrafficReport,
    /// Absent without a write budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_budget: Option<WriteBudgetReport>,
    /// Reclaim of regions.
    pub reclaim: ReclaimReport,
    /// Errors.
    pub errors: ErrorReport,
    /// Memory.
    pub memory: MemoryReport,
    /// Queues and pools with their limits.
    pub queues: Vec<QueueReport>,
    /// NBD listeners.
    pub nbd: Vec<NbdReport>,
    /// Block devices on this machine.
    #[serde(default)]
    pub block_devices: Vec<BlockDeviceReport>,
}

/// Operations of clients, as they are counted in [`LiveReport::operations`].
pub const CLIENT_OPERATIONS: [&str; 6] = ["read", "write", "flush", "trim", "write-zeroes", "prefetch"];

impl LiveReport {
    /// Operations of this name.
    #[must_use]
    pub fn operation(&self, name: &str) -> Option<&OperationReport> {
        self.operations
            .iter()
            .find(|operation| operation.operation == name)
    }

    /// Requests of clients that failed.
    #[must_use]
    pub fn client_errors(&self) -> u64 {
        let failed = CLIENT_OPERATIONS.iter().filter_map(|name| self.operation(name));
        failed.fold(0, |sum, operation| sum.saturating_add(operation.errors))
    }
}

/// The process of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DaemonReport {
    /// Name of the configuration; absent if it was started without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Process number.
    pub pid: u32,
    /// Version of the program.
    pub version: String,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// Threads that drive shards.
    pub threads: u32,
    /// CPU time used by the process so far, user and system, in seconds.
    pub cpu_s: f64,
    /// Whether the index was loaded from the last run.
    pub started_warm: bool,
    /// Time to restore the index, in milliseconds.
    pub recovery_ms: f64,
    /// Whether writes are rejected.
    pub read_only: bool,
    /// Emulated origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulate_origin: Option<Emulation>,
    /// Emulated cache device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulate_cache: Option<Emulation>,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OperationReport {
    /// `read`, `write`, `flush`, `trim`, `write-zeroes`, `prefetch`, and internal operations such as `origin-read`.
    pub operation: String,
    /// Completed requests, including failed ones.
    pub count: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Latency from arrival to reply. Absent for internal operations that are counted without a clock.
    pub latency_us: Option<LatencyReport>,
    /// Number of latencies in each of the buckets that end at [`LiveReport::latency_bounds_s`], and above all of them. Empty
    /// without latencies. Of `cache-read`, a sample. The operations of clients are counted by the parts that lie in one stripe.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency_counts: Vec<u64>,
    /// Sum of these latencies in seconds.
    #[serde(default)]
    pub latency_sum_s: f64,
}

/// Latency in microseconds, from a histogram with bounded error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LatencyReport {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

/// Reads by cache result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LookupReport {
    /// Reads answered entirely from the cache.
    pub hits: u64,
    /// Reads answered partly from the cache.
    pub partial_hits: u64,
    /// Reads answered entirely from the origin.
    pub misses: u64,
    /// Blocks found.
    pub hit_blocks: u64,
    /// Blocks not found in the cache.
    pub miss_blocks: u64,
    /// Misses that joined the origin read of another request.
    pub joined_blocks: u64,
    /// Origin reads after adjacent misses were merged.
    pub origin_reads: u64,
}

/// Blocks admitted, and blocks refused by reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AdmissionReport {
    /// Blocks admitted after a miss.
    pub admitted_blocks: u64,
    /// Blocks inserted by writes.
    pub written_blocks: u64,
    /// Blocks not admitted, by reason: `sequential`, `policy`, `write-budget`, `overtaken-by-write`, `queue-full`, ..
    pub refused_blocks: BTreeMap<String, u64>,
}

/// Compression since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CodecReport {
    /// Bytes passed to the codec.
    pub in_bytes: u64,
    /// Bytes that the codec produced and that were stored, including raw blocks.
    pub out_bytes: u64,
    /// Blocks stored compressed.
    pub compressed_blocks: u64,
    /// Blocks stored raw: compression saved nothing, or cost hits more time than it saved misses.
    pub raw_blocks: u64,
    /// Blocks of zeroes or another single value, stored without a fragment; not in `in_bytes`.
    pub single_value_blocks: u64,
    /// Blocks decompressed for readers.
    pub decompressed_blocks: u64,
    /// CPU time spent compressing, in seconds.
    pub compress_s: f64,
    /// CPU time spent decompressing, in seconds.
    pub decompress_s: f64,
    /// Blocks that `auto` compressed again when they were stored again at reclaim.
    #[serde(default)]
    pub recompressed_blocks: u64,
    /// Bytes that this saved.
    #[serde(default)]
    pub recompressed_saved_bytes: u64,
    /// Blocks of those that were compressed together with their neighbours, as a group.
    #[serde(default)]
    pub grouped_blocks: u64,
    /// Groups that had lost some of their blocks when their region was freed.
    #[serde(default)]
    pub divided_groups: u64,
    /// Dictionaries that were trained for blocks that are compressed again.
    #[serde(default)]
    pub dictionaries: u64,
    /// Time that reclaim waited for this, in seconds.
    #[serde(default)]
    pub recompress_s: f64,
    /// Time for which blocks were compressed with high effort, when their region was freed and after misses, in seconds.
    #[serde(default)]
    pub high_effort_s: f64,
    /// Blocks that were stored again with less compression or none, because restoring took longer than misses.
    #[serde(default)]
    pub less_compressed_blocks: u64,
}

/// Current contents of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SpaceReport {
    /// Blocks in the index.
    pub cached_blocks: u64,
    /// Size of these blocks before compression, in bytes.
    pub cached_bytes: u64,
    /// Size of their fragments including headers, without dead fragments, in bytes. Estimated from the sectors that
    /// each touches, with an error of about 1 %.
    pub fragment_bytes: u64,
    /// Bytes of regions in use, including dead fragments and headers.
    pub used_bytes: u64,
    /// Bytes of all regions.
    pub capacity_bytes: u64,
    /// Bytes before compression that the whole cache will hold when full, at the current ratio.
    pub effective_capacity_bytes: u64,
    /// Regions in use by ring.
    pub probation_regions: u64,
    /// Regions in use by the main ring.
    pub main_regions: u64,
    /// Regions free.
    pub free_regions: u64,
}

/// Dirty blocks: writes that have not reached the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WriteBackReport {
    /// Blocks that are newer than the origin.
    pub dirty_blocks: u64,
    /// Size of these blocks on the served device, in bytes.
    pub dirty_bytes: u64,
    /// Bytes of the cache device that they take.
    pub dirty_device_bytes: u64,
    /// Limit of these bytes; at the limit, writers wait.
    pub limit_bytes: u64,
    /// Seconds since the oldest dirty block became dirty, at most, and from the start of the daemon at the earliest; 0 if none
    /// is dirty.
    #[serde(default)]
    pub dirty_s: f64,
    /// Estimated seconds to write all of them back, at each shard's average pace since the start; absent if nothing was
    /// written back yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_s: Option<f64>,
    /// Blocks written back since the start.
    pub cleaned_blocks: u64,
    /// Writes that waited because the limit was reached.
    pub waits: u64,
    /// Dirty blocks that reclaim had to store again.
    pub moved_blocks: u64,
    /// Blocks whose only copy could not be read the last time.
    pub lost: u64,
    /// Writeback to the origin currently fails and is retried.
    pub failing: bool,
    /// Extents closed early so that writes could be acknowledged.
    pub acknowledged_extents: u64,
    /// Blocks in them.
    pub acknowledged_blocks: u64,
    /// Bytes that they took on the cache device, including headers and padding.
    pub acknowledged_bytes: u64,
}

/// Bytes transferred to and from the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TrafficReport {
    /// Read from the cache device.
    pub cache_read_bytes: u64,
    /// Bytes written to the cache device, including headers, padding and metadata. This determines its wear.
    pub cache_written_bytes: u64,
    /// The same by cause; all zero in the report of an older daemon.
    #[serde(default)]
    pub cache_written: CacheWritesReport,
    /// Bytes discarded on the cache device before reuse.
    pub cache_discarded_bytes: u64,
    /// Read from the origin.
    pub origin_read_bytes: u64,
    /// Written to the origin.
    pub origin_written_bytes: u64,
}

/// Bytes written to the cache device, by cause. Blocks count when they are appended, a moment before they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CacheWritesReport {
    /// Clean blocks that were admitted, after misses and by writes.
    pub admitted_bytes: u64,
    /// Dirty blocks that clients wrote in write-back.
    pub dirty_bytes: u64,
    /// Clean blocks that reclaim stored again.
    pub reinserted_bytes: u64,
    /// Dirty blocks that reclaim moved.
    pub moved_dirty_bytes: u64,
    /// Headers, padding, tombstones and metadata.
    pub other_bytes: u64,
}

/// The write budget, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WriteBudgetReport {
    /// The budget in bytes per day. As much can be left at most.
    pub bytes_per_day: u64,
    /// Bytes left.
    pub left_bytes: u64,
    /// Bytes written beyond the budget, because they could not be refused, that time has not made up for yet.
    pub owed_bytes: u64,
    /// Bytes written in the last 24 hours, since the start of the daemon at most.
    pub last_day_bytes: u64,
    /// What is stored at present.
    pub state: WriteBudgetState,
}

/// What is stored at a level of the write budget. Data that clients write in write-back is stored in any state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WriteBudgetState {
    /// All that the policy wants.
    AdmittingAll,
    /// A block needs one use more to be stored again in the main ring.
    FewerStoredAgain,
    /// The same, and only blocks that the policy remembers are admitted.
    RememberedOnly,
    /// Nothing.
    StoringNothing,
}

impl From<Allowance> for WriteBudgetState {
    fn from(allowance: Allowance) -> Self {
        match allowance {
            Allowance::All => Self::AdmittingAll,
            Allowance::FewerReinsertions => Self::FewerStoredAgain,
            Allowance::Remembered => Self::RememberedOnly,
            Allowance::Nothing => Self::StoringNothing,
        }
    }
}

impl std::fmt::Display for WriteBudgetState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::AdmittingAll => "admitting all",
            Self::FewerStoredAgain => "fewer stored again",
            Self::RememberedOnly => "remembered blocks only",
            Self::StoringNothing => "storing nothing",
        })
    }
}

/// Reclaim of regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReclaimReport {
    /// Regions reclaimed.
    pub regions: u64,
    /// Cold blocks dropped.
    pub dropped_blocks: u64,
    /// Hot blocks reinserted.
    pub reinserted_blocks: u64,
    /// Bytes written for them.
    pub reinserted_bytes: u64,
    /// Uncached blocks read or written that were in the policy's ghost list; always zero for a policy without one.
    pub ghost_hits: u64,
}

/// Errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ErrorReport {
    /// Fragments with a wrong checksum: dropped, and read from the origin instead.
    pub checksum_failures: u64,
    /// Failed reads of the cache device.
    pub cache_read_errors: u64,
    /// Failed writes, flushes and discards of the cache device.
    pub cache_write_errors: u64,
    /// Writes of the cache device that found no space on its file system, or in the pool of a thin volume.
    #[serde(default)]
    pub cache_no_space_errors: u64,
    /// Regions of the cache device whose records could not be read when they were reclaimed: their clean blocks were dropped.
    #[serde(default)]
    pub cache_unreadable_regions: u64,
    /// Failed requests to the origin.
    pub origin_errors: u64,
}

/// Memory in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MemoryReport {
    /// Resident set size of the process.
    pub resident_bytes: u64,
    /// Sum of the uses: within a tenth of the resident set.
    pub listed_bytes: u64,
    /// Index bytes per cached block.
    pub index_bytes_per_block: f64,
    /// Bytes per cached block of ghosts and tables.
    pub tables_bytes_per_block: f64,
    /// Memory by use. No byte is in two of them.
    pub uses: Vec<MemoryUse>,
    /// The pages of the index; null: the index is a table in memory.
    #[serde(default)]
    pub index_pages: Option<IndexPagesReport>,
}

/// The pages of an index that is larger than the memory for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct IndexPagesReport {
    /// Maximum of the uses `index` and `tables` together, in bytes: `--index-memory`.
    pub bound_bytes: u64,
    /// Number of pages.
    pub pages: u64,
    /// Number of pages in memory.
    pub pages_in_memory: u64,
    /// Pages read from the cache device.
    pub reads: u64,
    /// The same for each block that a client read or wrote.
    pub reads_per_lookup: f64,
    /// Pages written to the cache device.
    pub writes: u64,
    /// Their share of the bytes written to the cache device.
    pub written_share: f64,
    /// Pages that were damaged on the cache device, and rebuilt from the log.
    pub rebuilt: u64,
}

impl MemoryReport {
    /// The memory of a use, in bytes.
    #[must_use]
    pub fn used_for(&self, name: &str) -> Option<u64> {
        let found = self.uses.iter().find(|used| used.name == name);
        found.map(|used| used.bytes)
    }
}

/// What memory is used for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MemoryUse {
    /// `index`; `tables`: ghosts, regions, versions of blocks; `extents`: not written yet; `requests`: buffers in use; `pooled`: buffers
    /// for reuse; `codecs`: encoders and decoders; `advisor`: its sample; `histograms`: latencies; `tasks`: connections and background
    /// work; `other`: what else the allocator has in use; `reserve`: free on purpose, for block devices; `free`: free memory of the
    /// allocator that is resident; `stacks`: of threads; `program`: program and libraries.
    pub name: String,
    /// Bytes now.
    pub bytes: u64,
    /// Maximum number of bytes; null: grows with the cached blocks or with the number of clients.
    pub bytes_max: Option<u64>,
}

/// A queue, or several of one kind: each shard or thread has its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct QueueReport {
    /// Its name: `requests`, `admission`, `codec-reads`, ..
    pub name: String,
    /// Number of queues. The depths are those of the fullest one.
    pub queues: u64,
    /// Entries now.
    pub depth: u64,
    /// Maximum number of entries since the start.
    pub depth_peak: u64,
    /// Limit of the entries of one queue.
    pub depth_max: u64,
    /// How often a request waited or was refused because a queue was full, over all of them.
    pub full_count: u64,
}

/// One NBD listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NbdReport {
    /// `unix:PATH` or `tcp:HOST:PORT`.
    pub address: String,
    /// Connections now.
    pub connections: u32,
    /// Maximum number of connections.
    pub connections_max: u32,
    /// Connections accepted since the start.
    pub connections_total: u64,
}

/// A block device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct BlockDeviceReport {
    /// Its name, `/dev/flaz/NAME`.
    #[serde(with = "crate::path")]
    #[schemars(with = "String")]
    pub name: PathBuf,
    /// The device, `/dev/ublkbN` or `/dev/nbdN`.
    #[serde(with = "crate::path")]
    #[schemars(with = "String")]
    pub device: PathBuf,
    /// Number of queues.
    pub queues: u16,
    /// Requests in flight of each queue.
    pub depth: u16,
}

/// The result of `flaz create`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CreateReport {
    /// The cache device.
    pub cache: CacheReport,
    /// The origin.
    pub origin: OriginReport,
    /// The codec for new blocks.
    #[schemars(with = "String")]
    pub codec: CodecChoice,
}

/// The result of `flaz flush`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FlushReport {
    /// Blocks that are still dirty: written in the meantime, or damaged.
    pub dirty_blocks: u64,
}

/// The result of `flaz resize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ResizeReport {
    /// Bytes of the cache device that the cache used before.
    pub size_before_bytes: u64,
    /// Bytes of the cache device that the cache uses now.
    pub size_bytes: u64,
    /// Number of regions before.
    pub regions_before: u64,
    /// Number of regions now.
    pub regions: u64,
}

/// How far a cache is that becomes smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShrinkProgress {
    /// Regions in use that the cache still has to give up.
    pub regions_left: u64,
    /// Bytes of dirty data to write to the origin before, because they do not fit in the smaller cache.
    pub dirty_bytes_left: u64,
}

/// A cache that becomes smaller, by `flaz resize`. It has its old size until that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ShrinkReport {
    /// Bytes of the cache device that the cache will use. Of a volume: that it keeps while the device becomes smaller.
    pub size_bytes: u64,
    /// Regions in use that the cache still has to give up, or to move.
    pub regions_left: u64,
    /// Bytes of dirty data to write to the origin before, because they do not fit in the smaller cache.
    pub dirty_bytes_left: u64,
}

/// The result of `flaz volume resize`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct VolumeResizeReport {
    /// Size of the volume before, in bytes.
    pub bytes_before: u64,
    /// Its size now: that of the origin. The same if the origin had not grown.
    pub bytes: u64,
    /// The ways by which clients reach the volume. None if the cache is not running.
    pub front_ends: Vec<FrontEndSizeReport>,
}

/// The size that clients of a front end see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FrontEndSizeReport {
    /// An NBD address, or the name of a block device, `/dev/flaz/NAME`.
    pub name: String,
    /// Whether all clients see the size of the volume.
    pub up_to_date: bool,
    /// If not: which do not, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// The result of `flaz remove-device`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RemovedDeviceReport {
    /// The name, `/dev/flaz/NAME`.
    pub name: PathBuf,
    /// The device, `/dev/ublkbN` or `/dev/nbdN`.
    pub device: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The result of `flaz check`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CheckReport {
    /// [`REPORT_SCHEMA`].
    pub schema: u32,
    /// The cache device.
    pub cache: CacheReport,
    /// Whether the last run stopped cleanly.
    pub clean: bool,
    /// Whether the cache contains, or may contain, dirty blocks.
    pub may_be_dirty: bool,
    /// Number of valid objects by kind: `superblock`, `region-summary`, `extent`, `fragment-lz4`, ..
    pub good: BTreeMap<String, u64>,
    /// Number of invalid objects, by the same kinds.
    pub bad: BTreeMap<String, u64>,
    /// Bytes of fragments that were read and verified.
    pub verified_bytes: u64,
    /// The first [`PROBLEMS_LISTED_MAX`] problems.
    pub problems: Vec<Problem>,
    /// Duration in seconds.
    pub duration_s: f64,
}

impl CheckReport {
    /// Total number of invalid objects.
    #[must_use]
    pub fn bad_total(&self) -> u64 {
        self.bad.values().sum()
    }
}

/// One problem that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Problem {
    /// Kind of object, as in [`CheckReport::bad`].
    pub kind: String,
    /// Byte offset on the cache device; of a volume, in its part of the device.
    pub offset: u64,
    /// Expected and found values.
    pub message: String,
}

/// One object on the cache device, as `flaz dump` prints it: one line.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct DumpRecord {
    /// `superblock`, `region`, `extent`, `fragment`, ..
    pub kind: String,
    /// Byte offset on the cache device; of a volume, in its part of the device.
    pub offset: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Depth in the tree, for indentation: superblock 0, region 0, extent 1, fragment 2.
    pub depth: u8,
    /// Fields in device order; in JSON an object.
    #[serde(serialize_with = "as_object")]
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub fields: Vec<(String, serde_json::Value)>,
}

fn as_object<S: serde::Serializer>(
    fields: &[(String, serde_json::Value)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fields.iter().map(|(name, value)| (name, value)))
}
