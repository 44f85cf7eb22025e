//! `flaz status`: queries the control socket, or else reads the superblock.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use super::{output, target};
use crate::args::StatusArgs;
use crate::control::client::ANSWER;
use crate::control::{Reply, Request};
use crate::error::Failure;
use crate::host;
use crate::page;
use crate::report::StatusReport;

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
        page::summary(report, earlier)
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
        (Some(mut client), _) => match client.ask(&Request::Status {}, ANSWER)? {
            // An older daemon does not report its health.
            Reply::Status(report) if report.health.is_none() => Ok(report.with_health()),
            Reply::Status(report) => Ok(*report),
            _ => Err(client.unexpected("status").into()),
        },
        (None, Some(cache)) => {
            let state_dir = args.idle.state_dir.clone().or_else(host::default_directory);
            host::offline_status(cache, args.idle.origin.as_deref(), state_dir.as_deref())
                .map_err(Failure::host("status of", cache))
        }
        (None, None) => Err(Failure::Usage("expected CACHE or --control PATH".to_owned())),
    }
}
