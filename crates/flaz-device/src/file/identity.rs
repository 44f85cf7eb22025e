//! Which file or device this is, however it is called today.
//!
//! A cache remembers the identity of its origin, so that it is not put in front of another one. A block
//! device is known by what its hardware or its driver says (WWID, serial number, device-mapper UUID) and by
//! its place in a partition table; a file by inode number and time of birth.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags};

use super::Kind;

/// Bytes of one attribute that are used, at most.
const ATTRIBUTE_MAX: usize = 256;

/// A stable name of an origin or a cache device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// For machines: equal for the same device after a reboot, as far as the system can tell.
    pub id: String,
    /// For people.
    pub description: String,
}

impl Identity {
    pub(super) fn of(fd: &std::os::fd::OwnedFd, kind: Kind, path: &Path, len: u64) -> Self {
        match kind {
            Kind::File => of_file(fd, path),
            Kind::BlockDevice => of_block_device(fd, path, len),
        }
    }
}

fn of_file(fd: &std::os::fd::OwnedFd, path: &Path) -> Identity {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    match rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, wanted) {
        Ok(stat) => Identity {
            id: format!("file:{}", inode_and_birth(&stat)),
            description: format!("file {} (inode {})", path.display(), stat.stx_ino),
        },
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "no statx: the file is known by its path only");
            Identity {
                id: format!("path:{}", path.display()),
                description: format!("file {}", path.display()),
            }
        }
    }
}

fn inode_and_birth(stat: &Statx) -> String {
    let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    let birth = match known {
        true => format!("{}.{:09}", stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
        false => "unknown".into(), // the file system does not keep it
    };
    format!("inode={},birth={birth}", stat.stx_ino)
}

fn of_block_device(fd: &std::os::fd::OwnedFd, path: &Path, len: u64) -> Identity {
    let number = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_rdev);
    let link = format!(
        "/sys/dev/block/{}:{}",
        rustix::fs::major(number),
        rustix::fs::minor(number)
    );
    let directory = fs::canonicalize(link).unwrap_or_default();
    block_identity(&directory, path, len)
}

/// The identity of the block device that a directory of sysfs describes.
fn block_identity(directory: &Path, path: &Path, len: u64) -> Identity {
    let partition = attribute(directory, "partition");
    let disk: PathBuf = match &partition {
        Some(_) => directory.parent().unwrap_or(directory).into(),
        None => directory.into(),
    };
    let (name, strong) = match hardware_name(&disk) {
        Some(name) => (name, true),
        None => (
            format!("name={}", disk.file_name().unwrap_or_default().to_string_lossy()),
            false,
        ),
    };
    let place = match (&partition, attribute(directory, "start")) {
        (Some(number), Some(start)) => format!(",partition={number},start={start}"),
        (Some(number), None) => format!(",partition={number}"),
        (None, _) => String::new(),
    };
    // A device with a name of its own may grow and is still the same.
    let (size, weak) = match strong {
        true => (String::new(), ""),
        false => (
            format!(",bytes={len}"),
            "; it has no serial number, so it is known by its name and size only",
        ),
    };
    let id = format!("block:{name}{place}{size}");
    Identity {
        description: format!("block device {} ({name}{place}{weak})", path.display()),
        id,
    }
}

/// The most telling attribute that a disk has.
fn hardware_name(disk: &Path) -> Option<String> {
    let attributes = [
        ("dm/uuid", "dm"),
        ("md/uuid", "md"),
        ("wwid", "wwid"),
        ("device/wwid", "wwid"),
        ("serial", "serial"),
        ("device/serial", "serial"),
    ];
    let found = attributes
        .iter()
        .find_map(|(file, label)| Some(format!("{label}={}", attribute(disk, file)?)));
    found.or_else(|| loop_name(disk))
}

/// A loop device is the file behind it, whichever number it has today.
fn loop_name(disk: &Path) -> Option<String> {
    let backing = attribute(disk, "loop/backing_file")?;
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    Some(match rustix::fs::statx(CWD, &backing, AtFlags::empty(), wanted) {
        Ok(stat) => format!("loop=[{}]", inode_and_birth(&stat)),
        Err(_) => format!("loop={backing}"), // in another mount namespace, or deleted
    })
}

/// A sysfs attribute on one line, if it is there and says anything.
fn attribute(directory: &Path, name: &str) -> Option<String> {
    let text = fs::read(directory.join(name)).ok()?;
    let text = String::from_utf8_lossy(&text[..text.len().min(ATTRIBUTE_MAX)]);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sysfs(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("temporary directory");
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().expect("a file in a directory")).expect("directory");
            fs::write(path, text).expect("attribute");
        }
        directory
    }

    #[test]
    fn a_partition_is_known_by_its_disk_and_its_place() {
        let disk = sysfs(&[
            ("wwid", "eui.0025385b71b0a1f4\n"),
            ("serial", "not looked at\n"),
            ("nvme0n1p2/partition", "2\n"),
            ("nvme0n1p2/start", "1050624\n"),
        ]);
        let found = block_identity(&disk.path().join("nvme0n1p2"), Path::new("/dev/x"), 512);
        assert_eq!(
            found.id,
            "block:wwid=eui.0025385b71b0a1f4,partition=2,start=1050624"
        );
        assert!(
            found.description.starts_with("block device /dev/x (wwid=eui"),
            "{}",
            found.description
        );
        let whole = block_identity(disk.path(), Path::new("/dev/x"), 1024);
        assert_eq!(whole.id, "block:wwid=eui.0025385b71b0a1f4");
    }

    #[test]
    fn a_disk_without_a_name_of_its_own_says_so() {
        let disk = sysfs(&[("sdz/size", "8\n"), ("sdz/serial", "  \n")]);
        let found = block_identity(&disk.path().join("sdz"), Path::new("/dev/sdz"), 4096);
        assert_eq!(found.id, "block:name=sdz,bytes=4096");
        assert!(
            found.description.contains("no serial number"),
            "{}",
            found.description
        );
    }

    #[test]
    fn device_mapper_and_loop_devices_are_known_by_what_makes_them() {
        let mapped = sysfs(&[("dm/uuid", "LVM-abc\n"), ("wwid", "x")]);
        assert_eq!(
            block_identity(mapped.path(), Path::new("/dev/dm-0"), 0).id,
            "block:dm=LVM-abc"
        );
        let backing = tempfile::NamedTempFile::new().expect("scratch file");
        let looped = sysfs(&[("loop/backing_file", &backing.path().to_string_lossy())]);
        let id = block_identity(looped.path(), Path::new("/dev/loop0"), 0).id;
        assert!(id.starts_with("block:loop=[inode="), "{id}");
        let gone = sysfs(&[("loop/backing_file", "/nonexistent/image (deleted)\n")]);
        let id = block_identity(gone.path(), Path::new("/dev/loop0"), 0).id;
        assert_eq!(id, "block:loop=/nonexistent/image (deleted)");
    }
}
