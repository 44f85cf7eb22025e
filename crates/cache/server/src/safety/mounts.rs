//! The mounts and swap spaces that the kernel reports.
//!
//! Formats: proc_pid_mountinfo(5) and proc_swaps(5). Both escape spaces and similar characters in paths as octal
//! numbers.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::identity::DeviceNumber;

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount.
    pub id: u32,
    /// Number of the mount that the mount point is on. That of the root may be missing or its own.
    pub parent: u32,
    /// Number of its device. File systems on several devices or none have a number of their own from the kernel.
    pub device: DeviceNumber,
    /// Where it is mounted.
    pub point: PathBuf,
    /// `ext4`, `btrfs`, ..
    pub kind: String,
    /// The source given to mount(8): usually a device file.
    pub source: PathBuf,
}

/// Reads `/proc/self/mountinfo`. Lines in another format are skipped.
#[must_use]
pub fn parse_mountinfo(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_mount).collect()
}

/// `36 35 98:0 /root /mnt rw,noatime master:1 shared:2 - ext3 /dev/sdb1 rw`: any number of fields before the dash.
fn parse_mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ');
    let (id, parent) = (before.next()?.parse().ok()?, before.next()?.parse().ok()?);
    let device = DeviceNumber::parse(before.next()?)?;
    let point = unescape(before.nth(1)?);
    let mut after = after.split(' ');
    let kind = after.next()?.to_owned();
    let source = unescape(after.next()?);
    Some(Mount {
        id,
        parent,
        device,
        point,
        kind,
        source,
    })
}

/// Reads `/proc/swaps`: paths of the devices and files that are swap space.
#[must_use]
pub fn parse_swaps(text: &str) -> Vec<PathBuf> {
    text.lines()
        .skip(1)
        .filter_map(|line| line.split_ascii_whitespace().next())
        .map(unescape)
        .collect()
}

/// Decodes escapes such as `\040`.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let code = bytes
            .get(at + 1..at + 4)
            .filter(|_| byte == b'\\')
            .and_then(octal);
        match code {
            Some(code) => {
                plain.push(code);
                at += 4;
            }
            None => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_with_and_without_tags() {
        let text = "22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n\
                    36 22 0:42 /sub /mnt/two\\040words rw master:1 shared:2 - btrfs /dev/sdb rw,subvol=/sub\n\
                    nonsense\n\
                    1 2 x / / - a b\n";
        let mounts = parse_mountinfo(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!((mounts[1].id, mounts[1].parent), (36, 22));
        assert_eq!(mounts[0].device, DeviceNumber { major: 254, minor: 1 });
        assert_eq!(
            (mounts[0].kind.as_str(), mounts[0].source.to_str()),
            ("ext4", Some("/dev/vda1"))
        );
        assert_eq!(mounts[1].point, PathBuf::from("/mnt/two words"));
        assert_eq!(mounts[1].source, PathBuf::from("/dev/sdb"));
    }

    #[test]
    fn the_real_tables_are_understood() {
        let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mounts = parse_mountinfo(&text);
        assert_eq!(mounts.len(), text.lines().count());
        assert!(
            mounts
                .iter()
                .any(|mount| mount.point == std::path::Path::new("/proc"))
        );
    }

    #[test]
    fn swaps_are_parsed_without_the_heading() {
        let text = "Filename\t\tType\t\tSize\t\tUsed\t\tPriority\n\
                    /dev/dm-1   partition\t1024\t0\t-2\n\
                    /swap\\040file file\t1024\t0\t-3\n";
        assert_eq!(
            parse_swaps(text),
            [PathBuf::from("/dev/dm-1"), PathBuf::from("/swap file")]
        );
        assert!(parse_swaps("").is_empty());
    }

    #[test]
    fn invalid_escapes_are_kept() {
        assert_eq!(unescape("a\\134b\\9\\04"), PathBuf::from("a\\b\\9\\04"));
        assert_eq!(unescape("\\777"), PathBuf::from("\\777"));
    }
}
