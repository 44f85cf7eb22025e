//! From a trace and options to a report.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use flaz_codec::CodecChoice;
use flaz_control::size::{HumanBytes, HumanMicros};
use flaz_engine::policy::PolicyKind;
use flaz_engine::units::BLOCK_BYTES;
use flaz_trace::{TraceError, TraceReader};

use crate::combination::{Combination, CombinationError, Conditions, IndexMemory, run, space, without_cache};
use crate::contents::Contents;
use crate::curve::{Curve, at};
use crate::model::{Model, Seek};
use crate::report::{
    CodecRatio, CurveReport, DataReport, DeviceReport, PointReport, ReplayReport, ResultReport, SampleReport,
    TraceReport,
};
use crate::sample::{Limits, Sample, Sampler};
use crate::text;

/// Maximum number of combinations.
pub const COMBINATIONS_MAX: usize = 256;
/// Bytes of all simulated cache devices at a time, at most: nearly all memory of a replay. The sample is as small, and so few
/// combinations are replayed at a time.
pub const SIMULATED_BYTES_MAX: u64 = 1 << 30;
/// Memory for a trace that must not be sampled, if that of the machine is not known.
const MEMORY_BYTES: u64 = 8 << 30;
/// A cache is recommended if its mean latency is at most so many times that of the fastest.
const NEARLY: f64 = 1.1;
/// The curve begins at this share of the footprint, or at half of the smallest cache.
const CURVE_BEGINS: u64 = 64;
/// Requests between two calls of the progress.
const STEP: u64 = 1 << 16;

/// What is replayed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The trace.
    pub trace: PathBuf,
    /// How it is read.
    pub reading: flaz_trace::Options,
    /// Sizes of the cache device in bytes.
    pub caches: Vec<u64>,
    /// Codecs.
    pub codecs: Vec<CodecChoice>,
    /// Policies.
    pub policies: Vec<PolicyKind>,
    /// Memory for the index; `None`: the index is a table. With one, the trace must not be sampled.
    pub index_memory: Option<IndexMemory>,
    /// Memory that a replay of a whole trace may take; 0: not known.
    pub memory_bytes: u64,
    /// Contents; `None`: the built-in distribution.
    pub contents: Option<Contents>,
    /// Performance of the origin.
    pub origin: Model,
    /// Performance of the cache device.
    pub ssd: Model,
    /// Bytes that may be written to the cache device in its life.
    pub endurance_bytes: Option<u64>,
    /// Time of a trace whose format has no times.
    pub seconds: Option<f64>,
    /// A sample of one block in 2^n at most, whatever fits; `None`: as large as the limits allow.
    pub sample_shift: Option<u32>,
    /// Number of combinations that are replayed at a time.
    pub threads: usize,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum SizingError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace has no reads and writes.
    #[error("{}: the trace has no reads and no writes", path.display())]
    Empty {
        /// The trace.
        path: PathBuf,
    },
    /// No access is in the sample.
    #[error("{}: a sample of one block in {one_in} has none of the trace's accesses: take a larger sample (--sample)", path.display())]
    EmptySample {
        /// The trace.
        path: PathBuf,
        /// The sample.
        one_in: u64,
    },
    /// The index has a bound, and the trace is sampled.
    #[error(
        "{}: the memory for the index can be limited only if the whole trace is replayed, because neighbouring blocks share index pages: \
         with the memory of this machine at most {} accesses, {} blocks, and caches of {caches_bytes} bytes; found more. Replay a part of \
         the trace or a smaller cache (--cache)", path.display(), limits.accesses, limits.blocks
    )]
    NotWhole {
        /// The trace.
        path: PathBuf,
        /// Of the accesses.
        limits: Limits,
        /// The largest cache.
        caches_bytes: u64,
    },
    /// A combination cannot be replayed.
    #[error(transparent)]
    Combination(#[from] CombinationError),
}

/// What happens now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many bytes of the trace were read, of so many, if known.
    Reading(u64, Option<u64>),
    /// So many accesses were replayed, of so many.
    Replaying(u64, u64),
}

/// Reads the trace and replays it with all combinations.
///
/// # Errors
/// The trace cannot be read, or a cache is too small.
pub fn size(options: &Options, progress: &(dyn Fn(Progress) + Sync)) -> Result<ReplayReport, SizingError> {
    let contents = options.contents.clone().unwrap_or_else(Contents::usual);
    let mut reader = TraceReader::open(&options.trace, options.reading)?;
    let (sample, curves) = read(&mut reader, options, &contents, progress)?;
    let totals = sample.totals();
    if totals.reads + totals.writes == 0 {
        return Err(SizingError::Empty {
            path: options.trace.clone(),
        });
    }
    if sample.accesses() == 0 {
        return Err(SizingError::EmptySample {
            path: options.trace.clone(),
            one_in: sample.one_in(),
        });
    }
    if options.index_memory.is_some() && sample.one_in() > 1 {
        let (limits, caches_bytes) = limits(options);
        return Err(SizingError::NotWhole {
            path: options.trace.clone(),
            limits,
            caches_bytes,
        });
    }
    let conditions = Conditions {
        contents: contents.clone(),
        index_memory: options.index_memory,
        origin: options.origin,
        ssd: options.ssd,
        endurance_bytes: options.endurance_bytes,
        seconds: totals.seconds().or(options.seconds),
    };
    let combinations = combinations(options);
    for combination in &combinations {
        space(
            combination.cache_bytes,
            sample.footprint_bytes(),
            options.index_memory,
        )?;
    }
    let mut results = replay_all(&sample, &combinations, &conditions, options.threads, progress)?;
    let curves = report_curves(&sample, &curves, &mut results);
    let (skipped_lines, skipped) = reader.skipped();
    let without_cache = without_cache(&sample, &options.origin);
    Ok(ReplayReport {
        trace: TraceReport {
            path: options.trace.clone(),
            format: reader.format().name().to_owned(),
            distinguishes_writes: reader.format().has_kinds(),
            reads: totals.reads,
            read_bytes: totals.read_blocks * BLOCK_BYTES as u64,
            writes: totals.writes,
            write_bytes: totals.write_blocks * BLOCK_BYTES as u64,
            trims: totals.trims,
            footprint_bytes: sample.footprint_bytes(),
            seconds: conditions.seconds,
            skipped_lines,
            skipped: skipped.to_vec(),
        },
        sample: SampleReport {
            one_in: sample.one_in(),
            blocks: sample.blocks(),
            accesses: sample.accesses() as u64,
        },
        data: DataReport {
            source: contents.source().to_owned(),
            is_built_in: options.contents.is_none(),
            ratios: (options.codecs.iter())
                .map(|codec| CodecRatio {
                    codec: codec.to_string(),
                    ratio: contents.sizes(*codec).ratio(),
                })
                .collect(),
        },
        origin: device(&options.origin),
        ssd: device(&options.ssd),
        ssd_endurance_bytes: options.endurance_bytes,
        recommendation: match totals.reads {
            0 => "no reads: hits and latencies are not defined, and a cache in write-through does not make writes faster".to_owned(),
            _ => recommendation(&results, without_cache.mean_us),
        },
        without_cache,
        results,
        curves,
    })
}

/// What the sample may have, and the bytes of simulated cache devices.
fn limits(options: &Options) -> (Limits, u64) {
    let memory_bytes = match options.memory_bytes {
        0 => MEMORY_BYTES,
        known => known,
    };
    match options.index_memory {
        Some(_) => (Limits::whole(memory_bytes), memory_bytes / 4 * 3),
        None => (Limits::default(), SIMULATED_BYTES_MAX),
    }
}

/// One pass over the trace.
fn read(
    reader: &mut TraceReader,
    options: &Options,
    contents: &Contents,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<(Sample, Vec<Curve>), SizingError> {
    let (limits, memory) = limits(options);
    let mut sampler = Sampler::new(limits, options.sample_shift.unwrap_or(0));
    let count = options.codecs.len() * options.policies.len();
    let mut curves: Vec<Curve> = (options.codecs.iter())
        .flat_map(|codec| {
            let policies = options.policies.iter();
            policies.map(|policy| Curve::new(*policy, *codec, contents, count))
        })
        .collect();
    let (bytes, total) = (reader.bytes_read(), reader.file_bytes());
    let smallest = options.caches.iter().copied().min().unwrap_or(0) / 2;
    let mut requests = 0;
    while let Some(request) = reader.next_request()? {
        sampler.add(&request);
        for curve in &mut curves {
            curve.add(&request);
        }
        requests += 1;
        if requests % STEP == 0 {
            progress(Progress::Reading(bytes.load(Ordering::Relaxed), total));
            let begins = smallest.min(sampler.footprint_bytes() / CURVE_BEGINS);
            curves.iter_mut().for_each(|curve| curve.forget_below(begins));
        }
    }
    let largest = options.caches.iter().copied().max().unwrap_or(0);
    Ok((sampler.finish(largest, memory), curves))
}

fn combinations(options: &Options) -> Vec<Combination> {
    let mut all = Vec::new();
    for policy in &options.policies {
        for codec in &options.codecs {
            all.extend(options.caches.iter().map(|cache_bytes| Combination {
                cache_bytes: *cache_bytes,
                codec: *codec,
                policy: *policy,
            }));
        }
    }
    all
}

/// Replays all combinations on several threads; the results have the order of the combinations.
fn replay_all(
    sample: &Sample,
    combinations: &[Combination],
    conditions: &Conditions,
    threads: usize,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<ResultReport>, SizingError> {
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let total = sample.accesses() as u64 * combinations.len() as u64;
    let results = Mutex::new(Vec::new());
    let work = || {
        while let Some(combination) = combinations.get(next.fetch_add(1, Ordering::Relaxed)) {
            let number = combinations.iter().position(|it| std::ptr::eq(it, combination));
            let mut before = 0;
            let mut advance = |accesses: u64| {
                let now = done.fetch_add(accesses - before, Ordering::Relaxed) + accesses - before;
                before = accesses;
                progress(Progress::Replaying(now, total));
            };
            let result = run(sample, combination, conditions, &mut advance);
            advance(sample.accesses() as u64);
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.push((number, result));
        }
    };
    let simulated = combinations.iter().map(|it| sample.stored_bytes(it.cache_bytes));
    let together = SIMULATED_BYTES_MAX / simulated.max().unwrap_or(0).max(1);
    let threads = threads.min(combinations.len()).min(together as usize);
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, _)| *number);
    results
        .into_iter()
        .map(|(_, result)| result.map_err(Into::into))
        .collect()
}

/// The curves, and in each result what the curve says of it.
fn report_curves(sample: &Sample, curves: &[Curve], results: &mut [ResultReport]) -> Vec<CurveReport> {
    let mut reports = Vec::new();
    for curve in curves {
        let (policy, codec) = curve.of();
        let (policy, codec) = (policy.name().to_owned(), codec.to_string());
        let points = curve.points(sample.footprint_bytes());
        let mut error_max: Option<f64> = None;
        for result in results
            .iter_mut()
            .filter(|it| it.policy == policy && it.codec == codec)
        {
            result.curve = at(&points, result.capacity_bytes);
            if let Some(value) = result.curve {
                let error = (value.value - result.hit_ratio.value).abs();
                error_max = Some(error_max.unwrap_or(0.0).max(error));
            }
        }
        let points = points.into_iter().map(|(capacity_bytes, hit_ratio)| PointReport {
            capacity_bytes,
            hit_ratio,
        });
        reports.push(CurveReport {
            codec,
            policy,
            points: points.collect(),
            error_max,
        });
    }
    reports
}

fn device(model: &Model) -> DeviceReport {
    DeviceReport {
        latency_us: model.latency.as_secs_f64() * 1e6,
        sequential_is_free: model.seek != Seek::None,
        read_bytes_per_second: model.read_bytes_per_second,
        write_bytes_per_second: model.write_bytes_per_second,
    }
}

/// The smallest cache that is nearly as fast as the fastest; of several, the one with the fewest writes.
fn recommendation(results: &[ResultReport], without_us: f64) -> String {
    let fastest = results
        .iter()
        .map(|it| it.read.mean_us)
        .fold(f64::INFINITY, f64::min);
    let nearly = results.iter().filter(|it| it.read.mean_us <= fastest * NEARLY);
    let Some(best) = nearly.min_by_key(|it| (it.cache_bytes, it.ssd_write_bytes)) else {
        return "no cache was replayed".to_owned();
    };
    let life = best.life_years.map_or(String::new(), |years| {
        format!("; the SSD lasts {}", text::life(years).replace('>', "more than"))
    });
    let largest = results.iter().map(|it| it.cache_bytes).max() == Some(best.cache_bytes);
    let limit = if largest {
        ". No larger one was replayed"
    } else {
        ""
    };
    format!(
        "{} with {} and {}: reads take {} instead of {} without a cache, {:.1} % hits{life}. It is the smallest whose reads take at most \
         10 % longer than those of the fastest{limit}",
        HumanBytes(best.cache_bytes),
        best.codec,
        best.policy,
        HumanMicros(best.read.mean_us),
        HumanMicros(without_us),
        best.hit_ratio.value * 100.0,
    )
}
