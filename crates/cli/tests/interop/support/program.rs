//! Runs an external program to its end, with a time limit, and keeps its output for the failure message.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::thread;

/// Default time limit of a program in seconds: many times what any of them needs.
const LIMIT_DEFAULT_S: u32 = 180;
/// Exit status of coreutils' `timeout` when the limit was reached.
const EXIT_TIMED_OUT: i32 = 124;

/// A program with its arguments.
#[derive(Clone)]
pub struct Program {
    name: String,
    args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
    input: String,
    limit_s: u32,
}

impl Program {
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            args: Vec::new(),
            envs: Vec::new(),
            input: String::new(),
            limit_s: LIMIT_DEFAULT_S,
        }
    }

    /// The program under test.
    pub fn flaz() -> Self {
        Self::new(env!("CARGO_BIN_EXE_flaz"))
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Arguments as one text, separated by spaces.
    pub fn words(mut self, words: &str) -> Self {
        self.args.extend(words.split_whitespace().map(OsString::from));
        self
    }

    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.envs.push((key.into(), value.as_ref().to_owned()));
        self
    }

    /// Standard input of the program.
    pub fn input(mut self, text: impl Into<String>) -> Self {
        self.input = text.into();
        self
    }

    pub fn limit_s(mut self, seconds: u32) -> Self {
        self.limit_s = seconds;
        self
    }

    /// Runs it and returns the result.
    ///
    /// # Panics
    /// If it cannot be started or exceeds its limit.
    pub fn output(self) -> Output {
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", &self.limit_s.to_string()])
            .arg(&self.name)
            .args(&self.args);
        // The system's programs, not those of a version manager: nbdsh needs the python3 for which Debian builds the
        // module.
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("/usr/bin:/bin:/usr/sbin:/sbin:{path}"))
            .env("LC_ALL", "C.UTF-8");
        command.envs(self.envs.iter().map(|(key, value)| (key, value)));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("timeout {}: {error}", self.name));
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let input = self.input.clone();
        // A program may print before it has read everything, so a thread writes its input. A program that never reads
        // is not an error.
        let feeder = thread::spawn(move || {
            let _ = stdin.write_all(input.as_bytes());
        });
        let output = child
            .wait_with_output()
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        feeder.join().expect("feeding cannot panic");
        assert!(
            output.status.code() != Some(EXIT_TIMED_OUT),
            "{}: still running after {} s\n{}",
            self.line(),
            self.limit_s,
            text_of(&output)
        );
        output
    }

    /// Runs it, expects success, and returns its standard output.
    ///
    /// # Panics
    /// If it fails.
    pub fn ok(self) -> String {
        let line = self.line();
        let output = self.output();
        assert!(
            output.status.success(),
            "{line}: {}\n{}",
            output.status,
            text_of(&output)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs it, expects it to fail by itself, and returns its standard error.
    ///
    /// # Panics
    /// If it succeeds or is ended by a signal.
    pub fn fails(self) -> String {
        let line = self.line();
        let output = self.output();
        let failed = output.status.code().is_some_and(|code| code != 0 && code < 128);
        assert!(
            failed,
            "{line}: expected an error, got {}\n{}",
            output.status,
            text_of(&output)
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn line(&self) -> String {
        let args: Vec<_> = self.args.iter().map(|arg| arg.to_string_lossy()).collect();
        format!("{} {}", self.name, args.join(" "))
    }
}

fn text_of(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    format!("--- its output\n{out}--- its errors\n{err}---")
}
