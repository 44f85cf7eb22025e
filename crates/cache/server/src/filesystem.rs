//! Reads the file system's counters from the first bytes of an origin, which show whether it was mounted or written.
//!
//! | file system | counted in its superblock | not detectable |
//! |---|---|---|
//! | ext2, ext3, ext4 | mounts, time of the last mount and of the last write, KiB written, where it was mounted | a mount without any write, for example of read-only media |
//! | xfs | place in the log of the superblock's last write (version 5), free and used inodes, free blocks | when and how often it was mounted: xfs counts neither. Before a clean unmount only the log changes, which is elsewhere |
//! | btrfs | generation: one for each commit; bytes used | when and how often it was mounted |
//!
//! For everything else only the checksum of these bytes shows a change. Layouts: the kernel's `fs/ext4/ext4.h`,
//! `fs/xfs/libxfs/xfs_format.h`, `include/uapi/linux/btrfs_tree.h`.

use serde::{Deserialize, Serialize};

/// Byte offsets of the superblocks.
const EXT_AT: usize = 1024;
const BTRFS_AT: usize = 64 << 10;
/// Longest name or value that is kept, in characters, because an origin may contain anything.
const VALUE_CHARS_MAX: usize = 64;

/// Maximum number of partitions of an origin whose file systems are described.
pub const FILE_SYSTEMS_MAX: usize = 16;

/// A file system as its superblock describes it. The file systems in the partitions of an origin are combined into one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystem {
    /// `ext4`, `xfs`, ..
    pub kind: String,
    /// Its counters: name and value as text.
    pub counters: Vec<(String, String)>,
}

/// The file system that begins with these bytes, if it is known.
#[must_use]
pub fn recognise(start: &[u8]) -> Option<FileSystem> {
    ext(start).or_else(|| xfs(start)).or_else(|| btrfs(start))
}

/// Combines the file systems in numbered partitions into one; `None` if there are none.
#[must_use]
pub fn in_partitions(parts: impl Iterator<Item = (u32, FileSystem)>) -> Option<FileSystem> {
    let (mut kinds, mut counters) = (Vec::new(), Vec::new());
    for (number, part) in parts {
        kinds.push(format!("{} (partition {number})", part.kind));
        let named = part
            .counters
            .into_iter()
            .map(|(name, value)| (format!("{name} of partition {number}"), value));
        counters.extend(named);
    }
    (!kinds.is_empty()).then(|| FileSystem {
        kind: kinds.join(", "),
        counters,
    })
}

/// Describes the change of an origin as a sentence without a full stop.
#[must_use]
pub fn what_changed(before: Option<&FileSystem>, now: Option<&FileSystem>) -> String {
    match (before, now) {
        (Some(before), Some(now)) if before.kind == now.kind => {
            let changes: Vec<String> = now
                .counters
                .iter()
                .filter_map(|(name, value)| {
                    let (_, old) = before.counters.iter().find(|(other, _)| other == name)?;
                    (old != value).then(|| format!("{name} was {old}, is {value}"))
                })
                .collect();
            if changes.is_empty() {
                format!(
                    "the counters of its {} file system are unchanged, but other bytes differ",
                    now.kind
                )
            } else {
                format!("its {} file system: {}", now.kind, changes.join("; "))
            }
        }
        (Some(before), Some(now)) => format!("it contained {}, and now contains {}", before.kind, now.kind),
        (Some(before), None) => format!(
            "it contained {}, and now contains no known file system",
            before.kind
        ),
        (None, Some(now)) => {
            let values: Vec<String> = now
                .counters
                .iter()
                .map(|(name, value)| format!("{name} {value}"))
                .collect();
            format!("it now contains {}: {}", now.kind, values.join("; "))
        }
        (None, None) => "it contains no known file system".to_owned(),
    }
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn le16(from: &[u8], at: usize) -> Option<u16> {
    bytes(from, at).map(u16::from_le_bytes)
}

fn le32(from: &[u8], at: usize) -> Option<u32> {
    bytes(from, at).map(u32::from_le_bytes)
}

fn le64(from: &[u8], at: usize) -> Option<u64> {
    bytes(from, at).map(u64::from_le_bytes)
}

fn be64(from: &[u8], at: usize) -> Option<u64> {
    bytes(from, at).map(u64::from_be_bytes)
}

/// A zero-terminated text, with control characters replaced, which a terminal might obey.
fn text(from: &[u8]) -> String {
    let end = from.iter().position(|&byte| byte == 0).unwrap_or(from.len());
    String::from_utf8_lossy(&from[..end])
        .chars()
        .take(VALUE_CHARS_MAX)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

fn ext(start: &[u8]) -> Option<FileSystem> {
    let sb = start.get(EXT_AT..EXT_AT + 1024)?;
    if le16(sb, 0x38)? != 0xef53 {
        return None;
    }
    let (compatible, incompatible) = (le32(sb, 0x5c)?, le32(sb, 0x60)?);
    let kind = match (incompatible & 0x40 != 0, compatible & 0x4 != 0) {
        (true, _) => "ext4",
        (false, true) => "ext3",
        (false, false) => "ext2",
    };
    let time = |low: usize, high: usize| {
        let seconds = u64::from(le32(sb, low)?) | u64::from(*sb.get(high)?) << 32;
        Some(if seconds == 0 {
            "never".to_owned()
        } else {
            utc(seconds)
        })
    };
    let mut counters = vec![
        ("mount count".to_owned(), le16(sb, 0x34)?.to_string()),
        ("last mount".to_owned(), time(0x2c, 0x275)?),
        ("last write".to_owned(), time(0x30, 0x274)?),
        ("KiB written".to_owned(), le64(sb, 0x178)?.to_string()),
    ];
    let place = text(&sb[0x88..0x88 + 64]);
    if !place.is_empty() {
        counters.push(("last mounted on".to_owned(), place));
    }
    Some(FileSystem {
        kind: kind.to_owned(),
        counters,
    })
}

fn xfs(start: &[u8]) -> Option<FileSystem> {
    if start.get(..4)? != b"XFSB" {
        return None;
    }
    let mut counters = vec![
        ("inodes".to_owned(), be64(start, 128)?.to_string()),
        ("free inodes".to_owned(), be64(start, 136)?.to_string()),
        ("free blocks".to_owned(), be64(start, 144)?.to_string()),
    ];
    let version = u16::from_be_bytes(bytes(start, 100)?) & 0xf;
    if version >= 5 {
        let place = be64(start, 240)?;
        counters.push((
            "last write of its superblock".to_owned(),
            format!("cycle {} block {} of its log", place >> 32, place as u32),
        ));
    }
    Some(FileSystem {
        kind: "xfs".to_owned(),
        counters,
    })
}

fn btrfs(start: &[u8]) -> Option<FileSystem> {
    let sb = start.get(BTRFS_AT..BTRFS_AT + 4096)?;
    if &sb[0x40..0x48] != b"_BHRfS_M" {
        return None;
    }
    Some(FileSystem {
        kind: "btrfs".to_owned(),
        counters: vec![
            ("generation".to_owned(), le64(sb, 0x48)?.to_string()),
            ("bytes used".to_owned(), le64(sb, 0x78)?.to_string()),
        ],
    })
}

/// Seconds since 1970 as a date and a time, `2026-01-31 12:00:00 UTC`. Days become a date by Howard Hinnant's
/// `civil_from_days`.
#[must_use]
pub fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hours, minutes, seconds) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 128 << 10;

    fn ext4(mounts: u16, written: u32) -> Vec<u8> {
        let mut start = vec![0; LEN];
        let sb = &mut start[EXT_AT..];
        sb[0x38..0x3a].copy_from_slice(&0xef53u16.to_le_bytes());
        sb[0x60] = 0x40;
        sb[0x34..0x36].copy_from_slice(&mounts.to_le_bytes());
        sb[0x30..0x34].copy_from_slice(&written.to_le_bytes());
        sb[0x88..0x8f].copy_from_slice(b"/mnt/\x1bx");
        start
    }

    #[test]
    fn a_mount_of_ext4_shows_in_its_counters() {
        let before = recognise(&ext4(3, 1_700_000_000)).unwrap();
        let now = recognise(&ext4(4, 1_700_000_061)).unwrap();
        assert_eq!(before.kind, "ext4");
        assert_eq!(
            what_changed(Some(&before), Some(&now)),
            "its ext4 file system: mount count was 3, is 4; last write was 2023-11-14 22:13:20 UTC, is 2023-11-14 \
             22:14:21 UTC"
        );
        let alone = what_changed(None, Some(&now));
        assert!(
            alone.contains("it now contains ext4: mount count 4; last mount never"),
            "{alone}"
        );
        assert!(alone.contains("last mounted on /mnt/?x"), "{alone}");
        assert!(what_changed(Some(&now), Some(&now)).contains("counters of its"));
    }

    #[test]
    fn xfs_reports_its_log_position() {
        let mut start = vec![0; LEN];
        start[..4].copy_from_slice(b"XFSB");
        start[100..102].copy_from_slice(&0xb4a5u16.to_be_bytes());
        let before = recognise(&start).unwrap();
        start[240..248].copy_from_slice(&(1u64 << 32 | 42).to_be_bytes());
        let now = recognise(&start).unwrap();
        assert_eq!(
            what_changed(Some(&before), Some(&now)),
            "its xfs file system: last write of its superblock was cycle 0 block 0 of its log, is cycle 1 block 42 of \
             its log"
        );
    }

    #[test]
    fn btrfs_reports_its_generation() {
        let mut start = vec![0; LEN];
        start[BTRFS_AT + 0x40..BTRFS_AT + 0x48].copy_from_slice(b"_BHRfS_M");
        start[BTRFS_AT + 0x48] = 9;
        let before = recognise(&start).unwrap();
        start[BTRFS_AT + 0x48] = 12;
        let now = recognise(&start).unwrap();
        assert_eq!(
            what_changed(Some(&before), Some(&now)),
            "its btrfs file system: generation was 9, is 12"
        );
        let other = recognise(&ext4(1, 1));
        assert_eq!(
            what_changed(Some(&before), other.as_ref()),
            "it contained btrfs, and now contains ext4"
        );
        assert!(what_changed(Some(&before), None).contains("now contains no known file system"));
    }

    #[test]
    fn a_mount_of_a_partition_names_the_partition() {
        let of = |mounts| {
            let parts = [(1, ext4(7, 1)), (5, ext4(mounts, 1))];
            in_partitions(
                parts
                    .iter()
                    .map(|(number, start)| (*number, recognise(start).unwrap())),
            )
        };
        assert_eq!(
            what_changed(of(3).as_ref(), of(4).as_ref()),
            "its ext4 (partition 1), ext4 (partition 5) file system: mount count of partition 5 was 3, is 4"
        );
        assert_eq!(in_partitions(std::iter::empty()), None);
    }

    #[test]
    fn unknown_and_short_origins_have_no_file_system() {
        for len in [0, 4, 512, 1024, 2047, 4096, BTRFS_AT + 100, LEN] {
            assert_eq!(recognise(&vec![0; len]), None);
            // A magic without the rest of its superblock.
            let mut start = vec![0; len];
            if let Some(place) = start.get_mut(..4) {
                place.copy_from_slice(b"XFSB");
                let _ = recognise(&start);
            }
            let mut cut = ext4(1, 1);
            cut.truncate(len);
            assert_eq!(recognise(&cut).is_some(), len >= 2048, "{len}");
        }
    }

    #[test]
    fn times_are_formatted_as_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(4_107_542_399), "2100-02-28 23:59:59 UTC");
        assert_eq!(utc(4_107_542_400), "2100-03-01 00:00:00 UTC");
    }
}
