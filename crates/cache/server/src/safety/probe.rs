//! Searches a device or file for the signatures that [`super::signatures`] lists, and wipes them.

use std::fmt;
use std::io;

use super::signatures::{DIRTY_CACHE, Kind, OTHER_VERSION, TABLE, WITH_VOLUMES};
use super::source::Source;

/// Maximum length, in bytes, of the part of a file without a signature that is searched for data.
const UNKNOWN_SEARCH_BYTES: u64 = 4 << 20;

/// A signature that was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// Byte offset of the magic.
    pub offset: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Name from the table, or from `confirm`.
    pub name: &'static str,
    /// Kind of contents.
    pub kind: Kind,
}

impl Found {
    /// Whether it is a cache device that volumes share.
    #[must_use]
    pub fn has_volumes(&self) -> bool {
        self.kind == Kind::Flaz && self.name == WITH_VOLUMES
    }

    /// Whether it is a flaz cache that may contain the only copy of some writes.
    #[must_use]
    pub fn is_dirty_cache(&self) -> bool {
        self.kind == Kind::Flaz && [DIRTY_CACHE, OTHER_VERSION, WITH_VOLUMES].contains(&self.name)
    }

    /// Whether it is such a cache that only another version of flaz can read.
    #[must_use]
    pub fn is_of_other_version(&self) -> bool {
        self.kind == Kind::Flaz && self.name == OTHER_VERSION
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == Kind::Unknown {
            return write!(f, "unknown data (first at offset {})", self.offset);
        }
        f.write_str(self.name)?;
        if !self.kind.text().is_empty() {
            write!(f, " {}", self.kind.text())?;
        }
        write!(f, " (signature at offset {})", self.offset)
    }
}

/// All signatures on `source`, sorted by offset. Two at one offset are listed only if their kinds differ.
///
/// # Errors
/// The device cannot be read.
pub fn signatures(source: &Source<'_>) -> io::Result<Vec<Found>> {
    let mut found: Vec<Found> = Vec::new();
    let mut bytes = [0; 32];
    for signature in TABLE {
        let bytes = &mut bytes[..signature.magic.len()];
        for place in signature.places {
            for offset in place.offsets(source.size_bytes()) {
                if !source.read(offset, bytes)? || bytes != signature.magic {
                    continue;
                }
                let name = match signature.confirm {
                    None => signature.name,
                    Some(confirm) => match confirm(source, offset)? {
                        Some(name) => name,
                        None => continue,
                    },
                };
                let len_bytes = signature.magic.len() as u64;
                let this = Found {
                    offset,
                    len_bytes,
                    name,
                    kind: signature.kind,
                };
                if !found
                    .iter()
                    .any(|other| (other.offset, other.kind) == (this.offset, this.kind))
                {
                    found.push(this);
                }
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The first byte that is not zero in the first 4 MiB of data: a file without a signature may still contain data that
/// somebody needs.
///
/// # Errors
/// It cannot be read.
pub fn unknown_data(source: &Source<'_>) -> io::Result<Option<Found>> {
    let mut buffer = vec![0; 64 << 10];
    let mut offset = source.data_start();
    let end = source
        .size_bytes()
        .min(offset.saturating_add(UNKNOWN_SEARCH_BYTES));
    while offset < end {
        let piece = (end - offset).min(buffer.len() as u64) as usize;
        if !source.read(offset, &mut buffer[..piece])? {
            break;
        }
        if let Some(at) = buffer[..piece].iter().position(|byte| *byte != 0) {
            return Ok(Some(Found {
                offset: offset + at as u64,
                len_bytes: 0,
                name: "unknown",
                kind: Kind::Unknown,
            }));
        }
        offset += piece as u64;
    }
    Ok(None)
}

/// Overwrites all signatures except flaz's own with zeroes, so that no program mistakes the device for its previous
/// contents.
///
/// # Errors
/// The device cannot be read or written.
pub fn wipe_foreign(source: &Source<'_>) -> io::Result<Vec<Found>> {
    let foreign: Vec<Found> = signatures(source)?
        .into_iter()
        .filter(|found| found.kind != Kind::Flaz)
        .collect();
    for found in &foreign {
        source.zero(found.offset, found.len_bytes)?;
    }
    if !foreign.is_empty() {
        source.sync()?;
    }
    Ok(foreign)
}

/// A short list for one line of the log.
#[must_use]
pub fn list(found: &[Found]) -> String {
    found
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::ErrorKind;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::safety::signatures::Place;

    const MIB: u64 = 1 << 20;

    fn image(size_bytes: u64) -> tempfile::NamedTempFile {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(size_bytes).unwrap();
        image
    }

    fn names(path: &Path) -> Vec<&'static str> {
        let file = File::open(path).unwrap();
        let size_bytes = file.metadata().unwrap().len();
        signatures(&Source::new(&file, size_bytes))
            .unwrap()
            .iter()
            .map(|found| found.name)
            .collect()
    }

    /// Runs a tool on a fresh image; `None` if the tool is not installed.
    fn made_by(size_bytes: u64, tool: &str, arguments: &[&str], input: &str) -> Option<Vec<&'static str>> {
        let image = image(size_bytes);
        let path = image.path().to_str().unwrap();
        let arguments: Vec<String> = arguments
            .iter()
            .map(|argument| argument.replace("IMAGE", path))
            .collect();
        let search = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let child = Command::new(tool)
            .args(&arguments)
            .env("PATH", search)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("skipped: {tool} is not installed");
                return None;
            }
            Err(error) => panic!("{tool}: {error}"),
        };
        io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{tool}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Some(names(image.path()))
    }

    /// Runs a tool and expects this name among the signatures found.
    fn expect(name: &str, size_bytes: u64, tool: &str, arguments: &[&str], input: &str) {
        if let Some(names) = made_by(size_bytes, tool, arguments, input) {
            assert!(names.contains(&name), "{tool} made {names:?}, expected {name}");
        }
    }

    #[test]
    fn an_empty_device_has_no_signature() {
        for size_bytes in [0, 1, 511, 512, 4096, 65_537, 8 * MIB] {
            assert!(names(image(size_bytes).path()).is_empty(), "{size_bytes}");
        }
    }

    #[test]
    fn signatures_of_ext2_ext3_and_ext4() {
        for (kind, tool) in [
            ("ext2", "mkfs.ext2"),
            ("ext3", "mkfs.ext3"),
            ("ext4", "mkfs.ext4"),
        ] {
            if let Some(names) = made_by(16 * MIB, tool, &["-q", "-F", "IMAGE"], "") {
                assert_eq!(names, [kind]);
            }
        }
    }

    #[test]
    fn signatures_of_file_systems() {
        expect("xfs", 512 * MIB, "mkfs.xfs", &["-q", "-f", "IMAGE"], "");
        expect("btrfs", 128 * MIB, "mkfs.btrfs", &["-q", "-f", "IMAGE"], "");
        expect("f2fs", 128 * MIB, "mkfs.f2fs", &["-q", "-f", "IMAGE"], "");
        expect("vfat", 32 * MIB, "mkfs.vfat", &["-F", "16", "IMAGE"], "");
        expect("vfat", 64 * MIB, "mkfs.vfat", &["-F", "32", "IMAGE"], "");
        expect("exfat", 16 * MIB, "mkfs.exfat", &["IMAGE"], "");
        expect("ntfs", 16 * MIB, "mkntfs", &["-Q", "-F", "-q", "IMAGE"], "");
        expect("minix", 4 * MIB, "mkfs.minix", &["-3", "IMAGE"], "");
        expect("minix", 4 * MIB, "mkfs.minix", &["-1", "IMAGE"], "");
        expect("nilfs2", 256 * MIB, "mkfs.nilfs2", &["-q", "-f", "IMAGE"], "");
        expect("jfs", 32 * MIB, "mkfs.jfs", &["-q", "IMAGE"], "");
    }

    #[test]
    fn a_boot_sector_is_not_a_partition_table() {
        for (tool, arguments) in [
            ("mkfs.vfat", &["IMAGE"][..]),
            ("mkntfs", &["-Q", "-F", "-q", "IMAGE"]),
        ] {
            if let Some(names) = made_by(16 * MIB, tool, arguments, "") {
                assert!(!names.contains(&"dos"), "{tool} made {names:?}");
            }
        }
    }

    #[test]
    fn signatures_of_swap_and_partition_tables() {
        expect("linux", 4 * MIB, "mkswap", &["IMAGE"], "");
        expect("linux", 4 * MIB, "mkswap", &["-p", "65536", "IMAGE"], "");
        expect("dos", 8 * MIB, "sfdisk", &["-q", "IMAGE"], "label: dos\n,4M\n");
        expect("gpt", 8 * MIB, "sfdisk", &["-q", "IMAGE"], "label: gpt\n,4M\n");
        expect(
            "protective dos",
            8 * MIB,
            "sfdisk",
            &["-q", "IMAGE"],
            "label: gpt\n,4M\n",
        );
        expect("sgi", 64 * MIB, "sfdisk", &["-q", "IMAGE"], "label: sgi\n");
        expect("sun", 64 * MIB, "sfdisk", &["-q", "IMAGE"], "label: sun\n");
    }

    #[test]
    fn a_gpt_is_found_by_its_backup() {
        let image = image(8 * MIB);
        image.as_file().write_all_at(b"EFI PART", 8 * MIB - 512).unwrap();
        assert_eq!(names(image.path()), ["gpt"]);
    }

    #[test]
    fn signatures_of_luks() {
        let arguments = |version| {
            [
                "luksFormat",
                "--type",
                version,
                "--batch-mode",
                "--pbkdf",
                "pbkdf2",
                "--pbkdf-force-iterations",
                "1000",
                "IMAGE",
                "-",
            ]
        };
        expect(
            "luks volume",
            32 * MIB,
            "cryptsetup",
            &arguments("luks2"),
            "secret",
        );
        expect(
            "luks volume (second header)",
            32 * MIB,
            "cryptsetup",
            &arguments("luks2"),
            "secret",
        );
    }

    #[test]
    fn signatures_of_iso_images() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        expect(
            "iso9660",
            0,
            "xorriso",
            &["-as", "mkisofs", "-quiet", "-o", "IMAGE", folder],
            "",
        );
    }

    #[test]
    fn signatures_of_disk_images() {
        for (name, format) in [
            ("qcow2", "qcow2"),
            ("vhdx", "vhdx"),
            ("vdi", "vdi"),
            ("vmdk", "vmdk"),
            ("vhd", "vpc"),
        ] {
            expect(
                name,
                0,
                "qemu-img",
                &["create", "-q", "-f", format, "IMAGE", "1M"],
                "",
            );
        }
    }

    #[test]
    fn signatures_of_md_at_all_places() {
        for (name, offset) in [
            ("md raid 0.90 member", 8 * MIB - (64 << 10)),
            ("md raid 1.x member", 8 * MIB - (8 << 10)),
            ("md raid 1.x member", 0),
            ("md raid 1.x member", 4096),
        ] {
            // A size that is not a multiple of the alignment: the end is rounded down first.
            let image = image(8 * MIB + 1536);
            image
                .as_file()
                .write_all_at(&0xa92b_4efc_u32.to_le_bytes(), offset)
                .unwrap();
            assert_eq!(names(image.path()), [name]);
        }
    }

    /// Places each unconditional signature where its row says. This tests the search, not the facts in the table.
    #[test]
    fn every_plain_row_is_found_at_each_place_from_the_start() {
        for signature in TABLE.iter().filter(|signature| signature.confirm.is_none()) {
            assert!(
                !signature.magic.is_empty() && signature.magic.len() <= 32,
                "{}",
                signature.name
            );
            for place in signature.places {
                let Place::At(offset) = *place else { continue };
                let image = image(offset + 4096);
                image.as_file().write_all_at(signature.magic, offset).unwrap();
                assert!(
                    names(image.path()).contains(&signature.name),
                    "{} at {offset}",
                    signature.name
                );
            }
        }
    }

    #[test]
    fn signatures_of_zfs_at_both_ends() {
        for offset in [
            128 << 10,
            (384 << 10) + 3072,
            64 * MIB - (384 << 10),
            64 * MIB - 1024,
        ] {
            let image = image(64 * MIB);
            image
                .as_file()
                .write_all_at(&0x00ba_b10c_u64.to_le_bytes(), offset)
                .unwrap();
            assert_eq!(names(image.path()), ["zfs pool member"], "{offset}");
        }
    }

    #[test]
    fn random_data_does_not_match_weak_magics() {
        for (magic, offset) in [
            (b"\x53\xef", 1024 + 0x38),
            (b"\x55\xaa", 510),
            (b"\x34\x34", 1030),
            (b"BD", 1024),
            (b"HM", 0),
            (b"\x7f\x13", 1040),
        ] {
            let image = image(MIB);
            image.as_file().write_all_at(magic, offset).unwrap();
            assert!(names(image.path()).is_empty(), "{offset}");
        }
    }

    #[test]
    fn wiping_leaves_only_the_signature_of_flaz() {
        let image = image(8 * MIB);
        let file = image.as_file();
        file.write_all_at(b"FLAZCACH", 0).unwrap();
        file.write_all_at(b"EFI PART", 8 * MIB - 512).unwrap();
        file.write_all_at(b"_BHRfS_M", (64 << 10) + 0x40).unwrap();
        let source = Source::new(file, 8 * MIB);
        assert_eq!(wipe_foreign(&source).unwrap().len(), 2);
        assert_eq!(names(image.path()), ["flaz"]);
        assert!(wipe_foreign(&source).unwrap().is_empty());
    }

    #[test]
    fn unknown_data_is_found_after_holes() {
        let image = image(64 * MIB);
        let source = Source::new(image.as_file(), 64 * MIB);
        assert_eq!(unknown_data(&source).unwrap(), None);
        image.as_file().write_all_at(&[0; 4096], 8 * MIB).unwrap();
        assert_eq!(unknown_data(&source).unwrap(), None, "zeroes are not data");
        image.as_file().write_all_at(b"x", 8 * MIB + 5000).unwrap();
        assert_eq!(
            unknown_data(&source).unwrap().map(|found| found.offset),
            Some(8 * MIB + 5000)
        );
    }
}
