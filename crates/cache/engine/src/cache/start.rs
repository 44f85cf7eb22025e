//! How a cache starts, given its superblock and how far the device is trusted.

use flaz_device::Device;

use super::error::CacheError;
use super::superblock::{next_epoch, write_superblock};
use super::trust::Trust;
use crate::format::superblock::{State, Superblock};
use crate::units::Epoch;

/// How a cache starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// After a clean stop: the index images of this epoch are used. If there is none that fits, the log is read: see
    /// [`ImageError::Absent`](crate::shard::ImageError::Absent).
    Warm(Epoch),
    /// After a crash: recovered from the log; blocks of stripes that had writes in flight are dropped.
    Recovered,
    /// No earlier contents are used.
    Cold,
    /// The cache was never served.
    Empty,
}

impl Start {
    /// Whether earlier contents are used.
    #[must_use]
    pub fn keeps_contents(self) -> bool {
        matches!(self, Self::Warm(_) | Self::Recovered)
    }
}

pub(super) fn how_to_start(superblock: &Superblock) -> Start {
    match superblock.state {
        State::Clean => Start::Warm(superblock.epoch),
        // Fenced: writes that bypassed the cache have made its contents stale.
        State::Open if superblock.valid_from_epoch > superblock.epoch => Start::Cold,
        State::Open => Start::Recovered,
        State::Empty => Start::Empty,
    }
}

/// Marks the cache open, in a new epoch, and returns how it starts. Earlier contents stay valid after a crash of this
/// opening, unless they are not trusted.
///
/// # Errors
/// [`CacheError`] if the device fails.
pub(super) async fn open_superblock<C: Device>(
    cache: &C,
    superblock: &mut Superblock,
    trust: Trust,
) -> Result<Start, CacheError> {
    let start = match (how_to_start(superblock), trust) {
        (Start::Empty, _) => Start::Empty,
        (_, Trust::Nothing) => Start::Cold,
        (_, Trust::DirtyOnly) => Start::Recovered,
        (start, Trust::Full) => start,
    };
    // A cold start uses neither log nor image.
    superblock.contradicted &= start.keeps_contents();
    superblock.state = State::Open;
    superblock.epoch = next_epoch(superblock)?;
    match start {
        Start::Empty => superblock.valid_from_epoch = superblock.epoch,
        // Done here, not only at the cold start that follows: from now on the generation is ahead of the host record, and
        // the origin is the current one. After a crash in between, nothing else would show that the contents are untrusted.
        Start::Cold => superblock.valid_from_epoch = next_epoch(superblock)?,
        Start::Warm(_) | Start::Recovered => {}
    }
    write_superblock(cache, superblock).await?;
    Ok(start)
}
