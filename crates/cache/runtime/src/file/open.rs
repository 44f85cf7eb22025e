//! Opens a file or device: checks its type, probes for O_DIRECT and the alignment that it needs, and takes the lock.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use flaz_device::IoBuf;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::handle::{FileDevice, Inner};
use super::identity::Identity;
use super::kind::Kind;
use super::size::bytes_of;
use super::{lock, stable};

/// Smallest sector.
const SECTOR: u32 = 512;
/// Maximum alignment that buffers satisfy.
const ALIGNMENT_MAX: u32 = flaz_device::buf::ALIGNMENT as u32;

/// How to open a file or device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// For reading only: writes will fail.
    pub read_only: bool,
    /// Which other users are excluded.
    pub hold: Hold,
    /// Through the page cache even if O_DIRECT works.
    pub buffered: bool,
}

/// How an open device excludes others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// Not at all.
    #[default]
    None,
    /// The caller excludes other processes by another descriptor, for example one on which it has checked the contents.
    /// Only the requests of a process that has ended can be left: waits for them, and makes later opens wait for the
    /// requests of this process.
    Claimed,
    /// As `Claimed`, for a part of a file of which other processes use other parts: the part is named by a byte, which may lie beyond
    /// the end.
    ClaimedPart(u64),
    /// By an advisory lock (shared among readers), and O_EXCL on block devices, which fails if the device is mounted or
    /// used by another driver. Waits for requests of a process that has ended.
    Exclusive,
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The failed action.
        action: &'static str,
        /// The file or device.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is not a regular file or a block device.
    #[error("{} is a {found}: expected a regular file or a block device", path.display())]
    WrongType {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: &'static str,
    },
    /// Another process has the lock.
    #[error("{} is locked by {holder}: stop that first", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
        /// The holder, as far as it is visible.
        holder: String,
    },
    /// Requests of a process that has ended are still in flight.
    #[error("{} still has requests of a flaz process that has ended: try again when they have completed, or check the device", path.display())]
    Lingering {
        /// The file.
        path: PathBuf,
    },
    /// The block device is in use.
    #[error("{} is in use: {user}: free it first", path.display())]
    InUse {
        /// The device.
        path: PathBuf,
        /// The user, as far as it is visible.
        user: String,
    },
    /// The device's sectors are larger than flaz can handle.
    #[error("{} requires transfers aligned to {alignment} bytes: the maximum supported is {ALIGNMENT_MAX}", path.display())]
    Alignment {
        /// The device.
        path: PathBuf,
        /// The required alignment in bytes.
        alignment: u32,
    },
}

fn failed<'a>(action: &'static str, path: &'a Path) -> impl Fn(Errno) -> OpenError + 'a {
    move |errno| OpenError::Io {
        action,
        path: path.into(),
        source: errno.into(),
    }
}

impl FileDevice {
    /// Opens a regular file or a block device.
    ///
    /// # Errors
    /// [`OpenError`] says what was found and what to do.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self, OpenError> {
        open(path.as_ref(), mode)
    }
}

fn open(path: &Path, mode: OpenMode) -> Result<FileDevice, OpenError> {
    // Check the type before opening, because opening a pipe waits and opening a tape moves it.
    let stat = rustix::fs::stat(path).map_err(failed("open", path))?;
    let kind = kind_of(FileType::from_raw_mode(stat.st_mode)).map_err(|found| OpenError::WrongType {
        path: path.into(),
        found,
    })?;
    let (fd, direct) = open_descriptor(path, mode, kind)?;
    let opened = rustix::fs::fstat(&fd).map_err(failed("examine", path))?;
    if FileType::from_raw_mode(opened.st_mode) != FileType::from_raw_mode(stat.st_mode) {
        return Err(OpenError::WrongType {
            path: path.into(),
            found: "file that was replaced during the checks",
        });
    }
    let (device, inode) = (opened.st_dev, opened.st_ino);
    match mode.hold {
        Hold::None => {}
        Hold::Claimed | Hold::ClaimedPart(_) => {
            let byte = match mode.hold {
                Hold::ClaimedPart(byte) => byte,
                _ => 0,
            };
            let outlasted = lock::outlast_requests(&fd, byte, mode.read_only, device, inode);
            let mut is_free = outlasted.map_err(failed("lock", path))?;
            if byte != 0 {
                // Whoever claims the whole file waits for the requests to all parts.
                let whole = lock::outlast_requests(&fd, 0, true, device, inode);
                is_free &= whole.map_err(failed("lock", path))?;
            }
            if !is_free {
                return Err(OpenError::Lingering { path: path.into() });
            }
        }
        Hold::Exclusive => {
            if !lock::take_patiently(&fd, mode.read_only, device, inode).map_err(failed("lock", path))? {
                return Err(OpenError::Locked {
                    path: path.into(),
                    holder: lock::holders(device, inode),
                });
            }
        }
    }
    let bytes = bytes_of(&fd, kind).map_err(failed("determine the size of", path))?;
    let (alignment, direct) = match (direct, kind) {
        (Some(alignment), _) => (alignment, true),
        (None, Kind::BlockDevice) => (
            sector_size(&fd).map_err(failed("determine the sector size of", path))?,
            false,
        ),
        (None, Kind::File) => (SECTOR, false),
    };
    if alignment > ALIGNMENT_MAX {
        return Err(OpenError::Alignment {
            path: path.into(),
            alignment,
        });
    }
    let len = usable_len(path, bytes, alignment);
    let identity = Identity::of(&fd, kind, path, bytes);
    let dsync_honoured = stable::dsync_honoured(&fd, kind);
    let has_volatile_cache = !direct || stable::has_volatile_cache(&fd, kind);
    let fua_stands_alone = direct && dsync_honoured && stable::stands_alone(&fd, kind);
    let inner = Inner {
        fd,
        path: path.into(),
        kind,
        len: AtomicU64::new(len),
        alignment,
        direct,
        dsync_honoured,
        fua_stands_alone,
        has_volatile_cache,
        identity,
        no_discard: AtomicBool::new(false),
        is_sparse: AtomicBool::new(false),
        no_unmap: AtomicBool::new(false),
        no_zero: AtomicBool::new(false),
    };
    Ok(FileDevice {
        inner: Arc::new(inner),
    })
}

/// The kind of a file, or the name of its type if it can be no device.
fn kind_of(file_type: FileType) -> Result<Kind, &'static str> {
    match file_type {
        FileType::RegularFile => Ok(Kind::File),
        FileType::BlockDevice => Ok(Kind::BlockDevice),
        other => Err(type_name(other)),
    }
}

/// The length that can be used of `bytes` bytes, with a warning if the end cannot.
pub(super) fn usable_len(path: &Path, bytes: u64, alignment: u32) -> u64 {
    let len = bytes - bytes % u64::from(alignment);
    if len != bytes {
        tracing::warn!(
            path = %path.display(),
            bytes,
            used = len,
            "the size is not a multiple of {alignment} bytes: the end is not used, {} byte{}",
            bytes - len,
            if bytes - len == 1 { "" } else { "s" }
        );
    }
    len
}

/// Opens with O_DIRECT if that works: then the second value is the required alignment.
fn open_descriptor(path: &Path, mode: OpenMode, kind: Kind) -> Result<(OwnedFd, Option<u32>), OpenError> {
    let access = if mode.read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    let mut flags = access | OFlags::CLOEXEC;
    if kind == Kind::BlockDevice && mode.hold == Hold::Exclusive {
        flags |= OFlags::EXCL;
    }
    let open = |flags| {
        rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match (errno, kind) {
            (Errno::BUSY, Kind::BlockDevice) => OpenError::InUse {
                path: path.into(),
                user: device_users(path),
            },
            _ => failed("open", path)(errno),
        })
    };
    if mode.buffered {
        return Ok((open(flags)?, None));
    }
    let reason = match open(flags | OFlags::DIRECT) {
        Ok(fd) => match direct_alignment(&fd, kind).map_err(failed("read", path))? {
            Some(alignment) => return Ok((fd, Some(alignment))),
            None => "a direct read of its first block failed",
        },
        Err(OpenError::Io { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
            "its file system does not support O_DIRECT"
        }
        Err(error) => return Err(error),
    };
    tracing::debug!(path = %path.display(), "no direct I/O: {reason}");
    Ok((open(flags)?, None))
}

/// The alignment for O_DIRECT in bytes: as the system reports it, confirmed by a read.
fn direct_alignment(fd: &OwnedFd, kind: Kind) -> rustix::io::Result<Option<u32>> {
    let said = match kind {
        Kind::BlockDevice => Some(sector_size(fd)?),
        Kind::File => stated_alignment(fd),
    };
    if said == Some(0) {
        return Ok(None);
    }
    let least = said.unwrap_or(SECTOR).max(SECTOR);
    let mut alignment = least;
    loop {
        if alignment > ALIGNMENT_MAX {
            // The caller refuses a block device that needs more, because there is no other way to use it.
            return Ok((least > ALIGNMENT_MAX).then_some(least));
        }
        let mut probe = IoBuf::new(alignment as usize);
        match rustix::io::pread(fd, &mut probe[..], 0) {
            Ok(_) => return Ok(Some(alignment)),
            Err(Errno::INVAL) => alignment *= 8, // 512, 4096
            Err(error) => return Err(error),
        }
    }
}

fn sector_size(fd: &OwnedFd) -> rustix::io::Result<u32> {
    Ok(rustix::fs::ioctl_blksszget(fd)?.max(SECTOR))
}

/// The `statx` information about direct I/O (Linux 6.1 and later): `Some(0)` if it is not possible.
fn stated_alignment(fd: &OwnedFd) -> Option<u32> {
    // SAFETY: all zeroes is a valid `statx` result.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, the path is an empty C string, and `stat` has room for the result.
    let result = unsafe {
        libc::statx(
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut stat,
        )
    };
    (result == 0 && stat.stx_mask & libc::STATX_DIOALIGN != 0).then_some(stat.stx_dio_offset_align)
}

fn device_users(path: &Path) -> String {
    let number = rustix::fs::stat(path).map_or(0, |stat| stat.st_rdev);
    lock::users(rustix::fs::major(number), rustix::fs::minor(number))
}

fn type_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ => "special file",
    }
}
