//! What is written to: a file without a name in a folder, or a file or device in place; past the page cache or not; and
//! what is known of the way from there to the medium.
//!
//! Invariants: in a folder nothing is touched but a file without a name, which is gone when the program ends, however it
//! ends; a file or device in place is held, carries nothing that is known, and its path was typed again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flaz_bench::detect::{Facts, FileSystem};
use rustix::fs::{IFlags, OFlags, fcntl_getfl, fcntl_setfl, ioctl_getflags, statvfs};

use super::layers::{self, Kept};
use super::measure::Sink;
use crate::bench::permission;
use crate::error::Failure;
use crate::safety::Claim;
use crate::safety::node::{DeviceNumber, Identity};

/// Bytes of one write.
const RECORD_BYTES: usize = 1 << 20;
/// File systems that store data as it is.
const PLAIN: [&str; 8] = ["ext2", "ext3", "ext4", "xfs", "vfat", "exfat", "tmpfs", "nilfs2"];
/// File systems that compress if they are told to, by an option of the mount or an attribute of the file.
const TOLD: [&str; 2] = ["btrfs", "f2fs"];
/// Share of the free space that is used at most, in percent, when the size is not given.
const FREE_PERCENT_MAX: u64 = 50;

/// What is written to.
#[derive(Debug)]
pub struct Place {
    file: File,
    room_bytes: u64,
    /// Bytes to use if nothing is said.
    room_default_bytes: u64,
    facts: Facts,
    kept: Option<Kept>,
    _held: Option<Claim>,
}

impl Place {
    /// Makes ready to write to `target`; `typed` is its path once more.
    ///
    /// # Errors
    /// It is not to be touched, or cannot be. Nothing was written then.
    pub fn open(target: &Path, typed: Option<&Path>, buffered: bool) -> Result<Self, Failure> {
        let looking = || Failure::system(format!("inspecting {}", target.display()));
        let found = fs::metadata(target).map_err(looking())?;
        let held = permission::to_overwrite(target, typed)?;
        if let Some(claim) = held {
            return Self::in_place(target, claim, buffered);
        }
        let free = statvfs(target).map_err(|error| looking()(error.into()))?;
        let room_bytes = free.f_bavail.saturating_mul(free.f_frsize);
        let file = tempfile::tempfile_in(target).map_err(Failure::system(format!(
            "creating a file in {}",
            target.display()
        )))?;
        let direct = !buffered
            && fcntl_getfl(&file).is_ok_and(|flags| fcntl_setfl(&file, flags | OFlags::DIRECT).is_ok());
        let mount = FileSystemOf::find(target, &file);
        Ok(Self {
            room_bytes,
            room_default_bytes: room_bytes / 100 * FREE_PERCENT_MAX,
            facts: mount.facts(direct, found.dev()),
            kept: None,
            file,
            _held: None,
        })
    }

    fn in_place(target: &Path, claim: Claim, buffered: bool) -> Result<Self, Failure> {
        let opening = || Failure::system(format!("opening {}", target.display()));
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            options.custom_flags(flags.bits().cast_signed()).open(target)
        };
        let (file, direct) = match open(OFlags::DIRECT) {
            Ok(file) if !buffered => (file, true),
            _ => (open(OFlags::empty()).map_err(opening())?, false),
        };
        let identity = claim.node().identity;
        if Identity::of(&file.metadata().map_err(opening())?) != Some(identity) {
            return Err(Failure::Usage(format!(
                "{}: was just replaced by another file: try again",
                target.display()
            )));
        }
        let (facts, kept) = match identity {
            Identity::Block(number) => {
                let below = layers::below(Path::new(layers::SYS), number);
                let facts = Facts {
                    direct: direct && !below.cached,
                    file_system: "none".to_owned(),
                    compression: FileSystem::None,
                    layers: below.layers,
                };
                (facts, Kept::of(Path::new(layers::SYS), number))
            }
            Identity::File { device, .. } => (FileSystemOf::find(target, &file).facts(direct, device), None),
        };
        Ok(Self {
            room_bytes: claim.size_bytes(),
            room_default_bytes: claim.size_bytes(),
            facts,
            kept,
            file,
            _held: Some(claim),
        })
    }

    /// Bytes that there are.
    pub fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    /// Bytes to use at most if nothing is said.
    pub fn room_default_bytes(&self) -> u64 {
        self.room_default_bytes
    }

    /// What is known of it.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }
}

impl Sink for Place {
    fn write(&mut self, data: &[u8], offset: u64) -> io::Result<Duration> {
        let begun = Instant::now();
        for (record, at) in data.chunks(RECORD_BYTES).zip((offset..).step_by(RECORD_BYTES)) {
            self.file.write_all_at(record, at)?;
        }
        self.file.sync_data()?;
        Ok(begun.elapsed())
    }

    fn kept_bytes(&mut self) -> Option<u64> {
        self.kept.as_ref()?.bytes()
    }
}

/// The file system that a path is in, and what it does to data.
#[derive(Debug)]
pub(super) struct FileSystemOf {
    pub kind: String,
    pub compression: FileSystem,
    source: PathBuf,
}

impl FileSystemOf {
    /// Of a folder or file at `path`; `file` is that, or one in it.
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

    /// The device that it is on; `number` as `stat` says, which of some file systems is no device's.
    pub fn device(&self, number: u64) -> DeviceNumber {
        match Identity::at(&self.source) {
            Some(Identity::Block(source)) => source,
            _ => DeviceNumber::from_raw(number),
        }
    }

    fn facts(self, direct: bool, number: u64) -> Facts {
        let below = layers::below(Path::new(layers::SYS), self.device(number));
        Facts {
            // Others take the flag and use the page cache all the same, as btrfs does for files with checksums.
            direct: direct && PLAIN.contains(&self.kind.as_str()) && !below.cached,
            compression: self.compression,
            file_system: self.kind,
            layers: below.layers,
        }
    }
}

struct Mount {
    kind: String,
    source: PathBuf,
    options: String,
}

/// The mount that a path is in; the last of those with the longest mount point.
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
    fn the_innermost_mount_counts() {
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
