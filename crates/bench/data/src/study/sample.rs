//! Chooses the windows, reads them with several threads, and decides when the sample is large enough.
//!
//! The sample doubles until the intervals of every codec at 4 KiB, and that of zeroes, are as narrow as requested, or
//! until the maximum is reached. The intervals are checked only after each doubling, not after each window: a sample
//! that may stop at any time stops when the result is accidentally narrow. Small data is read completely.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flaz_codec::CodecSpec;
use flaz_random::Key;

use super::duplicates::Fingerprints;
use super::error::StudyError;
use super::estimate;
use super::options::{CODECS_MAX, StudyOptions};
use super::population::{Population, Skipped, WindowReader, places};
use super::window::{Histograms, WINDOW_BYTES, WindowMeter, WindowSums};
use crate::distribution::CODECS;

/// Number of windows before the first check; the sample doubles from there.
const WINDOWS_FIRST: u64 = 64;
/// Windows between two progress reports when everything is read.
const WINDOWS_A_BATCH: u64 = 1024;
/// Interval of progress reports.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Progress callback: bytes read, and the expected total.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// The measurements, before they become a report.
#[derive(Debug)]
pub struct Measured {
    /// Codecs, including LZ4 and zstd:1.
    pub codecs: Vec<CodecSpec>,
    /// Indices of LZ4 and zstd:1.
    pub joint: (usize, usize),
    /// The measured windows.
    pub sums: Vec<WindowSums>,
    /// Number of windows in total.
    pub windows: u64,
    /// Sums over all windows.
    pub histograms: Histograms,
    /// Fingerprints of the blocks.
    pub fingerprints: Fingerprints,
    /// What could not be read.
    pub skipped: Skipped,
    /// Number of drawn windows.
    pub windows_drawn: u64,
}

/// Results of one thread, or of all, for a batch.
struct Batch {
    histograms: Histograms,
    windows: Vec<(u64, WindowSums, Vec<u64>)>,
    failures: Vec<(std::path::PathBuf, std::io::Error)>,
}

/// Measures windows of `population` until the sample is large enough.
pub(super) fn measure(
    options: &StudyOptions,
    population: &Population,
    progress: &mut Progress<'_>,
) -> Result<Measured, StudyError> {
    let (codecs, joint) = with_joint(&options.codecs);
    if codecs.len() > CODECS_MAX {
        return Err(StudyError::TooManyCodecs(codecs.len()));
    }
    let windows = population.windows();
    let mut measured = Measured {
        sums: Vec::new(),
        windows,
        histograms: Histograms::new(codecs.len()),
        fingerprints: Fingerprints::default(),
        skipped: population.skipped.clone(),
        windows_drawn: 0,
        codecs,
        joint,
    };
    let order = Order::new(options, windows);
    let mut looked_at = 0;
    while looked_at < order.len() {
        let batch = if order.all {
            WINDOWS_A_BATCH
        } else {
            looked_at.max(WINDOWS_FIRST)
        };
        let until = (looked_at + batch).min(order.len());
        let expected = if order.all {
            order.len()
        } else {
            needed(&measured, options, until).min(order.len())
        };
        let drawn = order.part(looked_at, until);
        let mut told = |done: u64| {
            let done = (looked_at + done) * WINDOW_BYTES;
            progress(
                done.min(population.bytes()),
                (expected * WINDOW_BYTES).min(population.bytes()),
            );
        };
        let found = run_batch(options, population, &measured, &drawn, &mut told);
        measured.add(found);
        looked_at = until;
        measured.windows_drawn = looked_at;
        if !order.all && widest_points(&measured) <= options.within_points {
            break;
        }
    }
    if measured.sums.is_empty() {
        return Err(StudyError::Unreadable {
            places: places(&options.paths),
            first: measured.skipped.named.first().cloned().unwrap_or_default(),
        });
    }
    Ok(measured)
}

/// The codecs with LZ4 and zstd:1 added, each once, and the indices of these two.
fn with_joint(asked: &[CodecSpec]) -> (Vec<CodecSpec>, (usize, usize)) {
    let mut codecs = Vec::new();
    for codec in asked.iter().chain(&CODECS) {
        if !codecs.contains(codec) {
            codecs.push(*codec);
        }
    }
    let place = |wanted| codecs.iter().position(|codec| *codec == wanted).unwrap_or(0);
    let joint = (place(CODECS[0]), place(CODECS[1]));
    (codecs, joint)
}

/// The windows in the order in which they are read.
struct Order {
    /// Everything, in order.
    all: bool,
    windows: u64,
    drawn: Vec<u64>,
}

impl Order {
    fn new(options: &StudyOptions, windows: u64) -> Self {
        let all = options.exact || windows <= WINDOWS_FIRST;
        Self {
            all,
            windows,
            drawn: if all {
                Vec::new()
            } else {
                draw(
                    windows,
                    options.windows_max.clamp(WINDOWS_FIRST, windows),
                    options.seed,
                )
            },
        }
    }

    fn len(&self) -> u64 {
        if self.all {
            self.windows
        } else {
            self.drawn.len() as u64
        }
    }

    /// A sample, in device order, so that the head of a disk moves in one direction.
    fn part(&self, from: u64, until: u64) -> Vec<u64> {
        if self.all {
            return (from..until).collect();
        }
        let mut part = self.drawn[from as usize..until as usize].to_vec();
        part.sort_unstable();
        part
    }
}

/// `count` distinct numbers below `limit`, all sets equally likely, in random order (Floyd's algorithm, then a
/// shuffle).
fn draw(limit: u64, count: u64, seed: u64) -> Vec<u64> {
    let key = Key::new(seed, limit);
    let mut chosen = BTreeSet::new();
    for next in limit - count..limit {
        let drawn = key.below(next, next + 1);
        if !chosen.insert(drawn) {
            chosen.insert(next);
        }
    }
    let mut drawn: Vec<u64> = chosen.into_iter().collect();
    let key = key.part(1);
    for last in (1..drawn.len()).rev() {
        drawn.swap(last, key.below(last as u64, last as u64 + 1) as usize);
    }
    drawn
}

/// The largest half-width of the shares that decide the end of the sample, in points.
fn widest_points(measured: &Measured) -> f64 {
    let of = |part: &dyn Fn(&WindowSums) -> f64| {
        let pairs = measured.sums.iter().map(|sums| (part(sums), sums.bytes as f64));
        estimate::ratio(pairs, measured.windows_readable()).map_or(f64::MAX, |found| found.half_points())
    };
    let zeroes = of(&|sums| (sums.zero_blocks * super::window::BLOCK_BYTES) as f64);
    (0..measured.codecs.len())
        .map(|codec| of(&|sums| sums.stored_bytes[0][codec] as f64))
        .fold(zeroes, f64::max)
}

/// Expected number of windows: the sample doubles until then.
fn needed(measured: &Measured, options: &StudyOptions, at_least: u64) -> u64 {
    if measured.sums.len() < 2 {
        return at_least;
    }
    let wider = widest_points(measured) / options.within_points;
    let wanted = measured.sums.len() as f64 * wider * wider;
    let mut windows = at_least;
    while (windows as f64) < wanted && windows < options.windows_max {
        windows *= 2;
    }
    windows
}

fn run_batch(
    options: &StudyOptions,
    population: &Population,
    measured: &Measured,
    drawn: &[u64],
    told: &mut dyn FnMut(u64),
) -> Batch {
    let next = AtomicUsize::new(0);
    let done = AtomicU64::new(0);
    let found = Mutex::new(Batch {
        histograms: Histograms::new(measured.codecs.len()),
        windows: Vec::new(),
        failures: Vec::new(),
    });
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for _ in 0..options.threads.get().min(drawn.len()) {
            workers.push(scope.spawn(|| {
                let mine = work(population, measured, drawn, &next, &done);
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                found.histograms.add(&mine.histograms);
                found.windows.extend(mine.windows);
                found.failures.extend(mine.failures);
            }));
        }
        while workers.iter().any(|worker| !worker.is_finished()) {
            told(done.load(Ordering::Relaxed));
            let until = Instant::now() + TELL_EVERY;
            while Instant::now() < until && workers.iter().any(|worker| !worker.is_finished()) {
                thread::sleep(Duration::from_millis(2));
            }
        }
    });
    told(drawn.len() as u64);
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    // In a fixed order, independent of the threads.
    found.windows.sort_by_key(|window| window.0);
    found.failures.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn work(
    population: &Population,
    measured: &Measured,
    drawn: &[u64],
    next: &AtomicUsize,
    done: &AtomicU64,
) -> Batch {
    let mut reader = WindowReader::new(population);
    let mut meter = WindowMeter::new(&measured.codecs, measured.joint);
    let mut buffer = vec![0; WINDOW_BYTES as usize];
    let (mut windows, mut failures) = (Vec::new(), Vec::new());
    while let Some(&number) = drawn.get(next.fetch_add(1, Ordering::Relaxed)) {
        let len = reader.read(number, &mut buffer, &mut failures);
        if len > 0 {
            let mut fingerprints = Vec::new();
            let sums = meter.measure(&buffer[..len], &mut fingerprints);
            windows.push((number, sums, fingerprints));
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Batch {
        histograms: meter.histograms,
        windows,
        failures,
    }
}

impl Measured {
    /// Number of windows, without an estimate of the unreadable ones.
    #[must_use]
    pub fn windows_readable(&self) -> u64 {
        let readable = self.sums.len() as f64 / self.windows_drawn.max(1) as f64;
        ((self.windows as f64 * readable) as u64).max(self.sums.len() as u64)
    }

    fn add(&mut self, batch: Batch) {
        self.histograms.add(&batch.histograms);
        for (_, sums, fingerprints) in batch.windows {
            self.fingerprints.add(self.sums.len() as u32, &fingerprints);
            self.sums.push(sums);
        }
        for (path, error) in &batch.failures {
            self.skipped.failure(path, error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_distinct_and_uniform() {
        let mut seen = [0_u32; 50];
        for seed in 0..2000 {
            let drawn = draw(50, 10, seed);
            assert_eq!(drawn.iter().collect::<BTreeSet<_>>().len(), 10);
            for number in drawn {
                seen[number as usize] += 1;
            }
        }
        // Each is expected 400 times with a deviation of 18.
        assert!(seen.iter().all(|count| (310..490).contains(count)), "{seen:?}");
        let mut all = draw(20, 20, 3);
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn intervals_have_their_nominal_coverage() {
        // Windows as on a disk: a third empty, the others from 10 to 90 %, some shorter.
        let key = Key::new(11, 0);
        let windows: Vec<(f64, f64)> = (0..500)
            .map(|n| {
                let whole = if n % 7 == 0 { 0.3 } else { 1.0 };
                let share = if key.below(n, 3) == 0 {
                    0.0
                } else {
                    0.1 + 0.8 * key.unit(n + 1000)
                };
                (whole * share, whole)
            })
            .collect();
        let sum = |part: fn(&(f64, f64)) -> f64| windows.iter().map(part).sum::<f64>();
        let truth = sum(|window| window.0) / sum(|window| window.1) * 100.0;
        let held = (0..2000)
            .filter(|seed| {
                let drawn = draw(500, 64, *seed);
                let pairs = drawn.iter().map(|number| windows[*number as usize]);
                estimate::ratio(pairs, 500)
                    .is_some_and(|found| (found.low_percent..=found.high_percent).contains(&truth))
            })
            .count();
        // 1900 with a deviation of 10; the ratio estimator has a small bias of its own.
        assert!((1860..=1940).contains(&held), "{held}");
    }

    #[test]
    fn the_codecs_of_the_distribution_are_always_added() {
        assert_eq!(with_joint(&[]).0, [CodecSpec::LZ4, CodecSpec::ZSTD]);
        let (codecs, joint) = with_joint(&[CodecSpec::ZLIB, CodecSpec::ZSTD, CodecSpec::ZLIB]);
        assert_eq!(codecs, [CodecSpec::ZLIB, CodecSpec::ZSTD, CodecSpec::LZ4]);
        assert_eq!(joint, (2, 1));
    }
}
