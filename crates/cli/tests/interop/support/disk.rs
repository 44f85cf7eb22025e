//! The export as a block device of this machine: nbdfuse makes it a file, the loop driver makes that a device.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Program, Scratch, Server};

const WAIT_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
/// Debian packages of the programs that this module runs.
pub const TOOLS: &[(&str, &str)] = &[
    ("nbdfuse", "libnbd-bin"),
    ("fusermount3", "fuse3"),
    ("losetup", "mount"),
    ("mount", "mount"),
];

/// Loop devices and mounts are few and global: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits until a started program is ready.
///
/// # Panics
/// If it ends before, or takes too long.
pub fn wait_ready(program: &str, child: &mut Child, ready: impl Fn() -> bool) {
    let give_up = Instant::now() + WAIT_MAX;
    while !ready() {
        let ended = child.try_wait().expect("a child can be waited for");
        assert!(ended.is_none(), "{program} ended at once: {ended:?}");
        assert!(
            Instant::now() < give_up,
            "{program} was not ready after {WAIT_MAX:?}"
        );
        thread::sleep(POLL);
    }
}

/// A block device backed by an export. Detached when dropped.
pub struct Disk {
    device: Option<String>,
    fuse: Option<Child>,
    place: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Disk {
    /// Attaches the export of `server`. Only one disk exists at a time; others wait.
    pub fn attach(scratch: &Scratch, server: &Server) -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let place = scratch.place("fuse");
        std::fs::create_dir_all(&place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
        let file = place.join("disk");
        // It unmounts itself on SIGTERM, in case the test is killed.
        let fuse = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "nbdfuse"])
            .arg(&file)
            .arg(server.uri())
            .stdin(Stdio::null())
            .spawn()
            .expect("setpriv (util-linux) starts");
        let mut disk = Self {
            device: None,
            fuse: Some(fuse),
            place,
            _turn: turn,
        };
        let fuse = disk.fuse.as_mut().expect("it was just started");
        wait_ready("nbdfuse", fuse, || file.exists());
        disk.device = Some(
            Program::new("losetup")
                .words("--find --show")
                .arg(&file)
                .ok()
                .trim()
                .to_owned(),
        );
        disk
    }

    /// The device, as `/dev/loop3`.
    pub fn device(&self) -> &str {
        self.device.as_deref().expect("the loop device is attached")
    }

    /// Detaches the device and expects every step to succeed: this machine's caches then hold none of its data.
    pub fn detach(mut self) {
        let device = self.device.take().expect("the loop device is attached");
        Program::new("losetup").words("--detach").arg(&device).ok();
        Program::new("umount").arg(&self.place).ok();
        let mut fuse = self.fuse.take().expect("nbdfuse runs");
        let status = fuse.wait().expect("a child can be waited for");
        assert!(status.success(), "nbdfuse ended with {status}");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(device) = self.device.take() {
            quietly("losetup", &["--detach", &device]);
        }
        if let Some(mut fuse) = self.fuse.take() {
            // Lazily, because a failed test may have left it busy; nbdfuse ends when it is unmounted.
            quietly("umount", &["--lazy", &self.place.to_string_lossy()]);
            let _ = fuse.kill();
            let _ = fuse.wait();
        }
    }
}

/// A mounted file system. Unmounted when dropped.
pub struct Mount {
    pub path: PathBuf,
    mounted: bool,
}

impl Mount {
    /// Mounts the file system on `device`; the guard must not outlive the disk.
    pub fn new(scratch: &Scratch, device: &str) -> Self {
        let path = scratch.place("mnt");
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Program::new("mount").arg(device).arg(&path).ok();
        Self { path, mounted: true }
    }

    /// As [`Mount::new`], with mount options.
    pub fn with_options(scratch: &Scratch, device: &str, options: &str) -> Self {
        let path = scratch.place("mnt");
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Program::new("mount")
            .arg("-o")
            .arg(options)
            .arg(device)
            .arg(&path)
            .ok();
        Self { path, mounted: true }
    }

    /// Mounts the file system in a file, through its own loop device.
    pub fn of_file(scratch: &Scratch, file: &Path) -> Self {
        let path = scratch.place("mnt");
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Program::new("mount").words("-o loop").arg(file).arg(&path).ok();
        Self { path, mounted: true }
    }

    /// Mounts the file system that begins at `start` in a file, through its own loop device.
    pub fn of_partition(scratch: &Scratch, file: &Path, start: u64) -> Self {
        let path = scratch.place("mnt");
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Program::new("mount")
            .arg("-o")
            .arg(format!("loop,offset={start}"))
            .arg(file)
            .arg(&path)
            .ok();
        Self { path, mounted: true }
    }

    /// Unmounts and expects success.
    pub fn unmount(mut self) {
        Program::new("umount").arg(&self.path).ok();
        self.mounted = false;
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            quietly("umount", &["--lazy", &self.path.to_string_lossy()]);
        }
    }
}

/// Runs a step of the clean-up, whose failure cannot be reported.
fn quietly(program: &str, args: &[&str]) {
    let _ = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}
