//! How a command fails: the message on standard error and the exit status.
//!
//! A message is one paragraph, `flaz: WHAT: EXPECTED, FOUND, WHAT TO DO`, with its chain of causes; never a
//! backtrace.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use flaz_bench::error::BenchError;
pub use flaz_control::chain;
use flaz_control::error::ControlError;
use flaz_control::settings::SettingError;
use flaz_control::shell::quoted;
use flaz_demo::DemoError;
use flaz_load::error::LoadError;

use crate::host::unreachable_daemon;
use crate::safety::{CACHE_DEVICE, SafetyError};

/// Exit status of a command that failed.
pub const EXIT_FAILURE: u8 = 1;
/// Exit status of an invalid command line.
pub const EXIT_USAGE: u8 = 2;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line is invalid in a way that the parser does not detect.
    #[error("{0}")]
    Usage(String),
    /// A setting is invalid.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The device is refused.
    #[error(transparent)]
    Safety(#[from] SafetyError),
    /// The running cache could not be reached.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Results are invalid, or cannot be compared.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// A campaign failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The server failed.
    #[error("{what} {}", path.display())]
    Host {
        /// The command.
        what: &'static str,
        /// The cache.
        path: PathBuf,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The cache is not running, and the command needs a daemon.
    #[error(
        "{}: not running: start it with `flaz serve`, or use --control PATH if its control socket is not at \
         the default path", cache.display()
    )]
    NoDaemon {
        /// The cache.
        cache: PathBuf,
    },
    /// A copy of a cache, with the same UUID, is not what the daemon serves.
    #[error(
        "{} is a copy of the cache that is served from {} (same UUID): name that one", cache.display(), served.display()
    )]
    Copy {
        /// The copy.
        cache: PathBuf,
        /// What is served.
        served: PathBuf,
    },
    /// The control socket that was given is that of another cache.
    #[error(
        "{}: the daemon that listens there serves {}, not {}: name that one, or omit --control", control.display(),
        served.display(), cache.display()
    )]
    NotItsSocket {
        /// The cache.
        cache: PathBuf,
        /// The socket.
        control: PathBuf,
        /// What is served.
        served: PathBuf,
    },
    /// A daemon has the control socket of the cache.
    #[error(
        "{0} is already served, or a cache with its UUID (control socket {1}): `flaz stop --control {2}` stops that server",
        cache.display(), control.display(), quoted(control)
    )]
    Served {
        /// The cache.
        cache: PathBuf,
        /// The control socket.
        control: PathBuf,
    },
    /// The cache device of a configuration is missing.
    #[error(
        "{}: no such cache device: connect it again, or correct `cache` in the configuration {}",
        cache.display(), file.display()
    )]
    MissingCache {
        /// The cache device.
        cache: PathBuf,
        /// The file of the configuration.
        file: PathBuf,
    },
    /// A word is neither the name of a configuration nor of a file.
    #[error(
        "{name}: no such configuration (expected {files}), and no such cache device: `flaz list` shows the caches of this \
         host, `flaz create` makes a new one"
    )]
    MissingName {
        /// The word.
        name: String,
        /// The files that could be the configuration.
        files: String,
    },
    /// The command succeeded with a negative result, which was already printed to standard error.
    #[error("{0}")]
    BadNews(String),
    /// A system call failed.
    #[error("{what}")]
    System {
        /// The failed action.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// Another part of the program failed.
    #[error("{what}")]
    Other {
        /// The failed action.
        what: &'static str,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The reader of standard output has gone: not a failure.
    #[error("standard output was closed")]
    ReaderGone,
    /// Standard output cannot be written, for another reason.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
}

impl Failure {
    /// Converts a server's error to a failure of the command `what` on the cache `path`.
    pub fn host(what: &'static str, path: &Path) -> impl FnOnce(Box<dyn Error + Send + Sync>) -> Self {
        let path = path.to_owned();
        move |source| Self::Host { what, path, source }
    }

    /// Converts an I/O error to a failure of `what`.
    pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }

    /// For a daemon that was not found: that another process serves the cache, if one does.
    #[must_use]
    pub fn or_in_use(self) -> Self {
        let in_use = match &self {
            Self::NoDaemon { cache } => unreachable_daemon(cache).map(|why| (cache.clone(), why)),
            _ => None,
        };
        match in_use {
            Some((path, source)) => Self::Host {
                what: "finding the daemon of",
                path,
                source,
            },
            None => self,
        }
    }

    /// A failed write to standard output.
    #[must_use]
    pub fn output(source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::BrokenPipe {
            Self::ReaderGone
        } else {
            Self::Output(source)
        }
    }

    /// The cache device, if it failed because there is none at its path.
    #[must_use]
    pub fn missing_cache(&self) -> Option<&Path> {
        let safety = match self {
            Self::Safety(error) => Some(error),
            Self::Host { source, .. } => source.downcast_ref(),
            _ => None,
        };
        match safety {
            Some(SafetyError::Missing { path, role, .. }) if *role == CACHE_DEVICE => Some(path),
            _ => None,
        }
    }

    fn exit_status(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Setting(_) => EXIT_USAGE,
            Self::Bench(error) if error.is_usage() => EXIT_USAGE,
            Self::Load(error) if error.is_usage() => EXIT_USAGE,
            _ => EXIT_FAILURE,
        }
    }
}

impl From<DemoError> for Failure {
    fn from(error: DemoError) -> Self {
        match error {
            DemoError::Usage(message) => Self::Usage(format!("demo: {message}")),
            error => Self::Other {
                what: "demo",
                source: error.into(),
            },
        }
    }
}

/// Advice for a path that does not exist or has the wrong type, because the system's message has none.
fn way_out(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref().map(io::Error::kind);
        match kind {
            Some(io::ErrorKind::NotFound) => {
                return Some("a file or directory in the path does not exist");
            }
            Some(io::ErrorKind::IsADirectory) => {
                return Some("expected a file, found a directory");
            }
            Some(io::ErrorKind::NotADirectory) => {
                return Some("a file is used as a directory in the path");
            }
            _ => cause = error.source(),
        }
    }
    None
}

/// The message of a failure.
#[must_use]
pub fn message(failure: &Failure) -> String {
    match way_out(failure) {
        Some(way_out) => format!("{}; {way_out}", chain(failure)),
        None => chain(failure),
    }
}

/// Prints a failure and returns the exit status.
pub fn report(failure: &Failure) -> ExitCode {
    // Standard error may be closed too; then the message is lost.
    let _ = writeln!(io::stderr(), "flaz: {}", message(failure));
    ExitCode::from(failure.exit_status())
}

/// Prints the output of the parser: help, version, or the problem of the command line.
pub fn usage(refused: &clap::Error) -> ExitCode {
    if !refused.use_stderr() {
        // The reader may close the pipe.
        let _ = refused.print();
        return ExitCode::SUCCESS;
    }
    let text = refused.render();
    let text = text.to_string();
    let _ = writeln!(
        io::stderr(),
        "flaz: {}",
        text.strip_prefix("error: ").unwrap_or(&text).trim_end()
    );
    ExitCode::from(EXIT_USAGE)
}

/// A panic is a bug: it is reported on one line, without a backtrace unless `RUST_BACKTRACE` is set.
pub fn replace_panic_message() {
    let with_backtrace = std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0");
    let standard = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if with_backtrace {
            standard(panic);
        }
        let place = panic
            .location()
            .map_or_else(String::new, |place| format!(" at {place}"));
        let message = panic
            .payload_as_str()
            .unwrap_or("no message")
            .lines()
            .collect::<Vec<_>>()
            .join(" | ");
        let _ = writeln!(
            io::stderr(),
            "flaz: internal error{place}: {message}; this is a bug in flaz, please report it with this \
             message"
        );
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer of inner")]
    struct Repeats(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("inner")]
    struct Inner;

    #[test]
    fn causes_are_printed_once() {
        assert_eq!(chain(&Repeats(Inner)), "outer of inner");
        let failure = Failure::system("reading /x")(io::Error::from_raw_os_error(13));
        assert_eq!(chain(&failure), "reading /x: Permission denied (os error 13)");
        let host = Failure::host("check", Path::new("/c"))(Box::new(Repeats(Inner)));
        assert_eq!(chain(&host), "check /c: outer of inner");
    }

    #[test]
    fn missing_paths_have_advice() {
        for (number, part) in [
            (2, "does not exist"),
            (20, "a file is used as a directory"),
            (21, "found a directory"),
        ] {
            let failure = Failure::system("reading /x")(io::Error::from_raw_os_error(number));
            assert!(way_out(&failure).unwrap().contains(part), "{failure}");
            let within = Failure::host("check", Path::new("/c"))(Box::new(failure));
            assert!(way_out(&within).unwrap().contains(part), "{within}");
        }
        assert_eq!(way_out(&Repeats(Inner)), None);
    }

    #[test]
    fn a_closed_pipe_is_not_a_failure() {
        assert!(matches!(
            Failure::output(io::ErrorKind::BrokenPipe.into()),
            Failure::ReaderGone
        ));
        assert!(matches!(
            Failure::output(io::ErrorKind::StorageFull.into()),
            Failure::Output(_)
        ));
    }

    #[test]
    fn usage_and_failure_differ_in_status() {
        assert_eq!(Failure::Usage(String::new()).exit_status(), EXIT_USAGE);
        assert_eq!(
            Failure::Setting(SettingError::Twice(String::new())).exit_status(),
            EXIT_USAGE
        );
        assert_eq!(Failure::BadNews(String::new()).exit_status(), EXIT_FAILURE);
    }
}
