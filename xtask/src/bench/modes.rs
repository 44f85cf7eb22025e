//! Random writes over NBD in each mode, one after another: what a write costs.

use super::nbd::{Files, Measured, measure};
use super::options::{BenchError, Options};
use super::row::{Row, Spread};
use super::server::Server;
use crate::program::program;

/// Size of the origins; below the dirty limit of the caches.
const ORIGIN_MIB: u64 = 256;
const CACHE_MIB: u64 = 1024;
const MODES: [&str; 3] = ["pass-through", "write-through", "write-back"];
const ARGS: [&str; 6] = [
    "--rw=randwrite",
    "--bs=4k",
    "--iodepth=16",
    "--norandommap",
    "--randrepeat=0",
    "--buffer_compress_percentage=50",
];

/// Writes per second, processor time and latency, for each mode.
///
/// # Errors
/// The files or flaz itself cannot be created.
pub fn rows(options: &Options, runs: usize, bar: &indicatif::ProgressBar) -> Result<Vec<Row>, BenchError> {
    let seconds = if options.quick { 1.0 } else { 2.0 };
    let program = program()?;
    let files = Files::new(options)?;
    let mut data = vec![0; (ORIGIN_MIB << 20) as usize];
    flaz_sim::Rng::new(1).fill(&mut data);
    let serve = |mode: &&str| {
        std::fs::write(files.path().join(format!("{mode}.origin")), &data)?;
        let more = ["--mode", mode, "--dirty-limit", "50"];
        Server::flaz_with(&program, files.path(), mode, "auto", CACHE_MIB, &more)
    };
    let servers = MODES.iter().map(serve).collect::<Result<Vec<_>, _>>()?;
    let mut measured: [Vec<Measured>; MODES.len()] = Default::default();
    for run in 0..runs {
        bar.set_message(format!("writes in each mode, run {} of {runs}", run + 1));
        for turn in 0..MODES.len() {
            let mode = (run + turn) % MODES.len();
            measured[mode].push(measure(&servers[mode], seconds, "write", &ARGS)?);
        }
    }
    let mut rows = Vec::new();
    for (mode, measured) in MODES.iter().zip(&measured) {
        let row = |what: &str, figure: fn(&Measured) -> f64, unit| Row {
            what: what.into(),
            peer: "-".into(),
            budget: "-",
            reached: Spread::of(&measured.iter().map(figure).collect::<Vec<_>>())
                .ok_or_else(|| "no runs".into()),
            unit,
        };
        let first = format!("random writes of 4 KiB, depth 16, {mode}");
        rows.extend([
            row(&first, |it| it.operations_per_s / 1000.0, " thousand/s"),
            row("the same, server CPU an operation", |it| it.cpu_us, " us"),
            row("the same, mean latency", |it| it.latency_us / 1000.0, " ms"),
        ]);
    }
    Ok(rows)
}
