//! One file per command: converts options to calls and prints the results. [`flaz_server`] accesses the data.

pub(crate) mod bench_data;
mod check;
mod clean;
mod create;
mod dump;
mod generate;
mod list;
pub(crate) mod output;
pub(crate) mod output_file;
mod remove_device;
pub(crate) mod resize;
mod schemas;
mod serve;
mod set;
mod status;
mod stop;
pub(crate) mod study;
pub(crate) mod target;
pub(crate) mod volume;

use crate::args::Command;
use crate::error::Failure;

/// Runs a command.
///
/// # Errors
/// The message for standard error, with the exit status.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Create(args) => create::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Status(args) => status::run(&args),
        Command::List(args) => list::run(&args),
        Command::Top(args) => crate::top::run(&args),
        Command::Advise(args) => crate::advise::run(&args),
        Command::Set(args) => set::run(&args),
        Command::Flush(args) => clean::flush(&args),
        Command::Resize(args) => resize::run(&args),
        Command::Detach(args) => clean::detach(&args),
        Command::Volume(args) => volume::run(&args),
        Command::Stop(args) => stop::run(&args),
        Command::RemoveDevice(args) => remove_device::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Demo(args) => crate::demo::run(&args),
        Command::Bench(args) => crate::bench::run(&args),
        Command::Study(args) => study::run(&args),
        Command::Lab(args) => crate::lab::run(&args),
        Command::Generate(args) => generate::run(&args),
    }
}
