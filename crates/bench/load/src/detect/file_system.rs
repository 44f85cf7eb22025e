//! Determines the file system of a path, and what it does to data.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use flaz_bench::detect::FileSystem;
use rustix::fs::{IFlags, ioctl_getflags, major, minor};

/// File systems that store data unchanged.
const PLAIN: [&str; 8] = ["ext2", "ext3", "ext4", "xfs", "vfat", "exfat", "tmpfs", "nilfs2"];
/// File systems that compress if a mount option or a file attribute says so.
const TOLD: [&str; 2] = ["btrfs", "f2fs"];
/// The file system of a path.
#[derive(Debug)]
pub struct FileSystemOf {
    /// Its type, as in mount(8).
    pub kind: String,
    /// What it does to data.
    pub compression: FileSystem,
    source: PathBuf,
}

impl FileSystemOf {
    /// The file system of the directory or file at `path`; `file` is open, at `path` or in it.
    #[must_use]
    pub fn find(path: &Path, file: &File) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mount = mount_of(&mounts, &path);
        Self {
            compression: compression(&mount.kind, &mount.options, ioctl_getflags(file).ok()),
            kind: mount.kind,
            source: mount.source,
        }
    }

    /// Number of its device, as `MAJOR:MINOR`; `number` is that of `stat`, which for some file systems is not a device.
    #[must_use]
    pub fn device(&self, number: u64) -> String {
        let source = fs::metadata(&self.source)
            .ok()
            .filter(|found| found.file_type().is_block_device());
        let number = source.map_or(number, |found| found.rdev());
        format!("{}:{}", major(number), minor(number))
    }

    /// Whether direct I/O bypasses the page cache. Some file systems accept the flag and use the page cache anyway,
    /// such as btrfs for files with checksums.
    #[must_use]
    pub fn honours_direct(&self) -> bool {
        PLAIN.contains(&self.kind.as_str())
    }
}

struct Mount {
    kind: String,
    source: PathBuf,
    options: String,
}

/// The mount that contains a path: the last of those with the longest mount point.
fn mount_of(mounts: &str, path: &Path) -> Mount {
    let mut found: Option<(usize, Mount)> = None;
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else {
            continue;
        };
        let fields: Vec<&str> = before.split(' ').collect();
        let mut behind = after.split(' ');
        let (Some(point), Some(own), Some(kind), Some(source), Some(shared)) = (
            fields.get(4),
            fields.get(5),
            behind.next(),
            behind.next(),
            behind.next(),
        ) else {
            continue;
        };
        let point = point.replace("\\040", " ");
        if path.starts_with(&point) && found.as_ref().is_none_or(|(len, _)| *len <= point.len()) {
            let mount = Mount {
                kind: kind.to_owned(),
                source: source.replace("\\040", " ").into(),
                options: format!("{own},{shared}"),
            };
            found = Some((point.len(), mount));
        }
    }
    found.map_or_else(
        || Mount {
            kind: "the file system".to_owned(),
            source: PathBuf::new(),
            options: String::new(),
        },
        |(_, mount)| mount,
    )
}

fn compression(kind: &str, options: &str, attributes: Option<IFlags>) -> FileSystem {
    if PLAIN.contains(&kind) {
        return FileSystem::Cannot;
    }
    if !TOLD.contains(&kind) {
        return FileSystem::Unknown;
    }
    let by_mount = options.split(',').any(|option| {
        option.starts_with("compress")
            && !option.ends_with("=no")
            && !option.ends_with("=none")
            && kind == "btrfs"
    });
    let by_file = attributes.is_some_and(|flags| flags.contains(IFlags::COMPRESSED));
    if by_mount || by_file {
        FileSystem::On
    } else {
        FileSystem::Off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
20 1 253:0 / / rw,relatime - ext4 /dev/vda rw\n\
30 20 0:44 / /mnt/b rw,noatime shared:9 - btrfs /dev/loop0 rw,compress=zstd:3,space_cache=v2\n\
31 20 0:45 / /mnt/b\\040c rw - zfs pool rw\n";

    #[test]
    fn the_innermost_mount_determines_the_file_system() {
        for (folder, kind) in [
            ("/home", "ext4"),
            ("/mnt/b/x", "btrfs"),
            ("/mnt/b c", "zfs"),
            ("/mnt/bx", "ext4"),
        ] {
            assert_eq!(mount_of(MOUNTS, Path::new(folder)).kind, kind, "{folder}");
        }
        let inner = mount_of(MOUNTS, Path::new("/mnt/b"));
        assert!(inner.options.contains("compress=zstd:3"));
        assert_eq!(inner.source, Path::new("/dev/loop0"));
    }

    #[test]
    fn compressing_file_systems_are_recognised() {
        let of = |kind: &str, options: &str| compression(kind, options, None);
        assert_eq!(of("ext4", ""), FileSystem::Cannot);
        assert_eq!(of("btrfs", "rw,compress-force=zstd"), FileSystem::On);
        assert_eq!(of("btrfs", "rw"), FileSystem::Off);
        assert_eq!(of("btrfs", "compress=no"), FileSystem::Off);
        assert_eq!(of("zfs", "rw"), FileSystem::Unknown);
        assert_eq!(compression("btrfs", "", Some(IFlags::COMPRESSED)), FileSystem::On);
    }
}
