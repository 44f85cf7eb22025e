//! Determines whether direct I/O is supported, and its alignment.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use flaz_device::IoBuf;
use rustix::fs::OFlags;

/// Alignments that are tried for direct I/O.
pub(super) const ALIGNMENTS_BYTES: [u64; 2] = [512, 4096];

/// Alignment of direct I/O on a file or device in bytes; `None` if it is not supported.
pub(super) fn alignment_of(path: &Path) -> io::Result<Option<u64>> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed());
    let refused = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if refused(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    for alignment in ALIGNMENTS_BYTES {
        let mut buffer = IoBuf::new(alignment as usize);
        match file.read_at(&mut buffer, alignment) {
            Ok(_) => return Ok(Some(alignment)),
            Err(error) if refused(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
