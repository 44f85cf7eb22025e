//! Why a cache could not be created, opened or stopped.

use std::ops::RangeInclusive;

use flaz_device::DeviceError;

use super::growth::GrowthError;
use crate::format::FormatError;
use crate::format::geometry::GROWTH_MAX;
use crate::host_record::OtherCache;
use crate::shard::{ImageError, RecoverError};

/// Why a cache could not be created, opened or stopped.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The cache device failed.
    #[error("cache device: {0}")]
    Device(#[from] DeviceError),
    /// Neither superblock slot is valid.
    #[error("{}", no_superblock(first, second))]
    NoSuperblock {
        /// What is wrong with slot 0.
        first: FormatError,
        /// What is wrong with slot 1.
        second: FormatError,
    },
    /// The layout is invalid.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The device is too small for superblocks.
    #[error("the cache device has {found} bytes, but a cache needs at least {expected}")]
    TooSmall {
        /// Bytes needed.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The device's sector size does not match the cache.
    #[error(
        "the cache device has sectors of {found} bytes, but the cache was created for sectors of {expected} bytes: use a device with \
         such sectors, or recreate the cache"
    )]
    Sectors {
        /// Sector size in the superblock.
        expected: u32,
        /// Sector size of the device.
        found: u32,
    },
    /// The origin has shrunk.
    #[error(
        "the origin has {found} bytes, but the cache was created for an origin of {expected} bytes: specify the correct origin, or \
         create the cache again (for a volume of a shared device: remove it and add it again)"
    )]
    OriginTooSmall {
        /// Bytes according to the superblock.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The origin has changed since the cache last served it.
    #[error(
        "the origin has been changed since {since} (its first {bytes} bytes, and those of its partitions, have the \
         fingerprint {found:#010x}, expected {expected:#010x}): cached data may be out of date{}. Never write to an \
         origin while it has a cache",
        if *dirty {
            ", and dirty blocks no longer match the origin; discard everything with `flaz serve --discard-cache --discard-dirty`"
        } else {
            "; start with `flaz serve --discard-cache` to continue with an empty cache"
        }
    )]
    OriginChanged {
        /// How serving ended then.
        since: Served,
        /// The cache may hold dirty blocks.
        dirty: bool,
        /// Bytes compared at the start of the origin and of each partition.
        bytes: u64,
        /// The recorded fingerprint.
        expected: u32,
        /// The current fingerprint.
        found: u32,
    },
    /// The origin cannot be read or flushed.
    #[error("origin: {0}")]
    Origin(#[source] DeviceError),
    /// Write-back needs recovery after a crash.
    #[error(
        "write-back requires a warm start after a crash, otherwise acknowledged writes would be lost with the index: remove \
         --after-crash cold"
    )]
    ColdWriteBack,
    /// The dirty blocks of the cache need recovery after a crash.
    #[error(
        "the cache holds, or may hold, dirty blocks (writes that have not reached the origin), and a crash would lose them \
         with the index: remove --after-crash cold, or write these blocks to the origin first with `flaz flush`"
    )]
    ColdDirty,
    /// Discarding the cache would lose dirty blocks.
    #[error(
        "the cache holds, or may hold, dirty blocks (writes that have not reached the origin): discarding it would lose \
         them. Serve it and run `flaz detach`, or also discard those writes with --discard-dirty"
    )]
    Dirty,
    /// Dirty blocks cannot be found again.
    #[error(
        "the cache may hold dirty blocks (writes that have not reached the origin), and its log cannot be used: {why}; \
         run `flaz check` for details. To serve the origin without those writes, discard them with `flaz serve \
         --discard-cache --discard-dirty`"
    )]
    DirtyUnreadable {
        /// Why the log cannot be used.
        why: Unreadable,
    },
    /// Another cache of the same origin has dirty blocks.
    #[error(
        "the origin lacks writes that another cache ({expected}) still holds: expected that cache, found {found}; serve the other \
         cache, or write its dirty blocks to the origin with `flaz detach`, or discard them with `flaz serve --discard-cache \
         --discard-dirty`"
    )]
    OtherCacheDirty {
        /// The other cache.
        expected: OtherCache,
        /// This cache.
        found: uuid::Uuid,
    },
    /// The index image of a shard could not be written.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The cache device failed while the cache was served.
    #[error("the cache device failed while the cache was served; the next start uses dirty blocks only")]
    Fenced,
    /// The cache cannot have this size.
    #[error(transparent)]
    Resize(#[from] ResizeError),
    /// The origin has not grown as the cache can take it over.
    #[error(transparent)]
    Growth(#[from] GrowthError),
    /// A thread that drives shards does not answer.
    #[error(transparent)]
    Unreachable(#[from] ShardsUnreachable),
}

/// Why the size of a cache was not changed. It is the one it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// The device is smaller than asked for.
    #[error(
        "expected a cache device of at least {expected} bytes, found {found}: enlarge the device first, or choose a smaller size"
    )]
    DeviceTooSmall {
        /// Bytes asked for.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The layout does not permit this size.
    #[error(
        "expected a size of {} to {} ({GROWTH_MAX} times the size at creation), found {}: choose another size, or recreate the \
         cache", sized(*least, true), sized(*most, false), sized(*found, false)
    )]
    Size {
        /// Fewest bytes.
        least: u64,
        /// Most bytes.
        most: u64,
        /// Bytes asked for.
        found: u64,
    },
    /// Another change of the size is under way.
    #[error(
        "the cache is already shrinking: wait for the end of the other `flaz resize`, or interrupt it; one that was interrupted \
         ends by itself within 20 seconds"
    )]
    UnderWay,
    /// No change of the size is under way.
    #[error("the resize was cancelled: the cache keeps its old size")]
    CalledOff,
    /// The cache device was fenced.
    #[error(
        "the cache device failed and is not used until the next start: replace the device or restart the cache, then resize it"
    )]
    Fenced,
    /// Dirty data does not fit in the smaller cache.
    #[error(
        "{bytes} bytes of dirty data do not fit in the smaller cache, and the origin does not accept them: see `flaz status` for \
         the cause, write the dirty data to the origin with `flaz flush`, then try again"
    )]
    Dirty {
        /// How many too many.
        bytes: u64,
    },
}

impl ResizeError {
    /// A cache cannot have `found` bytes; it can have `possible` ones.
    #[must_use]
    pub fn size(possible: &RangeInclusive<u64>, found: u64) -> Self {
        let (least, most) = (*possible.start(), *possible.end());
        Self::Size { least, most, found }
    }
}

/// A size as an option takes it, rounded up or down to three digits or more.
fn sized(bytes: u64, up: bool) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.iter().find(|(unit, _)| bytes / unit >= 100);
    let (unit, name) = unit.copied().unwrap_or((1, ""));
    let count = if up { bytes.div_ceil(unit) } else { bytes / unit };
    format!("{count}{name}")
}

/// Why the log of a cache with dirty blocks cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The device is not trusted.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// Recovery failed.
    #[error(transparent)]
    Recovery(#[from] RecoverError),
    /// An earlier start found that the index image, or its checksum of the manifest, does not fit the manifest.
    #[error(
        "an earlier start found that the manifest is not the one of the last clean stop: the cache device has lost writes that it had \
         reported as stable, and the log may lack the newest versions of dirty blocks"
    )]
    Contradicted,
    /// The index image does not fit the manifest.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// Why a cache device is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// The cache was fenced while it was served.
    #[error(
        "the cache device failed while the cache was served, and has missed writes to the origin since: its clean blocks are out \
         of date"
    )]
    Fenced,
    /// The device is older than its host record.
    #[error(
        "the cache device holds an older state of the cache than this host last saw (generation {found}, expected {expected} or \
         later): the device was restored from a copy, or has lost writes that it had reported as stable. If the newer device still \
         exists, use that one"
    )]
    RolledBack {
        /// Generation in the host record.
        expected: u64,
        /// Generation of the superblock.
        found: u64,
    },
    /// Its origin was served through another cache since.
    #[error(
        "the origin was served through another cache ({0}) after this one: the blocks of this cache may be out of date"
    )]
    OtherCache(OtherCache),
}

/// A thread that drives shards does not respond. The message names the thread and the request.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ShardsUnreachable(pub String);

/// How serving a cache ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It was stopped cleanly.
    UntilStop,
    /// Its server was killed, or the power failed.
    UntilCrash,
}

impl std::fmt::Display for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::UntilStop => "the cache was stopped",
            Self::UntilCrash => "the crash of the cache's last server",
        })
    }
}

/// The message about two bad slots: a device that did hold a cache may hold dirty blocks.
fn no_superblock(first: &FormatError, second: &FormatError) -> String {
    match (first, second) {
        (version @ FormatError::Version { .. }, _) | (_, version @ FormatError::Version { .. }) => {
            format!("{version}. It may hold writes that have not reached the origin")
        }
        (FormatError::Magic { .. }, FormatError::Magic { .. }) => {
            "not a flaz cache: no superblock found (check the path; `flaz create` creates a cache)".to_owned()
        }
        _ => {
            let what = match first == second {
                true => format!("both superblocks: {first}"),
                false => format!("superblock 0: {first}; superblock 1: {second}"),
            };
            format!(
                "not a usable flaz cache: {what}. The cache is damaged, truncated or newer, and may hold writes that have \
                 not reached the origin: restore the device. If those writes may be lost, recreate the cache with `flaz \
                 create CACHE --origin ORIGIN --force --discard-dirty`, or use the origin without flaz"
            )
        }
    }
}
