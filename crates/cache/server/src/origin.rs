//! The origin of a cache: checks that it is the right one, and reads its file systems.

use flaz_device::Device;
use flaz_engine::cache::CacheError;
use flaz_engine::fingerprint::{FINGERPRINT_BYTES, partitions, read_start};
use flaz_engine::format::superblock::Superblock;
use flaz_runtime::Runtime;
use flaz_runtime::file::{FileDevice, Hold, OpenError, OpenMode};

use crate::block_device::refuse_on_waiting;
use crate::device::HostDevice;
use crate::error::HostError;
use crate::filesystem::{FILE_SYSTEMS_MAX, FileSystem, in_partitions, recognise, what_changed};
use crate::safety;
use crate::spec::ServeSpec;

/// Opens the origin and checks that it belongs to the cache.
pub(crate) fn open_origin(
    spec: &ServeSpec,
    path: &std::path::Path,
    superblock: &mut Superblock,
) -> Result<FileDevice, HostError> {
    refuse_on_waiting("the origin", path, "specify another path of it with --origin")?;
    if let Some(uses) = safety::final_uses_text(path) {
        return Err(format!(
            "origin {} is {uses}: writes to it bypass the cache; unmount it first, and mount the device that \
             flaz serves instead",
            path.display()
        )
        .into());
    }
    let origin = open(path, spec.read_only)?;
    // Check the identity before the size: the size of another device means nothing.
    let identity = origin.identity();
    warn_if_weak(&origin);
    if identity.id != superblock.origin_identity {
        if !spec.discard_cache {
            return Err(format!(
                "{} is not the origin that this cache was created for: expected {} ({}), found {} ({}); \
                 specify the right origin with --origin, or discard the cached data with `flaz serve \
                 --discard-cache`",
                path.display(),
                superblock.origin_path,
                superblock.origin_identity,
                identity.description,
                identity.id
            )
            .into());
        }
        superblock.origin_identity.clone_from(&identity.id);
        superblock.origin_path = path.display().to_string();
    }
    let expected = superblock.geometry.origin_len;
    if origin.len() < expected {
        return Err(format!(
            "origin {} is smaller than when the cache was created: expected {expected} bytes, found {}; {}",
            path.display(),
            origin.len(),
            if superblock.dirty {
                "restore its size: the cache may contain dirty blocks for the missing part"
            } else {
                "restore its size, or recreate the cache"
            }
        )
        .into());
    }
    if origin.len() > expected {
        tracing::warn!(
            "origin {} has grown from {expected} to {} bytes: only the first {expected} bytes are served; \
             recreate the cache to serve all of it",
            path.display(),
            origin.len()
        );
    }
    Ok(origin)
}

fn open(path: &std::path::Path, read_only: bool) -> Result<FileDevice, HostError> {
    let mode = OpenMode {
        read_only,
        hold: Hold::Exclusive,
        buffered: false,
    };
    FileDevice::open(path, mode).map_err(|error| {
        let way_out = match &error {
            OpenError::Io { source, .. } if is_protected(source) && !read_only => {
                "use --read-only if it need not be written"
            }
            OpenError::Io { .. } => "specify its current path with --origin",
            _ => "nothing was changed",
        };
        format!("origin: {error} ({way_out})").into()
    })
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
