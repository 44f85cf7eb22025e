//! Describes the machine of a campaign: kernel, processor, device, file system. Unknown values are omitted.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use flaz_bench::campaign_file::Environment;

use crate::target::{Target, memory_bytes};

/// Maximum number of steps from a device to its disk.
const PARENTS_MAX: usize = 8;

/// Looks around.
#[must_use]
pub fn of(target: &Target) -> Environment {
    let mut found = Environment {
        kernel: line("/proc/sys/kernel/osrelease"),
        cpu: cpu(),
        governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes: memory_bytes(),
        ..Environment::default()
    };
    let place = target.place();
    if let Ok(metadata) = fs::metadata(place) {
        let mount = (!target.is_device()).then(|| Mount::of(place)).flatten();
        let number = if metadata.file_type().is_block_device() {
            Some(metadata.rdev())
        } else {
            // File systems on several devices have their own number; their source names one of the devices.
            let source = mount.as_ref().and_then(|mount| fs::metadata(&mount.source).ok());
            source
                .filter(|source| source.file_type().is_block_device())
                .map_or(Some(metadata.dev()), |source| Some(source.rdev()))
        };
        if let Some(folder) = number.and_then(device_folder) {
            device(&folder, &mut found);
        }
        found.file_system = if target.is_device() {
            Some("none".to_owned())
        } else {
            let by_mount = mount.as_ref().map(|mount| mount.kind.clone());
            by_mount.or_else(|| kind_by_magic(place))
        };
        found.mount_options = mount.map(|mount| mount.options);
    }
    if !target.is_device()
        && let Ok(room) = rustix::fs::statvfs(place)
    {
        found.free_bytes = Some(room.f_bavail.saturating_mul(room.f_frsize));
    }
    let mut other = |name: &str, value: serde_json::Value| {
        found.other.insert(name.to_owned(), value);
    };
    if let Some(host) = line("/proc/sys/kernel/hostname") {
        other("host", host.into());
    }
    if let Ok(cores) = std::thread::available_parallelism() {
        other("cores", cores.get().into());
    }
    other("target", target.path().display().to_string().into());
    other(
        "target_kind",
        match (target.is_device(), target.is_folder()) {
            (true, _) => "device",
            (_, true) => "folder",
            _ => "file",
        }
        .into(),
    );
    found
}

fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn cpu() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The sysfs directory of the whole disk.
fn device_folder(number: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let mut folder = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    for _ in 0..PARENTS_MAX {
        if !folder.join("partition").exists() {
            return Some(folder);
        }
        folder = folder.parent()?.to_owned();
    }
    None
}

fn device(folder: &Path, found: &mut Environment) {
    let about = folder.join("device");
    let vendor = line(about.join("vendor")).filter(|vendor| !vendor.starts_with("0x"));
    found.device_model = match (vendor, line(about.join("model"))) {
        (Some(vendor), Some(model)) => Some(format!("{vendor} {model}")),
        (_, model) => model.or_else(|| line(folder.join("dm/name"))),
    };
    found.device_firmware = line(about.join("firmware_rev")).or_else(|| line(about.join("rev")));
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    if let Some(name) = name {
        found.other.insert("device".to_owned(), name.into());
    }
    for (name, file) in [
        ("scheduler", "queue/scheduler"),
        ("rotational", "queue/rotational"),
        ("logical_block_bytes", "queue/logical_block_size"),
        ("write_cache", "queue/write_cache"),
    ] {
        if let Some(text) = line(folder.join(file)) {
            found.other.insert(name.to_owned(), text.into());
        }
    }
    if let Some(sectors) = line(folder.join("size")).and_then(|text| text.parse::<u64>().ok()) {
        found
            .other
            .insert("device_bytes".to_owned(), sectors.saturating_mul(512).into());
    }
}

/// Magic numbers of file systems (statfs(2)).
const MAGICS: [(u64, &str); 11] = [
    (0xef53, "ext2 to ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0xf2f5_2010, "f2fs"),
    (0x0102_1994, "tmpfs"),
    (0x794c_7630, "overlay"),
    (0x6573_5546, "fuse"),
    (0x6969, "nfs"),
    (0x9fa0, "proc"),
];

/// The type that the file system reports: the only source in a chroot, where no table lists the root mount.
fn kind_by_magic(path: &Path) -> Option<String> {
    // The type is signed on some machines: 32 bits are defined.
    let magic = u64::from(rustix::fs::statfs(path).ok()?.f_type as u32);
    let known = MAGICS.iter().find(|(number, _)| *number == magic);
    Some(known.map_or_else(|| format!("{magic:#x}"), |(_, name)| (*name).to_owned()))
}

/// The mount that contains a path.
struct Mount {
    kind: String,
    source: PathBuf,
    options: String,
}

impl Mount {
    fn of(path: &Path) -> Option<Self> {
        let path = fs::canonicalize(path).ok()?;
        let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
        Self::in_table(&table, &path)
    }

    /// The last of the longest, because later mounts cover earlier ones.
    fn in_table(table: &str, path: &Path) -> Option<Self> {
        table
            .lines()
            .filter_map(|line| {
                let (before, after) = line.split_once(" - ")?;
                let before: Vec<&str> = before.split(' ').collect();
                let mut after = after.split(' ');
                let point = before.get(4)?.replace("\\040", " ");
                let mount = Self {
                    kind: after.next()?.to_owned(),
                    source: after.next()?.replace("\\040", " ").into(),
                    options: options(before.get(5)?, after.next().unwrap_or_default()),
                };
                path.starts_with(&point).then_some((point.len(), mount))
            })
            .max_by_key(|(len, _)| *len)
            .map(|(_, mount)| mount)
    }
}

/// Options of the mount and of its file system, each once. Whether it is writable is a property of the mount.
fn options(of_mount: &str, of_system: &str) -> String {
    let mut all: Vec<&str> = of_mount.split(',').collect();
    for option in of_system.split(',').filter(|option| !option.is_empty()) {
        if !["rw", "ro"].contains(&option) && !all.contains(&option) {
            all.push(option);
        }
    }
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_type_is_found_without_a_mount() {
        assert_eq!(kind_by_magic(Path::new("/proc/self")).as_deref(), Some("proc"));
        assert_eq!(kind_by_magic(Path::new("/nothing/here")), None);
        let unseen = "43 42 0:22 / /sys rw,relatime - sysfs sysfs rw\n";
        assert!(
            Mount::in_table(unseen, Path::new("/home/x")).is_none(),
            "a changed root"
        );
    }

    #[test]
    fn the_mount_of_a_path_is_the_innermost() {
        let table = "22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n\
                     36 22 0:42 /sub /mnt/two\\040words rw,noatime master:1 - btrfs /dev/sdb rw,compress=zstd\n\
                     37 22 0:43 / /mnt rw - tmpfs none rw\n";
        let of = |path: &str| Mount::in_table(table, Path::new(path)).unwrap();
        assert_eq!(of("/home/x").kind, "ext4");
        let inner = of("/mnt/two words/file");
        assert_eq!(
            (inner.kind.as_str(), inner.options.as_str()),
            ("btrfs", "rw,noatime,compress=zstd")
        );
        assert_eq!(inner.source, Path::new("/dev/sdb"));
        assert_eq!(of("/mnt/two").kind, "tmpfs");
        assert_eq!(of("/home/x").options, "rw,relatime");
        assert_eq!(options("ro,noatime", "rw,noatime,discard"), "ro,noatime,discard");
        assert_eq!(of("/mntx").kind, "ext4", "a prefix is not a directory");
    }
}
