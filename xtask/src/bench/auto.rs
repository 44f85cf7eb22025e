//! `auto` beside no compression: one workload after the other on the same caches, because what `auto` did for one workload affects the
//! next. On real data, on real data while all processors are busy, and on random data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::nbd::{Figure, Files, Measured, beside_none, in_turn, measure};
use super::options::{BenchError, Options};
use super::real_data::real_data;
use super::row::Row;
use super::server::Server;
use crate::program::program;

/// Part of the data that the hits read, in percent of the cache: it fits without compression.
const HOT_PERCENT: u64 = 70;

/// One workload of the sequence.
struct Workload {
    what: &'static str,
    /// fio's name of the direction in its report.
    direction: &'static str,
    /// Only the hot part of the data, or all of it.
    hot: bool,
    fio: &'static [&'static str],
}

/// Random or sequential reads of all data.
const fn reads(what: &'static str, fio: &'static [&'static str]) -> Workload {
    Workload {
        what,
        direction: "read",
        hot: false,
        fio,
    }
}

/// The same of the hot part.
const fn hits(what: &'static str, fio: &'static [&'static str]) -> Workload {
    Workload {
        hot: true,
        ..reads(what, fio)
    }
}

const ZIPF: &str = "--random_distribution=zipf:1.1";
const ZIPF_16K: Workload = reads(
    "Zipf reads of 16 KiB, depth 16",
    &["--rw=randread", "--bs=16k", "--iodepth=16", ZIPF],
);
const ZIPF_4K: Workload = reads(
    "Zipf reads of 4 KiB, depth 16",
    &["--rw=randread", "--bs=4k", "--iodepth=16", ZIPF],
);
const UNIFORM_16K: Workload = reads(
    "uniform reads of 16 KiB, depth 16",
    &["--rw=randread", "--bs=16k", "--iodepth=16"],
);
const HITS_4K: Workload = hits(
    "hits of 4 KiB, depth 16",
    &["--rw=randread", "--bs=4k", "--iodepth=16"],
);
const HITS_16K: Workload = hits(
    "hits of 16 KiB, depth 16",
    &["--rw=randread", "--bs=16k", "--iodepth=16"],
);
const HITS_128K: Workload = hits(
    "hits of 128 KiB, depth 4",
    &["--rw=randread", "--bs=128k", "--iodepth=4"],
);
const HITS_IN_SEQUENCE: Workload = hits(
    "sequential hits of 128 KiB, depth 4",
    &["--rw=read", "--bs=128k", "--iodepth=4"],
);
/// The last of a sequence, because it replaces the data.
const WRITES_4K: Workload = Workload {
    what: "write-through, writes of 4 KiB, depth 16",
    direction: "write",
    hot: true,
    fio: &[
        "--rw=randwrite",
        "--bs=4k",
        "--iodepth=16",
        "--buffer_compress_percentage=50",
    ],
};
/// The same, of data that does not compress.
const RANDOM_WRITES_4K: Workload = Workload {
    fio: &["--rw=randwrite", "--bs=4k", "--iodepth=16", "--refill_buffers"],
    ..WRITES_4K
};

/// A sequence of workloads, and what it runs on.
pub(super) struct Case {
    /// The data, and whether processors are busy.
    what: &'static str,
    /// Generates this many bytes of the data.
    data: fn(usize) -> Vec<u8>,
    /// Keep each processor busy with a thread that only computes.
    busy: bool,
    /// With real data, the first one gives `auto` blocks of zstd and groups.
    workloads: &'static [Workload],
}

/// Real data on idle processors.
pub(super) const REAL: Case = Case {
    what: "real data",
    data: real_data,
    busy: false,
    workloads: &[
        ZIPF_16K,
        HITS_4K,
        HITS_128K,
        HITS_16K,
        HITS_IN_SEQUENCE,
        ZIPF_4K,
        UNIFORM_16K,
        WRITES_4K,
    ],
};

/// Real data while all processors are busy.
pub(super) const BUSY: Case = Case {
    what: "real data, busy",
    busy: true,
    workloads: &[ZIPF_16K, HITS_4K, HITS_128K, UNIFORM_16K, WRITES_4K],
    ..REAL
};

/// Random data, which does not compress, on idle processors.
pub(super) const RANDOM: Case = Case {
    what: "random data",
    data: |bytes| {
        let mut data = vec![0; bytes];
        flaz_sim::Rng::new(1).fill(&mut data);
        data
    },
    workloads: &[ZIPF_16K, HITS_4K, HITS_128K, UNIFORM_16K, RANDOM_WRITES_4K],
    ..REAL
};

/// Keeps all processors busy until it is dropped.
struct Busy {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = || {
            let stop = stop.clone();
            // Without the hint for a spin loop, which would leave time to the other thread of the core.
            std::thread::spawn(move || while !std::hint::black_box(&stop).load(Ordering::Relaxed) {})
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..cores).map(|_| spin()).collect();
        Self { stop, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}

/// What was measured with one workload and one codec.
#[derive(Default)]
struct Results {
    /// In its first seconds.
    first: Vec<Measured>,
    /// After them.
    settled: Vec<Measured>,
}

/// How long each run takes, in seconds.
#[derive(Clone, Copy)]
struct Times {
    /// The first seconds of the first workload, which fills the caches.
    warm: f64,
    /// Those of each other one.
    first: f64,
    /// Each run after them.
    run: f64,
}

/// Requests per second and processor time of each workload, compared with no compression: in its first seconds, and
/// after them. The sequence runs twice, each time with half of the runs: `auto` goes first in one, and no compression in the other. A
/// single order would be biased: of two caches with the same codec, the one that a client read first served a tenth fewer requests for as
/// long as both ran.
///
/// # Errors
/// The files or flaz itself cannot be created.
pub(super) fn rows(
    case: &Case,
    options: &Options,
    runs: usize,
    bar: &indicatif::ProgressBar,
) -> Result<Vec<Row>, BenchError> {
    let times = match options.quick {
        true => Times {
            warm: 5.0,
            first: 3.0,
            run: 1.0,
        },
        false => Times {
            warm: 25.0,
            first: 15.0,
            run: 1.5,
        },
    };
    let _busy = case.busy.then(Busy::start);
    let mut results: Vec<[Results; 2]> = (case.workloads.iter()).map(|_| Default::default()).collect();
    for auto_first in [true, false] {
        run_sequence(
            case,
            options,
            runs.div_ceil(2),
            times,
            auto_first,
            &mut results,
            bar,
        )?;
    }
    let mut rows = Vec::new();
    for (at, (workload, [ours, plain])) in case.workloads.iter().zip(&results).enumerate() {
        let requests: Figure = |measured| measured.operations_per_s;
        rows.push(beside_none(
            format!("auto, {}, {}, requests/s", case.what, workload.what),
            "0.97",
            requests,
            &ours.settled,
            &plain.settled,
        ));
        rows.push(beside_none(
            "the same, server CPU an operation".into(),
            "-",
            |measured| measured.cpu_us,
            &ours.settled,
            &plain.settled,
        ));
        let first = if at == 0 { times.warm } else { times.first };
        rows.push(beside_none(
            format!("the same, requests/s in the first {first:.0} s"),
            "-",
            requests,
            &ours.first,
            &plain.first,
        ));
    }
    Ok(rows)
}

/// Runs the workloads on two new caches, each in its first seconds and then `runs` times. Adds to the results of `auto` and of no
/// compression.
fn run_sequence(
    case: &Case,
    options: &Options,
    runs: usize,
    times: Times,
    auto_first: bool,
    results: &mut [[Results; 2]],
    bar: &indicatif::ProgressBar,
) -> Result<(), BenchError> {
    let program = program()?;
    let files = Files::new(options)?;
    let data = (case.data)((options.data_mib << 20) as usize);
    let cache_mib = (options.data_mib / 4).max(32);
    let serve = |codec: &str| {
        let name = format!("sequence-{codec}");
        std::fs::write(files.path().join(format!("{name}.origin")), &data)?;
        let origin = ["--emulate-origin", "network-volume"];
        Server::flaz_with(&program, files.path(), &name, codec, cache_mib, &origin)
    };
    let (auto, none);
    if auto_first {
        (auto, none) = (serve("auto")?, serve("none")?);
    } else {
        (none, auto) = (serve("none")?, serve("auto")?);
    }
    drop(data);
    let hot = format!("--size={}k", cache_mib * 1024 * HOT_PERCENT / 100);
    let order = if auto_first {
        "auto, then none"
    } else {
        "none, then auto"
    };
    for (at, (workload, [ours, plain])) in case.workloads.iter().zip(results).enumerate() {
        let mut fio = workload.fio.to_vec();
        fio.push(if workload.hot { &hot } else { "--size=100%" });
        let run_for = |server: &Server, seconds: f64| measure(server, seconds, workload.direction, &fio);
        let show =
            |what: String| bar.set_message(format!("{}, {order}: {}, {what}", case.what, workload.what));
        show("first seconds".into());
        let first = if at == 0 { times.warm } else { times.first };
        // The order of a run of even number, and the other one.
        let parity = usize::from(!auto_first);
        for (server, figures) in in_turn(parity, (&auto, &mut ours.first), (&none, &mut plain.first)) {
            figures.push(run_for(server, first)?);
        }
        for run in 0..runs {
            show(format!("run {} of {runs}", run + 1));
            let (auto, none) = ((&auto, &mut ours.settled), (&none, &mut plain.settled));
            for (server, figures) in in_turn(run + parity, auto, none) {
                figures.push(run_for(server, times.run)?);
            }
        }
    }
    Ok(())
}
