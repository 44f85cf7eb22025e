//! `flaz lab ssd`: a device on paper.

use std::path::{Path, PathBuf};

use clap::Args;
use flaz_data::Level;
use flaz_lab::ssd::description_file::preset_text;
use flaz_lab::ssd::evaluation::{Evaluation, evaluate};
use flaz_lab::ssd::mix::Mix;
use indicatif::{ProgressBar, ProgressStyle};

use super::{DeviceArgs, present};
use crate::commands::output;
use crate::commands::output_file::OutputFiles;
use crate::error::Failure;
use crate::number::whole;
use crate::size;

/// Maximum number of levels.
const LEVELS_MAX: usize = 16;

/// `flaz lab ssd`.
#[derive(Args, Debug)]
#[command(after_help = "\
A drive that compresses writes less to its flash than the host writes to the drive, so it is faster, cleans less and lasts longer \
with compressible data. The data is given as levels (the percentage that compression saves), and as distributions measured by \
`flaz study`.

For the presets of published drives, the report has the published figures next to those of the model. Each has a standing: agrees, \
differs; fitted, if a number of the model comes from it; artefact, if the drive cannot have caused it; not streaming, if \
the test depends on something that is not modelled. Only figures that agree or differ are compared.

--template prints a description to start from:
  flaz lab ssd --device sf1222 --template > mine.toml

Examples:
  flaz lab ssd
  flaz lab ssd --device sf1200x2-raid0 --html page.html
  flaz lab ssd --device mine.toml --levels 0,30,60 --per-day 100GB
  flaz study /srv --distribution d.json && flaz lab ssd --distribution d.json")]
pub struct SsdArgs {
    /// The device.
    #[command(flatten)]
    device: DeviceArgs,
    /// Percentages that compression saves, separated by commas
    #[arg(
        long,
        value_name = "LEVELS",
        value_delimiter = ',',
        default_value = "98,75,50,25,0"
    )]
    levels: Vec<Level>,
    /// Also evaluate measured data: a file of `flaz study --distribution`. May be repeated
    #[arg(long, value_name = "FILE")]
    distribution: Vec<PathBuf>,
    /// Amount of data that the host writes per day, to compute the life in years
    #[arg(long, value_name = "SIZE", default_value = "20GB", value_parser = size::parse)]
    per_day: u64,
    /// Seed of the simulated writes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(0..=u64::MAX))]
    seed: u64,
    /// Write a page with tables and charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Only print the description of a preset
    #[arg(long, conflicts_with_all = ["html", "json", "distribution"])]
    template: bool,
}

/// Runs `flaz lab ssd`.
///
/// # Errors
/// The description, a distribution or an option is invalid, or the page cannot be written.
pub fn run(args: &SsdArgs) -> Result<(), Failure> {
    let device = args.device.find()?;
    if args.template {
        return template(&args.device.device);
    }
    if args.per_day == 0 {
        return Err(Failure::Usage(
            "--per-day: expected a size larger than 0".to_owned(),
        ));
    }
    let count = args.levels.len() + args.distribution.len();
    if count > LEVELS_MAX {
        return Err(Failure::Usage(format!(
            "expected at most {LEVELS_MAX} levels and distributions, found {count}"
        )));
    }
    let mut inputs = args.distribution.clone();
    inputs.push(args.device.device.clone());
    let page = args
        .html
        .as_deref()
        .map(|path| OutputFiles::beside(&inputs).take(path))
        .transpose()?;
    let mut mixes: Vec<Mix> = args.levels.iter().copied().map(Mix::level).collect();
    for path in &args.distribution {
        mixes.push(Mix::measured(path, &device).map_err(|error| Failure::Other {
            what: "--distribution",
            source: error.into(),
        })?);
    }
    let bar = bar(mixes.len() as u64);
    let evaluation = evaluate(&device, &mixes, args.per_day, args.seed, || bar.inc(1));
    bar.finish_and_clear();
    let evaluation = evaluation.map_err(|why| Failure::Other {
        what: "simulating the flash",
        source: why.into(),
    })?;
    present(&evaluation, page, args.json, Evaluation::html, Evaluation::text)
}

fn template(device: &Path) -> Result<(), Failure> {
    match device.to_str().and_then(preset_text) {
        Some(text) => output::print(text),
        None => Err(Failure::Usage(format!(
            "--template: expected the name of a preset, found {}",
            device.display()
        ))),
    }
}

/// Shown only on a terminal.
fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} {bar:28.cyan/dim} simulating, {eta} left") {
        bar.set_style(style.progress_chars("━━─"));
    }
    bar
}
