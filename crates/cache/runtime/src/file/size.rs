//! The size of an open file or block device.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::kind::Kind;

/// BLKGETSIZE64: `_IOR(0x12, 114, size_t)`, a size of eight bytes whatever it says.
const BLKGETSIZE64: u64 = 0x1272 | (size_of::<usize>() as u64) << 16 | 2 << 30;

/// Bytes now. Takes no lock that an operation on the file holds for long, as a seek does: of its position, or of a block device
/// that is being discarded.
pub(super) fn bytes_of(fd: &OwnedFd, kind: Kind) -> Result<u64, Errno> {
    if kind == Kind::File {
        let size = rustix::fs::fstat(fd)?.st_size;
        return u64::try_from(size).map_err(|_| Errno::OVERFLOW);
    }
    let mut bytes: u64 = 0;
    // SAFETY: BLKGETSIZE64 writes a u64 to the pointer; the descriptor is open.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), BLKGETSIZE64 as _, &raw mut bytes) };
    match result {
        0 => Ok(bytes),
        _ => rustix::fs::seek(fd, SeekFrom::End(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_that_of_the_end() {
        let file = tempfile::tempfile().expect("scratch file");
        file.set_len(12_345).expect("grows");
        let fd = OwnedFd::from(file);
        assert_eq!(bytes_of(&fd, Kind::File), Ok(12_345));
        assert_eq!(bytes_of(&fd, Kind::BlockDevice), Ok(12_345), "it is none");
        assert_eq!(rustix::fs::tell(&fd), Ok(12_345));
    }
}
