//! Discard and write-zeroes, with substitutes for devices that do not support them.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flaz_device::IoBuf;

use super::handle::FileDevice;
use super::kind::Kind;
use crate::compute;
use crate::op::Op;
use crate::op_table::Payload;
use crate::request::Request;

/// Number of zero bytes in one write if the device cannot zero a range itself.
pub(super) const ZERO_WRITE_MAX: u64 = 1 << 20;

/// Whether an error means "not supported", rather than "failed".
fn unsupported(errno: i32) -> bool {
    matches!(
        errno,
        libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS | libc::EINVAL
    )
}

impl FileDevice {
    pub(super) async fn discard_range(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 || self.inner.no_discard.load(Ordering::Relaxed) {
            return Ok(());
        }
        let errno = match self.inner.kind {
            Kind::File => {
                self.fallocate(
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    offset,
                    len,
                )
                .await
            }
            Kind::BlockDevice => {
                let inner = Arc::clone(&self.inner);
                compute::blocking(move || block_discard(&inner.fd, offset, len)).await
            }
        };
        match errno {
            0 => Ok(()),
            errno if unsupported(errno) => {
                tracing::info!(path = %self.inner.path.display(), "discard is not supported: space is not \
                    released");
                self.inner.no_discard.store(true, Ordering::Relaxed);
                Ok(())
            }
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// For a cache: ignores discards from now on if this is a file, because they would give space back to the file system, which
    /// may be full when the file needs it again. Finds out whether the file is sparse.
    pub fn keep_space(&self) {
        if self.inner.kind != Kind::File {
            return;
        }
        self.inner.no_discard.store(true, Ordering::Relaxed);
        let space = rustix::fs::fstat(&self.inner.fd).map_or(0, |stat| stat.st_blocks.unsigned_abs());
        let is_sparse = space.saturating_mul(512) < self.known_len();
        self.inner.is_sparse.store(is_sparse, Ordering::Relaxed);
    }

    /// Allocates a range of a file, if its file system can.
    pub(super) async fn allocate_range(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 || self.inner.kind != Kind::File {
            return Ok(());
        }
        match self.fallocate(libc::FALLOC_FL_KEEP_SIZE, offset, len).await {
            0 => Ok(()),
            errno if unsupported(errno) => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    pub(super) async fn zero_range(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        // On block devices the kernel translates these to write-zeroes commands with and without unmapping, and refuses
        // if it would have to send zeroes to the device.
        let unmap = (
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            &self.inner.no_unmap,
        );
        let keep = (
            libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
            &self.inner.no_zero,
        );
        let ways = if may_unmap {
            &[unmap, keep][..]
        } else {
            &[keep][..]
        };
        for &(mode, refused) in ways {
            if refused.load(Ordering::Relaxed) {
                continue;
            }
            match self.fallocate(mode, offset, len).await {
                0 if fua => return self.sync_data().await,
                0 => return Ok(()),
                errno if unsupported(errno) => refused.store(true, Ordering::Relaxed),
                errno => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
        self.send_zeroes(offset, len, fua).await
    }

    async fn send_zeroes(&self, offset: u64, len: u64, fua: bool) -> io::Result<()> {
        let mut zeroes = IoBuf::zeroed(len.min(ZERO_WRITE_MAX) as usize);
        let mut at = offset;
        let end = offset + len;
        while at < end {
            zeroes.set_len((end - at).min(ZERO_WRITE_MAX) as usize);
            let (buf, result) = self.write_range(at, zeroes, fua).await;
            result?;
            zeroes = buf;
            at += zeroes.len() as u64;
        }
        Ok(())
    }

    /// The error number, 0 for success.
    async fn fallocate(&self, mode: i32, offset: u64, len: u64) -> i32 {
        let request = Request::Fallocate {
            fd: self.raw_fd(),
            mode,
            offset,
            len,
        };
        let (_, result) = Op::on_file(request, Payload::None, &self.inner).await;
        -result.min(0)
    }
}

/// BLKDISCARD: `_IO(0x12, 119)`.
const BLKDISCARD: u32 = 0x1277;

/// The error number, 0 for success.
fn block_discard(fd: &std::os::fd::OwnedFd, offset: u64, len: u64) -> i32 {
    let range = [offset, len];
    // SAFETY: BLKDISCARD reads two u64 from the pointer, which `range` holds; the descriptor is open.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) };
    if result == 0 {
        0
    } else {
        io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    }
}
