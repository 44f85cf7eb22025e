//! Finds the users of a device or file: mounts, swap space and stacked devices at any depth.
//!
//! A disk is used through its partitions, through dm and md devices that contain it, through loop devices backed by it,
//! and through devices stacked on those in turn. sysfs has all of these relations
//! (Documentation/ABI/testing/sysfs-block in the kernel's tree).

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::identity::{DeviceNumber, Identity};
use super::mounts::{Mount, parse_mountinfo, parse_swaps};

/// Maximum number of devices that are visited in one stack. In a larger stack only the kernel's own claim protects the
/// data.
const STACK_MAX: usize = 4096;

/// One use of a device or file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// A file system on it, or on a device stacked on it, is mounted.
    Mounted {
        /// Where.
        point: PathBuf,
        /// `ext4`, ..
        kind: String,
        /// The mounted device, if it is not the device itself.
        through: Option<String>,
    },
    /// It, or a device stacked on it, is swap space.
    Swap {
        /// Path of the swap space.
        path: PathBuf,
    },
    /// The kernel has claimed it; the reason is not visible from here.
    Claimed,
    /// Another process has locked the file.
    Locked,
    /// A device is stacked on it.
    Holder {
        /// Name of the device, with its dm name if it has one.
        name: String,
    },
    /// A loop device is backed by it.
    Loop {
        /// Name of the loop device.
        name: String,
    },
}

impl Use {
    /// Whether `--force` does not override it.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Holder { .. } | Self::Loop { .. })
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted { point, kind, through } => {
                write!(f, "mounted on {} ({kind}", point.display())?;
                match through {
                    Some(name) => write!(f, ", through {name})"),
                    None => f.write_str(")"),
                }
            }
            Self::Swap { path } => write!(f, "used as swap space ({})", path.display()),
            Self::Claimed => f.write_str(
                "claimed by the kernel: mounted in another namespace, a member of an active file system or \
                 array, or opened exclusively by another program",
            ),
            Self::Locked => f.write_str("locked by another process (probably a running `flaz serve`)"),
            Self::Holder { name } => write!(f, "used by {name}"),
            Self::Loop { name } => write!(f, "used by the loop device {name}"),
        }
    }
}

/// Paths of the kernel's tables; tests use their own.
#[derive(Clone, Debug)]
pub struct System {
    proc: PathBuf,
    sys: PathBuf,
}

impl Default for System {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
        }
    }
}

/// The relation of a device to the device in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Itself,
    /// The whole disk that contains it. Uses of the disk count, but not those of its other partitions.
    Whole,
    Partition,
    Holder,
    Loop,
}

/// A device that stores its data on the device in question, or the reverse.
#[derive(Clone, Debug)]
struct Related {
    number: DeviceNumber,
    name: String,
    link: Link,
}

impl System {
    /// All users, sorted: those that `--force` does not override come first.
    #[must_use]
    pub fn uses(&self, identity: Identity) -> Vec<Use> {
        let related = self.related(identity);
        let mut uses = BTreeSet::new();
        for device in &related {
            match device.link {
                Link::Holder => {
                    uses.insert(Use::Holder {
                        name: self.display_name(&device.name),
                    });
                }
                Link::Loop => {
                    uses.insert(Use::Loop {
                        name: device.name.clone(),
                    });
                }
                Link::Itself | Link::Whole | Link::Partition => {}
            }
        }
        for mount in self.mounts() {
            if let Some(device) = device_of(&mount, &related) {
                uses.insert(self.mounted(&mount, device));
            }
        }
        for (number, point) in self.btrfs_members() {
            if let Some(device) = related.iter().find(|device| device.number == number) {
                let through = (device.link != Link::Itself).then(|| device.name.clone());
                uses.insert(Use::Mounted {
                    point,
                    kind: "member of an active btrfs".to_owned(),
                    through,
                });
            }
        }
        for path in self.swaps() {
            let swap = Identity::at(&path);
            let is_swap = swap == Some(identity)
                || related
                    .iter()
                    .any(|device| swap == Some(Identity::Block(device.number)));
            if is_swap {
                uses.insert(Use::Swap { path });
            }
        }
        uses.into_iter().collect()
    }

    /// Whether the two share bytes: the same device or file, a disk and its partition, a file and a loop device backed
    /// by it, a device and one stacked on it.
    #[must_use]
    pub fn overlap(&self, one: Identity, other: Identity) -> bool {
        let reaches = |from: Identity, to: Identity| {
            from == to
                || self
                    .related(from)
                    .iter()
                    .any(|device| device.link != Link::Whole && Identity::Block(device.number) == to)
        };
        reaches(one, other) || reaches(other, one)
    }

    /// The mounts of file systems on a device, or on devices stacked on it.
    pub(super) fn mounts_on(&self, identity: Identity) -> Vec<Mount> {
        let related = self.related(identity);
        let mut mounts = self.mounts();
        mounts.retain(|mount| device_of(mount, &related).is_some());
        mounts
    }

    fn mounted(&self, mount: &Mount, device: &Related) -> Use {
        Use::Mounted {
            point: mount.point.clone(),
            kind: mount.kind.clone(),
            through: (device.link != Link::Itself).then(|| self.display_name(&device.name)),
        }
    }

    /// The device itself, its partitions, its disk, and all devices stacked on these.
    fn related(&self, identity: Identity) -> Vec<Related> {
        let mut related: Vec<Related> = Vec::new();
        let add = |related: &mut Vec<Related>, number, name: String, link| {
            let known = related.iter().any(|device: &Related| device.number == number);
            if !known && related.len() < STACK_MAX {
                related.push(Related { number, name, link });
            }
        };
        match identity {
            Identity::Block(number) => {
                let name = self.name(number).unwrap_or_else(|| number.to_string());
                add(&mut related, number, name, Link::Itself);
                if let Some((number, name)) = self.whole_disk(number) {
                    add(&mut related, number, name, Link::Whole);
                }
            }
            Identity::File { .. } => {
                for (number, name) in self.loops_over(identity) {
                    add(&mut related, number, name, Link::Loop);
                }
            }
        }
        let mut at = 0;
        while let Some(device) = related.get(at).cloned() {
            at += 1;
            if device.link != Link::Whole {
                for (number, name) in self.partitions(device.number) {
                    add(&mut related, number, name, Link::Partition);
                }
            }
            for (number, name) in self.holders(device.number) {
                add(&mut related, number, name, Link::Holder);
            }
            for (number, name) in self.loops_over(Identity::Block(device.number)) {
                add(&mut related, number, name, Link::Loop);
            }
        }
        related
    }

    fn directory(&self, number: DeviceNumber) -> PathBuf {
        self.sys.join("dev/block").join(number.to_string())
    }

    fn name(&self, number: DeviceNumber) -> Option<String> {
        let directory = fs::canonicalize(self.directory(number)).ok()?;
        Some(directory.file_name()?.to_str()?.to_owned())
    }

    /// `dm-0 (vg-root)` for a dm device, the plain name for others.
    fn display_name(&self, name: &str) -> String {
        match fs::read_to_string(self.sys.join("class/block").join(name).join("dm/name")) {
            Ok(dm) => format!("{name} ({})", dm.trim()),
            Err(_) => name.to_owned(),
        }
    }

    fn whole_disk(&self, number: DeviceNumber) -> Option<(DeviceNumber, String)> {
        let directory = fs::canonicalize(self.directory(number)).ok()?;
        if !directory.join("partition").exists() {
            return None;
        }
        number_and_name(directory.parent()?)
    }

    fn partitions(&self, number: DeviceNumber) -> Vec<(DeviceNumber, String)> {
        entries(&self.directory(number))
            .filter(|entry| entry.join("partition").exists())
            .filter_map(|entry| number_and_name(&entry))
            .collect()
    }

    fn holders(&self, number: DeviceNumber) -> Vec<(DeviceNumber, String)> {
        entries(&self.directory(number).join("holders"))
            .filter_map(|entry| {
                // The entries are links. A name whose link is broken is looked up by class.
                let class = self.sys.join("class/block").join(entry.file_name()?);
                number_and_name(&entry).or_else(|| number_and_name(&class))
            })
            .collect()
    }

    /// Loop devices backed by a file or device.
    fn loops_over(&self, identity: Identity) -> Vec<(DeviceNumber, String)> {
        entries(&self.sys.join("block"))
            .filter(|entry| {
                fs::read_to_string(entry.join("loop/backing_file")).is_ok_and(|backing| {
                    Identity::at(Path::new(backing.trim_end_matches('\n'))) == Some(identity)
                })
            })
            .filter_map(|entry| number_and_name(&entry))
            .collect()
    }

    /// Members of btrfs file systems that are mounted anywhere, including other mount namespaces.
    fn btrfs_members(&self) -> Vec<(DeviceNumber, PathBuf)> {
        entries(&self.sys.join("fs/btrfs"))
            .flat_map(|file_system| {
                let devices: Vec<_> = entries(&file_system.join("devices")).collect();
                devices
                    .into_iter()
                    .map(move |device| (device, file_system.clone()))
            })
            .filter_map(|(device, file_system)| Some((number_and_name(&device)?.0, file_system)))
            .collect()
    }

    pub(super) fn mounts(&self) -> Vec<Mount> {
        parse_mountinfo(&self.table("self/mountinfo"))
    }

    fn swaps(&self) -> Vec<PathBuf> {
        parse_swaps(&self.table("swaps"))
    }

    fn table(&self, name: &str) -> String {
        let path = self.proc.join(name);
        match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => {
                tracing::warn!(
                    "cannot read {}: {error}; mounts and swap space are only detected by the kernel's claims",
                    path.display()
                );
                String::new()
            }
        }
    }
}

/// The device of a mount, if it is among these.
fn device_of<'a>(mount: &Mount, devices: &'a [Related]) -> Option<&'a Related> {
    // Other sources are no device files. Looking such a name up may wait, for example for a server of NFS.
    let is_device = mount.source.starts_with("/dev");
    let source = is_device.then(|| Identity::at(&mount.source)).flatten();
    devices
        .iter()
        .find(|device| device.number == mount.device || source == Some(Identity::Block(device.number)))
}

/// Number and name of the device whose sysfs directory this is.
fn number_and_name(directory: &Path) -> Option<(DeviceNumber, String)> {
    let number = DeviceNumber::parse(&fs::read_to_string(directory.join("dev")).ok()?)?;
    Some((number, directory.file_name()?.to_str()?.to_owned()))
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A fake system: disk sda with partitions sda1 and sda2; dm-0 on sda2; loop0 backed by a real file.
    struct Fake {
        scratch: tempfile::TempDir,
        system: System,
    }

    const SDA: Identity = Identity::Block(DeviceNumber { major: 8, minor: 0 });
    const SDA1: Identity = Identity::Block(DeviceNumber { major: 8, minor: 1 });
    const SDA2: Identity = Identity::Block(DeviceNumber { major: 8, minor: 2 });
    const DM: Identity = Identity::Block(DeviceNumber { major: 253, minor: 0 });

    impl Fake {
        fn new() -> Self {
            let scratch = tempfile::tempdir().unwrap();
            let root = scratch.path().to_owned();
            let system = System {
                proc: root.join("proc"),
                sys: root.join("sys"),
            };
            fs::create_dir_all(root.join("proc/self")).unwrap();
            let fake = Self { scratch, system };
            fake.device("sda", "8:0", None);
            fake.device("sda/sda1", "8:1", Some("1"));
            fake.device("sda/sda2", "8:2", Some("2"));
            fake.device("dm-0", "253:0", None);
            fake.device("loop0", "7:0", None);
            fs::create_dir(fake.path("sys/block/dm-0/dm")).unwrap();
            fs::write(fake.path("sys/block/dm-0/dm/name"), "vg-root\n").unwrap();
            symlink(
                fake.path("sys/block/dm-0"),
                fake.path("sys/block/sda/sda2/holders/dm-0"),
            )
            .unwrap();
            fs::create_dir(fake.path("sys/block/loop0/loop")).unwrap();
            fs::write(fake.path("file"), "x").unwrap();
            fs::write(
                fake.path("sys/block/loop0/loop/backing_file"),
                format!("{}\n", fake.path("file").display()),
            )
            .unwrap();
            fake
        }

        fn path(&self, name: &str) -> PathBuf {
            self.scratch.path().join(name)
        }

        fn device(&self, place: &str, number: &str, partition: Option<&str>) {
            let directory = self.path("sys/block").join(place);
            fs::create_dir_all(directory.join("holders")).unwrap();
            fs::write(directory.join("dev"), format!("{number}\n")).unwrap();
            if let Some(partition) = partition {
                fs::write(directory.join("partition"), partition).unwrap();
            }
            for (class, name) in [
                ("sys/dev/block", number),
                ("sys/class/block", place.rsplit('/').next().unwrap()),
            ] {
                fs::create_dir_all(self.path(class)).unwrap();
                symlink(&directory, self.path(class).join(name)).unwrap();
            }
        }

        fn mount(&self, number: &str, point: &str) {
            fs::write(
                self.path("proc/self/mountinfo"),
                format!("22 1 {number} / {point} rw - ext4 /dev/none rw\n"),
            )
            .unwrap();
        }

        fn texts(&self, identity: Identity) -> Vec<String> {
            self.system
                .uses(identity)
                .iter()
                .map(ToString::to_string)
                .collect()
        }
    }

    #[test]
    fn a_mount_is_reported_for_its_partition_and_disk_only() {
        let fake = Fake::new();
        fake.mount("8:1", "/boot");
        assert_eq!(fake.texts(SDA1), ["mounted on /boot (ext4)"]);
        assert!(
            fake.texts(SDA)
                .contains(&"mounted on /boot (ext4, through sda1)".to_owned())
        );
        assert!(!fake.texts(SDA2).iter().any(|text| text.contains("/boot")));
    }

    #[test]
    fn a_mount_is_found_through_stacked_devices() {
        let fake = Fake::new();
        fake.mount("253:0", "/");
        for identity in [SDA2, SDA] {
            let uses = fake.system.uses(identity);
            assert_eq!(
                uses.iter().map(ToString::to_string).collect::<Vec<_>>(),
                [
                    "mounted on / (ext4, through dm-0 (vg-root))",
                    "used by dm-0 (vg-root)"
                ]
            );
            assert!(uses[0].is_final() && !uses[1].is_final());
        }
        assert_eq!(fake.texts(DM), ["mounted on / (ext4)"]);
        assert!(fake.texts(SDA1).is_empty());
    }

    #[test]
    fn mounts_on_a_device_include_those_of_stacked_devices() {
        let fake = Fake::new();
        fake.mount("253:0", "/srv");
        assert_eq!(fake.system.mounts_on(SDA)[0].point, Path::new("/srv"));
        assert_eq!(fake.system.mounts_on(DM).len(), 1);
        assert!(fake.system.mounts_on(SDA1).is_empty());
    }

    #[test]
    fn a_mounted_disk_is_reported_for_its_partitions() {
        let fake = Fake::new();
        fake.mount("8:0", "/mnt");
        assert_eq!(fake.texts(SDA1), ["mounted on /mnt (ext4, through sda)"]);
    }

    #[test]
    fn a_file_is_used_through_a_loop_device() {
        let fake = Fake::new();
        let file = Identity::at(&fake.path("file")).unwrap();
        assert_eq!(fake.texts(file), ["used by the loop device loop0"]);
        fake.mount("7:0", "/mnt");
        assert_eq!(
            fake.texts(file),
            [
                "mounted on /mnt (ext4, through loop0)",
                "used by the loop device loop0"
            ]
        );
        let other = fake.path("other");
        fs::write(&other, "x").unwrap();
        assert!(fake.texts(Identity::at(&other).unwrap()).is_empty());
    }

    #[test]
    fn a_swap_file_is_reported_as_swap_space() {
        let fake = Fake::new();
        let path = fake.path("file");
        fs::write(
            fake.path("proc/swaps"),
            format!("Filename Type\n{} file 1 0 -2\n", path.display()),
        )
        .unwrap();
        let uses = fake.system.uses(Identity::at(&path).unwrap());
        assert_eq!(uses[0], Use::Swap { path });
        assert!(uses[0].is_final());
    }

    #[test]
    fn a_member_of_an_active_btrfs_counts_as_mounted() {
        let fake = Fake::new();
        fs::create_dir_all(fake.path("sys/fs/btrfs/some-uuid/devices")).unwrap();
        symlink(
            fake.path("sys/block/sda/sda1"),
            fake.path("sys/fs/btrfs/some-uuid/devices/sda1"),
        )
        .unwrap();
        assert!(fake.texts(SDA1)[0].contains("member of an active btrfs"));
        assert!(fake.system.uses(SDA)[0].is_final());
    }

    #[test]
    fn devices_that_share_bytes_overlap() {
        let fake = Fake::new();
        let file = Identity::at(&fake.path("file")).unwrap();
        let loop0 = Identity::Block(DeviceNumber { major: 7, minor: 0 });
        for (one, other) in [(SDA, SDA), (SDA, SDA1), (SDA, DM), (SDA2, DM), (file, loop0)] {
            assert!(fake.system.overlap(one, other), "{one:?} {other:?}");
            assert!(fake.system.overlap(other, one), "{other:?} {one:?}");
        }
        for (one, other) in [(SDA1, SDA2), (SDA1, DM), (file, SDA)] {
            assert!(!fake.system.overlap(one, other), "{one:?} {other:?}");
            assert!(!fake.system.overlap(other, one), "{other:?} {one:?}");
        }
    }

    #[test]
    fn circular_device_stacks_end() {
        let fake = Fake::new();
        symlink(
            fake.path("sys/block/sda"),
            fake.path("sys/block/dm-0/holders/sda"),
        )
        .unwrap();
        assert!(fake.texts(DM).contains(&"used by sda".to_owned()));
    }
}
