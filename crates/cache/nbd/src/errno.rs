//! Error numbers of NBD, and the mapping of a failed request to one of them.

use std::io;

use flaz_engine::volume::IoError;
use rustix::io::Errno as Os;

/// The error numbers that the protocol allows. NBD defines their values, independent of `errno` on this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Errno {
    /// A write to a read-only export.
    Perm = 1,
    /// A device failed.
    Io = 5,
    /// The request is invalid or exceeds the device.
    Inval = 22,
    /// A write beyond the end, or the origin is full.
    NoSpc = 28,
    /// The server is stopping.
    Shutdown = 108,
}

impl Errno {
    /// The number on the wire.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The error number for a volume's error; `writes` says whether the request would have changed data.
    #[must_use]
    pub fn of(error: &IoError, writes: bool) -> Self {
        match error {
            IoError::OutOfRange { .. } if writes => Self::NoSpc,
            IoError::OutOfRange { .. } => Self::Inval,
            IoError::Stopping => Self::Shutdown,
            // With ENOSPC, a virtual machine is paused until there is space, instead of losing its file system.
            IoError::Origin(device) if is_full(&device.source) => Self::NoSpc,
            _ => Self::Io,
        }
    }
}

/// The errors of a file on a full file system, over its quota or at its maximum size.
fn is_full(error: &io::Error) -> bool {
    let full = [Os::NOSPC, Os::DQUOT, Os::FBIG].map(Os::raw_os_error);
    error.raw_os_error().is_some_and(|number| full.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flaz_device::{DeviceError, DeviceOp};

    #[test]
    fn volume_errors_map_to_nbd_errors() {
        let range = IoError::OutOfRange {
            offset: 10,
            len: 1,
            size: 10,
        };
        assert_eq!(Errno::of(&range, true).code(), 28);
        assert_eq!(Errno::of(&range, false).code(), 22);
        assert_eq!(Errno::of(&IoError::Stopping, false).code(), 108);
        assert_eq!(Errno::of(&IoError::OriginShared, true).code(), 5);
        let broken = DeviceError::new(DeviceOp::Read, 0, 1, std::io::Error::from_raw_os_error(5));
        assert_eq!(Errno::of(&IoError::Origin(broken), true).code(), 5);
    }

    #[test]
    fn a_full_origin_is_not_reported_as_broken() {
        // ENOSPC, EDQUOT, EFBIG.
        for number in [28, 122, 27] {
            let source = std::io::Error::from_raw_os_error(number);
            let full = IoError::Origin(DeviceError::new(DeviceOp::Write, 0, 4096, source));
            assert_eq!(Errno::of(&full, true).code(), 28, "errno {number}");
        }
    }
}
