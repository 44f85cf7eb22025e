//! `flaz demo`: compares a compressed cache with an uncompressed one on data of this machine, in a minute, without
//! root.
//!
//! Real files are copied to an emulated hard disk. Several clients then send the same read-mostly requests through a
//! real NBD socket to four servers in turn: without a cache, with an uncompressed cache, with one that compresses by a fast
//! codec, and with `auto`. The size of the SSD is a quarter of the data. Every byte read is checked. The result is a table, a page and
//! optionally JSON ([`outcome`]).
//!
//! [`dataset`] creates the image and [`workload`] the requests; [`clients`] send them over NBD and check the replies
//! with the [`oracle`]; [`server`] runs the real program as child processes; [`session`] combines these.
//!
//! Invariants: all files are in one directory ([`scratch`]), which is removed at the end in any case; no child outlives
//! the program ([`interrupt`]); a run with wrong data never produces a report.

mod clients;
pub mod dataset;
mod error;
mod interrupt;
#[cfg(test)]
mod nbdkit;
mod oracle;
mod outcome;
mod page;
mod plan;
mod progress;
mod sampler;
mod scratch;
mod server;
mod session;
mod table;
mod workload;
mod zipf;

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use error::DemoError;
pub use interrupt::{Interrupt, SignalWatch};
pub use outcome::Outcome;
pub use page::html;
pub use plan::Plan;
pub use table::text;

use dataset::DataSet;
use outcome::{OUTCOME_SCHEMA, Parameters, Variant};
use progress::Progress;
use scratch::Scratch;
use server::Flaz;
use session::Session;
use workload::Workload;

/// Name of the emulated disk. Its speed is that of `--emulate-origin hdd`.
const EMULATED_DISK: &str = "an emulated hard disk (12.6 ms per random access, 100 MB/s)";
/// A random access to it, including the transfer of some KiB.
const DISK_ACCESS_US: f64 = 12_700.0;
/// Space for logs, sockets and metadata, in addition to image, disks and caches.
const SLACK_BYTES: u64 = 16 << 20;
/// Approximate time to collect the files.
const COLLECT: Duration = Duration::from_secs(3);

/// Runs the demo with `program`, the flaz executable, as its servers.
///
/// # Errors
/// Any failure; all files are removed before this returns.
pub fn measure(plan: &Plan, program: PathBuf, interrupt: &Interrupt) -> Result<Outcome, DemoError> {
    let begin = Instant::now();
    let flaz = Flaz::new(program, interrupt);
    let variants = Variant::of(&plan.codec).len() as u64;
    let needed =
        (1 + variants) * plan.data_bytes + variants * plan.ssd_bytes_for(plan.data_bytes) + SLACK_BYTES;
    let scratch = Scratch::create(plan.folder.as_deref(), needed, plan.keep, interrupt)?;
    let mut progress = Progress::start(COLLECT + Session::time_planned(plan.measured));
    if plan.keep {
        progress.note(&format!("Keeping all files in {}", scratch.path().display()));
    }

    progress.step(plan.collecting(), COLLECT);
    let image = scratch.path().join("image");
    let data = match &plan.folders {
        Some(folders) => DataSet::from_folders(folders, plan.data_bytes, &image, interrupt)?,
        None => DataSet::random(plan.data_bytes, plan.seed, &image, interrupt)?,
    };
    let workload = Workload::new(
        &data,
        plan.seed,
        plan.clients,
        plan.skew,
        plan.write_percent / 100.0,
    );
    let session = Session {
        flaz: &flaz,
        data: &data,
        workload: &workload,
        ssd_bytes: plan.ssd_bytes_for(data.summary.bytes),
        codec: &plan.codec,
        warmup_requests: plan.warmup_requests(data.summary.bytes),
        measured: plan.measured,
        interrupt,
    };
    let runs = session.run(&scratch, &mut progress)?;
    interrupt.check()?;
    let parameters = Parameters {
        ssd_bytes: session.ssd_bytes,
        codec: plan.codec.clone(),
        clients: plan.clients,
        skew: plan.skew,
        write_percent: plan.write_percent,
        seed: plan.seed,
        warmup_requests: session.warmup_requests,
        measured_s: plan.measured.as_secs_f64(),
        hottest_quarter_share: workload.share_of_hottest(0.25),
        emulated_disk: EMULATED_DISK.to_owned(),
        disk_access_us: DISK_ACCESS_US,
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
        machine: machine(),
        files_in_memory: scratch.in_memory(),
    };
    let mut outcome = Outcome {
        schema: OUTCOME_SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        parameters,
        data: data.summary.clone(),
        runs,
        total_s: begin.elapsed().as_secs_f64(),
        warnings: Vec::new(),
    };
    outcome.warn();
    Ok(outcome)
}

/// Kernel and processor, as far as they are known.
fn machine() -> String {
    let name = rustix::system::uname();
    let kernel = format!(
        "{} {}",
        name.sysname().to_string_lossy(),
        name.release().to_string_lossy()
    );
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| {
        line.strip_prefix("model name")?
            .split_once(": ")
            .map(|(_, name)| name)
    });
    match model {
        Some(model) => format!("{kernel}, {model}"),
        None => format!("{kernel}, {}", name.machine().to_string_lossy()),
    }
}
