//! The size of an open file or block device.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use super::kind::Kind;

/// BLKGETSIZE64: `_IOR(0x12, 114, size_t)`, a size of eight bytes whatever it says.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);

/// Size in bytes now. Unlike a seek to the end, this waits neither for another seek in the file nor for a discard of the block device.
pub(super) fn bytes_of(fd: &OwnedFd, kind: Kind) -> Result<u64, Errno> {
    if kind == Kind::File {
        // FORCE_SYNC: a network file system asks its server. Only the size, because times would make it write back first.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        return match rustix::fs::statx(fd, c"", flags, StatxFlags::SIZE) {
            Ok(told) => Ok(told.stx_size),
            // Some sandboxes do not allow statx.
            Err(Errno::NOSYS | Errno::PERM) => {
                u64::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| Errno::OVERFLOW)
            }
            Err(error) => Err(error),
        };
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
