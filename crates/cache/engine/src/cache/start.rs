//! How a cache starts: by what its superblock says, and how far the device is trusted.

use flaz_device::Device;

use super::error::CacheError;
use super::superblock::{next_epoch, write_superblock};
use super::trust::Trust;
use crate::format::superblock::{State, Superblock};
use crate::units::Epoch;

/// How a cache starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// After a clean stop: the index images of this epoch are used.
    Warm(Epoch),
    /// After a crash: the log is read back; blocks of stripes that had writes in flight are dropped.
    Recovered,
    /// Nothing of the earlier contents is used.
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
        // Fenced: writes that went past the cache have overtaken its contents.
        State::Open if superblock.valid_from_epoch > superblock.epoch => Start::Cold,
        State::Open => Start::Recovered,
        State::Empty => Start::Empty,
    }
}

/// Marks the cache as being served, in a new epoch, and returns how it starts. A crash of this opening leaves what the
/// superblock said before; of contents that are not trusted, nothing.
///
/// # Errors
/// [`CacheError`] when the device fails.
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
    superblock.state = State::Open;
    superblock.epoch = next_epoch(superblock)?;
    match start {
        Start::Empty => superblock.valid_from_epoch = superblock.epoch,
        // Already here, not only at the cold start that follows: from now on the generation is ahead of the host record, and
        // the origin is the present one. After a crash in between nothing else would show that the contents are untrusted.
        Start::Cold => superblock.valid_from_epoch = next_epoch(superblock)?,
        Start::Warm(_) | Start::Recovered => {}
    }
    write_superblock(cache, superblock).await?;
    Ok(start)
}
