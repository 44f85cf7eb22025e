//! The disks behind device files: what tells a disk from others that had its number, and how udev hears of it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::kernel_nbd::number_of;
use super::{NotAStamp, Stamp};

const SYS: &str = "/sys/block";

/// The key of the disk that a device file names now, for its note: the stamp of an NBD device, which keeps its disk when it is
/// disconnected, and the kernel's sequence number of another disk. `None` if there is no disk, or it is that of another program.
/// The udev rule in `dist/` knows the same keys.
pub(super) fn key(device: &Path) -> Option<String> {
    key_in(Path::new(SYS), device)
}

fn key_in(sys: &Path, device: &Path) -> Option<String> {
    let disk = sys.join(device.file_name()?);
    let read = |name| Some(fs::read_to_string(disk.join(name)).ok()?.trim_end().to_owned());
    if number_of(device).is_some() {
        let stamp: Result<Stamp, NotAStamp> = read("backend")?.parse();
        return disk.join("pid").exists().then_some(stamp.ok()?.to_string());
    }
    let sequence: u64 = read("diskseq")?.parse().ok()?;
    Some(format!("ublk-{sequence}"))
}

/// The size of the disk that a device file names, in bytes; `None` if there is no disk.
///
/// # Errors
/// The system's.
pub(super) fn bytes(device: &Path) -> io::Result<Option<u64>> {
    bytes_in(Path::new(SYS), device)
}

fn bytes_in(sys: &Path, device: &Path) -> io::Result<Option<u64>> {
    let file = sys.join(device.file_name().unwrap_or_default()).join("size");
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let sectors: Option<u64> = text.trim_end().parse().ok();
    let bytes = sectors.and_then(|sectors| sectors.checked_mul(512));
    bytes
        .map(Some)
        .ok_or_else(|| io::Error::other(format!("{}: expected sectors, found {text:?}", file.display())))
}

/// Makes udev look at the disk and its partitions again, which then have their names.
pub(super) fn announce(device: &Path) {
    if let Err(error) = announce_in(Path::new(SYS), device) {
        tracing::warn!(
            "cannot announce the name of {} to udev: {error}",
            device.display()
        );
    }
}

fn announce_in(sys: &Path, device: &Path) -> io::Result<()> {
    let disk = sys.join(device.file_name().unwrap_or_default());
    let mut directories: Vec<PathBuf> = vec![disk.clone()];
    for entry in fs::read_dir(&disk)? {
        let directory = entry?.path();
        if directory.join("partition").exists() {
            directories.push(directory);
        }
    }
    directories
        .iter()
        .try_for_each(|directory| fs::write(directory.join("uevent"), "change"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        }

        fn key(&self, device: &str) -> Option<String> {
            key_in(self.0.path(), Path::new(device))
        }
    }

    #[test]
    fn a_number_that_is_used_again_has_another_key() {
        let machine = Machine::new();
        assert_eq!(machine.key("/dev/ublkb0"), None);
        machine.file("ublkb0/diskseq", "12\n");
        assert_eq!(machine.key("/dev/ublkb0").as_deref(), Some("ublk-12"));
        machine.file("ublkb0/diskseq", "13\n");
        assert_eq!(machine.key("/dev/ublkb0").as_deref(), Some("ublk-13"));
    }

    #[test]
    fn only_a_connected_nbd_device_of_a_cache_has_a_key() {
        let machine = Machine::new();
        machine.file("nbd0/diskseq", "3\n");
        machine.file("nbd0/pid", "7\n");
        assert_eq!(machine.key("/dev/nbd0"), None, "of another program");
        machine.file("nbd0/backend", "another program\n");
        assert_eq!(machine.key("/dev/nbd0"), None);
        machine.file("nbd0/backend", "flaz-0123456789abcdef\n");
        assert_eq!(machine.key("/dev/nbd0").as_deref(), Some("flaz-0123456789abcdef"));
        fs::remove_file(machine.0.path().join("nbd0/pid")).unwrap();
        assert_eq!(machine.key("/dev/nbd0"), None, "disconnected");
    }

    #[test]
    fn a_size_is_that_of_the_disk() {
        let machine = Machine::new();
        let bytes = || bytes_in(machine.0.path(), Path::new("/dev/ublkb0"));
        assert_eq!(bytes().unwrap(), None);
        machine.file("ublkb0/size", "2048\n");
        assert_eq!(bytes().unwrap(), Some(1 << 20));
        for wrong in ["many\n", "18446744073709551615\n"] {
            machine.file("ublkb0/size", wrong);
            let error = bytes().unwrap_err().to_string();
            assert!(error.contains(&format!("found {wrong:?}")), "{error}");
        }
    }

    #[test]
    fn udev_is_told_of_a_disk_and_its_partitions() {
        let machine = Machine::new();
        let events = ["ublkb0/uevent", "ublkb0/ublkb0p1/uevent", "ublkb0/queue/uevent"]
            .map(|name| machine.file(name, ""));
        machine.file("ublkb0/ublkb0p1/partition", "1\n");
        announce_in(machine.0.path(), Path::new("/dev/ublkb0")).unwrap();
        let told = events.map(|event| fs::read_to_string(event).unwrap());
        assert_eq!(told, ["change", "change", ""]);
    }
}
