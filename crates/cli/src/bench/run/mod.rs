//! `flaz bench run`: measures a directory, a file or a device.

pub mod args;
mod bar;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use flaz_bench::campaign_file::Campaign;
use flaz_load::campaign::{Running, Watch, plan_of};
use flaz_load::error::LoadError;
use flaz_load::plan::{Plan, Wanted};
use flaz_load::summary;
use flaz_load::target::Target;
use flaz_load::visit::Traffic;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::bench::permission;
use crate::commands::output;
use crate::commands::output_file::OutputFiles;
use crate::control::shell::quoted;
use crate::error::Failure;
use crate::host::utc;
use crate::interrupt::Interrupt;
use crate::size::{HumanBytes, counted};
use args::RunArgs;

/// Runs `flaz bench run`.
///
/// # Errors
/// Options are invalid, or the target is refused or fails.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let (plan, name, before) = match &args.resume {
        Some(path) => {
            let campaign = resumed(args, path)?;
            let plan = plan_of(&campaign, path)?;
            (plan, None, Some(campaign))
        }
        None => {
            let mut wanted = args.wanted();
            if let Some(path) = &args.campaign {
                wanted = wanted.or(Wanted::read(path)?);
            }
            let name = wanted.name.clone();
            (wanted.plan()?, name, None)
        }
    };
    let started = now();
    let output = match (&args.resume, &args.output) {
        (Some(path), _) | (None, Some(path)) => path.clone(),
        (None, None) => default_output(Path::new(""), &started),
    };
    if before.is_none() {
        not_there(&output)?;
    }
    let kept = OutputFiles::default().take(&output)?.keep()?;
    // Held until the end.
    let _held = permission::to_overwrite(&plan.target, args.yes_destroy.as_deref())?;
    let watch = Arc::new(Watch::default());
    let target = Target::new(&plan.target, &plan.target_options())?;
    preamble(&plan, &target, &output, before.is_some());
    let mut running = match before {
        None => Running::new(&plan, &target, name, started, Box::new(kept))?,
        Some(campaign) => Running::resume(&plan, &target, campaign, Box::new(kept))?,
    };
    stop_by_signals(&watch)?;
    let outcome = bar::beside(&watch, || running.run(&watch));
    match outcome {
        Ok(()) => {}
        Err(LoadError::Interrupted) => {
            return Err(Failure::BadNews(format!(
                "interrupted; the results so far are in {}; continue with: flaz bench run --resume {}",
                running.kept_at().display(),
                quoted(running.kept_at())
            )));
        }
        Err(error) => {
            if !running.campaign().cells.is_empty() {
                eprintln!(
                    "the results so far are in {}; when the problem is solved, continue with: flaz bench run \
                     --resume {}",
                    running.kept_at().display(),
                    quoted(running.kept_at())
                );
            }
            return Err(error.into());
        }
    }
    if args.json {
        output::print_json(running.campaign(), true)
    } else {
        output::print(&summary::page(running.campaign(), output::in_colour()))
    }
}

/// The campaign to resume.
fn resumed(args: &RunArgs, path: &Path) -> Result<Campaign, Failure> {
    if args.wanted() != Wanted::default() || args.campaign.is_some() {
        return Err(Failure::Usage(format!(
            "--resume {}: only --yes-destroy and --json can be combined with it; the file defines what to \
             measure",
            path.display()
        )));
    }
    let campaign = Campaign::read(path).map_err(LoadError::from)?;
    // Checked before the target is created.
    if campaign.progress.is_none() && !campaign.cells.is_empty() {
        return Err(Failure::Usage(format!(
            "{}: this campaign is complete (flaz bench report {} shows it)",
            path.display(),
            quoted(path)
        )));
    }
    Ok(campaign)
}

/// Prints what will be measured.
fn preamble(plan: &Plan, target: &Target, output: &Path, goes_on: bool) {
    let traffic = Traffic::of(plan, target.bytes());
    let each = if target.writers() == 1 {
        String::new()
    } else {
        format!(" by {} writers", target.writers())
    };
    eprintln!(
        "{} {}, {} each, {} on {}{each}: {} written, {} read; results: {}",
        if goes_on { "continuing:" } else { "measuring" },
        counted(plan.cells() as u64, "cell", "cells"),
        counted(plan.rounds.runs.into(), "run", "runs"),
        HumanBytes(target.bytes()),
        target.path().display(),
        HumanBytes(traffic.written),
        HumanBytes(traffic.read),
        output.display()
    );
    for note in target.notes() {
        eprintln!("{note}");
    }
}

/// The first signal stops after the current record, the second at once.
fn stop_by_signals(watch: &Arc<Watch>) -> Result<(), Failure> {
    let interrupt = Interrupt::by(&[SIGINT, SIGTERM, SIGHUP])?;
    let watch = Arc::clone(watch);
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            // Ends with the program.
            loop {
                if interrupt.is_asked() {
                    watch.signals.stop.store(true, Ordering::Relaxed);
                    return;
                }
                std::thread::sleep(bar::LOOK);
            }
        })
        .map_err(Failure::system("starting a thread"))?;
    Ok(())
}

/// RFC 3339, in UTC.
fn now() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    utc(seconds).replace(" UTC", "Z").replace(' ', "T")
}

/// A file in `folder` that does not exist, named after the time.
fn default_output(folder: &Path, started: &str) -> PathBuf {
    let plain: String = started
        .chars()
        .filter_map(|c| match c {
            'T' => Some('-'),
            c => c.is_ascii_digit().then_some(c),
        })
        .collect();
    let named = |number: u32| match number {
        1 => folder.join(format!("flaz-{plain}.json")),
        _ => folder.join(format!("flaz-{plain}-{number}.json")),
    };
    // Another campaign may have begun in the same second.
    let free = (1..=u32::MAX).map(named).find(|path| !path.exists());
    free.expect("a folder has fewer files")
}

fn not_there(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        return Err(Failure::Usage(format!(
            "{} already exists: choose another --output, or continue an interrupted campaign with --resume \
             {}",
            path.display(),
            quoted(path)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_named_after_the_time() {
        let folder = tempfile::tempdir().unwrap();
        let name = || default_output(folder.path(), "2026-01-31T12:05:09Z");
        for expected in ["flaz-20260131-120509.json", "flaz-20260131-120509-2.json"] {
            assert_eq!(name(), folder.path().join(expected));
            std::fs::write(name(), "").unwrap();
        }
        assert!(now().ends_with('Z') && now().len() == 20);
    }
}
