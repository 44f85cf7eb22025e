//! `flaz serve` as a child process.

use std::fs::File;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use flaz_nbd::protocol::INIT_MAGIC;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Cache, Program, Scratch};

/// Time limit of a start or a stop.
const WAIT_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// A running server. Killed if dropped while running; its log is printed when a test fails.
pub struct Server {
    child: Option<Child>,
    socket: PathBuf,
    control: PathBuf,
    log: PathBuf,
}

/// Options for a crash test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeMode {
    WriteThrough,
    WriteBack,
}

impl ServeMode {
    pub const ALL: [Self; 2] = [Self::WriteThrough, Self::WriteBack];

    /// Options of `flaz serve`.
    pub fn words(self) -> &'static str {
        match self {
            Self::WriteThrough => "--mode write-through",
            // So little that writeback has work to do.
            Self::WriteBack => "--mode write-back --dirty-limit 20",
        }
    }
}

impl Server {
    /// Starts a server of `cache` with further options `words`, and waits until it greets NBD clients.
    pub fn start(scratch: &Scratch, cache: &Cache, words: &str) -> Self {
        Self::start_with(scratch, cache, words, &[])
    }

    /// The same; returns the output if it ended before it was ready.
    pub fn try_start(scratch: &Scratch, cache: &Cache, words: &str) -> Result<Self, String> {
        let mut server = Self::spawn(scratch, cache, words, &[]);
        server.wait_for_greeting().map(|()| server)
    }

    /// Starts it with additional environment variables.
    pub fn start_with(scratch: &Scratch, cache: &Cache, words: &str, envs: &[(&str, &Path)]) -> Self {
        let mut server = Self::spawn(scratch, cache, words, envs);
        if let Err(why) = server.wait_for_greeting() {
            panic!("{why}");
        }
        server
    }

    fn spawn(scratch: &Scratch, cache: &Cache, words: &str, envs: &[(&str, &Path)]) -> Self {
        let (socket, control) = (scratch.place("nbd.sock"), scratch.place("control.sock"));
        let log = scratch.image("serve.log");
        let log_file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("the log can be opened");
        // The server dies with the test's thread, however that ends.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_flaz"), "serve"])
            .arg(&cache.path)
            .arg("--nbd")
            .arg(format!("unix:{}", socket.display()))
            .arg("--control")
            .arg(&control)
            .args(words.split_whitespace())
            .env("STATE_DIRECTORY", scratch.state_dir())
            .envs(envs.iter().copied())
            .stdin(Stdio::null())
            .stdout(log_file.try_clone().expect("a file handle can be cloned"))
            .stderr(log_file)
            .spawn()
            .expect("setpriv (util-linux) starts");
        Self {
            child: Some(child),
            socket,
            control,
            log,
        }
    }

    fn wait_for_greeting(&mut self) -> Result<(), String> {
        let give_up = Instant::now() + WAIT_MAX;
        loop {
            let mut greeting = [0; INIT_MAGIC.to_be_bytes().len()];
            let greeted = UnixStream::connect(&self.socket).and_then(|mut stream| {
                stream.set_read_timeout(Some(WAIT_MAX))?;
                stream.read_exact(&mut greeting)
            });
            if greeted.is_ok() {
                assert_eq!(greeting, INIT_MAGIC.to_be_bytes(), "not an NBD server");
                return Ok(());
            }
            let ended = self
                .child
                .as_mut()
                .and_then(|child| child.try_wait().expect("a child can be waited for"));
            if let Some(status) = ended {
                self.child = None;
                return Err(format!(
                    "the server ended before it was ready: {status}\n{}",
                    self.log()
                ));
            }
            assert!(
                Instant::now() < give_up,
                "the server was not ready after {WAIT_MAX:?}"
            );
            thread::sleep(POLL);
        }
    }

    /// Address of the export for NBD clients.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// Path of the NBD socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Path of the control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Runs `flaz set` with `words` of the form `KEY=VALUE`.
    pub fn set(&self, words: &str) {
        Program::flaz()
            .arg("set")
            .words(words)
            .arg("--control")
            .arg(&self.control)
            .ok();
    }

    /// All output of the server, including earlier runs in the same scratch directory.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// `flaz status --json`.
    pub fn status(&self) -> Value {
        let text = Program::flaz()
            .words("status --json --control")
            .arg(&self.control)
            .ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }

    /// A number in the live part of the status, by its JSON pointer.
    pub fn live(&self, pointer: &str) -> u64 {
        let status = self.status();
        let number = status["live"].pointer(pointer).and_then(Value::as_u64);
        number.unwrap_or_else(|| panic!("no number at live{pointer} in {status:#}"))
    }

    /// Memory that the server uses for something, in bytes.
    pub fn memory(&self, name: &str) -> u64 {
        Self::memory_in(&self.status(), name)
    }

    /// The same, from a status report.
    pub fn memory_in(status: &Value, name: &str) -> u64 {
        let uses = status["live"]["memory"]["uses"].as_array();
        let found = uses.into_iter().flatten().find(|used| used["name"] == name);
        let bytes = found.and_then(|used| used["bytes"].as_u64());
        bytes.unwrap_or_else(|| panic!("no memory is used for {name} in {status:#}"))
    }

    /// Whether this run began with the index of the last one.
    pub fn started_warm(&self) -> bool {
        let status = self.status();
        status["live"]["daemon"]["started_warm"]
            .as_bool()
            .unwrap_or_else(|| panic!("not in {status:#}"))
    }

    /// Runs `flaz stop --force`, because clients may be connected, and expects the server to end successfully.
    pub fn stop(self) {
        self.end_well("stop --force");
    }

    /// Runs `flaz flush`: writes all dirty blocks to the origin.
    pub fn flush(&self) {
        Program::flaz().words("flush --control").arg(&self.control).ok();
    }

    /// Runs `flaz detach`, and expects the server to end successfully.
    pub fn detach(self) {
        self.end_well("detach");
    }

    /// Runs `flaz detach --force`, expects it to fail, and returns its message.
    pub fn detach_fails(&self) -> String {
        Program::flaz()
            .words("detach --force --control")
            .arg(&self.control)
            .fails()
    }

    fn end_well(mut self, command: &str) {
        Program::flaz()
            .words(command)
            .arg("--control")
            .arg(&self.control)
            .ok();
        let status = self.wait();
        assert!(
            status.success(),
            "after flaz {command} the server ended with {status}\n{}",
            self.log()
        );
    }

    /// Sends `signal`.
    pub fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("the server runs");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid fits")).expect("a pid is not zero");
        kill_process(pid, signal).expect("a child can be signalled");
    }

    /// Sends `signal` and returns how the server ended.
    pub fn end_by(mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.wait()
    }

    /// Waits until the log contains `part`, or the server ends. Returns the log.
    pub fn log_with(&mut self, part: &str) -> String {
        let give_up = Instant::now() + WAIT_MAX;
        loop {
            let child = self.child.as_mut().expect("the server runs");
            let ended = child.try_wait().expect("a child can be waited for");
            let log = self.log();
            if log.contains(part) || ended.is_some() || Instant::now() > give_up {
                assert!(log.contains(part), "no '{part}' in the log, {ended:?}\n{log}");
                return log;
            }
            thread::sleep(POLL);
        }
    }

    fn wait(&mut self) -> ExitStatus {
        let give_up = Instant::now() + WAIT_MAX;
        let child = self.child.as_mut().expect("the server runs");
        loop {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                self.child = None;
                return status;
            }
            assert!(
                Instant::now() < give_up,
                "the server did not end within {WAIT_MAX:?}"
            );
            thread::sleep(POLL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            eprintln!("--- log of the server\n{}---", self.log());
        }
    }
}
