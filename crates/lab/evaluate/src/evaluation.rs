//! All cells: which there are, on several threads, and what they are compared with.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use flaz_codec::{CodecChoice, CodecId};
use flaz_trace::Op;
use flaz_trace::recording::GRANULES;

use crate::agreement::{self, Chosen};
use crate::cell::{CellError, EXTENT_BYTES, Measured, Setup, WINDOW, run};
use crate::contents::Contents;
use crate::machine::Machine;
use crate::paper::{self, Goal, Unit};
use crate::processor::Speeds;
use crate::report::{
    CellReport, CodecReport, ComparedReport, DisksReport, EvaluationReport, ExtentReport, GoalReport,
    LoadReport, ProcessorReport, ReclaimingReport, SizeReport, SplittingReport,
};
use crate::workload::Workload;

/// Sizes of extents that are compared.
pub const EXTENTS: [u32; 4] = [32 << 10, EXTENT_BYTES, 128 << 10, 256 << 10];
/// Shares of the footprint that caches have.
pub const SHARES: [f64; 3] = [0.125, 0.25, 0.5];
/// The share at which extents, splitting and reclaim are examined.
const MIDDLE_SHARE: f64 = 0.25;
/// The lowest hit ratio without compression beside which another one is a gain in percent.
const HIT_RATIO_MIN: f64 = 0.05;
/// The smallest cache for that: one of large extents needs more.
const MIDDLE_BYTES_MIN: u64 = 8 << 20;
/// The smallest cache.
pub const CACHE_BYTES_MIN: u64 = 4 << 20;

/// The smallest share of a load's footprint that is large enough for a cache.
#[must_use]
pub fn share_min(load: &Workload) -> f64 {
    CACHE_BYTES_MIN as f64 / load.footprint_bytes().max(1) as f64
}

/// Passes that warm a cache. After one, a cache that is nearly as large as the data has reclaimed nothing: its first regions go in the
/// order in which they are needed again.
const WARMING: u32 = 4;

/// What to evaluate.
#[derive(Clone, Debug)]
pub struct Options {
    /// Loads.
    pub loads: Vec<Workload>,
    /// The load whose throughput over time is reported.
    pub stream: Workload,
    /// Machines.
    pub machines: Vec<Machine>,
    /// Shares of the footprint that caches have; at least [`share_min`] of each load.
    pub shares: Vec<f64>,
    /// Codecs, beside none.
    pub codecs: Vec<CodecChoice>,
    /// Times of a core.
    pub speeds: Speeds,
    /// Number of cores.
    pub cores: u32,
    /// Cells at a time.
    pub threads: usize,
    /// Whether a cell of each load runs in real time too.
    pub real_time: bool,
}

/// A cell to be simulated.
#[derive(Clone, Debug)]
struct Job {
    load: Workload,
    setup: Setup,
}

/// Simulates all cells. `progress` is called with the number of cells done, and of all.
///
/// # Errors
/// A cache is too small; in real time, also: the system has no memory, thread or socket left.
///
/// # Panics
/// Never: each figure's cells are among the jobs.
pub fn evaluate(
    options: &Options,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<EvaluationReport, CellError> {
    let grid = Grid { options };
    let jobs = grid.jobs();
    let served = options.loads.len() as u64 * u64::from(options.real_time);
    let measured = run_all(&jobs, options.threads, &|done, all| progress(done, all + served))?;
    let cells = Cells {
        grid,
        cells: jobs.into_iter().zip(measured).collect(),
    };
    let (done, all) = (
        AtomicU64::new(cells.cells.len() as u64),
        cells.cells.len() as u64 + served,
    );
    let agreement = agreement::compare(&cells.chosen(), &|| {
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, all);
    })?;
    let sizes = cells.sizes();
    let reclaiming = cells.reclaiming();
    Ok(EvaluationReport {
        processor: processor(options),
        loads: (options.loads.iter().chain([&options.stream]))
            .map(|it| load(it, &options.speeds))
            .collect(),
        disks: cells.disks(),
        goals: goals(&sizes, &reclaiming),
        sizes,
        extents: cells.extents(),
        splitting: cells.splitting(),
        reclaiming,
        agreement,
    })
}

/// Simulates jobs on several threads; the results have the order of the jobs.
fn run_all(
    jobs: &[Job],
    threads: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Vec<Measured>, CellError> {
    let contents = Arc::new(Contents::default());
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = Mutex::new(Vec::new());
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(number) else {
                return;
            };
            let result = run(&job.load, &job.setup, &contents);
            let all = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(all as u64, jobs.len() as u64);
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.push((number, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The setups of each figure.
struct Grid<'a> {
    options: &'a Options,
}

impl Grid<'_> {
    fn cache_bytes(load: &Workload, share: f64) -> u64 {
        ((load.footprint_bytes() as f64 * share) as u64).max(CACHE_BYTES_MIN)
    }

    fn setup(&self, machine: Machine, cache_bytes: Option<u64>, codec: CodecChoice) -> Setup {
        Setup {
            machine,
            cache_bytes,
            codec,
            extent_bytes: EXTENT_BYTES,
            splits: true,
            speeds: self.options.speeds,
            cores: self.options.cores,
            warming: WARMING,
        }
    }

    /// A cache of the middle size on the last machine, with the first codec.
    fn middle(&self, load: &Workload) -> Option<Setup> {
        let (machine, codec) = (self.options.machines.last()?, self.options.codecs.first()?);
        let cache = Self::cache_bytes(load, MIDDLE_SHARE).max(MIDDLE_BYTES_MIN);
        Some(self.setup(*machine, Some(cache), *codec))
    }

    fn with_extent(&self, load: &Workload, extent_bytes: u32) -> Option<Setup> {
        self.middle(load).map(|setup| Setup {
            extent_bytes,
            ..setup
        })
    }

    fn whole(&self, load: &Workload) -> Option<Setup> {
        self.middle(load).map(|setup| Setup {
            splits: false,
            ..setup
        })
    }

    fn stream(&self, codec: CodecChoice) -> Option<Setup> {
        let cache = Self::cache_bytes(&self.options.stream, MIDDLE_SHARE);
        let machine = self.options.machines.first()?;
        Some(self.setup(*machine, Some(cache), codec))
    }

    fn jobs(&self) -> Vec<Job> {
        let options = self.options;
        let mut jobs: Vec<Job> = Vec::new();
        let mut add = |load: &Workload, setup: Option<Setup>| {
            let known = |job: &Job| Some(job.setup) == setup && job.load.name() == load.name();
            if let Some(setup) = setup.filter(|_| !jobs.iter().any(known)) {
                let load = load.clone();
                jobs.push(Job { load, setup });
            }
        };
        for load in &options.loads {
            for machine in &options.machines {
                add(load, Some(self.setup(*machine, None, CodecChoice::NONE)));
                for share in &options.shares {
                    let cache = Some(Self::cache_bytes(load, *share));
                    add(load, Some(self.setup(*machine, cache, CodecChoice::NONE)));
                    for codec in &options.codecs {
                        add(load, Some(self.setup(*machine, cache, *codec)));
                    }
                }
            }
            for extent in EXTENTS {
                add(load, self.with_extent(load, extent));
            }
            add(load, self.whole(load));
        }
        add(&options.stream, self.stream(CodecChoice::NONE));
        for codec in &options.codecs {
            add(&options.stream, self.stream(*codec));
        }
        jobs
    }
}

/// Cells that were simulated.
struct Cells<'a> {
    grid: Grid<'a>,
    cells: Vec<(Job, Measured)>,
}

impl Cells<'_> {
    fn of(&self, load: &Workload, setup: &Setup) -> &Measured {
        let found = self
            .cells
            .iter()
            .find(|(job, _)| job.setup == *setup && job.load.name() == load.name());
        &found.expect("each figure's cells are among the jobs").1
    }

    fn options(&self) -> &Options {
        self.grid.options
    }

    fn without_cache(&self, load: &Workload, machine: Machine) -> &Measured {
        self.of(load, &self.grid.setup(machine, None, CodecChoice::NONE))
    }

    /// What runs in real time: only caches of the figure by size are candidates.
    fn chosen(&self) -> Vec<Chosen> {
        let options = self.options();
        let of = |load: &Workload| {
            let sizes = options
                .shares
                .iter()
                .map(|share| Some(Grid::cache_bytes(load, *share)));
            let sizes: Vec<Option<u64>> = sizes.collect();
            let candidates = self.cells.iter().filter(|(job, _)| {
                job.load.name() == load.name()
                    && job.setup.splits
                    && job.setup.extent_bytes == EXTENT_BYTES
                    && sizes.contains(&job.setup.cache_bytes)
            });
            agreement::choose(load, candidates.map(|(job, measured)| (&job.setup, measured)))
        };
        let loads = options.loads.iter().filter(|_| options.real_time);
        loads.filter_map(of).collect()
    }

    fn cell(&self, load: &Workload, setup: &Setup) -> CellReport {
        let measured = self.of(load, setup);
        let disks = match setup.cache_bytes {
            Some(_) if load.name() != self.options().stream.name() => self.without_cache(load, setup.machine),
            _ => measured,
        };
        CellReport {
            codec: setup.codec.to_string(),
            seconds: measured.elapsed.as_secs_f64(),
            hit_ratio: measured.hit_ratio(),
            read_us: read_us(measured),
            processor_seconds: measured.processor.as_secs_f64(),
            beside_disks_percent: gain_percent(disks, measured),
        }
    }

    fn disks(&self) -> Vec<DisksReport> {
        let options = self.options();
        let all = options.loads.iter().flat_map(|load| {
            options.machines.iter().map(move |machine| {
                let measured = self.without_cache(load, *machine);
                DisksReport {
                    load: load.name().to_owned(),
                    machine: machine.name.to_owned(),
                    seconds: measured.elapsed.as_secs_f64(),
                    read_us: read_us(measured),
                }
            })
        });
        all.collect()
    }

    fn sizes(&self) -> Vec<SizeReport> {
        let options = self.options();
        let mut all = Vec::new();
        for load in &options.loads {
            for machine in &options.machines {
                for share in &options.shares {
                    all.push(self.size(load, *machine, *share));
                }
            }
        }
        all
    }

    fn size(&self, load: &Workload, machine: Machine, share: f64) -> SizeReport {
        let cache_bytes = Grid::cache_bytes(load, share);
        let setup = |codec| self.grid.setup(machine, Some(cache_bytes), codec);
        let plain = setup(CodecChoice::NONE);
        let before = self.of(load, &plain);
        let compared = self.options().codecs.iter().map(|codec| {
            let setup = setup(*codec);
            let measured = self.of(load, &setup);
            let processor = measured.processor.as_secs_f64() / before.processor.as_secs_f64().max(1e-9);
            ComparedReport {
                cell: self.cell(load, &setup),
                gain_percent: gain_percent(before, measured),
                hits_percent: (before.hit_ratio() >= HIT_RATIO_MIN)
                    .then(|| (measured.hit_ratio() / before.hit_ratio() - 1.0) * 100.0),
                processor_times: processor,
            }
        });
        SizeReport {
            load: load.name().to_owned(),
            machine: machine.name.to_owned(),
            cache_bytes,
            // Larger than wanted where that is too small for a cache.
            share: cache_bytes as f64 / load.footprint_bytes() as f64,
            compressed: compared.collect(),
            uncompressed: self.cell(load, &plain),
        }
    }

    fn extents(&self) -> Vec<ExtentReport> {
        let mut all = Vec::new();
        for load in &self.options().loads {
            let setups = EXTENTS.map(|extent| self.grid.with_extent(load, extent));
            let Some(usual) = self.grid.middle(load) else {
                continue;
            };
            all.extend(setups.into_iter().flatten().map(|setup| ExtentReport {
                load: load.name().to_owned(),
                machine: setup.machine.name.to_owned(),
                extent_bytes: setup.extent_bytes,
                cell: self.cell(load, &setup),
                gain_percent: gain_percent(self.of(load, &usual), self.of(load, &setup)),
            }));
        }
        all
    }

    fn splitting(&self) -> Vec<SplittingReport> {
        let of = |load: &Workload| {
            let (whole, split) = (self.grid.whole(load)?, self.grid.middle(load)?);
            let (before, after) = (self.of(load, &whole), self.of(load, &split));
            Some(SplittingReport {
                load: load.name().to_owned(),
                machine: split.machine.name.to_owned(),
                whole: self.cell(load, &whole),
                split: self.cell(load, &split),
                gain_percent: gain_percent(before, after),
                latency_percent: (read_us(after) / read_us(before).max(1e-9) - 1.0) * 100.0,
            })
        };
        self.options().loads.iter().filter_map(of).collect()
    }

    fn reclaiming(&self) -> Vec<ReclaimingReport> {
        let load = &self.options().stream;
        let Some(plain) = self.grid.stream(CodecChoice::NONE) else {
            return Vec::new();
        };
        let slowest_uncompressed = self.of(load, &plain).throughput().0;
        let all = [CodecChoice::NONE]
            .into_iter()
            .chain(self.options().codecs.clone());
        all.filter_map(|codec| self.grid.stream(codec))
            .map(|setup| {
                let measured = self.of(load, &setup);
                let (slowest, windows) = measured.throughput();
                ReclaimingReport {
                    load: load.name().to_owned(),
                    machine: setup.machine.name.to_owned(),
                    codec: setup.codec.to_string(),
                    regions: measured.regions_reclaimed,
                    window_seconds: WINDOW.as_secs_f64(),
                    windows,
                    slowest,
                    slowest_uncompressed,
                }
            })
            .collect()
    }
}

fn read_us(measured: &Measured) -> f64 {
    measured.read_latency.as_secs_f64() * 1e6 / measured.reads.max(1) as f64
}

/// How much faster `after` is, in percent.
fn gain_percent(before: &Measured, after: &Measured) -> f64 {
    (before.elapsed.as_secs_f64() / after.elapsed.as_secs_f64().max(1e-9) - 1.0) * 100.0
}

fn load(load: &Workload, speeds: &Speeds) -> LoadReport {
    let bytes = |op: Op| {
        let of_kind = load.requests().iter().filter(move |it| it.request.op == op);
        of_kind.map(|it| it.request.len).sum()
    };
    let sizes = || load.requests().iter().flat_map(|it| &it.sizes);
    let granules: u64 = sizes().map(|it| u64::from(it[0].granules())).sum();
    let think_us: u64 = load.requests().iter().map(|it| it.think_us).sum();
    LoadReport {
        client_seconds: think_us as f64 * speeds.think / 1e6,
        load: load.name().to_owned(),
        requests: load.requests().len() as u64,
        read_bytes: bytes(Op::Read),
        write_bytes: bytes(Op::Write),
        footprint_bytes: load.footprint_bytes(),
        lz4_percent: granules as f64 * 100.0 / (sizes().count().max(1) as f64 * f64::from(GRANULES)),
        depth_max: load.requests().iter().map(|it| it.depth).max().unwrap_or(0),
    }
}

fn processor(options: &Options) -> ProcessorReport {
    let speeds = &options.speeds;
    let us = |ns: u64| ns as f64 / 1000.0;
    let codecs = (1..speeds.compress_ns.len()).map(|number| CodecReport {
        codec: CodecId(number as u8).to_string(),
        compress_us: us(speeds.compress_ns[number]),
        restore_us: us(speeds.restore_ns[number]),
    });
    ProcessorReport {
        name: speeds.name.to_owned(),
        cores: options.cores,
        request_us: us(speeds.request_ns),
        block_us: us(speeds.block_ns),
        codecs: codecs.collect(),
        think: speeds.think,
    }
}

/// A value, and where it was found.
type Found = (f64, String);

fn goals(sizes: &[SizeReport], reclaiming: &[ReclaimingReport]) -> Vec<GoalReport> {
    let values_of = |is_of: &dyn Fn(&str) -> bool, value: fn(&ComparedReport) -> Option<f64>| -> Vec<Found> {
        let rows = sizes.iter().filter(|row| is_of(&row.load));
        let all = rows.flat_map(|row| {
            row.compressed.iter().filter_map(move |it| {
                let at = format!(
                    "{} on {}, {:.1} % cached, {}",
                    row.load,
                    row.machine,
                    row.share * 100.0,
                    it.cell.codec
                );
                Some((value(it)?, at))
            })
        });
        all.collect()
    };
    let values = |begins: &str, value| values_of(&|load| load.starts_with(begins), value);
    let gain = |it: &ComparedReport| Some(it.gain_percent);
    let hits = |it: &ComparedReport| it.hits_percent;
    let mut goals = Vec::new();
    let mut add = |goal: Goal, found: Option<Found>| {
        goals.extend(found.map(|(value, at)| report(&goal, value, at)));
    };
    add(paper::TPCH, most(values("tpch", gain)));
    add(paper::POSTMARK, most(values("postmark", gain)));
    add(paper::FILE_SERVER, most(values("file-server", gain)));
    add(paper::WORST, least(values("", gain)));
    add(paper::HITS_MOST, most(values("", hits)));
    let mut loads: Vec<&str> = sizes.iter().map(|row| row.load.as_str()).collect();
    loads.dedup();
    let best = loads
        .into_iter()
        .filter_map(|load| most(values_of(&|it| it == load, hits)));
    add(paper::HITS_LEAST, least(best.collect()));
    add(paper::PROCESSOR, most(values("", |it| Some(it.processor_times))));
    let reclaiming = reclaiming.iter().filter(|it| it.codec != "none");
    let moments = reclaiming.map(|it| (it.slowest, format!("{} on {}, {}", it.load, it.machine, it.codec)));
    add(paper::RECLAIM, least(moments.collect()));
    goals
}

fn most(values: Vec<Found>) -> Option<Found> {
    values.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))
}

fn least(values: Vec<Found>) -> Option<Found> {
    values.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))
}

fn report(goal: &Goal, value: f64, at: String) -> GoalReport {
    let met = goal.is_met(value);
    GoalReport {
        name: goal.name.to_owned(),
        paper: goal.paper,
        goal: goal.goal,
        value,
        at,
        unit: match goal.unit {
            Unit::Percent => "%",
            Unit::Times => "x",
        }
        .to_owned(),
        met,
        missing: match met {
            true => 0.0,
            false => (goal.goal - value).abs(),
        },
    }
}
