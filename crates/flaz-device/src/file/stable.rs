//! Writes that are stable when they return, and flushes.
//!
//! RWF_DSYNC costs one call where a write and an fdatasync cost two. But not every file system honours it on direct
//! writes that io_uring runs asynchronously: Linux's FUSE (seen on 6.18) completes them as if the flag were not there,
//! while it does flush for pwritev2. So it is believed of block devices and of file systems whose direct I/O is known to
//! flush when it completes; everywhere else an fdatasync follows.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::FsWord;

use super::{FileDevice, Kind};
use crate::rt::{Op, Payload, Request};
use crate::{DeviceOp, IoBuf};

/// Magic numbers (statfs(2)) of file systems that honour RWF_DSYNC whichever way a write comes: ext2 to ext4, XFS,
/// Btrfs, F2FS.
const HONOURING: [FsWord; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// Whether RWF_DSYNC alone makes writes to `fd` stable. Where that cannot be found out it is not believed.
pub(super) fn dsync_honoured(fd: &OwnedFd, kind: Kind) -> bool {
    // The type of a block device's file system is that of /dev.
    kind == Kind::BlockDevice || rustix::fs::fstatfs(fd).is_ok_and(|stat| HONOURING.contains(&stat.f_type))
}

impl FileDevice {
    /// Writes all of `buf`; with `fua` it is stable then.
    pub(super) async fn write_range(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, io::Result<()>) {
        let by_flag = fua && self.inner.dsync_honoured;
        let (buf, mut result) = self.transfer(DeviceOp::Write, offset, buf, by_flag).await;
        if fua && !by_flag && result.is_ok() {
            result = self.sync_data().await;
        }
        (buf, result)
    }

    /// Makes all writes that have completed stable.
    pub(super) async fn sync_data(&self) -> io::Result<()> {
        let (_, result) = Op::new(Request::DataSync { fd: self.raw_fd() }, Payload::None).await;
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        Ok(())
    }
}
