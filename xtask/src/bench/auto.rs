//! `auto` beside no compression on real data: one workload after the other on the same caches, because what `auto` did
//! for one workload affects the next.

use super::nbd::{Figure, Files, beside_none, in_turn, measure};
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

/// The first one gives `auto` blocks of zstd and groups.
const SEQUENCE: [Workload; 8] = [
    Workload {
        what: "Zipf reads of 16 KiB, depth 16",
        direction: "read",
        hot: false,
        fio: &[
            "--rw=randread",
            "--bs=16k",
            "--iodepth=16",
            "--random_distribution=zipf:1.1",
        ],
    },
    Workload {
        what: "hits of 4 KiB, depth 16",
        direction: "read",
        hot: true,
        fio: &["--rw=randread", "--bs=4k", "--iodepth=16"],
    },
    Workload {
        what: "hits of 128 KiB, depth 4",
        direction: "read",
        hot: true,
        fio: &["--rw=randread", "--bs=128k", "--iodepth=4"],
    },
    Workload {
        what: "hits of 16 KiB, depth 16",
        direction: "read",
        hot: true,
        fio: &["--rw=randread", "--bs=16k", "--iodepth=16"],
    },
    Workload {
        what: "sequential hits of 128 KiB, depth 4",
        direction: "read",
        hot: true,
        fio: &["--rw=read", "--bs=128k", "--iodepth=4"],
    },
    Workload {
        what: "Zipf reads of 4 KiB, depth 16",
        direction: "read",
        hot: false,
        fio: &[
            "--rw=randread",
            "--bs=4k",
            "--iodepth=16",
            "--random_distribution=zipf:1.1",
        ],
    },
    Workload {
        what: "uniform reads of 16 KiB, depth 16",
        direction: "read",
        hot: false,
        fio: &["--rw=randread", "--bs=16k", "--iodepth=16"],
    },
    // Last, because it replaces the data.
    Workload {
        what: "write-through, writes of 4 KiB, depth 16",
        direction: "write",
        hot: true,
        fio: &[
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=16",
            "--buffer_compress_percentage=50",
        ],
    },
];

/// Requests per second and processor time of each workload, compared with no compression: in its first seconds, and
/// after them.
///
/// # Errors
/// The files or flaz itself cannot be created.
pub fn rows(options: &Options, runs: usize, bar: &indicatif::ProgressBar) -> Result<Vec<Row>, BenchError> {
    let (seconds, first_s, warm_s) = if options.quick {
        (1.0, 3.0, 5.0)
    } else {
        (1.5, 15.0, 25.0)
    };
    let program = program()?;
    let files = Files::new(options)?;
    let data = real_data((options.data_mib << 20) as usize);
    for name in ["sequence-auto", "sequence-none"] {
        std::fs::write(files.path().join(format!("{name}.origin")), &data)?;
    }
    drop(data);
    let cache_mib = (options.data_mib / 4).max(32);
    let serve = |name: &str, codec: &str| {
        let origin = ["--emulate-origin", "network-volume"];
        Server::flaz_with(&program, files.path(), name, codec, cache_mib, &origin)
    };
    let (auto, none) = (serve("sequence-auto", "auto")?, serve("sequence-none", "none")?);
    let hot = format!("--size={}k", cache_mib * 1024 * HOT_PERCENT / 100);
    let mut rows = Vec::new();
    for (at, workload) in SEQUENCE.iter().enumerate() {
        let mut fio = workload.fio.to_vec();
        fio.push(if workload.hot { &hot } else { "--size=100%" });
        let run_for = |server: &Server, seconds: f64| measure(server, seconds, workload.direction, &fio);
        bar.set_message(format!("auto and none: {}, first seconds", workload.what));
        let first_s = if at == 0 { warm_s } else { first_s };
        let first = [run_for(&auto, first_s)?, run_for(&none, first_s)?];
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        for run in 0..runs {
            bar.set_message(format!(
                "auto and none: {}, run {} of {runs}",
                workload.what,
                run + 1
            ));
            for (server, figures) in in_turn(run, (&auto, &mut ours), (&none, &mut plain)) {
                figures.push(run_for(server, seconds)?);
            }
        }
        let requests: Figure = |measured| measured.operations_per_s;
        rows.push(beside_none(
            format!("auto, real data, {}, requests/s", workload.what),
            "0.97",
            requests,
            &ours,
            &plain,
        ));
        rows.push(beside_none(
            "the same, server CPU an operation".into(),
            "-",
            |measured| measured.cpu_us,
            &ours,
            &plain,
        ));
        rows.push(beside_none(
            format!("the same, requests/s in the first {first_s:.0} s"),
            "-",
            requests,
            &first[..1],
            &first[1..],
        ));
    }
    Ok(rows)
}
