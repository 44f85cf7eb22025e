//! `flaz check`: verifies a cache that is not running.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::output;
use crate::args::CheckArgs;
use crate::control::shell::quoted;
use crate::error::Failure;
use crate::host;
use crate::page;
use crate::report::CheckReport;
use crate::size::counted;

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
            "check {}: {}: {}",
            args.cache.display(),
            counted(bad, "error found", "errors found"),
            advice(&report)
        ))),
    }
}

/// Structures of which a second copy is valid, or else the check reports another kind or an error.
const COPIED: [&str; 2] = ["superblock", "manifest-sector"];

/// Advice for the problems found. It must not make the user lose writes by recreating the cache.
fn advice(report: &CheckReport) -> String {
    let cache = quoted(&report.cache.path);
    if report.bad.keys().all(|kind| COPIED.contains(&kind.as_str())) {
        return "nothing is lost: each damaged structure has a second, valid copy, from which the next start repairs it"
            .to_owned();
    }
    if !report.may_be_dirty {
        return format!(
            "damaged blocks will be read from the origin; `flaz serve {cache} --discard-cache` starts with an empty cache"
        );
    }
    let lost = match report.bad.contains_key("fragment-dirty") {
        true => {
            "; blocks listed as fragment-dirty cannot be recovered: overwrite them through the served device, or discard \
             all dirty blocks with `flaz serve --discard-cache --discard-dirty`"
        }
        false => "",
    };
    format!(
        "the cache contains, or may contain, dirty blocks: do not recreate it. Write them to the origin with `flaz flush \
         {cache}`{lost}"
    )
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::REPORT_SCHEMA;
    use crate::report::example::example;

    fn report(bad: &[&str], may_be_dirty: bool) -> CheckReport {
        CheckReport {
            schema: REPORT_SCHEMA,
            cache: example().cache,
            clean: true,
            may_be_dirty,
            good: Default::default(),
            bad: bad.iter().map(|kind| ((*kind).to_owned(), 1)).collect(),
            verified_bytes: 0,
            problems: Vec::new(),
            duration_s: 0.0,
        }
    }

    #[test]
    fn advice_depends_on_what_is_damaged() {
        for (bad, may_be_dirty, parts, not) in [
            (
                &["superblock"][..],
                false,
                &["nothing is lost", "the next start repairs it"][..],
                "discard",
            ),
            (
                &["superblock", "manifest-sector"],
                true,
                &["nothing is lost"],
                "discard",
            ),
            (
                &["superblock", "fragment"],
                false,
                &["read from the origin"],
                "fragment-dirty",
            ),
            (
                &["extent"],
                true,
                &["do not recreate it", "flaz flush /dev/nvme0n1p3`"],
                "fragment-dirty",
            ),
            (
                &["fragment-dirty"],
                true,
                &["do not recreate it", "listed as fragment-dirty"],
                "--force",
            ),
        ] {
            let advice = advice(&report(bad, may_be_dirty));
            assert!(
                parts.iter().all(|part| advice.contains(part)),
                "{bad:?}: {advice}"
            );
            assert!(!advice.contains(not), "{bad:?}: {advice}");
        }
    }
}
