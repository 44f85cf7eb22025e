//! A disk with limited bandwidth: nbdkit's rate filter over a file, made a file by nbdfuse, made a device by the loop
//! driver. Half the bytes take half the time on it, independent of the load of the machine.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::disk::wait_ready;
use super::{Program, Scratch};

/// Debian packages of the programs that this module runs.
pub const TOOLS: &[(&str, &str)] = &[
    ("nbdkit", "nbdkit"),
    ("nbdfuse", "libnbd-bin"),
    ("fusermount3", "fuse3"),
    ("losetup", "mount"),
];

/// A running disk. Removed when dropped.
pub struct Limited {
    device: Option<String>,
    children: Vec<Child>,
    place: PathBuf,
}

impl Limited {
    /// A disk of `len` bytes with a bandwidth in bits per second.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(scratch: &Scratch, len: u64, bits_per_s: &str) -> Self {
        let image = scratch.sparse("limited.img", len);
        let (socket, place) = (scratch.place("limited.sock"), scratch.place("limited"));
        std::fs::create_dir_all(&place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
        let file = place.join("disk");
        let mut disk = Self {
            device: None,
            children: Vec::new(),
            place,
        };
        let rate = format!("rate={bits_per_s}");
        // A nearly empty token bucket: otherwise tokens from an idle time would let the next write pass.
        let nbdkit = ["nbdkit", "--foreground", "--filter=rate", "--unix"];
        disk.spawn(
            "KILL",
            &nbdkit,
            &[
                socket.as_ref(),
                "file".as_ref(),
                &image,
                rate.as_ref(),
                "burstiness=0.05".as_ref(),
            ],
            || UnixStream::connect(&socket).is_ok(),
        );
        disk.spawn("TERM", &["nbdfuse"], &[&file, "--unix".as_ref(), &socket], || {
            file.exists()
        });
        // Not every kernel has direct I/O on FUSE files.
        let attach = |words: &str| Program::new("losetup").words(words).arg(&file);
        let direct = attach("--find --show --direct-io=on").output();
        let name = if direct.status.success() {
            String::from_utf8_lossy(&direct.stdout).into_owned()
        } else {
            attach("--find --show").ok()
        };
        disk.device = Some(name.trim().to_owned());
        disk
    }

    fn spawn(&mut self, signal: &str, program: &[&str], arguments: &[&Path], ready: impl Fn() -> bool) {
        let child = Command::new("setpriv")
            .args(["--pdeathsig", signal])
            .args(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("setpriv (util-linux) starts");
        self.children.push(child);
        let child = self.children.last_mut().expect("the one just pushed");
        wait_ready(program[0], child, ready);
    }

    /// The device, as `/dev/loop3`.
    pub fn device(&self) -> &str {
        self.device.as_deref().expect("the loop device is attached")
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let quietly = |program: &str, args: &[&str]| {
            let _ = Command::new(program)
                .args(args)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        };
        if let Some(device) = self.device.take() {
            quietly("losetup", &["--detach", &device]);
        }
        quietly("fusermount3", &["-u", "-z", &self.place.to_string_lossy()]);
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
