//! Runs the workload. For each variant: copy the image to the disk, start the cache, warm it up, restart it on the slow
//! disk. Then all variants are measured in turn, and everything is checked.
//!
//! Taking turns distributes other load on the machine over all variants.
//!
//! The warm-up uses an emulated network volume, because on a disk with 79 requests per second it would take a quarter of
//! an hour. At full speed the origin would answer in less time than `auto` needs to compress strongly. Then the server is
//! stopped cleanly and restarted with the slow disk: the cache is warm, as after any clean stop. Without a cache there is
//! no warm-up.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clients::{Observed, Phase, SLICE, Until, check_disk};
use crate::dataset::DataSet;
use crate::error::DemoError;
use crate::interrupt::{Interrupt, POLL};
use crate::oracle::{BLOCK_BYTES, Oracle};
use crate::outcome::{Cost, Holdings, Latency, Run, Series, Served, Variant, Verified};
use crate::progress::Progress;
use crate::sampler::{Sample, Sampler, hit_ratios};
use crate::scratch::Scratch;
use crate::server::{Flaz, Place, Server};
use crate::workload::Workload;
use flaz_control::report::LiveReport;

/// Phase numbers: each phase has its own sequence of requests. Those from [`PHASE_MEASURED`] on are the turns.
const PHASE_WARMUP: u32 = 0;
const PHASE_MEASURED: u32 = 1;
/// The slow disk, and the disk of the warm-up, as `--emulate-origin` names them.
const MEASURED_DISK: &str = "hdd";
const WARMUP_DISK: &str = "network-volume";
/// Maximum number of turns, and minimum length of one.
const TURNS_MAX: f64 = 4.0;
const TURN_MIN: Duration = Duration::from_secs(1);
/// Hit ratios are means over this time, so that the few requests of a slow disk form a line.
pub const WINDOW_S: f64 = 2.0;
/// The same for the warm-up, which is faster.
const WARMUP_WINDOW_S: f64 = 0.5;
/// Throughput is shown for slices of this many [`SLICE`]s.
const SLICES_SHOWN: usize = 10;
/// Points of the latency distribution for each factor of ten.
const CDF_POINTS_PER_DECADE: i32 = 40;

/// Parameters common to all runs.
#[derive(Debug)]
pub struct Session<'a> {
    /// The program.
    pub flaz: &'a Flaz,
    /// The image and its checksums.
    pub data: &'a DataSet,
    /// The requests.
    pub workload: &'a Workload,
    /// Size of the cache.
    pub ssd_bytes: u64,
    /// Codec of the compressed run.
    pub codec: &'a str,
    /// Number of warm-up requests.
    pub warmup_requests: u64,
    /// Measured time.
    pub measured: Duration,
    /// The stop request.
    pub interrupt: &'a Interrupt,
}

/// Results of one phase on one server.
struct Measured {
    observed: Observed,
    samples: Vec<Sample>,
    cpu_s: f64,
    counters: LiveReport,
}

/// A variant whose server is running on the slow disk.
struct Contender<'a> {
    variant: Variant,
    place: Place,
    oracle: Oracle<'a>,
    server: Server<'a>,
    cpu_before: f64,
    warmup: Option<Measured>,
    turns: Vec<Measured>,
}

impl<'a> Session<'a> {
    /// Runs all variants, each in its own directory, and removes the large files from these.
    ///
    /// # Errors
    /// Any failure; wrong data first.
    pub fn run(&self, scratch: &Scratch, progress: &mut Progress) -> Result<Vec<Run>, DemoError> {
        let mut contenders = Vec::new();
        for (number, variant) in (1..).zip(Variant::of(self.codec)) {
            let place = Place::new(&scratch.subfolder(&number.to_string())?);
            contenders.push(self.prepare(*variant, place, progress)?);
        }
        let (turns, turn) = self.turns();
        for number in 0..turns {
            for contender in &mut contenders {
                let title = contender.variant.title(self.codec);
                progress.step(
                    format!(
                        "{title}: measuring on the slow disk, part {} of {turns}",
                        number + 1
                    ),
                    turn,
                );
                let measured = self.phase(
                    contender.variant,
                    PHASE_MEASURED + number,
                    Until::Elapsed(turn),
                    &contender.server,
                    &contender.oracle,
                    progress,
                )?;
                contender.turns.push(measured);
            }
        }
        let runs = contenders.into_iter();
        runs.map(|contender| self.finish(contender, turn, progress))
            .collect()
    }

    /// Number and length of the turns.
    fn turns(&self) -> (u32, Duration) {
        let turns = (self.measured.as_secs_f64() / TURN_MIN.as_secs_f64()).clamp(1.0, TURNS_MAX) as u32;
        (turns, self.measured / turns)
    }

    fn prepare(
        &self,
        variant: Variant,
        place: Place,
        progress: &mut Progress,
    ) -> Result<Contender<'a>, DemoError> {
        let oracle = Oracle::new(&self.data.checksums);
        progress.step(
            format!("{}: preparing the disk", variant.title(self.codec)),
            LAYOUT,
        );
        self.lay_out(&place)?;
        let codec = match variant {
            Variant::NoCache | Variant::Uncompressed => "none",
            Variant::Compressed => self.codec,
            Variant::Auto => "auto",
        };
        self.flaz.create(&place, self.ssd_bytes, codec)?;
        let mode = if variant == Variant::NoCache {
            "pass-through"
        } else {
            "write-through"
        };

        let warmup = match variant {
            Variant::NoCache => None,
            Variant::Uncompressed | Variant::Compressed | Variant::Auto => {
                progress.step(
                    format!("{}: warming up, on a faster disk", variant.title(self.codec)),
                    WARMUP,
                );
                let server = self.flaz.serve(&place, mode, WARMUP_DISK)?;
                let until = Until::Requests(self.warmup_requests);
                let warmup = self.phase(variant, PHASE_WARMUP, until, &server, &oracle, progress)?;
                server.stop()?;
                Some(warmup)
            }
        };
        let server = self.flaz.serve(&place, mode, MEASURED_DISK)?;
        Ok(Contender {
            variant,
            oracle,
            cpu_before: server.cpu_seconds()?,
            server,
            place,
            warmup,
            turns: Vec::new(),
        })
    }

    /// Stops a server and checks everything.
    fn finish(
        &self,
        contender: Contender<'_>,
        turn: Duration,
        progress: &mut Progress,
    ) -> Result<Run, DemoError> {
        let Contender {
            variant,
            place,
            oracle,
            server,
            cpu_before,
            warmup,
            turns,
        } = contender;
        progress.step(
            format!("{}: verifying the data on the disks", variant.title(self.codec)),
            CHECK,
        );
        let mut measured = joined(turns, turn, server.counters()?);
        measured.cpu_s = server.cpu_seconds()? - cpu_before;
        server.stop()?;
        check_disk(&place.origin, self.data.blocks(), &oracle, self.interrupt)?;
        let fragments_verified = match variant {
            Variant::NoCache => 0,
            _ => fragments(&self.flaz.check(&place)?.good),
        };
        let mut run = self.report(variant, &measured, warmup.as_ref());
        run.verified.fragments_verified = fragments_verified;
        for file in [&place.origin, &place.cache] {
            fs::remove_file(file).map_err(DemoError::file("remove", file))?;
        }
        Ok(run)
    }

    /// A fresh copy of the image is the disk.
    fn lay_out(&self, place: &Place) -> Result<(), DemoError> {
        self.interrupt.check()?;
        fs::copy(&self.data.image, &place.origin).map_err(DemoError::file("write", &place.origin))?;
        // Pending writeback would slow down the first requests.
        let disk = fs::File::options()
            .write(true)
            .open(&place.origin)
            .map_err(DemoError::file("open", &place.origin))?;
        disk.sync_all().map_err(DemoError::file("sync", &place.origin))
    }

    fn phase(
        &self,
        variant: Variant,
        number: u32,
        until: Until,
        server: &Server<'_>,
        oracle: &Oracle<'_>,
        progress: &Progress,
    ) -> Result<Measured, DemoError> {
        let name = match number {
            PHASE_WARMUP => format!("the warm-up, {}", variant.title(self.codec)),
            turn => format!("part {turn} of the measurement, {}", variant.title(self.codec)),
        };
        let phase = Phase {
            name: &name,
            number,
            socket: server.socket(),
            data: self.data,
            workload: self.workload,
            oracle,
            until,
        };
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let cpu_before = server.cpu_seconds()?;
        let (observed, samples) = std::thread::scope(|scope| {
            // The scope waits for its threads, so they must end also if this closure panics.
            let _stop = StopOnDrop(&stop);
            let sampler = Sampler::start(scope, server, &done, &stop);
            scope.spawn(|| show(until, &done, &stop, progress));
            let observed = phase.run(self.interrupt, &done);
            let samples = sampler.finish();
            Ok::<_, DemoError>((observed?, samples?))
        })?;
        let cpu_s = server.cpu_seconds()? - cpu_before;
        let counters = server.counters()?;
        Ok(Measured {
            observed,
            samples,
            cpu_s,
            counters,
        })
    }

    fn report(&self, variant: Variant, measured: &Measured, warmup: Option<&Measured>) -> Run {
        let Measured {
            observed,
            samples,
            counters,
            cpu_s,
        } = measured;
        let seconds = observed.elapsed.as_secs_f64();
        let cached = variant != Variant::NoCache;
        let lookups = counters.lookups;
        let looked_up = lookups.hit_blocks + lookups.miss_blocks;
        let hit_ratio = if cached && looked_up > 0 {
            lookups.hit_blocks as f64 / looked_up as f64
        } else {
            0.0
        };
        let written = counters.traffic.cache_written_bytes;
        let written_before = warmup.map_or(0, |warmup| warmup.counters.traffic.cache_written_bytes);
        let bytes_read = observed.bytes_read + warmup.map_or(0, |warmup| warmup.observed.bytes_read);
        Run {
            variant,
            served: served(observed),
            hit_ratio,
            cost: Cost {
                cpu_s: *cpu_s,
                cpu_us_per_request: match observed.requests() {
                    0 => 0.0,
                    requests => cpu_s * 1e6 / requests as f64,
                },
                ssd_written_bytes: if cached { written_before + written } else { 0 },
                ssd_written_measured_bytes: if cached { written } else { 0 },
            },
            holdings: cached.then(|| self.holdings(counters, warmup)),
            series: Series {
                warmup: warmup.map_or_else(Vec::new, |warmup| {
                    let ratios = hit_ratios(&warmup.samples, WARMUP_WINDOW_S);
                    ratios
                        .into_iter()
                        .map(|(_, requests, ratio)| (requests, ratio))
                        .collect()
                }),
                hit_ratio_series: if cached {
                    hit_ratios(samples, WINDOW_S)
                        .into_iter()
                        .map(|(second, _, ratio)| (second, ratio))
                        .collect()
                } else {
                    vec![(0.0, 0.0), (seconds, 0.0)]
                },
                iops_series: iops_series(&observed.slices, self.measured),
            },
            restarted_warm: cached && counters.daemon.started_warm,
            verified: Verified {
                blocks_verified: bytes_read / BLOCK_BYTES as u64,
                disk_bytes_verified: u64::from(self.data.blocks()) * BLOCK_BYTES as u64,
                fragments_verified: 0,
            },
        }
    }

    fn holdings(&self, counters: &LiveReport, warmup: Option<&Measured>) -> Holdings {
        let space = counters.space;
        let before = warmup.map(|warmup| warmup.counters.codec).unwrap_or_default();
        let raw = counters.codec.raw_blocks + before.raw_blocks;
        let stored = raw + counters.codec.compressed_blocks + before.compressed_blocks;
        Holdings {
            ssd_bytes: self.ssd_bytes,
            cached_blocks: space.cached_blocks,
            logical_bytes: space.cached_bytes,
            fragment_bytes: space.fragment_bytes,
            other_bytes: space.used_bytes.saturating_sub(space.fragment_bytes),
            free_bytes: space.capacity_bytes.saturating_sub(space.used_bytes),
            metadata_bytes: self.ssd_bytes.saturating_sub(space.capacity_bytes),
            raw_share: if stored > 0 {
                raw as f64 / stored as f64
            } else {
                0.0
            },
            single_value_blocks: counters.codec.single_value_blocks + before.single_value_blocks,
        }
    }

    /// Approximate duration of all runs.
    pub fn time_planned(measured: Duration) -> Duration {
        (LAYOUT + CHECK + measured) * 4 + WARMUP * 3
    }
}

/// Concatenates turns without the gaps between them.
fn joined(turns: Vec<Measured>, turn: Duration, counters: LiveReport) -> Measured {
    let mut all = Measured {
        observed: Observed::new(),
        samples: Vec::new(),
        cpu_s: 0.0,
        counters,
    };
    for (mut measured, number) in turns.into_iter().zip(0_u32..) {
        let begin = (turn * number).as_secs_f64();
        let requests = all.observed.requests();
        // The first sample of a turn is an artificial zero.
        let counted = measured.samples.iter().skip(usize::from(number > 0));
        all.samples.extend(counted.map(|sample| Sample {
            second: begin + sample.second.min(turn.as_secs_f64()),
            requests: requests + sample.requests,
            ..*sample
        }));
        // Requests in flight at the end fall into another slice, which is incomplete and not shown.
        let whole = (turn.as_secs_f64() / SLICE.as_secs_f64()) as usize;
        measured.observed.slices.resize(whole, 0);
        all.observed.follow(&measured.observed);
    }
    all
}

/// Approximate times of the unmeasured steps, only for the progress bar.
const LAYOUT: Duration = Duration::from_millis(700);
const WARMUP: Duration = Duration::from_millis(9000);
const CHECK: Duration = Duration::from_millis(700);

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Updates the bar while the clients work.
fn show(until: Until, done: &AtomicU64, stop: &AtomicBool, progress: &Progress) {
    let begin = std::time::Instant::now();
    while !stop.load(Ordering::Relaxed) {
        progress.part(match until {
            Until::Requests(all) => done.load(Ordering::Relaxed) as f64 / all.max(1) as f64,
            Until::Elapsed(time) => begin.elapsed().as_secs_f64() / time.as_secs_f64().max(0.001),
        });
        std::thread::sleep(POLL);
    }
}

fn fragments(good: &std::collections::BTreeMap<String, u64>) -> u64 {
    good.iter()
        .filter(|(kind, _)| kind.starts_with("fragment"))
        .map(|(_, count)| count)
        .sum()
}

fn served(observed: &Observed) -> Served {
    let seconds = observed.elapsed.as_secs_f64();
    let requests = observed.requests();
    Served {
        requests,
        reads: observed.reads,
        writes: observed.writes,
        iops: requests as f64 / seconds,
        mib_per_s: (observed.bytes_read + observed.bytes_written) as f64 / seconds / f64::from(1 << 20),
        latency_us: latency(observed),
        latency_cdf: latency_cdf(observed),
    }
}

fn latency(observed: &Observed) -> Latency {
    let histogram = &observed.latency_us;
    let at = |quantile| histogram.value_at_quantile(quantile) as f64;
    Latency {
        mean: histogram.mean(),
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        max: histogram.max() as f64,
    }
}

/// Cumulative share of requests at latencies that are equally spaced on a logarithmic scale.
fn latency_cdf(observed: &Observed) -> Vec<(f64, f64)> {
    let histogram = &observed.latency_us;
    if histogram.is_empty() {
        return Vec::new();
    }
    let at = |step: i32| 10f64.powf(f64::from(step) / f64::from(CDF_POINTS_PER_DECADE));
    let mut points = Vec::new();
    for step in 0.. {
        let micros = at(step);
        let share = histogram.quantile_below(micros as u64);
        if share > 0.0 {
            // The line starts at the last point with zero.
            if points.is_empty() && step > 0 {
                points.push((at(step - 1), 0.0));
            }
            points.push((micros, share));
        }
        if share >= 1.0 {
            break;
        }
    }
    points
}

fn iops_series(slices: &[u32], measured: Duration) -> Vec<(f64, f64)> {
    let slice_s = SLICE.as_secs_f64();
    let whole = (measured.as_secs_f64() / slice_s) as usize;
    let mut slices = slices.to_vec();
    slices.resize(whole, 0);
    slices
        .chunks_exact(SLICES_SHOWN)
        .zip(0..)
        .map(|(chunk, position)| {
            let width_s = slice_s * SLICES_SHOWN as f64;
            let requests: u32 = chunk.iter().sum();
            (
                (f64::from(position) + 0.5) * width_s,
                f64::from(requests) / width_s,
            )
        })
        .collect()
}
