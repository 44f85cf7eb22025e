//! The command line of flaz: arguments, dispatch and printing.
//!
//! | module | contents |
//! |---|---|
//! | [`args`] | commands and options, with their help |
//! | [`advise`] | `flaz advise` |
//! | [`commands`] | one file per command |
//! | [`configuration`] | `/etc/flaz/NAME.toml` |
//! | [`host`], [`safety`] | [`flaz_server`]: the daemon, and the checks before a device is overwritten |
//! | [`demo`] | `flaz demo`; the measurement is in [`flaz_demo`] |
//! | [`bench`] | `flaz bench` |
//! | [`lab`] | `flaz lab`; the models are in [`flaz_lab`], the replay in [`flaz_replay`] |
//! | [`page`] | reports about a cache as text |
//! | [`top`] | `flaz top` |
//! | `suggestion` | suggestions for unknown commands |
//! | [`rates`] | rates between two reports |
//! | [`number`], [`choice`] | parsers of numbers and names |
//! | [`control`], [`report`], [`settings`], [`size`] | [`flaz_control`]: the control protocol and its reports |
//! | [`log`], [`error`] | output to standard error, and the exit status |
//!
//! Results go to standard output, everything else to standard error. Exit status: 0 success, 1 failure, 2 invalid
//! usage. If the reader closes the pipe (`flaz dump | head`), the program ends quietly.

pub mod advise;
pub mod args;
pub mod bench;
pub mod choice;
pub mod commands;
pub mod configuration;
pub mod demo;
pub mod error;
mod interrupt;
pub mod lab;
pub mod log;
pub mod number;
pub mod page;
pub mod rates;
mod suggestion;
pub mod top;

pub use flaz_control::{self as control, report, settings, size};
pub use flaz_server::{self as host, safety};

use std::ffi::OsString;
use std::process::ExitCode;

use crate::error::Failure;

/// Runs the program with `args`, the first of which is its own name, and returns the exit status.
pub fn run<I>(args: I) -> ExitCode
where
    I: IntoIterator<Item: Into<OsString> + Clone>,
{
    error::replace_panic_message();
    let cli = match args::parse(args) {
        Ok(cli) => cli,
        Err(refused) => return error::usage(&refused),
    };
    log::start(&cli.log);
    commands::output::set_quiet(cli.log.quiet);
    let mut command = cli.command;
    let is_server = matches!(command, args::Command::Serve(_));
    let done = configuration::names::resolve(&mut command)
        .and_then(|meaning| commands::run(command).map_err(|failure| meaning.explain(failure)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::ReaderGone) => ExitCode::SUCCESS,
        Err(failure) => {
            if is_server {
                host::notify_failure(&error::message(&failure));
            }
            error::report(&failure)
        }
    }
}
