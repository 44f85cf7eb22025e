//! Names of block devices: links in `/dev/flaz`, and notes for udev.
//!
//! A device has one name. flaz makes the link itself, so that it is there when the server is ready, with udev and without.
//! The note, `/run/flaz/devices/DEVICE` with the name, is for the rule in `dist/`: by it udev knows the link as well, without
//! which systemd would not mount the name.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The name of a block device.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    links: PathBuf,
    notes: PathBuf,
    name: String,
}

/// The directory of links.
pub(crate) const LINKS: &str = "/dev/flaz";
const NOTES: &str = "/run/flaz/devices";

impl Name {
    /// The name `/dev/flaz/NAME`.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            links: LINKS.into(),
            notes: NOTES.into(),
            name: name.to_owned(),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.links.join(&self.name)
    }

    /// The device that has the name now. It may no longer exist.
    pub(crate) fn device(&self) -> Option<PathBuf> {
        let target = fs::read_link(self.path()).ok()?;
        // udev's links are relative, and all devices are in /dev.
        Some(Path::new("/dev").join(target.file_name()?))
    }

    /// Leaves the note for udev. Called before the device appears.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn note(&self, device: &Path) -> io::Result<()> {
        fs::create_dir_all(&self.notes)?;
        fs::write(self.note_of(device), format!("{}\n", self.name))
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
        if let Err(error) = self.unlink_where(device, |_| true) {
            tracing::warn!("cannot remove the links to {}: {error}", device.display());
        }
        // udev may have no rule, and then there may be no note.
        let _ = fs::remove_file(self.note_of(device));
    }

    /// Removes the link and the note of a device that was disconnected, unless they belong to another name now.
    pub(crate) fn unlink_own(&self, device: &Path) {
        if self.device().as_deref() == Some(device) {
            let _ = fs::remove_file(self.path());
        }
        let note = self.note_of(device);
        if fs::read_to_string(&note).is_ok_and(|text| text.trim_end() == self.name) {
            let _ = fs::remove_file(note);
        }
    }

    fn note_of(&self, device: &Path) -> PathBuf {
        self.notes.join(device.file_name().unwrap_or_default())
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
            notes: scratch.path().join("notes"),
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

    #[test]
    fn a_device_of_another_name_keeps_it() {
        let scratch = tempfile::tempdir().unwrap();
        let (first, second) = (name(&scratch, "a"), name(&scratch, "b"));
        let device = Path::new("/dev/nbd0");
        for each in [&first, &second] {
            each.note(device).unwrap();
            each.link(device).unwrap();
        }
        first.unlink_own(device);
        assert_eq!(links(&scratch), ["b"]);
        assert!(second.note_of(device).exists());
        second.unlink_own(Path::new("/dev/nbd1"));
        assert_eq!(links(&scratch), ["b"]);
        second.unlink_own(device);
        assert!(links(&scratch).is_empty() && !second.note_of(device).exists());
    }

    #[test]
    fn the_note_for_udev_is_the_name() {
        let scratch = tempfile::tempdir().unwrap();
        let name = name(&scratch, "disk");
        let device = Path::new("/dev/ublkb3");
        name.note(device).unwrap();
        let note = scratch.path().join("notes/ublkb3");
        assert_eq!(fs::read_to_string(&note).unwrap(), "disk\n");
        name.link(device).unwrap();
        name.unlink_all(device);
        assert!(!note.exists());
    }
}
