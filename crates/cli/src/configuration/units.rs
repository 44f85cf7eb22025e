//! Drop-ins for `flaz@NAME.service`: a template unit cannot know the devices of its instances, so a systemd generator
//! writes them from the configurations, at boot and at `systemctl daemon-reload`.
//!
//! An instance waits for the device units of its cache and its origin. It *wants* them and does not *require* them, and it
//! waits for at most [`DEVICE_WAIT_S`]: without a disk the boot goes on, `flaz` says which one is missing, and systemd starts it
//! again and again, without a wait for the disk.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Configuration, Given, all, directories};
use crate::error::Failure;

/// How long a start waits for a device, in seconds. systemd's default of 90 s would hold up logins.
const DEVICE_WAIT_S: u32 = 30;
/// The name of the drop-ins.
const DROP_IN: &str = "50-flaz.conf";
/// Directories that the unit may only read, unless a drop-in names a file below them.
const READ_ONLY_HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// Writes the drop-ins of all configurations into `directory`.
///
/// # Errors
/// A file cannot be written; or a configuration is refused, after those of the others were written.
pub fn generate(directory: &Path) -> Result<(), Failure> {
    let fstab = fs::read_to_string("/etc/fstab").unwrap_or_default();
    let mut refused = Ok(());
    for path in all(&directories()) {
        let written = Configuration::read(&path).and_then(|found| {
            for (name, text) in drop_ins(&found, &fstab)? {
                write(directory, &name, &text).map_err(Failure::system(format!(
                    "writing {name} in {}",
                    directory.display()
                )))?;
            }
            Ok(())
        });
        if let Err(error) = written {
            // A unit without drop-ins is started all the same, and says the same.
            tracing::error!("no drop-in for {}: {error}", path.display());
            refused = Err(error);
        }
    }
    refused
}

fn write(directory: &Path, unit: &str, text: &str) -> io::Result<()> {
    let directory = directory.join(format!("{unit}.d"));
    fs::create_dir_all(&directory)?;
    fs::write(directory.join(DROP_IN), text)
}

/// The drop-ins of a configuration: names of units, and their text.
fn drop_ins(found: &Configuration, fstab: &str) -> Result<Vec<(String, String)>, Failure> {
    let options = found.serve(&Given::default())?;
    let mut unit = format!(
        "# Made from {} by flaz-generator.\n[Unit]\n",
        found.path.display()
    );
    let mut service = String::new();
    let mut all = Vec::new();
    for path in [&found.device, &found.origin] {
        // Files in memory are there too.
        if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            let device = unit_of(path, "device");
            let _ = writeln!(unit, "Wants={device}\nAfter={device}");
            let wait = format!("# Made by flaz-generator.\n[Unit]\nJobRunningTimeoutSec={DEVICE_WAIT_S}s\n");
            all.push((device, wait));
            continue;
        }
        for mount in local_mounts(path, fstab) {
            let _ = writeln!(unit, "After={}", unit_of(&mount, "mount"));
        }
        if READ_ONLY_HOMES.iter().any(|home| path.starts_with(home))
            && let Some(folder) = path.parent()
        {
            let _ = writeln!(service, "ReadWritePaths=-{}", quoted(folder));
        }
    }
    if options.nbd_device.is_some() {
        unit += "Wants=modprobe@nbd.service\nAfter=modprobe@nbd.service\n";
    }
    if !service.is_empty() {
        let _ = write!(unit, "\n[Service]\n{service}");
    }
    all.push((format!("flaz@{}.service", found.name), unit));
    Ok(all)
}

/// The mount points in `/etc/fstab` that a file is on, of file systems on disks of this machine. `local-fs.target`, which the
/// unit follows, does not wait for those with `nofail`. File systems that come over a network are mounted after this unit.
fn local_mounts(file: &Path, fstab: &str) -> Vec<PathBuf> {
    let mounts = fstab.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let [source, point, _, options, ..] = fields[..] else {
            return None;
        };
        let by_disk = source.starts_with("/dev/") || source.contains("UUID=") || source.contains("LABEL=");
        let is_local = by_disk && !source.starts_with("/dev/flaz/");
        let over_network = options.split(',').any(|option| option == "_netdev");
        // Spaces are written as in a C string.
        let point = PathBuf::from(point.replace("\\040", " ").replace("\\011", "\t"));
        (is_local
            && !over_network
            && !source.starts_with('#')
            && point.parent().is_some()
            && file.starts_with(&point))
        .then_some(point)
    });
    mounts.collect()
}

/// The name of the unit of a path, as `systemd-escape --path` makes it.
fn unit_of(path: &Path, kind: &str) -> String {
    let text = path.to_string_lossy();
    let parts: Vec<_> = text
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    let joined = parts.join("/");
    let mut name = String::new();
    for (at, byte) in joined.bytes().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if at == 0 => name += "\\x2e",
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'.' => name.push(byte.into()),
            _ => {
                let _ = write!(name, "\\x{byte:02x}");
            }
        }
    }
    format!("{name}.{kind}")
}

/// A path in a unit file, where `%` begins a specifier and spaces separate paths.
fn quoted(path: &Path) -> String {
    let mut text = String::from("\"");
    for character in path.to_string_lossy().chars() {
        match character {
            '%' => text += "%%",
            '"' | '\\' => text.extend(['\\', character]),
            _ => text.push(character),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, fstab: &str) -> Vec<(String, String)> {
        let found = Configuration::parse("disk", Path::new("/etc/flaz/disk.toml"), text).unwrap();
        drop_ins(&found, fstab).unwrap()
    }

    #[test]
    fn units_of_paths_are_escaped_as_systemd_does() {
        for (path, expected) in [
            (
                "/dev/disk/by-id/wwn-0x50",
                r"dev-disk-by\x2did-wwn\x2d0x50.device",
            ),
            ("/dev//sdb", "dev-sdb.device"),
            ("/dev/mapper/a+b@c:d_e.f", r"dev-mapper-a\x2bb\x40c:d_e.f.device"),
            ("/.x/ä b", r"\x2ex-\xc3\xa4\x20b.device"),
        ] {
            assert_eq!(unit_of(Path::new(path), "device"), expected);
            let system = std::process::Command::new("systemd-escape")
                .args(["--path", "--suffix=device", path])
                .output();
            if let Ok(system) = system {
                assert_eq!(String::from_utf8_lossy(&system.stdout).trim_end(), expected);
            }
        }
    }

    #[test]
    fn a_service_waits_for_both_devices_but_not_long() {
        let made = of(
            "cache = '/dev/c'\norigin = '/dev/disk/by-id/o'\nublk = true\n",
            "",
        );
        let units: Vec<_> = made.iter().map(|(unit, _)| unit.as_str()).collect();
        assert_eq!(
            units,
            ["dev-c.device", r"dev-disk-by\x2did-o.device", "flaz@disk.service"]
        );
        assert!(made[0].1.contains("JobRunningTimeoutSec=30s"));
        let service = &made[2].1;
        for device in &units[..2] {
            assert!(
                service.contains(&format!("Wants={device}\nAfter={device}\n")),
                "{service}"
            );
        }
        assert!(
            !service.contains("Requires") && !service.contains("BindsTo"),
            "a missing disk is no failed dependency"
        );
        assert!(!service.contains("modprobe"), "{service}");
    }

    #[test]
    fn images_wait_for_local_file_systems_only() {
        let fstab = "\
            # a comment\n#/dev/sdx /home/u ext4 defaults 0 2\n\
            UUID=1 / ext4 defaults 0 1\n/dev/sdb1 /home ext4 nofail 0 2\nLABEL=x /home/u/my\\040images xfs nofail 0 2\n\
            nas:/export /home/u nfs nofail 0 0\n/dev/sdc /home ext4 _netdev 0 2\n/dev/flaz/disk /home/u ext4 _netdev 0 2\n";
        let made = of(
            "cache = '/home/u/my images/c'\norigin = '/srv/o'\nnbd-device = true\n",
            fstab,
        );
        assert_eq!(made.len(), 1);
        let service = &made[0].1;
        let after: Vec<_> = service
            .lines()
            .filter_map(|line| line.strip_prefix("After="))
            .collect();
        assert_eq!(
            after,
            ["home.mount", r"home-u-my\x20images.mount", "modprobe@nbd.service"]
        );
        assert!(
            service.contains("[Service]\nReadWritePaths=-\"/home/u/my images\"\n"),
            "{service}"
        );
    }
}
