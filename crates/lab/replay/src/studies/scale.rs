//! Does a smaller cache on a smaller sample stand for the whole? Replays a trace at full size, and samples of a quarter and of a
//! sixteenth of its blocks with caches that are as much smaller.
//!
//! This is what a model of a cache that no machine here can hold rests on. `docs/scale.md` has results.

use std::path::{Path, PathBuf};

use flaz_codec::CodecChoice;
use flaz_engine::policy::PolicyKind;

use super::known::KNOWN;
use super::{Options, StudyError};
use crate::engine::CACHE_BYTES_MIN;
use crate::model::Model;
use crate::report::{Ratio, ResultReport};
use crate::sizing::{self, size};

/// Capacities, as shares of the distinct blocks.
const SHARES: [f64; 4] = [0.1, 0.2, 0.4, 0.8];
/// Samples of one block in 2^this, beside the whole.
const SHIFTS: [u32; 2] = [2, 4];

/// A cache at full size and scaled down.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Size of the cache at full size in bytes.
    pub cache_bytes: u64,
    /// The exact replay.
    pub whole: Figures,
    /// The sample of one block in so many, and its figures.
    pub scaled: Vec<(u64, Figures)>,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Hit ratio.
    pub hit_ratio: Ratio,
    /// Mean latency of a read in microseconds.
    pub mean_us: f64,
    /// Bytes read from the origin.
    pub origin_read_bytes: u64,
    /// Bytes written to the cache device.
    pub ssd_write_bytes: u64,
}

impl Figures {
    fn of(result: &ResultReport) -> Self {
        Self {
            hit_ratio: result.hit_ratio,
            mean_us: result.read.mean_us,
            origin_read_bytes: result.origin_read_bytes,
            ssd_write_bytes: result.ssd_write_bytes,
        }
    }
}

/// Prints the table for all selected traces.
///
/// # Errors
/// A trace cannot be read.
pub fn run(options: &Options) -> Result<(), StudyError> {
    let known = KNOWN
        .iter()
        .filter(|known| options.only.as_ref().is_none_or(|only| only == known.name));
    let paths = known
        .map(|known| options.traces.join(known.file))
        .chain(options.also.iter().cloned());
    println!(
        "hit ratio (95 % interval), and difference of: hit ratio, mean latency, origin bytes read, SSD bytes written"
    );
    for path in paths {
        for row in rows(&path, options.policy)? {
            print(&path, &row);
        }
    }
    Ok(())
}

fn print(path: &Path, row: &Row) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let whole = &row.whole;
    println!(
        "{name:<22} {:>6} MiB  1x {:.3}",
        row.cache_bytes >> 20,
        whole.hit_ratio.value
    );
    for (one_in, scaled) in &row.scaled {
        let Ratio { value, low, high } = scaled.hit_ratio;
        let is_inside = (low..=high).contains(&whole.hit_ratio.value);
        let relative = |scaled: f64, whole: f64| (scaled / whole.max(1.0) - 1.0) * 100.0;
        println!(
            "{:>36}1/{one_in} {value:.3} ({low:.3}-{high:.3}){} {:+.3}  {:+.1} %  {:+.1} %  {:+.1} %",
            "",
            if is_inside { ' ' } else { '!' },
            value - whole.hit_ratio.value,
            relative(scaled.mean_us, whole.mean_us),
            relative(scaled.origin_read_bytes as f64, whole.origin_read_bytes as f64),
            relative(scaled.ssd_write_bytes as f64, whole.ssd_write_bytes as f64),
        );
    }
}

/// The caches of a trace, as far as the smallest sample has one of the least size.
///
/// # Errors
/// The trace cannot be read.
pub fn rows(path: &Path, policy: PolicyKind) -> Result<Vec<Row>, StudyError> {
    let least = CACHE_BYTES_MIN << SHIFTS[SHIFTS.len() - 1];
    // Metadata is taken from a cache device: one region's worth is enough.
    let first = size(&replayed(path, vec![4 * least], policy, 0), &|_| ())?;
    let footprint = first.trace.footprint_bytes;
    let mut caches: Vec<u64> = SHARES
        .iter()
        .map(|share| (footprint as f64 * share) as u64)
        .collect();
    caches.retain(|bytes| *bytes >= least + least / 16);
    if caches.is_empty() {
        return Ok(Vec::new());
    }
    let run = |shift| size(&replayed(path, caches.clone(), policy, shift), &|_| ());
    let whole = run(0)?;
    let scaled = SHIFTS.into_iter().map(run).collect::<Result<Vec<_>, _>>()?;
    let row = |(number, result): (usize, &ResultReport)| Row {
        cache_bytes: result.cache_bytes,
        whole: Figures::of(result),
        scaled: (scaled.iter())
            .map(|report| (report.sample.one_in, Figures::of(&report.results[number])))
            .collect(),
    };
    Ok(whole.results.iter().enumerate().map(row).collect())
}

fn replayed(path: &Path, caches: Vec<u64>, policy: PolicyKind, shift: u32) -> sizing::Options {
    sizing::Options {
        trace: PathBuf::from(path),
        reading: flaz_trace::Options::default(),
        caches,
        codecs: vec![CodecChoice::default()],
        policies: vec![policy],
        index_memory: None,
        memory_bytes: 0,
        contents: None,
        origin: Model::HDD,
        ssd: Model::SSD,
        endurance_bytes: None,
        seconds: None,
        sample_shift: Some(shift),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    }
}
