//! Random writes over NBD in each mode, in turn: what a write costs.

use super::nbd::{Files, Measured, measure};
use super::options::{BenchError, Options};
use super::row::Row;
use super::server::Server;
use super::write_back::{row, writes};
use crate::program::program;

/// Size of the origins; below the dirty limit of the caches.
const ORIGIN_MIB: u64 = 256;
const CACHE_MIB: u64 = 1024;
const MODES: [&str; 3] = ["pass-through", "write-through", "write-back"];

/// Writes per second, processor time and latency, for each mode.
///
/// # Errors
/// The files or flaz itself cannot be created.
pub fn rows(options: &Options, runs: usize, bar: &indicatif::ProgressBar) -> Result<Vec<Row>, BenchError> {
    let seconds = if options.quick { 1.0 } else { 2.0 };
    let program = program()?;
    let files = Files::new(options)?;
    files.random(&MODES.map(|mode| format!("{mode}.origin")), ORIGIN_MIB)?;
    let serve = |mode: &&str| {
        let more = ["--mode", mode, "--dirty-limit", "50"];
        Server::flaz_with(&program, files.path(), mode, "auto", CACHE_MIB, &more)
    };
    let servers = MODES.iter().map(serve).collect::<Result<Vec<_>, _>>()?;
    let mut measured: [Vec<Measured>; MODES.len()] = Default::default();
    for run in 0..runs {
        bar.set_message(format!("writes in each mode, run {} of {runs}", run + 1));
        for turn in 0..MODES.len() {
            let mode = (run + turn) % MODES.len();
            measured[mode].push(measure(
                &servers[mode],
                seconds,
                "write",
                &writes("--iodepth=16"),
            )?);
        }
    }
    let mut rows = Vec::new();
    for (mode, measured) in MODES.iter().zip(&measured) {
        let of = |figure: fn(&Measured) -> f64| -> Vec<f64> { measured.iter().map(figure).collect() };
        let first = format!("random writes of 4 KiB, depth 16, {mode}");
        let thousands = of(|it| it.operations_per_s / 1000.0);
        rows.extend([
            row(first, "-", "-", &thousands, " thousand/s"),
            row(
                "the same, server CPU an operation".into(),
                "-",
                "-",
                &of(|it| it.cpu_us),
                " us",
            ),
            row(
                "the same, mean latency".into(),
                "-",
                "-",
                &of(|it| it.latency_us / 1000.0),
                " ms",
            ),
        ]);
    }
    Ok(rows)
}
