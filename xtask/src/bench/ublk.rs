//! Hits over ublk, compared with the SSD itself and with a kernel NBD device, on the virtual machine of `make vm`.
//!
//! The processor of this machine is emulated and 10 to 20 times slower than a real one, but its disks are not. So each
//! figure is measured twice: with the disk as it is, and with slower reads, which is closer to the proportions of real
//! hardware. The delay is 1 ms, which device mapper rounds up to some milliseconds.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::options::{BenchError, Options};
use super::row::{Row, Spread};
use crate::program::program;

const SCRIPT: &str = "tests/vm/figures/hits.sh";
const DEPTHS: [u64; 2] = [1, 32];
const TIMEOUT: &str = "1800";

/// Rows of the virtual machine; without it, they say why.
///
/// # Errors
/// flaz cannot be built.
pub fn rows(options: &Options, runs: usize, bar: &indicatif::ProgressBar) -> Result<Vec<Row>, BenchError> {
    let program = program()?;
    let mut rows = Vec::new();
    for (read_delay_ms, ssd) in [(0, "raw SSD"), (1, "raw SSD, slowed")] {
        bar.set_message(format!("hits over ublk on the virtual machine: {ssd}"));
        let lines = measure(&program, read_delay_ms, runs, options.quick);
        for depth in DEPTHS {
            rows.extend(compare(ssd, depth, &lines));
        }
    }
    Ok(rows)
}

/// The lines that the script prints.
fn measure(program: &Path, read_delay_ms: u32, rounds: usize, quick: bool) -> Result<Vec<Value>, String> {
    let seconds = if quick { 1 } else { 3 };
    let output = Command::new("tools/vm")
        .args(["run", "--timeout", TIMEOUT, "--origin", "256M", "--cache", "512M"])
        .args(["--env", &format!("READ_DELAY_MS={read_delay_ms}")])
        .args(["--env", &format!("ROUNDS={rounds}")])
        .args(["--env", &format!("SECONDS_EACH={seconds}")])
        .arg(SCRIPT)
        .arg(program)
        .output()
        .map_err(|error| format!("tools/vm: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().chain(printed.lines()).last();
        return Err(last.unwrap_or("tools/vm failed").to_owned());
    }
    Ok(printed
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

fn compare(ssd: &str, depth: u64, lines: &Result<Vec<Value>, String>) -> Vec<Row> {
    let figures = |over: &str, figure: &str| -> Vec<f64> {
        let measured = lines.as_deref().unwrap_or_default();
        measured
            .iter()
            .filter(|line| line["over"] == over && line["depth"] == depth)
            .filter_map(|line| line[figure].as_f64())
            .collect()
    };
    let row = |what: String, peer: &str, budget, unit, reached: Option<Spread>| Row {
        what,
        peer: peer.to_owned(),
        budget,
        unit,
        reached: reached.ok_or_else(|| lines.as_ref().err().map_or("no runs", String::as_str).to_owned()),
    };
    let ratio =
        |figure: &str, peer: &str| Spread::of_ratios(&figures("ublk", figure), &figures(peer, figure));
    let added = |peer: &str| {
        let pairs = figures("ublk", "latency_us")
            .into_iter()
            .zip(figures(peer, "latency_us"));
        Spread::of(&pairs.map(|(ublk, peer)| ublk - peer).collect::<Vec<_>>())
    };
    let what = format!("ublk 4 KiB random-read hits, depth {depth}, IOPS");
    let nbd = if ssd == "raw SSD" {
        "kernel NBD"
    } else {
        "kernel NBD, SSD slowed"
    };
    let budget = if depth == 32 { "0.8 / 0.95" } else { "-" };
    let mut rows = vec![
        row(what.clone(), ssd, budget, "x", ratio("operations_per_s", "raw")),
        row(what, nbd, "-", "x", ratio("operations_per_s", "nbd")),
    ];
    if depth == 1 {
        let what = "the same, added latency (emulated processor)".to_owned();
        rows.push(row(what, ssd, "-", " us", added("raw")));
    }
    rows.push(row(
        "the same, server CPU an operation".to_owned(),
        nbd,
        "-",
        "x",
        ratio("server_cpu_us", "nbd"),
    ));
    rows.push(row(
        "the same, CPU of the machine an operation".to_owned(),
        nbd,
        "-",
        "x",
        ratio("machine_cpu_us", "nbd"),
    ));
    rows
}
