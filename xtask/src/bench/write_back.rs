//! Write-back compared with pass-through, over NBD: writes per second, processor time, latency, packing; and what an emulated hard
//! disk behind it lets through.

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
/// Required latency at depth 1 and blocks per extent at depth 16.
const DEPTH_1: &str = "at most 1.15";
const BLOCKS_AN_EXTENT: &str = "6";
/// Seconds of writes before an emulated disk: the dirty limit is reached after about half of them.
const DISK_SECONDS: f64 = 8.0;

/// The arguments of fio for random writes of 4 KiB that halve.
fn writes(depth: &str) -> [&str; 5] {
    [
        "--rw=randwrite",
        "--bs=4k",
        "--norandommap",
        "--buffer_compress_percentage=50",
        depth,
    ]
}

/// What a server counts of early extents, and of its codec.
#[derive(Clone, Copy)]
struct Counts {
    extents: f64,
    blocks: f64,
    bytes: f64,
    codec_in: f64,
    codec_out: f64,
}

fn counts(server: &Server) -> Result<Counts, BenchError> {
    let status = server.status()?;
    let of = |part: &str, name: &str| status["live"][part][name].as_f64().unwrap_or(0.0);
    Ok(Counts {
        extents: of("write_back", "acknowledged_extents"),
        blocks: of("write_back", "acknowledged_blocks"),
        bytes: of("write_back", "acknowledged_bytes"),
        codec_in: of("codec", "in_bytes"),
        codec_out: of("codec", "out_bytes"),
    })
}

/// Blocks per extent, and what packing leaves of the codec's ratio.
fn packed(before: Counts, after: Counts) -> Option<(f64, f64)> {
    let blocks = after.blocks - before.blocks;
    let codec = (after.codec_in - before.codec_in) / (after.codec_out - before.codec_out);
    let reached = blocks * 4096.0 / (after.bytes - before.bytes);
    let extents = after.extents - before.extents;
    (blocks > 0.0 && codec.is_finite()).then_some((blocks / extents, reached / codec))
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

fn row(what: String, peer: &str, budget: &'static str, figures: &[f64], unit: &'static str) -> Row {
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
    let mut data = vec![0; (ORIGIN_MIB << 20) as usize];
    flaz_sim::Rng::new(1).fill(&mut data);
    for name in ["back.origin", "past.origin", "raw"] {
        std::fs::write(files.path().join(name), &data)?;
    }
    drop(data);
    let serve =
        |name: &str, more: &[&str]| Server::flaz_with(&program, files.path(), name, "lz4", CACHE_MIB, more);
    let back = serve("back", &["--mode", "write-back", "--dirty-limit", "50"])?;
    let past = serve("past", &["--mode", "pass-through"])?;
    let mut rows = Vec::new();
    let raw = files.path().join("raw");
    let (mut added, mut left) = (Vec::new(), Vec::new());
    for run in 0..runs {
        bar.set_message(format!("write-back at depth 1, run {} of {runs}", run + 1));
        let before = counts(&back)?;
        let ours = measure(&back, seconds, "write", &writes("--iodepth=1"))?;
        left.extend(packed(before, counts(&back)?).map(|(_, left)| left));
        added.push(ours.latency_us / raw_latency(&raw, seconds)?);
    }
    let what = "write-back, random writes of 4 KiB, depth 1, latency".to_owned();
    rows.push(row(what, "fio, io_uring, a file there", DEPTH_1, &added, "x"));
    rows.push(row(
        "the same, packing".into(),
        "the codec's ratio",
        "0.65",
        &left,
        "x",
    ));
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
    rows.extend(before_a_disk(&program, &files, runs, seconds, bar)?);
    Ok(rows)
}

/// Writes before an emulated hard disk: until the dirty limit, and from there on; and the longest wait of a reader.
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
        for name in ["disk", "fast", "slow"] {
            let origin = std::fs::File::create(files.path().join(format!("{name}.origin")))?;
            origin.set_len(ORIGIN_MIB << 20)?;
            // Of the run before.
            let _ = std::fs::remove_file(files.path().join(format!("{name}.cache")));
        }
        let serve =
            |name: &str, more: &[&str]| Server::flaz_with(program, files.path(), name, "lz4", 512, more);
        let back = ["--mode", "write-back", "--emulate-origin", "hdd"];
        let disk = serve("disk", &back)?;
        let fast = serve("fast", &back[..2])?;
        let slow = serve("slow", &["--mode", "pass-through", "--emulate-origin", "hdd"])?;
        let ours = measure(&disk, seconds, "write", &writes("--iodepth=16"))?;
        let theirs = measure(&fast, seconds, "write", &writes("--iodepth=16"))?;
        free.push(ours.operations_per_s / theirs.operations_per_s);
        // Fill it up to the limit.
        measure(&disk, DISK_SECONDS, "write", &writes("--iodepth=64"))?;
        let ours = measure(&disk, DISK_SECONDS, "write", &writes("--iodepth=16"))?;
        let sorted = ["--rw=write:12k", "--bs=4k", "--iodepth=16"];
        let theirs = measure(&slow, DISK_SECONDS, "write", &sorted)?;
        full.push(ours.operations_per_s / theirs.operations_per_s);
        let reader = [
            "--rw=randrw",
            "--rwmixread=50",
            "--bs=4k",
            "--iodepth=1",
            "--size=16m",
        ];
        let mixed = measure(&disk, DISK_SECONDS, "read", &reader)?;
        stalls.push(mixed.latency_us_max / 1000.0);
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
            "the same, at the dirty limit, IOPS".into(),
            "sorted writes, pass-through",
            "1.0",
            &full,
            "x",
        ),
        row(
            "the same, longest wait of a reader of cached blocks".into(),
            "-",
            "under 100",
            &stalls,
            " ms",
        ),
    ])
}
