//! `flaz resize`: use more of the cache device, or less of it.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::clean::with_idle;
use super::{output, target};
use crate::args::{IdleArgs, TargetArgs};
use crate::configuration::{self, Given};
use crate::control::{Client, Reply, Request};
use crate::error::Failure;
use crate::host::Resize;
use crate::host::pool::shrink::Help;
use crate::host::pool::{Place, manage, place::is_shared};
use crate::host::{Daemon, HostError};
use crate::report::{ResizeReport, ShrinkProgress};
use crate::size::{self, HumanBytes, counted};

/// `flaz resize`.
#[derive(Args, Debug)]
#[command(after_help = "\
Clients are not interrupted. If the cache is not running, `resize` opens it for this purpose. A cache can grow to eight times the \
size with which it was created.

To shrink, `resize` first writes dirty data that will not fit to the origin, then drops or moves the blocks at the end of the cache; \
this reads and writes up to the whole cache. If it is interrupted, the cache keeps its size, and has lost only cached blocks. \
Shrink the LVM volume or partition after the cache, and only to the new size of the cache.

If volumes share the device, those that do not fit give space back in proportion, down to --at-least; then the chunks \
beyond the new end are moved. Volumes that are not served are opened if they have to give space back.

Examples:
  lvextend -L 200G vg/ssd && flaz resize /dev/vg/ssd
  flaz resize /dev/vg/ssd --size 100G && lvreduce -L 100G vg/ssd
  flaz resize cache.img --size 20G")]
pub struct ResizeArgs {
    /// The cache.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How to open a cache that is not running.
    #[command(flatten)]
    pub idle: IdleArgs,
    /// Bytes of the cache device to use. A file gets this size; its space is allocated unless it is sparse [default: all of the
    /// device or file]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// How long the daemon may take for one step: a file may have to be allocated.
const ANSWER_WITHIN: Duration = Duration::from_secs(3600);
/// Interval between two steps of a cache that becomes smaller.
const LOOK: Duration = Duration::from_millis(100);

/// Runs `flaz resize`.
///
/// # Errors
/// The cache cannot have this size, or cannot be reached or opened.
pub fn run(args: &ResizeArgs) -> Result<(), Failure> {
    let (cache, control) = (args.target.cache.as_deref(), args.target.control.as_deref());
    if let Some(device) = cache.filter(|cache| is_shared(cache)) {
        return shared(args, device);
    }
    if let Some(cache) = cache {
        let refused = Place::of(cache).refuse_resize();
        refused.map_err(Failure::host("resize", cache))?;
    }
    let report = if let Some(mut client) = target::find(cache, control)? {
        let begin = ask(&mut client, &Request::Resize { size: args.size });
        to_the_end(begin, || ask(&mut client, &Request::ContinueResize {}))?
    } else {
        let cache = cache.ok_or_else(|| Failure::Usage("expected CACHE or --control PATH".to_owned()))?;
        with_idle(cache, &args.idle, |daemon| {
            to_the_end(daemon.resize(args.size), || daemon.continue_resize())
        })
        .map_err(Failure::host("resize", cache))?
    };
    if args.json {
        return output::print_json(&report, true);
    }
    output::confirm(&text(&report))
}

/// The device that volumes share becomes larger, or smaller.
fn shared(args: &ResizeArgs, device: &Path) -> Result<(), Failure> {
    if args.idle.origin.is_some() {
        return Err(Failure::Usage(
            "--origin: the volumes of a shared device have an origin each".to_owned(),
        ));
    }
    let mut bar = None;
    let mut help = Help {
        with_idle: &|volume: &Path, what: &dyn Fn(&Daemon) -> Result<(), HostError>| {
            with_idle(volume, &as_configured(volume, &args.idle), what)
        },
        show: &mut |progress: &ShrinkProgress| show(bar.get_or_insert_with(new_bar), progress),
    };
    let resized = manage::resize(device, args.size, &mut help);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let (before, report) = resized.map_err(Failure::host("resize", device))?;
    if args.json {
        return output::print_json(&report, true);
    }
    let now = HumanBytes(report.size_bytes);
    output::confirm(&match before == report.size_bytes {
        true => format!("unchanged: {now} for volumes\n"),
        false => format!("resized: {now} for volumes (before: {})\n", HumanBytes(before)),
    })
}

/// How to open a volume that is not served: its configuration may name a new path of the origin.
fn as_configured(volume: &Path, idle: &IdleArgs) -> IdleArgs {
    let serve = configuration::of_cache(volume).and_then(|found| found.serve(&Given::default()).ok());
    let (origin, state_dir) = serve.map_or((None, None), |serve| (serve.origin, serve.state_dir));
    IdleArgs {
        origin,
        state_dir: idle.state_dir.clone().or(state_dir),
    }
}

fn ask(client: &mut Client, request: &Request) -> Result<Resize, Failure> {
    match client.ask(request, ANSWER_WITHIN)? {
        Reply::Resized(report) => Ok(Resize::Done(report)),
        Reply::Shrinking(progress) => Ok(Resize::Shrinking(progress)),
        _ => Err(client.unexpected("resize").into()),
    }
}

/// Asks for the next step until the cache has its new size, with a progress bar on a terminal.
fn to_the_end<E>(
    begin: Result<Resize, E>,
    mut next: impl FnMut() -> Result<Resize, E>,
) -> Result<ResizeReport, E> {
    let mut bar = None;
    let mut step = begin?;
    let report = loop {
        match step {
            Resize::Done(report) => break report,
            Resize::Shrinking(progress) => show(bar.get_or_insert_with(new_bar), &progress),
        }
        std::thread::sleep(LOOK);
        step = next()?;
    };
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(report)
}

/// Hidden if standard error is not a terminal.
fn new_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {wide_bar} {percent:>3}%")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

fn show(bar: &ProgressBar, progress: &ShrinkProgress) {
    let (left, what) = match progress.dirty_bytes_left {
        0 => (progress.regions_left, "emptying regions"),
        bytes => (bytes, "writing to the origin"),
    };
    if bar.message() != what {
        bar.set_message(what);
        bar.set_length(0);
    }
    bar.set_length(bar.length().unwrap_or(0).max(left));
    bar.set_position(bar.length().unwrap_or(0) - left);
}

/// The result, for people.
fn text(report: &ResizeReport) -> String {
    let regions = |count| counted(count, "region", "regions");
    let now = format!("{}, {}", HumanBytes(report.size_bytes), regions(report.regions));
    if report.size_bytes == report.size_before_bytes {
        return format!("unchanged: the cache already uses {now}\n");
    }
    format!(
        "resized: {now} (before: {}, {})\n",
        HumanBytes(report.size_before_bytes),
        regions(report.regions_before)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shrinking(regions_left: u64) -> Resize {
        Resize::Shrinking(ShrinkProgress {
            regions_left,
            dirty_bytes_left: 0,
        })
    }

    #[test]
    fn steps_go_on_until_one_is_the_last() {
        let report = ResizeReport {
            size_before_bytes: 2 << 30,
            size_bytes: 1 << 30,
            regions_before: 200,
            regions: 100,
        };
        let mut left = vec![Ok(Resize::Done(report)), Ok(shrinking(1))];
        let found = to_the_end(Ok(shrinking(2)), || left.pop().expect("it has ended"));
        assert_eq!(found, Ok::<_, ()>(report));
        assert_eq!(
            to_the_end(Ok(shrinking(2)), || Err("called off")),
            Err("called off")
        );
        assert_eq!(
            text(&report),
            "resized: 1.00 GiB, 100 regions (before: 2.00 GiB, 200 regions)\n"
        );
        let unchanged = ResizeReport {
            size_before_bytes: 1 << 30,
            ..report
        };
        assert!(text(&unchanged).starts_with("unchanged"));
    }
}
