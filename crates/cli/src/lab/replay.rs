//! `flaz lab replay`: how large a cache a load needs.

use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use flaz_codec::CodecChoice;
use flaz_data::Distribution;
use flaz_engine::policy::PolicyKind;
use flaz_replay::combination::IndexMemory;
use flaz_replay::contents::Contents;
use flaz_replay::model::{Model, Seek};
use flaz_replay::sample::SHIFT_MAX;
use flaz_replay::sizing::{COMBINATIONS_MAX, Options, Progress, size};
use flaz_replay::{html, text};
use flaz_trace::Format;
use indicatif::{ProgressBar, ProgressStyle};

use super::present;
use crate::choice::choice;
use crate::commands::output_file::OutputFiles;
use crate::commands::study::{THREADS, cores};
use crate::error::Failure;
use crate::number::whole;
use crate::size;

/// Allowed duration of a trace in seconds: from a second to a century.
const SECONDS: std::ops::RangeInclusive<f64> = 1.0..=3.2e9;

/// `flaz lab replay`.
#[derive(Args, Debug)]
#[command(after_help = "\
A trace has the requests of a workload. `replay` sends them through the engine of the cache, in virtual time, on a modelled disk and \
SSD, with each combination of --cache, --codec and --policy. The mode is write-through, and the cache is empty at first. Each request \
starts when the previous one has ended, so latencies do not include queueing.

Traces have no contents: each block gets contents of a fixed compressibility, drawn from the distribution of --data, \
which `flaz study --distribution` measures, or else from a built-in one.

A trace with more than 2 million accesses, or 300,000 blocks (1.1 GiB), is sampled by a hash of the block; the caches are reduced by \
the same factor, and hit ratios have 95 % intervals. A curve of the hit ratio at all sizes comes from simulated caches; its largest \
difference from the replays is reported. With --index-memory, the trace is not sampled, and the reads and writes of index pages are \
reported. docs/lab-replay.md has the method, the formats and the errors.

Formats are detected: blkparse (text), fio iolog 2 and 3, CSV of MSR Cambridge, vscsi, .lis of the ARC paper, oracle-general, and \
flaz. Files that end in .gz or .zst are decompressed.

Examples:
  blktrace -d /dev/sdb -a queue -w 86400 -o sdb && blkparse -q -i sdb -a queue | zstd > sdb.blkparse.zst
  flaz study /dev/sdb --distribution sdb.json
  flaz lab replay sdb.blkparse.zst --data sdb.json --cache 64G,128G,256G --ssd-endurance 150TBW
  flaz lab replay P6.lis --duration 7d --cache 20M,40M,80M --codec lz4,auto,none --html page.html
  flaz lab replay P6.lis --cache 8G --index-memory 64M:500G
  flaz lab replay w.csv.gz --cache 1T,2T --origin-device network-volume --skip-bad 100 --json")]
pub struct ReplayArgs {
    /// The trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Sizes of the cache device, separated by commas
    #[arg(long, value_name = "SIZES", required = true, value_delimiter = ',', value_parser = size::parse)]
    cache: Vec<u64>,
    /// Codecs, separated by commas
    #[arg(long, value_name = "CODECS", value_delimiter = ',', default_value = "lz4,auto",
        help = format!("Codecs, separated by commas: {}", CodecChoice::choices()))]
    codec: Vec<CodecChoice>,
    /// Policies, separated by commas
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "s3-fifo",
        value_parser = choice::<PolicyKind>())]
    policy: Vec<PolicyKind>,
    /// Memory for the index and all else that grows with the cache, as of `flaz serve`; MEMORY:SIZE gives each cache as much as a cache of
    /// SIZE has with MEMORY. The whole trace is replayed [default: all of the index is in memory]
    #[arg(long, value_name = "MEMORY[:SIZE]", value_parser = index_memory, conflicts_with = "sample")]
    index_memory: Option<IndexMemory>,
    /// Compressibility of the blocks: a file of `flaz study --distribution`
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Format of the trace, if it is not detected
    #[arg(long, value_name = "FORMAT", help = format!("Format of the trace, if it is not detected: {}", Format::names()))]
    format: Option<Format>,
    /// Skip up to N bad lines or records. The first ones are reported
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole(0..=u64::MAX))]
    skip_bad: u64,
    /// Duration of a trace without times: 12h, 7d
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<f64>,
    /// The origin: hdd, ssd, network-volume, or LATENCY,READ,WRITE such as 8ms,200MB/s,180MB/s. An hdd has no latency for requests
    /// that continue the previous one
    #[arg(long, value_name = "MODEL", default_value = "hdd", value_parser = model)]
    origin_device: Model,
    /// The cache device, likewise
    #[arg(long, value_name = "MODEL", default_value = "ssd", value_parser = model)]
    ssd: Model,
    /// Endurance of the SSD: the amount of data that may be written to it, such as 150TBW
    #[arg(long, value_name = "SIZE", value_parser = endurance)]
    ssd_endurance: Option<u64>,
    /// Replay a sample of at most one block in N, a power of two, even if the whole trace fits [default: 1]
    #[arg(long, value_name = "N", value_parser = sample)]
    sample: Option<u32>,
    /// Combinations to replay at the same time [default: one per core]
    #[arg(long, value_name = "N", value_parser = whole(THREADS))]
    threads: Option<NonZeroUsize>,
    /// Write a page with tables and charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `flaz lab replay`.
///
/// # Errors
/// The trace, the distribution or an option is invalid, or the page cannot be written.
pub fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let count = args.cache.len() * args.codec.len() * args.policy.len();
    if count > COMBINATIONS_MAX {
        return Err(Failure::Usage(format!(
            "expected at most {COMBINATIONS_MAX} combinations of --cache, --codec and --policy, found {count}"
        )));
    }
    let inputs: Vec<PathBuf> = [&args.trace].into_iter().chain(&args.data).cloned().collect();
    let page = args
        .html
        .as_deref()
        .map(|path| OutputFiles::beside(&inputs).take(path))
        .transpose()?;
    let options = Options {
        trace: args.trace.clone(),
        reading: flaz_trace::Options {
            format: args.format,
            skip_bad: args.skip_bad,
        },
        caches: sorted(args.cache.clone()),
        codecs: unique(&args.codec),
        policies: unique(&args.policy),
        index_memory: args.index_memory,
        memory_bytes: flaz_server::available_bytes(),
        contents: args.data.as_deref().map(contents).transpose()?,
        origin: args.origin_device,
        ssd: args.ssd,
        endurance_bytes: args.ssd_endurance,
        seconds: args.duration,
        sample_shift: args.sample.map(u32::trailing_zeros),
        threads: args.threads.unwrap_or_else(cores).get(),
    };
    let bar = bar(io::stderr().is_terminal());
    let report = size(&options, &|progress| show(&bar, progress));
    bar.finish_and_clear();
    let report = report.map_err(|error| Failure::Other {
        what: "lab replay",
        source: error.into(),
    })?;
    present(&report, page, args.json, html::page, text::page)
}

fn contents(path: &Path) -> Result<Contents, Failure> {
    let distribution = Distribution::read(path).map_err(|error| Failure::Other {
        what: "--data",
        source: error.into(),
    })?;
    Contents::measured(distribution)
        .map_err(|reason| Failure::Usage(format!("--data {}: {reason}", path.display())))
}

fn sorted(mut sizes: Vec<u64>) -> Vec<u64> {
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn unique<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut unique = Vec::new();
    for value in values {
        if !unique.contains(value) {
            unique.push(*value);
        }
    }
    unique
}

/// On a terminal: first of the bytes of the trace, then of the replays.
fn bar(shown: bool) -> ProgressBar {
    let bar = match shown {
        true => ProgressBar::no_length(),
        false => ProgressBar::hidden(),
    };
    if let Ok(style) = ProgressStyle::with_template("{msg:9} {bar:40} {percent:>3} %, {eta} left") {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, progress: Progress) {
    let (name, done, total) = match progress {
        Progress::Reading(done, total) => ("reading", done, total),
        Progress::Replaying(done, total) => ("replaying", done, Some(total)),
    };
    if bar.message() != name {
        bar.set_message(name);
        bar.reset_eta();
    }
    if let Some(total) = total {
        bar.set_length(total);
    }
    bar.set_position(done);
}

/// Bytes, or as many as a cache of another size has.
fn index_memory(text: &str) -> Result<IndexMemory, String> {
    let bytes = |text: &str| size::parse(text).map_err(|error| error.to_string());
    match text.split_once(':') {
        None => bytes(text).map(IndexMemory::Bytes),
        Some((memory, cache)) => match (bytes(memory)?, bytes(cache)?) {
            (_, 0) => Err("expected a cache of more than 0 bytes behind ':'".to_owned()),
            (memory, cache) => Ok(IndexMemory::Share { memory, cache }),
        },
    }
}

/// A preset, or latency and both rates.
fn model(text: &str) -> Result<Model, String> {
    match text {
        "hdd" => return Ok(Model::HDD),
        "ssd" => return Ok(Model::SSD),
        "network-volume" => return Ok(Model::NETWORK_VOLUME),
        _ => {}
    }
    let parts: Vec<&str> = text.split(',').collect();
    let parsed = match parts[..] {
        [latency, read, write] => milliseconds(latency).zip(rate(read)).zip(rate(write)),
        _ => None,
    };
    let ((latency, read), write) = parsed
        .ok_or("expected hdd, ssd, network-volume, or LATENCY,READ,WRITE such as 8ms,200MB/s,180MB/s, with rates of at least 1MB/s")?;
    Ok(Model {
        latency,
        // As a disk, if it is as slow as one.
        seek: match latency >= Duration::from_millis(2) {
            true => Seek::Fixed,
            false => Seek::None,
        },
        read_bytes_per_second: read,
        write_bytes_per_second: write,
        parallelism: 1,
        operations_per_second: None,
    })
}

fn milliseconds(text: &str) -> Option<Duration> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix("us")) {
        (Some(number), _) => (number, 1e-3),
        (_, Some(number)) => (number, 1e-6),
        _ => return None,
    };
    let seconds = number.trim().parse::<f64>().ok()? * unit;
    let duration = Duration::try_from_secs_f64(seconds).ok()?;
    (duration <= Duration::from_secs(10)).then_some(duration)
}

/// Least rate of a modelled device, in bytes per second: less would overflow the virtual time.
const RATE_MIN: u64 = 1_000_000;

fn rate(text: &str) -> Option<u64> {
    size::parse(text.strip_suffix("/s")?)
        .ok()
        .filter(|rate| *rate >= RATE_MIN)
}

fn endurance(text: &str) -> Result<u64, String> {
    let bytes =
        size::parse(text.strip_suffix(['W', 'w']).unwrap_or(text)).map_err(|error| error.to_string())?;
    match bytes {
        0 => Err("expected more than 0".to_owned()),
        bytes => Ok(bytes),
    }
}

fn duration(text: &str) -> Result<f64, String> {
    let units = [("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86_400.0)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        Some(number * seconds).filter(|it| SECONDS.contains(it))
    });
    parsed.ok_or_else(|| "expected a time such as 90min, 12h or 7d".to_owned())
}

fn sample(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("1/").unwrap_or(text).parse::<u32>().ok();
    let known = number.filter(|number| number.is_power_of_two() && number.trailing_zeros() <= SHIFT_MAX);
    known.ok_or_else(|| format!("expected a power of two from 1 to {}", 1 << SHIFT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed() {
        assert_eq!(model("hdd"), Ok(Model::HDD));
        let own = model("0.5ms,200MB/s,180MB/s").expect("a model");
        assert_eq!((own.latency, own.seek), (Duration::from_micros(500), Seek::None));
        assert_eq!(
            (own.read_bytes_per_second, own.write_bytes_per_second),
            (200_000_000, 180_000_000)
        );
        for wrong in [
            "",
            "tape",
            "8ms",
            "8ms,200MB/s",
            "8,1MB/s,1MB/s",
            "1e9ms,1MB/s,1MB/s",
            "8ms,0MB/s,1MB/s",
        ] {
            assert!(model(wrong).is_err(), "{wrong}");
        }
        assert_eq!(endurance("150TBW"), Ok(150_000_000_000_000));
        assert!(endurance("0TBW").is_err() && endurance("many").is_err());
        assert_eq!((duration("7d"), duration("90min")), (Ok(604_800.0), Ok(5400.0)));
        assert!(
            ["", "7", "-1d", "NaNd", "0s"]
                .iter()
                .all(|wrong| duration(wrong).is_err())
        );
        assert_eq!(index_memory("1M"), Ok(IndexMemory::Bytes(1 << 20)));
        let share = index_memory("64M:500G").expect("a share");
        assert_eq!(share.bytes(1 << 30), (64 << 20) / 500);
        assert!(
            ["", ":", "64M:0", "64M:", "x:500G"]
                .iter()
                .all(|wrong| index_memory(wrong).is_err())
        );
        assert_eq!((sample("8"), sample("1/8")), (Ok(8), Ok(8)));
        assert!(
            ["0", "3", "x", "4294967295"]
                .iter()
                .all(|wrong| sample(wrong).is_err())
        );
    }
}
