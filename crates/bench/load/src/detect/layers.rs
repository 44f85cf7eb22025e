//! Finds the layers below a device in sysfs: loop devices over files, mapped devices, arrays, virtual disks.
//!
//! Only layers whose effect could be taken for that of the device itself are listed. A partition and its disk are
//! treated as the same.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use flaz_bench::detect::{FileSystem, Layer, LayerState};

use super::file_system::FileSystemOf;

/// Where sysfs is mounted.
pub const SYS: &str = "/sys";
/// Maximum depth of the search.
const DEPTH_MAX: usize = 8;
/// Maximum number of layers that are named.
const LAYERS_MAX: usize = 16;
/// Prefixes of the names of devices whose data is sent to another machine.
const REMOTE: [&str; 4] = ["nbd", "rbd", "drbd", "ublkb"];
/// Virtual disks that a host provides for its guest.
const VIRTUAL: [&str; 2] = ["vd", "xvd"];

/// The layers below a device.
#[derive(Debug, Default)]
pub struct Below {
    /// From top to bottom.
    pub layers: Vec<Layer>,
    /// Whether data goes through the page cache of a lower layer.
    pub cached: bool,
}

/// The layers below the device with the number `MAJOR:MINOR`.
pub fn below(sys: &Path, number: &str) -> Below {
    let mut below = Below::default();
    if let Some(folder) = folder_of(sys, number) {
        look(sys, &folder, DEPTH_MAX, &mut below);
    }
    below
}

/// The sysfs directory of the whole disk.
fn folder_of(sys: &Path, number: &str) -> Option<PathBuf> {
    let folder = fs::canonicalize(sys.join(format!("dev/block/{number}"))).ok()?;
    if folder.join("partition").exists() {
        return Some(folder.parent()?.to_owned());
    }
    Some(folder)
}

fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn look(sys: &Path, folder: &Path, depth: usize, below: &mut Below) {
    let Some(name) = folder.file_name().and_then(|name| name.to_str()) else {
        return;
    };
    if depth == 0 || below.layers.len() == LAYERS_MAX {
        return;
    }
    let mut push = |what: String, state| below.layers.push(Layer { what, state });
    if let Some(backing) = line(&folder.join("loop/backing_file")) {
        let file = File::open(&backing);
        let system = file
            .as_ref()
            .ok()
            .map(|file| FileSystemOf::find(Path::new(&backing), file));
        let (kind, state) = match &system {
            None => ("an inaccessible file".to_owned(), LayerState::Unknown),
            Some(system) => (
                format!("a file on {}", system.kind),
                match system.compression {
                    FileSystem::On => LayerState::Compresses,
                    FileSystem::Unknown => LayerState::Unknown,
                    FileSystem::Cannot | FileSystem::Off | FileSystem::None => LayerState::Plain,
                },
            ),
        };
        push(format!("{name}, {kind}"), state);
        below.cached |= line(&folder.join("loop/dio")).as_deref() != Some("1");
        let number = file.and_then(|file| file.metadata()).map(|found| found.dev());
        if let (Some(system), Ok(number)) = (system, number)
            && let Some(folder) = folder_of(sys, &system.device(number))
        {
            look(sys, &folder, depth - 1, below);
        }
        return;
    }
    if let Some(mapped) = line(&folder.join("dm/name")) {
        // Encryption does not compress. Thin volumes elide zeros, and VDO does everything.
        let encrypts = line(&folder.join("dm/uuid")).is_some_and(|uuid| uuid.starts_with("CRYPT-"));
        let state = if encrypts {
            LayerState::Plain
        } else {
            LayerState::Unknown
        };
        push(format!("{name}, the mapped device {mapped}"), state);
    } else if name.starts_with("md") {
        push(format!("{name}, an array"), LayerState::Plain);
    } else if REMOTE.iter().any(|kind| name.starts_with(kind)) {
        push(format!("{name}, a server's virtual disk"), LayerState::Unknown);
    } else if VIRTUAL.iter().any(|kind| name.starts_with(kind)) {
        push(format!("{name}, a virtual machine's disk"), LayerState::Unknown);
    }
    for slave in fs::read_dir(folder.join("slaves"))
        .into_iter()
        .flatten()
        .flatten()
    {
        if let Ok(folder) = fs::canonicalize(slave.path()) {
            let disk = folder
                .join("partition")
                .exists()
                .then(|| folder.parent())
                .flatten();
            look(sys, disk.unwrap_or(&folder), depth - 1, below);
        }
    }
}

/// The counter of stored bytes of a device that has one (zram).
#[derive(Debug)]
pub struct Kept(PathBuf);

impl Kept {
    /// The counter of the device with a number, if it has one.
    pub fn of(sys: &Path, number: &str) -> Option<Self> {
        let path = fs::canonicalize(sys.join(format!("dev/block/{number}"))).ok()?;
        let kept = Self(path.join("mm_stat"));
        kept.bytes().is_some().then_some(kept)
    }

    /// Compressed size of all stored data in bytes.
    pub fn bytes(&self) -> Option<u64> {
        // Documentation/admin-guide/blockdev/zram.rst: the second field is compr_data_size.
        line(&self.0)?.split_ascii_whitespace().nth(1)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Sys(tempfile::TempDir);

    impl Sys {
        fn new() -> Self {
            let sys = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(sys.0.path().join("dev/block")).unwrap();
            sys
        }

        /// A device with a number, and files in its directory.
        fn device(&self, name: &str, number: &str, files: &[(&str, &str)]) {
            let folder = self.0.path().join("block").join(name);
            fs::create_dir_all(&folder).unwrap();
            for (file, text) in files {
                let path = folder.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            symlink(&folder, self.0.path().join("dev/block").join(number)).unwrap();
        }

        fn slave(&self, of: &str, name: &str) {
            let slaves = self.0.path().join("block").join(of).join("slaves");
            fs::create_dir_all(&slaves).unwrap();
            let link = slaves.join(name.rsplit('/').next().unwrap());
            symlink(self.0.path().join("block").join(name), link).unwrap();
        }

        fn below(&self, number: &str) -> Below {
            below(self.0.path(), number)
        }
    }

    #[test]
    fn stacked_devices_are_followed_to_the_disk() {
        let sys = Sys::new();
        sys.device("vda", "254:0", &[]);
        sys.device("vda/vda3", "254:3", &[("partition", "3\n")]);
        sys.device(
            "dm-1",
            "253:1",
            &[("dm/name", "luks\n"), ("dm/uuid", "CRYPT-LUKS2-x\n")],
        );
        sys.device("dm-0", "253:0", &[("dm/name", "vg-lv\n"), ("dm/uuid", "LVM-x\n")]);
        sys.slave("dm-0", "dm-1");
        sys.slave("dm-1", "vda/vda3");
        let found = sys.below("253:0");
        let states: Vec<(&str, LayerState)> = found
            .layers
            .iter()
            .map(|layer| (layer.what.split(',').next().unwrap(), layer.state))
            .collect();
        assert_eq!(
            states,
            [
                ("dm-0", LayerState::Unknown),
                ("dm-1", LayerState::Plain),
                ("vda", LayerState::Unknown)
            ]
        );
        assert!(!found.cached);
        assert_eq!(sys.below("254:3").layers.len(), 1, "a partition is its disk");
    }

    #[test]
    fn a_disk_has_nothing_below() {
        let sys = Sys::new();
        sys.device("nvme0n1", "259:0", &[]);
        assert!(sys.below("259:0").layers.is_empty());
        assert!(sys.below("1:1").layers.is_empty(), "not there");
    }

    #[test]
    fn loop_devices_lead_to_their_files() {
        let sys = Sys::new();
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        sys.device(
            "loop0",
            "7:0",
            &[("loop/backing_file", path), ("loop/dio", "1\n")],
        );
        sys.device(
            "loop1",
            "7:1",
            &[("loop/backing_file", "/gone (deleted)"), ("loop/dio", "0\n")],
        );
        let direct = sys.below("7:0");
        assert!(!direct.cached && direct.layers[0].what.starts_with("loop0, a file on "));
        let cached = sys.below("7:1");
        assert!(cached.cached);
        assert_eq!(cached.layers[0].state, LayerState::Unknown);
    }

    #[test]
    fn a_counting_device_reports_its_stored_bytes() {
        let sys = Sys::new();
        sys.device(
            "zram0",
            "253:0",
            &[("mm_stat", " 67792896 53475329 54272000 0 67330048 1024\n")],
        );
        sys.device("sda", "8:0", &[]);
        let of = |number| Kept::of(sys.0.path(), number);
        assert_eq!(of("253:0").unwrap().bytes(), Some(53_475_329));
        assert!(of("8:0").is_none());
    }
}
