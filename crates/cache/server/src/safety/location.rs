//! Whether a path is on a file system of a device. The device may have no server: whoever asks its file system for anything then
//! waits. So the path is followed by the table of mounts, and a name is looked up only in a directory on another device.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::holders::System;
use super::identity::Identity;
use super::mounts::Mount;

/// Links that are followed; the kernel follows as many.
const LINKS_MAX: usize = 40;

/// Where the file system of `path` is mounted, and on which of `devices`, if it is on one of them, or on partitions, logical
/// volumes or loop devices on it. All devices whose file systems must not be asked are given at once.
pub(crate) fn mount_on<'a>(path: &Path, devices: &[&'a Path]) -> Option<(&'a Path, PathBuf)> {
    let system = System::default();
    let mounts_on = |device: &Path| Identity::at(device).map(|identity| system.mounts_on(identity));
    let on_each: Vec<(&Path, Vec<Mount>)> = (devices.iter())
        .filter_map(|device| Some((*device, mounts_on(device)?)))
        .collect();
    let on_any: Vec<Mount> = on_each.iter().flat_map(|(_, mounts)| mounts.clone()).collect();
    let point = find(&std::path::absolute(path).ok()?, &system.mounts(), &on_any)?;
    let is_at_point = |mount: &Mount| mount.point == point;
    let (device, _) = on_each
        .iter()
        .find(|(_, mounts)| mounts.iter().any(is_at_point))?;
    Some((device, point))
}

/// The mount of `on_device` on which `path` ends, through `mounts`.
fn find(path: &Path, mounts: &[Mount], on_device: &[Mount]) -> Option<PathBuf> {
    if on_device.is_empty() {
        return None;
    }
    let mut at = PathBuf::from("/");
    let mut ahead = names(path);
    let mut links = 0;
    loop {
        let mount = covering(&at, mounts)?;
        let is_on_device = on_device.contains(mount);
        // On the device, reading a link would wait. Mount points below need no reading: the kernel has their names in memory.
        if !is_on_device
            && links < LINKS_MAX
            && let Ok(target) = fs::read_link(&at)
        {
            links += 1;
            at.pop();
            ahead.extend(names(&target));
            if target.is_absolute() {
                at = "/".into();
            }
            continue;
        }
        match ahead.pop() {
            None => return is_on_device.then(|| mount.point.clone()),
            Some(name) if name == ".." => {
                at.pop();
            }
            Some(name) => at.push(name),
        }
    }
}

/// The names in a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(_) | Component::ParentDir => Some(component.as_os_str().to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

/// The mount that shows a path without links: further mounts are followed on the way down, each from the one before, because a
/// mount may hide earlier ones.
fn covering<'a>(path: &Path, mounts: &'a [Mount]) -> Option<&'a Mount> {
    let is_root = |mount: &&Mount| {
        mount.point == Path::new("/")
            && mounts
                .iter()
                .all(|other| other.id != mount.parent || other.id == mount.id)
    };
    let mut now = mounts.iter().find(is_root)?;
    let mut down: Vec<&Path> = path.ancestors().collect();
    down.reverse();
    for point in down {
        while let Some(next) = mounts
            .iter()
            .find(|mount| mount.parent == now.id && mount.id != now.id && mount.point == point)
        {
            now = next;
        }
    }
    Some(now)
}

#[cfg(test)]
mod tests {
    use super::super::mounts::parse_mountinfo;
    use super::*;

    /// The mount points of the device 259:0 are those on the device.
    fn found(path: &Path, table: &str) -> Option<String> {
        let mounts = parse_mountinfo(table);
        let on_device: Vec<Mount> = mounts
            .iter()
            .filter(|mount| mount.device.major == 259)
            .cloned()
            .collect();
        find(path, &mounts, &on_device).map(|point| point.display().to_string())
    }

    const TABLE: &str = "20 1 254:0 / / rw - ext4 /dev/vda rw\n\
                         21 20 259:0 / /srv rw - ext4 /dev/ublkb0 rw\n\
                         22 21 0:30 / /srv/tmp rw - tmpfs tmpfs rw\n\
                         23 22 259:0 /in /srv/tmp/deep rw - ext4 /dev/ublkb0 rw\n";

    #[test]
    fn the_innermost_mount_counts() {
        for (path, expected) in [
            ("/", None),
            ("/srvx/state", None),
            ("/srv", Some("/srv")),
            ("/srv/no/such/directory", Some("/srv")),
            ("/srv/tmp/state", None),
            ("/srv/tmp/deep/state", Some("/srv/tmp/deep")),
            ("/no/such/../../srv/state", Some("/srv")),
        ] {
            assert_eq!(found(Path::new(path), TABLE).as_deref(), expected, "{path}");
        }
        assert_eq!(found(Path::new("/srv"), ""), None);
    }

    #[test]
    fn a_mount_hides_earlier_ones() {
        let hidden = format!("{TABLE}24 21 254:16 / /srv rw - xfs /dev/vdb rw\n");
        for path in ["/srv", "/srv/tmp/deep"] {
            assert_eq!(found(Path::new(path), &hidden), None, "{path}");
        }
        let covered = "20 1 254:0 / / rw - ext4 /dev/vda rw\n\
                       21 20 254:1 / /var/lib rw - ext4 /dev/vdb rw\n\
                       22 20 259:0 / /var rw - ext4 /dev/ublkb0 rw\n";
        assert_eq!(
            found(Path::new("/var/lib/flaz"), covered).as_deref(),
            Some("/var")
        );
    }

    #[test]
    fn links_are_followed_to_the_device() {
        let scratch = tempfile::tempdir().unwrap();
        let link = |name: &str, target: &Path| {
            let path = scratch.path().join(name);
            std::os::unix::fs::symlink(target, &path).unwrap();
            path
        };
        let absolute = link("absolute", Path::new("/srv/state"));
        let relative = link("relative", Path::new("absolute/below"));
        let circular = link("circular", Path::new("circular"));
        assert_eq!(found(&absolute, TABLE).as_deref(), Some("/srv"));
        assert_eq!(found(&relative.join("x"), TABLE).as_deref(), Some("/srv"));
        assert_eq!(found(&circular, TABLE), None);
        assert_eq!(found(&scratch.path().join("plain"), TABLE), None);
    }
}
