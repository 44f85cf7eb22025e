//! `flaz status`: queries the control socket, or else reads the superblock.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{output, target};
use crate::args::StatusArgs;
use crate::control::client::ANSWER;
use crate::control::{ControlError, Reply, Request};
use crate::error::Failure;
use crate::host;
use crate::page;
use crate::report::{CacheState, StatusReport};

/// How long a daemon that failed to start may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
/// Between two looks at the cache meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Runs `flaz status`.
///
/// # Errors
/// Neither the daemon nor the superblock could be read.
pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    let Some(interval) = args.watch else {
        let report = ask(args)?;
        return if args.json {
            output::print_json(&report, true)
        } else {
            output::print(&text(args, &report, None))
        };
    };
    let mut earlier: Option<(Instant, StatusReport)> = None;
    loop {
        let now = Instant::now();
        let report = ask(args)?;
        if args.json {
            output::print_json(&report, false)?;
        } else {
            let since = earlier
                .as_ref()
                .map(|(then, report)| (report, now.duration_since(*then)));
            // On a terminal each page replaces the previous one; in a file they follow each other.
            let (before, after) = if std::io::stdout().is_terminal() {
                ("\x1b[H\x1b[2J", "")
            } else {
                ("", "\n")
            };
            output::print(&format!("{before}{}{after}", text(args, &report, since)))?;
        }
        earlier = Some((now, report));
        std::thread::sleep(interval.saturating_sub(now.elapsed()));
    }
}

fn text(args: &StatusArgs, report: &StatusReport, earlier: Option<(&StatusReport, Duration)>) -> String {
    if args.verbose > 0 {
        page::details(report, earlier)
    } else {
        page::summary(report, earlier, std::io::stdout().is_terminal())
    }
}

fn ask(args: &StatusArgs) -> Result<StatusReport, Failure> {
    let mut report = ask_daemon(args)?;
    if let Some(why) = &args.target.refused {
        report
            .warnings
            .insert(0, format!("the configuration is refused: {why}"));
        if !report.state.is_running() {
            report
                .start_refused
                .get_or_insert_with(|| "the configuration is refused".to_owned());
        }
        report = report.with_health();
    }
    Ok(report)
}

fn ask_daemon(args: &StatusArgs) -> Result<StatusReport, Failure> {
    let (cache, control) = (args.target.cache.as_deref(), args.target.control.as_deref());
    match (target::find(cache, control)?, cache) {
        (Some(mut client), _) => match client.ask(&Request::Status {}, ANSWER) {
            // An older daemon does not report its health.
            Ok(Reply::Status(report)) if report.health.is_none() => Ok(report.with_health()),
            Ok(Reply::Status(report)) => Ok(*report),
            Ok(_) => Err(client.unexpected("status").into()),
            Err(error) => not_serving(args, cache, error),
        },
        (None, Some(cache)) => offline(args, cache),
        (None, None) => Err(Failure::Usage("expected CACHE or --control PATH".to_owned())),
    }
}

fn offline(args: &StatusArgs, cache: &Path) -> Result<StatusReport, Failure> {
    let state_dir = args.idle.state_dir.clone().or_else(host::default_directory);
    host::offline_status(cache, args.idle.origin.as_deref(), state_dir.as_deref())
        .map_err(Failure::host("status of", cache))
}

/// The status of a cache whose daemon has not opened it, or could not and is ending: that of its superblock.
///
/// # Errors
/// `error`, if the superblock does not tell more, or the daemon has another problem.
fn not_serving(
    args: &StatusArgs,
    cache: Option<&Path>,
    error: ControlError,
) -> Result<StatusReport, Failure> {
    let (Some(cache), ControlError::Refused { .. } | ControlError::HungUp { .. }) = (cache, &error) else {
        return Err(error.into());
    };
    let starts = matches!(&error, ControlError::Refused { message } if message == host::STILL_STARTING);
    let deadline = Instant::now() + ENDS_WITHIN;
    let mut report = loop {
        match offline(args, cache) {
            Ok(report) => break report,
            // It holds the cache until it has ended.
            Err(_) if !starts && Instant::now() < deadline => std::thread::sleep(LOOK_AGAIN),
            Err(_) => return Err(error.into()),
        }
    };
    match error {
        _ if starts => report.state = CacheState::Starting,
        ControlError::Refused { message } => {
            report
                .warnings
                .insert(0, format!("the last start failed: {message}"));
            report
                .start_refused
                .get_or_insert_with(|| "the last start failed".to_owned());
        }
        _ => {}
    }
    Ok(report.with_health())
}
