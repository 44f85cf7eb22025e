//! `flaz lab`: converts options to calls of `flaz_lab` and `flaz_replay`, and prints the results.

mod evaluate;
mod record;
mod replay;
mod serve;
mod ssd;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use flaz_lab::ssd::{Description, DescriptionError, description_file};

use crate::commands::output;
use crate::commands::output_file::OutputFile;
use crate::error::Failure;

/// `flaz lab`.
#[derive(Args, Debug)]
#[command(after_help = "\
Find the size of a cache from a trace, and model machines that publications describe, to check their figures and to test tools on \
them. docs/lab-replay.md and docs/lab.md have the methods.

Examples:
  flaz lab replay disk.blkparse --cache 64G,128G   find the cache size that a workload needs
  flaz lab ssd                                     rates, write amplification and life of an SSD that compresses
  flaz lab serve --device sf1222 --nbd unix:/tmp/ssd.sock
  flaz lab record disk.img --nbd unix:/tmp/disk.sock -o load.flaztrace.zst
  flaz lab evaluate load.flaztrace.zst             compare a compressed cache with an uncompressed one")]
pub struct LabArgs {
    /// Command
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand, Debug)]
enum LabCommand {
    /// Find the cache size that a workload needs: replay a block trace with several cache sizes, codecs and policies
    Replay(replay::ReplayArgs),
    /// Compare a compressed cache with an uncompressed one on modelled machines: replay recorded or generated workloads
    Evaluate(evaluate::EvaluateArgs),
    /// Record the requests of a workload, with the compressed sizes of their blocks, to replay them on modelled machines
    Record(record::RecordArgs),
    /// Compute rates, write amplification, life and cost of an SSD that compresses, by the data written to it
    Ssd(ssd::SsdArgs),
    /// Serve an SSD that compresses, with its contents and its speed, over NBD
    Serve(serve::ServeArgs),
}

/// Which SSD.
#[derive(Args, Debug)]
struct DeviceArgs {
    /// A preset, or a TOML file with a description, whose name ends in .toml
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "sf1222", visible_alias = "preset",
        help = format!("A preset ({}), or a TOML file with a description", description_file::preset_names()))]
    device: PathBuf,
}

impl DeviceArgs {
    fn find(&self) -> Result<Description, Failure> {
        description_file::find(&self.device).map_err(|error| match error {
            DescriptionError::Unknown(_) => Failure::Usage(error.to_string()),
            error => Failure::Other {
                what: "lab",
                source: error.into(),
            },
        })
    }
}

/// Runs `flaz lab`.
///
/// # Errors
/// A file or an option is invalid, or the device cannot be served.
pub fn run(args: &LabArgs) -> Result<(), Failure> {
    match &args.command {
        LabCommand::Replay(args) => replay::run(args),
        LabCommand::Evaluate(args) => evaluate::run(args),
        LabCommand::Record(args) => record::run(args),
        LabCommand::Ssd(args) => ssd::run(args),
        LabCommand::Serve(args) => serve::run(args),
    }
}

/// Prints a report, and writes its page, if one is wanted. What was computed is shown even if the page cannot be written.
fn present<R: serde::Serialize>(
    report: &R,
    page: Option<OutputFile>,
    json: bool,
    html: impl FnOnce(&R, &str) -> String,
    text: impl FnOnce(&R, bool) -> String,
) -> Result<(), Failure> {
    let printed = match json {
        true => output::print_json(report, true),
        false => output::print(&text(report, output::in_colour())),
    };
    if let Some(file) = page {
        file.write(html(report, env!("CARGO_PKG_VERSION")).as_bytes())?;
    }
    printed
}
