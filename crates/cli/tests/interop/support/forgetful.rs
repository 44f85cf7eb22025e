//! A disk with a volatile cache: a file whose writes are volatile until they are flushed.
//!
//! nbdkit's cache filter keeps writes in its own memory and writes them to the image file on flush and FUA; nbdfuse
//! makes a file of it, which flaz uses as a disk. Killing nbdkit is the power cut: the image has the flushed data. Data
//! that the disk was told to persist stays as well, as on a disk that may write out its cache at any time.
//!
//! Trims are refused. The filter would pass them to the image at once but continue to read its own copy, and nbdfuse
//! uses trims to punch holes, after which a file must read as zeroes.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use flaz_nbd::Client;
use rustix::process::{Pid, Signal, kill_process};

use super::Scratch;
use super::disk::wait_ready;

/// Debian packages of the programs that this module runs.
pub const TOOLS: &[(&str, &str)] = &[
    ("nbdkit", "nbdkit"),
    ("nbdfuse", "libnbd-bin"),
    ("fusermount3", "fuse3"),
];

/// The disk's reaction to a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// The correct one.
    Honest,
    /// None, with success reported: the negative control.
    Lying,
}

/// A running disk. When dropped, it loses power.
pub struct Forgetful {
    nbdkit: Child,
    nbdfuse: Child,
    socket: PathBuf,
    place: PathBuf,
}

impl Forgetful {
    /// Starts the disk whose medium is the file `image`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(scratch: &Scratch, name: &str, image: &Path, flush: Flush) -> Self {
        let socket = scratch.place(&format!("{name}.sock"));
        let _ = std::fs::remove_file(&socket);
        let mode = match flush {
            Flush::Honest => "writeback",
            Flush::Lying => "unsafe",
        };
        // The filter's memory is an unnamed file next to the image.
        let folder = image.parent().expect("an image lies in a folder");
        let nbdkit = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "nbdkit", "--foreground", "--unix"])
            .arg(&socket)
            .args(["--filter=error", "--filter=cache", "file"])
            .arg(image)
            .args([&format!("cache={mode}"), "cache-min-block-size=4k"])
            .args(["error-trim=EINVAL", "error-trim-rate=100%"])
            .env("TMPDIR", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("setpriv (util-linux) starts");
        let mut nbdkit = Ended(Some(nbdkit));
        nbdkit.wait_until("nbdkit", || UnixStream::connect(&socket).is_ok());
        let place = scratch.place(name);
        std::fs::create_dir_all(&place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
        let file = place.join("disk");
        // It unmounts itself on SIGTERM, in case the test is killed.
        let nbdfuse = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "nbdfuse"])
            .arg(&file)
            .arg("--unix")
            .arg(&socket)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("setpriv (util-linux) starts");
        let mut nbdfuse = Ended(Some(nbdfuse));
        nbdfuse.wait_until("nbdfuse", || file.exists());
        Self {
            nbdkit: nbdkit.keep(),
            nbdfuse: nbdfuse.keep(),
            socket,
            place,
        }
    }

    /// The disk, as a file.
    pub fn file(&self) -> PathBuf {
        self.place.join("disk")
    }

    /// The disk does not respond until [`Forgetful::thaw`].
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// The disk responds again, also to earlier requests.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// The file system with the disk does not respond at all until [`Forgetful::thaw_file_system`].
    pub fn freeze_file_system(&self) {
        kill_process(Pid::from_child(&self.nbdfuse), Signal::STOP).expect("nbdfuse runs");
    }

    /// The file system responds again.
    pub fn thaw_file_system(&self) {
        kill_process(Pid::from_child(&self.nbdfuse), Signal::CONT).expect("nbdfuse runs");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.nbdkit), signal).expect("nbdkit runs");
    }

    /// The socket over which [`persist`] reaches the disk directly.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

/// Makes the disk at `socket` write out its volatile data, as disks do at any time without notice.
///
/// # Panics
/// If it does not.
pub fn persist(socket: &Path) {
    Client::connect(socket)
        .and_then(|mut disk| disk.flush())
        .unwrap_or_else(|error| panic!("{}: {error}", socket.display()));
}

impl Drop for Forgetful {
    fn drop(&mut self) {
        for child in [&mut self.nbdkit, &mut self.nbdfuse] {
            let _ = child.kill();
        }
        for child in [&mut self.nbdkit, &mut self.nbdfuse] {
            let _ = child.wait();
        }
        // Lazily, because a running server may have it open.
        let _ = Command::new("fusermount3")
            .args(["-u", "-z"])
            .arg(&self.place)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// A child that ends with this guard, unless it is kept.
struct Ended(Option<Child>);

impl Ended {
    fn wait_until(&mut self, name: &str, ready: impl Fn() -> bool) {
        let child = self.0.as_mut().expect("it was not given away");
        wait_ready(name, child, ready);
    }

    fn keep(mut self) -> Child {
        self.0.take().expect("it was not given away")
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
