//! The configuration that `flaz create --name` and `flaz volume add --name` write: checked before the cache is made, written after it.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::{SUFFIX, directories};
use crate::error::Failure;

/// Mode of the file: it has no secrets.
const FILE_MODE: u32 = 0o644;
/// Mode of a directory that is made for it.
const DIRECTORY_MODE: u32 = 0o755;

/// A configuration that is not written yet.
#[derive(Debug)]
pub struct Draft {
    name: String,
    path: PathBuf,
    text: String,
    /// Replace a file that exists.
    replace: bool,
}

/// What a configuration is written for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its name.
    pub name: &'a str,
    /// The cache device.
    pub cache: &'a Path,
    /// The volume of a shared cache device.
    pub volume: Option<&'a str>,
    /// The origin.
    pub origin: &'a Path,
    /// Replace a configuration that exists.
    pub replace: bool,
}

impl Draft {
    /// A configuration. Nothing is written.
    ///
    /// # Errors
    /// A configuration of this name exists, a path is not UTF-8, or the directory is not writable.
    pub fn of(wanted: Wanted<'_>) -> Result<Self, Failure> {
        let name = wanted.name;
        let directory = directories().swap_remove(0);
        let path = path_of(&directory, name);
        if !wanted.replace && path.symlink_metadata().is_ok() {
            return Err(Failure::Usage(format!(
                "create: the configuration {} exists: choose another --name, or replace it with --force",
                path.display()
            )));
        }
        DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(&directory)
            .map_err(Failure::system(format!("making {}", directory.display())))?;
        let absolute = |path: &Path| {
            let path = std::path::absolute(path).map_err(Failure::system(format!(
                "finding the full path of {}",
                path.display()
            )))?;
            path.to_str().map(str::to_owned).ok_or_else(|| {
                Failure::Usage(format!(
                    "create: {} is not UTF-8, which a configuration must be: use a symbolic link with a UTF-8 name",
                    path.display()
                ))
            })
        };
        for path in [wanted.cache, wanted.origin] {
            if let Some(stable) = stable_name(path, Path::new("/dev/disk")) {
                tracing::warn!(
                    "{} may be another disk after a restart of this machine: write {} into {}",
                    path.display(),
                    stable.display(),
                    path_of(&directory, name).display()
                );
            }
        }
        let text = text(
            name,
            &absolute(wanted.cache)?,
            wanted.volume,
            &absolute(wanted.origin)?,
            front_end(),
        );
        let draft = Self {
            name: name.to_owned(),
            path,
            text,
            replace: wanted.replace,
        };
        // A trial write, so that no cache is created without its configuration. The file is removed at once, because an interrupted
        // command would leave it behind.
        draft.file().map_err(Failure::system(format!(
            "the configuration {} cannot be written, and no cache was created",
            draft.path.display()
        )))?;
        Ok(draft)
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// The file under another name, which is removed when it is dropped.
    fn file(&self) -> io::Result<NamedTempFile> {
        if self.path.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let mut file = NamedTempFile::new_in(self.directory())?;
        file.write_all(self.text.as_bytes())?;
        file.as_file()
            .set_permissions(Permissions::from_mode(FILE_MODE))?;
        file.as_file().sync_all()?;
        Ok(file)
    }

    /// Writes the file, as a whole or not at all.
    ///
    /// # Errors
    /// It cannot be written. The cache was made.
    pub fn write(self) -> Result<(), Failure> {
        let what = || {
            format!(
                "the cache was created, but the configuration {} cannot be written: write it by hand, in a directory \
                 that can be written (FLAZ_CONFIG_DIR)",
                self.path.display()
            )
        };
        let write = || {
            let file = self.file()?;
            if self.replace {
                file.persist(&self.path)
            } else {
                file.persist_noclobber(&self.path)
            }
            .map_err(|error| error.error)?;
            // The new name is stable when its directory is.
            fs::File::open(self.directory())?.sync_all()
        };
        write().map_err(Failure::system(what()))?;
        tracing::info!(
            "wrote {}: set the front ends and settings there, then: systemctl daemon-reload; systemctl enable --now flaz@{}",
            self.path.display(),
            self.name
        );
        Ok(())
    }
}

fn path_of(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.{SUFFIX}"))
}

/// A name in `disks`, that is `/dev/disk`, for a disk that was named as the kernel numbers it, like `/dev/sdb`.
fn stable_name(path: &Path, disks: &Path) -> Option<PathBuf> {
    let is_link = path.symlink_metadata().ok()?.is_symlink();
    if is_link || path.parent() != disks.parent() {
        return None;
    }
    for kind in ["by-id", "by-partuuid"] {
        let entries = fs::read_dir(disks.join(kind)).into_iter().flatten().flatten();
        let links = entries.map(|entry| entry.path());
        // The contents of a disk have names there too, which the device that flaz serves gets as well.
        let names_contents = |link: &Path| {
            (link.file_name()).is_some_and(|name| name.to_string_lossy().starts_with("lvm-pv-uuid-"))
        };
        let mut same: Vec<_> = links
            .filter(|link| !names_contents(link))
            .filter(|link| fs::canonicalize(link).is_ok_and(|real| real == path))
            .collect();
        same.sort();
        if !same.is_empty() {
            return Some(same.swap_remove(0));
        }
    }
    None
}

/// The front end of a new configuration: a block device by a driver that the kernel has, if this user may make one.
fn front_end() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    front_end_of(Path::new("/"), &release)
}

/// The same for the kernel `release`, whose files are below `root`.
fn front_end_of(root: &Path, release: &str) -> Option<&'static str> {
    let modules = root.join("lib/modules").join(release);
    let lists = |module: &str| {
        ["modules.dep", "modules.builtin"].iter().any(|file| {
            let text = fs::read_to_string(modules.join(file)).unwrap_or_default();
            text.contains(&format!("/{module}.ko"))
        })
    };
    if root.join("dev/ublk-control").exists() || lists("ublk_drv") {
        Some("ublk")
    } else if root.join("dev/nbd0").exists() || lists("nbd") {
        Some("nbd-device")
    } else {
        None
    }
}

fn text(name: &str, cache: &str, volume: Option<&str>, origin: &str, front_end: Option<&str>) -> String {
    let volume = volume.map_or_else(String::new, |volume| format!("volume = {}\n", quoted(volume)));
    let (cache, origin) = (quoted(cache), quoted(origin));
    let active = |key| if front_end == Some(key) { "" } else { "#" };
    format!(
        "\
# The cache {name}, for `flaz serve {name}` and flaz@{name}.service.
#
# Keys are the options of `flaz serve` without `--`: see flaz-serve(1). Paths are absolute. Options on the command line
# override this file; this file overrides what `flaz set` has stored in the cache, at the next start.
# If you change paths or front ends: systemctl daemon-reload

cache = {cache}
{volume}origin = {origin}

# The block device /dev/flaz/{name}: by ublk, or by the NBD client of a kernel without ublk. Use one of the two.
{}ublk = true
{}nbd-device = true

# NBD clients. Without any front end, they can connect to a socket in the runtime directory.
#nbd = [\"unix:/run/flaz/{name}.sock\"]

# Settings that `flaz set` must not change for later starts:
#mode = \"write-back\"
",
        active("ublk"),
        active("nbd-device"),
    )
}

/// A path as a TOML string. JSON escapes the same characters, but one.
fn quoted(path: &str) -> String {
    serde_json::Value::from(path)
        .to_string()
        .replace('\x7f', "\\u007f")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::{Configuration, Given};

    #[test]
    fn a_disk_has_a_name_that_does_not_change() {
        let folder = tempfile::tempdir().unwrap();
        let dev = fs::canonicalize(folder.path()).unwrap();
        let (disk, other) = (dev.join("sdb"), dev.join("sdc"));
        fs::write(&disk, "").unwrap();
        fs::write(&other, "").unwrap();
        fs::create_dir_all(dev.join("disk/by-id")).unwrap();
        for link in ["lvm-pv-uuid-0", "wwn-2", "zz-1"] {
            std::os::unix::fs::symlink("../../sdb", dev.join("disk/by-id").join(link)).unwrap();
        }
        let disks = dev.join("disk");
        let found = stable_name(&disk, &disks);
        assert_eq!(found.as_deref(), Some(disks.join("by-id/wwn-2").as_path()));
        assert_eq!(stable_name(&other, &disks), None, "no link names it");
        assert_eq!(
            stable_name(&disks.join("by-id/wwn-2"), &disks),
            None,
            "it is such a name"
        );
        assert_eq!(stable_name(&dev.join("none"), &disks), None);
    }

    #[test]
    fn the_front_end_is_one_that_the_kernel_has() {
        let kernel = tempfile::tempdir().unwrap();
        let of = || front_end_of(kernel.path(), "6.1");
        assert_eq!(of(), None, "a container");
        let modules = kernel.path().join("lib/modules/6.1");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("modules.dep"), "kernel/drivers/nvme/nbdx.ko.xz:\n").unwrap();
        assert_eq!(of(), None);
        fs::write(modules.join("modules.builtin"), "kernel/drivers/block/nbd.ko\n").unwrap();
        assert_eq!(of(), Some("nbd-device"));
        fs::write(
            modules.join("modules.dep"),
            "kernel/drivers/block/ublk_drv.ko.xz:\n",
        )
        .unwrap();
        assert_eq!(of(), Some("ublk"));
    }

    #[test]
    fn a_draft_is_a_configuration() {
        for (front_end, ublk, nbd) in [
            (None, false, false),
            (Some("ublk"), true, false),
            (Some("nbd-device"), false, true),
        ] {
            let hard = "/a \"b\"\\ä\u{7f}\t";
            let text = text("disk", hard, None, "/dev/o", front_end);
            let found = Configuration::parse("disk", Path::new("/etc/flaz/disk.toml"), &text).unwrap();
            assert_eq!((found.cache, found.origin), (hard.into(), "/dev/o".into()));
            let found = Configuration::parse("disk", Path::new("/x"), &text).unwrap();
            let serve = found.serve(&Given::default()).unwrap();
            assert_eq!((serve.ublk.is_some(), serve.nbd_device.is_some()), (ublk, nbd));
            assert!(text.is_ascii() || text.contains('ä'));
            assert!(text.lines().all(|line| line.len() <= 130), "{text}");
        }
    }
}
