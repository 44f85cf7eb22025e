//! `flaz bench detect`: writes different kinds of data to a temporary file, or to a file or device in place, and passes
//! the rates to `flaz_bench::detect`.

mod place;

use std::path::PathBuf;

use clap::Args;
use flaz_bench::detect::ROUNDS_MIN;
use flaz_load::detect::measure::{Shape, Step, measured};
use indicatif::{ProgressBar, ProgressStyle};

use crate::commands::output;
use crate::error::Failure;
use crate::number::whole;
use crate::size;
use place::Place;

/// Smallest sample of a kind of data per round. A smaller one contains no duplicates.
const SAMPLE_BYTES_MIN: u64 = 2 << 20;
/// Granularity of the sample size.
const SAMPLE_UNIT_BYTES: u64 = 1 << 20;
/// Largest sample; it is generated in memory.
const SAMPLE_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of rounds.
const ROUNDS_MAX: u32 = 1000;
/// Default size of the area that is overwritten.
const SIZE_BYTES_DEFAULT: u64 = 1 << 30;

/// `flaz bench detect`.
#[derive(Args, Debug)]
#[command(after_help = "\
TARGET is a directory, a file or a block device. In a directory, an unnamed temporary file is used. Files \
and devices are overwritten: confirm by typing the path, or with --yes-destroy. A target that is mounted or \
in use, or that contains a file system or a partition table, is refused.

Each round writes these kinds of data once, in random order, bypassing the page cache if possible: random \
data, data that compresses by 25, 50 and 75 percent, zeros, bytes with 16 values, copies at distances of 2 \
to 64 KiB, such copies across the borders of compression units, and duplicate blocks. The rate of each kind \
is compared with that of random data in the same round. A positive result must be confirmed by as many \
rounds again. zram reports its compression itself.

To measure the device behind a write cache, use a --size larger than that cache.

Compression by the file system, or by layers below a device, is measured as well and is named in the result. \
btrfs compresses only buffered writes, so use --buffered and mount with compress-force; with compress, \
btrfs stops compressing a file after the first data that does not shrink.

Examples:
  flaz bench detect /mnt/ssd
  flaz bench detect /mnt/ssd --size 32GiB --sample 256MiB --rounds 20
  flaz bench detect /dev/sdx --yes-destroy /dev/sdx
  flaz bench detect /srv/btrfs --buffered --json")]
pub struct DetectArgs {
    /// Directory on the device, file, or the device itself
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// Confirm TARGET: all data on it may be lost
    #[arg(long, value_name = "TARGET")]
    yes_destroy: Option<PathBuf>,
    /// Number of rounds. More rounds detect smaller effects. Positive results are measured for as many rounds again
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = whole(ROUNDS_MIN as u32..=ROUNDS_MAX))]
    rounds: u32,
    /// Amount of each kind of data written per round
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = size::parse)]
    sample: u64,
    /// Size of the area of TARGET that is overwritten repeatedly [default: 1GiB, limited to half of the free space or
    /// the size of the file or device]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Write through the page cache
    #[arg(long)]
    buffered: bool,
    /// Seed for the data and the order
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(0..=u64::MAX))]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `flaz bench detect`.
///
/// # Errors
/// The target is refused or fails, or no result could be obtained.
pub fn run(args: &DetectArgs) -> Result<(), Failure> {
    if !(SAMPLE_BYTES_MIN..=SAMPLE_BYTES_MAX).contains(&args.sample)
        || !args.sample.is_multiple_of(SAMPLE_UNIT_BYTES)
    {
        return Err(Failure::Usage(format!(
            "--sample: expected whole MiB, from 2MiB to 1GiB, found {} bytes",
            args.sample
        )));
    }
    let mut place = Place::open(&args.target, args.yes_destroy.as_deref(), args.buffered)?;
    let shape = Shape {
        sample_bytes: args.sample,
        slots: slots(args, &place)?,
        rounds: args.rounds,
        seed: args.seed,
    };
    let bar = bar(shape.writes());
    let (target, facts) = (args.target.display().to_string(), place.facts().clone());
    let found = measured(&mut place, &shape, &target, &facts, |step| match step {
        Step::Written => bar.inc(1),
        Step::Added(writes) => bar.inc_length(writes),
    })
    .map_err(Failure::system(format!("writing to {target}")))?
    .map_err(|source| Failure::Other {
        what: "flaz bench detect",
        source: source.into(),
    })?;
    bar.finish_and_clear();
    if args.json {
        output::print_json(&found, true)
    } else {
        output::print(&found.text(output::in_colour()))
    }
}

/// Number of samples that fit into the area.
fn slots(args: &DetectArgs, place: &Place) -> Result<u64, Failure> {
    let room = place.room_bytes();
    let wanted = args
        .size
        .unwrap_or_else(|| SIZE_BYTES_DEFAULT.min(place.room_default_bytes()));
    if wanted > room {
        return Err(Failure::Usage(format!(
            "{}: expected {wanted} bytes of free space, found {room}: use a smaller --size",
            args.target.display(),
        )));
    }
    let slots = wanted / args.sample;
    if slots < 2 {
        return Err(Failure::Usage(format!(
            "{wanted} bytes of {} cannot hold two samples of {}: free some space, or change --size or \
             --sample",
            args.target.display(),
            args.sample
        )));
    }
    Ok(slots)
}

/// Shown only on a terminal.
fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    // The template is a constant of this program. If it were wrong, a bar in the default style would do.
    if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} {bar:28.cyan/dim} writing, {eta} left") {
        bar.set_style(style.progress_chars("━━─"));
    }
    bar
}
