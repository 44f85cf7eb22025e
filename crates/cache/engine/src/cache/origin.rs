//! The origin at an opening and at a stop: its fingerprint, and making it stable.

use flaz_device::Device;

use super::error::{CacheError, Served};
use super::start::{Start, how_to_start};
use crate::fingerprint::{FINGERPRINT_BYTES, Fingerprint, fingerprint};
use crate::format::superblock::Superblock;
use crate::host_record::{HostRecord, NotedOrigin};
use crate::planted::{PlantedBug, planted};
use crate::shard::{OriginWrites, any_intent};

/// Checks that the origin has not changed since it was served last: against the superblock after a clean stop, otherwise
/// against the host record. After a crash the check is skipped if clients may have been writing to the compared stripes.
/// Runs before the superblock is opened, for every cache whose contents will be used.
///
/// # Errors
/// [`CacheError::OriginChanged`], or [`CacheError::Origin`] if the origin fails.
pub(super) async fn check<C: Device, O: Device>(
    cache: &C,
    origin: &O,
    superblock: &Superblock,
    record: Option<HostRecord>,
) -> Result<(), CacheError> {
    // If an opening could not be recorded, the record is of an earlier one.
    let record = record.filter(|record| record.epoch == superblock.epoch);
    let (since, expected) = match (how_to_start(superblock), record) {
        (Start::Warm(_), _) => (Served::UntilStop, NotedOrigin::of(superblock)),
        (Start::Recovered, Some(record)) if record.stopped => (Served::UntilStop, record.origin),
        // Clients wrote without intents, and the fingerprint was not updated since.
        (Start::Recovered, Some(record)) if record.fenced => {
            tracing::warn!(
                "cannot check whether the origin has changed since the crash: the cache was fenced before it. If it \
                 was changed without flaz, stop the server and start it with --discard-cache"
            );
            return Ok(());
        }
        (Start::Recovered, record) => (Served::UntilCrash, record.and_then(|record| record.origin)),
        (Start::Cold | Start::Empty, _) => return Ok(()),
    };
    let Some(expected) = expected else { return Ok(()) };
    let found = match fingerprint(origin, expected.len).await {
        Ok(found) => found,
        // A power cut may have torn a sector that clients were writing: the cached copy of it is needed.
        Err(error) if since == Served::UntilCrash => {
            tracing::warn!(
                "cannot check whether the origin has changed since the crash: {error}. If it was changed without \
                 flaz, stop the server and start it with --discard-cache"
            );
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if found.fits(expected.fingerprint) {
        return Ok(());
    }
    if since == Served::UntilCrash
        && !planted(PlantedBug::OriginComparedIntended)
        && any_intent(cache, &superblock.geometry, &found.stripes).await
    {
        tracing::info!(
            "cannot check whether the origin has changed since the crash: clients were writing to the compared stripes. If it was changed \
             without flaz, stop the server and start it with --discard-cache"
        );
        return Ok(());
    }
    Err(CacheError::OriginChanged {
        since,
        dirty: superblock.dirty,
        bytes: FINGERPRINT_BYTES.min(expected.len),
        expected: expected.fingerprint.get(),
        found: found.value.get(),
    })
}

/// Flushes the origin and puts its fingerprint into the superblock: for [`HostRecord::of`] at an opening, for the clean
/// mark at a stop. If that fails, or a flush has failed before, there is no fingerprint: the next start compares and
/// refuses nothing. A failed flush may have lost acknowledged writes of an earlier process: the next client that asks for a
/// flush gets the error.
pub(super) async fn take_fingerprint<O: Device>(
    origin: &O,
    writes: &OriginWrites,
    superblock: &mut Superblock,
) -> Option<Fingerprint> {
    let warn = |error: &dyn std::fmt::Display| {
        tracing::warn!("changes of the origin that bypass the cache will not be detected: {error}");
    };
    let found = match writes.flushes().run(origin.flush()).await {
        Ok(()) if writes.flushes().failures() > 0 => None,
        Ok(()) => fingerprint(origin, superblock.geometry.origin_len)
            .await
            .inspect_err(|error| warn(error))
            .ok(),
        Err(error) => {
            warn(&error);
            writes.flushes().leave_untold(error);
            None
        }
    };
    superblock.origin_fingerprint = found.as_ref().map(|found| found.value);
    found
}

/// Flushes the origin for a cache that starts empty.
///
/// Otherwise, unflushed writes of an earlier process could be read and cached, without an intent, and then be lost from the
/// origin in a power cut. After a clean stop they are stable; after a crash the old intents stay set.
///
/// # Errors
/// [`CacheError::Origin`] when the origin fails.
pub(super) async fn settle<O: Device>(origin: &O) -> Result<(), CacheError> {
    if planted(PlantedBug::OriginNotFlushedAtStart) {
        return Ok(());
    }
    origin.flush().await.map_err(CacheError::Origin)
}
