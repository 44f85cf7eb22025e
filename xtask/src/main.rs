//! Development tasks that are not part of the program: studies, benchmarks, checks.

mod bench;
mod dependencies;
mod peers;
mod program;
mod soak;
mod study;

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "xtask", about = "Development tasks of the flaz project")]
enum Command {
    /// Measure the performance budgets, compared with their peers
    Bench(bench::Options),
    /// Measure flaz and the caches of the kernel on the virtual machine
    Peers(peers::Options),
    /// Study the policies on real traces, compared with the design's table
    Study(study::Options),
    /// Check the licences and sources of dependencies by deny.toml
    Dependencies(dependencies::Options),
    /// Crash simulated caches and the real program for hours
    Soak(soak::Options),
}

fn main() -> ExitCode {
    let result: Result<(), Box<dyn std::error::Error>> = match Command::parse() {
        Command::Bench(options) => bench::run(&options),
        Command::Dependencies(options) => dependencies::run(&options),
        Command::Peers(options) => peers::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Study(options) => study::run(&options).map_err(Into::into),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
