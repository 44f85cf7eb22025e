//! Names of block devices: links in `/dev/flaz`, notes for udev, and locks.
//!
//! A device has one name, and a name one device. flaz makes the link itself, so that it is there when the server is ready, with
//! udev and without. The note, `/run/flaz/devices/KEY` with the name, is for the rule in `dist/`: by it udev knows the link as
//! well, without which systemd would not mount the name. The lock, `/run/flaz/names/NAME`, is held by the server, and ends with
//! the process.
//!
//! Invariant: the key of a note belongs to one disk (see [`crate::block_device`]), unlike the number of a device, which the
//! kernel gives to another disk when it is free. So a note that has outlived its disk names none.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The name of a block device.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    links: PathBuf,
    run: PathBuf,
    name: String,
}

/// The directory of links.
pub(crate) const LINKS: &str = "/dev/flaz";
/// The directory of notes and locks.
const RUN: &str = "/run/flaz";

/// A name that no other process can hold while this lives.
#[derive(Debug)]
pub(crate) struct Held {
    _lock: File,
}

impl Name {
    /// The name `/dev/flaz/NAME`.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            links: LINKS.into(),
            run: RUN.into(),
            name: name.to_owned(),
        }
    }

    /// All names that have a link.
    pub(crate) fn all() -> Vec<Self> {
        let links = fs::read_dir(LINKS).into_iter().flatten().flatten();
        links
            .filter_map(|link| Some(Self::new(link.file_name().to_str()?)))
            .collect()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.links.join(&self.name)
    }

    /// The device to which the link leads. It may no longer exist, or be that of another program.
    pub(crate) fn device(&self) -> Option<PathBuf> {
        let target = fs::read_link(self.path()).ok()?;
        // udev's links are relative, and all devices are in /dev.
        Some(Path::new("/dev").join(target.file_name()?))
    }

    /// Holds the name; `None` while another process does.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn hold(&self) -> io::Result<Option<Held>> {
        let locks = self.run.join("names");
        fs::create_dir_all(&locks)?;
        // The file stays: without it, a process that has it open and one that makes it anew would both hold the name.
        // Others may not lock it.
        let lock = File::options()
            .write(true)
            .mode(0o600)
            .create(true)
            .truncate(false)
            .open(locks.join(&self.name))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Held { _lock: lock })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Leaves the note of a disk for udev, and removes those of earlier disks of this name.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn note(&self, key: &str) -> io::Result<()> {
        fs::create_dir_all(self.notes())?;
        fs::write(self.notes().join(key), format!("{}\n", self.name))?;
        self.forget_where(|other| other != Path::new(key));
        Ok(())
    }

    /// Whether the disk with this key has the name.
    pub(crate) fn is_noted(&self, key: &str) -> bool {
        fs::read_to_string(self.notes().join(key)).is_ok_and(|text| text.trim_end() == self.name)
    }

    /// Makes the link, and removes other links to the device.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn link(&self, device: &Path) -> io::Result<()> {
        fs::create_dir_all(&self.links)?;
        let draft = self.links.join(format!(".new-{}", std::process::id()));
        let _ = fs::remove_file(&draft);
        symlink(device, &draft)?;
        fs::rename(&draft, self.path())?;
        self.unlink_where(device, |link| link != self.path())
    }

    /// Removes all links to the device, and the note.
    pub(crate) fn unlink_all(&self, device: &Path) {
        let unlinked = self.unlink_where(device, |_| true);
        if let Err(error) = unlinked
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove the links to {}: {error}", device.display());
        }
        self.forget_where(|_| true);
    }

    /// Removes the link and the note of a device that was disconnected, unless the link leads to another device now.
    pub(crate) fn unlink_own(&self, device: &Path) {
        if self.device().as_deref() == Some(device) {
            let _ = fs::remove_file(self.path());
        }
        self.forget_where(|_| true);
    }

    fn notes(&self) -> PathBuf {
        self.run.join("devices")
    }

    /// Removes notes with this name.
    fn forget_where(&self, chosen: impl Fn(&Path) -> bool) {
        for note in fs::read_dir(self.notes()).into_iter().flatten().flatten() {
            let key = PathBuf::from(note.file_name());
            if chosen(&key) && key.to_str().is_some_and(|key| self.is_noted(key)) {
                // If it stays, it names nothing once its disk is gone.
                let _ = fs::remove_file(note.path());
            }
        }
    }

    fn unlink_where(&self, device: &Path, chosen: impl Fn(&Path) -> bool) -> io::Result<()> {
        for entry in fs::read_dir(&self.links)? {
            let link = entry?.path();
            let is_of_device = fs::read_link(&link).is_ok_and(|to| to.file_name() == device.file_name());
            if is_of_device && chosen(&link) {
                match fs::remove_file(&link) {
                    // udev removes its links when the device goes.
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(scratch: &tempfile::TempDir, name: &str) -> Name {
        Name {
            links: scratch.path().join("links"),
            run: scratch.path().join("run"),
            name: name.to_owned(),
        }
    }

    fn links(scratch: &tempfile::TempDir) -> Vec<String> {
        let entries = fs::read_dir(scratch.path().join("links")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_device_has_one_name_and_loses_it() {
        let scratch = tempfile::tempdir().unwrap();
        let (first, second, other) = (name(&scratch, "a"), name(&scratch, "b"), name(&scratch, "c"));
        let (device, other_device) = (Path::new("/dev/ublkb0"), Path::new("/dev/ublkb1"));
        assert_eq!(first.device(), None);
        first.link(device).unwrap();
        other.link(other_device).unwrap();
        assert_eq!(first.device().as_deref(), Some(device));
        second.link(device).unwrap();
        second.link(device).unwrap();
        assert_eq!(links(&scratch), ["b", "c"]);
        second.unlink_all(device);
        assert_eq!(links(&scratch), ["c"]);
    }

    #[test]
    fn links_of_udev_are_understood() {
        let scratch = tempfile::tempdir().unwrap();
        let name = name(&scratch, "disk");
        fs::create_dir(scratch.path().join("links")).unwrap();
        symlink("../ublkb3", name.path()).unwrap();
        assert_eq!(name.device().as_deref(), Some(Path::new("/dev/ublkb3")));
        name.unlink_all(Path::new("/dev/ublkb3"));
        assert!(links(&scratch).is_empty());
    }

    fn notes(scratch: &tempfile::TempDir) -> Vec<(String, String)> {
        let entries = fs::read_dir(scratch.path().join("run/devices")).unwrap();
        let mut notes: Vec<_> = entries
            .map(|entry| {
                let entry = entry.unwrap();
                let text = fs::read_to_string(entry.path()).unwrap();
                (entry.file_name().into_string().unwrap(), text)
            })
            .collect();
        notes.sort();
        notes
    }

    #[test]
    fn a_device_of_another_name_keeps_it() {
        let scratch = tempfile::tempdir().unwrap();
        let (first, second) = (name(&scratch, "a"), name(&scratch, "b"));
        let device = Path::new("/dev/nbd0");
        for each in [&first, &second] {
            each.note("flaz-1").unwrap();
            each.link(device).unwrap();
        }
        first.unlink_own(device);
        assert_eq!(links(&scratch), ["b"]);
        assert!(second.is_noted("flaz-1"));
        second.unlink_own(Path::new("/dev/nbd1"));
        assert_eq!(links(&scratch), ["b"]);
        second.unlink_own(device);
        assert!(links(&scratch).is_empty());
        assert!(notes(&scratch).is_empty());
    }

    #[test]
    fn the_note_for_udev_is_that_of_one_disk() {
        let scratch = tempfile::tempdir().unwrap();
        let (name, other) = (name(&scratch, "disk"), name(&scratch, "other"));
        let device = Path::new("/dev/ublkb3");
        name.note("ublk-7").unwrap();
        other.note("ublk-8").unwrap();
        assert!(name.is_noted("ublk-7") && !name.is_noted("ublk-8") && !name.is_noted("ublk-9"));
        let note = |key: &str, name: &str| (key.to_owned(), format!("{name}\n"));
        assert_eq!(notes(&scratch), [note("ublk-7", "disk"), note("ublk-8", "other")]);
        name.note("ublk-9").unwrap();
        assert_eq!(notes(&scratch), [note("ublk-8", "other"), note("ublk-9", "disk")]);
        name.link(device).unwrap();
        name.unlink_all(device);
        assert_eq!(notes(&scratch), [note("ublk-8", "other")]);
    }

    #[test]
    fn one_process_holds_a_name() {
        let scratch = tempfile::tempdir().unwrap();
        let held = name(&scratch, "disk").hold().unwrap().unwrap();
        assert!(name(&scratch, "disk").hold().unwrap().is_none());
        assert!(name(&scratch, "other").hold().unwrap().is_some());
        drop(held);
        assert!(name(&scratch, "disk").hold().unwrap().is_some());
    }
}
