//! `flaz lab record`: a load, to be replayed on modelled machines.

use std::path::PathBuf;

use clap::Args;
use flaz_lab::record::{RecordReport, record};
use flaz_nbd::{NbdAddress, Shutdown};

use super::serve::{local, stop_on_signals};
use crate::commands::output;
use crate::commands::output_file::OutputFiles;
use crate::error::Failure;
use crate::safety::{self, Access, OriginAdvice};
use crate::size::{HumanBytes, counted};

/// `flaz lab record`.
#[derive(Args, Debug)]
#[command(after_help = "\
Serves ORIGIN, a device or file, over NBD until SIGTERM or SIGINT, without a cache, and records all requests: kind, offset, length, \
requests in flight, computing time of the client, and the compressed size of each block with lz4 and zstd. Contents are not recorded. \
`flaz lab evaluate` replays recordings on modelled machines; `flaz lab replay` reads them like any other trace.

The recording is compressed with zstd, and takes 5 to 20 bytes for a request of one block. `record` opens ORIGIN exclusively; writes of \
clients change it. Sizes are measured before the reply, so clients see a slower device. docs/lab-evaluation.md has the format.

Examples:
  truncate -s 8G disk.img
  flaz lab record disk.img --nbd unix:/tmp/disk.sock --output load.flaztrace.zst
  nbdfuse /tmp/disk 'nbd+unix:///?socket=/tmp/disk.sock'   # the device as a file, for losetup and mkfs
  flaz lab evaluate load.flaztrace.zst")]
pub struct RecordArgs {
    /// The device or file to serve
    #[arg(value_name = "ORIGIN")]
    origin: PathBuf,
    /// Address for NBD clients: unix:PATH (mode 0600)
    #[arg(long, value_name = "ADDRESS")]
    nbd: NbdAddress,
    /// Write the recording to this file, whose name should end in .flaztrace.zst
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Print a summary of the recording as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `flaz lab record`.
///
/// # Errors
/// The origin is in use, the address or the file is invalid, or the recording cannot be written.
pub fn run(args: &RecordArgs) -> Result<(), Failure> {
    local(&args.nbd)?;
    let output = OutputFiles::beside([&args.origin]).take(&args.output)?;
    let advice = OriginAdvice {
        missing: "expected the device or file to record",
        is_cache: "record its origin, or serve it and record with another tool",
    };
    safety::origin(&args.origin, false, &advice)?;
    let claim = safety::claim_existing(&args.origin, Access::ReadWrite)?;
    let origin = claim
        .file()
        .try_clone()
        .map_err(Failure::system(format!("opening {}", args.origin.display())))?;
    let shutdown = Shutdown::new();
    stop_on_signals(shutdown.clone())?;
    let output = output.open()?;
    let file = output
        .handle()
        .map_err(Failure::system(format!("opening {}", args.output.display())))?;
    let started = format!("recording {} at {}\n", args.origin.display(), args.nbd.uri(""));
    let mut announced = Ok(());
    let report = record(origin, file, &args.nbd, &shutdown, || {
        if !args.json {
            announced = output::confirm(&started);
        }
    });
    drop(claim);
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            output.remove_made();
            return Err(Failure::Other {
                what: "lab record",
                source: error.into(),
            });
        }
    };
    announced?;
    match args.json {
        true => output::print_json(&report, true),
        false => output::print(&text(&report)),
    }
}

fn text(report: &RecordReport) -> String {
    let left: Vec<String> = (report.left_percent.iter())
        .map(|it| format!("{} {:.0} %", it.codec, it.percent))
        .collect();
    format!(
        "{} of {}, {} of {}, {} in {:.1} s; at most {} in flight; left by {}\n",
        counted(report.reads, "read", "reads"),
        HumanBytes(report.read_bytes),
        counted(report.writes, "write", "writes"),
        HumanBytes(report.write_bytes),
        counted(report.trims, "trim", "trims"),
        report.seconds,
        report.depth_max,
        left.join(", ")
    )
}
