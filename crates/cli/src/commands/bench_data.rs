//! `flaz bench data`: writes data of known compressibility to a file or a pipe, and reports the savings of codecs.

use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use flaz_data::page::DataReport;
use flaz_data::spec::DISTANCE_BYTES_DEFAULT;
use flaz_data::{CALIBRATED, DataSpec, Distribution, Family, Generator, Level, Pool, Seed};

use super::output_file::OutputFiles;
use super::{output, study};
use crate::error::Failure;
use crate::number::whole;
use crate::size;

/// Bytes generated in memory to measure the generator when nothing is written.
const SPEED_BYTES_MAX: u64 = 256 << 20;

/// `flaz bench data`.
#[derive(Args, Debug)]
#[command(after_help = "\
Families (docs/data.md has measured results for each):
  run           a run of one byte in each 4 KiB: the same level for every codec
  copies        random bytes, repeated at --distance: for matching codecs
  alphabet      bytes of unequal frequency: for entropy codecs, not for LZ4
  replay        chunks drawn from --distribution, written by `flaz study`
  iozone        as IOzone fills records for --level; prints the true ratio
  random-level  a random level for each chunk
  zeros, random

The same options generate the same bytes. Another --seed or --run generates different data that shares no \
block with it. Without --output, only the report is printed. With --output -, the data \
goes to standard output and the report to standard error.

Examples:
  flaz bench data --level 50%                      only report the savings
  flaz bench data --level 75 --size 10G --output /mnt/file
  flaz bench data --family copies --distance 32KiB --output - | gzip -1 | wc -c
  flaz study /dev/sdb --distribution d.json
  flaz bench data --family replay --distribution d.json")]
pub struct BenchDataArgs {
    /// Kind of data
    #[arg(long, value_name = "FAMILY", value_enum, default_value_t = FamilyArg::Run)]
    family: FamilyArg,
    /// Families run, copies, alphabet and iozone: share of space that compression saves, 0 to 100 percent [default:
    /// 50%]
    #[arg(long, value_name = "PERCENT")]
    level: Option<Level>,
    /// Unit of duplicates, drawn levels and records: a power of two from 512 to 16MiB
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = size::parse)]
    chunk: u64,
    /// Share of chunks that duplicate the chunk 4 MiB before: 0 to 99 percent
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    dedup: Level,
    /// Family copies: distance of the copies [default: 256]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    distance: Option<u64>,
    /// Family replay: distribution file, written by `flaz study`
    #[arg(long, value_name = "FILE")]
    distribution: Option<PathBuf>,
    /// Amount of data
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size::parse)]
    size: u64,
    /// Seed of the campaign; determines the data
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(0..=u64::MAX))]
    seed: u64,
    /// Number of the run in the campaign; determines the data
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole(0..=u64::MAX))]
    run: u64,
    /// Threads that generate data [default: one per core]
    #[arg(long, value_name = "N", value_parser = whole(study::THREADS))]
    threads: Option<NonZeroUsize>,
    /// Output file, or - for standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Names of the families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "kebab-case")]
enum FamilyArg {
    Run,
    Copies,
    Alphabet,
    Replay,
    Iozone,
    Zeros,
    Random,
    RandomLevel,
}

/// Runs `flaz bench data`.
///
/// # Errors
/// Invalid options, or a file that cannot be written.
pub fn run(args: &BenchDataArgs) -> Result<(), Failure> {
    let spec = DataSpec {
        family: family(args)?,
        level: args.level.unwrap_or(Level::HALF),
        chunk_bytes: args.chunk,
        dedup: args.dedup,
        seed: Seed {
            campaign: args.seed,
            run: args.run,
        },
    };
    let generator = Generator::new(spec).map_err(|error| Failure::Usage(error.to_string()))?;
    if args.size == 0 {
        return Err(Failure::Usage(
            "--size: expected at least one byte, found 0".into(),
        ));
    }
    let threads = args.threads.unwrap_or_else(study::cores);
    let to_stdout = args.output.as_ref().is_some_and(|path| path.as_os_str() == "-");
    let speed = match &args.output {
        None => {
            let bytes = args.size.min(SPEED_BYTES_MAX).next_multiple_of(args.chunk);
            let filled = Pool::fill(generator.clone(), bytes as usize, NonZeroUsize::MIN);
            filled.map_err(|error| Failure::Usage(error.to_string()))?.1
        }
        Some(_) if to_stdout => {
            written(&generator, args.size, threads, &mut io::stdout().lock()).map_err(Failure::output)?
        }
        Some(path) => {
            let failed = || Failure::system(format!("writing {}", path.display()));
            let file = OutputFiles::beside(&args.distribution).take(path)?;
            file.expect_room(args.size)?;
            let mut file = file.open()?;
            match written(&generator, args.size, threads, &mut file) {
                Ok(speed) => speed,
                Err(error) => {
                    file.remove_made();
                    return Err(failed()(error));
                }
            }
        }
    };
    let achieved = flaz_data::measure(&generator, args.size, &CALIBRATED, threads);
    let report = DataReport::new(&generator, args.size, &speed, achieved);
    match (to_stdout, args.json) {
        (false, false) => output::print(&report.page()),
        (false, true) => output::print_json(&report, true),
        (true, json) => {
            let text = if json {
                serde_json::to_string_pretty(&report).map_err(|error| Failure::Output(error.into()))? + "\n"
            } else {
                report.page()
            };
            // The data was written; a closed standard error does not change that.
            let _ = io::stderr().write_all(text.as_bytes());
            Ok(())
        }
    }
}

fn family(args: &BenchDataArgs) -> Result<Family, Failure> {
    if args.distance.is_some() && args.family != FamilyArg::Copies {
        return Err(Failure::Usage("--distance requires --family copies".into()));
    }
    if args.distribution.is_some() && args.family != FamilyArg::Replay {
        return Err(Failure::Usage("--distribution requires --family replay".into()));
    }
    let levelled = [
        FamilyArg::Run,
        FamilyArg::Copies,
        FamilyArg::Alphabet,
        FamilyArg::Iozone,
    ];
    if args.level.is_some() && !levelled.contains(&args.family) {
        return Err(Failure::Usage(
            "--level requires --family run, copies, alphabet or iozone".into(),
        ));
    }
    Ok(match args.family {
        FamilyArg::Run => Family::Run,
        FamilyArg::Copies => Family::Copies {
            distance_bytes: args.distance.unwrap_or(DISTANCE_BYTES_DEFAULT),
        },
        FamilyArg::Alphabet => Family::Alphabet,
        FamilyArg::Replay => Family::Replay(Arc::new(distribution(args.distribution.as_deref())?)),
        FamilyArg::Iozone => Family::Iozone,
        FamilyArg::Zeros => Family::Zeros,
        FamilyArg::Random => Family::Random,
        FamilyArg::RandomLevel => Family::RandomLevel,
    })
}

fn distribution(path: Option<&Path>) -> Result<Distribution, Failure> {
    let path = path.ok_or_else(|| {
        let message =
            "--family replay requires --distribution FILE; `flaz study PATH --distribution FILE` writes one";
        Failure::Usage(message.into())
    })?;
    Distribution::read(path).map_err(|error| Failure::Other {
        what: "bench data",
        source: error.into(),
    })
}

fn written(
    generator: &Generator,
    size_bytes: u64,
    threads: NonZeroUsize,
    out: &mut dyn Write,
) -> io::Result<flaz_data::FillSpeed> {
    let bar = study::bar(io::stderr().is_terminal());
    bar.set_length(size_bytes);
    let speed = flaz_data::output::write(generator, size_bytes, threads, out, &mut |done| {
        bar.set_position(done)
    });
    bar.finish_and_clear();
    speed
}
