//! The report of `flaz advise`: what more cache, or another codec, would be worth.

use std::path::PathBuf;

use flaz_codec::CodecChoice;
use serde::{Deserialize, Serialize};

/// The report of `flaz advise`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AdviseReport {
    /// Version of the form: [`super::REPORT_SCHEMA`].
    pub schema: u32,
    /// Path of the cache device.
    #[serde(with = "crate::path")]
    #[schemars(with = "String")]
    pub cache: PathBuf,
    /// Bytes of the cache device for blocks.
    pub capacity_bytes: u64,
    /// The codec in use.
    #[schemars(with = "String")]
    pub codec: CodecChoice,
    /// The reads that the estimate is about.
    pub window: AdviseWindow,
    /// What was measured.
    pub measured: AdviseMeasured,
    /// Whether the estimates are good enough to act on; if not, `recommendation` says why.
    pub enough: bool,
    /// Half, once, twice and four times the capacity.
    pub sizes: Vec<AdviseSize>,
    /// The codecs, each with the present capacity; none before enough blocks were stored.
    pub codecs: Vec<AdviseCodec>,
    /// The hit ratio from a quarter to four times the capacity.
    pub curve: Vec<AdvisePoint>,
    /// What to do, in a sentence.
    pub recommendation: String,
}

impl AdviseReport {
    /// Why there are no estimates for codecs, as a clause; `None` if there are some.
    #[must_use]
    pub fn codecs_missing(&self) -> Option<&'static str> {
        let why = "too few blocks were stored since the start to compare them";
        self.codecs.is_empty().then_some(why)
    }
}

/// The reads that an estimate is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AdviseWindow {
    /// Seconds since the estimate began: the start of the daemon, or later if the simulated caches had to fill first.
    pub age_s: f64,
    /// Seconds after which a read counts half.
    pub half_life_s: f64,
    /// Blocks read; older reads count less.
    pub blocks: f64,
    /// Reads of sampled blocks; older reads count less.
    pub sampled_blocks: f64,
    /// One block in so many is sampled.
    pub sampled_one_in: u64,
    /// Capacity up to which the simulated caches have been full once, in units of the present one; 0: none.
    pub filled_to: f64,
    /// Bytes of memory of the sample.
    pub memory_bytes: u64,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AdviseMeasured {
    /// Share of the blocks read that were cached.
    pub hit_ratio: f64,
    /// Mean latency of reads that were answered from the cache, in microseconds; 0: none yet.
    pub hit_us: f64,
    /// Mean latency of reads that needed the origin, in microseconds; 0: none yet.
    pub miss_us: f64,
    /// Blocks read per second.
    pub blocks_per_s: f64,
}

/// A hit ratio with its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AdviseRatio {
    /// The most likely value.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The estimate for a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AdviseSize {
    /// The capacity, in units of the present one.
    pub multiple: f64,
    /// The same in bytes.
    pub capacity_bytes: u64,
    /// The hit ratio.
    pub hit_ratio: AdviseRatio,
    /// Mean latency of a read, in microseconds.
    pub mean_us: f64,
    /// Blocks per second that need not be read from the origin any more; negative: more of them.
    pub origin_blocks_saved_per_s: f64,
}

/// The estimate for a codec.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AdviseCodec {
    /// The codec.
    #[schemars(with = "String")]
    pub codec: CodecChoice,
    /// Whether it is in use.
    pub in_use: bool,
    /// How many times as many blocks the cache would have as it has now.
    pub capacity_factor: f64,
    /// Standard error of that.
    pub capacity_factor_error: f64,
    /// Bytes of blocks per byte of the cache device.
    pub ratio: f64,
    /// Microseconds to restore a block.
    pub restore_us: f64,
    /// The hit ratio.
    pub hit_ratio: AdviseRatio,
    /// Mean latency of a read, in microseconds.
    pub mean_us: f64,
}

/// A point of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AdvisePoint {
    /// The capacity, in units of the present one.
    pub multiple: f64,
    /// The hit ratio.
    pub hit_ratio: AdviseRatio,
}

impl AdviseMeasured {
    /// The mean latency of a read at a hit ratio, in microseconds, if a hit takes `slower_us` longer than now. Latencies that were
    /// not measured count as 0.
    #[must_use]
    pub fn mean_us(&self, hit_ratio: f64, slower_us: f64) -> f64 {
        let hit_us = if self.hit_us > 0.0 {
            self.hit_us + slower_us
        } else {
            0.0
        };
        hit_ratio * hit_us + (1.0 - hit_ratio) * self.miss_us
    }
}
