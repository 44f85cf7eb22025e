//! What `flaz lab replay` reports.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

/// The results.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ReplayReport {
    /// The trace.
    pub trace: TraceReport,
    /// The sample that was replayed.
    pub sample: SampleReport,
    /// Contents of the blocks.
    pub data: DataReport,
    /// The modelled origin.
    pub origin: DeviceReport,
    /// The modelled cache device.
    pub ssd: DeviceReport,
    /// Bytes that may be written to the cache device in its life, if given.
    pub ssd_endurance_bytes: Option<u64>,
    /// Reads without a cache.
    pub without_cache: LatencyReport,
    /// Each size with each codec and policy.
    pub results: Vec<ResultReport>,
    /// The hit ratio at all sizes, for each codec and policy.
    pub curves: Vec<CurveReport>,
    /// The smallest cache that is nearly as fast as the fastest.
    pub recommendation: String,
}

/// A trace.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TraceReport {
    /// Path of the file.
    #[serde(serialize_with = "flaz_control::path::serialize")]
    #[schemars(with = "String")]
    pub path: PathBuf,
    /// Its format.
    pub format: String,
    /// Whether the format distinguishes reads from writes; if not, all requests are reads.
    pub distinguishes_writes: bool,
    /// Reads.
    pub reads: u64,
    /// Bytes of the blocks that they touch.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of the blocks that they touch.
    pub write_bytes: u64,
    /// Trims.
    pub trims: u64,
    /// Bytes of the blocks that are read or written; estimated from the sample.
    pub footprint_bytes: u64,
    /// Time of the trace in seconds, if the format has times or it was given.
    pub seconds: Option<f64>,
    /// Bad lines that were skipped.
    pub skipped_lines: u64,
    /// The first of them.
    pub skipped: Vec<String>,
}

/// A sample.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SampleReport {
    /// One block in so many is in it; 1: the replay is exact.
    pub one_in: u64,
    /// Number of blocks in it.
    pub blocks: u64,
    /// Number of accesses in it.
    pub accesses: u64,
}

/// Contents of blocks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DataReport {
    /// What was measured.
    pub source: String,
    /// Whether it is the built-in distribution, because none was given.
    pub is_built_in: bool,
    /// By how much blocks compress, for each codec.
    pub ratios: Vec<CodecRatio>,
}

/// By how much blocks compress.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CodecRatio {
    /// Codec.
    pub codec: String,
    /// Uncompressed bytes for each byte of the cache.
    pub ratio: f64,
}

/// A modelled device.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct DeviceReport {
    /// Time to the first byte in microseconds.
    pub latency_us: f64,
    /// Whether a request that continues the one before it skips that time.
    pub sequential_is_free: bool,
    /// Bytes read in a second.
    pub read_bytes_per_second: u64,
    /// Bytes written in a second.
    pub write_bytes_per_second: u64,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub struct LatencyReport {
    /// Mean.
    pub mean_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Lower end of its 95 % interval, from that of the hit ratio. Both ends are the value if the replay is exact.
    pub p99_low_us: f64,
    /// Upper end.
    pub p99_high_us: f64,
}

/// A share from 0 to 1 with its 95 % interval; without an interval if both ends are the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Ratio {
    /// The most likely value.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// One size, codec and policy.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ResultReport {
    /// Size of the cache device in bytes.
    pub cache_bytes: u64,
    /// Bytes of it for blocks; the rest is metadata.
    pub capacity_bytes: u64,
    /// Codec.
    pub codec: String,
    /// Policy.
    pub policy: String,
    /// Blocks that were found in the cache, of those read.
    pub hit_ratio: Ratio,
    /// Read requests to the origin.
    pub origin_reads: u64,
    /// Bytes of them.
    pub origin_read_bytes: u64,
    /// Write requests to the origin.
    pub origin_writes: u64,
    /// Bytes of them.
    pub origin_write_bytes: u64,
    /// Bytes written to the cache device.
    pub ssd_write_bytes: u64,
    /// The same for each day, if the time of the trace is known.
    pub ssd_write_bytes_per_day: Option<f64>,
    /// Years until the endurance is used up, if both are known.
    pub life_years: Option<f64>,
    /// Latency of reads.
    pub read: LatencyReport,
    /// Uncompressed bytes of the blocks in the cache at the end, for each byte of the cache.
    pub data_in_cache: f64,
    /// The hit ratio of the curve at this size; its difference from `hit_ratio` is the error of the curve. The curve is that of an index
    /// in a table.
    pub curve: Option<Ratio>,
    /// The pages of the index at the end; null: the index is a table.
    pub index: Option<IndexReport>,
}

/// The pages of an index in bounded memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct IndexReport {
    /// Maximum memory of the index, ghosts and tables, in bytes.
    pub bound_bytes: u64,
    /// Memory that they take.
    pub memory_bytes: u64,
    /// Number of pages.
    pub pages: u64,
    /// Number of pages in memory.
    pub pages_in_memory: u64,
    /// Bytes of all pages for each cached block, with the free space in them.
    pub bytes_per_block: f64,
    /// Pages read from the cache device.
    pub reads: u64,
    /// The same for each block that is read or written.
    pub reads_per_lookup: f64,
    /// Pages read between two requests: by admission and reclaim.
    pub reads_between: u64,
    /// Pages written to the cache device.
    pub writes: u64,
    /// Their share of the bytes written to the cache device.
    pub written_share: f64,
}

/// The hit ratio at all sizes.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CurveReport {
    /// Codec.
    pub codec: String,
    /// Policy.
    pub policy: String,
    /// Points, by ascending size.
    pub points: Vec<PointReport>,
    /// Largest difference from the replays.
    pub error_max: Option<f64>,
}

/// A point of the curve.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct PointReport {
    /// Bytes of the cache for blocks.
    pub capacity_bytes: u64,
    /// Hit ratio.
    pub hit_ratio: Ratio,
}
