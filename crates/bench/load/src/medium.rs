//! What is read and written: the seam between the patterns and a device, so that tests can put a recorder in its place.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// A file, or a part of a file or device, that one writer has for itself. Offsets are from its beginning.
pub trait Medium: Send + Sync {
    /// Reads all of `buffer` from `offset`.
    ///
    /// # Errors
    /// What the system says; that the file ends before.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// What the system says.
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Makes everything written durable.
    ///
    /// # Errors
    /// What the system says.
    fn flush(&self) -> io::Result<()>;

    /// The descriptor for io_uring and where the medium begins in it; a medium without one is read and written
    /// synchronously only.
    fn descriptor(&self) -> Option<(BorrowedFd<'_>, u64)> {
        None
    }
}

/// A part of an open file or device.
#[derive(Debug)]
pub struct FileMedium {
    file: File,
    /// Where the part begins, in bytes.
    base: u64,
}

impl FileMedium {
    /// The part of `file` from `base` on.
    #[must_use]
    pub fn new(file: File, base: u64) -> Self {
        Self { file, base }
    }

    /// The whole of the file or device at `path`, past the page cache if `direct`.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, direct: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if direct {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        Ok(Self::new(options.open(path)?, 0))
    }

    /// The same file, of which the part from `base` on is meant.
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
