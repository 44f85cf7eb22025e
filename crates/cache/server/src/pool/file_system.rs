//! File systems on which volumes cannot share a file.

use std::os::fd::AsFd;
use std::path::Path;

use crate::error::HostError;

/// Magic numbers (statfs(2)) of network file systems: a server keeps their locks, or nobody does, so a lock may be lost while
/// requests are in flight, or another host may not see it.
const REFUSED: [(u32, &str); 8] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB 2"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x0bd0_0bd0, "Lustre"),
];

/// The name of a file system that is refused.
fn refused(magic: u32) -> Option<&'static str> {
    let found = REFUSED.iter().find(|(number, _)| *number == magic);
    found.map(|(_, name)| *name)
}

/// Refuses a file on a file system whose locks do not keep processes apart.
///
/// # Errors
/// It is on one.
pub(super) fn refuse_without_locks(file: impl AsFd, path: &Path) -> Result<(), HostError> {
    // The field has another type on each machine; the numbers have 32 bits.
    let magic = rustix::fs::fstatfs(file)?.f_type as u32;
    match refused(magic) {
        None => Ok(()),
        Some(name) => Err(format!(
            "{} is on {name}: expected a block device or a file of a local file system, because the processes of volumes keep apart by \
             locks",
            path.display()
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_refused_by_name() {
        assert_eq!(refused(0x6969), Some("NFS"));
        // ext4, XFS, tmpfs.
        assert_eq!([0xef53, 0x5846_5342, 0x0102_1994].map(refused), [None; 3]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ssd");
        let file = std::fs::File::create(&path).unwrap();
        refuse_without_locks(&file, &path).expect("a local file system");
    }
}
