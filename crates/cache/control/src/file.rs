//! The file or block device of a cache, to distinguish it from a copy, which has the same UUID.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A file or block device as the daemon of a cache sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedFile {
    /// Absolute path, as it was given.
    #[serde(with = "crate::path")]
    pub path: PathBuf,
    /// Number of the block device, or of the device that has the file.
    device: u64,
    /// Number of the file; absent for a block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    /// The volume, if the device is shared; an older daemon does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
}

impl ServedFile {
    /// The file at `path` now, or a volume of that device.
    ///
    /// # Errors
    /// It cannot be inspected.
    pub fn of(path: &Path, volume: Option<&str>) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        let is_device = metadata.file_type().is_block_device();
        Ok(Self {
            path: std::path::absolute(path)?,
            device: if is_device {
                metadata.rdev()
            } else {
                metadata.dev()
            },
            inode: (!is_device).then(|| metadata.ino()),
            volume: volume.map(str::to_owned),
        })
    }

    /// Whether `path` is this file or device, by a link or another name, or its name: a failed device that is connected again may
    /// have another number, and is served under its name. `volume`: that of a shared device.
    #[must_use]
    pub fn is(&self, path: &Path, volume: Option<&str>) -> bool {
        if self.volume.is_some() && self.volume.as_deref() != volume {
            return false;
        }
        let same = |other: &Self| (other.device, other.inode) == (self.device, self.inode);
        let named = std::path::absolute(path).is_ok_and(|path| path == self.path);
        // A file that cannot be inspected is no reason to refuse.
        named || Self::of(path, None).map_or(true, |other| same(&other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_the_same_file_and_a_copy_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("cache"), "contents").unwrap();
        std::fs::copy(path("cache"), path("copy")).unwrap();
        std::fs::hard_link(path("cache"), path("hard")).unwrap();
        std::os::unix::fs::symlink("cache", path("soft")).unwrap();
        let served = ServedFile::of(&path("cache"), None).unwrap();
        for name in ["cache", "hard", "soft"] {
            assert!(served.is(&path(name), None), "{name}");
        }
        assert!(!served.is(&path("copy"), None));
        let line = crate::Reply::File(served.clone()).to_line();
        assert_eq!(crate::Reply::parse(&line), Ok(crate::Reply::File(served.clone())));
        // Its name stays the name of what is served.
        std::fs::rename(path("copy"), path("cache")).unwrap();
        assert!(served.is(&path("cache"), None));
    }

    #[test]
    fn volumes_of_a_device_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("ssd");
        std::fs::write(&device, "contents").unwrap();
        let served = ServedFile::of(&device, Some("one")).unwrap();
        let line = crate::Reply::File(served.clone()).to_line();
        assert_eq!(crate::Reply::parse(&line), Ok(crate::Reply::File(served.clone())));
        let named = [Some("one"), Some("two"), None];
        assert_eq!(named.map(|name| served.is(&device, name)), [true, false, false]);
        // It does not say which.
        let older = ServedFile::of(&device, None).unwrap();
        assert!(older.is(&device, Some("two")));
    }
}
