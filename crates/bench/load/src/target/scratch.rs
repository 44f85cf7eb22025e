//! The new folder in which files are made.
//!
//! Invariant: nothing else in the folder that was given is touched, and what was made goes with this.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::LoadError;

/// A new folder, and the one that it is in if that was made for it.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: tempfile::TempDir,
    // After the folder in it: fields are dropped in order.
    _made: Option<Made>,
}

impl Scratch {
    /// A new folder in the one at `path`, which is made if it is `missing`; and the free space there, if the file system
    /// tells.
    ///
    /// # Errors
    /// The system refuses.
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
        // Some, as ramfs, have no size at all.
        let free = (room.f_blocks > 0).then(|| room.f_bavail.saturating_mul(room.f_frsize));
        Ok((Self { folder, _made: made }, free))
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A folder that was not there before.
#[derive(Debug)]
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        // Somebody may have put something in it meanwhile: then it stays.
        let _ = fs::remove_dir(&self.0);
    }
}
