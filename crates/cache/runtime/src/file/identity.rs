//! The identity of a file or device, independent of its current name.
//!
//! A cache stores the identity of its origin, so that it is not used with another one. The identity of a block device
//! consists of what its hardware or driver reports (WWID, serial number, device-mapper UUID) and its place in a
//! partition table; that of a file is its inode number and time of birth.
//!
//! If none of these exists, the identity is *weak* and says why: for a file it is then inode number, file system and
//! path, for a disk its current name and its size.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags};

use super::kind::Kind;

/// Maximum number of bytes used of one attribute.
const ATTRIBUTE_MAX: usize = 256;

/// Longest path, in bytes, that is part of an identity; a longer one is replaced by a checksum.
const PATH_MAX: usize = 96;

/// A stable identity of an origin or a cache device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The identity for comparisons: equal for the same device after a reboot, as far as the system reports it.
    pub id: String,
    /// For people.
    pub description: String,
    /// Why another file or device could have the same identity, if it could.
    pub weak: Option<&'static str>,
}

/// Why an identity is weak.
const NO_BIRTH: &str =
    "its file system does not store the time of birth, so inode number and path identify it";
const NO_STATX: &str = "its file system reports no attributes, so only its path identifies it";
const NO_SERIAL: &str = "it has no serial number, so only its name and size identify it";

/// Begins the size in the identity of a disk without a serial number.
const SIZE: &str = ",bytes=";

impl Identity {
    /// An identity without the size of the disk, which is part of it only if the disk has no serial number.
    #[must_use]
    pub fn without_size(id: &str) -> &str {
        split(id).map_or(id, |(rest, _)| rest)
    }

    /// The identity that the device with this one has when it has `bytes` bytes.
    #[must_use]
    pub(super) fn with_size(id: &str, bytes: u64) -> String {
        match split(id) {
            Some((rest, _)) => format!("{rest}{SIZE}{bytes}"),
            None => id.to_owned(),
        }
    }

    /// Whether `id` may be the device that had the identity `before`, which has grown: a disk of the same name that is larger.
    #[must_use]
    pub fn may_have_grown(before: &str, id: &str) -> bool {
        matches!((split(before), split(id)), (Some(before), Some(now)) if before.0 == now.0 && before.1 < now.1)
    }

    pub(super) fn of(fd: &std::os::fd::OwnedFd, kind: Kind, path: &Path, len: u64) -> Self {
        match kind {
            Kind::File => of_file(fd, path),
            Kind::BlockDevice => of_block_device(fd, path, len),
        }
    }
}

/// The identity of a disk without a serial number, and the size in it.
fn split(id: &str) -> Option<(&str, u64)> {
    let (rest, bytes) = id.rsplit_once(SIZE)?;
    let is_disk = rest.starts_with("block:name=");
    is_disk.then_some((rest, bytes.parse().ok()?))
}

fn of_file(fd: &std::os::fd::OwnedFd, path: &Path) -> Identity {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    match rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, wanted) {
        Ok(stat) => {
            let (id, weak) = inode_identity(&stat, || {
                let number = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_dev);
                file_system(rustix::fs::fstatvfs(fd).map_or(0, |stat| stat.f_fsid), number) + &place(path)
            });
            Identity {
                id: format!("file:{id}"),
                description: format!("file {} (inode {})", path.display(), stat.stx_ino),
                weak,
            }
        }
        Err(_) => Identity {
            id: format!("file{}", place(path).replacen(',', ":", 1)),
            description: format!("file {}", path.display()),
            weak: Some(NO_STATX),
        },
    }
}

/// Distinguishes a file from others by what its file system stores, or else by `more`. Also returns why that is weak.
fn inode_identity(stat: &Statx, more: impl FnOnce() -> String) -> (String, Option<&'static str>) {
    let (inode, birth) = (stat.stx_ino, &stat.stx_btime);
    if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME) {
        let id = format!("inode={inode},birth={}.{:09}", birth.tv_sec, birth.tv_nsec);
        (id, None)
    } else {
        (format!("inode={inode},birth=unknown{}", more()), Some(NO_BIRTH))
    }
}

/// The id of a file system, if it has one. Some report the number of their device, which may change.
fn file_system(id: u64, device: u64) -> String {
    match id {
        0 => String::new(),
        id if id == device => String::new(),
        id => format!(",fs={id:016x}"),
    }
}

/// The full path of a file.
fn place(path: &Path) -> String {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let text = path.to_string_lossy();
    if text.len() <= PATH_MAX {
        return format!(",path={text}");
    }
    // FNV-1a, because the identity must fit into a superblock.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!(",path-hash={hash:016x}")
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
    let (name, weak) = hardware_name(&disk).unwrap_or_else(|| {
        let name = disk.file_name().unwrap_or_default().to_string_lossy();
        (format!("name={name}"), Some(NO_SERIAL))
    });
    let place = match (&partition, attribute(directory, "start")) {
        (Some(number), Some(start)) => format!(",partition={number},start={start}"),
        (Some(number), None) => format!(",partition={number}"),
        (None, _) => String::new(),
    };
    // A device with its own name may grow and is still the same.
    let size = match weak {
        Some(NO_SERIAL) => format!("{SIZE}{len}"),
        _ => String::new(),
    };
    let id = format!("block:{name}{place}{size}");
    let why = weak.map_or(String::new(), |why| format!("; {why}"));
    Identity {
        description: format!("block device {} ({name}{place}{why})", path.display()),
        id,
        weak,
    }
}

/// The best identifying attribute of a disk, and why it is weak.
fn hardware_name(disk: &Path) -> Option<(String, Option<&'static str>)> {
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
        .find_map(|(file, label)| Some((format!("{label}={}", attribute(disk, file)?), None)));
    found.or_else(|| loop_name(disk))
}

/// The identity of a loop device is that of its backing file, independent of its number.
fn loop_name(disk: &Path) -> Option<(String, Option<&'static str>)> {
    let backing = attribute(disk, "loop/backing_file")?;
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    Some(match rustix::fs::statx(CWD, &backing, AtFlags::empty(), wanted) {
        Ok(stat) => {
            let (id, weak) = inode_identity(&stat, || place(Path::new(&backing)));
            (format!("loop=[{id}]"), weak)
        }
        Err(_) => (format!("loop={backing}"), Some(NO_STATX)), // in another mount namespace, or deleted
    })
}

/// A sysfs attribute on one line, if it exists and is not empty.
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
    fn a_partition_is_identified_by_disk_and_position() {
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
    fn a_disk_without_an_identity_is_reported_as_weak() {
        let disk = sysfs(&[("sdz/size", "8\n"), ("sdz/serial", "  \n")]);
        let found = block_identity(&disk.path().join("sdz"), Path::new("/dev/sdz"), 4096);
        assert_eq!(found.id, "block:name=sdz,bytes=4096");
        assert_eq!(found.weak, Some(NO_SERIAL));
        assert!(
            found.description.contains("no serial number"),
            "{}",
            found.description
        );
    }

    #[test]
    fn a_disk_without_a_serial_number_may_have_grown() {
        let (small, large) = (
            "block:name=sdz,partition=1,bytes=4096",
            "block:name=sdz,partition=1,bytes=8192",
        );
        assert!(Identity::may_have_grown(small, large));
        assert!(!Identity::may_have_grown(large, small), "it has shrunk");
        assert!(!Identity::may_have_grown(small, small));
        assert!(!Identity::may_have_grown(
            small,
            "block:name=sdy,partition=1,bytes=8192"
        ));
        assert_eq!(Identity::with_size(small, 8192), large);
        assert_eq!(Identity::without_size(small), Identity::without_size(large));
        for other in [
            "block:serial=x,bytes=1",
            "file:inode=1,birth=unknown,path=/a,bytes=5",
        ] {
            assert_eq!(Identity::with_size(other, 9), other);
            assert_eq!(Identity::without_size(other), other);
            assert!(!Identity::may_have_grown(other, large));
        }
    }

    #[test]
    fn a_file_is_identified_by_birth_time_or_by_path() {
        let file = tempfile::NamedTempFile::new().expect("scratch file");
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let mut stat = rustix::fs::statx(CWD, file.path(), AtFlags::empty(), wanted).expect("statx");
        stat.stx_ino = 2;
        stat.stx_btime.tv_sec = 5;
        stat.stx_btime.tv_nsec = 7;
        stat.stx_mask |= StatxFlags::BTIME.bits();
        let known = inode_identity(&stat, || panic!("nothing more is wanted"));
        assert_eq!(known, ("inode=2,birth=5.000000007".to_owned(), None));
        stat.stx_mask &= !StatxFlags::BTIME.bits();
        let weak = |path| inode_identity(&stat, || place(Path::new(path)));
        let (one, other) = (weak("/nonexistent/one/disk"), weak("/nonexistent/other/disk"));
        assert_eq!(one.1, Some(NO_BIRTH));
        assert_eq!(one.0, "inode=2,birth=unknown,path=/nonexistent/one/disk");
        assert_ne!(one.0, other.0);

        let long = format!("/nonexistent/{}", "d".repeat(4000));
        let hashed = place(Path::new(&long));
        assert!(hashed.starts_with(",path-hash=") && hashed.len() < 40, "{hashed}");
        assert_ne!(hashed, place(Path::new(&format!("{long}e"))));
        assert_eq!(file_system(0, 9), "");
        assert_eq!(file_system(9, 9), "", "a device number");
        assert_eq!(file_system(0x1234, 9), ",fs=0000000000001234");
    }

    #[test]
    fn dm_and_loop_devices_are_identified_by_their_source() {
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
