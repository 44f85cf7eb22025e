//! One size, codec and policy: a replay of the sample on a smaller cache, and the figures of the trace that follow from it.

use std::sync::Arc;

use flaz_codec::CodecChoice;
use flaz_engine::format::geometry::{Geometry, GeometryOptions};
use flaz_engine::index::PAGE_BYTES;
use flaz_engine::index_memory::bound;
use flaz_engine::policy::PolicyKind;
use flaz_engine::units::BLOCK_BYTES;

use crate::contents::Contents;
use crate::curve::{MODEL_ERROR, ratio};
use crate::engine::{CACHE_BYTES_MIN, EngineError, GROUPS, Outcome, Restriction, Setup, replay};
use crate::latency::Latencies;
use crate::model::{Model, access_time};
use crate::report::{IndexReport, LatencyReport, Ratio, ResultReport};
use crate::sample::Sample;

/// Seconds of a day and of a year.
const DAY_S: f64 = 86_400.0;
const YEAR_DAYS: f64 = 365.25;

/// Memory for the index and all else that grows with the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexMemory {
    /// So many bytes.
    Bytes(u64),
    /// As many for each cache as `memory` bytes for a cache of `cache` bytes.
    Share {
        /// Bytes of memory.
        memory: u64,
        /// Bytes of the cache device, more than 0.
        cache: u64,
    },
}

impl IndexMemory {
    /// Bytes for a cache of that size.
    #[must_use]
    pub fn bytes(self, cache_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share { memory, cache } => {
                (u128::from(cache_bytes) * u128::from(memory) / u128::from(cache)) as u64
            }
        }
    }
}

/// Size, codec and policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combination {
    /// Bytes of the cache device.
    pub cache_bytes: u64,
    /// Codec.
    pub codec: CodecChoice,
    /// Policy.
    pub policy: PolicyKind,
}

/// What all combinations are replayed with.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Contents of the blocks.
    pub contents: Contents,
    /// Memory for the index; `None`: the index is a table.
    pub index_memory: Option<IndexMemory>,
    /// Performance of the origin.
    pub origin: Model,
    /// Performance of the cache device.
    pub ssd: Model,
    /// Bytes that may be written to the cache device in its life.
    pub endurance_bytes: Option<u64>,
    /// Time of the trace.
    pub seconds: Option<f64>,
}

/// Why a combination cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum CombinationError {
    /// There is no such cache.
    #[error("a cache of {cache_bytes} bytes: {reason}")]
    Size {
        /// Size of the cache device.
        cache_bytes: u64,
        /// What is expected.
        reason: String,
    },
    /// The sample is too small for this cache.
    #[error(
        "a cache of {cache_bytes} bytes has {scaled_bytes} bytes in a sample of one block in {one_in}, expected at least \
         {CACHE_BYTES_MIN}: replay a larger cache"
    )]
    Sample {
        /// Size of the cache device.
        cache_bytes: u64,
        /// Size in the sample.
        scaled_bytes: u64,
        /// The sample.
        one_in: u64,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The parts of a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes for blocks.
    pub capacity_bytes: u64,
    /// The bound of the index; `None`: the index is a table, because none was chosen, or because the table takes less.
    pub index_memory: Option<u64>,
}

/// The parts of a cache device of that size.
///
/// # Errors
/// The device is too small for a cache, or the memory for its index.
pub fn space(
    cache_bytes: u64,
    footprint_bytes: u64,
    index_memory: Option<IndexMemory>,
) -> Result<Space, CombinationError> {
    let refused = |reason: String| CombinationError::Size { cache_bytes, reason };
    let plan = |index_memory: Option<u64>| {
        let wish = GeometryOptions {
            index_memory,
            // A replay has one shard.
            threads: index_memory.map(|_| 1),
            ..GeometryOptions::default()
        };
        let plan = Geometry::plan(cache_bytes, 512, footprint_bytes.max(1 << 20), wish);
        plan.map_err(|error| refused(error.to_string()))
    };
    let index_memory = match index_memory.map(|memory| memory.bytes(cache_bytes)) {
        Some(bytes) => {
            bound(&plan(Some(bytes))?, Some(bytes), 0).map_err(|error| refused(error.to_string()))?
        }
        None => None,
    };
    let plan = plan(index_memory)?;
    Ok(Space {
        capacity_bytes: plan.end() - plan.data_offset(),
        index_memory,
    })
}

/// Replays the sample with a combination; calls `progress` with the number of accesses once in a while.
///
/// # Errors
/// The cache is too small.
pub fn run(
    sample: &Sample,
    combination: &Combination,
    conditions: &Conditions,
    progress: &mut dyn FnMut(u64),
) -> Result<ResultReport, CombinationError> {
    let memory = conditions.index_memory;
    let space = space(combination.cache_bytes, sample.footprint_bytes(), memory)?;
    let capacity = space.capacity_bytes;
    let scaled = capacity / sample.one_in() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    if scaled < CACHE_BYTES_MIN {
        return Err(CombinationError::Sample {
            cache_bytes: combination.cache_bytes,
            scaled_bytes: scaled,
            one_in: sample.one_in(),
        });
    }
    let numbers = sample.block_numbers();
    let contents = conditions.contents.clone();
    let setup = Setup {
        origin_blocks: sample.origin_blocks(),
        cache_bytes: scaled,
        contents: Arc::new(move |block, out| *out = *contents.of(numbers(block))),
        policy: combination.policy,
        codec: combination.codec,
        origin: conditions.origin,
        ssd: conditions.ssd,
        index_memory: space.index_memory,
        is_real: false,
        restriction: Restriction::default(),
    };
    let outcome = replay(&setup, sample.iter(), progress)?;
    Ok(figures(
        sample,
        combination,
        conditions,
        capacity,
        scaled,
        &outcome,
    ))
}

fn figures(
    sample: &Sample,
    combination: &Combination,
    conditions: &Conditions,
    capacity: u64,
    scaled: u64,
    outcome: &Outcome,
) -> ResultReport {
    let one_in = sample.one_in();
    let all = |count: f64| (count * one_in as f64).round() as u64;
    let counts = &outcome.stats.counts;
    let written = counts.cache_write_bytes * one_in;
    let per_day = conditions.seconds.map(|seconds| written as f64 / seconds * DAY_S);
    let life_years = conditions.endurance_bytes.zip(per_day.filter(|it| *it > 0.0));
    let weighted = |of: fn(&crate::engine::Group) -> u64| -> [f64; GROUPS] {
        std::array::from_fn(|group| (of(&outcome.groups[group]) * one_in) as f64)
    };
    let hit_ratio = ratio(
        &weighted(|group| group.hits),
        &weighted(|group| group.reads),
        sample.totals().read_blocks as f64,
        one_in.trailing_zeros(),
        if one_in == 1 { 0.0 } else { MODEL_ERROR },
    );
    ResultReport {
        cache_bytes: combination.cache_bytes,
        capacity_bytes: capacity,
        codec: combination.codec.to_string(),
        policy: combination.policy.name().to_owned(),
        hit_ratio,
        origin_reads: all(outcome.origin.reads),
        origin_read_bytes: outcome.origin.read_bytes * one_in,
        origin_writes: all(outcome.origin.writes),
        origin_write_bytes: outcome.origin.write_bytes * one_in,
        ssd_write_bytes: written,
        ssd_write_bytes_per_day: per_day,
        life_years: life_years.map(|(bytes, per_day)| bytes as f64 / per_day / YEAR_DAYS),
        read: read_latency(sample, outcome, hit_ratio, &conditions.ssd),
        data_in_cache: outcome.stats.holdings.cached_blocks as f64 * BLOCK_BYTES as f64 / scaled as f64,
        curve: None,
        index: index(outcome),
    }
}

/// The pages of an index in bounded memory.
fn index(outcome: &Outcome) -> Option<IndexReport> {
    let (stats, holdings) = (&outcome.stats, &outcome.stats.holdings);
    (holdings.index_pages > 0).then(|| IndexReport {
        bound_bytes: holdings.index_bound_bytes,
        memory_bytes: holdings.index_bytes + holdings.other_memory_bytes,
        pages: holdings.index_pages,
        pages_in_memory: holdings.index_pages_in_memory,
        bytes_per_block: (holdings.index_pages * PAGE_BYTES as u64) as f64
            / holdings.cached_blocks.max(1) as f64,
        reads: stats.counts.index_page_reads,
        reads_per_lookup: stats.index_reads_per_lookup(),
        reads_between: outcome.index_reads_between,
        writes: stats.counts.index_page_writes,
        written_share: stats.index_written_share(),
    })
}

/// Of all reads of the trace: as for the hit ratio, what the sample lacks are hits.
fn read_latency(sample: &Sample, outcome: &Outcome, hit_ratio: Ratio, ssd: &Model) -> LatencyReport {
    let reads = sample.totals().reads.max(1) as f64 / sample.one_in() as f64;
    let misses = (outcome.misses.weight() / reads).min(1.0);
    let mut hits = outcome.hits.clone();
    if hits.weight() == 0.0 {
        // All hits are of blocks outside the sample.
        hits.add(access_time(ssd, false, BLOCK_BYTES as f64, false), 1.0);
    }
    let p99_us = |misses: f64| outcome.misses.p99_us_mixed(misses.clamp(0.0, 1.0), &hits);
    LatencyReport {
        mean_us: misses * outcome.misses.mean_us() + (1.0 - misses) * hits.mean_us(),
        p99_us: p99_us(misses),
        p99_low_us: p99_us(misses - (hit_ratio.high - hit_ratio.value)),
        p99_high_us: p99_us(misses + (hit_ratio.value - hit_ratio.low)),
    }
}

/// Latency of the reads of a sample on the origin alone.
#[must_use]
pub fn without_cache(sample: &Sample, origin: &Model) -> LatencyReport {
    let mut latencies = Latencies::default();
    for access in sample.iter().filter(|access| access.op == flaz_trace::Op::Read) {
        let bytes = f64::from(access.blocks) * BLOCK_BYTES as f64 / access.share;
        latencies.add(access_time(origin, false, bytes, access.follows), access.share);
    }
    let p99_us = latencies.p99_us();
    LatencyReport {
        mean_us: latencies.mean_us(),
        p99_us,
        p99_low_us: p99_us,
        p99_high_us: p99_us,
    }
}
