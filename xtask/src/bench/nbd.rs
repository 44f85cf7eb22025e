//! Measurements over NBD: hits compared with nbdkit, filling and reclaiming, with and without compression.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::options::{BenchError, Options};
use super::real_data::real_data;
use super::row::{Row, Spread};
use super::server::Server;
use crate::program::program;

const QUEUE_DEPTHS: [u32; 4] = [1, 8, 32, 128];

/// Results of fio.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) operations_per_s: f64,
    pub(super) latency_us: f64,
    pub(super) latency_us_max: f64,
    pub(super) cpu_us: f64,
}

fn fio(server: &Server, seconds: f64, args: &[&str]) -> Result<serde_json::Value, BenchError> {
    let output = Command::new("fio")
        .args([
            "--name=bench",
            "--ioengine=nbd",
            "--output-format=json",
            "--time_based",
        ])
        .arg(format!("--uri=nbd+unix:///?socket={}", server.socket.display()))
        .arg(format!("--runtime={seconds}"))
        .args(args)
        .output()
        .map_err(|error| format!("fio: {error} (Debian package fio)"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let start = text
        .find('{')
        .ok_or_else(|| format!("fio: {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(serde_json::from_str(&text[start..])?)
}

fn random_reads(server: &Server, depth: u32, seconds: f64) -> Result<Measured, BenchError> {
    let depth = format!("--iodepth={depth}");
    measure(server, seconds, "read", &["--rw=randread", "--bs=4k", &depth])
}

/// Runs fio and returns its results for reads or writes.
pub(super) fn measure(
    server: &Server,
    seconds: f64,
    direction: &str,
    args: &[&str],
) -> Result<Measured, BenchError> {
    let cpu = server.cpu_seconds();
    let report = fio(server, seconds, args)?;
    let done = &report["jobs"][0][direction];
    let count = done["total_ios"].as_f64().unwrap_or(0.0);
    Ok(Measured {
        operations_per_s: done["iops"].as_f64().unwrap_or(0.0),
        latency_us_max: done["lat_ns"]["max"].as_f64().unwrap_or(0.0) / 1000.0,
        latency_us: done["lat_ns"]["mean"].as_f64().unwrap_or(0.0) / 1000.0,
        cpu_us: (server.cpu_seconds() - cpu) * 1e6 / count.max(1.0),
    })
}

/// Reads everything until all of it is cached.
fn warm(server: &Server, blocks: u64) -> Result<(), BenchError> {
    for _ in 0..100 {
        fio(server, 1.5, &["--rw=read", "--bs=64k", "--iodepth=4"])?;
        let held = server.status()?["live"]["space"]["cached_blocks"]
            .as_u64()
            .unwrap_or(0);
        if held >= blocks {
            return Ok(());
        }
    }
    Err("the cache did not store all blocks".into())
}

/// Drops the cached pages of a file, so that its next reads go to the device.
fn evict(path: &Path) {
    if std::fs::write("/proc/sys/vm/drop_caches", "3").is_err() {
        // Without root: request it for this file only. Large folios may stay, which favours the peer.
        let _ = Command::new("dd")
            .arg(format!("of={}", path.display()))
            .args([
                "oflag=nocache",
                "conv=notrunc,fdatasync",
                "count=0",
                "status=none",
            ])
            .status();
    }
}

/// A directory for the files of a part; removed with this.
pub(super) struct Files(tempfile::TempDir);

impl Files {
    pub(super) fn new(options: &Options) -> Result<Self, BenchError> {
        let parent = options.dir.clone().unwrap_or_else(|| PathBuf::from("target"));
        std::fs::create_dir_all(&parent)?;
        Ok(Self(
            tempfile::Builder::new()
                .prefix("flaz-bench-")
                .tempdir_in(parent)?,
        ))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Files with the same random data, of so many MiB.
    pub(super) fn random(&self, names: &[impl AsRef<Path>], mib: u64) -> Result<(), BenchError> {
        let mut data = vec![0; (mib << 20) as usize];
        flaz_sim::Rng::new(1).fill(&mut data);
        for name in names {
            std::fs::write(self.path().join(name), &data)?;
        }
        Ok(())
    }
}

/// Rows that need servers and clients.
///
/// # Errors
/// The files or flaz itself cannot be created.
pub fn rows(options: &Options, runs: usize, bar: &indicatif::ProgressBar) -> Result<Vec<Row>, BenchError> {
    let seconds = if options.quick { 1.0 } else { 2.0 };
    let program = program()?;
    let files = Files::new(options)?;
    let data = real_data((options.data_mib << 20) as usize);
    for name in [
        "hits-lz4",
        "hits-none",
        "fill-lz4",
        "fill-none",
        "fill-past",
        "peer",
    ] {
        std::fs::write(files.path().join(format!("{name}.origin")), &data)?;
    }
    let blocks = data.len() as u64 / 4096;
    drop(data);
    let mut rows = hits(&program, &files, options, runs, seconds, blocks, bar)?;
    rows.extend(random_hits(&program, &files, options, runs, seconds, bar)?);
    rows.extend(fills(&program, &files, options, runs, seconds, bar)?);
    rows.extend(intents(&program, &files, runs, seconds, bar)?);
    rows.extend(packing(&program, &files, runs, seconds, bar)?);
    Ok(rows)
}

fn hits(
    program: &Path,
    files: &Files,
    options: &Options,
    runs: usize,
    seconds: f64,
    blocks: u64,
    bar: &indicatif::ProgressBar,
) -> Result<Vec<Row>, BenchError> {
    let cache_mib = options.data_mib * 3 / 2;
    let lz4 = Server::flaz(program, files.path(), "hits-lz4", "lz4", cache_mib)?;
    let none = Server::flaz(program, files.path(), "hits-none", "none", cache_mib)?;
    let peer_file = files.path().join("peer.origin");
    let peer = Server::nbdkit(files.path(), &peer_file);
    bar.set_message("warming up the caches");
    warm(&lz4, blocks)?;
    warm(&none, blocks)?;
    let mut rows = Vec::new();
    for depth in QUEUE_DEPTHS {
        let (mut ours, mut plain, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for run in 0..runs {
            bar.set_message(format!("hits at depth {depth}, run {} of {runs}", run + 1));
            for (server, figures) in in_turn(run, (&lz4, &mut ours), (&none, &mut plain)) {
                figures.push(random_reads(server, depth, seconds)?);
            }
            if let Ok(peer) = &peer {
                evict(&peer_file);
                theirs.push(random_reads(peer, depth, seconds)?);
            }
        }
        let iops = |all: &[Measured]| all.iter().map(|m| m.operations_per_s).collect::<Vec<_>>();
        let cpu = |all: &[Measured]| all.iter().map(|m| m.cpu_us).collect::<Vec<_>>();
        let missing = || {
            peer.as_ref()
                .err()
                .map_or("no runs".to_owned(), ToString::to_string)
        };
        let what = format!("NBD 4 KiB random-read hits, depth {depth}, IOPS");
        let budget = if depth == 32 { "1.0 / 1.5" } else { "-" };
        let reached = Spread::of_ratios(&iops(&ours), &iops(&theirs)).ok_or_else(missing);
        rows.push(Row {
            what: what.clone(),
            peer: "nbdkit file".into(),
            budget,
            reached,
            unit: "x",
        });
        if depth == 1 {
            let added: Vec<f64> = ours
                .iter()
                .zip(&theirs)
                .map(|(a, b)| a.latency_us - b.latency_us)
                .collect();
            let reached = Spread::of(&added).ok_or_else(missing);
            let what = "the same, added latency".to_owned();
            rows.push(Row {
                what,
                peer: "nbdkit file".into(),
                budget: "under 10 us / 0",
                reached,
                unit: " us",
            });
        }
        let reached = Spread::of_ratios(&cpu(&ours), &cpu(&theirs)).ok_or_else(missing);
        let cpu_what = "the same, server CPU an operation".to_owned();
        rows.push(Row {
            what: cpu_what,
            peer: "nbdkit file".into(),
            budget: "-",
            reached,
            unit: "x",
        });
        let figures: [(String, &str, Figure); 2] = [
            (what, "1.0", |measured| measured.operations_per_s),
            ("the same, server CPU an operation".to_owned(), "-", |measured| {
                measured.cpu_us
            }),
        ];
        for (what, budget, figure) in figures {
            rows.push(beside_none(what, budget, figure, &ours, &plain));
        }
    }
    Ok(rows)
}

/// The order alternates between runs, because each affects the device and the machine for the next.
pub(super) fn in_turn<T>(run: usize, one: T, other: T) -> [T; 2] {
    if run.is_multiple_of(2) {
        [one, other]
    } else {
        [other, one]
    }
}

/// One value of a measurement.
pub(super) type Figure = fn(&Measured) -> f64;

/// A row of one value compared with the same without compression.
pub(super) fn beside_none(
    what: String,
    budget: &'static str,
    figure: Figure,
    ours: &[Measured],
    plain: &[Measured],
) -> Row {
    let all = |of: &[Measured]| of.iter().map(figure).collect::<Vec<_>>();
    Row {
        what,
        peer: "flaz --codec none".into(),
        budget,
        reached: Spread::of_ratios(&all(ours), &all(plain)).ok_or_else(|| "no runs".into()),
        unit: "x",
    }
}

/// Hits of incompressible data, compared with no compression.
fn random_hits(
    program: &Path,
    files: &Files,
    options: &Options,
    runs: usize,
    seconds: f64,
    bar: &indicatif::ProgressBar,
) -> Result<Vec<Row>, BenchError> {
    let mut data = vec![0; (options.data_mib << 20) as usize];
    flaz_sim::Rng::new(1).fill(&mut data);
    for name in ["random-lz4", "random-none"] {
        std::fs::write(files.path().join(format!("{name}.origin")), &data)?;
    }
    let blocks = data.len() as u64 / 4096;
    drop(data);
    let cache_mib = options.data_mib * 3 / 2;
    let lz4 = Server::flaz(program, files.path(), "random-lz4", "lz4", cache_mib)?;
    let none = Server::flaz(program, files.path(), "random-none", "none", cache_mib)?;
    bar.set_message("warming up the caches with random data");
    warm(&lz4, blocks)?;
    warm(&none, blocks)?;
    let mut rows = Vec::new();
    for depth in [1, 32] {
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        for run in 0..runs {
            bar.set_message(format!(
                "hits of random data at depth {depth}, run {} of {runs}",
                run + 1
            ));
            for (server, figures) in in_turn(run, (&lz4, &mut ours), (&none, &mut plain)) {
                figures.push(random_reads(server, depth, seconds)?);
            }
        }
        let what = format!("4 KiB random-read hits of random data, depth {depth}, IOPS");
        let figures: [(String, &str, Figure); 2] = [
            (what, "0.97", |measured| measured.operations_per_s),
            ("the same, server CPU an operation".to_owned(), "-", |measured| {
                measured.cpu_us
            }),
        ];
        for (what, budget, figure) in figures {
            rows.push(beside_none(what, budget, figure, &ours, &plain));
        }
    }
    Ok(rows)
}

/// The cost of intents for writers: random writes over a large range, where nearly every write is the first to its
/// stripe, and over a small one.
fn intents(
    program: &Path,
    files: &Files,
    runs: usize,
    seconds: f64,
    bar: &indicatif::ProgressBar,
) -> Result<Vec<Row>, BenchError> {
    const LARGE: u64 = 64 << 30;
    for name in ["intents-warm", "intents-cold"] {
        let origin = std::fs::File::create(files.path().join(format!("{name}.origin")))?;
        origin.set_len(LARGE)?;
    }
    let serve = |name: &str, state: &str| {
        Server::flaz_with(program, files.path(), name, "lz4", 256, &["--after-crash", state])
    };
    let (warm, cold) = (serve("intents-warm", "warm")?, serve("intents-cold", "cold")?);
    let mut rows = Vec::new();
    for (what, range) in [("over 64 GiB", "--size=100%"), ("over 16 MiB", "--size=16m")] {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for run in 0..runs {
            bar.set_message(format!("intents, writes {what}, run {} of {runs}", run + 1));
            for (server, figures) in in_turn(run, (&warm, &mut with), (&cold, &mut without)) {
                let args = [
                    "--rw=randwrite",
                    "--bs=4k",
                    "--iodepth=32",
                    "--norandommap",
                    range,
                ];
                let report = fio(server, seconds, &args)?;
                figures.push(report["jobs"][0]["write"]["iops"].as_f64().unwrap_or(0.0));
            }
        }
        rows.push(Row {
            what: format!("4 KiB random writes {what}, depth 32, with intents, IOPS"),
            peer: "--after-crash cold".into(),
            budget: "0.95",
            reached: Spread::of_ratios(&with, &without).ok_or_else(|| "no runs".into()),
            unit: "x",
        });
    }
    Ok(rows)
}

/// Bytes that the cache device writes in write-back if a client flushes each write of 4 KiB, alone and with other
/// clients: each flush closes an extent.
fn packing(
    program: &Path,
    files: &Files,
    runs: usize,
    seconds: f64,
    bar: &indicatif::ProgressBar,
) -> Result<Vec<Row>, BenchError> {
    const ORIGIN: u64 = 256 << 20;
    std::fs::File::create(files.path().join("packing.origin"))?.set_len(ORIGIN)?;
    let options = ["--mode", "write-back", "--dirty-limit", "50%"];
    let server = Server::flaz_with(program, files.path(), "packing", "lz4", 256, &options)?;
    let counts = || -> Result<[f64; 2], BenchError> {
        let status = server.status()?;
        let count = |name| status["live"]["write_back"][name].as_f64().unwrap_or(0.0);
        Ok([count("acknowledged_bytes"), count("acknowledged_blocks")])
    };
    let mut rows = Vec::new();
    for (clients, jobs) in [("one client", "--numjobs=1"), ("16 clients", "--numjobs=16")] {
        let mut bytes = Vec::new();
        for run in 0..runs {
            bar.set_message(format!(
                "packing of flushed writes, {clients}, run {} of {runs}",
                run + 1
            ));
            let before = counts()?;
            let args = [
                "--rw=randwrite",
                "--bs=4k",
                "--iodepth=1",
                "--fsync=1",
                "--refill_buffers",
                "--buffer_compress_percentage=50",
                "--group_reporting",
                jobs,
            ];
            fio(&server, seconds, &args)?;
            let after = counts()?;
            let blocks = after[1] - before[1];
            if blocks > 0.0 {
                bytes.push((after[0] - before[0]) / blocks);
            }
        }
        rows.push(Row {
            what: format!("write-back, 4 KiB that halves, each flushed, {clients}: bytes a block on the SSD"),
            peer: "-".into(),
            budget: "below 65536",
            reached: Spread::of(&bytes).ok_or_else(|| "no runs".into()),
            unit: " B",
        });
    }
    Ok(rows)
}

/// Random writes over four times the cache size: throughput and processor time compared with no compression, on real
/// and on random data, and the slowest second during reclaim.
fn fills(
    program: &Path,
    files: &Files,
    options: &Options,
    runs: usize,
    seconds: f64,
    bar: &indicatif::ProgressBar,
) -> Result<Vec<Row>, BenchError> {
    let cache_mib = (options.data_mib / 4).max(32);
    let lz4 = Server::flaz(program, files.path(), "fill-lz4", "lz4", cache_mib)?;
    let none = Server::flaz(program, files.path(), "fill-none", "none", cache_mib)?;
    let past = ["--mode", "pass-through"];
    let past = Server::flaz_with(program, files.path(), "fill-past", "lz4", cache_mib, &past)?;
    let mut rows = Vec::new();
    for (what, size, compress_percent) in [
        ("data that compresses 2:1, 64 KiB", "--bs=64k", 50),
        ("random data, 64 KiB", "--bs=64k", 0),
        ("random data, 4 KiB", "--bs=4k", 0),
    ] {
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        for run in 0..runs {
            bar.set_message(format!("fill with {what}, run {} of {runs}", run + 1));
            for (server, figures) in in_turn(run, (&lz4, &mut ours), (&none, &mut plain)) {
                figures.push(random_writes(server, seconds, size, compress_percent)?);
            }
        }
        let budget = if compress_percent == 0 { "0.97" } else { "1.0" };
        let figures: [(String, &str, Figure); 2] = [
            (format!("fill with {what}, IOPS"), budget, |measured| {
                measured.operations_per_s
            }),
            ("the same, server CPU an operation".to_owned(), "-", |measured| {
                measured.cpu_us
            }),
        ];
        for (what, budget, figure) in figures {
            rows.push(beside_none(what, budget, figure, &ours, &plain));
        }
    }
    let (mut worst, mut worst_plain, mut worst_past) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs {
        bar.set_message(format!(
            "worst second while reclaiming, run {} of {runs}",
            run + 1
        ));
        let mut turns = [
            (&lz4, &mut worst),
            (&none, &mut worst_plain),
            (&past, &mut worst_past),
        ];
        turns.rotate_left(run % 3);
        for (server, worst) in turns {
            worst.extend(worst_second(server, files, seconds.max(1.0) * 5.0)?);
        }
    }
    let reclaimed = lz4.status()?["live"]["reclaim"]["regions"].as_u64().unwrap_or(0);
    rows.push(Row {
        what: format!("worst second while reclaiming ({reclaimed} regions)"),
        peer: "the mean".into(),
        budget: "0.8 / 0.95",
        reached: Spread::of(&worst).ok_or_else(|| "no runs".into()),
        unit: "x",
    });
    // The last variant reclaims nothing: it shows the noise of the machine.
    for (peer, other) in [
        ("flaz --codec none", &worst_plain),
        ("flaz in pass-through", &worst_past),
    ] {
        rows.push(Row {
            what: "the same".into(),
            peer: peer.into(),
            budget: "-",
            reached: Spread::of_ratios(&worst, other).ok_or_else(|| "no runs".into()),
            unit: "x",
        });
    }
    Ok(rows)
}

/// fio options for random writes of data with this percentage of savings.
fn writes_of(size: &str, compress_percent: u32) -> [String; 5] {
    [
        "--rw=randwrite".into(),
        "--iodepth=8".into(),
        "--refill_buffers".into(),
        size.into(),
        format!("--buffer_compress_percentage={compress_percent}"),
    ]
}

fn random_writes(
    server: &Server,
    seconds: f64,
    size: &str,
    compress_percent: u32,
) -> Result<Measured, BenchError> {
    let args = writes_of(size, compress_percent);
    measure(server, seconds, "write", &args.each_ref().map(String::as_str))
}

/// Slowest second of random writes relative to their mean; `None` if there were no writes.
fn worst_second(server: &Server, files: &Files, seconds: f64) -> Result<Option<f64>, BenchError> {
    let log = format!("--write_bw_log={}", files.path().join("fill").display());
    let args = writes_of("--bs=64k", 50);
    let mut args = args.each_ref().map(String::as_str).to_vec();
    args.extend(["--log_avg_msec=1000", &log]);
    fio(server, seconds, &args)?;
    let text = std::fs::read_to_string(files.path().join("fill_bw.1.log"))?;
    let figures: Vec<f64> = text
        .lines()
        .filter_map(|line| line.split(',').nth(1)?.trim().parse().ok())
        .collect();
    let mean = figures.iter().sum::<f64>() / figures.len().max(1) as f64;
    Ok(figures.iter().copied().reduce(f64::min).map(|least| least / mean))
}
