//! The size of an open device, which may change while it is open.

use std::io;
use std::sync::atomic::Ordering;

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};

use super::handle::FileDevice;
use super::kind::Kind;
use super::open::usable_len;
use super::size::bytes_of;

impl FileDevice {
    /// Makes a file `bytes` long, and notices its size. Where it becomes longer, its space is allocated if `allocated` and if its
    /// file system can do that; a file that then cannot be made so long keeps its size.
    ///
    /// # Errors
    /// The system's; or this is no file.
    pub fn set_len(&self, bytes: u64, allocated: bool) -> io::Result<()> {
        if self.inner.kind != Kind::File {
            let text = "only the size of a file can be set";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let before = bytes_of(&self.inner.fd, self.inner.kind)?;
        let fd = &self.inner.fd;
        rustix::fs::ftruncate(fd, bytes)?;
        if allocated && bytes > before {
            let mode = FallocateFlags::empty();
            if let Err(error) = retry_on_intr(|| rustix::fs::fallocate(fd, mode, before, bytes - before))
                && matches!(error, Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)
            {
                // What was allocated is released.
                rustix::fs::ftruncate(fd, before)?;
                return Err(error.into());
            }
        }
        let len = usable_len(&self.inner.path, bytes, self.inner.alignment);
        self.inner.len.store(len, Ordering::Relaxed);
        Ok(())
    }
}
