//! `flaz study`: estimates what compression saves on existing data.

use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use flaz_codec::CodecSpec;
use flaz_data::study::{
    self, CODECS_MAX, StudyError, StudyOptions, WINDOWS_MAX, WINDOWS_MAX_DEFAULT, WITHIN_POINTS_DEFAULT,
};
use indicatif::{ProgressBar, ProgressStyle};

use super::output;
use super::output_file::OutputFiles;
use crate::control::path;
use crate::error::Failure;
use crate::number::{THREADS_MAX, whole};
use crate::size;

/// Allowed number of threads.
pub(crate) const THREADS: RangeInclusive<NonZeroUsize> =
    NonZeroUsize::MIN..=NonZeroUsize::new(THREADS_MAX as usize).unwrap();

/// `flaz study`.
#[derive(Args, Debug)]
#[command(after_help = "\
Reads windows of 1 MiB at random positions and compresses them in chunks of 4 KiB, 64 KiB and 1 MiB. All \
results have 95 % intervals. The sample grows until the intervals at 4 KiB are as narrow as --within, or \
until --samples windows were read. Data below 64 MiB, and all data with --exact, is read completely. Only \
the --distribution file is written. Symbolic links in directories are not followed. Duplicates are hard to \
estimate from a sample and have wide intervals; --exact counts them.

Examples:
  flaz study /dev/sdb                              a terabyte in minutes
  flaz study /home /srv --cache 64G                what 64 GiB would hold
  flaz study disk.img --exact --codec zstd:3 --codec zlib
  flaz study /var/lib/mysql --distribution d.json  for `flaz bench data`")]
pub struct StudyArgs {
    /// Files, directories, block devices or images
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Read all data, without sampling
    #[arg(long)]
    exact: bool,
    /// Codec to compress with
    #[arg(long, value_name = "CODEC",
        help = format!("Codec: {}. May be repeated. lz4 and zstd:1 are always included", flaz_codec::choices()))]
    codec: Vec<CodecSpec>,
    /// Report how much of the data a flaz cache of this size would hold
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    cache: Option<u64>,
    /// Write the chunk distribution to this file, as JSON
    #[arg(long, value_name = "FILE")]
    distribution: Option<PathBuf>,
    /// Sample until the intervals are at most this many percentage points wide on each side
    #[arg(long, value_name = "POINTS", default_value_t = WITHIN_POINTS_DEFAULT, value_parser = points,
        conflicts_with = "exact")]
    within: f64,
    /// Maximum number of 1 MiB windows to read
    #[arg(long, value_name = "N", default_value_t = WINDOWS_MAX_DEFAULT, conflicts_with = "exact",
        value_parser = whole(64..=WINDOWS_MAX))]
    samples: u64,
    /// Seed for the choice of windows
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(0..=u64::MAX))]
    seed: u64,
    /// Threads that read and compress [default: one per core]
    #[arg(long, value_name = "N", value_parser = whole(THREADS))]
    threads: Option<NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `flaz study`.
///
/// # Errors
/// There is nothing to study, or the distribution cannot be written. In the latter case the report is still printed.
pub fn run(args: &StudyArgs) -> Result<(), Failure> {
    if args.codec.len() > CODECS_MAX - 2 {
        return Err(Failure::Usage(format!(
            "--codec: expected at most {} codecs, found {}",
            CODECS_MAX - 2,
            args.codec.len()
        )));
    }
    if args.cache == Some(0) {
        return Err(Failure::Usage("--cache: expected a size larger than 0".into()));
    }
    // Check the output now: an error after reading a terabyte would be too late.
    let distribution = args
        .distribution
        .as_deref()
        .map(|path| OutputFiles::beside(&args.paths).take(path))
        .transpose()?;
    let options = StudyOptions {
        paths: args.paths.clone(),
        exact: args.exact,
        codecs: args.codec.clone(),
        cache_bytes: args.cache,
        within_points: args.within,
        windows_max: args.samples,
        seed: args.seed,
        threads: args.threads.unwrap_or_else(cores),
    };
    let bar = bar(io::stderr().is_terminal());
    let report = study::study(&options, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let mut report = report.map_err(|error: StudyError| Failure::Other {
        what: "study",
        source: error.into(),
    })?;
    // Paths have the same form in the JSON of all commands, which keeps bytes that are not UTF-8.
    let paths: Vec<String> = args.paths.iter().map(|path| path::encode(path)).collect();
    report.distribution.source = paths.join(", ");
    if args.json {
        report.paths = paths;
        output::print_json(&report, true)?;
    } else {
        output::print(&study::page::study(&report))?;
    }
    match distribution {
        Some(file) => file.write(&report.distribution.to_json().map_err(Failure::system("study"))?),
        None => Ok(()),
    }
}

/// Number of cores.
pub(crate) fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// A progress bar over bytes on standard error, or none.
pub(super) fn bar(shown: bool) -> ProgressBar {
    if !shown {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::no_length();
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn points(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(points) if (0.01..=50.0).contains(&points) => Ok(points),
        _ => Err("expected 0.01 to 50 points".to_owned()),
    }
}
