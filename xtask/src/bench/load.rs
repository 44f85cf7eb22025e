//! The overhead of `flaz bench run` compared with fio: the same accesses with the same engine to the same file, in
//! turn.

use std::error::Error;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64};

use flaz_data::{DataSpec, Family, Generator, Level, Pool};
use flaz_load::medium::FileMedium;
use flaz_load::pass::{Engine, Pass};
use flaz_load::pattern::{Order, Pattern};
use flaz_load::source::Source;
use flaz_load::test::Direction;
use flaz_load::ticker::Ticker;
use flaz_load::writers;

use super::options::{BenchError, Options};
use super::row::{Row, Spread};

/// A compared test.
struct Case {
    what: &'static str,
    direction: Direction,
    order: Order,
    record_bytes: usize,
    depth: usize,
    /// Its name in fio.
    fio: &'static str,
}

const CASES: [Case; 2] = [
    Case {
        what: "bench run: random reads of 4 KiB, depth 32",
        direction: Direction::Read,
        order: Order::Shuffled,
        record_bytes: 4096,
        depth: 32,
        fio: "randread",
    },
    Case {
        what: "bench run: streaming writes of 1 MiB, depth 4",
        direction: Direction::Write,
        order: Order::Forward,
        record_bytes: 1 << 20,
        depth: 4,
        fio: "write",
    },
];

/// Size of the file in bytes.
const FILE_BYTES: u64 = 1 << 30;
const FILE_BYTES_QUICK: u64 = 256 << 20;
/// Minimum number of counted runs: a device has more noise than a processor.
const RUNS_MIN: usize = 7;

/// Bytes per second of `flaz bench run`.
fn ours(path: &Path, case: &Case, bytes: u64, pool: &Pool, seed: u64) -> Result<f64, BenchError> {
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let ticker = Ticker {
        done: &done,
        stop: &stop,
    };
    let pass = Pass {
        pattern: Pattern {
            order: case.order,
            records: bytes / case.record_bytes as u64,
            record_bytes: case.record_bytes,
            seed,
        },
        direction: case.direction,
        stream: false,
        engine: Engine::IoUring { depth: case.depth },
        source: Some(Source {
            pool,
            base: 0,
            numbered: false,
        }),
        flush_timed: true,
    };
    let moved = writers::run(&[FileMedium::open(path, true)?], &[pass], &ticker)?;
    Ok(moved.bytes_per_s())
}

/// Bytes per second of fio, from its run time, which includes the final flush.
fn theirs(path: &Path, case: &Case, bytes: u64, seed: u64) -> Result<f64, BenchError> {
    let mut fio = Command::new("fio");
    fio.args([
        "--name=peer",
        "--ioengine=io_uring",
        "--direct=1",
        "--output-format=json",
    ])
    .arg("--allow_file_create=0")
    .arg("--overwrite=1")
    .arg(format!("--filename={}", path.display()))
    .arg(format!("--size={bytes}"))
    .arg(format!("--rw={}", case.fio))
    .arg(format!("--bs={}", case.record_bytes))
    .arg(format!("--iodepth={}", case.depth))
    .arg(format!("--randseed={seed}"));
    if case.direction == Direction::Write {
        fio.arg("--end_fsync=1");
    }
    let output = fio.output().map_err(|error| format!("fio: {error}"))?;
    if !output.status.success() {
        return Err(format!("fio: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let side = match case.direction {
        Direction::Read => "read",
        Direction::Write => "write",
    };
    let job = &report["jobs"][0][side];
    let number = |field: &str| job[field].as_f64().filter(|value| *value > 0.0);
    let (moved, milliseconds) = number("io_bytes")
        .zip(number("runtime"))
        .ok_or("fio's report has no bytes or no run time")?;
    Ok(moved / (milliseconds / 1e3))
}

/// Rows of `flaz bench run` compared with fio.
///
/// # Errors
/// The file cannot be created.
pub fn rows(options: &Options, runs: usize, bar: &indicatif::ProgressBar) -> Result<Vec<Row>, BenchError> {
    let bytes = if options.quick {
        FILE_BYTES_QUICK
    } else {
        FILE_BYTES
    };
    let runs = if options.quick { runs } else { runs.max(RUNS_MIN) };
    let folder = match &options.dir {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let path = folder.path().join("load");
    let spec = DataSpec::new(Family::Run, Level::new(50.0)?);
    let (pool, _) = Pool::fill(Generator::new(spec)?, 64 << 20, NonZeroUsize::MIN)?;
    let file = File::create(&path)?;
    for offset in (0..bytes).step_by(1 << 20) {
        file.write_all_at(pool.record(offset, 1 << 20), offset)?;
    }
    file.sync_all()?;
    let mut rows = Vec::new();
    for case in CASES {
        let reached = measured(&path, &case, bytes, &pool, runs, bar).map_err(|error| error.to_string());
        rows.push(Row {
            what: case.what.into(),
            peer: "fio, io_uring, same file".into(),
            budget: "0.97 / 1.00",
            reached,
            unit: "x",
        });
    }
    Ok(rows)
}

fn measured(
    path: &Path,
    case: &Case,
    bytes: u64,
    pool: &Pool,
    runs: usize,
    bar: &indicatif::ProgressBar,
) -> Result<Spread, Box<dyn Error>> {
    // One run of each that is not counted: code, and blocks that are written for the first time.
    ours(path, case, bytes, pool, 0)?;
    theirs(path, case, bytes, 0)?;
    let (mut us, mut fio) = (Vec::new(), Vec::new());
    for run in 0..runs {
        bar.set_message(format!("{}, run {} of {runs}", case.what, run + 1));
        let seed = run as u64 + 1;
        // The order alternates, because each affects the device's cache for the next.
        if run % 2 == 0 {
            us.push(ours(path, case, bytes, pool, seed)?);
            fio.push(theirs(path, case, bytes, seed)?);
        } else {
            fio.push(theirs(path, case, bytes, seed)?);
            us.push(ours(path, case, bytes, pool, seed)?);
        }
    }
    Spread::of_ratios(&us, &fio).ok_or_else(|| "no runs".into())
}
