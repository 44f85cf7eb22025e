//! The log: lines on standard error, filtered by `-v`, `-q` and `FLAZ_LOG`.
//!
//! Time stamps are omitted if the system's journal adds its own; colours are only used on a terminal, and not if
//! `NO_COLOR` is set.

use std::io::{self, IsTerminal};

use clap::Args;
use tracing_subscriber::EnvFilter;

/// Log options, accepted by every command.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct LogArgs {
    /// Increase log verbosity: -v for details, -vv for everything
    #[arg(short, long, action = clap::ArgAction::Count, global = true, conflicts_with = "quiet", help_heading = "Log")]
    pub verbose: u8,
    /// Log errors only. Commands that change something print nothing if they succeed
    #[arg(short, long, global = true, help_heading = "Log")]
    pub quiet: bool,
}

impl LogArgs {
    fn level(self) -> &'static str {
        match (self.quiet, self.verbose) {
            (true, _) => "error",
            (false, 0) => "info",
            (false, 1) => "debug",
            (false, _) => "trace",
        }
    }
}

/// Starts the log. `FLAZ_LOG`, if set, overrides the options (`info`, `flaz_engine=debug`, ..).
pub fn start(args: &LogArgs) {
    let (filter, complaint) = match std::env::var("FLAZ_LOG") {
        Err(_) => (EnvFilter::new(args.level()), None),
        Ok(text) => match EnvFilter::try_new(&text) {
            Ok(filter) => (filter, None),
            Err(error) => (
                EnvFilter::new(args.level()),
                Some(format!("FLAZ_LOG='{text}' is invalid: {error}")),
            ),
        },
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_target(args.verbose > 0)
        .with_ansi(
            io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        );
    // A second start, as in tests, keeps the first log.
    let _ = if std::env::var_os("JOURNAL_STREAM").is_some() && !io::stderr().is_terminal() {
        builder.without_time().try_init()
    } else {
        builder.try_init()
    };
    if let Some(complaint) = complaint {
        tracing::warn!("{complaint}; using '{}'", args.level());
    }
}
