//! The directory of the state files.
//!
//! Invariant: it is the directory that was found at the start, whatever is mounted over its path later. A file system on the
//! device that this process serves could be mounted there, and a stop would wait for itself if it looked the path up again.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat, renameat};

/// Maximum length of a file in bytes; a real one has a few hundred.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// An open directory.
#[derive(Debug)]
pub(crate) struct StateDirectory {
    directory: File,
    /// For messages.
    path: PathBuf,
}

impl StateDirectory {
    /// Opens the directory, which is made if it is missing.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Self::existing(path)
    }

    /// Opens a directory that exists.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn existing(path: &Path) -> io::Result<Self> {
        Ok(Self {
            directory: File::open(path)?,
            path: path.to_owned(),
        })
    }

    /// The path of a file, for messages.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The text of a file, if there is one.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn read(&self, name: &str) -> io::Result<Option<String>> {
        let file = match openat(
            &self.directory,
            name,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            other => File::from(other?),
        };
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok(Some(text))
    }

    /// Replaces a file as a whole; the file is stable on return.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn replace(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let new = format!("{name}.new");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.directory, &new, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(text)?;
        file.sync_all()?;
        renameat(&self.directory, &new, &self.directory, name)?;
        // The new name is stable when its directory is.
        self.directory.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_takes_its_place_is_not_used() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, moved) = (scratch.path().join("a/state"), scratch.path().join("moved"));
        let directory = StateDirectory::open(&path).unwrap();
        assert_eq!(directory.read("x").unwrap(), None);
        directory.replace("x", b"1").unwrap();
        // As a mount would hide it, which needs root.
        std::fs::rename(&path, &moved).unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("x"), "other").unwrap();
        assert_eq!(directory.read("x").unwrap().as_deref(), Some("1"));
        directory.replace("x", b"2").unwrap();
        assert_eq!(std::fs::read_to_string(moved.join("x")).unwrap(), "2");
        assert_eq!(std::fs::read_to_string(path.join("x")).unwrap(), "other");
        assert_eq!(std::fs::read_dir(&moved).unwrap().count(), 1, "no draft is left");
    }
}
