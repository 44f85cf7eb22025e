//! What a cache reports about itself: the structs behind `flaz status`, `flaz check` and `flaz create`.
//!
//! The JSON form of these structs is an interface for scripts: a field keeps its name and unit once released,
//! and [`REPORT_SCHEMA`] grows when one changes its meaning. Names end in their unit. Counters count from the
//! start of the daemon unless they say otherwise.

#[doc(hidden)]
pub mod example;

use std::collections::BTreeMap;
use std::path::PathBuf;

use flaz_codec::CodecSpec;
use flaz_engine::settings::Settings;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::settings::Emulation;

/// Version of the JSON form.
pub const REPORT_SCHEMA: u32 = 1;

/// Problems that a check lists one by one; more are only counted.
pub const PROBLEMS_LISTED_MAX: usize = 1000;

/// Everything `flaz status` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// [`REPORT_SCHEMA`] of the program that made the report.
    pub schema: u32,
    /// Whether a daemon serves the cache, and how it is.
    pub state: CacheState,
    /// The cache device.
    pub cache: CacheReport,
    /// The origin.
    pub origin: OriginReport,
    /// Settings in force; when not running, those it would start with. Absent if the superblock has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
    /// What only a running cache knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveReport>,
    /// What the user should know, most urgent first: emulation, a failed cache device, a full log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// How the cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheState {
    /// No daemon; the last one stopped cleanly, so the next start is warm.
    Clean,
    /// No daemon; the last one did not stop cleanly.
    Unclean,
    /// No daemon has ever run.
    New,
    /// Opening devices, restoring the index.
    Starting,
    /// Serving.
    Running,
    /// Serving from the origin only: the cache device failed or was switched off.
    Degraded,
    /// Finishing what is in flight.
    Stopping,
}

impl CacheState {
    /// Whether a daemon is there.
    #[must_use]
    pub fn is_running(self) -> bool {
        matches!(
            self,
            Self::Starting | Self::Running | Self::Degraded | Self::Stopping
        )
    }
}

/// The cache device, as its superblock describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheReport {
    /// Where it is.
    pub path: PathBuf,
    /// Identity, given at creation.
    pub uuid: Uuid,
    /// Version of the on-disk format.
    pub format_version: u32,
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// Bytes of it that hold extents; the rest is metadata.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OriginReport {
    /// Where it is.
    pub path: PathBuf,
    /// Size in bytes; the size of the exported device.
    pub size_bytes: u64,
}

/// What only a running cache knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveReport {
    /// The process.
    pub daemon: DaemonReport,
    /// Requests by operation: reads, writes, flushes, ..
    pub operations: Vec<OperationReport>,
    /// Reads by what the cache had of them.
    pub lookups: LookupReport,
    /// Blocks taken in and refused.
    pub admission: AdmissionReport,
    /// Compression.
    pub codec: CodecReport,
    /// What the cache holds now.
    pub space: SpaceReport,
    /// Writes that have not reached the origin; absent in reports of older daemons.
    #[serde(default)]
    pub write_back: WriteBackReport,
    /// Bytes that went to and from the devices.
    pub traffic: TrafficReport,
    /// How room is made.
    pub reclaim: ReclaimReport,
    /// What went wrong.
    pub errors: ErrorReport,
    /// Memory.
    pub memory: MemoryReport,
    /// Queues and pools with their limits.
    pub queues: Vec<QueueReport>,
    /// NBD listeners.
    pub nbd: Vec<NbdReport>,
}

/// The process that serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DaemonReport {
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
    /// Whether the index came warm from the last run.
    pub started_warm: bool,
    /// Milliseconds it took to restore the index.
    pub recovery_ms: f64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Emulated origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulate_origin: Option<Emulation>,
    /// Emulated cache device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulate_cache: Option<Emulation>,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationReport {
    /// `read`, `write`, `flush`, `trim`, `write-zeroes`, `prefetch`, and inner ones such as `origin-read`.
    pub operation: String,
    /// Requests finished, failed ones included.
    pub count: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Latency from arrival to answer; absent where none was measured: inner operations are counted without a clock.
    pub latency_us: Option<LatencyReport>,
}

/// Latency in microseconds, from a histogram with bounded error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// Reads by what the cache had of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LookupReport {
    /// Read requests answered from the cache alone.
    pub hits: u64,
    /// Read requests answered in part from the cache.
    pub partial_hits: u64,
    /// Read requests answered from the origin alone.
    pub misses: u64,
    /// Blocks found.
    pub hit_blocks: u64,
    /// Blocks not found.
    pub miss_blocks: u64,
    /// Misses that joined the origin read of another request.
    pub joined_blocks: u64,
    /// Origin reads after merging neighbouring misses.
    pub origin_reads: u64,
}

/// Blocks taken in, and refused by reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdmissionReport {
    /// Blocks admitted after a miss.
    pub admitted_blocks: u64,
    /// Blocks put in by writes.
    pub written_blocks: u64,
    /// Blocks not admitted, by reason: `sequential`, `policy`, `overtaken-by-write`, `queue-full`, ..
    pub refused_blocks: BTreeMap<String, u64>,
}

/// Compression since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CodecReport {
    /// Bytes given to the codec.
    pub in_bytes: u64,
    /// Bytes that came out and were stored, raw blocks included.
    pub out_bytes: u64,
    /// Blocks stored compressed.
    pub compressed_blocks: u64,
    /// Blocks stored raw, because compressing saved nothing.
    pub raw_blocks: u64,
    /// All-zero and other single-value blocks, stored without a fragment; not in `in_bytes`.
    pub single_value_blocks: u64,
    /// Blocks decompressed for readers.
    pub decompressed_blocks: u64,
    /// CPU time spent compressing, in seconds.
    pub compress_s: f64,
    /// CPU time spent decompressing, in seconds.
    pub decompress_s: f64,
}

/// What the cache holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpaceReport {
    /// Blocks in the index.
    pub cached_blocks: u64,
    /// Those blocks in bytes, before compression: the data the cache stands for.
    pub cached_bytes: u64,
    /// Bytes of their fragments, headers included; dead fragments are not. Worked out from the sectors that each
    /// touches: right to about a hundredth.
    pub fragment_bytes: u64,
    /// Bytes of regions in use, dead fragments and headers included.
    pub used_bytes: u64,
    /// Bytes of all regions.
    pub capacity_bytes: u64,
    /// Bytes the whole cache will stand for when full, at today's ratio.
    pub effective_capacity_bytes: u64,
    /// Regions in use by ring.
    pub probation_regions: u64,
    /// Regions in use by the main ring.
    pub main_regions: u64,
    /// Regions free.
    pub free_regions: u64,
}

/// Writes that have not reached the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WriteBackReport {
    /// Blocks that are newer than the origin.
    pub dirty_blocks: u64,
    /// The same in bytes of the served device.
    pub dirty_bytes: u64,
    /// Bytes of the cache device that they take.
    pub dirty_device_bytes: u64,
    /// Bytes of the cache device that they may take; at the limit, writers wait.
    pub limit_bytes: u64,
    /// Seconds that cleaning all of it would take at the pace since the start, that of each shard; absent while nothing was
    /// cleaned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_s: Option<f64>,
    /// Blocks brought to the origin since the start.
    pub cleaned_blocks: u64,
    /// Writes that waited because the limit was reached.
    pub waits: u64,
    /// Dirty blocks that reclaim had to store again.
    pub moved_blocks: u64,
    /// Blocks whose only copy could not be read when it was read last.
    pub lost: u64,
    /// The origin takes nothing at present: the cleaner keeps trying.
    pub failing: bool,
    /// Extents closed early so that writes could be acknowledged.
    pub acknowledged_extents: u64,
    /// Blocks in them.
    pub acknowledged_blocks: u64,
    /// Bytes that they took on the cache device, headers and padding included.
    pub acknowledged_bytes: u64,
}

/// Bytes to and from the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficReport {
    /// Read from the cache device.
    pub cache_read_bytes: u64,
    /// Written to the cache device, headers, padding and metadata included: what wears it.
    pub cache_written_bytes: u64,
    /// Given up on the cache device before reuse.
    pub cache_discarded_bytes: u64,
    /// Read from the origin.
    pub origin_read_bytes: u64,
    /// Written to the origin.
    pub origin_written_bytes: u64,
}

/// How room is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReclaimReport {
    /// Regions reclaimed.
    pub regions: u64,
    /// Blocks found cold and dropped.
    pub dropped_blocks: u64,
    /// Blocks found hot and written again.
    pub reinserted_blocks: u64,
    /// Bytes written again for them.
    pub reinserted_bytes: u64,
    /// Blocks that were read or written without being cached, and that the policy's ghost remembered; a policy without
    /// a ghost has none.
    pub ghost_hits: u64,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// Fragments whose checksum did not match: read from the origin instead, and dropped.
    pub checksum_failures: u64,
    /// Failed reads of the cache device.
    pub cache_read_errors: u64,
    /// Failed writes, flushes and discards of the cache device.
    pub cache_write_errors: u64,
    /// Failed requests to the origin.
    pub origin_errors: u64,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// The index.
    pub index_bytes: u64,
    /// Index bytes for each block it has room for, or for each cached block where it grows.
    pub index_bytes_per_block: f64,
    /// Ghosts and all else that grows with the cache.
    pub other_bytes: u64,
    /// The same for each block.
    pub other_bytes_per_block: f64,
    /// Buffers for data on its way, those in use (requests, extents still in memory, blocks that wait to be stored)
    /// and those pooled for reuse.
    pub buffer_bytes: u64,
    /// Resident set of the process.
    pub resident_bytes: u64,
}

/// A queue, or several of one kind: each shard or thread has its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueReport {
    /// Its name: `requests`, `admission`, `codec-reads`, ..
    pub name: String,
    /// How many there are. The depths are those of the fullest.
    pub queues: u64,
    /// Entries now.
    pub depth: u64,
    /// Most entries there were since the start.
    pub depth_peak: u64,
    /// Most entries there may be in one.
    pub depth_max: u64,
    /// How often somebody had to wait, or was sent away, because one was full. Of all of them together.
    pub full_count: u64,
}

/// One NBD listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NbdReport {
    /// `unix:PATH` or `tcp:HOST:PORT`.
    pub address: String,
    /// Connections now.
    pub connections: u32,
    /// Most connections there may be.
    pub connections_max: u32,
    /// Connections since the start.
    pub connections_total: u64,
}

/// What `flaz create` made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateReport {
    /// The cache device.
    pub cache: CacheReport,
    /// The origin.
    pub origin: OriginReport,
    /// The codec new blocks will have.
    pub codec: CodecSpec,
}

/// What `flaz check` found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    /// [`REPORT_SCHEMA`].
    pub schema: u32,
    /// The cache device.
    pub cache: CacheReport,
    /// Whether the last run stopped cleanly.
    pub clean: bool,
    /// Whether it holds, or may hold, writes that have not reached the origin.
    pub may_be_dirty: bool,
    /// Things looked at, by kind, good ones: `superblock`, `region-summary`, `extent`, `fragment-lz4`, ..
    pub good: BTreeMap<String, u64>,
    /// Things that are wrong, by the same kinds.
    pub bad: BTreeMap<String, u64>,
    /// Bytes of fragments that were read and verified.
    pub verified_bytes: u64,
    /// The first [`PROBLEMS_LISTED_MAX`] problems.
    pub problems: Vec<Problem>,
    /// Seconds it took.
    pub duration_s: f64,
}

impl CheckReport {
    /// How many things are wrong.
    #[must_use]
    pub fn bad_total(&self) -> u64 {
        self.bad.values().sum()
    }
}

/// One thing that a check found wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What it is, in the words of [`CheckReport::bad`].
    pub kind: String,
    /// Byte offset on the cache device.
    pub offset: u64,
    /// Expected and found.
    pub message: String,
}

/// One thing on the cache device, as `flaz dump` shows it: a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DumpRecord {
    /// `superblock`, `region`, `extent`, `fragment`, ..
    pub kind: String,
    /// Byte offset on the cache device.
    pub offset: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Depth in the tree, for indenting: superblock 0, region 0, extent 1, fragment 2.
    pub depth: u8,
    /// Fields in the order they are stored in; in JSON an object.
    #[serde(serialize_with = "as_object")]
    pub fields: Vec<(String, serde_json::Value)>,
}

fn as_object<S: serde::Serializer>(
    fields: &[(String, serde_json::Value)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fields.iter().map(|(name, value)| (name, value)))
}
