//! `flaz volume`: changes what a cache serves.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{output, target};
use crate::args::TargetArgs;
use crate::control::{Reply, Request};
use crate::error::Failure;
use crate::host;
use crate::report::{FrontEndSizeReport, VolumeResizeReport};
use crate::size::HumanBytes;

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
    /// Serve all of an origin that has grown
    Resize(ResizeArgs),
}

/// `flaz volume resize`.
#[derive(Args, Debug)]
#[command(after_help = "\
A cache serves as many bytes as the origin had when it was created. After the origin has grown (lvextend, a larger file), \
`volume resize` takes over its new size, while the cache is served or not; clients are not interrupted, and nothing is lost \
from the cache. An origin that has become smaller is refused.

NBD clients see the new size when they connect the next time. A block device of --nbd-device has it at once; so has one of \
--ublk on Linux 6.16 and later. On earlier kernels a ublk device keeps its old size until it is made anew: unmount it, stop the \
cache without --keep-device, and serve it again. The output says what applies. The file system is grown afterwards, for example \
with resize2fs or xfs_growfs.

A cache has room for an origin that is four times as large as at its creation, or 64 times as large as the cache if that is more.

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
        VolumeCommand::Resize(args) => resize(args),
    }
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
