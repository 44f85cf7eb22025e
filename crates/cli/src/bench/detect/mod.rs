//! `flaz bench detect`: writes data of different kinds to a file of its own, or to a file or device in place, and hands
//! the rates to `flaz_bench::detect`.

mod data;
mod layers;
mod measure;
#[cfg(test)]
mod models;
mod place;

use std::path::PathBuf;

use clap::Args;
use flaz_bench::detect::ROUNDS_MIN;
use indicatif::{ProgressBar, ProgressStyle};

use crate::commands::output;
use crate::error::Failure;
use crate::number::whole;
use crate::size;
use measure::{Shape, Step, measured};
use place::Place;

/// Smallest amount of a kind of data in a round: with less there are no duplicates in it.
const SAMPLE_BYTES_MIN: u64 = 2 << 20;
/// What it is a multiple of.
const SAMPLE_UNIT_BYTES: u64 = 1 << 20;
/// Largest; it is made in memory.
const SAMPLE_BYTES_MAX: u64 = 1 << 30;
/// Most rounds.
const ROUNDS_MAX: u32 = 1000;
/// Bytes that are written over and over if nothing is said.
const SIZE_BYTES_DEFAULT: u64 = 1 << 30;

/// `flaz bench detect`.
#[derive(Args, Debug)]
#[command(after_help = "\
TARGET is a folder (a file without a name is made in it, and gone at the end), a file, or a block device. Files and \
devices are overwritten: their path must be typed again, or given with --yes-destroy. One that is mounted, held, or \
carries a file system or a partition table is refused.

In every round random data, data of which compression saves 25, 50 and 75 percent, zeros, bytes of 16 values, copies at \
distances of 2 to 64 KiB, the same across the borders of units, and duplicate blocks are written once each, in random \
order, past the page cache where that is possible; the rates are compared with that of random data in the same round. \
Where they say yes, as many rounds again must say so, too. zram says itself what it keeps of each.

To see what is behind a cache of the device, give a --size beyond that cache.

Compression of the file system, and of what lies below a device, counts as well, and is named: btrfs compresses what \
comes through the page cache, which --buffered sees to, and mounted with compress-force; with compress it gives up on a \
file that did not shrink once.

Examples:
  flaz bench detect /mnt/ssd
  flaz bench detect /mnt/ssd --size 32GiB --sample 256MiB --rounds 20
  flaz bench detect /dev/sdx --yes-destroy /dev/sdx
  flaz bench detect /srv/btrfs --buffered --json")]
pub struct DetectArgs {
    /// What is to be looked at: a folder on it, a file, or the device itself
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// TARGET once more: all that is on it may be lost
    #[arg(long, value_name = "TARGET")]
    yes_destroy: Option<PathBuf>,
    /// Rounds: more of them find smaller gains. Where they say yes, as many are measured again
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = whole(ROUNDS_MIN as u32..=ROUNDS_MAX))]
    rounds: u32,
    /// How much of each kind of data is written in a round
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = size::parse)]
    sample: u64,
    /// How much of TARGET is written, over and over [default: 1GiB; half of the free space, or all of a file or device,
    /// if that is less]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Write through the page cache
    #[arg(long)]
    buffered: bool,
    /// Seed of the data and of the order
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(0..=u64::MAX))]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `flaz bench detect`.
///
/// # Errors
/// The target is not to be touched, or fails, or nothing can be said.
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

/// Samples that the part which is used has room for.
fn slots(args: &DetectArgs, place: &Place) -> Result<u64, Failure> {
    let room = place.room_bytes();
    let wanted = args
        .size
        .unwrap_or_else(|| SIZE_BYTES_DEFAULT.min(place.room_default_bytes()));
    if wanted > room {
        return Err(Failure::Usage(format!(
            "{}: expected room for {wanted} bytes, found {room}: give a smaller --size",
            args.target.display(),
        )));
    }
    let slots = wanted / args.sample;
    if slots < 2 {
        return Err(Failure::Usage(format!(
            "{wanted} bytes of {} have no room for two samples of {}: free some space, or give another --size or --sample",
            args.target.display(),
            args.sample
        )));
    }
    Ok(slots)
}

/// Shown on a terminal only.
fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    // The template is a constant of this program; a bar in the default style is no reason to fail.
    if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} {bar:28.cyan/dim} writing, {eta} left") {
        bar.set_style(style.progress_chars("━━─"));
    }
    bar
}
