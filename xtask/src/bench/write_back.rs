//! Write-back compared with pass-through, over NBD: writes per second, processor time, latency, packing; and the speed before an
//! emulated hard disk.

use std::path::Path;
use std::process::Command;

use super::nbd::{Files, Measured, in_turn, measure};
use super::options::{BenchError, Options};
use super::row::{Row, Spread};
use super::server::Server;
use crate::program::program;

/// Size of the origins and of the range that is written: it stays below the dirty limit.
const ORIGIN_MIB: u64 = 256;
const CACHE_MIB: u64 = 2048;
const DEPTHS: [(u32, &str, &str); 2] = [(16, "0.9", "at most 2"), (64, "0.9", "at most 2")];
/// Required latency at depth 1, beside the write of the device, and blocks per extent.
const DEPTH_1: &str = "at most 1.15";
const BLOCKS_AN_EXTENT: &str = "6";
/// Size of the origins and caches for an emulated disk. A quarter of the cache may be dirty: it is not full after the seconds that
/// are measured below the limit, but after those that follow.
const DISK_ORIGIN_MIB: u64 = 4096;
const DISK_CACHE_MIB: u64 = 1024;
const DISK_SECONDS: f64 = 8.0;

/// The arguments of fio for random writes of 4 KiB that halve. Each run writes other blocks: those of the run before are dirty already,
/// and writes to them do not wait at the dirty limit.
pub(super) fn writes(depth: &str) -> [&str; 6] {
    [
        "--rw=randwrite",
        "--bs=4k",
        "--norandommap",
        "--randrepeat=0",
        "--buffer_compress_percentage=50",
        depth,
    ]
}

/// What a server counts of early extents, of its codec, and of the time of writes: those of clients, and those of the cache device.
#[derive(Clone, Copy)]
struct Counts {
    extents: f64,
    blocks: f64,
    bytes: f64,
    codec_in: f64,
    codec_out: f64,
    writes: Times,
    device_writes: Times,
}

/// The number of operations and the sum of their times.
#[derive(Clone, Copy, Default)]
struct Times {
    count: f64,
    sum_s: f64,
}

impl Times {
    /// Mean time of the operations since `before`.
    fn mean_since(self, before: Self) -> f64 {
        (self.sum_s - before.sum_s) / (self.count - before.count)
    }
}

fn counts(server: &Server) -> Result<Counts, BenchError> {
    let status = server.status()?;
    let of = |part: &str, name: &str| status["live"][part][name].as_f64().unwrap_or(0.0);
    let times = |name: &str| {
        let all = status["live"]["operations"].as_array();
        let operation = all.and_then(|all| all.iter().find(|operation| operation["operation"] == name));
        operation.map_or(Times::default(), |operation| {
            let counts = operation["latency_counts"].as_array();
            Times {
                count: counts.map_or(0.0, |counts| {
                    counts.iter().filter_map(serde_json::Value::as_f64).sum()
                }),
                sum_s: operation["latency_sum_s"].as_f64().unwrap_or(0.0),
            }
        })
    };
    Ok(Counts {
        extents: of("write_back", "acknowledged_extents"),
        blocks: of("write_back", "acknowledged_blocks"),
        bytes: of("write_back", "acknowledged_bytes"),
        codec_in: of("codec", "in_bytes"),
        codec_out: of("codec", "out_bytes"),
        writes: times("write"),
        device_writes: times("cache-write"),
    })
}

/// Blocks per extent, and the part of the codec's ratio that is left after packing.
fn packed(before: Counts, after: Counts) -> Option<(f64, f64)> {
    let blocks = after.blocks - before.blocks;
    let codec = (after.codec_in - before.codec_in) / (after.codec_out - before.codec_out);
    let reached = blocks * 4096.0 / (after.bytes - before.bytes);
    let extents = after.extents - before.extents;
    (blocks > 0.0 && codec.is_finite()).then_some((blocks / extents, reached / codec))
}

/// Mean time of a client's write in the server, beside that of the cache device for it.
fn beside_device(before: Counts, after: Counts) -> Option<f64> {
    let ratio = after.writes.mean_since(before.writes) / after.device_writes.mean_since(before.device_writes);
    ratio.is_finite().then_some(ratio)
}

/// Mean latency in microseconds of direct writes of 4 KiB to a file on the cache device.
fn raw_latency(path: &Path, seconds: f64) -> Result<f64, BenchError> {
    let output = Command::new("fio")
        .args([
            "--name=raw",
            "--ioengine=io_uring",
            "--direct=1",
            "--output-format=json",
        ])
        .args([
            "--time_based",
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=1",
            "--norandommap",
        ])
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--size={ORIGIN_MIB}m"))
        .arg(format!("--runtime={seconds}"))
        .output()
        .map_err(|error| format!("fio: {error} (Debian package fio)"))?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let latency = report["jobs"][0]["write"]["lat_ns"]["mean"].as_f64();
    Ok(latency.ok_or("fio's report has no latency")? / 1000.0)
}

pub(super) fn row(
    what: String,
    peer: &str,
    budget: &'static str,
    figures: &[f64],
    unit: &'static str,
) -> Row {
    Row {
        what,
        peer: peer.into(),
        budget,
        reached: Spread::of(figures).ok_or_else(|| "no runs".into()),
        unit,
    }
}

fn ratios(figure: fn(&Measured) -> f64, ours: &[Measured], theirs: &[Measured]) -> Vec<f64> {
    let pairs = ours.iter().zip(theirs);
    pairs.map(|(a, b)| figure(a) / figure(b)).collect()
}

/// Rows of write-back.
///
/// # Errors
/// The files or flaz itself cannot be created.
pub fn rows(options: &Options, runs: usize, bar: &indicatif::ProgressBar) -> Result<Vec<Row>, BenchError> {
    let seconds = if options.quick { 1.0 } else { 2.0 };
    let program = program()?;
    let files = Files::new(options)?;
    files.random(&["back.origin", "past.origin", "raw"], ORIGIN_MIB)?;
    let serve =
        |name: &str, more: &[&str]| Server::flaz_with(&program, files.path(), name, "lz4", CACHE_MIB, more);
    let back = serve("back", &["--mode", "write-back", "--dirty-limit", "50"])?;
    let past = serve("past", &["--mode", "pass-through"])?;
    let mut rows = Vec::new();
    let raw = files.path().join("raw");
    rows.extend(alone(&back, &past, &raw, runs, seconds, bar)?);
    for (depth, rate, cpu) in DEPTHS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let (mut sizes, mut left) = (Vec::new(), Vec::new());
        let args = format!("--iodepth={depth}");
        for run in 0..runs {
            bar.set_message(format!("write-back at depth {depth}, run {} of {runs}", run + 1));
            let before = counts(&back)?;
            for (server, figures) in in_turn(run, (&back, &mut ours), (&past, &mut theirs)) {
                figures.push(measure(server, seconds, "write", &writes(&args))?);
            }
            if let Some((size, part)) = packed(before, counts(&back)?) {
                sizes.push(size);
                left.push(part);
            }
        }
        let peer = "flaz in pass-through";
        let what = format!("write-back, random writes of 4 KiB, depth {depth}, IOPS");
        let reached = ratios(|measured| measured.operations_per_s, &ours, &theirs);
        rows.push(row(what, peer, rate, &reached, "x"));
        let reached = ratios(|measured| measured.cpu_us, &ours, &theirs);
        rows.push(row(
            "the same, server CPU an operation".into(),
            peer,
            cpu,
            &reached,
            "x",
        ));
        rows.push(row(
            "the same, blocks an extent".into(),
            "-",
            BLOCKS_AN_EXTENT,
            &sizes,
            "",
        ));
        rows.push(row(
            "the same, packing".into(),
            "the codec's ratio",
            "0.9",
            &left,
            "x",
        ));
    }
    drop((back, past));
    rows.extend(before_a_disk(&program, &files, runs, seconds, bar)?);
    Ok(rows)
}

/// One writer at depth 1.
fn alone(
    back: &Server,
    past: &Server,
    raw: &Path,
    runs: usize,
    seconds: f64,
    bar: &indicatif::ProgressBar,
) -> Result<Vec<Row>, BenchError> {
    let args = writes("--iodepth=1");
    let (mut inside, mut beside_raw, mut left) = (Vec::new(), Vec::new(), Vec::new());
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for run in 0..runs {
        bar.set_message(format!("write-back at depth 1, run {} of {runs}", run + 1));
        let before = counts(back)?;
        for (server, figures) in in_turn(run, (back, &mut ours), (past, &mut theirs)) {
            figures.push(measure(server, seconds, "write", &args)?);
        }
        let after = counts(back)?;
        left.extend(packed(before, after).map(|(_, left)| left));
        inside.extend(beside_device(before, after));
        let latest = ours.last().map_or(0.0, |measured| measured.latency_us);
        beside_raw.push(latest / raw_latency(raw, seconds)?);
    }
    let what = "write-back, random writes of 4 KiB, depth 1, latency in the server".to_owned();
    let past = "flaz in pass-through";
    let latencies = ratios(|measured| measured.latency_us, &ours, &theirs);
    let cpu = ratios(|measured| measured.cpu_us, &ours, &theirs);
    let of_client = "the same, latency of the client";
    Ok(vec![
        row(what, "its writes to the device", DEPTH_1, &inside, "x"),
        row(of_client.into(), past, DEPTH_1, &latencies, "x"),
        row(
            of_client.into(),
            "fio, io_uring, a file there",
            "-",
            &beside_raw,
            "x",
        ),
        row(
            "the same, server CPU an operation".into(),
            past,
            "at most 2",
            &cpu,
            "x",
        ),
        row(
            "the same, packing".into(),
            "the codec's ratio",
            "0.74",
            &left,
            "x",
        ),
    ])
}

/// Writes before an emulated hard disk: below the dirty limit, and at it; and the longest read meanwhile.
fn before_a_disk(
    program: &Path,
    files: &Files,
    runs: usize,
    seconds: f64,
    bar: &indicatif::ProgressBar,
) -> Result<Vec<Row>, BenchError> {
    let (mut free, mut full, mut stalls) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs.min(3) {
        bar.set_message(format!("write-back before a disk, run {}", run + 1));
        // flaz refuses the origin of a lost cache with dirty blocks, so each run has a folder of its own.
        let dir = tempfile::tempdir_in(files.path())?;
        for name in ["disk", "fast", "slow"] {
            let origin = std::fs::File::create(dir.path().join(format!("{name}.origin")))?;
            origin.set_len(DISK_ORIGIN_MIB << 20)?;
        }
        let serve = |name: &str, more: &[&str]| {
            Server::flaz_with(program, dir.path(), name, "lz4", DISK_CACHE_MIB, more)
        };
        let back = ["--mode", "write-back", "--emulate-origin", "hdd"];
        let disk = serve("disk", &back)?;
        let fast = serve("fast", &back[..2])?;
        let ours = measure(&disk, seconds, "write", &writes("--iodepth=16"))?;
        let theirs = measure(&fast, seconds, "write", &writes("--iodepth=16"))?;
        free.push(ours.operations_per_s / theirs.operations_per_s);
        drop(fast);
        // Fill it up to the limit.
        measure(&disk, DISK_SECONDS, "write", &writes("--iodepth=64"))?;
        let reads = ["--rw=randread", "--bs=4k", "--iodepth=1", "--rate_iops=10"];
        let (ours, read) = std::thread::scope(|scope| {
            let reader = scope
                .spawn(|| measure(&disk, DISK_SECONDS, "read", &reads).map_err(|error| error.to_string()));
            let ours = measure(&disk, DISK_SECONDS, "write", &writes("--iodepth=16"));
            (ours, reader.join())
        });
        stalls.push(read.map_err(|_| "the reader panicked")??.latency_us_max / 1000.0);
        drop(disk);
        let slow = serve("slow", &["--mode", "pass-through", "--emulate-origin", "hdd"])?;
        let sorted = ["--rw=write:12k", "--bs=4k", "--iodepth=16"];
        let theirs = measure(&slow, DISK_SECONDS, "write", &sorted)?;
        full.push(ours?.operations_per_s / theirs.operations_per_s);
    }
    Ok(vec![
        row(
            "write-back before a hard disk, below the dirty limit, IOPS".into(),
            "before a fast origin",
            "0.9",
            &free,
            "x",
        ),
        row(
            "the same, at the dirty limit, with 10 reads a second, IOPS".into(),
            "sorted writes, pass-through",
            "0.8",
            &full,
            "x",
        ),
        row(
            "the same, longest of these reads".into(),
            "-",
            "under 100",
            &stalls,
            " ms",
        ),
    ])
}
