//! Where the file is: past the page cache or not, and what the file system does to data.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use flaz_bench::detect::{Facts, FileSystem};
use rustix::fs::{IFlags, OFlags, fcntl_getfl, fcntl_setfl, ioctl_getflags, statvfs};

/// File systems that store data as it is.
const PLAIN: [&str; 8] = ["ext2", "ext3", "ext4", "xfs", "vfat", "exfat", "tmpfs", "nilfs2"];
/// File systems that compress if they are told to, by an option of the mount or an attribute of the file.
const TOLD: [&str; 2] = ["btrfs", "f2fs"];

/// Makes writes go past the page cache; whether they do.
pub fn go_direct(file: &File) -> bool {
    fcntl_getfl(file).is_ok_and(|flags| fcntl_setfl(file, flags | OFlags::DIRECT).is_ok())
}

/// Free space of the file system of a folder.
///
/// # Errors
/// The system does not tell.
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let space = statvfs(folder)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// What is known of the folder and the file in it.
pub fn facts(folder: &Path, file: &File, direct: bool) -> Facts {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let attributes = ioctl_getflags(file).ok();
    let (file_system, options) = mount_of(&mounts, &folder);
    Facts {
        // Others take the flag and use the page cache all the same, as btrfs does for files with checksums.
        direct: direct && PLAIN.contains(&file_system.as_str()),
        compression: compression(&file_system, &options, attributes),
        file_system,
    }
}

/// Kind and options of the mount that a folder is in; the last of those with the longest mount point.
fn mount_of(mounts: &str, folder: &Path) -> (String, String) {
    let mut found: Option<(usize, String, String)> = None;
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else {
            continue;
        };
        let fields: Vec<&str> = before.split(' ').collect();
        let mut behind = after.split(' ');
        let (Some(point), Some(own), Some(kind), Some(shared)) =
            (fields.get(4), fields.get(5), behind.next(), behind.nth(1))
        else {
            continue;
        };
        let point = point.replace("\\040", " ");
        if folder.starts_with(&point) && found.as_ref().is_none_or(|(len, _, _)| *len <= point.len()) {
            found = Some((point.len(), kind.to_owned(), format!("{own},{shared}")));
        }
    }
    found.map_or_else(
        || ("the file system".to_owned(), String::new()),
        |(_, kind, options)| (kind, options),
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
    fn the_innermost_mount_counts() {
        for (folder, kind) in [
            ("/home", "ext4"),
            ("/mnt/b/x", "btrfs"),
            ("/mnt/b c", "zfs"),
            ("/mnt/bx", "ext4"),
        ] {
            assert_eq!(mount_of(MOUNTS, Path::new(folder)).0, kind, "{folder}");
        }
        assert!(
            mount_of(MOUNTS, Path::new("/mnt/b"))
                .1
                .contains("compress=zstd:3")
        );
    }

    #[test]
    fn who_compresses() {
        let of = |kind: &str, options: &str| compression(kind, options, None);
        assert_eq!(of("ext4", ""), FileSystem::Cannot);
        assert_eq!(of("btrfs", "rw,compress-force=zstd"), FileSystem::On);
        assert_eq!(of("btrfs", "rw"), FileSystem::Off);
        assert_eq!(of("btrfs", "compress=no"), FileSystem::Off);
        assert_eq!(of("zfs", "rw"), FileSystem::Unknown);
        assert_eq!(compression("btrfs", "", Some(IFlags::COMPRESSED)), FileSystem::On);
    }
}
