//! `flaz bench report`: from files to a page, drawings and tables.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use flaz_bench::comparison::Margin;
use flaz_bench::report::{self, Look, Options, cells_csv, charts};

use super::args::ReportArgs;
use crate::commands::output;
use crate::error::Failure;

/// Runs `flaz bench report`.
///
/// # Errors
/// A file is not understood, or what is to be written cannot be.
pub fn run(args: &ReportArgs) -> Result<(), Failure> {
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    if to_stdout && args.json {
        return Err(Failure::Usage(
            "--json and --output - both write to standard output: give the page a file".to_owned(),
        ));
    }
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
    let mut written: Vec<PathBuf> = Vec::new();
    if let Some(directory) = &args.svg_dir {
        let files = charts(&report)
            .0
            .into_iter()
            .map(|chart| (format!("{}.svg", chart.id), chart.svg()));
        write_all(directory, files, &mut written)?;
    }
    if let Some(directory) = &args.csv_dir {
        let files = charts(&report)
            .0
            .into_iter()
            .map(|chart| (format!("{}.csv", chart.id), chart.csv));
        let cells = ("cells.csv".to_owned(), cells_csv(&report));
        write_all(directory, files.chain([cells]), &mut written)?;
    }
    let page = || report.html(env!("CARGO_PKG_VERSION"));
    match &args.output {
        Some(_) if to_stdout => return output::print(&page()),
        Some(path) => {
            write(path, &page())?;
            written.push(path.clone());
        }
        None => {}
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
            many => format!("Written: {many} files, {} the last\n", path.display()),
        });
    }
    if written.is_empty() {
        text.push_str("A page with charts: add --output page.html\n");
    }
    output::print(&text)
}

fn write_all(
    directory: &Path,
    files: impl Iterator<Item = (String, String)>,
    written: &mut Vec<PathBuf>,
) -> Result<(), Failure> {
    fs::create_dir_all(directory).map_err(Failure::system(format!("creating {}", directory.display())))?;
    for (name, content) in files {
        let path = directory.join(name);
        write(&path, &content)?;
        written.push(path);
    }
    Ok(())
}

fn write(path: &Path, content: &str) -> Result<(), Failure> {
    fs::write(path, content).map_err(Failure::system(format!("writing {}", path.display())))
}
