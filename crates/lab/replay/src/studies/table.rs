//! Compares hit ratios of the engine with the design's table. `docs/policy.md` has results.
//!
//! Every reference is a read of one block. Either no block compresses, or all compress 2:1, or neighbours compress alike and others do not.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flaz_codec::CodecChoice;
use flaz_engine::policy::PolicyKind;
use flaz_random::Random;
use flaz_trace::Op;

use super::known::Trace;
use super::{Options, Selected, StudyError};
use crate::engine::{Access, Outcome, Restriction, Setup};
use crate::model::{Model, Seek};

/// Number of random bytes in a block that LZ4 stores in 2048 bytes.
const TWO_TO_ONE_RANDOM_BYTES: usize = 2024;

/// Number of random bytes in blocks of mixed compressibility: each is as frequent as the others.
const MIXED_RANDOM_BYTES: [usize; 4] = [300, 1300, TWO_TO_ONE_RANDOM_BYTES, 4096];

/// Number of neighbours that compress alike, in the order of their first reference.
const MIXED_RUN_BLOCKS: u64 = 16;

/// Maximum difference of the engine from the table.
pub(super) const DIFFERENCE_MAX: f64 = 0.02;

/// Sizes of the cache, as shares of the blocks in the trace.
pub const SHARES: [f64; 3] = [0.05, 0.10, 0.20];

/// A row of the design's table. It has no column for plain FIFO (its FIFO reinserts), nor for second touch with
/// compression. Its second touch has a ghost of twice the cache size, more than the engine's memory allows, which makes
/// the smallest caches differ. Its S3-FIFO has no correlation window, so the engine's is above it.
struct Row {
    trace: &'static str,
    share: f64,
    s3_fifo: f64,
    s3_fifo_x2: f64,
    second_touch: f64,
}

const fn row(trace: &'static str, share: f64, [s3_fifo, s3_fifo_x2, second_touch]: [f64; 3]) -> Row {
    Row {
        trace,
        share,
        s3_fifo,
        s3_fifo_x2,
        second_touch,
    }
}

const TABLE: [Row; 6] = [
    row("arc-P3", 0.05, [0.266, 0.408, 0.167]),
    row("arc-P3", 0.10, [0.408, 0.596, 0.361]),
    row("arc-P6", 0.05, [0.333, 0.537, 0.204]),
    row("arc-P6", 0.10, [0.537, 0.851, 0.544]),
    row("cloudphysics", 0.10, [0.180, 0.271, 0.107]),
    row("cloudphysics", 0.20, [0.271, 0.399, 0.202]),
];

/// The table's hit ratio, if it has one.
fn published(trace: &str, share: f64, policy: PolicyKind, data: Data) -> Option<f64> {
    let row = TABLE
        .iter()
        .find(|row| row.trace == trace && row.share == share)?;
    match (policy, data) {
        (PolicyKind::S3Fifo, Data::Random) => Some(row.s3_fifo),
        (PolicyKind::S3Fifo, Data::TwoToOne) => Some(row.s3_fifo_x2),
        (PolicyKind::SecondTouch, Data::Random) => Some(row.second_touch),
        (PolicyKind::SecondTouch, Data::TwoToOne)
        | (PolicyKind::Fifo, _)
        | (_, Data::Mixed | Data::Real(_)) => None,
    }
}

/// Whether blocks compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Random bytes.
    Random,
    /// Slightly less than half random, the rest zero, so that LZ4 stores half.
    TwoToOne,
    /// Runs of blocks of which LZ4 stores all, a half, a third or a tenth.
    Mixed,
    /// The blocks of a file, from the start again after the last one.
    Real(&'static [u8]),
}

impl Data {
    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Data::Random => "x1",
            Data::TwoToOne => "x2",
            Data::Mixed => "mixed",
            Data::Real(_) => "real",
        }
    }
}

/// Replays all selected traces and prints their hit ratios beside those of the table.
///
/// # Errors
/// A trace or the file with contents cannot be read, or a line is too far below the table.
pub fn run(options: &Options, codec: CodecChoice, contents: Option<&Path>) -> Result<(), StudyError> {
    println!("blocks that compress do so {:.2}:1", codec_ratio());
    println!(
        "{} and {} through the engine, one shard; hit ratio next to that of the table, if it has one",
        options.policy, codec
    );
    println!(
        "trace         share  data   hit ratio  table   diff    SSD blocks/ref  reinserted  again  capacity  in use  full-queue  seconds"
    );
    let all = selected_data(contents)?;
    let how = How {
        all: &all,
        policy: options.policy,
        codec,
    };
    let mut differences = Vec::new();
    for selected in options.selected() {
        let Selected { name, trace } = selected?;
        differences.extend(run_trace(&name, &trace, &how)?);
    }
    if differences.is_empty() {
        println!("the table has nothing to compare this policy with");
    }
    println!("{}", verdict(&differences)?);
    Ok(())
}

/// The contents of a file; without one, all generated data.
///
/// # Errors
/// The file cannot be read, or has no whole block.
pub(super) fn selected_data(contents: Option<&Path>) -> Result<Vec<Data>, StudyError> {
    Ok(match contents {
        Some(path) => vec![Data::Real(file(path)?)],
        None => vec![Data::Random, Data::TwoToOne, Data::Mixed],
    })
}

/// What a trace is replayed with.
struct How<'a> {
    all: &'a [Data],
    policy: PolicyKind,
    codec: CodecChoice,
}

/// The contents of a file, until the program ends.
fn file(path: &Path) -> Result<&'static [u8], StudyError> {
    let error = |found: String| StudyError::Contents {
        path: path.display().to_string(),
        found,
    };
    let bytes = std::fs::read(path).map_err(|cause| error(cause.to_string()))?;
    match bytes.len() {
        0..4096 => Err(error(format!("{} bytes", bytes.len()))),
        _ => Ok(bytes.leak()),
    }
}

/// Replays a trace with each size and data. Returns the differences from the table.
fn run_trace(name: &str, trace: &Trace, how: &How<'_>) -> Result<Vec<f64>, StudyError> {
    let mut differences = Vec::new();
    let references = trace.references.len() as f64;
    for share in SHARES {
        for &data in how.all {
            let started = Instant::now();
            let blocks = (trace.distinct as f64 * share) as u64;
            let distinct = trace.distinct as u64;
            let outcome = replay(&trace.references, distinct, blocks, data, how.policy, how.codec)?;
            let counts = &outcome.stats.counts;
            let hit_ratio = counts.hit_blocks as f64 / (counts.hit_blocks + counts.miss_blocks) as f64;
            let (mut table, mut difference) = ("-".to_owned(), "-".to_owned());
            if let Some(expected) = published(name, share, how.policy, data) {
                differences.push(hit_ratio - expected);
                table = format!("{expected:.3}");
                difference = format!("{:+.3}", hit_ratio - expected);
            }
            println!(
                "{:<13} {:>4.0} %  {:<5}  {:>9.3}  {table:>5}  {difference:>6}  {:>14.3}  {:>10.3}  {:>5.3}  {:>8.3}  {:>6.3}  {:>10}  {:>7.1}",
                name,
                share * 100.0,
                data.name(),
                hit_ratio,
                counts.cache_write_bytes as f64 / 4096.0 / references,
                counts.reinserted_blocks as f64 / references,
                counts.repacked_blocks as f64 / references,
                outcome.held.blocks / blocks as f64,
                outcome.held.bytes_per_used_byte,
                counts.refused_queue_full,
                started.elapsed().as_secs_f64(),
            );
        }
    }
    Ok(differences)
}

/// Evaluates the differences of the hit ratios from the table. Rings of regions may exceed the table's model; that is
/// not a failure.
fn verdict(differences: &[f64]) -> Result<String, StudyError> {
    let count = |far: fn(&f64) -> bool| differences.iter().filter(|it| far(it)).count();
    let compared = differences.len();
    let (below, above) = (
        count(|it| *it < -DIFFERENCE_MAX),
        count(|it| *it > DIFFERENCE_MAX),
    );
    if below > 0 {
        return Err(StudyError::Below { below, compared });
    }
    Ok(match above {
        0 => format!("{compared} compared lines are within {DIFFERENCE_MAX} of the table"),
        _ => format!(
            "{} of {compared} compared lines are within {DIFFERENCE_MAX} of the table, the others above",
            compared - above
        ),
    })
}

/// LZ4's result for blocks that should compress 2:1.
fn codec_ratio() -> f64 {
    let mut block = [0; 4096];
    contents(1, Data::TwoToOne, &mut block);
    let mut out = [0; 4096];
    let stored = flaz_codec::encoder(flaz_codec::CodecSpec::LZ4).compress(&block, &mut out);
    4096.0 / stored.unwrap_or(4096) as f64
}

/// Contents of block `number`, always the same.
pub fn contents(number: u64, data: Data, block: &mut [u8]) {
    let random = match data {
        Data::Random => block.len(),
        Data::TwoToOne => TWO_TO_ONE_RANDOM_BYTES,
        Data::Mixed => {
            let kind = Random::new(number / MIXED_RUN_BLOCKS + 77).unit() * MIXED_RANDOM_BYTES.len() as f64;
            MIXED_RANDOM_BYTES[kind as usize]
        }
        Data::Real(bytes) => {
            let at = number as usize % (bytes.len() / block.len()) * block.len();
            return block.copy_from_slice(&bytes[at..at + block.len()]);
        }
    };
    Random::new(number).fill(&mut block[..random]);
    block[random..].fill(0);
}

/// Replays references to blocks below `distinct` through a cache whose regions have space for `capacity_blocks` uncompressed blocks.
///
/// # Errors
/// The cache is too small.
pub fn replay(
    references: &[u32],
    distinct: u64,
    capacity_blocks: u64,
    data: Data,
    policy: PolicyKind,
    codec: CodecChoice,
) -> Result<Outcome, StudyError> {
    let restriction = Restriction::default();
    replay_with(
        references,
        distinct,
        capacity_blocks,
        data,
        policy,
        codec,
        restriction,
    )
}

/// The same, storing less.
pub(super) fn replay_with(
    references: &[u32],
    distinct: u64,
    capacity_blocks: u64,
    data: Data,
    policy: PolicyKind,
    codec: CodecChoice,
    restriction: Restriction,
) -> Result<Outcome, StudyError> {
    let instant = Model {
        latency: Duration::ZERO,
        seek: Seek::None,
        read_bytes_per_second: u64::MAX,
        write_bytes_per_second: u64::MAX,
        parallelism: 1,
        operations_per_second: None,
    };
    let is_real = matches!(data, Data::Real(_));
    let setup = Setup {
        origin_blocks: distinct,
        cache_bytes: capacity_blocks * 4096,
        contents: Arc::new(move |number, block| contents(number, data, block)),
        policy,
        codec,
        // A hard disk, so that `auto` wants capacity. Nothing waits for simulated time.
        origin: Model {
            latency: Duration::from_millis(5),
            ..instant
        },
        ssd: instant,
        index_memory: None,
        is_real,
        restriction,
    };
    let accesses = references.iter().map(|block| Access {
        op: Op::Read,
        block: u64::from(*block),
        blocks: 1,
        share: 1.0,
        follows: false,
        group: 0,
    });
    Ok(crate::engine::replay(&setup, accesses, &mut |_| ())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_far_below_fails_and_one_above_is_reported() {
        let error = verdict(&[0.0, -0.03, 0.03]).unwrap_err().to_string();
        assert!(
            error.starts_with("1 of 3 compared lines are more than 0.02 below"),
            "{error}"
        );
        assert!(verdict(&[0.0, 0.03]).unwrap().starts_with("1 of 2"));
        assert!(verdict(&[-0.02, 0.02]).unwrap().starts_with("2 compared lines"));
        verdict(&[]).unwrap();
    }
}
