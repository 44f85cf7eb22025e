//! The new directory for files.
//!
//! Invariant: nothing else in the given directory is modified, and the new one is removed when this is dropped.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::LoadError;

/// A new directory, and its parent if that was created as well.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: tempfile::TempDir,
    // Declared after the directory in it, because fields are dropped in order.
    _made: Option<Made>,
}

impl Scratch {
    /// A new directory in the one at `path`, which is created if it is `missing`; and the free space there, if the file
    /// system reports it.
    ///
    /// # Errors
    /// A system call failed.
    pub(super) fn new(path: &Path, missing: bool) -> Result<(Self, Option<u64>), LoadError> {
        let absolute = std::path::absolute(path).map_err(LoadError::at("find", path))?;
        if missing && absolute.starts_with("/dev") && !absolute.starts_with("/dev/shm") {
            let message = format!(
                "{}: no such device; directories are not created under /dev, and `lsblk` lists the devices",
                path.display()
            );
            return Err(LoadError::Plan(message));
        }
        let made = if missing {
            fs::create_dir(path).map_err(LoadError::at("create the directory", path))?;
            Some(Made(path.to_owned()))
        } else {
            None
        };
        let room = rustix::fs::statvfs(path)
            .map_err(|error| LoadError::at("determine the free space of", path)(error.into()))?;
        let folder = tempfile::Builder::new()
            .prefix("flaz-bench-")
            .tempdir_in(path)
            .map_err(LoadError::at("create a directory in", path))?;
        // Some file systems, such as ramfs, have no size.
        let free = (room.f_blocks > 0).then(|| room.f_bavail.saturating_mul(room.f_frsize));
        Ok((Self { folder, _made: made }, free))
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A directory that did not exist before.
#[derive(Debug)]
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        // Another program may have created files in it meanwhile: then it stays.
        let _ = fs::remove_dir(&self.0);
    }
}
