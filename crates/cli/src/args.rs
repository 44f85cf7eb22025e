//! Commands and options, and the help a user reads. No behaviour here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use flaz_codec::CodecChoice;
use flaz_engine::policy::PolicyKind;
use flaz_engine::settings::{AfterCrash, Mode, StrictFlush};
use flaz_engine::write_budget::WriteBudget;
use flaz_nbd::NbdAddress;
use flaz_server::metrics::MetricsAddress;

use crate::advise::AdviseArgs;
use crate::bench::args::BenchArgs;
use crate::choice::{choice, names};
use crate::commands::resize::ResizeArgs;
use crate::commands::study::StudyArgs;
use crate::commands::volume::VolumeArgs;
use crate::configuration::Given;
use crate::demo::DemoArgs;
use crate::lab::LabArgs;
use crate::log::LogArgs;
use crate::number::{THREADS_MAX, whole};
use crate::settings::{Emulation, SettingsPatch, parse_dirty_limit, parse_write_budget};
use crate::size;
use crate::suggestion::improved;
use crate::top::TopArgs;

/// Devices of the kernel's NBD client have 20 bits of minor numbers, of which partitions take 5.
const NBD_NUMBER_MAX: u32 = (1 << 15) - 1;

const ABOUT: &str = "A compressed SSD cache for block devices";

const OVERVIEW: &str = "\
A compressed SSD cache for block devices.

flaz caches a slow block device (the origin) on an SSD, partition or file (the cache device) and serves the \
cached device as a block device or to NBD clients. Each cached block is compressed, so that the SSD caches more data than its \
size. flaz stores no metadata on the origin.

Commands accept the device of a cache (DEVICE:VOLUME if several volumes share it), or the NAME of its configuration. NAME stands for \
/etc/flaz/NAME.toml; users other than root have $XDG_CONFIG_HOME/flaz/NAME.toml before it. FLAZ_CONFIG_DIR names another directory. A \
path that ends in .toml is a configuration too. `flaz create --name` writes one; its keys are the options of `flaz serve`.

Sizes: 4096, 64KiB, 10G, 1.5GiB. K, M, G, T, P and KiB, MiB, .. are powers of 1024; kB, MB, .. are powers of \
1000.

Exit status: 0 success, 1 failure, 2 invalid usage. Results go to standard output, messages to standard \
error. In JSON, a backslash in the path of a cache, device, trace or studied file, and a byte that is not UTF-8, are written as \\xNN.";

const EXAMPLES: &str = "\
Examples:
  flaz demo                                        compare caches in a minute
  flaz create /dev/nvme0n1p3 --origin /dev/sdb     create a cache
  flaz serve /dev/nvme0n1p3 --nbd unix:/run/d.sock serve the cached device
  nbd-client -unix /run/d.sock /dev/nbd0           attach it to this machine
  flaz status /dev/nvme0n1p3 --watch 1             show health, hits and dirty data
  flaz help bench run                              explain a command";

/// The command line.
#[derive(Parser, Debug)]
#[command(name = "flaz", version, about = ABOUT, long_about = OVERVIEW, after_help = EXAMPLES)]
#[command(max_term_width = 110)]
pub struct Cli {
    /// Log options.
    #[command(flatten)]
    pub log: LogArgs,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Create a cache for an origin
    Create(CreateArgs),
    /// Serve an origin through its cache, in the foreground
    Serve(ServeArgs),
    /// Show health, contents and counters of a cache
    Status(StatusArgs),
    /// List the caches of this host, configured or running
    List(ListArgs),
    /// Show all caches of this host and their rates
    Top(TopArgs),
    /// Estimate hit ratio and latency with another capacity or codec
    Advise(AdviseArgs),
    /// Change settings of a running cache
    Set(SetArgs),
    /// Write all dirty blocks to the origin
    Flush(FlushArgs),
    /// Grow or shrink a cache
    Resize(ResizeArgs),
    /// Write back all dirty blocks, stop, and mark the cache empty
    Detach(DetachArgs),
    /// Manage the volumes of a shared cache device; serve all of an origin that has grown
    Volume(VolumeArgs),
    /// Stop a running cache cleanly
    Stop(StopArgs),
    /// Remove a block device whose cache is lost
    RemoveDevice(RemoveDeviceArgs),
    /// Verify a cache that is not running
    Check(CheckArgs),
    /// List the contents of a cache that is not running
    Dump(DumpArgs),
    /// Compare a compressed cache with an uncompressed one, using your files
    Demo(DemoArgs),
    /// Generate data, measure storage, compare results, check vendor claims
    Bench(BenchArgs),
    /// Estimate what compression would save, in a flaz cache or in an SSD
    Study(StudyArgs),
    /// Find the cache size that a workload needs, or model an SSD that compresses
    Lab(LabArgs),
    /// Generate shell completions, manual pages, JSON schemas or systemd drop-ins
    #[command(hide = true)]
    Generate(GenerateArgs),
}

/// `flaz create`.
#[derive(Args, Debug)]
#[command(after_help = "\
`create` always refuses a device that is mounted, used for swap, opened exclusively by another program, or \
part of an active file system or array, and a file that a running flaz has locked. It refuses a device that \
is used by LVM, device-mapper or a loop device, or that contains a file system, a partition table or another \
flaz cache, unless --force is given; before a cache on a device in use can be served, release the devices that use it. To \
overwrite a flaz cache with dirty blocks, --discard-dirty is also required. An origin that contains a flaz cache is refused \
without --force, because cache and origin were probably confused. All checks run before the first write.

On a file system that cannot allocate space (ZFS, some network file systems), `create` makes a sparse file and \
prints a warning.

Examples:
  flaz create /dev/nvme0n1p3 --origin /dev/sdb
  flaz create /dev/disk/by-id/SSD --origin /dev/disk/by-id/DISK --name disk
  flaz create cache.img --size 20G --origin disk.img --codec zstd:3
  flaz create /dev/nvme0n1p3 --shared              for several volumes")]
pub struct CreateArgs {
    /// Cache device: a block device or a regular file. Its contents are overwritten
    #[arg(value_name = "CACHE")]
    pub cache: PathBuf,
    /// Device or file to cache. It is not changed
    #[arg(long, value_name = "ORIGIN", required_unless_present = "shared")]
    pub origin: Option<PathBuf>,
    /// Make a cache device that several volumes share, each with its own origin. Add volumes with `flaz volume add`. --region-size is
    /// then the size of the chunks in which volumes get space
    #[arg(long, conflicts_with_all = ["origin", "codec", "extent_size", "shards", "index_memory", "sparse", "name"])]
    pub shared: bool,
    /// Codec for new blocks
    // The codec registry provides the text, so that a new codec is one file.
    #[arg(long, value_name = "CODEC", default_value = "auto", help = format!("Codec for new blocks: {}", CodecChoice::choices()))]
    pub codec: CodecChoice,
    /// Size of a full extent, the unit of cache-device writes: 32KiB to 256KiB, a power of two
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = extent_size)]
    pub extent_size: u64,
    /// Size of a region, the unit of reclaim: 128KiB to 256MiB, a power of two [default: 16MiB, less for a small cache]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub region_size: Option<u64>,
    /// Number of shards, at least the number of threads that will serve the cache. It cannot be changed later. Fewer shards pack
    /// writes better in write-back [default: one per two cores, 8 at most, fewer in a small cache; at least one per TiB]
    #[arg(long, value_name = "N", value_parser = whole(1..=SHARDS_MAX))]
    pub shards: Option<u32>,
    /// Memory for the index when the cache is served. The rest of the index is in pages in an area of the cache device, a 64th of it,
    /// which cannot be added later; a start after a crash takes longer. Without this option the cache gets such an area
    /// if its index may take more than a quarter of this machine's memory
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub index_memory: Option<u64>,
    /// Create CACHE as a file of this size if it does not exist. Its space is allocated, so that the file system cannot become
    /// full while the cache is served. On ext4 and XFS, `create` also writes zeroes to it for at most 10 seconds, because the
    /// first write to allocated but unwritten space takes more processor time
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,
    /// With --size: create a sparse file, which takes space as the cache fills. If the file system becomes full, the cache stays
    /// smaller until there is space
    #[arg(long, requires = "size")]
    pub sparse: bool,
    /// Also write the configuration NAME: /etc/flaz/NAME.toml, or $XDG_CONFIG_HOME/flaz/NAME.toml for users other than
    /// root. An existing one is replaced only with --force
    #[arg(long, value_name = "NAME", value_parser = configuration_name)]
    pub name: Option<String>,
    /// Overwrite the contents of CACHE, even if idle LVM, device-mapper or loop devices use it. A device in use
    /// is still refused
    #[arg(long)]
    pub force: bool,
    /// With --force: overwrite even a flaz cache that contains dirty blocks, which are lost
    #[arg(long, requires = "force")]
    pub discard_dirty: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Maximum number of shards of a cache.
pub(crate) const SHARDS_MAX: u32 = flaz_engine::format::geometry::SHARDS_MAX;
/// Maximum number of NBD addresses of a daemon.
pub const NBD_ADDRESSES_MAX: usize = 16;

pub(crate) fn extent_size(text: &str) -> Result<u64, String> {
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
Runs in the foreground until SIGTERM, SIGINT or `flaz stop`, then stops cleanly; the next start is warm. A \
second signal stops at once, as a crash would. Under systemd (Type=notify), `serve` reports when it is \
ready.

With the NAME of a configuration, options on the command line override those in the file. A setting that has neither \
has the value that `flaz set` has stored in the cache, else the default.

The runtime directory is $FLAZ_RUNTIME_DIR if set, else /run/flaz for root, and $XDG_RUNTIME_DIR/flaz or \
/tmp/flaz-UID for others. FLAZ_LOG=debug in the environment logs more, FLAZ_LOG=warn less.

Examples:
  flaz serve disk                                  as configured in /etc/flaz/disk.toml
  flaz serve /dev/nvme0n1p3 --nbd unix:/run/flaz/disk.sock
  flaz serve cache.img --nbd tcp:127.0.0.1:10809 --insecure-tcp
  flaz serve cache.img --mode write-around
  flaz serve cache.img --metrics tcp:127.0.0.1:9750
  flaz serve /dev/nvme0n1p3 --ublk=disk            block device /dev/flaz/disk
  flaz serve /dev/nvme0n1p3 --nbd-device=disk      the same on a kernel without ublk
  nbdfuse mnt/disk nbd+unix:///?socket=/tmp/d.sock a file for losetup, without the nbd module
  flaz serve cache.img --emulate-origin hdd        emulate a slow origin")]
pub struct ServeArgs {
    /// Cache device created by `flaz create`, or the NAME of a configuration
    #[arg(value_name = "CACHE")]
    pub cache: PathBuf,
    /// The options that were given.
    #[arg(skip)]
    pub given: Given,
    /// The name of the configuration.
    #[arg(skip)]
    pub name: Option<String>,
    /// Path of the origin if it has changed since `flaz create`. It must be the same origin
    #[arg(long, value_name = "PATH")]
    pub origin: Option<PathBuf>,
    /// Address for NBD clients: unix:PATH (mode 0600) or tcp:HOST[:PORT]. May be repeated [default: unix:UUID.nbd in
    /// the runtime directory]
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Vec<NbdAddress>,
    /// Allow tcp: addresses for NBD, and network addresses for --metrics. Anyone who can reach an NBD port can read and
    /// write all data
    #[arg(long)]
    pub insecure_tcp: bool,
    /// Serve metrics for Prometheus at http://HOST:PORT/metrics, or the same on a Unix socket (mode 0600): tcp:HOST:PORT or
    /// unix:PATH. A HOST other than localhost, 127.x.x.x and [::1] requires --insecure-tcp
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<MetricsAddress>,
    /// Serve a block device on this machine, /dev/flaz/NAME, with the ublk driver of Linux 6.1 or later; over NBD only if
    /// --nbd is also given. NAME is by default that of the configuration, or the UUID of the cache
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, value_parser = device_name, group = "device")]
    pub ublk: Option<Option<String>>,
    /// Like --ublk, with the NBD client of Linux 5.14 or later: slower, for kernels without ublk, and not for swap space. The
    /// device is the first that is unused, or /dev/nbdN
    #[arg(long, value_name = "NAME|/dev/nbdN", num_args = 0..=1, require_equals = true, value_parser = nbd_device,
        group = "device")]
    pub nbd_device: Option<Option<NbdDevice>>,
    /// With a block device: leave it in place at a clean stop. Its requests then wait for the next start
    #[arg(long, requires = "device")]
    pub keep_device: bool,
    /// With a block device: bytes of a logical block, 512 or 4096 [default: those of the origin; 512 for a file]
    #[arg(long, value_name = "BYTES", requires = "device", value_parser = block_size)]
    pub block_size: Option<u32>,
    /// With --ublk: number of queues [default: one per thread]
    #[arg(long, value_name = "N", requires = "ublk", conflicts_with = "nbd_device", value_parser = whole(1..=THREADS_MAX))]
    pub ublk_queues: Option<u32>,
    /// With --ublk: requests in flight of each queue [default: 64]
    #[arg(long, value_name = "N", requires = "ublk", conflicts_with = "nbd_device", value_parser = whole(1..=1024_u32))]
    pub ublk_depth: Option<u32>,
    /// When a write is acknowledged, and what happens to the cached copy [default: as set with `flaz set`, else
    /// write-through]
    #[arg(long, value_name = "MODE", value_parser = choice::<Mode>())]
    pub mode: Option<Mode>,
    /// Number of threads that run shards [default: one per two cores]
    #[arg(long, value_name = "N", value_parser = whole(1..=THREADS_MAX))]
    pub threads: Option<u32>,
    /// Memory for the index and all else that grows with the cache. Less than the whole index needs a cache that was created with
    /// --index-memory [default: as created, else all of the index, or a quarter of this machine's memory if that is less]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub index_memory: Option<u64>,
    /// Admission and replacement policy [default: as set, else s3-fifo]
    #[arg(long, value_name = "POLICY", value_parser = choice::<PolicyKind>())]
    pub policy: Option<PolicyKind>,
    /// Do not cache sequential runs longer than this; 0 caches all runs [default: as set, else 0]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub sequential_cutoff: Option<u64>,
    /// Maximum share of the cache device for dirty data, in percent (1 to 50) [default: as set, else 25]
    #[arg(long, value_name = "PERCENT", value_parser = parse_dirty_limit)]
    pub dirty_limit: Option<u8>,
    /// In write-back, when to record that data was flushed. After a crash, damage is detected only in recorded data
    /// [default: as set, else auto]
    #[arg(long, value_name = "WHEN", value_parser = choice::<StrictFlush>())]
    pub strict_flush: Option<StrictFlush>,
    /// Limit of the bytes written to the cache device: per day (40GB/day), or drive writes per day (0.5DWPD) of the space for
    /// data. Client writes in write-back count, and are never refused; the less budget is left, the fewer other blocks are
    /// stored [default: as set, else none]
    #[arg(long, value_name = "BUDGET", value_parser = parse_write_budget)]
    pub write_budget: Option<WriteBudget>,
    /// Codec for new blocks
    #[arg(long, value_name = "CODEC",
        help = format!("Codec for new blocks: {} [default: as set, else as created]", CodecChoice::choices()))]
    pub codec: Option<CodecChoice>,
    /// Start with an empty cache, for example after the origin was changed without flaz
    #[arg(long)]
    pub discard_cache: bool,
    /// With --discard-cache: discard even dirty blocks, which have not been written to the origin
    #[arg(long, requires = "discard_cache")]
    pub discard_dirty: bool,
    /// State of the cache after a crash. warm costs a small write to the cache device before the first write to each
    /// MiB of the origin; cold costs nothing, but the cache is empty after a crash
    #[arg(long, value_name = "STATE", value_parser = choice::<AfterCrash>(), default_value_t = AfterCrash::Warm)]
    pub after_crash: AfterCrash,
    /// Bypass the cache device until the next start if an I/O takes longer than SECONDS; 0 disables the timeout. In
    /// write-back, or while dirty data remains, flaz waits for the device instead
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = device_timeout)]
    pub device_timeout: Duration,
    /// Directory for per-host state used to detect stale or rolled-back cache devices [default: /var/lib/flaz for root,
    /// else flaz in $XDG_STATE_HOME]
    #[arg(long, value_name = "DIRECTORY")]
    pub state_dir: Option<PathBuf>,
    /// Reject writes from clients
    #[arg(long)]
    pub read_only: bool,
    /// Control socket for status, set and stop [default: UUID.sock in the runtime directory]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Slow the origin down to this kind of device, for demonstrations and tests
    #[arg(long, value_name = "DEVICE", value_parser = choice::<Emulation>())]
    pub emulate_origin: Option<Emulation>,
    /// Slow the cache device down to this kind of device, for demonstrations and tests
    #[arg(long, value_name = "DEVICE", value_parser = choice::<Emulation>())]
    pub emulate_cache: Option<Emulation>,
}

impl ServeArgs {
    /// The settings that were given.
    #[must_use]
    pub fn settings(&self) -> SettingsPatch {
        SettingsPatch {
            mode: self.mode,
            policy: self.policy,
            codec: self.codec,
            sequential_cutoff: self.sequential_cutoff,
            dirty_limit: self.dirty_limit,
            strict_flush: self.strict_flush,
            write_budget: self.write_budget,
        }
    }

    /// The name of the block device, if there is one and it does not follow from the cache.
    #[must_use]
    pub fn device_name(&self) -> Option<String> {
        let named = match (&self.ublk, &self.nbd_device) {
            (Some(name), _) => name.clone(),
            (None, Some(Some(NbdDevice::Name(name)))) => Some(name.clone()),
            (None, Some(_)) => None,
            (None, None) => return None,
        };
        named.or_else(|| self.name.clone())
    }
}

/// The cache that a command addresses: by its device, or by its control socket.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct TargetArgs {
    /// Cache device, or the NAME of a configuration. The cache's UUID determines the default control socket; if the device
    /// cannot be read, its daemon is found by the path
    #[arg(value_name = "CACHE")]
    pub cache: Option<PathBuf>,
    /// Control socket, if not at the default path
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Why the configuration that named them is refused.
    #[arg(skip)]
    pub refused: Option<String>,
}

/// `flaz status`.
#[derive(Args, Debug)]
#[command(after_help = crate::page::terms::EXAMPLES, after_long_help = crate::page::terms::help())]
pub struct StatusArgs {
    /// The cache.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How a cache that is not running would be opened.
    #[command(flatten)]
    pub idle: IdleArgs,
    /// Show all settings, counters, latencies and queues; log more
    // The same identifier as the log option, which it replaces here: both have the value.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Print JSON (with --watch, one line per report)
    #[arg(long)]
    pub json: bool,
    /// Repeat every SECONDS until interrupted [default without a value: 2]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = interval)]
    pub watch: Option<Duration>,
}

/// `flaz list`.
#[derive(Args, Debug)]
#[command(after_help = "\
Lists the configurations in /etc/flaz (for users other than root, those in $XDG_CONFIG_HOME/flaz before it), and running \
caches without a configuration, which have no name. Only root sees the caches of other users. HITS is the share of \
blocks that were read from the cache since its start. DIRTY is the data that the origin lacks; for a cache that is not \
running, `list` only shows whether there may be dirty data.

States: running, starting, stopping; degraded: served from the origin only; clean, unclean: not running, after a clean stop \
or a crash; new: never served, or detached; missing, unreadable: the cache device; silent: its daemon does not answer; \
invalid: the configuration is refused, and the exit status is 1.

Examples:
  flaz list
  flaz list --json | jq '.caches[] | select(.state == \"degraded\")'")]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `flaz set`.
#[derive(Args, Debug)]
#[command(override_usage = "flaz set [OPTIONS] <CACHE | --control PATH> <KEY=VALUE>...")]
#[command(after_help = format!("\
Keys:
  mode               {}
  policy, admission  {}
  codec              as for `flaz create --codec`; for new blocks only
  sequential-cutoff  a size; longer sequential runs are not cached; 0 caches all runs
  dirty-limit        maximum dirty data on the cache device: 1 to 50 percent
  strict-flush       auto, always or never; see `flaz serve --help`
  write-budget       bytes per day (40GB/day), drive writes per day (0.5DWPD) or none; see `flaz serve --help`

Changes take effect at once. They are stored in the cache for later starts, unless --until-restart is given; an option of \
`flaz serve`, or a key of the configuration, overrides the stored value at a start. Either all keys are changed or none.

Examples:
  flaz set /dev/nvme0n1p3 mode=write-around
  flaz set disk mode=pass-through --until-restart
  flaz set --control mine.sock codec=zstd:3 sequential-cutoff=4M", names::<Mode>(), names::<PolicyKind>()))]
pub struct SetArgs {
    /// Cache device (omit it with --control), then the settings to change
    #[arg(value_name = "CACHE | KEY=VALUE", required = true)]
    pub words: Vec<OsString>,
    /// Control socket, if not at the default path
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Do not store the change: the next start uses the previous settings
    #[arg(long)]
    pub until_restart: bool,
    /// Print the resulting settings as JSON
    #[arg(long)]
    pub json: bool,
}

/// How to open a cache that is not running, for the duration of a command.
#[derive(Args, Debug)]
pub struct IdleArgs {
    /// If the cache is not running: path of the origin, if it has changed
    #[arg(long, value_name = "PATH")]
    pub origin: Option<PathBuf>,
    /// If the cache is not running: directory for per-host state, as in `flaz serve`
    #[arg(long, value_name = "DIRECTORY")]
    pub state_dir: Option<PathBuf>,
}

/// `flaz flush`.
#[derive(Args, Debug)]
#[command(after_help = "\
In write-back, dirty blocks stay on the cache device until they are written back. `flush` writes all of them \
to the origin, then returns; clients are not interrupted. If the cache is not running, \
`flush` opens it for this purpose. After Ctrl-C, writeback continues at its usual pace.

Example:
  flaz flush /dev/nvme0n1p3")]
pub struct FlushArgs {
    /// The cache.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How to open a cache that is not running.
    #[command(flatten)]
    pub idle: IdleArgs,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// `flaz detach`.
#[derive(Args, Debug)]
#[command(after_help = "\
Writes all dirty blocks to the origin, stops the daemon if one is running, and marks the cache empty. The \
origin is then complete and can be used without flaz, and the cache device can be reused or served again. While NBD \
clients are connected, or the block device is mounted or open, `detach` refuses and names them. With --force, NBD clients \
are disconnected; a block device in use is refused all the same.

After Ctrl-C, the cache is not detached: the daemon serves it as before, in the same mode. Run `detach` again to continue.

Example:
  flaz detach /dev/nvme0n1p3")]
pub struct DetachArgs {
    /// The cache.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How to open a cache that is not running.
    #[command(flatten)]
    pub idle: IdleArgs,
    /// Detach even if NBD clients are connected
    #[arg(long)]
    pub force: bool,
}

/// `flaz stop`.
#[derive(Args, Debug)]
#[command(after_help = "\
Returns when the daemon has completed the requests in flight and closed the cache. While NBD clients are \
connected, or the block device is mounted or open, `stop` refuses and names them; a device that is kept \
(`flaz serve --keep-device`) may be in use. With --force, clients are disconnected, and requests to a block \
device in use wait for the next start. SIGTERM stops the daemon as --force does.

Examples:
  flaz stop /dev/nvme0n1p3 --timeout 30
  flaz stop /dev/nvme0n1p3 --if-idle")]
pub struct StopArgs {
    /// The cache.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Stop even if clients are connected or the block device is in use
    #[arg(long)]
    pub force: bool,
    /// If the cache is in use, leave it running, print its users and succeed
    #[arg(long, conflicts_with = "force")]
    pub if_idle: bool,
    /// Stop waiting after SECONDS. The daemon continues to shut down
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = interval)]
    pub timeout: Duration,
}

/// `flaz check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Reads the whole cache device and verifies the superblock, headers and checksums, and that every fragment \
decompresses. Prints the number of valid and invalid objects of each kind. Changes nothing. Exit status 1 if an \
error is found. Each volume of a shared device is checked on its own; offsets are those in its part of the device.

Examples:
  flaz check /dev/nvme0n1p3
  flaz check /dev/nvme0n1p3:home                   a volume of a shared device
  flaz check cache.img --json | jq .bad")]
pub struct CheckArgs {
    /// Cache device (DEVICE:VOLUME if several volumes share it), or the NAME of a configuration
    #[arg(value_name = "CACHE")]
    pub cache: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `flaz remove-device`.
#[derive(Args, Debug)]
#[command(after_help = "\
When the server of `flaz serve --ublk` or `--nbd-device` is gone, the requests of its block device wait for the next server. If the \
server cannot return, because the cache device is lost, `remove-device` removes the block device: waiting requests fail with an \
I/O error, and data that users of the device have not yet written is lost. The cache and the origin are not changed.

It refuses a device that has a server, and, without --force, one that is mounted or open. To release a mounted file system, \
remove the device with --force, then unmount.

Examples:
  flaz remove-device disk
  flaz remove-device /dev/flaz/disk --force")]
pub struct RemoveDeviceArgs {
    /// Name of the block device, or of its configuration
    #[arg(value_name = "NAME|/dev/flaz/NAME", value_parser = left_device)]
    pub name: String,
    /// Remove the device even if it is in use
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// `flaz dump`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints one line for each superblock, region, extent, record and fragment, and for all other metadata; with \
--json, one JSON object per line. Block contents are not shown. Each volume of a shared device is listed on its own; \
offsets are those in its part of the device.

Examples:
  flaz dump /dev/nvme0n1p3 | less
  flaz dump /dev/nvme0n1p3:home | less             a volume of a shared device
  flaz dump cache.img --json | jq 'select(.kind == \"region\")'")]
pub struct DumpArgs {
    /// Cache device (DEVICE:VOLUME if several volumes share it), or the NAME of a configuration
    #[arg(value_name = "CACHE")]
    pub cache: PathBuf,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// `flaz generate`, for packagers.
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// What to generate
    #[command(subcommand)]
    pub what: Generate,
}

/// What `flaz generate` writes.
#[derive(Subcommand, Debug)]
pub enum Generate {
    /// Shell completions, to standard output
    Completions {
        /// Shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Manual pages, one file per command
    Man {
        /// Existing directory to write to
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },
    /// Drop-ins for flaz@NAME.service of each configuration, which order it after its devices
    Systemd {
        /// Existing directory to write to, for example the first one that systemd gives to a generator
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },
    /// JSON schemas of the output of commands, one file per command
    Schemas {
        /// Existing directory to write to
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },
}

/// Longest interval or timeout in seconds: one year.
const INTERVAL_MAX_S: f64 = 365.0 * 86_400.0;

pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "expected a number of seconds, for example 2 or 0.5".to_owned())?;
    if !(0.1..=INTERVAL_MAX_S).contains(&seconds) {
        return Err("expected 0.1 seconds to one year".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The last part of a path below `/dev/flaz`.
pub(crate) fn device_name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || text.starts_with('.') || text.len() > 64 || !text.bytes().all(fits) {
        return Err(
            "expected at most 64 letters, digits, '-', '_' and '.', not beginning with '.'".to_owned(),
        );
    }
    Ok(text.to_owned())
}

/// The name of a configuration: it can also be a part of `/dev/flaz/NAME` and of a unit's name. A word that ends like its file is
/// the path of the file.
pub(crate) fn configuration_name(text: &str) -> Result<String, String> {
    match text.strip_suffix(".toml") {
        Some(name) => Err(format!(
            "expected a name that does not end in '.toml', for example '{name}': its file is NAME.toml"
        )),
        None => device_name(text),
    }
}

fn left_device(text: &str) -> Result<String, String> {
    device_name(text.strip_prefix("/dev/flaz/").unwrap_or(text))
        .map_err(|expected| format!("expected /dev/flaz/NAME, or NAME: {expected}"))
}

/// What `--nbd-device` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdDevice {
    /// Any device, with this name.
    Name(String),
    /// The device of this number.
    Number(u32),
}

fn nbd_device(text: &str) -> Result<NbdDevice, String> {
    let number = text
        .strip_prefix("/dev/nbd")
        .and_then(|digits| whole(0..=NBD_NUMBER_MAX)(digits).ok());
    match number {
        Some(number) => Ok(NbdDevice::Number(number)),
        None => device_name(text).map(NbdDevice::Name).map_err(|expected| {
            format!(
                "expected /dev/nbdN, or a name: {}",
                expected.trim_start_matches("expected ")
            )
        }),
    }
}

fn block_size(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" => Ok(4096),
        _ => Err("expected 512 or 4096".to_owned()),
    }
}

fn device_timeout(text: &str) -> Result<Duration, String> {
    if text.parse() == Ok(0.0) {
        return Ok(Duration::ZERO);
    }
    interval(text).map_err(|expected| format!("{expected}, or 0 for no timeout"))
}

/// Values that may end in a unit. clap recognises a negative number only by its digits, so these need an extra setting.
const WITH_UNITS: [&str; 5] = ["SIZE", "SIZES", "LEVELS", "PERCENT", "PCT"];

/// Parses the command line.
///
/// # Errors
/// Help, the version, or a usage error.
pub fn parse<I>(args: I) -> Result<Cli, clap::Error>
where
    I: IntoIterator<Item: Into<OsString> + Clone>,
{
    let mut command = with_negative_values(Cli::command());
    let matches = command
        .try_get_matches_from_mut(args)
        .map_err(|error| improved(error, &command))?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    if let Command::Serve(serve) = &mut cli.command
        && let (Some(command), Some(matches)) = (
            command.find_subcommand("serve"),
            matches.subcommand_matches("serve"),
        )
    {
        serve.given = Given::of(command, matches);
    }
    Ok(cli)
}

/// No option name is a number, so a negative number is a value. Its parser rejects it and says what was expected.
pub(crate) fn with_negative_values(command: clap::Command) -> clap::Command {
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
mod tests;
