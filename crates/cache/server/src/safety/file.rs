//! Opens, holds and resizes a device or file.
//!
//! A block device is held by an exclusive open, a file by a lock: see [`super::claim`].

use std::fs::{File, OpenOptions};
use std::io::Seek;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use flaz_control::size::HumanBytes;
use flaz_device::IoBuf;
use flaz_runtime::file::{ByteLock, is_byte_locked, lock_byte};
use rustix::fs::{FallocateFlags, FlockOperation, FsWord, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::error::SafetyError;
use super::holders::Use;
use super::node::Node;
use crate::pool::MEMBERS;

/// How long another program, such as udev, may keep its lock after a device was closed.
const LOCK: Duration = Duration::from_secs(2);
/// How long `create` writes zeroes to the space of a file, and how many bytes at a time.
const WRITE_ONCE_MAX: Duration = Duration::from_secs(10);
const WRITE_ONCE_BYTES: u64 = 1 << 20;
/// Up to this size, `create` does not say that it writes them.
const WRITE_ONCE_QUIETLY: u64 = 1 << 30;
/// Magic numbers (statfs(2)) of file systems that overwrite in place: ext2 to ext4, and XFS.
const OVERWRITING: [FsWord; 2] = [0xef53, 0x5846_5342];

/// The access that a claim requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read: also works on read-only media and without write permission.
    Read,
    /// To read and write.
    ReadWrite,
}

impl Access {
    /// The access as error messages name it.
    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::ReadWrite => "read and write",
        }
    }
}

/// Opens the file. If it could not be held, the reason is returned with it.
pub(super) fn open(node: &Node, access: Access) -> Result<(File, Option<Use>), SafetyError> {
    let (file, mut claimed) = open_unlocked(node, access)?;
    let path = &node.path;
    if !node.is_block_device() && !lock(&file, access).map_err(failed("lock", path))? {
        claimed = Some(Use::Locked);
    }
    // Of the processes that share a block device, only one has it open exclusively, and not at every moment.
    let alone = match access {
        Access::Read => ByteLock::Shared,
        Access::ReadWrite => ByteLock::Exclusive,
    };
    if claimed.is_none() && lock_byte(&file, MEMBERS, alone) == Ok(false) {
        claimed = Some(Use::Locked);
    }
    Ok((file, claimed))
}

/// Opens a file, or a block device exclusively. If that is refused because of another user, the reason is returned with it.
fn open_unlocked(node: &Node, access: Access) -> Result<(File, Option<Use>), SafetyError> {
    let path = &node.path;
    let options = || {
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::ReadWrite);
        options
    };
    let mut claimed = None;
    let opened = if node.is_block_device() {
        let exclusive = OFlags::EXCL.bits().cast_signed();
        match options().custom_flags(exclusive).open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                claimed = Some(Use::Claimed);
                options().open(path)
            }
            other => other,
        }
    } else {
        options().open(path)
    };
    let file = opened.map_err(|source| not_opened(node, access, source))?;
    let metadata = file.metadata().map_err(failed("inspect", path))?;
    if Node::of(path, &metadata)?.identity != node.identity {
        // Another process replaced the file between two system calls.
        return Err(SafetyError::Changed { path: path.clone() });
    }
    Ok((file, claimed))
}

/// Opens a block device to hold it; false: another user holds it.
pub(super) fn open_exclusively(node: &Node) -> Result<(File, bool), SafetyError> {
    open_unlocked(node, Access::Read).map(|(file, claimed)| (file, claimed.is_none()))
}

/// Opens a file or block device that other flaz processes use too. If others use it, the reason is returned with it. Only one of the
/// processes has a block device open exclusively: the second value is whether this one has.
pub(super) fn open_shared(node: &Node, access: Access) -> Result<(File, bool, Option<Use>), SafetyError> {
    let (file, claimed) = open_unlocked(node, access)?;
    let locking = failed("lock", &node.path);
    if !node.is_block_device() && !lock(&file, Access::Read).map_err(failed("lock", &node.path))? {
        return Ok((file, false, Some(Use::Locked)));
    }
    let others =
        is_byte_locked(&file, MEMBERS, ByteLock::Exclusive).map_err(|error| locking(error.into()))?;
    let joined = lock_byte(&file, MEMBERS, ByteLock::Shared).map_err(|error| locking(error.into()))?;
    let exclusive = node.is_block_device() && claimed.is_none();
    let reason = match claimed {
        _ if !joined => Some(Use::Locked),
        // One of them has claimed it.
        Some(_) if others => None,
        other => other,
    };
    Ok((file, exclusive, reason))
}

fn not_opened(node: &Node, access: Access, source: std::io::Error) -> SafetyError {
    let path = node.path.clone();
    let access = access.name();
    if source.kind() != std::io::ErrorKind::PermissionDenied {
        return SafetyError::NotOpened { path, access, source };
    }
    let advice = if node.is_block_device() {
        "devices belong to root and a group, usually disk: use sudo, or become a member of that group; in a \
         container, pass the device through"
    } else {
        "run as its owner or as root"
    };
    SafetyError::NotAllowed {
        path,
        access,
        advice,
        source,
    }
}

/// Takes the lock that excludes other processes; false if another process has it. Readers share the lock, because NFS
/// has no exclusive lock for them.
pub(super) fn lock(file: &File, access: Access) -> std::io::Result<bool> {
    let deadline = Instant::now() + LOCK;
    let operation = match access {
        Access::Read => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20))
            }
            Err(Errno::WOULDBLOCK) => return Ok(false),
            // The file system has no locks (some network file systems), so there is nothing to take and no conflict.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Size in bytes. A seek to the end gives the size of a block device.
pub(super) fn length(node: &Node, file: &File) -> Result<u64, SafetyError> {
    let mut cursor = file;
    cursor
        .seek(std::io::SeekFrom::End(0))
        .map_err(failed("determine the size of", &node.path))
}

/// Free bytes of the file system of a file, if it says so: ramfs has no size.
fn free_bytes(file: &File) -> Option<u64> {
    let room = rustix::fs::fstatvfs(file).ok()?;
    (room.f_blocks > 0).then(|| room.f_bavail.saturating_mul(room.f_frsize))
}

/// The file is sparse: it allocates space as the cache fills.
fn warn_of_little_room(file: &File, cache: &Path, size_bytes: u64) {
    let Some(free) = free_bytes(file).filter(|free| *free < size_bytes) else {
        return;
    };
    tracing::warn!(
        "{}: the file system has {} free, less than the size of the cache, {}: the cache uses only the available space",
        cache.display(),
        HumanBytes(free),
        HumanBytes(size_bytes)
    );
}

/// Allocates the space of a cache file, so that the cache never finds the file system full. A file system without allocation
/// copies on write as a rule, so that zeroes would reserve nothing: the file stays sparse there, with a warning.
///
/// # Errors
/// The file system has no space for it.
fn allocate(file: &File, cache: &Path, size_bytes: u64) -> Result<(), SafetyError> {
    if size_bytes == 0 {
        // The layout is refused later, with the smallest size.
        return Ok(());
    }
    let no_space = |free_bytes| SafetyError::NoSpace {
        path: cache.to_owned(),
        size_bytes,
        free_bytes,
    };
    // Some file systems allocate all that there is before they fail, and other programs would find them full.
    if let Some(free) = free_bytes(file).filter(|free| *free < size_bytes) {
        return Err(no_space(free));
    }
    match retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size_bytes)) {
        Ok(()) => {
            write_once(file, size_bytes);
            Ok(())
        }
        Err(Errno::NOSPC | Errno::DQUOT) => Err(no_space(free_bytes(file).unwrap_or(0))),
        Err(error) => {
            tracing::warn!(
                "{}: its file system cannot allocate the space of the cache ({error}): the file is sparse and takes space as \
                 the cache fills",
                cache.display()
            );
            warn_of_little_room(file, cache, size_bytes);
            Ok(())
        }
    }
}

/// Writes zeroes to the space of a new file. The first write to space that is only allocated costs a transaction of the file system,
/// which io_uring leaves to a thread: twice the processor time of a later one. What there is no time for stays like that, and so does
/// all if the file system copies on write, where it would cost the space that was allocated.
fn write_once(file: &File, size_bytes: u64) {
    let overwrites = rustix::fs::fstatfs(file).is_ok_and(|stat| OVERWRITING.contains(&stat.f_type));
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct = OpenOptions::new()
        .write(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(path);
    let Some(direct) = direct.ok().filter(|_| overwrites) else {
        return;
    };
    if size_bytes > WRITE_ONCE_QUIETLY {
        tracing::info!(
            "writing zeroes to the new file, for {} seconds at most",
            WRITE_ONCE_MAX.as_secs()
        );
    }
    let zeroes = IoBuf::zeroed(WRITE_ONCE_BYTES as usize);
    let deadline = Instant::now() + WRITE_ONCE_MAX;
    for at in (0..size_bytes - size_bytes % WRITE_ONCE_BYTES).step_by(WRITE_ONCE_BYTES as usize) {
        if Instant::now() > deadline || direct.write_all_at(&zeroes, at).is_err() {
            return;
        }
    }
}

/// Gives an empty file its size, and its space unless it is to be `sparse`.
pub(super) fn give_size(file: &File, cache: &Path, bytes: u64, sparse: bool) -> Result<(), SafetyError> {
    resize(file, bytes).map_err(failed("set the size of", cache))?;
    if sparse {
        warn_of_little_room(file, cache, bytes);
        return Ok(());
    }
    allocate(file, cache, bytes).inspect_err(|_| {
        // As it was found. What was allocated is released.
        let _ = file.set_len(0);
    })
}

/// Sets the size of a file, which its file system may not support.
fn resize(file: &File, bytes: u64) -> std::io::Result<()> {
    file.set_len(bytes).map_err(|error| match error.kind() {
        std::io::ErrorKind::FileTooLarge => {
            let found = HumanBytes(bytes);
            let text = format!("expected a size that the file system supports, found {found} ({error})");
            std::io::Error::new(error.kind(), text)
        }
        _ => error,
    })
}

/// A system error as a [`SafetyError`], with the failed action and the device or file.
pub(super) fn failed<'a>(
    what: &'static str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> SafetyError + Copy + use<'a> {
    move |source| SafetyError::Open {
        what,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safety::identity::{DeviceNumber, Identity};

    #[test]
    fn missing_permission_is_reported_with_advice() {
        let denied = |code| std::io::Error::from_raw_os_error(code);
        let node = |identity| Node {
            path: "/dev/sdx".into(),
            identity,
        };
        let device = node(Identity::Block(DeviceNumber { major: 8, minor: 0 }));
        let file = node(Identity::File { device: 1, inode: 2 });
        for errno in [Errno::ACCESS, Errno::PERM] {
            let text = not_opened(&device, Access::Read, denied(errno.raw_os_error())).to_string();
            assert!(
                text.contains("/dev/sdx: no permission to read it;")
                    && text.contains("sudo")
                    && text.contains("group"),
                "{text}"
            );
            let text = not_opened(&file, Access::ReadWrite, denied(errno.raw_os_error())).to_string();
            assert!(
                text.contains("to read and write it;") && text.contains("its owner"),
                "{text}"
            );
        }
        let text = not_opened(&device, Access::Read, denied(Errno::NXIO.raw_os_error())).to_string();
        assert!(!text.contains("sudo"), "{text}");
    }
}
