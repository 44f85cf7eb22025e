//! Studies of the policies on known traces: options for [`flaz_replay::studies`].

use std::path::PathBuf;

use clap::Subcommand;
use flaz_codec::CodecChoice;
use flaz_engine::policy::PolicyKind;
use flaz_replay::studies::{self, StudyError, advice, budget, policies, scale, table};

/// Options of the studies.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(subcommand)]
    study: Study,
    /// Directory with arc-P3.lis.zst, arc-P6.lis.zst and cloudphysics.vscsi.zst
    #[arg(long, value_name = "DIR", global = true, default_value = ".")]
    traces: PathBuf,
    /// Only this trace
    #[arg(long, value_name = "NAME", global = true)]
    only: Option<String>,
    /// Another trace, in any format of `flaz lab replay`
    #[arg(long, value_name = "FILE", global = true)]
    also: Vec<PathBuf>,
    /// Admission and replacement policy
    #[arg(long, default_value = "s3-fifo", global = true)]
    policy: PolicyKind,
}

#[derive(Debug, Subcommand)]
enum Study {
    /// Replay through the engine, and compare with the design's table
    Table {
        /// Codec. The table is of lz4
        #[arg(long, default_value = "lz4")]
        codec: CodecChoice,
        /// Blocks have the contents of this file, one after another, instead of generated data
        #[arg(long, value_name = "FILE")]
        contents: Option<PathBuf>,
    },
    /// Compare write budgets, in caches of a tenth of the blocks
    Budgets,
    /// Compare what the advisor estimates for other capacities, and other codecs, with replays
    Advice {
        /// Codec in use
        #[arg(long, default_value = "lz4")]
        codec: CodecChoice,
        /// Blocks have the contents of this file, one after another, instead of generated data; other codecs are compared, too
        #[arg(long, value_name = "FILE")]
        contents: Option<PathBuf>,
    },
    /// Compare replays at full size with samples of a quarter and a sixteenth, and caches that are as much smaller
    Scale,
    /// Compare models of the policies, by block and by region, with the design's table
    Policies,
}

/// Runs a study.
///
/// # Errors
/// A trace cannot be read, or a hit ratio is too far below the table.
pub fn run(options: &Options) -> Result<(), StudyError> {
    let selection = studies::Options {
        traces: options.traces.clone(),
        only: options.only.clone(),
        also: options.also.clone(),
        policy: options.policy,
    };
    match &options.study {
        Study::Table { codec, contents } => table::run(&selection, *codec, contents.as_deref()),
        Study::Budgets => budget::run(&selection),
        Study::Advice { codec, contents } => advice::run(&selection, *codec, contents.as_deref()),
        Study::Scale => scale::run(&selection),
        Study::Policies => policies::run(&options.traces),
    }
}
