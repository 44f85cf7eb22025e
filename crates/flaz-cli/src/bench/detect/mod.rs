//! `flaz bench detect`: writes data of different kinds to a file of its own and hands the rates to `flaz_bench::detect`.
//!
//! Invariants: nothing is touched but a file without a name, which is gone when the program ends, however it ends; data
//! is made before the clock starts; every write of a kind of data ends on the medium (`fdatasync`) before the clock stops.

mod data;
mod place;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use flaz_bench::detect::{Facts, Pattern, ROUNDS_MIN, Sample, detect};
use flaz_bench::random::Random;
use flaz_device::IoBuf;
use indicatif::{ProgressBar, ProgressStyle};

use crate::commands::output;
use crate::error::Failure;
use crate::size;

/// Bytes of one write to the file.
const RECORD_BYTES: usize = 1 << 20;
/// Smallest amount of a kind of data in a round.
const SAMPLE_BYTES_MIN: u64 = 1 << 20;
/// Largest; it is made in memory.
const SAMPLE_BYTES_MAX: u64 = 1 << 30;
/// Most rounds.
const ROUNDS_MAX: i64 = 1000;
/// Share of the free space that is used at most, in percent, when the size is not given.
const FREE_PERCENT_MAX: u64 = 50;
/// Size of the file if nothing is said.
const SIZE_BYTES_DEFAULT: u64 = 1 << 30;

/// `flaz bench detect`.
#[derive(Args, Debug)]
#[command(after_help = "\
In every round random data, data of which compression saves 25, 50 and 75 percent, zeros, bytes of 16 values, copies at \
distances of 2 to 64 KiB and duplicate blocks are written once each, in random order, past the page cache where that is \
possible; the rates are compared with that of random data in the same round. The file has no name and is gone at the end.

To see what is behind a cache of the device, give a --size beyond that cache. To look at a device without a file system, \
make one that does not compress (ext4, xfs) and mount it.

Compression of the file system counts as well, and is named: btrfs compresses what comes through the page cache, which \
--buffered sees to, and mounted with compress-force; with compress it gives up on a file that did not shrink once.

Examples:
  flaz bench detect /mnt/ssd
  flaz bench detect /mnt/ssd --size 32GiB --sample 256MiB --rounds 20
  flaz bench detect /srv/btrfs --buffered --json")]
pub struct DetectArgs {
    /// A folder on what is to be looked at
    #[arg(value_name = "FOLDER")]
    target: PathBuf,
    /// Rounds: more of them find smaller gains
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(ROUNDS_MIN as i64..=ROUNDS_MAX))]
    rounds: u32,
    /// How much of each kind of data is written in a round
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = size::parse)]
    sample: u64,
    /// Size of the file [default: 1GiB, or half of the free space if that is less]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Write through the page cache
    #[arg(long)]
    buffered: bool,
    /// Seed of the data and of the order
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `flaz bench detect`.
///
/// # Errors
/// The folder cannot be used, or nothing can be said.
pub fn run(args: &DetectArgs) -> Result<(), Failure> {
    let folder = &args.target;
    if !fs::metadata(folder)
        .map_err(Failure::system(format!("looking at {}", folder.display())))?
        .is_dir()
    {
        return Err(Failure::Usage(format!(
            "{}: expected a folder; to look at a device, mount a file system on it that does not compress",
            folder.display()
        )));
    }
    if !(SAMPLE_BYTES_MIN..=SAMPLE_BYTES_MAX).contains(&args.sample)
        || !args.sample.is_multiple_of(SAMPLE_BYTES_MIN)
    {
        return Err(Failure::Usage(
            "--sample: expected whole MiB, from 1MiB to 1GiB".to_owned(),
        ));
    }
    let size_bytes = size_of(args)?;
    let file = tempfile::tempfile_in(folder)
        .map_err(Failure::system(format!("making a file in {}", folder.display())))?;
    let direct = !args.buffered && place::go_direct(&file);
    let facts = place::facts(folder, &file, direct);
    let samples = measure(args, &file, size_bytes)
        .map_err(Failure::system(format!("writing to {}", folder.display())))?;
    report(args, folder, &samples, facts)
}

fn report(args: &DetectArgs, folder: &Path, samples: &[Sample], facts: Facts) -> Result<(), Failure> {
    let found = detect(&folder.display().to_string(), samples, facts).map_err(|source| Failure::Other {
        what: "flaz bench detect",
        source: source.into(),
    })?;
    if args.json {
        output::print_json(&found, true)
    } else {
        output::print(&found.text(output::in_colour()))
    }
}

/// Size of the file, in whole samples.
fn size_of(args: &DetectArgs) -> Result<u64, Failure> {
    let free = place::free_bytes(&args.target)
        .map_err(Failure::system(format!("looking at {}", args.target.display())))?;
    let wanted = args
        .size
        .unwrap_or_else(|| SIZE_BYTES_DEFAULT.min(free / 100 * FREE_PERCENT_MAX));
    if wanted > free {
        return Err(Failure::Usage(format!(
            "{}: {} bytes are free, {wanted} are wanted: give a smaller --size",
            args.target.display(),
            free
        )));
    }
    let size_bytes = wanted - wanted % args.sample;
    if size_bytes < 2 * args.sample {
        return Err(Failure::Usage(format!(
            "a file of {wanted} bytes has no room for two samples of {}: free some space, or give another --size or --sample",
            args.sample
        )));
    }
    Ok(size_bytes)
}

/// Writes every kind of data once a round, after the whole file was written once.
fn measure(args: &DetectArgs, file: &File, size_bytes: u64) -> std::io::Result<Vec<Sample>> {
    let sample_len = args.sample as usize;
    let slots = size_bytes / args.sample;
    let patterns = Pattern::all();
    let bar = bar(slots + u64::from(args.rounds) * patterns.len() as u64);
    let mut buffer = IoBuf::zeroed(sample_len);
    let mut maker = data::Maker::new(args.seed);
    for slot in 0..slots {
        maker.fill(Pattern::Random, &mut buffer);
        write(file, &buffer, slot * args.sample)?;
        bar.inc(1);
    }
    let mut random = Random::named(args.seed, "order");
    let mut samples = Vec::new();
    let mut slot = 0;
    for round in 0..args.rounds as usize {
        let mut order = patterns.clone();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        for pattern in order {
            maker.fill(pattern, &mut buffer);
            let begun = Instant::now();
            write(file, &buffer, slot * args.sample)?;
            let seconds = begun.elapsed().as_secs_f64();
            samples.push(Sample {
                round,
                pattern,
                bytes_per_s: args.sample as f64 / seconds.max(f64::MIN_POSITIVE),
            });
            slot = (slot + 1) % slots;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(samples)
}

fn write(file: &File, data: &[u8], offset: u64) -> std::io::Result<()> {
    for (record, at) in data.chunks(RECORD_BYTES).zip((offset..).step_by(RECORD_BYTES)) {
        file.write_all_at(record, at)?;
    }
    file.sync_data()
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
