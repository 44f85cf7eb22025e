//! A device or file as the kernel knows it, whatever path leads to it.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::SafetyError;

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

/// What makes two paths the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// A block device, by its number: there may be many device files for it.
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
    /// Of the thing that `metadata` describes, if it can hold a cache or an origin.
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

    /// Of the thing at `path`, links followed; nothing if it is not there or of another kind.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        Self::of(&std::fs::metadata(path).ok()?)
    }
}

/// A path and what it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// As the user wrote it.
    pub path: PathBuf,
    /// What it leads to.
    pub identity: Identity,
}

impl Node {
    /// Looks at `path`; nothing if nothing is there.
    ///
    /// # Errors
    /// It cannot be looked at, or is neither block device nor regular file.
    pub fn find(path: &Path) -> Result<Option<Self>, SafetyError> {
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(SafetyError::Open {
                    what: "inspect",
                    path: path.to_owned(),
                    source,
                });
            }
        };
        Self::of(path, &metadata).map(Some)
    }

    /// The node that `metadata` describes.
    ///
    /// # Errors
    /// Neither block device nor regular file.
    pub fn of(path: &Path, metadata: &Metadata) -> Result<Self, SafetyError> {
        match Identity::of(metadata) {
            Some(identity) => Ok(Self {
                path: path.to_owned(),
                identity,
            }),
            None => Err(SafetyError::Kind {
                path: path.to_owned(),
                found: kind(metadata),
            }),
        }
    }

    /// Whether it is a block device.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        matches!(self.identity, Identity::Block(_))
    }
}

fn kind(metadata: &Metadata) -> &'static str {
    let file_type = metadata.file_type();
    if file_type.is_dir() {
        "a directory"
    } else if file_type.is_char_device() {
        "a character device"
    } else if file_type.is_fifo() {
        "a pipe"
    } else if file_type.is_socket() {
        "a socket"
    } else {
        "an unsupported file type"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_same_thing() {
        let scratch = tempfile::tempdir().unwrap();
        let (file, hard, soft) = (
            scratch.path().join("file"),
            scratch.path().join("hard"),
            scratch.path().join("soft"),
        );
        std::fs::write(&file, "x").unwrap();
        std::fs::hard_link(&file, &hard).unwrap();
        std::os::unix::fs::symlink(&file, &soft).unwrap();
        let node = Node::find(&file).unwrap().unwrap();
        assert_eq!(Node::find(&hard).unwrap().unwrap().identity, node.identity);
        assert_eq!(Node::find(&soft).unwrap().unwrap().identity, node.identity);
        assert!(!node.is_block_device());
        std::fs::write(scratch.path().join("other"), "x").unwrap();
        assert_ne!(Identity::at(&scratch.path().join("other")), Some(node.identity));
    }

    #[test]
    fn other_file_types_are_named() {
        assert_eq!(Node::find(Path::new("/no/such")).unwrap(), None);
        let message = |path: &str| Node::find(Path::new(path)).unwrap_err().to_string();
        assert!(message("/").contains("found a directory"));
        assert!(message("/dev/null").contains("found a character device"));
    }

    #[test]
    fn device_numbers_read_back_as_printed() {
        let number = DeviceNumber { major: 259, minor: 3 };
        assert_eq!(DeviceNumber::parse(&format!("{number}\n")), Some(number));
        for text in ["", "259", "259:", "a:b", "1:2:3"] {
            assert_eq!(DeviceNumber::parse(text), None, "{text}");
        }
    }
}
