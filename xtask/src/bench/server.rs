//! The measured servers: flaz and nbdkit.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::options::BenchError;

/// Time limit for a server to start or to stop.
const WITHIN: Duration = Duration::from_secs(60);

/// A server on a Unix socket; killed when dropped.
pub struct Server {
    child: Child,
    /// Its NBD socket.
    pub socket: PathBuf,
    control: Option<PathBuf>,
    program: PathBuf,
}

impl Server {
    /// Serves `origin` through a new cache of `cache_mib`.
    ///
    /// # Errors
    /// The program cannot be started, or does not become ready.
    pub fn flaz(
        program: &Path,
        dir: &Path,
        name: &str,
        codec: &str,
        cache_mib: u64,
    ) -> Result<Self, BenchError> {
        Self::flaz_with(program, dir, name, codec, cache_mib, &[])
    }

    /// As above, with more options of `flaz serve`.
    ///
    /// # Errors
    /// The program cannot be started, or does not become ready.
    pub fn flaz_with(
        program: &Path,
        dir: &Path,
        name: &str,
        codec: &str,
        cache_mib: u64,
        more: &[&str],
    ) -> Result<Self, BenchError> {
        let file = |suffix: &str| dir.join(format!("{name}.{suffix}"));
        let (cache, origin, socket, control) = (file("cache"), file("origin"), file("sock"), file("control"));
        let create = Command::new(program)
            .args([
                "create",
                "--codec",
                codec,
                "--size",
                &format!("{cache_mib}MiB"),
                "--origin",
            ])
            .arg(&origin)
            .arg(&cache)
            .output()?;
        if !create.status.success() {
            return Err(format!("flaz create: {}", String::from_utf8_lossy(&create.stderr)).into());
        }
        let log = file("log");
        let child = Command::new(program)
            .arg("serve")
            .arg(&cache)
            .arg("--nbd")
            .arg(format!("unix:{}", socket.display()))
            .arg("--control")
            .arg(&control)
            .arg("--state-dir")
            .arg(dir)
            .args(more)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log)?)
            .spawn()?;
        let mut server = Self {
            child,
            socket: socket.clone(),
            control: Some(control),
            program: program.to_owned(),
        };
        if let Err(error) = server.wait_until_ready() {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(format!("{error}\n{log}").into());
        }
        Ok(server)
    }

    /// nbdkit's file plugin, bypassing the page cache.
    ///
    /// # Errors
    /// nbdkit cannot be started, or does not become ready.
    pub fn nbdkit(dir: &Path, file: &Path) -> Result<Self, BenchError> {
        let socket = dir.join("nbdkit.sock");
        let child = Command::new("nbdkit")
            .args(["-f", "-U"])
            .arg(&socket)
            .arg("file")
            .arg(file)
            .arg("cache=none")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("nbdkit: {error} (Debian package nbdkit)"))?;
        let mut server = Self {
            child,
            socket,
            control: None,
            program: PathBuf::new(),
        };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Waits until clients can connect. The socket of a server that is starting refuses them.
    fn wait_until_ready(&mut self) -> Result<(), BenchError> {
        let deadline = Instant::now() + WITHIN;
        while UnixStream::connect(&self.socket).is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("the server of {} ended: {status}", self.socket.display()).into());
            }
            if Instant::now() > deadline {
                return Err(format!("{} accepts no clients", self.socket.display()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The status report, as JSON.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn status(&self) -> Result<serde_json::Value, BenchError> {
        let control = self.control.as_ref().ok_or("this server has no status")?;
        let output = Command::new(&self.program)
            .args(["status", "--json", "--control"])
            .arg(control)
            .output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// CPU seconds of the process so far.
    #[must_use]
    pub fn cpu_seconds(&self) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // Fields 14 and 15, counted after the name in parentheses; 100 ticks per second on Linux.
        let fields: Vec<&str> = text
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_ascii_whitespace()
            .collect();
        let ticks = |at: usize| {
            fields
                .get(at)
                .and_then(|field| field.parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        (ticks(11) + ticks(12)) / 100.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The files are removed, so a clean stop is not necessary.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
