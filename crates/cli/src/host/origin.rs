//! The origin of a cache: whether it is the one that the cache belongs to, and how far the cache can be believed about it.

use flaz_device::Device;
use flaz_device::file::{FileDevice, OpenError, OpenMode};
use flaz_device::rt::Runtime;
use flaz_engine::cache::{Belief, CacheError, believe};
use flaz_engine::fingerprint::{FINGERPRINT_BYTES, partitions, read_start};
use flaz_engine::format::superblock::{State, Superblock};
use flaz_engine::witness::Memory;

use super::HostError;
use super::device::HostDevice;
use super::filesystem::{FILE_SYSTEMS_MAX, FileSystem, in_partitions, recognise, what_changed};
use super::state::StateFile;
use crate::commands::spec::ServeSpec;
use crate::safety;

/// Opens the origin and checks that it is the one that the cache belongs to.
pub(super) fn open_origin(
    spec: &ServeSpec,
    path: &std::path::Path,
    superblock: &mut Superblock,
) -> Result<FileDevice, HostError> {
    let mode = OpenMode {
        read_only: spec.read_only,
        exclusive: true,
        buffered: false,
    };
    if let Some(uses) = safety::final_uses_text(path) {
        return Err(format!(
            "origin {} is {uses}: what is written there does not go through the cache; unmount it first, and mount \
             what flaz serves instead",
            path.display()
        )
        .into());
    }
    let origin = FileDevice::open(path, mode).map_err(|error| {
        let way_out = match &error {
            OpenError::Io { source, .. } if is_protected(source) && !spec.read_only => {
                "if it is to be read alone, serve it with --read-only"
            }
            OpenError::Io { .. } => "give its present place with --origin",
            _ => "nothing was changed",
        };
        format!("origin: {error} ({way_out})")
    })?;
    // First: what another origin's size is says nothing.
    let identity = origin.identity();
    warn_if_weak(&origin);
    if identity.id != superblock.origin_identity {
        if !spec.discard_cache {
            return Err(format!(
                "{} is not the origin that this cache was created for: expected {} ({}), found {} ({}); name the right \
                 one with --origin, or give the cached data up with `flaz serve --discard-cache`",
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
                "make it as large again: the cache may hold writes that it lacks"
            } else {
                "make it as large again, or create the cache anew"
            }
        )
        .into());
    }
    if origin.len() > expected {
        tracing::warn!(
            "origin {} has grown from {expected} to {} bytes: the first {expected} are served; create the cache anew to \
             serve all of it",
            path.display(),
            origin.len()
        );
    }
    Ok(origin)
}

fn is_protected(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
}

/// Says so where another origin could be taken for this one.
pub(super) fn warn_if_weak(origin: &FileDevice) {
    if let Some(why) = origin.identity().weak {
        tracing::warn!(
            "origin {} could be mistaken for another one: {why}; see to it that it is always the same, or its cache may \
             serve the data of another",
            origin.path().display()
        );
    }
}

/// How far the cache device can be believed, by what this host remembers of it and of its origin.
///
/// # Errors
/// Blocks whose latest contents are on no device that is opened: in the part of this cache that cannot be believed, or in
/// another cache of the same origin, unless `spec` gives them up.
pub(super) fn believe_host(
    spec: &ServeSpec,
    superblock: &mut Superblock,
    memory: Option<Memory>,
    state: &StateFile,
) -> Result<Belief, HostError> {
    let belief = believe(superblock, memory)?;
    let last = state.last_cache_of(&superblock.origin_identity);
    let Some(other) = last.filter(|last| *last != superblock.uuid) else {
        return Ok(belief);
    };
    if state.is_dirty(other) && !spec.discard_dirty {
        return Err(format!(
            "the origin lacks writes that another cache ({other}) still holds: expected that one, found {}; serve that \
             cache, or bring them to the origin with flaz detach, or give them up with `flaz serve --discard-cache --discard-dirty`",
            superblock.uuid
        )
        .into());
    }
    if superblock.state == State::Empty {
        return Ok(belief);
    }
    let why = format!(
        "its origin was served through another cache ({other}) after this one: what it holds may be out of date"
    );
    if superblock.dirty {
        return Err(CacheError::DirtyUnreadable { why }.into());
    }
    tracing::error!("the cache starts cold (nothing is lost, hits are): {why}");
    Ok(Belief::Nothing)
}

/// The file systems on the origin and in its partitions, as one, if there are known ones and they can be read.
pub(super) fn file_system(runtime: &Runtime, origin: &HostDevice) -> Option<FileSystem> {
    let read = |start| {
        let bytes = runtime.block_on(read_start(origin, start, FINGERPRINT_BYTES));
        recognise(&bytes.ok()?)
    };
    let parts = runtime.block_on(partitions(origin)).unwrap_or_default();
    let known = parts
        .into_iter()
        .filter_map(|part| Some((part.number, read(part.start)?)));
    in_partitions(known.take(FILE_SYSTEMS_MAX)).or_else(|| read(0))
}

/// Says what happened to an origin that was changed, as far as its file system tells.
pub(super) fn explain(
    error: CacheError,
    runtime: &Runtime,
    origin: &HostDevice,
    state: &StateFile,
) -> HostError {
    if !matches!(error, CacheError::OriginChanged { .. }) {
        return error.into();
    }
    let now = file_system(runtime, origin);
    format!("{error}; {}", what_changed(state.origin().as_ref(), now.as_ref())).into()
}
