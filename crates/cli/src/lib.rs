//! The command line of flaz: what a user types, sees, and is protected from.
//!
//! | module | what it holds |
//! |---|---|
//! | [`args`] | commands and options, with their help |
//! | [`commands`] | one file a command: from options to output |
//! | [`host`], [`safety`] | [`flaz_server`]: the daemon, and what must be known about a device before it is overwritten |
//! | [`demo`] | `flaz demo`; [`flaz_demo`] measures |
//! | [`bench`] | `flaz bench` |
//! | [`page`] | what a cache says about itself, on a page for people |
//! | [`number`], [`choice`] | numbers and names as people write them |
//! | [`control`], [`report`], [`settings`], [`size`] | [`flaz_control`]: how a running cache is asked, and what it says |
//! | [`log`], [`error`] | what goes to standard error, and the exit status |
//!
//! Results go to standard output, everything else to standard error. Exit status: 0 done, 1 failed, 2 wrong
//! usage. A reader that goes away (`flaz dump | head`) ends the program quietly.

pub mod args;
pub mod bench;
pub mod choice;
pub mod commands;
pub mod demo;
pub mod error;
pub mod log;
pub mod number;
pub mod page;

pub use flaz_control::{self as control, report, settings, size};
pub use flaz_server::{self as host, safety};

use std::ffi::OsString;
use std::process::ExitCode;

use crate::error::Failure;

/// Runs the program with `args`, the first of which is its own name, and says how it ended.
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
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::ReaderGone) => ExitCode::SUCCESS,
        Err(failure) => error::report(&failure),
    }
}
