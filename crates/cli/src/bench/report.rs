//! `flaz bench report`: reads files and writes a page, drawings and tables.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use flaz_bench::comparison::Margin;
use flaz_bench::report::{self, Look, Options, cells_csv, charts};

use super::args::ReportArgs;
use crate::commands::output;
use crate::commands::output_file::{OutputFile, OutputFiles};
use crate::error::Failure;

/// Runs `flaz bench report`.
///
/// # Errors
/// A file is invalid, or an output cannot be written.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    if to_stdout && args.json {
        return Err(Failure::Usage(
            "--json and --output - both use standard output: write the page to a file".to_owned(),
        ));
    }
    let mut files = OutputFiles::beside(&inputs(args));
    let page_file = match &args.output {
        Some(path) if !to_stdout => Some(files.take(path)?),
        _ => None,
    };
    let options = Options {
        runs: args.runs,
        margin: if args.aa.is_empty() {
            Margin::Percent(args.delta)
        } else {
            Margin::Repeats(args.aa.clone())
        },
        seed: args.seed,
        ..Options::default()
    };
    let report = report::report(&args.files, args.baseline.as_deref(), &options)?;
    let mut drafts: Vec<(OutputFile, String)> = Vec::new();
    if let Some(directory) = &args.svg_dir {
        for chart in charts(&report).0 {
            let file = in_folder(&mut files, directory, &format!("{}.svg", chart.id))?;
            drafts.push((file, chart.svg()));
        }
    }
    if let Some(directory) = &args.csv_dir {
        for chart in charts(&report).0 {
            let file = in_folder(&mut files, directory, &format!("{}.csv", chart.id))?;
            drafts.push((file, chart.csv));
        }
        drafts.push((in_folder(&mut files, directory, "cells.csv")?, cells_csv(&report)));
    }
    let page = || report.html(env!("CARGO_PKG_VERSION"));
    if let Some(file) = page_file {
        drafts.push((file, page()));
    }
    let mut written: Vec<PathBuf> = Vec::new();
    for (file, text) in drafts {
        written.push(file.path().to_owned());
        file.write(text.as_bytes())?;
    }
    if to_stdout {
        return output::print(&page());
    }
    if args.json {
        return output::print_json(&report, true);
    }
    let look = Look {
        colour: output::in_colour(),
        blocks: io::stdout().is_terminal(),
    };
    let mut text = report.text(look);
    for path in written.iter().rev().take(1) {
        text.push_str(&match written.len() {
            1 => format!("Written: {}\n", path.display()),
            many => format!("Written: {many} files, the last is {}\n", path.display()),
        });
    }
    if written.is_empty() {
        text.push_str("For a page with charts, add --output page.html\n");
    }
    output::print(&text)
}

/// All input files: those named, and those in the named directories.
fn inputs(args: &ReportArgs) -> Vec<PathBuf> {
    let named = args.files.iter().chain(&args.baseline).chain(&args.aa);
    let within = |folder: &PathBuf| {
        // Reading reports a directory that cannot be listed.
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    named
        .flat_map(|path| within(path).into_iter().chain([path.clone()]))
        .collect()
}

/// The path of a file in a directory, which is created if necessary.
fn in_folder(files: &mut OutputFiles, folder: &Path, name: &str) -> Result<OutputFile, Failure> {
    if folder.exists() && !folder.is_dir() {
        return Err(Failure::Usage(format!(
            "{}: expected a directory, or a name for a new one, found a file",
            folder.display()
        )));
    }
    fs::create_dir_all(folder).map_err(Failure::system(format!(
        "creating the directory {}",
        folder.display()
    )))?;
    files.take(&folder.join(name))
}
