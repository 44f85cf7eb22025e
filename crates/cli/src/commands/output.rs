//! Standard output: a closed pipe ends the program quietly, any other error is a failure.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::error::Failure;

/// Whether standard output is coloured: only on a terminal, and not if `NO_COLOR` is set.
#[must_use]
pub fn in_colour() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether commands that change something are silent if they succeed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Sets whether [`confirm`] prints.
pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Prints the result of a command that changes something, unless `-q` is given. What was asked for, such as a status or
/// JSON, is printed by [`print()`] in any case.
///
/// # Errors
/// [`Failure::ReaderGone`] or [`Failure::Output`].
pub fn confirm(text: &str) -> Result<(), Failure> {
    match QUIET.load(Ordering::Relaxed) {
        true => Ok(()),
        false => print(text),
    }
}

/// Prints `text` unchanged.
///
/// # Errors
/// [`Failure::ReaderGone`] or [`Failure::Output`].
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Failure::output)
}

/// Prints `value` as JSON, indented or on one line, with a newline.
///
/// # Errors
/// [`Failure::ReaderGone`] or [`Failure::Output`].
pub fn print_json<T: Serialize>(value: &T, indented: bool) -> Result<(), Failure> {
    let text = if indented {
        serde_json::to_string_pretty(value)
    } else {
        serde_json::to_string(value)
    };
    let text = text.map_err(|error| Failure::Other {
        what: "encoding the result as JSON",
        source: error.into(),
    })?;
    print(&(text + "\n"))
}
