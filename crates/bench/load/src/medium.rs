//! The interface between the patterns and a device, which tests replace with a recorder.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// A file, or a part of a file or device, that belongs to one writer. Offsets are relative to its start.
pub trait Medium: Send + Sync {
    /// Reads all of `buffer` from `offset`.
    ///
    /// # Errors
    /// The system's error, or the file ends before.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// The system's error.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// The system's error.
    fn flush(&self) -> io::Result<()>;

    /// The descriptor for io_uring and the start of the medium in it. A medium without one is only read and written
    /// synchronously.
    fn descriptor(&self) -> Option<(BorrowedFd<'_>, u64)> {
        None
    }
}

/// A part of an open file or device.
#[derive(Debug)]
pub struct FileMedium {
    file: File,
    /// Start of the part, in bytes.
    base: u64,
}

impl FileMedium {
    /// The part of `file` from `base` on.
    #[must_use]
    pub fn new(file: File, base: u64) -> Self {
        Self { file, base }
    }

    /// The whole file or device at `path`, with direct I/O if `direct`.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: &Path, direct: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if direct {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        Ok(Self::new(options.open(path)?, 0))
    }

    /// The part from `base` on of the same file.
    #[must_use]
    pub fn from_offset(self, base: u64) -> Self {
        Self { base, ..self }
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Medium for FileMedium {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, self.base + offset)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, self.base + offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn descriptor(&self) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.file.as_fd(), self.base))
    }
}
