//! Advisory locks, and the processes that hold them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Maximum number of holders named in an error.
const NAMED_MAX: usize = 4;
/// Longest wait for the requests of a dead process to complete. A slow disk with a full queue takes a few seconds.
const LINGER_MAX: Duration = Duration::from_secs(30);
const LINGER_POLL: Duration = Duration::from_millis(5);
/// Longest wait for a running process. udev locks a block device for a moment after a process that wrote to it has closed it.
const BUSY_MAX: Duration = Duration::from_secs(2);

/// Locks the whole file: shared for readers, exclusive for writers. `Ok(false)` if another process has the lock.
pub(super) fn take(fd: &OwnedFd, read_only: bool) -> rustix::io::Result<bool> {
    let operation = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    match flock(fd, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        // The file system has no locks (some network file systems), so there is nothing to take and no conflict.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => Ok(true),
        Err(error) => Err(error),
    }
}

/// As [`take`], but waits up to [`BUSY_MAX`] for a lock, and up to [`LINGER_MAX`] for one whose holder is dead. The kernel completes the
/// io_uring requests of a killed process after its end; until then they keep the file open, locked, and possibly changing. Opening it
/// earlier would read data that such a write is about to change.
pub(super) fn take_patiently(
    fd: &OwnedFd,
    read_only: bool,
    device: u64,
    inode: u64,
) -> rustix::io::Result<bool> {
    let begun = Instant::now();
    loop {
        if take(fd, read_only)? {
            return Ok(true);
        }
        let alive = holder_ids(FLOCK, device, inode)
            .iter()
            .any(|pid| fs::exists(format!("/proc/{pid}")).unwrap_or(true));
        let most = if alive { BUSY_MAX } else { LINGER_MAX };
        if begun.elapsed() >= most {
            // Try once more: the last holder may have gone between the attempt and the search.
            return take(fd, read_only);
        }
        thread::sleep(LINGER_POLL);
    }
}

/// Waits up to [`LINGER_MAX`] until no request of an earlier process is in flight (see [`take_patiently`]), and marks this
/// descriptor for later calls with the same `byte`. `Ok(false)` if they are still in flight. The caller excludes running processes.
///
/// The mark is a lock of the open file description, independent of [`take`], that the kernel releases when the descriptor
/// and all requests on it are gone.
pub(super) fn outlast_requests(
    fd: &OwnedFd,
    byte: u64,
    read_only: bool,
    device: u64,
    inode: u64,
) -> rustix::io::Result<bool> {
    let give_up = Instant::now() + LINGER_MAX;
    loop {
        if mark(fd, byte, read_only)? {
            return Ok(true);
        }
        // NFS turns both kinds of locks into one, so the conflict may be with the lock that the caller has.
        if holder_ids(OFD, device, inode).is_empty() {
            return Ok(true);
        }
        if Instant::now() >= give_up {
            return Ok(false);
        }
        thread::sleep(LINGER_POLL);
    }
}

/// Takes a lock of the open file description on a byte; false if another description has it.
fn mark(fd: &OwnedFd, byte: u64, read_only: bool) -> rustix::io::Result<bool> {
    let lock = match read_only {
        true => ByteLock::Shared,
        false => ByteLock::Exclusive,
    };
    match lock_byte(fd, byte, lock) {
        // The file system has no locks.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL) => Ok(true),
        other => other,
    }
}

/// How a byte is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteLock {
    /// With others that share it.
    Shared,
    /// Alone. The file must be open for writing.
    Exclusive,
    /// Not any more.
    Released,
}

impl ByteLock {
    fn raw(self) -> libc::c_int {
        match self {
            Self::Shared => libc::F_RDLCK,
            Self::Exclusive => libc::F_WRLCK,
            Self::Released => libc::F_UNLCK,
        }
    }
}

/// Locks one byte of a file for its open file description, which all its duplicates and the requests in flight on it share: the lock
/// ends when the last of them is gone. The byte may lie beyond the end. `Ok(false)`: another description has a lock that excludes it.
///
/// # Errors
/// The system's; some file systems have no locks.
pub fn lock_byte(fd: impl AsFd, byte: u64, lock: ByteLock) -> rustix::io::Result<bool> {
    match command(fd, libc::F_OFD_SETLK, byte, lock.raw()) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// As [`lock_byte`], but waits for the lock.
///
/// # Errors
/// The system's.
pub fn wait_for_byte(fd: impl AsFd, byte: u64, lock: ByteLock) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| command(&fd, libc::F_OFD_SETLKW, byte, lock.raw()).map(drop))
}

/// Whether another open file description has a lock on a byte that excludes `wanted`.
///
/// # Errors
/// The system's.
pub fn is_byte_locked(fd: impl AsFd, byte: u64, wanted: ByteLock) -> rustix::io::Result<bool> {
    let found = command(fd, libc::F_OFD_GETLK, byte, wanted.raw())?;
    Ok(libc::c_int::from(found.l_type) != libc::F_UNLCK)
}

fn command(
    fd: impl AsFd,
    command: libc::c_int,
    byte: u64,
    kind: libc::c_int,
) -> rustix::io::Result<libc::flock> {
    // SAFETY: all zeroes is a valid `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte as libc::off_t;
    lock.l_len = 1;
    // SAFETY: the descriptor is open, and `lock` is a valid `flock`, which the call reads, and writes only for F_OFD_GETLK.
    if unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, &raw mut lock) } == 0 {
        return Ok(lock);
    }
    let error = Errno::from_io_error(&io::Error::last_os_error());
    Err(error.unwrap_or(Errno::IO))
}

/// The names of the two kinds of locks in /proc/locks.
const FLOCK: &str = "FLOCK";
const OFD: &str = "OFDLCK";

/// Processes that hold locks of a kind on an inode of a device, by number (-1 for the lock of a description). From
/// /proc/locks, which shows only processes of this container.
fn holder_ids(kind: &str, device: u64, inode: u64) -> Vec<String> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    holders_in(&locks, kind, device, inode)
}

/// Two file systems may have files with the same inode number, and each FUSE mount has. But some file systems (btrfs)
/// report another device here than in the file's status: if no device matches, the inode number alone decides.
fn holders_in(locks: &str, kind: &str, device: u64, inode: u64) -> Vec<String> {
    let place = format!(
        "{:02x}:{:02x}:{inode}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    let suffix = format!(":{inode}");
    let holders = |fits: &dyn Fn(&str) -> bool| -> Vec<String> {
        let fitting = locks.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // "1: FLOCK  ADVISORY  WRITE 123 08:01:456 0 EOF"; waiting ones have "->" second.
            let [_, found, _, _, pid, place, ..] = fields[..] else {
                return None;
            };
            (found == kind && fits(place)).then(|| pid.to_owned())
        });
        fitting.take(NAMED_MAX).collect()
    };
    let exact = holders(&|found| found == place);
    if exact.is_empty() {
        holders(&|found| found.ends_with(&suffix))
    } else {
        exact
    }
}

/// Running processes that hold a lock on the file, for a message; `None` if none is visible. Takes no lock itself, so
/// that it does not interfere.
#[must_use]
pub fn locked_by(path: &Path) -> Option<String> {
    let stat = rustix::fs::stat(path).ok()?;
    let alive: Vec<String> = holder_ids(FLOCK, stat.st_dev, stat.st_ino)
        .iter()
        .filter(|pid| fs::exists(format!("/proc/{pid}")).unwrap_or(false))
        .map(|pid| process(pid))
        .collect();
    (!alive.is_empty()).then(|| alive.join(", "))
}

/// The holders for a message: "process 12 (qemu)".
pub(super) fn holders(device: u64, inode: u64) -> String {
    let mut names: Vec<String> = holder_ids(FLOCK, device, inode)
        .iter()
        .map(|pid| process(pid))
        .collect();
    names.dedup();
    if names.is_empty() {
        "another process".into()
    } else {
        names.join(", ")
    }
}

fn process(pid: &str) -> String {
    if pid.parse::<u32>() == Ok(std::process::id()) {
        return "this process itself".into();
    }
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        Err(_) => format!("process {pid}"),
    }
}

/// Users of a block device, for a message: mounts and devices stacked on it.
pub(super) fn users(major: u32, minor: u32) -> String {
    let number = format!("{major}:{minor}");
    let mut users: Vec<String> = Vec::new();
    if let Ok(mounts) = fs::read_to_string("/proc/self/mountinfo") {
        // "36 35 98:0 /mnt1 /mnt2 rw,noatime ...": the third field is the device, the fifth the mount point.
        users.extend(mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ');
            let device = fields.nth(2)?;
            let place = fields.nth(1)?;
            (device == number).then(|| format!("it is mounted on {place}"))
        }));
    }
    if let Ok(entries) = fs::read_dir(format!("/sys/dev/block/{number}/holders")) {
        users.extend(
            entries
                .flatten()
                .map(|entry| format!("{} uses it", entry.file_name().to_string_lossy())),
        );
    }
    users.truncate(NAMED_MAX);
    if users.is_empty() {
        "it or one of its partitions is mounted, or another process uses it".into()
    } else {
        users.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_holder_is_found_without_touching_the_lock() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(locked_by(file.path()), None);
        let fd = OwnedFd::from(file.reopen().expect("opens"));
        assert!(take(&fd, false).expect("locks"));
        assert_eq!(locked_by(file.path()).as_deref(), Some("this process itself"));
        drop(fd);
        assert_eq!(locked_by(file.path()), None);
        assert_eq!(locked_by(Path::new("/nothing/here")), None);
    }

    #[test]
    fn equal_inodes_on_two_devices_are_different_files() {
        let locks = "1: FLOCK  ADVISORY  WRITE 17 00:2f:2 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 18 00:30:2 0 EOF\n\
                     3: POSIX  ADVISORY  WRITE 19 00:30:2 0 EOF\n\
                     4: -> FLOCK  ADVISORY  WRITE 20 00:30:2 0 EOF\n";
        let of = |minor, inode| holders_in(locks, FLOCK, rustix::fs::makedev(0, minor), inode);
        assert_eq!(of(0x30, 2), ["18"]);
        assert_eq!(of(0x2f, 2), ["17"]);
        assert_eq!(of(0x31, 2), ["17", "18"], "a device with another number there");
        assert!(of(0x30, 12).is_empty());
    }

    /// The first description stands for one that only requests of a dead process keep open.
    #[test]
    fn the_mark_of_a_claimed_file_waits_for_the_last_one() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = || OwnedFd::from(file.reopen().expect("opens"));
        let stat = rustix::fs::stat(file.path()).expect("it is there");
        let (claim, first, second) = (open(), open(), open());
        assert!(take(&claim, false).expect("locks"));
        let outlast = |fd: &OwnedFd| outlast_requests(fd, 0, false, stat.st_dev, stat.st_ino).expect("locks");
        assert!(outlast(&first), "beside the lock of the claim");
        assert!(!mark(&second, 0, false).expect("locks"));
        let begun = Instant::now();
        let ended = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(first);
        });
        assert!(outlast(&second));
        assert!(begun.elapsed() >= Duration::from_millis(50), "it waited");
        ended.join().expect("it ends");
    }

    #[test]
    fn bytes_are_locked_for_themselves() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = || OwnedFd::from(file.reopen().expect("opens"));
        let (one, other) = (open(), open());
        let lock = |fd: &OwnedFd, byte, how| lock_byte(fd, byte, how).expect("locks");
        assert!(lock(&one, 7, ByteLock::Exclusive) && lock(&other, 8, ByteLock::Exclusive));
        assert!(!lock(&other, 7, ByteLock::Shared));
        let locked = |fd: &OwnedFd, wanted| is_byte_locked(fd, 7, wanted).expect("asks");
        assert!(locked(&other, ByteLock::Shared) && !locked(&one, ByteLock::Exclusive));
        assert!(lock(&one, 7, ByteLock::Shared) && lock(&other, 7, ByteLock::Shared));
        assert!(locked(&other, ByteLock::Exclusive) && !locked(&other, ByteLock::Shared));
        assert!(!lock(&other, 7, ByteLock::Exclusive));
        assert!(lock(&one, 7, ByteLock::Released) && lock(&other, 7, ByteLock::Exclusive));
        let begun = Instant::now();
        let ended = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(other);
        });
        wait_for_byte(&one, 7, ByteLock::Exclusive).expect("it is released");
        assert!(begun.elapsed() >= Duration::from_millis(50), "it waited");
        ended.join().expect("it ends");
    }
}
