//! Development tasks that are not part of the program: studies, trace replay, benchmarks.

mod advice;
mod bench;
mod dependencies;
mod peers;
mod policy_study;
mod program;
mod replay;
mod soak;
mod trace;

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "xtask", about = "Development tasks of the flaz project")]
enum Command {
    /// Compare the hit ratios of the policies with the design's table, on real traces
    PolicyStudy(policy_study::Options),
    /// Measure the performance budgets, compared with their peers
    Bench(bench::Options),
    /// Measure flaz and the caches of the kernel on the virtual machine
    Peers(peers::Options),
    /// Replay real traces through the engine on simulated devices, compared with the design's table
    Replay(replay::Options),
    /// Check the licences and sources of dependencies by deny.toml
    Dependencies(dependencies::Options),
    /// Crash simulated caches and the real program for hours
    Soak(soak::Options),
}

fn main() -> ExitCode {
    let result: Result<(), Box<dyn std::error::Error>> = match Command::parse() {
        Command::Bench(options) => bench::run(&options),
        Command::PolicyStudy(options) => policy_study::run(&options).map_err(Into::into),
        Command::Dependencies(options) => dependencies::run(&options),
        Command::Peers(options) => peers::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Replay(options) => replay::run(&options).map_err(Into::into),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
