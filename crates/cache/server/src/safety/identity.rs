//! The identity of a device or file: equal for all paths that name it.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// A block device's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Driver's part.
    pub major: u32,
    /// Device's part.
    pub minor: u32,
}

impl DeviceNumber {
    /// From a `dev_t` as `stat` gives it.
    #[must_use]
    pub fn from_raw(raw: u64) -> Self {
        Self {
            major: rustix::fs::major(raw),
            minor: rustix::fs::minor(raw),
        }
    }

    /// From `MAJOR:MINOR`, as in sysfs and mountinfo.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// The identity of a device or file: two paths with equal nodes name the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// A block device, by its number, because several device files may name it.
    Block(DeviceNumber),
    /// A regular file, by file system and inode.
    File {
        /// File system.
        device: u64,
        /// Inode.
        inode: u64,
    },
}

impl Identity {
    /// The node that `metadata` describes, if it can be a cache device or an origin.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Option<Self> {
        if metadata.file_type().is_block_device() {
            Some(Self::Block(DeviceNumber::from_raw(metadata.rdev())))
        } else if metadata.is_file() {
            Some(Self::File {
                device: metadata.dev(),
                inode: metadata.ino(),
            })
        } else {
            None
        }
    }

    /// The node at `path`, following links; `None` if there is none or it has another type.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        Self::of(&std::fs::metadata(path).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_read_back_as_printed() {
        let number = DeviceNumber { major: 259, minor: 3 };
        assert_eq!(DeviceNumber::parse(&format!("{number}\n")), Some(number));
        for text in ["", "259", "259:", "a:b", "1:2:3"] {
            assert_eq!(DeviceNumber::parse(text), None, "{text}");
        }
    }
}
