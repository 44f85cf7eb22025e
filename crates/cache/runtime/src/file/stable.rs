//! Writes that are stable when they return, and flushes.
//!
//! RWF_DSYNC needs one call where a write and an fdatasync need two. But not every file system honours it on direct
//! writes that io_uring runs asynchronously: Linux's FUSE (seen on 6.18) completes them as if the flag were not set,
//! although it does flush for pwritev2. The flag is therefore trusted only on block devices and on file systems whose
//! direct I/O is known to flush when it completes; everywhere else an fdatasync follows.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::{fs, io};

use flaz_device::{DeviceOp, IoBuf};
use rustix::fs::FsWord;

use super::handle::FileDevice;
use super::kind::Kind;
use crate::op::Op;
use crate::op_table::Payload;
use crate::request::Request;

/// Magic numbers (statfs(2)) of file systems that honour RWF_DSYNC on all kinds of writes: ext2 to ext4, XFS, Btrfs,
/// F2FS.
const HONOURING: [FsWord; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// Whether RWF_DSYNC alone makes writes to `fd` stable. False if unknown.
pub(super) fn dsync_honoured(fd: &OwnedFd, kind: Kind) -> bool {
    // For a block device, the file system type is that of /dev.
    kind == Kind::BlockDevice || rustix::fs::fstatfs(fd).is_ok_and(|stat| HONOURING.contains(&stat.f_type))
}

/// Whether a write with RWF_DSYNC is independent of other flushes: there is no volatile cache that a failed flush could
/// lose, or the flag is passed to the device with the write itself. False for a file, because the file system may
/// choose to flush, and if unknown.
pub(super) fn stands_alone(fd: &OwnedFd, kind: Kind) -> bool {
    in_sysfs(fd, kind).is_some_and(|device| has_no_cache_to_lose(&device))
}

/// Whether completed writes can be lost in a power cut unless they are flushed. Always true for a file, because it
/// depends on the file system too.
pub(super) fn has_volatile_cache(fd: &OwnedFd, kind: Kind) -> bool {
    !in_sysfs(fd, kind).is_some_and(|device| writes_through(&device))
}

/// The sysfs directory of a block device.
fn in_sysfs(fd: &OwnedFd, kind: Kind) -> Option<PathBuf> {
    if kind != Kind::BlockDevice {
        return None;
    }
    let number = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_rdev);
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

/// As above, for the block device that a directory of sysfs describes.
fn has_no_cache_to_lose(device: &Path) -> bool {
    let disk = disk_of(device);
    // A device made of others may announce what not all of them can do.
    let made_of_others = fs::read_dir(disk.join("slaves")).is_ok_and(|mut slaves| slaves.next().is_some());
    writes_through(device) || (says(disk, "fua", "1") && !made_of_others)
}

/// Whether the kernel sends no flushes to the device because it has no volatile write cache.
fn writes_through(device: &Path) -> bool {
    says(disk_of(device), "write_cache", "write through")
}

/// A partition has the queue of its disk.
fn disk_of(device: &Path) -> &Path {
    match device.join("partition").exists() {
        true => device.parent().unwrap_or(device),
        false => device,
    }
}

fn says(disk: &Path, attribute: &str, expected: &str) -> bool {
    fs::read_to_string(disk.join("queue").join(attribute)).is_ok_and(|text| text.trim() == expected)
}

impl FileDevice {
    /// Writes all of `buf`; with `fua` the data is stable on return.
    pub(super) async fn write_range(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, io::Result<()>) {
        let by_flag = fua && self.inner.dsync_honoured;
        let (buf, mut result) = self.transfer(DeviceOp::Write, offset, buf, by_flag).await;
        if fua && !by_flag && result.is_ok() {
            result = self.sync_data().await;
        }
        (buf, result)
    }

    /// Makes all completed writes stable.
    pub(super) async fn sync_data(&self) -> io::Result<()> {
        let request = Request::DataSync { fd: self.raw_fd() };
        let (_, result) = Op::on_file(request, Payload::None, &self.inner).await;
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_independent_without_a_volatile_cache() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let disk = scratch.path().join("sdx");
        let part = disk.join("sdx1");
        for directory in [&disk.join("queue"), &part] {
            fs::create_dir_all(directory).expect("directory");
        }
        fs::write(part.join("partition"), "1\n").expect("writes");
        let judge = |write_cache: &str, fua: &str| {
            fs::write(disk.join("queue/write_cache"), write_cache).expect("writes");
            fs::write(disk.join("queue/fua"), fua).expect("writes");
            let [whole, within] = [&disk, &part].map(|device| has_no_cache_to_lose(device));
            assert_eq!(whole, within, "a partition is as its disk");
            let through = [&disk, &part].map(|device| writes_through(device));
            assert_eq!(through, [write_cache == "write through\n"; 2]);
            whole
        };
        assert!(!judge("write back\n", "0\n"));
        assert!(judge("write back\n", "1\n"));
        assert!(judge("write through\n", "0\n"));
        fs::create_dir_all(disk.join("slaves/sda")).expect("directory");
        assert!(!judge("write back\n", "1\n"), "one of them may have no FUA");
        let unknown = scratch.path();
        assert!(!has_no_cache_to_lose(unknown) && !writes_through(unknown));
    }
}
