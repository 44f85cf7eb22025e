//! `flaz generate`, for packagers: completions and manual pages from the same definition as `--help`, JSON schemas, and drop-ins
//! for systemd.

use std::io;
use std::path::Path;

use clap::CommandFactory;

use super::output;
use super::output_file::OutputFiles;
use super::schemas::{SUFFIX, schemas};
use crate::args::{Cli, Generate, GenerateArgs};
use crate::configuration;
use crate::error::Failure;

/// Runs `flaz generate`.
///
/// # Errors
/// The output cannot be written.
pub fn run(args: &GenerateArgs) -> Result<(), Failure> {
    match &args.what {
        Generate::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "flaz", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
        Generate::Systemd { directory } => configuration::units::generate(directory),
        Generate::Man { directory } => {
            let mut command = Cli::command().disable_help_subcommand(true);
            command.build();
            let mut pages = Vec::new();
            man_pages(&command, &mut pages).map_err(Failure::Output)?;
            write(directory, pages)
        }
        Generate::Schemas { directory } => {
            let mut files = Vec::new();
            for (command, schema) in schemas() {
                let text =
                    serde_json::to_string_pretty(&schema).map_err(|error| Failure::Output(error.into()))?;
                files.push((format!("{command}{SUFFIX}"), (text + "\n").into_bytes()));
            }
            write(directory, files)
        }
    }
}

/// Writes files of these names and contents.
fn write(directory: &Path, contents: Vec<(String, Vec<u8>)>) -> Result<(), Failure> {
    // Check all paths before the first file is written.
    let mut files = OutputFiles::default();
    let mut drafts = Vec::new();
    for (name, content) in contents {
        drafts.push((files.take(&directory.join(name))?, content));
    }
    drafts
        .into_iter()
        .try_for_each(|(file, content)| file.write(&content))
}

/// The pages of a command and its subcommands, with their file names.
fn man_pages(command: &clap::Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        man_pages(inner, pages)?;
    }
    let man = clap_mangen::Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)?;
    pages.push((man.get_filename(), page));
    Ok(())
}
