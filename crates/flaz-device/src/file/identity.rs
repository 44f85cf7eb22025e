//! Which file or device this is, however it is called today.
//!
//! A cache remembers the identity of its origin, so that it is not put in front of another one. A block
//! device is known by what its hardware or its driver says (WWID, serial number, device-mapper UUID) and by
//! its place in a partition table; a file by inode number and time of birth.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};

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
        Ok(stat) => {
            let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
            let birth = match known {
                true => format!("{}.{:09}", stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
                false => "unknown".into(), // the file system does not keep it
            };
            Identity {
                id: format!("file:inode={},birth={birth}", stat.stx_ino),
                description: format!("file {} (inode {})", path.display(), stat.stx_ino),
            }
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "no statx: the file is known by its path only");
            Identity {
                id: format!("path:{}", path.display()),
                description: format!("file {}", path.display()),
            }
        }
    }
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
    let id = format!("block:{name}{place},bytes={len}");
    let weak = if strong {
        ""
    } else {
        "; it has no serial number, so it is known by its name and size only"
    };
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
        ("loop/backing_file", "loop"),
    ];
    attributes
        .iter()
        .find_map(|(file, label)| Some(format!("{label}={}", attribute(disk, file)?)))
}

/// A sysfs attribute on one line, if it is there and says anything.
fn attribute(directory: &Path, name: &str) -> Option<String> {
    let text = fs::read(directory.join(name)).ok()?;
    let text = String::from_utf8_lossy(&text[..text.len().min(ATTRIBUTE_MAX)]);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then_some(text)
}
