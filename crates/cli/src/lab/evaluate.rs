//! `flaz lab evaluate`: the paper's evaluation, in virtual time.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use flaz_codec::CodecChoice;
use flaz_evaluate::evaluation::{CACHE_BYTES_MIN, Options, SHARES, evaluate, share_min};
use flaz_evaluate::machine::Machine;
use flaz_evaluate::processor::Speeds;
use flaz_evaluate::real_time::here::here;
use flaz_evaluate::workload::generated::Generated;
use flaz_evaluate::workload::{Workload, WorkloadError};
use flaz_evaluate::{html, text};
use indicatif::{ProgressBar, ProgressStyle};

use super::present;
use crate::commands::output_file::OutputFiles;
use crate::commands::study::{THREADS, cores};
use crate::error::Failure;
use crate::number::whole;
use crate::size::HumanBytes;

/// Most recordings, and most sizes and codecs.
const LOADS_MAX: usize = 32;
const SHARES_MAX: usize = 8;
const CODECS_MAX: usize = 4;
/// Allowed shares in percent.
const SHARE_PERCENT_MIN: f64 = 0.1;
const SHARE_PERCENT_MAX: f64 = 200.0;
/// Most cores.
const CORES: std::ops::RangeInclusive<u32> = 1..=256;
/// Largest `--scale`.
const SCALE: std::ops::RangeInclusive<u64> = 1..=64;

/// `flaz lab evaluate`.
#[derive(Args, Debug)]
#[command(after_help = "\
Replays workloads through the engine of the cache, in virtual time, on the machines of the FlaZ paper: 1 disk and 1 SSD, or 8 disks and \
2 or 4 SSDs, striped. Compressed caches are compared with an uncompressed one of the same size, and with the disks alone: time, hits and \
processor time by the size of the cache; the size of extents, splitting of requests, and throughput while reclaiming. The report has \
the paper's values, where they are known, and goals next to the results. The same workloads and options give the same figures on every \
machine, except with --cpu here.

Each workload is replayed five times; the fifth pass is measured. Processor time is computed from the number of blocks that codecs compress \
and restore, and from a table of times; --cpu here measures these times on this machine. --real-time also runs the shortest compressed \
cell of each workload that has hits and reclaims, with the same engine on the same modelled devices, over NBD, and compares the times.

Without recordings, the workloads are small recordings of PostMark (one and four instances) and of TPC-H on PostgreSQL (queries 3, 11 and \
14), and one that is generated with the operation mix of SPECsfs2008 and the sizes of SPEC SFS 3.0. `flaz lab record` records others. All \
cells take some minutes. \
docs/lab-evaluation.md has the method and the results.

Examples:
  flaz lab evaluate --html evaluation.html
  flaz lab evaluate --machine 8D4S --shares 10,20,40 --codec lz4,auto,zstd:3 --cpu modern
  flaz lab evaluate postmark.flaztrace.zst --machine 1D1S --json
  flaz lab evaluate --real-time --json                       # does virtual time agree with real time here?
  flaz lab evaluate --cpu xeon-2ghz-2009 --codec lzo,zlib    # the paper's codecs")]
pub struct EvaluateArgs {
    /// Recordings of `flaz lab record` [default: PostMark, TPC-H, and a file server]
    #[arg(value_name = "RECORDING")]
    recordings: Vec<PathBuf>,
    /// Machines, separated by commas: 1D1S, 8D2S, 8D4S [default: all]
    #[arg(long, value_name = "MACHINES", value_delimiter = ',', value_parser = machine)]
    machine: Vec<Machine>,
    /// Sizes of the cache in percent of the distinct blocks of a workload, separated by commas; a cache has at least 4 MiB [default:
    /// 12.5,25,50, or more where that is less than 4 MiB]
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = share)]
    shares: Vec<f64>,
    /// Codecs to compare with none, separated by commas
    #[arg(long, value_name = "CODECS", value_delimiter = ',', default_value = "lz4,auto",
        help = format!("Codecs to compare with none, separated by commas: {}", CodecChoice::choices()))]
    codec: Vec<CodecChoice>,
    /// Processor: xeon-2ghz-2009, modern, or here, which measures that of this machine
    #[arg(long, value_name = "NAME", default_value = "xeon-2ghz-2009", value_parser = ["xeon-2ghz-2009", "modern", "here"])]
    cpu: String,
    /// Number of its cores
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole(CORES))]
    cores: u32,
    /// Divide the size of the generated workloads by N, from 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(SCALE))]
    scale: u64,
    /// Cells to simulate at the same time [default: one per core]
    #[arg(long, value_name = "N", value_parser = whole(THREADS))]
    threads: Option<NonZeroUsize>,
    /// Also run one cell of each workload in real time over NBD, and compare the times: up to a minute each, on an idle machine
    #[arg(long)]
    real_time: bool,
    /// Write a page with tables and charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `flaz lab evaluate`.
///
/// # Errors
/// A recording or an option is invalid, or the page cannot be written.
pub fn run(args: &EvaluateArgs) -> Result<(), Failure> {
    check(args)?;
    let page = args
        .html
        .as_deref()
        .map(|path| OutputFiles::beside(&args.recordings).take(path))
        .transpose()?;
    let failed = |error: WorkloadError| Failure::Other {
        what: "lab evaluate",
        source: error.into(),
    };
    let mut loads: Vec<Workload> = Vec::new();
    for path in &args.recordings {
        let load = Workload::read(path).map_err(failed)?;
        if loads.iter().any(|other| other.name() == load.name()) {
            return Err(Failure::Usage(format!(
                "{}: another recording has the same name, {}: rename one of them",
                path.display(),
                load.name()
            )));
        }
        loads.push(load);
    }
    if loads.is_empty() {
        loads = Workload::recorded().map_err(failed)?;
        loads.push(Generated::FileServer.workload(args.scale).map_err(failed)?);
    }
    for load in &loads {
        check_shares(&args.shares, load)?;
    }
    let or = |given: &[f64], usual: &[f64]| {
        if given.is_empty() {
            usual.to_vec()
        } else {
            given.to_vec()
        }
    };
    let options = Options {
        loads,
        stream: Generated::Stream.workload(args.scale).map_err(failed)?,
        machines: match args.machine[..] {
            [] => Machine::ALL.to_vec(),
            _ => args.machine.clone(),
        },
        shares: or(&args.shares, &SHARES),
        codecs: args.codec.clone(),
        speeds: match args.cpu.as_str() {
            "here" => here().map_err(|error| Failure::Other {
                what: "lab evaluate",
                source: error.into(),
            })?,
            "modern" => Speeds::MODERN,
            _ => Speeds::xeon_2009(),
        },
        cores: args.cores,
        threads: args.threads.unwrap_or_else(cores).get(),
        real_time: args.real_time,
    };
    let bar = bar();
    let report = evaluate(&options, &|done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = report.map_err(|error| Failure::Other {
        what: "lab evaluate",
        source: error.into(),
    })?;
    present(&report, page, args.json, html::page, text::page)
}

fn check(args: &EvaluateArgs) -> Result<(), Failure> {
    for (name, count, most) in [
        ("recordings", args.recordings.len(), LOADS_MAX),
        ("--shares", args.shares.len(), SHARES_MAX),
        ("--codec", args.codec.len(), CODECS_MAX),
    ] {
        if count > most {
            return Err(Failure::Usage(format!(
                "{name}: expected at most {most}, found {count}"
            )));
        }
    }
    if args.codec.contains(&CodecChoice::NONE) {
        return Err(Failure::Usage(
            "--codec: expected codecs to compare with none, found none".to_owned(),
        ));
    }
    Ok(())
}

/// Shares that the user chose are not changed: a share that is too small for a cache is refused.
fn check_shares(shares: &[f64], load: &Workload) -> Result<(), Failure> {
    let least = share_min(load);
    let Some(small) = shares.iter().find(|share| **share < least) else {
        return Ok(());
    };
    let (name, footprint) = (load.name(), HumanBytes(load.footprint_bytes()));
    // Rounded up, so that the value is accepted.
    let percent = (least * 1000.0).ceil() / 10.0;
    let advice = match percent <= SHARE_PERCENT_MAX {
        true => format!("expected at least {percent:.1}"),
        false => "omit --shares, or choose a larger workload".to_owned(),
    };
    Err(Failure::Usage(format!(
        "--shares: {} % of {name}, which has {footprint} of distinct blocks, is less than the smallest cache, {}: {advice}",
        (small * 10_000.0).round() / 100.0,
        HumanBytes(CACHE_BYTES_MIN)
    )))
}

/// Shown only on a terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) =
        ProgressStyle::with_template("{elapsed:>4} {bar:28.cyan/dim} {pos} of {len} cells, {eta} left")
    {
        bar.set_style(style.progress_chars("━━─"));
    }
    bar
}

fn machine(text: &str) -> Result<Machine, String> {
    let found = Machine::ALL
        .into_iter()
        .find(|machine| machine.name.eq_ignore_ascii_case(text));
    found.ok_or_else(|| "expected 1D1S, 8D2S or 8D4S".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').trim().parse::<f64>().ok();
    let known = number.filter(|percent| (SHARE_PERCENT_MIN..=SHARE_PERCENT_MAX).contains(percent));
    known
        .map(|percent| percent / 100.0)
        .ok_or_else(|| format!("expected percent from {SHARE_PERCENT_MIN} to {SHARE_PERCENT_MAX}"))
}

#[cfg(test)]
mod tests {
    use flaz_trace::recording::{Recorded, Sizes};
    use flaz_trace::{Op, Request};

    use super::*;

    #[test]
    fn options_are_parsed() {
        assert_eq!(machine("8d4s").map(|it| it.name), Ok("8D4S"));
        assert_eq!((share("12.5"), share("50%")), (Ok(0.125), Ok(0.5)));
        for wrong in ["", "0", "-5", "nan", "1000", "x"] {
            assert!(share(wrong).is_err() && machine(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_below_the_smallest_cache_are_refused_with_the_least() {
        let load = |bytes: u64| {
            let request = |number: u64| Recorded {
                request: Request {
                    at_us: None,
                    op: Op::Read,
                    device: 0,
                    offset: number << 20,
                    len: 1 << 20,
                },
                depth: 1,
                think_us: 0,
                sizes: vec![Sizes::default(); 256],
            };
            Workload::new("load", (0..bytes >> 20).map(request)).expect("a workload")
        };
        let refused = |share: f64, bytes: u64| {
            let refused = check_shares(&[0.5, share], &load(bytes));
            refused.map_err(|error| error.to_string())
        };
        let least = "--shares: 12.5 % of load, which has 12.0 MiB of distinct blocks, is less than the smallest cache, 4.00 MiB: \
                     expected at least 33.4";
        assert_eq!(refused(0.125, 12 << 20), Err(least.to_owned()));
        assert_eq!(refused(0.334, 12 << 20), Ok(()));
        let too_small = refused(2.0, 1 << 20).unwrap_err();
        assert!(
            too_small.ends_with("omit --shares, or choose a larger workload"),
            "{too_small}"
        );
    }
}
