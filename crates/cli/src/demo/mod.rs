//! `flaz demo`: what a compressed cache is worth, on data of this machine, in a minute, without root.
//!
//! Real files are laid on an emulated hard disk. The same read-mostly requests of several clients then go
//! through a real NBD socket to three servers in turns: without a cache, with a cache that does not compress, and with
//! one that does, the SSD a quarter of the data. Every byte read is checked. The result is a table, a page
//! ([`page`]) and, on request, JSON ([`outcome`]).
//!
//! How to read it: [`dataset`] makes the image, [`workload`] the requests, [`clients`] send them over [`nbd`]
//! and check the answers with the [`oracle`], [`server`] drives the real program as child processes,
//! [`session`] puts these together.
//!
//! Invariants: everything made lies in one folder ([`scratch`]) that is gone at the end, whatever the end;
//! no child outlives the program ([`interrupt`]); a run with wrong data never makes a report.

mod clients;
mod dataset;
mod error;
mod interrupt;
#[cfg(test)]
mod nbdkit;
mod options;
mod oracle;
mod outcome;
mod page;
mod progress;
mod random;
mod sampler;
mod scratch;
mod server;
mod session;
mod table;
mod workload;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use error::DemoError;
pub use options::DemoArgs;

use crate::commands::output_file::OutputFiles;
use crate::error::Failure;
use dataset::DataSet;
use interrupt::{Interrupt, SignalWatch};
use options::Plan;
use outcome::{OUTCOME_SCHEMA, Outcome, Parameters, Variant};
use progress::Progress;
use scratch::Scratch;
use server::Flaz;
use session::Session;
use workload::Workload;

/// What the emulated disk is called. Its figures are those of `--emulate-origin hdd`.
const EMULATED_DISK: &str = "an emulated hard disk (12.6 ms per random access, 100 MB/s)";
/// A random access to it, with the transfer of some KiB.
const DISK_ACCESS_US: f64 = 12_700.0;
/// Room for logs, sockets and metadata beside image, disks and caches.
const SLACK_BYTES: u64 = 16 << 20;
/// About how long it takes to collect the files.
const COLLECT: Duration = Duration::from_secs(3);

/// Runs the demo and shows the result.
///
/// # Errors
/// Anything that kept it from its end; what it had made is removed before this returns.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    let plan = args.plan()?;
    let interrupt = Interrupt::default();
    let signals = SignalWatch::start(&interrupt)?;
    // A place that cannot be written to is found now, not after a minute.
    let mut files = OutputFiles::default();
    let mut take = |path: &Option<PathBuf>| path.as_deref().map(|path| files.take(path)).transpose();
    let (html_file, json_file) = (take(&plan.html)?, take(&plan.json)?);
    let outcome = measure(&plan, &interrupt);
    drop(signals);
    let outcome = outcome?;
    let json =
        serde_json::to_string_pretty(&outcome).map_err(|error| DemoError::Status(error.to_string()))? + "\n";
    if let Some(file) = html_file {
        file.write(page::html(&outcome).as_bytes())?;
    }
    if let Some(file) = json_file {
        file.write(json.as_bytes())?;
    }
    let text = if plan.json_to_stdout {
        json
    } else {
        table::text(&outcome, crate::commands::output::in_colour())
    };
    let mut stdout = std::io::stdout().lock();
    let shown = stdout.write_all(text.as_bytes()).and_then(|()| match &plan.html {
        Some(path) if !plan.json_to_stdout => writeln!(stdout, "\nCharts: {}", path.display()),
        _ => Ok(()),
    });
    match shown.and_then(|()| stdout.flush()) {
        // A reader that has seen enough, such as `head`, is no failure.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::output(error)),
        _ => Ok(()),
    }
}

fn measure(plan: &Plan, interrupt: &Interrupt) -> Result<Outcome, DemoError> {
    let begin = Instant::now();
    let program = std::env::current_exe().map_err(DemoError::file("find", "the program itself"))?;
    let flaz = Flaz::new(program, interrupt);
    let variants = Variant::ALL.len() as u64;
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
