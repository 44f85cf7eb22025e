//! Runs the real program: `flaz create`, `serve` and `check` as child processes, queried over the control socket.
//!
//! Only this module starts and queries servers. Children are registered with [`Interrupt`], so that none is left
//! behind.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::error::DemoError;
use crate::interrupt::{Interrupt, POLL};
use flaz_control::chain;
use flaz_control::report::{CheckReport, LiveReport};
use flaz_control::{Client, ControlError, Reply, Request};

/// Time limit for a server to become ready, or to stop.
const START_STOP_MAX: Duration = Duration::from_secs(30);
/// Time limit for its counters.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How much of a child's log is shown in an error.
const LOG_TAIL_LINES: usize = 12;
const LOG_TAIL_BYTES: usize = 4096;
/// `USER_HZ`: the unit of times in /proc, the same on every architecture that Rust runs Linux on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Parameters of one cache on one emulated disk.
#[derive(Debug, Clone)]
pub struct Place {
    /// The cache file.
    pub cache: PathBuf,
    /// The file that emulates the slow disk.
    pub origin: PathBuf,
    /// Socket for NBD clients.
    pub socket: PathBuf,
    control: PathBuf,
    log: PathBuf,
}

impl Place {
    /// In an existing directory.
    pub fn new(folder: &Path) -> Self {
        Self {
            cache: folder.join("cache.img"),
            origin: folder.join("origin.img"),
            socket: folder.join("nbd.sock"),
            control: folder.join("ctl.sock"),
            log: folder.join("flaz.log"),
        }
    }
}

/// The program `flaz`.
#[derive(Debug, Clone)]
pub struct Flaz {
    program: PathBuf,
    interrupt: Interrupt,
}

impl Flaz {
    /// The program at `program`; children are registered with `interrupt`.
    pub fn new(program: PathBuf, interrupt: &Interrupt) -> Self {
        Self {
            program,
            interrupt: interrupt.clone(),
        }
    }

    /// Creates a cache file of `bytes` bytes.
    ///
    /// # Errors
    /// `flaz create` fails.
    pub fn create(&self, place: &Place, bytes: u64, codec: &str) -> Result<(), DemoError> {
        let bytes = bytes.to_string();
        let arguments: [&OsStr; 9] = [
            "create".as_ref(),
            place.cache.as_os_str(),
            "--origin".as_ref(),
            place.origin.as_os_str(),
            "--size".as_ref(),
            bytes.as_ref(),
            "--codec".as_ref(),
            codec.as_ref(),
            "--quiet".as_ref(),
        ];
        self.output(&arguments).map(drop)
    }

    /// Verifies a cache that is no longer served.
    ///
    /// # Errors
    /// `flaz check` fails, also if it finds a problem.
    pub fn check(&self, place: &Place) -> Result<CheckReport, DemoError> {
        let arguments: [&OsStr; 4] = [
            "check".as_ref(),
            place.cache.as_os_str(),
            "--json".as_ref(),
            "--quiet".as_ref(),
        ];
        parsed("flaz check", &self.output(&arguments)?)
    }

    /// Serves a cache; returns when it accepts clients. `disk` is the emulated origin.
    ///
    /// # Errors
    /// The server ends or is not ready in time.
    pub fn serve(&self, place: &Place, mode: &str, disk: &str) -> Result<Server<'_>, DemoError> {
        let mut nbd = OsString::from("unix:");
        nbd.push(&place.socket);
        let arguments: [&OsStr; 12] = [
            "serve".as_ref(),
            place.cache.as_os_str(),
            "--nbd".as_ref(),
            &nbd,
            "--mode".as_ref(),
            mode.as_ref(),
            "--control".as_ref(),
            place.control.as_os_str(),
            "--state-dir".as_ref(),
            place.cache.parent().unwrap_or(Path::new(".")).as_os_str(),
            "--emulate-origin".as_ref(),
            disk.as_ref(),
        ];
        let failed = DemoError::file("write", &place.log);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&place.log)
            .map_err(failed)?;
        let command = shown(&arguments);
        let child = self
            .command(&arguments)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| self.child_error(&command, error, ""))?;
        let pid = self.interrupt.adopt(child);
        let server = Server {
            flaz: self,
            place: place.clone(),
            pid,
            command,
        };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn command(&self, arguments: &[&OsStr]) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&self.program);
        // In its own process group: Ctrl-C on the terminal goes to the demo, which stops its children.
        command
            .args(arguments)
            .stdin(Stdio::null())
            .process_group(0)
            .env("NO_COLOR", "1");
        command
    }

    /// Runs a short command and returns its output.
    fn output(&self, arguments: &[&OsStr]) -> Result<Vec<u8>, DemoError> {
        let command = shown(arguments);
        let failed = |error: io::Error| self.child_error(&command, error, "");
        // Both outputs go to unnamed files, so that nothing waits for a full pipe or for a process that inherited one.
        let mut stdout = tempfile::tempfile().map_err(failed)?;
        let mut stderr = tempfile::tempfile().map_err(failed)?;
        let child = self
            .command(arguments)
            .stdout(stdout.try_clone().map_err(failed)?)
            .stderr(stderr.try_clone().map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let pid = self.interrupt.adopt(child);
        let ended = loop {
            match self.interrupt.with_child(pid, Child::try_wait) {
                Some(Ok(None)) if !self.interrupt.raised() => std::thread::sleep(POLL / 4),
                Some(Ok(status)) => break Ok(status),
                Some(Err(error)) => break Err(error),
                None => break Ok(None),
            }
        };
        self.interrupt.finish(pid);
        self.interrupt.check()?;
        let status = ended.map_err(failed)?.ok_or(DemoError::Interrupted)?;
        if status.success() {
            return contents(&mut stdout).map_err(failed);
        }
        let log = contents(&mut stderr).map_err(failed)?;
        Err(self.child_error(&command, status, &String::from_utf8_lossy(&log)))
    }

    fn child_error(&self, command: &str, reason: impl ToString, log: &str) -> DemoError {
        let lines: Vec<&str> = log.trim_end().lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
        let log = tail.iter().map(|line| format!("\n  | {line}")).collect();
        DemoError::Child {
            command: command.to_owned(),
            reason: reason.to_string(),
            log,
        }
    }
}

/// A running `flaz serve`. Killed when dropped; [`stop`](Self::stop) it for a clean end.
#[derive(Debug)]
pub struct Server<'a> {
    flaz: &'a Flaz,
    place: Place,
    pid: u32,
    command: String,
}

impl Server<'_> {
    /// Socket for NBD clients.
    pub fn socket(&self) -> &Path {
        &self.place.socket
    }

    /// The counters of the cache.
    ///
    /// # Errors
    /// It does not reply, or not with a report of a running cache.
    pub fn counters(&self) -> Result<LiveReport, DemoError> {
        let unanswered = |error: ControlError| DemoError::Status(chain(&error));
        let mut client = Client::connect(&self.place.control, None).map_err(unanswered)?;
        let reply = client.ask(&Request::Status {}, ANSWER_MAX).map_err(unanswered)?;
        let Reply::Status(report) = reply else {
            return Err(DemoError::Status("unexpected reply to the status request".into()));
        };
        report
            .live
            .ok_or_else(|| DemoError::Status("the cache is not running".into()))
    }

    /// CPU time used so far, user and system, in seconds, from the kernel.
    ///
    /// # Errors
    /// The process has ended.
    pub fn cpu_seconds(&self) -> Result<f64, DemoError> {
        let path = PathBuf::from(format!("/proc/{}/stat", self.pid));
        let text = std::fs::read_to_string(&path).map_err(DemoError::file("read", &path))?;
        cpu_seconds_in(&text)
            .ok_or_else(|| DemoError::Status(format!("{} has an unexpected form", path.display())))
    }

    /// Stops it cleanly: the cache is warm at the next start.
    ///
    /// # Errors
    /// It does not stop in time or reports an error.
    pub fn stop(self) -> Result<(), DemoError> {
        // A pid is valid here: its child is not reaped while it is registered with `Interrupt`.
        let signalled = self.flaz.interrupt.with_child(self.pid, |child| {
            let pid = rustix::process::Pid::from_child(child);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)
        });
        if let Some(Err(errno)) = signalled {
            return Err(self.error(io::Error::from(errno)));
        }
        let until = Instant::now() + START_STOP_MAX;
        loop {
            match self.exited()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.error(status)),
                None if Instant::now() > until => {
                    return Err(self.error("it did not stop within 30 s of SIGTERM"));
                }
                None => self.flaz.interrupt.sleep(POLL / 4)?,
            }
        }
    }

    fn wait_until_ready(&self) -> Result<(), DemoError> {
        let until = Instant::now() + START_STOP_MAX;
        while UnixStream::connect(&self.place.socket).is_err()
            || UnixStream::connect(&self.place.control).is_err()
        {
            if let Some(status) = self.exited()? {
                return Err(self.error(format!("it ended before it was ready: {status}")));
            }
            if Instant::now() > until {
                return Err(self.error("it accepted no connection within 30 s"));
            }
            self.flaz.interrupt.sleep(POLL / 4)?;
        }
        Ok(())
    }

    fn exited(&self) -> Result<Option<ExitStatus>, DemoError> {
        match self.flaz.interrupt.with_child(self.pid, Child::try_wait) {
            Some(Ok(status)) => Ok(status),
            Some(Err(error)) => Err(self.error(error)),
            None => Err(DemoError::Interrupted),
        }
    }

    fn error(&self, reason: impl ToString) -> DemoError {
        self.flaz
            .child_error(&self.command, reason, &log_tail(&self.place.log))
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.flaz.interrupt.finish(self.pid);
    }
}

fn parsed<T: DeserializeOwned>(command: &str, json: &[u8]) -> Result<T, DemoError> {
    serde_json::from_slice(json).map_err(|error| DemoError::Status(format!("`{command} --json`: {error}")))
}

fn shown(arguments: &[&OsStr]) -> String {
    let words = arguments.iter().map(|word| word.to_string_lossy());
    words.fold("flaz".to_owned(), |line, word| line + " " + &word)
}

fn contents(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn log_tail(path: &Path) -> String {
    let mut text = Vec::new();
    // An unreadable log is not shown; the error itself has the important part.
    let _ = File::open(path).and_then(|file| file.take(64 << 20).read_to_end(&mut text));
    let start = text.len().saturating_sub(LOG_TAIL_BYTES);
    String::from_utf8_lossy(&text[start..]).into_owned()
}

/// utime and stime from the text of /proc/PID/stat; the name in it may contain anything but ends with `)`.
fn cpu_seconds_in(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_parsed_after_any_process_name() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194304 100 0 0 0 250 75 0 0 20 0 3 0 12345 1000 10";
        assert_eq!(cpu_seconds_in(stat), Some(3.25));
        assert_eq!(cpu_seconds_in("nonsense"), None);
        let own = std::fs::read_to_string("/proc/self/stat").expect("procfs");
        assert!(cpu_seconds_in(&own).is_some());
    }

    #[test]
    fn a_server_that_ends_at_once_is_reported_with_its_log() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("flaz");
        std::fs::write(&program, "#!/bin/sh\necho it hurts >&2\nexit 3\n").expect("a script");
        let mut mode = std::fs::metadata(&program).expect("there").permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        std::fs::set_permissions(&program, mode).expect("executable");
        let interrupt = Interrupt::default();
        let flaz = Flaz::new(program, &interrupt);
        let place = Place::new(folder.path());
        let error = flaz
            .serve(&place, "write-through", "hdd")
            .expect_err("it ends")
            .to_string();
        assert!(
            error.contains("it hurts") && error.contains("exit status: 3"),
            "{error}"
        );
        assert!(error.contains("--emulate-origin hdd"), "{error}");
        let error = flaz.create(&place, 1, "lz4").expect_err("it ends").to_string();
        assert!(
            error.contains("it hurts") && error.contains("flaz create"),
            "{error}"
        );
    }
}
