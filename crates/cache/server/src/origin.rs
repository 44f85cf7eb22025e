//! The origin of a cache: checks that it is the right one, and reads its file systems.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use flaz_control::shell::quoted;
use flaz_device::Device;
use flaz_engine::cache::CacheError;
use flaz_engine::fingerprint::{FINGERPRINT_BYTES, partitions, read_start};
use flaz_engine::format::superblock::Superblock;
use flaz_runtime::Runtime;
use flaz_runtime::file::{FileDevice, Hold, Identity, OpenError, OpenMode};

use crate::block_device::refuse_on_waiting;
use crate::device::HostDevice;
use crate::error::HostError;
use crate::filesystem::{FILE_SYSTEMS_MAX, FileSystem, in_partitions, recognise, what_changed};
use crate::safety;
use crate::spec::ServeSpec;

/// An open origin.
pub(crate) struct Origin {
    pub(crate) file: FileDevice,
    /// Why it cannot be written, if that is not the user's wish: then it is open for reading only.
    pub(crate) protection: Option<String>,
}

/// Opens the origin and checks that it belongs to the cache.
pub(crate) fn open_origin(
    spec: &ServeSpec,
    path: &Path,
    superblock: &mut Superblock,
) -> Result<Origin, HostError> {
    refuse_used(path)?;
    // Dirty blocks are written back even if clients may only read.
    let Origin {
        file: origin,
        protection,
    } = open(path, spec.read_only && !superblock.dirty)?;
    // Check the identity before the size: the size of another device means nothing.
    let identity = origin.identity();
    warn_if_weak(&origin);
    if identity.id != superblock.origin_identity {
        if !spec.discard_cache {
            return Err(another(&origin, superblock));
        }
        superblock.origin_identity.clone_from(&identity.id);
        superblock.origin_path = path.display().to_string();
    }
    refuse_smaller(&origin, superblock)?;
    let expected = superblock.geometry.origin_len;
    if origin.len() > expected {
        tracing::warn!(
            "origin {} has grown from {expected} to {} bytes: only the first {expected} bytes are served; \
             serve all of it with `flaz volume resize {}`",
            path.display(),
            origin.len(),
            quoted(&spec.cache)
        );
    }
    if let Some(why) = &protection {
        let discards_dirty = spec.discard_cache && spec.discard_dirty;
        if superblock.dirty && !discards_dirty && !spec.read_only {
            return Err(protected(path, why));
        }
        tracing::warn!(
            "origin {} is read-only ({why}): clients get a read-only device",
            path.display()
        );
    }
    Ok(Origin {
        file: origin,
        protection,
    })
}

/// Refuses an origin that is in use without the cache, or that cannot be reached.
///
/// # Errors
/// The user.
pub(crate) fn refuse_used(path: &Path) -> Result<(), HostError> {
    refuse_on_waiting("the origin", path, "specify another path of it with --origin")?;
    match safety::final_uses_text(path) {
        None => Ok(()),
        Some(uses) => Err(format!(
            "origin {} is {uses}: writes to it bypass the cache; unmount it first, and mount the device that \
             flaz serves instead",
            path.display()
        )
        .into()),
    }
}

/// Refuses an origin with another identity.
///
/// # Errors
/// What was expected and found.
pub(crate) fn refuse_other(origin: &FileDevice, superblock: &Superblock) -> Result<(), HostError> {
    match origin.identity().id == superblock.origin_identity {
        true => Ok(()),
        false => Err(another(origin, superblock)),
    }
}

/// Refuses an origin that has shrunk.
///
/// # Errors
/// What was expected and found.
pub(crate) fn refuse_smaller(origin: &FileDevice, superblock: &Superblock) -> Result<(), HostError> {
    let expected = superblock.geometry.origin_len;
    if origin.len() >= expected {
        return Ok(());
    }
    Err(format!(
        "origin {} is smaller than when the cache was created: expected {expected} bytes, found {}; {}",
        origin.path().display(),
        origin.len(),
        if superblock.dirty {
            "restore its size: the cache may contain dirty blocks for the missing part"
        } else {
            "restore its size, or create the cache again (a volume of a shared device: remove it and add it again)"
        }
    )
    .into())
}

/// Refuses an origin that dirty blocks cannot be written to.
///
/// # Errors
/// Why it is protected.
pub(crate) fn refuse_protected(path: &Path, superblock: &Superblock) -> Result<(), HostError> {
    match protection_of(path).filter(|_| superblock.dirty) {
        Some(why) => Err(protected(path, &why)),
        None => Ok(()),
    }
}

/// The refusal of a read-only origin of a cache with dirty blocks.
fn protected(path: &Path, why: &str) -> HostError {
    format!(
        "origin {} is read-only ({why}), and the cache holds, or may hold, dirty blocks (writes that have not \
         reached the origin): make the origin writable, or discard those writes with `flaz serve \
         --discard-cache --discard-dirty`",
        path.display()
    )
    .into()
}

/// The refusal of an origin with another identity.
pub(crate) fn another(found: &FileDevice, superblock: &Superblock) -> HostError {
    let identity = found.identity();
    let grown = match Identity::may_have_grown(&superblock.origin_identity, &identity.id) {
        true => "if it is the same disk and has grown, take it over with `flaz volume resize`; otherwise ",
        false => "",
    };
    format!(
        "{} is not the origin that this cache was created for: expected {} ({}), found {} ({}); {grown}specify the right \
         origin with --origin, or discard the cached data with `flaz serve --discard-cache`",
        found.path().display(),
        superblock.origin_path,
        superblock.origin_identity,
        identity.description,
        identity.id
    )
    .into()
}

/// Opens the origin for reading and writing, or for reading only if it is protected or `read_only`.
fn open(path: &Path, read_only: bool) -> Result<Origin, HostError> {
    let open = |read_only| {
        let mode = OpenMode {
            read_only,
            hold: Hold::Exclusive,
            buffered: false,
        };
        FileDevice::open(path, mode)
    };
    let mut protection = match read_only {
        true => None,
        false => protection_of(path),
    };
    let mut opened = open(read_only || protection.is_some());
    if let Err(OpenError::Io { source, .. }) = &opened
        && !read_only
        && protection.is_none()
        && is_protected(source)
    {
        protection = Some(source.to_string());
        opened = open(true);
    }
    let file = opened.map_err(|error| {
        let way_out = match &error {
            OpenError::Io { source, .. } if is_protected(source) => {
                "flaz needs at least the permission to read it"
            }
            OpenError::Io { .. } => "specify its current path with --origin, or in its configuration",
            _ => "nothing was changed",
        };
        format!("origin: {error} ({way_out})")
    })?;
    Ok(Origin { file, protection })
}

/// Why a file or device must not be written although root can open it for that.
fn protection_of(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    if metadata.is_file() {
        let mode = metadata.mode() & 0o7777;
        return (mode & 0o222 == 0).then(|| format!("its mode is {mode:04o}"));
    }
    // Of a block device the kernel accepts an open for writing, and refuses each write.
    let is_protected =
        metadata.file_type().is_block_device() && is_write_protected(Path::new("/sys"), metadata.rdev());
    is_protected.then(|| "the block device is write-protected".to_owned())
}

/// Whether sysfs says that a block device is read-only.
fn is_write_protected(sys: &Path, device: u64) -> bool {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let flag = std::fs::read_to_string(sys.join("dev/block").join(number).join("ro"));
    flag.is_ok_and(|flag| flag.trim() == "1")
}

fn is_protected(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
}

/// Warns if the identity of the origin is weak, so that another device could be mistaken for it.
pub(crate) fn warn_if_weak(origin: &FileDevice) {
    if let Some(why) = origin.identity().weak {
        tracing::warn!(
            "origin {} has no reliable identity: {why}; if another device takes its place, flaz does not \
             notice and serves cached data of the wrong device",
            origin.path().display()
        );
    }
}

/// The known file systems on the origin and in its partitions, combined into one, if they can be read.
pub(crate) async fn file_system(origin: &HostDevice) -> Option<FileSystem> {
    let mut known = Vec::new();
    for part in partitions(origin).await.unwrap_or_default() {
        if known.len() < FILE_SYSTEMS_MAX
            && let Some(found) = file_system_at(origin, part.start).await
        {
            known.push((part.number, found));
        }
    }
    match in_partitions(known.into_iter()) {
        Some(found) => Some(found),
        None => file_system_at(origin, 0).await,
    }
}

async fn file_system_at(origin: &HostDevice, start: u64) -> Option<FileSystem> {
    recognise(&read_start(origin, start, FINGERPRINT_BYTES).await.ok()?)
}

/// Adds the change of the origin's file system to the error about a changed origin.
pub(crate) fn explain(
    error: CacheError,
    runtime: &Runtime,
    origin: &HostDevice,
    before: Option<&FileSystem>,
) -> HostError {
    if !matches!(error, CacheError::OriginChanged { .. }) {
        return error.into();
    }
    let now = runtime.block_on(file_system(origin));
    format!("{error}; {}", what_changed(before, now.as_ref())).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_write_protected_block_device_is_recognised() {
        let sys = tempfile::tempdir().unwrap();
        let directory = sys.path().join("dev/block/8:17");
        std::fs::create_dir_all(&directory).unwrap();
        let device = rustix::fs::makedev(8, 17);
        assert!(!is_write_protected(sys.path(), device), "nothing is known");
        for (flag, expected) in [("0\n", false), ("1\n", true)] {
            std::fs::write(directory.join("ro"), flag).unwrap();
            assert_eq!(is_write_protected(sys.path(), device), expected);
        }
    }

    /// Root can write to it all the same.
    #[test]
    fn an_origin_without_write_permission_is_opened_for_reading() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("origin");
        std::fs::write(&path, [7; 4096]).unwrap();
        for (mode, expected) in [(0o600, None), (0o444, Some("its mode is 0444".to_owned()))] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(open(&path, false).unwrap().protection, expected);
            assert_eq!(
                open(&path, true).unwrap().protection,
                None,
                "it is the user's wish"
            );
        }
    }
}
