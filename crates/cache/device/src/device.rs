//! The device trait: the only interface between the engine and every medium, real, emulated or simulated.

use std::fmt;
use std::io;

use crate::IoBuf;

/// The operation of a device error.
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
    /// Zeroing a range without sending zeroes.
    WriteZeroes,
    /// Reporting which parts are allocated.
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

/// A failed operation: which one, where, and the system's error.
#[derive(Debug, thiserror::Error)]
#[error("{op} of {len} bytes at offset {offset} failed: {source}")]
pub struct DeviceError {
    /// The operation that failed.
    pub op: DeviceOp,
    /// Byte offset on the device.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The error of the operating system (or the simulation).
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
/// Offsets, lengths and buffers must be multiples of [`Device::alignment`]. Transfers are complete or an error (an
/// implementation continues short reads and writes itself). A write is *volatile* until a [`Device::flush`] that was
/// issued after its completion has succeeded, or it was written with `fua`.
///
/// Methods take and return the buffer, also on error, so that the kernel never holds borrowed memory.
#[expect(
    async_fn_in_trait,
    reason = "devices are driven by one thread each; no Send bound is wanted"
)]
pub trait Device: 'static {
    /// Size in bytes. It may grow, but it does not shrink.
    fn len(&self) -> u64;

    /// Whether the size is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Granularity of offsets and lengths in bytes: a power of two, usually 512 or 4096.
    fn alignment(&self) -> u32;

    /// Whether a write with FUA is independent of other writes: a failed flush can neither lose it nor be reported in
    /// its place, as a page cache reports an error to the first caller that asks.
    fn fua_stands_alone(&self) -> bool {
        false
    }

    /// Whether a completed write can be lost in a power cut unless it is flushed. True if the device does not know.
    fn has_volatile_cache(&self) -> bool {
        true
    }

    /// Reads `buf.len()` bytes at `offset` into `buf`.
    async fn read_at(&self, offset: u64, buf: IoBuf) -> (IoBuf, Result<(), DeviceError>);

    /// Writes all of `buf` at `offset`; with `fua` it is stable when the call returns.
    async fn write_at(&self, offset: u64, buf: IoBuf, fua: bool) -> (IoBuf, Result<(), DeviceError>);

    /// Makes every write stable that had completed when this was called.
    async fn flush(&self) -> Result<(), DeviceError>;

    /// Whether the device takes space when a range is first written, so that a write may find none: a sparse file.
    fn is_sparse(&self) -> bool {
        false
    }

    /// Whether the space of a sparse device is shared: that there is none is ordinary, and other users may want some back.
    fn shares_space(&self) -> bool {
        false
    }

    /// Whether a range of a sparse device is known to have its space.
    fn has_space(&self, _offset: u64, _len: u64) -> bool {
        !self.is_sparse()
    }

    /// Gives the space of a range back: nobody reads or writes it until it is allocated again. Only for a device whose space is
    /// shared.
    async fn deallocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.discard(offset, len).await
    }

    /// Takes the space of a range, so that writes to it find space. The contents stay as they are.
    async fn allocate(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Discards a range. Its contents are unspecified afterwards. A device that cannot discard returns `Ok`.
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
    /// together they may be shorter than `len`. A hole reads as zeroes. A device that does not know reports no holes.
    async fn status(
        &self,
        _offset: u64,
        len: u64,
        _runs_max: usize,
    ) -> Result<Vec<(u64, bool)>, DeviceError> {
        Ok(vec![(len, false)])
    }
}
