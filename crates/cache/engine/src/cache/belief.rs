//! What can be believed: of the cache device by what the host remembers, of the origin by what it begins with.

use flaz_device::Device;

use super::superblock::{how_to_start, next_epoch};
use super::{CacheError, Served, Start, write_superblock};
use crate::fingerprint::{FINGERPRINT_BYTES, Fingerprint, fingerprint};
use crate::format::superblock::Superblock;
use crate::planted::{PlantedBug, planted};
use crate::shard::{ImageError, OriginWrites, RecoverError, any_intent};
use crate::witness::{Distrust, Memory, judge};

/// How far what is on a cache device can be believed, given what the host remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belief {
    /// As far as it says itself.
    Whole,
    /// Dirty blocks alone: it has missed writes, but none of those went to a dirty block.
    DirtyAlone,
    /// Not at all.
    Nothing,
}

/// Judges a superblock by what the host remembers, and says in the log what follows.
///
/// # Errors
/// [`CacheError::DirtyUnreadable`] where dirty blocks may be missing.
pub fn believe(superblock: &mut Superblock, memory: Option<Memory>) -> Result<Belief, CacheError> {
    match judge(superblock, memory) {
        Ok(()) => Ok(Belief::Whole),
        Err(error @ Distrust::Lost) if superblock.dirty => {
            tracing::error!("only what has not reached the origin is kept: {error}");
            Ok(Belief::DirtyAlone)
        }
        // Also where the copy says that it has none: the cache had some since.
        Err(error) if superblock.dirty || memory.is_some_and(|memory| memory.dirty) => {
            Err(CacheError::DirtyUnreadable {
                why: error.to_string(),
            })
        }
        Err(error) => {
            tracing::error!("the cache starts cold (nothing is lost, hits are): {error}");
            Ok(Belief::Nothing)
        }
    }
}

/// Whether the origin is what it was when it was served last, as far as that can be told: by the superblock after a clean
/// stop, by what the host remembers after another one, and after a crash, unless clients may have been writing there. To
/// be asked before [`open_superblock`], of every cache of which something will be used.
///
/// # Errors
/// [`CacheError::OriginChanged`], or [`CacheError::Origin`] when the origin fails.
pub async fn check_origin<C: Device, O: Device>(
    cache: &C,
    origin: &O,
    superblock: &Superblock,
    memory: Option<Memory>,
) -> Result<(), CacheError> {
    // An opening that could not be noted leaves what an earlier one noted.
    let noted = memory.filter(|memory| memory.epoch == superblock.epoch);
    let (since, expected) = match (how_to_start(superblock), noted) {
        (Start::Warm(_), _) => (Served::UntilStop, superblock.origin_fingerprint),
        (Start::Recovered, Some(memory)) if memory.stopped => (Served::UntilStop, memory.origin),
        // Clients went on without intents, and nobody has looked since.
        (Start::Recovered, Some(memory)) if memory.lost => {
            tracing::warn!(
                "whether the origin was changed since the crash cannot be told: the cache device had been given up before"
            );
            return Ok(());
        }
        (Start::Recovered, noted) => (Served::UntilCrash, noted.and_then(|memory| memory.origin)),
        (Start::Cold | Start::Empty, _) => return Ok(()),
    };
    let Some(expected) = expected else { return Ok(()) };
    let found = match fingerprint(origin).await {
        Ok(found) => found,
        // A power cut may have torn a sector that clients were writing: what is cached of it must be had.
        Err(error) if since == Served::UntilCrash => {
            tracing::warn!("whether the origin was changed since the crash cannot be told: {error}");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if found.fits(expected) {
        return Ok(());
    }
    if since == Served::UntilCrash
        && !planted(PlantedBug::OriginComparedIntended)
        && any_intent(cache, &superblock.geometry, &found.stripes).await
    {
        tracing::info!(
            "whether the origin was changed since the crash cannot be told: its clients were writing where that would show"
        );
        return Ok(());
    }
    Err(CacheError::OriginChanged {
        since,
        dirty: superblock.dirty,
        bytes: FINGERPRINT_BYTES.min(origin.len()),
        expected: expected.get(),
        found: found.value.get(),
    })
}

/// Puts what the origin begins with, and keeps, into the superblock: for [`Memory::of`] at an opening, for [`mark_clean`] at
/// a stop. Where it fails, or a flush has failed before, so that nobody knows what is kept, nothing will be compared, and
/// nothing refused. If it is the flush that fails, what an earlier process was told to have written may be gone: the next
/// client that asks for a flush hears of it.
pub async fn look_at_origin<O: Device>(
    origin: &O,
    writes: &OriginWrites,
    superblock: &mut Superblock,
) -> Option<Fingerprint> {
    let unseen = |error: &dyn std::fmt::Display| {
        tracing::warn!("whether the origin is changed past the cache will not be seen: {error}");
    };
    let found = match writes.flushes().run(origin.flush()).await {
        Ok(()) if writes.flushes().failures() > 0 => None,
        Ok(()) => fingerprint(origin).await.inspect_err(|error| unseen(error)).ok(),
        Err(error) => {
            unseen(&error);
            writes.flushes().leave_untold(error);
            None
        }
    };
    superblock.origin_fingerprint = found.as_ref().map(|found| found.value);
    found
}

/// Makes what is on the origin stable, for a cache that begins with nothing in it.
///
/// What an earlier process wrote and nobody flushed would be read and cached, no intent would tell, and a power cut
/// could still take it from the origin. After a clean stop it is stable, after a crash the old intents stay set.
///
/// # Errors
/// [`CacheError::Origin`] when the origin fails.
pub async fn settle_origin<O: Device>(origin: &O) -> Result<(), CacheError> {
    if planted(PlantedBug::OriginNotFlushedAtStart) {
        return Ok(());
    }
    origin.flush().await.map_err(CacheError::Origin)
}

/// How to go on when an index image is not usable. Where blocks may be dirty the log has them all the same: in a new epoch,
/// for shards that had their image and are thrown away now may have written to it in this one, and moved dirty blocks.
///
/// # Errors
/// [`CacheError`] when the device fails.
pub async fn without_image<C: Device>(
    cache: &C,
    superblock: &mut Superblock,
    error: &ImageError,
) -> Result<Start, CacheError> {
    if !superblock.dirty {
        tracing::warn!(%error, "the cache starts cold (nothing is lost, hits are)");
        return Ok(Start::Cold);
    }
    tracing::warn!(%error, "the log is read instead");
    superblock.epoch = next_epoch(superblock)?;
    write_superblock(cache, superblock).await?;
    Ok(Start::Recovered)
}

/// How to go on when the log is not usable either.
///
/// # Errors
/// [`CacheError::DirtyUnreadable`] where blocks may be dirty.
pub fn without_log(superblock: &Superblock, error: &RecoverError) -> Result<Start, CacheError> {
    if superblock.dirty {
        return Err(CacheError::DirtyUnreadable {
            why: error.to_string(),
        });
    }
    tracing::warn!(%error, "the cache starts cold (nothing is lost, hits are)");
    Ok(Start::Cold)
}
