//! `flaz volume`: the volumes of a shared cache device, and an origin that has grown.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use flaz_codec::CodecChoice;
use flaz_engine::write_budget::WriteBudget;

use super::create::{ORIGIN_MISSING, origin};
use super::{output, target};
use crate::args::{SHARDS_MAX, TargetArgs, device_name, extent_size};
use crate::configuration;
use crate::configuration::Configuration;
use crate::configuration::draft::{Draft, Wanted};
use crate::control::{Reply, Request};
use crate::error::Failure;
use crate::host;
use crate::host::pool::Place;
use crate::host::pool::manage::{self, Share, VolumeSpec};
use crate::number::whole;
use crate::page;
use crate::report::{FrontEndSizeReport, SharedReport, VolumeReport, VolumeResizeReport};
use crate::safety::{self, OriginAdvice};
use crate::settings::parse_write_budget;
use crate::size::{self, HumanBytes};

/// How long the daemon may take: the driver of a block device waits for the requests in flight.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// `flaz volume`.
#[derive(Args, Debug)]
pub struct VolumeArgs {
    /// What to do
    #[command(subcommand)]
    pub what: VolumeCommand,
}

/// The commands of `flaz volume`.
#[derive(Subcommand, Debug)]
pub enum VolumeCommand {
    /// Add a volume to a shared cache device
    Add(AddArgs),
    /// Remove a volume that is not served, and free its space
    Remove(RemoveArgs),
    /// List the volumes of a shared cache device
    List(ListArgs),
    /// Change the share of a volume
    Set(SetArgs),
    /// Serve all of an origin that has grown
    Resize(ResizeArgs),
}

/// `flaz volume add`.
#[derive(Args, Debug)]
#[command(after_help = "\
Up to 64 volumes share a cache device made by `flaz create --shared`. Each has its own origin, mode, front ends, statistics and \
process. Commands accept DEVICE:NAME, or the NAME of the volume's configuration, as a cache. A volume gets space when it needs it. \
When the device is full, space moves to the volume with more misses on recently evicted blocks. `add` does not interrupt other \
volumes.

Examples:
  flaz create /dev/nvme0n1p3 --shared
  flaz volume add /dev/nvme0n1p3 home --origin /dev/sdb --name home
  flaz serve /dev/nvme0n1p3:home --ublk=home
  flaz volume add /dev/nvme0n1p3 db --origin /dev/sdc --at-least 50G --at-most 200G
  flaz status /dev/nvme0n1p3:db")]
pub struct AddArgs {
    /// Shared cache device
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Name of the volume: letters, digits, '-', '_' and '.'
    #[arg(value_name = "NAME", value_parser = device_name)]
    pub volume: String,
    /// Device or file to cache. It is not changed
    #[arg(long, value_name = "ORIGIN")]
    pub origin: PathBuf,
    /// Codec for new blocks
    #[arg(long, value_name = "CODEC", default_value = "auto", help = format!("Codec for new blocks: {}", CodecChoice::choices()))]
    pub codec: CodecChoice,
    /// Size of a full extent, the unit of cache-device writes: 32KiB to 256KiB, a power of two
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = extent_size)]
    pub extent_size: u64,
    /// Number of shards, at least the number of threads that will serve the volume [default: one per two cores, 8 at most, fewer on a
    /// small device]
    #[arg(long, value_name = "N", value_parser = whole(1..=SHARDS_MAX))]
    pub shards: Option<u32>,
    /// The share of the volume.
    #[command(flatten)]
    pub share: ShareArgs,
    /// Also write the configuration CONFIGURATION: /etc/flaz/CONFIGURATION.toml, or $XDG_CONFIG_HOME/flaz/CONFIGURATION.toml for
    /// users other than root. An existing one is replaced only with --force
    #[arg(long = "name", value_name = "CONFIGURATION", value_parser = device_name)]
    pub configuration: Option<String>,
    /// Add the volume even if the origin contains a flaz cache or the configuration exists
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// The share of a volume.
#[derive(Args, Debug)]
pub struct ShareArgs {
    /// Space reserved for this volume, even while it does not use it; 0: none
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub at_least: Option<u64>,
    /// Maximum space of the volume; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub at_most: Option<u64>,
}

impl ShareArgs {
    fn share(&self) -> Share {
        Share {
            at_least: self.at_least,
            at_most: self.at_most,
        }
    }
}

/// `flaz volume remove`.
#[derive(Args, Debug)]
#[command(after_help = "\
Stop the volume first. A volume with dirty blocks is refused: `flaz flush DEVICE:NAME` writes them to its origin. Its configuration \
is not removed.

Example:
  flaz stop /dev/nvme0n1p3:home && flaz flush /dev/nvme0n1p3:home && flaz volume remove /dev/nvme0n1p3 home")]
pub struct RemoveArgs {
    /// Shared cache device
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// The volume
    #[arg(value_name = "NAME")]
    pub volume: String,
    /// Remove the volume even if it has, or may have, dirty blocks, which are lost
    #[arg(long)]
    pub discard_dirty: bool,
}

/// `flaz volume list`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  flaz volume list /dev/nvme0n1p3 --json | jq -r '.volumes[] | select(.may_be_dirty) | .name'")]
pub struct ListArgs {
    /// Shared cache device
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// `flaz volume set`.
#[derive(Args, Debug)]
#[command(after_help = "\
A volume above its new limit gives space back within about a minute if it is served, else when it is next served.

Without a volume, --write-budget limits the bytes that all volumes together write to the device; each takes what it needs. A volume \
can also have a smaller budget of its own: `flaz set DEVICE:NAME write-budget=..`. Dirty data is always stored, and counts.

Examples:
  flaz volume set /dev/nvme0n1p3 db --at-least 80G --at-most 0
  flaz volume set /dev/nvme0n1p3 --write-budget 0.5DWPD")]
pub struct SetArgs {
    /// Shared cache device
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// The volume whose share changes
    #[arg(value_name = "NAME")]
    pub volume: Option<String>,
    /// The share of the volume.
    #[command(flatten)]
    pub share: ShareArgs,
    /// Limit of the bytes that all volumes write to the device: bytes per day (40GB/day), drive writes per day (0.5DWPD) of the
    /// present size of the device, or none
    #[arg(long, value_name = "BUDGET", value_parser = parse_write_budget, conflicts_with_all = ["volume", "at_least", "at_most"])]
    pub write_budget: Option<WriteBudget>,
}

/// `flaz volume resize`.
#[derive(Args, Debug)]
#[command(after_help = "\
A cache serves the size that its origin had at creation. After the origin has grown (lvextend, a larger file), \
`volume resize` makes the cache serve its new size, whether the cache is served or not; clients are not interrupted, and the cache \
keeps its contents. An origin that has shrunk is refused.

NBD clients see the new size when they reconnect. A block device of --nbd-device, or of --ublk on Linux 6.16 and later, has it at \
once. On earlier kernels a ublk device keeps its old size until it is removed and created again: unmount it, stop the \
cache without --keep-device, and serve it again. The output says what applies. Then grow the file system, for example \
with resize2fs or xfs_growfs.

A cache has room for an origin four times as large as at creation, or 64 times as large as the cache if that is more.

Examples:
  flaz volume resize disk
  flaz volume resize /dev/nvme0n1p3 --json | jq .bytes")]
pub struct ResizeArgs {
    /// The cache.
    #[command(flatten)]
    pub target: TargetArgs,
    /// If the cache is not running: path of the origin, if it has changed
    #[arg(long, value_name = "PATH")]
    pub origin: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs `flaz volume`.
///
/// # Errors
/// Those of its commands.
pub fn run(args: &VolumeArgs) -> Result<(), Failure> {
    match &args.what {
        VolumeCommand::Add(args) => add(args),
        VolumeCommand::Remove(args) => remove(args),
        VolumeCommand::List(args) => list(args),
        VolumeCommand::Set(args) => set(args),
        VolumeCommand::Resize(args) => resize(args),
    }
}

/// Runs `flaz volume add`.
fn add(args: &AddArgs) -> Result<(), Failure> {
    let advice = OriginAdvice {
        missing: ORIGIN_MISSING,
        is_cache: "expected the device or file to cache. Check the order, `flaz volume add DEVICE NAME --origin ORIGIN`; if this is the \
                   origin, use --force",
    };
    let origin = origin(&args.origin, args.force, &advice)?;
    safety::refuse_overlap(&safety::cache(&args.device)?, &origin)?;
    let draft = args.configuration.as_deref().map(|name| {
        Draft::of(Wanted {
            name,
            cache: &args.device,
            volume: Some(&args.volume),
            origin: &args.origin,
            replace: args.force,
        })
    });
    let draft = draft.transpose()?;
    let spec = VolumeSpec {
        device: args.device.clone(),
        name: args.volume.clone(),
        origin: args.origin.clone(),
        codec: args.codec,
        extent_bytes: args.extent_size,
        shards: args.shards,
        share: args.share.share(),
    };
    let report = manage::add(&spec).map_err(Failure::host("volume add", &args.device))?;
    if let Some(draft) = draft {
        draft.write()?;
    }
    if args.json {
        return output::print_json(&report, true);
    }
    // The share is rounded to whole chunks.
    let listed = manage::list(&args.device).map_err(Failure::host("volume add", &args.device))?;
    let volume = listed.volumes.iter().find(|volume| volume.name == args.volume);
    let name = configuration::of_cache(&report.cache.path).map(|found| found.name);
    output::confirm(&page::added(&report, volume, name.as_deref()))
}

/// Runs `flaz volume remove`.
fn remove(args: &RemoveArgs) -> Result<(), Failure> {
    refuse_name("remove", &args.device)?;
    let state_dir = configuration::state_dir_of(Path::new(&Place::path_of(&args.device, &args.volume)));
    manage::remove(
        &args.device,
        &args.volume,
        args.discard_dirty,
        state_dir.as_deref(),
    )
    .map_err(Failure::host("volume remove", &args.device))?;
    output::confirm(&format!(
        "removed volume {} of {}\n",
        args.volume,
        args.device.display()
    ))
}

/// Runs `flaz volume set`.
fn set(args: &SetArgs) -> Result<(), Failure> {
    refuse_name("set", &args.device)?;
    let failure = Failure::host("volume set", &args.device);
    let Some(volume) = &args.volume else {
        let Some(budget) = args.write_budget else {
            return Err(Failure::Usage(
                "volume set: expected NAME with --at-least SIZE or --at-most SIZE, or --write-budget BUDGET for all volumes"
                    .to_owned(),
            ));
        };
        manage::set_budget(&args.device, budget).map_err(failure)?;
        let report = manage::list(&args.device).map_err(Failure::host("volume set", &args.device))?;
        return output::confirm(&head(&report.cache));
    };
    let share = args.share.share();
    if share == Share::default() {
        return Err(Failure::Usage(
            "volume set: expected --at-least SIZE or --at-most SIZE".to_owned(),
        ));
    }
    manage::set_share(&args.device, volume, share).map_err(failure)?;
    let report = manage::list(&args.device).map_err(Failure::host("volume set", &args.device))?;
    let volumes = report.volumes.iter().filter(|listed| listed.name == *volume);
    output::confirm(&table(volumes))
}

/// Refuses the name of a volume's configuration in place of its device.
fn refuse_name(command: &str, device: &Path) -> Result<(), Failure> {
    let name = device
        .to_str()
        .filter(|name| configuration::is_name(name) && !device.exists());
    let found = name
        .and_then(configuration::find)
        .and_then(|path| Configuration::read(&path).ok());
    let Some(place) = found
        .map(|found| Place::of(&found.cache))
        .filter(|place| place.volume.is_some())
    else {
        return Ok(());
    };
    Err(Failure::Usage(format!(
        "volume {command}: expected the path of the shared device; {} is a volume of {}",
        device.display(),
        place.device.display()
    )))
}

/// Runs `flaz volume list`.
fn list(args: &ListArgs) -> Result<(), Failure> {
    refuse_name("list", &args.device)?;
    let report = manage::list(&args.device).map_err(Failure::host("volume list", &args.device))?;
    if args.json {
        return output::print_json(&report, true);
    }
    for volume in &report.volumes {
        if let Some(problem) = &volume.problem {
            tracing::warn!("volume {}: {problem}", volume.name);
        }
    }
    let head = head(&report.cache);
    output::print(&match report.volumes.is_empty() {
        true => format!("{head}no volumes: `flaz volume add` adds one\n"),
        false => head + &table(report.volumes.iter()),
    })
}

/// The space of a device, and its write budget, in a line.
fn head(space: &SharedReport) -> String {
    let shrink = space.shrink.map_or_else(String::new, |shrink| {
        let (size, left) = (HumanBytes(shrink.size_bytes), HumanBytes(shrink.left_bytes));
        format!(", shrinking to {size}: {left} to move")
    });
    let budget = space.write_budget.map_or_else(String::new, |budget| {
        let left = match budget.owed_bytes {
            0 => format!("{} left", HumanBytes(budget.left_bytes)),
            owed => format!("{} owed", HumanBytes(owed)),
        };
        format!(
            ", write budget {} per day, {left}",
            HumanBytes(budget.bytes_per_day)
        )
    });
    format!(
        "{}: {} for volumes, {} free{shrink}{budget}\n",
        space.path.display(),
        HumanBytes(space.size_bytes),
        HumanBytes(space.free_bytes)
    )
}

/// Volumes as lines.
fn table<'a>(volumes: impl Iterator<Item = &'a VolumeReport>) -> String {
    let head = ["NAME", "STATE", "ORIGIN", "MODE", "SPACE", "AT LEAST", "AT MOST"].map(str::to_owned);
    let rows: Vec<_> = [head].into_iter().chain(volumes.map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column).unwrap_or(0);
            // Numbers are aligned on the right.
            match column < 4 {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

fn row(volume: &VolumeReport) -> [String; 7] {
    let nothing = || "-".to_owned();
    let bytes = |bytes: Option<u64>| match bytes {
        None | Some(0) => nothing(),
        Some(bytes) => HumanBytes(bytes).to_string(),
    };
    let origin = volume.origin.as_ref().map(|origin| short(&origin.path));
    [
        volume.name.clone(),
        volume
            .state
            .map_or("unreadable", super::list::state_name)
            .to_owned(),
        origin.unwrap_or_else(nothing),
        volume.mode.map_or_else(nothing, |mode| mode.to_string()),
        HumanBytes(volume.held_bytes).to_string(),
        bytes(Some(volume.at_least_bytes)),
        bytes(volume.at_most_bytes),
    ]
}

fn short(path: &Path) -> String {
    super::list::short(path)
}

/// Runs `flaz volume resize`.
fn resize(args: &ResizeArgs) -> Result<(), Failure> {
    let (cache, control) = (args.target.cache.as_deref(), args.target.control.as_deref());
    let report = match target::find(cache, control)? {
        Some(mut client) => match client.ask(&Request::VolumeResize {}, ANSWER_WITHIN)? {
            Reply::VolumeResized(report) => report,
            _ => return Err(client.unexpected("volume resize").into()),
        },
        None => {
            let cache = cache.ok_or_else(|| Failure::Usage("expected CACHE or --control PATH".to_owned()))?;
            host::resize_volume(cache, args.origin.as_deref())
                .map_err(Failure::host("volume resize", cache))?
        }
    };
    if args.json {
        return output::print_json(&report, true);
    }
    output::confirm(&text(&report))
}

fn text(report: &VolumeResizeReport) -> String {
    let (before, now) = (report.bytes_before, report.bytes);
    let mut text = if before == now {
        format!(
            "the volume has the size of its origin: {} ({now} bytes)\n",
            HumanBytes(now)
        )
    } else {
        format!(
            "resized from {} ({before} bytes) to {} ({now} bytes)\n",
            HumanBytes(before),
            HumanBytes(now)
        )
    };
    for FrontEndSizeReport {
        name,
        up_to_date: _,
        advice,
    } in &report.front_ends
    {
        let state = advice.as_deref().unwrap_or("has the new size");
        text += &format!("{name}: {state}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_front_end_has_a_line() {
        let front_end = |name: &str, advice: Option<&str>| FrontEndSizeReport {
            name: name.to_owned(),
            up_to_date: advice.is_none(),
            advice: advice.map(str::to_owned),
        };
        let report = VolumeResizeReport {
            bytes_before: 1 << 30,
            bytes: 2 << 30,
            front_ends: vec![
                front_end("unix:/s", Some("1 connection keeps the old size: connect again")),
                front_end("/dev/flaz/disk", None),
            ],
        };
        assert_eq!(
            text(&report),
            "resized from 1.00 GiB (1073741824 bytes) to 2.00 GiB (2147483648 bytes)\n\
             unix:/s: 1 connection keeps the old size: connect again\n\
             /dev/flaz/disk: has the new size\n"
        );
        let same = VolumeResizeReport {
            bytes_before: 2 << 30,
            ..report
        };
        assert!(
            text(&same).starts_with("the volume has the size of its origin: 2.00 GiB (2147483648 bytes)\n")
        );
    }
}
