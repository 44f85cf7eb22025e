//! What `flaz lab evaluate` reports.

use schemars::JsonSchema;
use serde::Serialize;

/// The results.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct EvaluationReport {
    /// The processor.
    pub processor: ProcessorReport,
    /// The loads.
    pub loads: Vec<LoadReport>,
    /// The machines without a cache.
    pub disks: Vec<DisksReport>,
    /// Caches by size, compressed beside uncompressed.
    pub sizes: Vec<SizeReport>,
    /// Caches by the size of their extents.
    pub extents: Vec<ExtentReport>,
    /// Requests split over cores, beside whole ones.
    pub splitting: Vec<SplittingReport>,
    /// Throughput over time while regions are reclaimed.
    pub reclaiming: Vec<ReclaimingReport>,
    /// Virtual time beside real time, where that was asked for.
    pub agreement: Vec<AgreementReport>,
    /// Goals.
    pub goals: Vec<GoalReport>,
}

/// A processor.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ProcessorReport {
    /// Name.
    pub name: String,
    /// Number of cores.
    pub cores: u32,
    /// Microseconds of a request.
    pub request_us: f64,
    /// Microseconds of a block, without its codec.
    pub block_us: f64,
    /// Times of the codecs.
    pub codecs: Vec<CodecReport>,
    /// How much longer clients compute than where they were recorded.
    pub think: f64,
}

/// Times of a codec.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CodecReport {
    /// Codec.
    pub codec: String,
    /// Microseconds to compress a block.
    pub compress_us: f64,
    /// Microseconds to restore it.
    pub restore_us: f64,
}

/// A load.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LoadReport {
    /// Name.
    pub load: String,
    /// Number of requests.
    pub requests: u64,
    /// Bytes read in a pass.
    pub read_bytes: u64,
    /// Bytes written in a pass.
    pub write_bytes: u64,
    /// Bytes of the different blocks.
    pub footprint_bytes: u64,
    /// Bytes that are left of a block, by the sizes of lz4, in percent.
    pub lz4_percent: f64,
    /// Largest number of requests of a kind in flight.
    pub depth_max: u32,
    /// Time that the client computes, in seconds.
    pub client_seconds: f64,
}

/// A machine without a cache.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct DisksReport {
    /// Load.
    pub load: String,
    /// Machine.
    pub machine: String,
    /// Time of the load.
    pub seconds: f64,
    /// Mean latency of a read.
    pub read_us: f64,
}

/// A cache of one size.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SizeReport {
    /// Load.
    pub load: String,
    /// Machine.
    pub machine: String,
    /// Bytes of the cache for blocks.
    pub cache_bytes: u64,
    /// The same as a share of the load's footprint.
    pub share: f64,
    /// Without compression.
    pub uncompressed: CellReport,
    /// With each codec.
    pub compressed: Vec<ComparedReport>,
}

/// A cell.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CellReport {
    /// Codec.
    pub codec: String,
    /// Time of the load.
    pub seconds: f64,
    /// Blocks found in the cache, of those read.
    pub hit_ratio: f64,
    /// Mean latency of a read.
    pub read_us: f64,
    /// Time that the processor was busy, without the client.
    pub processor_seconds: f64,
    /// Faster than the disks, in percent.
    pub beside_disks_percent: f64,
}

/// A cell beside the same one without compression.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ComparedReport {
    /// The cell.
    pub cell: CellReport,
    /// Faster, in percent.
    pub gain_percent: f64,
    /// More hits, in percent of the hits; absent if there are less than 5 % without compression.
    pub hits_percent: Option<f64>,
    /// Processor time beside that without compression.
    pub processor_times: f64,
}

/// A cache with extents of one size.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ExtentReport {
    /// Load.
    pub load: String,
    /// Machine.
    pub machine: String,
    /// Size of the extents.
    pub extent_bytes: u32,
    /// The cell.
    pub cell: CellReport,
    /// Faster than with extents of 64 KiB, in percent.
    pub gain_percent: f64,
}

/// Requests split over cores, beside whole ones.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SplittingReport {
    /// Load.
    pub load: String,
    /// Machine.
    pub machine: String,
    /// Whole requests.
    pub whole: CellReport,
    /// Split ones.
    pub split: CellReport,
    /// Faster, in percent.
    pub gain_percent: f64,
    /// Change of the mean latency of a read, in percent.
    pub latency_percent: f64,
}

/// Throughput while regions are reclaimed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ReclaimingReport {
    /// Load.
    pub load: String,
    /// Machine.
    pub machine: String,
    /// Codec.
    pub codec: String,
    /// Regions reclaimed.
    pub regions: u64,
    /// Length of a part of the time, in seconds.
    pub window_seconds: f64,
    /// Throughput of each part beside the mean.
    pub windows: Vec<f64>,
    /// The slowest.
    pub slowest: f64,
    /// The slowest without compression in the same place.
    pub slowest_uncompressed: f64,
}

/// A cell in virtual and in real time.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AgreementReport {
    /// Load.
    pub load: String,
    /// Requests of it that were replayed.
    pub requests: u64,
    /// Machine.
    pub machine: String,
    /// Codec.
    pub codec: String,
    /// Bytes of the cache for blocks.
    pub cache_bytes: u64,
    /// Time of the load in virtual time, with the measured times of this machine's cores.
    pub virtual_seconds: f64,
    /// The same in real time, over NBD.
    pub real_seconds: f64,
    /// Real beside virtual.
    pub ratio: f64,
    /// Blocks found in the cache, of those read, in virtual time.
    pub virtual_hit_ratio: f64,
    /// The same in real time.
    pub real_hit_ratio: f64,
    /// Mean latency of a read in virtual time.
    pub virtual_read_us: f64,
    /// The same in real time.
    pub real_read_us: f64,
    /// Regions reclaimed in real time.
    pub regions_reclaimed: u64,
}

/// A goal.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct GoalReport {
    /// What it is about.
    pub name: String,
    /// The paper's value.
    pub paper: f64,
    /// What is wanted.
    pub goal: f64,
    /// What was found.
    pub value: f64,
    /// Where.
    pub at: String,
    /// `%` or `x`.
    pub unit: String,
    /// Whether it is met.
    pub met: bool,
    /// What is missing to the goal; 0 if it is met.
    pub missing: f64,
}
