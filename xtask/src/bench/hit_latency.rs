//! What a hit on real data takes with `auto`, above LZ4, at depth 1 while misses go on: such a client leaves processors idle, so `auto`
//! compresses beside it.

use super::nbd::{Files, in_turn, measure};
use super::options::{BenchError, Options};
use super::real_data::real_data;
use super::row::{Row, Spread};
use super::server::Server;
use crate::program::program;

/// The cache holds so small a part of the data.
const CACHE_PART: u64 = 12;

/// Time and number of hits since the start.
#[derive(Clone, Copy)]
struct Hits {
    seconds: f64,
    count: f64,
}

impl Hits {
    fn of(server: &Server) -> Result<Self, BenchError> {
        let status = server.status()?;
        let hits = status["live"]["operations"]
            .as_array()
            .and_then(|all| all.iter().find(|one| one["operation"] == "read-hit"))
            .ok_or("the status has no operation read-hit")?;
        let counts = hits["latency_counts"].as_array();
        let counts = counts.ok_or("read-hit has no latencies")?;
        Ok(Self {
            seconds: (hits["latency_sum_s"].as_f64()).ok_or("read-hit has no sum of latencies")?,
            count: counts.iter().filter_map(serde_json::Value::as_f64).sum(),
        })
    }

    /// Mean latency since `earlier`, in microseconds. `None`: there were no hits.
    fn mean_us_since(self, earlier: Self) -> Option<f64> {
        let count = self.count - earlier.count;
        (count > 0.0).then(|| (self.seconds - earlier.seconds) * 1e6 / count)
    }
}

/// The difference of the mean latencies, after 25 s of larger reads.
///
/// # Errors
/// The files or flaz itself cannot be created.
pub fn rows(options: &Options, runs: usize, bar: &indicatif::ProgressBar) -> Result<Vec<Row>, BenchError> {
    let (seconds, warm_s) = if options.quick { (1.0, 5.0) } else { (3.0, 25.0) };
    let program = program()?;
    let files = Files::new(options)?;
    let data = real_data((options.data_mib << 20) as usize);
    for name in ["latency-auto", "latency-lz4"] {
        std::fs::write(files.path().join(format!("{name}.origin")), &data)?;
    }
    drop(data);
    let serve = |name: &str, codec: &str| {
        let origin = ["--emulate-origin", "network-volume"];
        let cache_mib = (options.data_mib / CACHE_PART).max(16);
        Server::flaz_with(&program, files.path(), name, codec, cache_mib, &origin)
    };
    let (auto, lz4) = (serve("latency-auto", "auto")?, serve("latency-lz4", "lz4")?);
    let zipf = ["--rw=randread", "--random_distribution=zipf:1.1"];
    for server in [&auto, &lz4] {
        bar.set_message("hit latency of auto and LZ4: larger reads first");
        measure(
            server,
            warm_s,
            "read",
            &[&zipf[..], &["--bs=16k", "--iodepth=4"]].concat(),
        )?;
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for run in 0..runs {
        bar.set_message(format!("hit latency of auto and LZ4, run {} of {runs}", run + 1));
        for (server, means) in in_turn(run, (&auto, &mut ours), (&lz4, &mut theirs)) {
            let before = Hits::of(server)?;
            measure(
                server,
                seconds,
                "read",
                &[&zipf[..], &["--bs=4k", "--iodepth=1"]].concat(),
            )?;
            let mean = Hits::of(server)?.mean_us_since(before);
            means.push(mean.ok_or("no read was a hit")?);
        }
    }
    let above: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| a - b).collect();
    let row = |what: &str, peer: &str, budget, figures: &[f64]| Row {
        what: what.into(),
        peer: peer.into(),
        budget,
        reached: Spread::of(figures).ok_or_else(|| "no runs".into()),
        unit: " us",
    };
    Ok(vec![
        row(
            "auto, real data, 4 KiB Zipf, depth 1: a hit takes more",
            "flaz --codec lz4",
            "at most 15 us",
            &above,
        ),
        row("the same, a hit with LZ4", "-", "-", &theirs),
    ])
}
