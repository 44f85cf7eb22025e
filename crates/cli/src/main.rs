//! The program `flaz`; everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    flaz_cli::run(std::env::args_os())
}
