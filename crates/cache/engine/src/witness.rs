//! What a host remembers about a cache apart from the cache device.
//!
//! A cache device that vanished may come back, and one may be put back to how it was days ago: on it everything looks
//! well, and what it holds has long been overwritten on the origin. No mark on the device can tell; a small note
//! elsewhere can. It says how far the superblock had come, and whether the cache was given up without the device's
//! knowledge.
//!
//! Rule: the device is written before the note at openings and stops, and the note before the first write to the origin
//! that the device does not know of. So a device that is behind its note is an old one.
//!
//! | the note says | the cache had no dirty blocks | it may have had some |
//! |---|---|---|
//! | lost | nothing on it is used | dirty blocks are, for nothing newer is on the origin; clean ones are not |
//! | older than it was | nothing on it is used | refused: writes that were acknowledged may be missing |

use std::num::NonZeroU32;

use futures_util::future::LocalBoxFuture;

use crate::format::superblock::{State, Superblock};
use crate::units::Epoch;

/// What was noted last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Generation of the superblock.
    pub generation: u64,
    /// The opening that it was of.
    pub epoch: Epoch,
    /// The device failed, and the clean blocks that it holds must not be used.
    pub lost: bool,
    /// It may hold blocks that are newer than the origin.
    pub dirty: bool,
    /// [`Fingerprint`](crate::fingerprint::Fingerprint) of the origin, as far as that opening had noted it: see
    /// [`Witness::note_origin`].
    pub origin: Option<NonZeroU32>,
    /// It is the origin's at the stop, in order or not: nobody writes there through the cache until the next opening.
    pub stopped: bool,
}

impl Memory {
    /// What is to be noted of a superblock that has been written and can be believed.
    #[must_use]
    pub fn of(superblock: &Superblock) -> Self {
        Self {
            generation: superblock.generation,
            epoch: superblock.epoch,
            lost: false,
            dirty: superblock.dirty,
            origin: superblock.origin_fingerprint,
            stopped: superblock.state != State::Open,
        }
    }
}

/// Notes that survive the cache device, the process and the power. None of its calls may wait for ever. Where one says that
/// something could not be noted, it may have been all the same.
pub trait Witness: 'static {
    /// What was noted last about this cache, if anything can be known.
    fn recall(&self) -> LocalBoxFuture<'_, Option<Memory>>;

    /// Notes this, durably. Before shards are started, and after they have stopped. False: it could not be noted.
    fn note(&self, memory: Memory) -> LocalBoxFuture<'_, bool>;

    /// Notes, durably, that the cache may hold blocks that are newer than the origin from now on, and the generation of
    /// the superblock that says so. False: it could not be noted.
    fn note_dirty(&self, generation: u64) -> LocalBoxFuture<'_, bool>;

    /// Notes, durably, the fingerprint that the origin has now. Of two calls that one counts whose `ticket` is higher,
    /// in whatever order they come: shards make them, each on its own. False: it could not be noted.
    fn note_origin(&self, ticket: u64, fingerprint: NonZeroU32) -> LocalBoxFuture<'_, bool>;

    /// Notes, durably, that the shards have stopped without leaving a superblock that says so, and the fingerprint that the
    /// origin has then, if it is known. False: it could not be noted.
    fn note_stopped(&self, origin: Option<NonZeroU32>) -> LocalBoxFuture<'_, bool>;

    /// Notes, durably, that what the device holds must never be used again. False: it could not be noted.
    fn note_lost(&self) -> LocalBoxFuture<'_, bool>;
}

/// Why a cache must not be believed, given what was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// It was given up while it was served.
    #[error(
        "the cache device failed while it was served and has missed writes to the origin since: what it holds is out \
         of date"
    )]
    Lost,
    /// It is older than what was seen.
    #[error(
        "the cache device holds an older state than it had here (generation {found}, expected {expected} or later): \
         it was restored from a copy, or has lost writes that it had reported as stable"
    )]
    RolledBack {
        /// Generation that was noted.
        expected: u64,
        /// Generation of the superblock.
        found: u64,
    },
}

/// Whether a superblock, as it was found, fits what was noted. Where it does not, its numbers are raised to those that
/// were noted, so that nothing of what was written in between can pass for something newer.
///
/// # Errors
/// [`Distrust`]: nothing on the device may be used.
pub fn judge(superblock: &mut Superblock, memory: Option<Memory>) -> Result<(), Distrust> {
    let Some(memory) = memory else { return Ok(()) };
    let (expected, found) = (memory.generation, superblock.generation);
    superblock.generation = superblock.generation.max(memory.generation);
    superblock.epoch = superblock.epoch.max(memory.epoch);
    // First, for an old copy of a lost cache has old dirty blocks.
    if found < expected {
        return Err(Distrust::RolledBack { expected, found });
    }
    if memory.lost {
        return Err(Distrust::Lost);
    }
    Ok(())
}
