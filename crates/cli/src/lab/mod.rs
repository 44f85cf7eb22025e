//! `flaz lab`: converts options to calls, and prints the results.

mod replay;

use clap::{Args, Subcommand};

use crate::error::Failure;

/// `flaz lab`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  flaz lab replay disk.blkparse --cache 64G,128G,256G")]
pub struct LabArgs {
    /// Command
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand, Debug)]
enum LabCommand {
    /// Find out how large a cache should be: replay a block trace with caches of several sizes, codecs and policies
    Replay(replay::ReplayArgs),
}

/// Runs `flaz lab`.
///
/// # Errors
/// A file or an option is invalid.
pub fn run(args: &LabArgs) -> Result<(), Failure> {
    match &args.command {
        LabCommand::Replay(args) => replay::run(args),
    }
}
