//! Reads and zeroes ranges of a device or file.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// A device or file, and its size.
#[derive(Debug)]
pub struct Source<'a> {
    file: &'a File,
    size_bytes: u64,
}

impl<'a> Source<'a> {
    /// The file or device, with its length in bytes.
    #[must_use]
    pub fn new(file: &'a File, size_bytes: u64) -> Self {
        Self { file, size_bytes }
    }

    /// Its size.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// `N` bytes at `offset`, or `None` if the device ends before.
    ///
    /// # Errors
    /// The device cannot be read there.
    pub fn bytes<const N: usize>(&self, offset: u64) -> io::Result<Option<[u8; N]>> {
        let mut bytes = [0; N];
        Ok(self.read(offset, &mut bytes)?.then_some(bytes))
    }

    /// Fills `bytes` from `offset`; false if the device ends before.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<bool> {
        if offset
            .checked_add(bytes.len() as u64)
            .is_none_or(|end| end > self.size_bytes)
        {
            return Ok(false);
        }
        match self.file.read_exact_at(bytes, offset) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Offset of the first data that is not a hole.
    pub(super) fn data_start(&self) -> u64 {
        rustix::fs::seek(self.file, rustix::fs::SeekFrom::Data(0)).unwrap_or(self.size_bytes)
    }

    /// Overwrites `len_bytes` bytes at `offset` with zeroes.
    pub(super) fn zero(&self, offset: u64, len_bytes: u64) -> io::Result<()> {
        self.file.write_all_at(&vec![0; len_bytes as usize], offset)
    }

    /// Makes completed writes stable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
