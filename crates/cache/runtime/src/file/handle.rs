//! An open file: its properties, and data transfers.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flaz_device::{DeviceError, DeviceOp, IoBuf};

use super::identity::Identity;
use super::kind::Kind;
use super::size::bytes_of;
use crate::op::Op;
use crate::op_table::Payload;
use crate::queries::{SIZES, Unanswered};
use crate::request::Request;

/// Maximum bytes per system call; the kernel's own limit is 2 GiB minus a page.
const TRANSFER_MAX: usize = 1 << 30;
/// How often one transfer is retried after an interruption that transferred nothing.
const RETRIES_MAX: u32 = 1000;

/// An open file or block device. Clones refer to the same one. Operations need a [`crate::Runtime`] on the thread that
/// awaits them.
#[derive(Clone)]
pub struct FileDevice {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub fd: OwnedFd,
    pub path: PathBuf,
    pub kind: Kind,
    /// In bytes, a multiple of the alignment. It becomes smaller only by [`FileDevice::set_len`].
    pub len: AtomicU64,
    pub alignment: u32,
    pub direct: bool,
    /// RWF_DSYNC makes a write stable here; elsewhere a flush follows it.
    pub dsync_honoured: bool,
    /// A failed flush of other writes cannot lose such a write.
    pub fua_stands_alone: bool,
    /// A completed write may not be stable yet.
    pub has_volatile_cache: bool,
    pub identity: Identity,
    /// Set when the device has reported that it does not support the operation, which is then not tried again.
    pub no_discard: AtomicBool,
    /// A file whose space is not fully allocated, if [`FileDevice::keep_space`] was called.
    pub is_sparse: AtomicBool,
    pub no_unmap: AtomicBool,
    pub no_zero: AtomicBool,
}

impl fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            path,
            kind,
            alignment,
            direct,
            ..
        } = &*self.inner;
        write!(
            f,
            "FileDevice({kind} {}, {} bytes, alignment {alignment}, direct {direct})",
            path.display(),
            self.known_len()
        )
    }
}

impl AsFd for FileDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd.as_fd()
    }
}

impl FileDevice {
    /// File or block device.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// The path with which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Asks the system for the size now. If the file or device has grown, its length is the new one from now on, for all clones;
    /// if it has shrunk, the length stays, and operations beyond the end fail.
    ///
    /// Returns the bytes that can be used: a multiple of the alignment.
    ///
    /// # Errors
    /// The system's.
    pub fn measure(&self) -> io::Result<u64> {
        let bytes = bytes_of(&self.inner.fd, self.inner.kind)?;
        let len = bytes - bytes % u64::from(self.inner.alignment);
        self.inner.len.fetch_max(len, Ordering::Relaxed);
        Ok(len)
    }

    /// As [`FileDevice::measure`], but if the file system hangs, it returns after `timeout`, and at once if an earlier call has timed
    /// out and not completed since.
    ///
    /// # Errors
    /// The system's; `TimedOut`; or `WouldBlock` if too many calls are queued, or there is no thread for them.
    pub fn measure_within(&self, timeout: Duration) -> io::Result<u64> {
        if self.inner.kind == Kind::BlockDevice {
            return self.measure();
        }
        let file = self.clone();
        let answer = SIZES.run_blocking(timeout, move || file.measure());
        answer.unwrap_or_else(|why| {
            Err(match why {
                Unanswered::Overdue => io::ErrorKind::TimedOut.into(),
                Unanswered::NotRun => io::ErrorKind::WouldBlock.into(),
            })
        })
    }

    /// The length that was measured last.
    pub(super) fn known_len(&self) -> u64 {
        self.inner.len.load(Ordering::Relaxed)
    }

    /// Whether transfers bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.inner.direct
    }

    /// Identity of the file or device, independent of its path.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// The `id` of the identity that an open would find now: that of a disk without a serial number changes with its size. The whole
    /// size counts, not only the bytes that can be used.
    ///
    /// # Errors
    /// The system's.
    pub fn identity_now(&self) -> io::Result<String> {
        let bytes = bytes_of(&self.inner.fd, self.inner.kind)?;
        Ok(Identity::with_size(&self.inner.identity.id, bytes))
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.inner.fd.as_raw_fd()
    }

    /// Refuses ranges that are not aligned or not inside the device before the kernel sees them.
    pub(super) fn check(&self, op: DeviceOp, offset: u64, len: u64) -> Result<(), DeviceError> {
        let alignment = u64::from(self.inner.alignment);
        let message = if !offset.is_multiple_of(alignment) || !len.is_multiple_of(alignment) {
            format!("offset and length must be multiples of {alignment}")
        } else if offset.checked_add(len).is_none_or(|end| end > self.known_len()) {
            format!("the device ends at {}", self.known_len())
        } else {
            return Ok(());
        };
        let source = io::Error::new(io::ErrorKind::InvalidInput, message);
        Err(DeviceError::new(op, offset, len, source))
    }

    /// Transfers all of `buf`, continuing short transfers.
    pub(super) async fn transfer(
        &self,
        op: DeviceOp,
        offset: u64,
        mut buf: IoBuf,
        stable: bool,
    ) -> (IoBuf, io::Result<()>) {
        let fd = self.raw_fd();
        let mut done = 0;
        let mut retries = 0;
        while done < buf.len() {
            let len = (buf.len() - done).min(TRANSFER_MAX) as u32;
            let at = offset + done as u64;
            let ptr = buf.as_mut_ptr().wrapping_add(done);
            let request = match op {
                DeviceOp::Read => Request::Read {
                    fd,
                    ptr,
                    len,
                    offset: at,
                },
                _ => Request::Write {
                    fd,
                    ptr,
                    len,
                    offset: at,
                    stable,
                },
            };
            let (payload, result) = Op::on_file(request, Payload::Buf(buf), &self.inner).await;
            buf = payload.into_buf();
            match result {
                0 => return (buf, Err(end_of_file(op, at))),
                1.. => {
                    done += result as usize;
                    // O_DIRECT can only continue at an aligned offset; the bytes transferred twice are the same.
                    if done < buf.len() {
                        done -= done % self.inner.alignment as usize;
                    }
                }
                ..0 => match -result {
                    libc::EINTR | libc::EAGAIN if retries < RETRIES_MAX => {}
                    errno => return (buf, Err(io::Error::from_raw_os_error(errno))),
                },
            }
            if result < self.inner.alignment as i32 {
                retries += 1;
                if retries > RETRIES_MAX {
                    return (buf, Err(end_of_file(op, at)));
                }
            }
        }
        (buf, Ok(()))
    }
}

fn end_of_file(op: DeviceOp, at: u64) -> io::Error {
    let kind = match op {
        DeviceOp::Read => io::ErrorKind::UnexpectedEof,
        _ => io::ErrorKind::WriteZero,
    };
    io::Error::new(
        kind,
        format!("the file ends at offset {at}: it is shorter than when it was opened"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next open finds the whole size in the identity of a disk without a serial number, also that of bytes at the end that
    /// cannot be used.
    #[test]
    fn the_identity_of_a_grown_disk_has_its_whole_size() {
        let file = tempfile::tempfile().expect("scratch file");
        file.set_len(10_000).expect("grows");
        let device = FileDevice {
            inner: Arc::new(Inner {
                fd: file.try_clone().expect("another descriptor").into(),
                path: "/dev/sdz".into(),
                kind: Kind::BlockDevice,
                len: AtomicU64::new(8192),
                alignment: 4096,
                direct: true,
                dsync_honoured: true,
                fua_stands_alone: false,
                has_volatile_cache: true,
                identity: Identity {
                    id: "block:name=sdz,bytes=10000".to_owned(),
                    description: String::new(),
                    weak: None,
                },
                no_discard: AtomicBool::new(false),
                is_sparse: AtomicBool::new(false),
                no_unmap: AtomicBool::new(false),
                no_zero: AtomicBool::new(false),
            }),
        };
        file.set_len(13_000).expect("grows");
        assert_eq!(device.measure().expect("it has a size"), 12_288);
        let identity = device.identity_now().expect("it has a size");
        assert_eq!(identity, "block:name=sdz,bytes=13000");
    }
}
