//! `flaz check`: verifies a cache that is not running.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::output;
use crate::args::CheckArgs;
use crate::error::Failure;
use crate::host;
use crate::page;

/// Runs `flaz check`.
///
/// # Errors
/// The check could not be made, or it found a problem.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let bar = if std::io::stderr().is_terminal() {
        progress_bar()
    } else {
        ProgressBar::hidden()
    };
    let report = host::check(&args.cache, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = report.map_err(Failure::host("check", &args.cache))?;
    if args.json {
        output::print_json(&report, true)?;
    } else {
        output::print(&page::check(&report))?;
    }
    match report.bad_total() {
        0 => Ok(()),
        bad => Err(Failure::BadNews(format!(
            "check {}: {bad} {}: {}",
            args.cache.display(),
            if bad == 1 { "error found" } else { "errors found" },
            advice(report.may_be_dirty)
        ))),
    }
}

/// Advice for the problems found. It must not make the user lose writes by recreating the cache.
fn advice(may_be_dirty: bool) -> &'static str {
    if may_be_dirty {
        "the cache contains, or may contain, dirty blocks: do not recreate it. Write them to the origin with \
         `flaz flush`; blocks listed as fragment-dirty cannot be recovered: overwrite them through the served \
         device, or discard all dirty blocks with `flaz serve --discard-cache --discard-dirty`"
    } else {
        "damaged blocks will be read from the origin; `flaz create --force` recreates the cache"
    }
}

fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
