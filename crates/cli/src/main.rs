//! The program `flaz`; everything is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    flaz_cli::run(std::env::args_os())
}
