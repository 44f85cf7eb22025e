//! The host record: what a host remembers about a cache apart from the cache device.
//!
//! A cache device that vanished may come back, and a cache device may be restored from an old copy. Such a device looks
//! consistent, but its blocks have been overwritten on the origin since. No mark on the device can show this; a small
//! record elsewhere can. It holds the last generation of the superblock, and whether the cache was fenced without the
//! device's knowledge.
//!
//! Invariant: at an opening and at a stop the device is written before the record; the record is written before the first
//! origin write that the device does not know of. So a device that is behind its record is an old one.
//!
//! | the record says | no dirty blocks | there may be dirty blocks |
//! |---|---|---|
//! | fenced | nothing on the device is used | dirty blocks are used, because the origin has nothing newer; clean ones are not |
//! | the device is older than it was | nothing on the device is used | refused: acknowledged writes may be missing |

use std::num::NonZeroU32;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use uuid::Uuid;

use crate::format::superblock::{State, Superblock};
use crate::units::Epoch;

/// The fingerprint of an origin, as it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedOrigin {
    /// [`Fingerprint`](crate::fingerprint::Fingerprint) of the first `len` bytes.
    pub fingerprint: NonZeroU32,
    /// Bytes of the origin that were served then. The origin may have grown since.
    pub len: u64,
}

/// The last state that the host recorded of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostRecord {
    /// Generation of the superblock.
    pub generation: u64,
    /// Epoch of that superblock.
    pub epoch: Epoch,
    /// The cache device failed, and the clean blocks that it holds must not be used.
    pub fenced: bool,
    /// The cache may hold dirty blocks.
    pub dirty: bool,
    /// The fingerprint of the origin, as far as that opening had recorded it: see [`HostRecords::note_origin`].
    pub origin: Option<NotedOrigin>,
    /// `origin` is the fingerprint at the stop, clean or not: nothing is written through the cache until the next opening.
    pub stopped: bool,
}

impl NotedOrigin {
    /// The fingerprint that was taken last of the origin of an open cache.
    #[must_use]
    pub fn of(superblock: &Superblock) -> Option<Self> {
        let len = superblock.geometry.origin_len;
        superblock
            .origin_fingerprint
            .map(|fingerprint| Self { fingerprint, len })
    }
}

impl HostRecord {
    /// The record of a superblock that has been written and is trusted.
    #[must_use]
    pub fn of(superblock: &Superblock) -> Self {
        Self {
            generation: superblock.generation,
            epoch: superblock.epoch,
            fenced: false,
            dirty: superblock.dirty,
            origin: NotedOrigin::of(superblock),
            stopped: superblock.state != State::Open,
        }
    }
}

/// Another cache of the same origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherCache {
    /// Its UUID.
    pub uuid: Uuid,
    /// The path from which it was served last, if the host knows it: for messages.
    pub path: Option<String>,
    /// It may hold dirty blocks.
    pub dirty: bool,
}

impl std::fmt::Display for OtherCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}, last served from {path}", self.uuid),
            None => self.uuid.fmt(f),
        }
    }
}

/// Where host records are kept: they survive the cache device, the process and power loss. No call waits without a limit.
/// A call that returns false may have written the record all the same.
pub trait HostRecords: 'static {
    /// The record of this cache, if there is one.
    fn recall(&self) -> LocalBoxFuture<'_, Option<HostRecord>>;

    /// Writes the record. Before shards are started, and after they have stopped. False: not written.
    fn note(&self, record: HostRecord) -> LocalBoxFuture<'_, bool>;

    /// Records whether the cache may hold dirty blocks from now on, and the generation of the superblock that says so. False:
    /// not written.
    fn note_dirty(&self, dirty: bool, generation: u64) -> LocalBoxFuture<'_, bool>;

    /// Records the current fingerprint of the origin. The call with the highest `ticket` wins, regardless of the order in
    /// which calls arrive: each shard makes its own. False: not written.
    fn note_origin(&self, ticket: u64, origin: NotedOrigin) -> LocalBoxFuture<'_, bool>;

    /// Records that the shards have stopped although the superblock still says *open*, and the fingerprint of the origin at
    /// that time, if known. False: not written.
    fn note_stopped(&self, origin: Option<NotedOrigin>) -> LocalBoxFuture<'_, bool>;

    /// Records that the clean blocks of the device must never be used again. False: not written.
    fn note_fenced(&self) -> LocalBoxFuture<'_, bool>;

    /// The cache through which the origin of this identity was served last, if it was another one.
    fn other_cache(&self, _origin_identity: &str) -> LocalBoxFuture<'_, Option<OtherCache>> {
        async { None }.boxed_local()
    }

    /// Records that the origin of this identity is served through this cache. False: not written.
    fn note_cache_of(&self, _origin_identity: &str) -> LocalBoxFuture<'_, bool> {
        async { true }.boxed_local()
    }
}
