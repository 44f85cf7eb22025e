//! The device trait: the one seam between the engine and every medium, real, emulated or simulated.

use std::fmt;
use std::io;

use crate::IoBuf;

/// What was being done when a device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceOp {
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making completed writes stable.
    Flush,
    /// Telling the device that a range is no longer needed.
    Discard,
    /// Writing zeroes without sending them.
    WriteZeroes,
    /// Asking which parts are allocated.
    Status,
}

impl fmt::Display for DeviceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write-zeroes",
            Self::Status => "status",
        })
    }
}

/// A failed operation: what, where, and what the system said.
#[derive(Debug, thiserror::Error)]
#[error("{op} of {len} bytes at offset {offset} failed: {source}")]
pub struct DeviceError {
    /// The operation that failed.
    pub op: DeviceOp,
    /// Byte offset on the device.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// What the operating system (or the simulation) answered.
    pub source: io::Error,
}

impl DeviceError {
    /// An error of `op` on `len` bytes at `offset`.
    #[must_use]
    pub fn new(op: DeviceOp, offset: u64, len: u64, source: io::Error) -> Self {
        Self {
            op,
            offset,
            len,
            source,
        }
    }
}

/// A block device, or something that behaves like one.
///
/// Offsets, lengths and buffers must be multiples of [`Device::alignment`]; transfers are whole or an error
/// (an implementation continues short reads and writes itself). A write is *volatile* until a
/// [`Device::flush`] that was issued after its completion has succeeded, or until it was written with `fua`.
///
/// Methods take and return the buffer, also on error, so that the kernel never holds borrowed memory.
#[expect(
    async_fn_in_trait,
    reason = "devices are driven by one thread each; no Send bound is wanted"
)]
pub trait Device: 'static {
    /// Size in bytes.
    fn len(&self) -> u64;

    /// Whether the device has no room at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Granularity of offsets and lengths in bytes: a power of two, 512 or 4096 as a rule.
    fn alignment(&self) -> u32;

    /// Whether a write with FUA is made stable for itself: no flush that fails can take it along, nor be told of its failure
    /// in its place, as the first one who asks is told of what a page cache could not write.
    fn fua_stands_alone(&self) -> bool {
        false
    }

    /// Whether a write that has completed can be lost in a power cut unless it is flushed. A device that does not know has
    /// such a cache.
    fn has_volatile_cache(&self) -> bool {
        true
    }

    /// Reads `buf.len()` bytes at `offset` into `buf`.
    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>);

    /// Writes all of `buf` at `offset`; with `fua` it is stable when the call returns.
    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>);

    /// Makes every write that had completed when the call was made stable.
    async fn flush(&self) -> Result<(), DeviceError>;

    /// Gives a range up. Its contents are unspecified afterwards. A device that cannot discard returns `Ok`.
    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError>;

    /// Makes a range read as zeroes; with `may_unmap` the device may deallocate it.
    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), DeviceError>;

    /// Allocation of a range, as at most `runs_max` runs of `(bytes, is a hole)`: at least one unless `len` is 0;
    /// together they may be shorter than `len`. A hole reads as zeroes. A device that does not know has none.
    async fn status(
        &self,
        _offset: u64,
        len: u64,
        _runs_max: usize,
    ) -> Result<Vec<(u64, bool)>, DeviceError> {
        Ok(vec![(len, false)])
    }
}
