//! Where a cache lies: `DEVICE`, or `DEVICE:VOLUME` for a volume's part of a shared device.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use flaz_control::shell::quoted;
use flaz_pool::format::{MAGIC, SLOTS};

use crate::error::HostError;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The device or file.
    pub device: PathBuf,
    /// The volume; `None` for a cache that has the device alone.
    pub volume: Option<String>,
}

impl Place {
    /// The place that a user or a configuration names. A path that exists is a device, also with a colon in it; otherwise what
    /// follows the last colon is a volume, if what precedes it exists.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let whole = || Self {
            device: path.to_owned(),
            volume: None,
        };
        if path.symlink_metadata().is_ok() {
            return whole();
        }
        let bytes = path.as_os_str().as_bytes();
        let Some(colon) = bytes.iter().rposition(|byte| *byte == b':') else {
            return whole();
        };
        let device = Path::new(OsStr::from_bytes(&bytes[..colon]));
        match std::str::from_utf8(&bytes[colon + 1..]) {
            Ok(volume)
                if !volume.is_empty() && !volume.contains('/') && device.symlink_metadata().is_ok() =>
            {
                Self {
                    device: device.to_owned(),
                    volume: Some(volume.to_owned()),
                }
            }
            _ => whole(),
        }
    }

    /// The place of a cache: not a device that volumes share, of which none is named.
    ///
    /// # Errors
    /// Such a device.
    pub fn of_cache(path: &Path) -> Result<Self, HostError> {
        let place = Self::of(path);
        if place.volume.is_none() && is_shared(&place.device) {
            return Err(format!(
                "{} is shared by volumes: expected one of them, {0}:VOLUME; `flaz volume list {}` lists them",
                place.device.display(),
                quoted(&place.device)
            )
            .into());
        }
        Ok(place)
    }

    /// Refuses to resize a volume's cache.
    ///
    /// # Errors
    /// It is one.
    pub fn refuse_resize(&self) -> Result<(), HostError> {
        let Some(volume) = &self.volume else { return Ok(()) };
        let device = quoted(&self.device);
        Err(format!(
            "a volume takes the space that it needs: limit it with `flaz volume set {device} {volume}`, or give the device more \
             with `flaz resize {device}`"
        )
        .into())
    }

    /// How a volume is named: `DEVICE:VOLUME`.
    #[must_use]
    pub fn path_of(device: &Path, volume: &str) -> PathBuf {
        let mut path = device.as_os_str().to_owned();
        path.push(":");
        path.push(volume);
        path.into()
    }
}

/// Whether a device or file looks like one that volumes share.
#[must_use]
pub fn is_shared(device: &Path) -> bool {
    let Ok(file) = File::open(device) else {
        return false;
    };
    SLOTS.iter().any(|slot| {
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, *slot).is_ok() && u64::from_le_bytes(magic) == MAGIC
    })
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.device.display())?;
        match &self.volume {
            Some(volume) => write!(f, ":{volume}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_path_is_a_device_and_its_volumes_follow_a_colon() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["ssd", "disk:0", "pci-0:1"] {
            std::fs::write(path(name), "").unwrap();
        }
        let volume = |name: &str| {
            let place = Place::of(&path(name));
            assert_eq!(place.to_string(), path(name).display().to_string());
            place.volume
        };
        assert_eq!(volume("ssd"), None);
        assert_eq!(volume("ssd:home"), Some("home".to_owned()));
        assert_eq!(volume("disk:0"), None);
        assert_eq!(volume("pci-0:1:db"), Some("db".to_owned()));
        let odd = folder.path().join(OsStr::from_bytes(b"\xff"));
        std::fs::write(&odd, "").unwrap();
        let place = Place::of(&Place::path_of(&odd, "home"));
        assert_eq!((place.device, place.volume), (odd, Some("home".to_owned())));
        // What does not exist is not taken apart.
        for other in ["none:home", "ssd:", "ssd:a/b"] {
            assert_eq!(volume(other), None, "{other}");
        }
        assert_eq!(Place::path_of(&path("ssd"), "home"), path("ssd:home"));
    }
}
