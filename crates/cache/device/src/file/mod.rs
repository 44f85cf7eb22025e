//! A file or a block device, through io_uring and past the page cache.
//!
//! Invariants:
//! - a transfer is whole or an error: short reads and writes are continued, the end of the file is an error;
//! - an operation runs on the runtime of the thread that polls it, so one [`FileDevice`] serves all threads;
//! - the kernel never holds memory or a descriptor that a dropped future has given back (see [`crate::rt`]).
//!
//! | file | what it holds |
//! |---|---|
//! | `open` | opening, probing for O_DIRECT, sizes and alignments, locks |
//! | `identity` | which file or device this is, however it is called today |
//! | `stable` | writes that are stable when they return, and flushes |
//! | `zero` | discard and write-zeroes, with what to do where they are not supported |
//! | `status` | holes |

mod identity;
mod lock;
mod open;
mod stable;
mod status;
mod zero;

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use identity::Identity;
pub use lock::locked_by;
pub use open::{OpenError, OpenMode};
pub use status::Run;

use crate::rt::{Op, Payload, Request};
use crate::{Device, DeviceError, DeviceOp, IoBuf};

/// Bytes of one system call, at most; the kernel itself stops at 2 GiB less a page.
const TRANSFER_MAX: usize = 1 << 30;
/// How often one transfer is continued after an interruption that moved nothing.
const RETRIES_MAX: u32 = 1000;

/// What is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A block device.
    BlockDevice,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::BlockDevice => "block device",
        })
    }
}

/// An open file or block device. Clones are the same one; operations need a [`crate::rt::Runtime`] on the
/// thread that awaits them.
#[derive(Clone)]
pub struct FileDevice {
    inner: Arc<Inner>,
}

struct Inner {
    fd: OwnedFd,
    path: PathBuf,
    kind: Kind,
    /// Bytes, a multiple of the alignment.
    len: u64,
    alignment: u32,
    direct: bool,
    /// RWF_DSYNC makes a write stable here; elsewhere it is followed by a flush.
    dsync_honoured: bool,
    /// Such a write cannot be lost by another flush that fails.
    fua_stands_alone: bool,
    identity: Identity,
    /// Set when the device has said that it does not support the operation: it is not asked again.
    no_discard: AtomicBool,
    no_unmap: AtomicBool,
    no_zero: AtomicBool,
}

impl fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            path,
            kind,
            len,
            alignment,
            direct,
            ..
        } = &*self.inner;
        write!(
            f,
            "FileDevice({kind} {}, {len} bytes, alignment {alignment}, direct {direct})",
            path.display()
        )
    }
}

impl FileDevice {
    /// Opens a regular file or a block device.
    ///
    /// # Errors
    /// [`OpenError`] says what was found and what to do.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self, OpenError> {
        open::open(path.as_ref(), mode)
    }

    /// File or block device.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Whether transfers pass the page cache by.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.inner.direct
    }

    /// Which file or device this is, whatever its path.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    fn raw_fd(&self) -> RawFd {
        self.inner.fd.as_raw_fd()
    }

    /// Refuses what is not aligned or not inside the device, before the kernel sees it.
    fn check(&self, op: DeviceOp, offset: u64, len: u64) -> Result<(), DeviceError> {
        let alignment = u64::from(self.inner.alignment);
        let message = if !offset.is_multiple_of(alignment) || !len.is_multiple_of(alignment) {
            format!("offset and length must be multiples of {alignment}")
        } else if offset.checked_add(len).is_none_or(|end| end > self.inner.len) {
            format!("the device ends at {}", self.inner.len)
        } else {
            return Ok(());
        };
        let source = io::Error::new(io::ErrorKind::InvalidInput, message);
        Err(DeviceError::new(op, offset, len, source))
    }

    /// Moves all of `buf`, continuing short transfers.
    async fn transfer(
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
            let (payload, result) = Op::new(request, Payload::Buf(buf)).await;
            buf = payload.into_buf();
            match result {
                0 => return (buf, Err(end_of_file(op, at))),
                1.. => {
                    done += result as usize;
                    // O_DIRECT goes on at aligned places only; what is moved again is the same bytes.
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

impl Device for FileDevice {
    fn len(&self) -> u64 {
        self.inner.len
    }

    fn alignment(&self) -> u32 {
        self.inner.alignment
    }

    fn fua_stands_alone(&self) -> bool {
        self.inner.fua_stands_alone
    }

    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len() as u64;
        if let Err(error) = self.check(DeviceOp::Read, offset, len) {
            return (buf, Err(error));
        }
        let (buf, result) = self.transfer(DeviceOp::Read, offset, buf, false).await;
        (
            buf,
            result.map_err(|source| DeviceError::new(DeviceOp::Read, offset, len, source)),
        )
    }

    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>) {
        let len = buf.len() as u64;
        if let Err(error) = self.check(DeviceOp::Write, offset, len) {
            return (buf, Err(error));
        }
        let (buf, result) = self.write_range(offset, buf, fua).await;
        (
            buf,
            result.map_err(|source| DeviceError::new(DeviceOp::Write, offset, len, source)),
        )
    }

    async fn status(&self, offset: u64, len: u64, runs_max: usize) -> Result<Vec<(u64, bool)>, DeviceError> {
        let runs = FileDevice::status(self, offset, len, runs_max)
            .map_err(|source| DeviceError::new(DeviceOp::Status, offset, len, source))?;
        Ok(runs.into_iter().map(|run| (run.len, run.hole)).collect())
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        let result = self.sync_data().await;
        // Never tried again: after a failed flush the kernel may have dropped what it could not write,
        // and a second one would succeed.
        result.map_err(|source| DeviceError::new(DeviceOp::Flush, 0, 0, source))
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.check(DeviceOp::Discard, offset, len)?;
        let result = self.discard_range(offset, len).await;
        result.map_err(|source| DeviceError::new(DeviceOp::Discard, offset, len, source))
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError> {
        self.check(DeviceOp::WriteZeroes, offset, len)?;
        let result = self.zero_range(offset, len, may_unmap, fua).await;
        result.map_err(|source| DeviceError::new(DeviceOp::WriteZeroes, offset, len, source))
    }
}
