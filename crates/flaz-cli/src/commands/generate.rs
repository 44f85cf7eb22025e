//! `flaz generate`, for packagers: completions and manual pages from the same definition as `--help`.

use clap::CommandFactory;

use super::output;
use crate::args::{Cli, Generate, GenerateArgs};
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
        Generate::Man { directory } => clap_mangen::generate_to(Cli::command(), directory).map_err(
            Failure::system(format!("writing manual pages to {}", directory.display())),
        ),
    }
}
