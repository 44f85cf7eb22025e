//! Commands and options, and the help a user reads. No behaviour here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use flaz_codec::CodecSpec;

use crate::bench::args::BenchArgs;
use crate::commands::study::StudyArgs;
use crate::demo::DemoArgs;
use crate::log::LogArgs;
use crate::number::whole;
use crate::settings::{AfterCrash, Emulation, Mode, NbdAddress, Policy, parse_dirty_limit};
use crate::size;

const ABOUT: &str = "A transparent, compressed SSD cache for block devices";

const OVERVIEW: &str = "\
A transparent, compressed SSD cache for block devices.

flaz puts a cache device (an SSD, a partition or a file, which it then owns whole) in front of an origin \
(the slow device with the data) and serves the origin's contents to NBD clients. Every cached block is \
compressed, so that the SSD holds more of the origin. Nothing of flaz is ever stored on the origin.

Sizes: 4096, 64KiB, 10G, 1.5GiB. K, M, G, T, P and KiB, MiB, .. are powers of 1024; kB, MB, .. are powers of 1000.

Exit status: 0 done, 1 failed, 2 wrong usage. Results go to standard output, messages to standard error.";

const EXAMPLES: &str = "\
Examples:
  flaz demo                                        see what a compressed cache is worth, in a minute
  flaz create /dev/nvme0n1p3 --origin /dev/sdb     make a cache device
  flaz serve /dev/nvme0n1p3 --nbd unix:/run/d.sock serve the origin through it
  nbd-client -unix /run/d.sock /dev/nbd0           attach it to this machine
  flaz status /dev/nvme0n1p3 --watch 1             see what it does";

/// The command line.
#[derive(Parser, Debug)]
#[command(name = "flaz", version, about = ABOUT, long_about = OVERVIEW, after_help = EXAMPLES)]
#[command(max_term_width = 110, disable_help_subcommand = true)]
pub struct Cli {
    /// About the log.
    #[command(flatten)]
    pub log: LogArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a cache device for an origin
    Create(CreateArgs),
    /// Serve an origin through its cache device, in the foreground
    Serve(ServeArgs),
    /// Show what a cache holds and does
    Status(StatusArgs),
    /// Change settings of a running cache
    Set(SetArgs),
    /// Bring all writes that a cache keeps back to the origin
    Flush(FlushArgs),
    /// Make an origin complete without its cache, and the cache empty
    Detach(DetachArgs),
    /// Stop a running cache cleanly
    Stop(StopArgs),
    /// Verify a cache device that is not in use
    Check(CheckArgs),
    /// List what is stored on a cache device that is not in use
    Dump(DumpArgs),
    /// Show on real data of this machine what a compressed cache is worth
    Demo(DemoArgs),
    /// Make data for benchmarks, compare measured storage, hold claims against it
    Bench(BenchArgs),
    /// Say what data would gain from compression: in a flaz cache, in an SSD that compresses
    Study(StudyArgs),
    /// Write shell completions or the manual
    #[command(hide = true)]
    Generate(GenerateArgs),
}

/// `flaz create`.
#[derive(Args, Debug)]
#[command(after_help = "\
A device that is mounted, swapped on, opened exclusively by another program or part of an active file system or \
array is always refused, and so is a file that a running flaz has locked. One that LVM, device-mapper or a loop \
device is made of, or that carries a file system, a partition table or another flaz cache, is refused unless --force \
says that its contents may go; the cache is served when what is made of it has been released. Nothing is written \
before everything was checked.

Examples:
  flaz create /dev/nvme0n1p3 --origin /dev/sdb
  flaz create /var/cache/flaz.img --size 20G --origin /srv/disk.img --codec zstd:3")]
pub struct CreateArgs {
    /// Cache device: a block device or a regular file. Its contents are lost
    #[arg(value_name = "CACHE")]
    pub cache: PathBuf,
    /// The device or file to cache; it is not changed
    #[arg(long, value_name = "ORIGIN")]
    pub origin: PathBuf,
    /// Codec for new blocks
    // Codecs tell of themselves, so that a new one is one file.
    #[arg(long, value_name = "CODEC", default_value = "lz4", help = format!("Codec for new blocks: {}", flaz_codec::choices()))]
    pub codec: CodecSpec,
    /// Size of a full extent, the unit of cache-device writes: 32KiB to 256KiB, a power of two
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = extent_size)]
    pub extent_size: u64,
    /// Size of a region, the unit of reclaim: 128KiB to 256MiB, a power of two [default: 16MiB, less on a
    /// small cache]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub region_size: Option<u64>,
    /// Number of shards, fixed for the life of the cache; at least as many as threads will serve it
    /// [default: by size]
    #[arg(long, value_name = "N", value_parser = whole(1..=SHARDS_MAX))]
    pub shards: Option<u32>,
    /// Create CACHE as a (sparse) regular file of this size if it is not there
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,
    /// Overwrite whatever CACHE carries, and whatever idle devices are made of it. A device in use is refused
    /// nevertheless
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Most shards a cache can have.
const SHARDS_MAX: u32 = flaz_engine::format::geometry::SHARDS_MAX;
/// Most threads a daemon can have.
pub const THREADS_MAX: u32 = 1024;
/// Most NBD addresses a daemon can have.
pub const NBD_ADDRESSES_MAX: usize = 16;

fn extent_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?;
    if bytes.is_power_of_two() && (32 << 10..=256 << 10).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("expected 32KiB, 64KiB, 128KiB or 256KiB".to_owned())
    }
}

/// `flaz serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
Runs in the foreground until SIGTERM, SIGINT or `flaz stop`, then stops cleanly: the next start is warm. A \
second signal stops at once, like a crash. Under systemd (Type=notify) readiness is announced.

The runtime directory is $FLAZ_RUNTIME_DIR if that is set, else /run/flaz for root, and $XDG_RUNTIME_DIR/flaz or \
/tmp/flaz-UID for others. FLAZ_LOG=debug in the environment logs more, FLAZ_LOG=warn less.

Examples:
  flaz serve /dev/nvme0n1p3 --nbd unix:/run/flaz/disk.sock
  flaz serve cache.img --nbd tcp:127.0.0.1:10809 --insecure-tcp --mode write-around
  flaz serve cache.img --emulate-origin hdd        as if the origin were a hard disk")]
pub struct ServeArgs {
    /// Cache device made by `flaz create`
    #[arg(value_name = "CACHE")]
    pub cache: PathBuf,
    /// Where the origin is now, if it has moved since `flaz create`; it must be the same one
    #[arg(long, value_name = "PATH")]
    pub origin: Option<PathBuf>,
    /// Where NBD clients connect: unix:PATH (mode 0600) or tcp:HOST[:PORT]; may be given several times
    /// [default: unix:UUID.nbd in the runtime directory]
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Vec<NbdAddress>,
    /// Allow tcp: addresses, over which everybody who reaches the port reads and writes all data
    #[arg(long)]
    pub insecure_tcp: bool,
    /// When writes are acknowledged, and what becomes of the cached copy
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Mode::WriteThrough)]
    pub mode: Mode,
    /// Threads that drive shards [default: one for every two cores]
    #[arg(long, value_name = "N", value_parser = whole(1..=THREADS_MAX))]
    pub threads: Option<u32>,
    /// Which blocks are admitted, and which survive
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = Policy::S3Fifo)]
    pub policy: Policy,
    /// Do not admit sequential runs longer than this; 0 admits all
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size::parse)]
    pub sequential_cutoff: u64,
    /// Most of the cache device that writes may take that have not reached the origin, in percent (1 to 50)
    #[arg(long, value_name = "PERCENT", default_value = "25", value_parser = parse_dirty_limit)]
    pub dirty_limit: u8,
    /// Codec for new blocks
    #[arg(long, value_name = "CODEC", help = format!("Codec for new blocks: {} [default: as created]", flaz_codec::choices()))]
    pub codec: Option<CodecSpec>,
    /// Start with an empty cache where the cached data may not belong to the origin any more
    #[arg(long)]
    pub discard_cache: bool,
    /// With --discard-cache: give up even writes that have not reached the origin
    #[arg(long, requires = "discard_cache")]
    pub discard_dirty: bool,
    /// What is left of the cache after a crash: warm costs a small write to the cache device before the first write to
    /// each MiB of the origin; cold costs nothing, and after a crash all of the cache
    #[arg(long, value_name = "STATE", value_enum, default_value_t = AfterCrash::Warm)]
    pub after_crash: AfterCrash,
    /// Go on without the cache device when it has not answered for so many seconds, until the next start; 0 waits for
    /// ever, as write-back does, and after it any mode until nothing is dirty
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = device_timeout)]
    pub device_timeout: Duration,
    /// Where this host notes how far the cache had come, so that a cache device that failed and comes back, or an old copy
    /// of it, is not believed [default: /var/lib/flaz for root, else flaz in $XDG_STATE_HOME]
    #[arg(long, value_name = "DIRECTORY")]
    pub state_dir: Option<PathBuf>,
    /// Refuse writes from clients
    #[arg(long)]
    pub read_only: bool,
    /// Control socket, for status, set and stop [default: UUID.sock in the runtime directory]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// For demonstrations and tests: slow the origin down to such a device
    #[arg(long, value_name = "DEVICE", value_enum)]
    pub emulate_origin: Option<Emulation>,
    /// For demonstrations and tests: slow the cache device down to such a device
    #[arg(long, value_name = "DEVICE", value_enum)]
    pub emulate_cache: Option<Emulation>,
}

/// Which cache a command is about: by its device, or by its control socket.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct TargetArgs {
    /// Cache device; its UUID tells the control socket
    #[arg(value_name = "CACHE")]
    pub cache: Option<PathBuf>,
    /// Control socket, if it is not at its default place
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}

/// `flaz status`.
#[derive(Args, Debug)]
#[command(after_help = "\
A cache that is not running is described from its superblock; that needs the right to read the device.

Examples:
  flaz status /dev/nvme0n1p3
  flaz status --control /run/flaz/mine.sock --json | jq .live.lookups
  flaz status cache.img --watch 2")]
pub struct StatusArgs {
    /// Which cache.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Print JSON (one line a report with --watch)
    #[arg(long)]
    pub json: bool,
    /// Repeat every so many seconds until interrupted [default without a value: 2]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = interval)]
    pub watch: Option<Duration>,
}

/// `flaz set`.
#[derive(Args, Debug)]
#[command(override_usage = "flaz set [OPTIONS] <CACHE | --control PATH> <KEY=VALUE>...")]
#[command(after_help = format!("\
Keys:
  mode               write-through, write-back, write-around or pass-through
  policy, admission  s3-fifo, second-touch or fifo
  codec              {}; for new blocks, old ones stay as they are
  sequential-cutoff  a size; longer sequential runs are not admitted; 0 admits all
  dirty-limit        percent of the cache device that writes may take which have not reached the origin: 1 to 50

Takes effect at once and lasts until the daemon stops. All of the keys are changed, or none.

Examples:
  flaz set /dev/nvme0n1p3 mode=write-around
  flaz set --control /run/flaz/mine.sock codec=zstd:3 sequential-cutoff=4M", flaz_codec::choices()))]
pub struct SetArgs {
    /// Cache device (left out with --control), then what to change
    #[arg(value_name = "CACHE | KEY=VALUE", required = true)]
    pub words: Vec<String>,
    /// Control socket, if it is not at its default place
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print the settings then in force as JSON
    #[arg(long)]
    pub json: bool,
}

/// How to open a cache that nobody serves, for as long as a command takes.
#[derive(Args, Debug)]
pub struct IdleArgs {
    /// Where the origin is, if not where it was and the cache is not being served
    #[arg(long, value_name = "PATH")]
    pub origin: Option<PathBuf>,
    /// Where this host notes how far the cache had come, as in flaz serve, if the cache is not being served
    #[arg(long, value_name = "DIRECTORY")]
    pub state_dir: Option<PathBuf>,
}

/// `flaz flush`.
#[derive(Args, Debug)]
#[command(after_help = "\
With write-back, writes are kept on the cache device until the cleaner brings them to the origin. This command \
brings all of them there at once and returns when they are; clients go on working meanwhile. If the cache is not \
being served, it is opened for this alone.

Example:
  flaz flush /dev/nvme0n1p3")]
pub struct FlushArgs {
    /// Which cache.
    #[command(flatten)]
    pub target: TargetArgs,
    /// What is known of a cache that nobody serves.
    #[command(flatten)]
    pub idle: IdleArgs,
    /// Print the outcome as JSON
    #[arg(long)]
    pub json: bool,
}

/// `flaz detach`.
#[derive(Args, Debug)]
#[command(after_help = "\
Brings all writes that are kept back to the origin, ends the daemon if there is one, and marks the cache as empty. \
After that the origin is complete and may be used without flaz, and the cache device may be thrown away, made anew \
or served again.

Example:
  flaz detach /dev/nvme0n1p3")]
pub struct DetachArgs {
    /// Which cache.
    #[command(flatten)]
    pub target: TargetArgs,
    /// What is known of a cache that nobody serves.
    #[command(flatten)]
    pub idle: IdleArgs,
}

/// `flaz stop`.
#[derive(Args, Debug)]
#[command(after_help = "\
Returns when the daemon has finished what was in flight and has closed the cache cleanly.

Example:
  flaz stop /dev/nvme0n1p3 --timeout 30")]
pub struct StopArgs {
    /// Which cache.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Give up waiting after so many seconds; the daemon goes on stopping
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = interval)]
    pub timeout: Duration,
}

/// `flaz check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Reads the whole cache device and verifies superblock, headers, checksums, and that every fragment \
decompresses; says how many there are of each kind. Changes nothing. Exit status 1 if something is wrong.

Examples:
  flaz check /dev/nvme0n1p3
  flaz check cache.img --json | jq .bad")]
pub struct CheckArgs {
    /// Cache device
    #[arg(value_name = "CACHE")]
    pub cache: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `flaz dump`.
#[derive(Args, Debug)]
#[command(after_help = "\
One line for each superblock, region, extent, record and fragment, and for the rest of what is stored, part by part; \
with --json one JSON object a line. The bytes of the blocks are not shown.

Examples:
  flaz dump /dev/nvme0n1p3 | less
  flaz dump cache.img --json | jq 'select(.kind == \"region\")'")]
pub struct DumpArgs {
    /// Cache device
    #[arg(value_name = "CACHE")]
    pub cache: PathBuf,
    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// `flaz generate`, for packagers.
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// What to write
    #[command(subcommand)]
    pub what: Generate,
}

/// What `flaz generate` writes.
#[derive(Subcommand, Debug)]
pub enum Generate {
    /// Completions for a shell, to standard output
    Completions {
        /// Which shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Manual pages, one file a command
    Man {
        /// Existing directory to write to
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },
}

/// Longest interval or timeout in seconds: a year.
const INTERVAL_MAX_S: f64 = 365.0 * 86_400.0;

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "expected a number of seconds, as in 2 or 0.5".to_owned())?;
    if !(0.1..=INTERVAL_MAX_S).contains(&seconds) {
        return Err("expected from 0.1 seconds to a year".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn device_timeout(text: &str) -> Result<Duration, String> {
    if text.parse() == Ok(0.0) {
        return Ok(Duration::ZERO);
    }
    interval(text).map_err(|expected| format!("{expected}, or 0 to wait for ever"))
}

/// Values that may have a unit behind the number: what begins with a minus sign is not known by its digits alone.
const WITH_UNITS: [&str; 5] = ["SIZE", "SIZES", "LEVELS", "PERCENT", "PCT"];

/// Reads the command line.
///
/// # Errors
/// Help, the version, or what is wrong with it.
pub fn parse<I>(args: I) -> Result<Cli, clap::Error>
where
    I: IntoIterator<Item: Into<OsString> + Clone>,
{
    let mut command = with_negative_values(Cli::command());
    let matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// No option is a number: so a negative one is a value, which is refused by what reads it, with what was expected.
fn with_negative_values(command: clap::Command) -> clap::Command {
    let negative = |arg: clap::Arg| {
        if arg.is_positional() || !arg.get_action().takes_values() {
            return arg;
        }
        let names = arg.get_value_names().unwrap_or_default();
        let with_unit = names.iter().any(|name| WITH_UNITS.contains(&name.as_str()));
        arg.allow_negative_numbers(true).allow_hyphen_values(with_unit)
    };
    command.mut_args(negative).mut_subcommands(with_negative_values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_has_help() {
        let cli = Cli::command();
        let bench = cli
            .find_subcommand("bench")
            .expect("bench is a command")
            .get_subcommands();
        for command in cli.get_subcommands().chain(bench) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for arg in command.get_arguments() {
                assert!(
                    arg.get_help().is_some(),
                    "{} {}",
                    command.get_name(),
                    arg.get_id()
                );
            }
        }
    }

    #[test]
    fn defaults_are_those_of_the_manual() {
        let cli = Cli::try_parse_from(["flaz", "serve", "c"]).unwrap();
        let Command::Serve(serve) = cli.command else {
            panic!("not serve")
        };
        assert_eq!(
            (serve.mode, serve.policy, serve.sequential_cutoff),
            (Mode::WriteThrough, Policy::S3Fifo, 0)
        );
        assert_eq!(serve.device_timeout, flaz_device::deadline::TIMEOUT_DEFAULT);
        let cli = Cli::try_parse_from(["flaz", "create", "c", "--origin", "o"]).unwrap();
        let Command::Create(create) = cli.command else {
            panic!("not create")
        };
        assert_eq!(
            (create.codec, create.extent_size, create.force),
            (CodecSpec::LZ4, 64 << 10, false)
        );
    }

    #[test]
    fn negative_zstd_levels_need_no_quoting() {
        let cli =
            Cli::try_parse_from(["flaz", "create", "c", "--origin", "o", "--codec", "zstd:-7"]).unwrap();
        let Command::Create(create) = cli.command else {
            panic!("not create")
        };
        assert_eq!(create.codec.to_string(), "zstd:-7");
    }
}
