//! How far a cache device is trusted, given the host record.

use super::error::{CacheError, Untrusted};
use crate::format::superblock::{State, Superblock};
use crate::host_record::{HostRecord, OtherCache};

/// How far a cache device is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// As far as its superblock says.
    Full,
    /// Dirty blocks only: the device has missed writes, but none of them went to a dirty block.
    DirtyOnly,
    /// Nothing on it is used.
    Nothing,
}

/// Compares a superblock, as it was read, with the host record. Raises its numbers to those of the record, so that contents
/// written in between never look newer than this opening.
fn compare(superblock: &mut Superblock, record: Option<HostRecord>) -> Result<(), Untrusted> {
    let Some(record) = record else { return Ok(()) };
    let (expected, found) = (record.generation, superblock.generation);
    superblock.generation = superblock.generation.max(record.generation);
    superblock.epoch = superblock.epoch.max(record.epoch);
    // First, because an old copy of a fenced cache has old dirty blocks.
    if found < expected {
        return Err(Untrusted::RolledBack { expected, found });
    }
    if record.fenced {
        return Err(Untrusted::Fenced);
    }
    Ok(())
}

/// How far a cache device is trusted, and the reason if not fully.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) trust: Trust,
    pub(super) why: Option<Untrusted>,
}

impl Verdict {
    fn cold(why: Untrusted) -> Self {
        Self {
            trust: Trust::Nothing,
            why: Some(why),
        }
    }
}

/// Decides how far a cache device is trusted.
///
/// # Errors
/// [`CacheError::DirtyUnreadable`] if dirty blocks may be missing.
pub(super) fn of_device(
    superblock: &mut Superblock,
    record: Option<HostRecord>,
) -> Result<Verdict, CacheError> {
    match compare(superblock, record) {
        Ok(()) => Ok(Verdict {
            trust: Trust::Full,
            why: None,
        }),
        Err(error @ Untrusted::Fenced) if superblock.dirty => Ok(Verdict {
            trust: Trust::DirtyOnly,
            why: Some(error),
        }),
        // Even if the copy has no dirty blocks: the cache had some since.
        Err(why) if superblock.dirty || record.is_some_and(|record| record.dirty) => {
            Err(CacheError::DirtyUnreadable { why: why.into() })
        }
        Err(why) => Ok(Verdict::cold(why)),
    }
}

/// The same after the origin was served through another cache.
///
/// # Errors
/// [`CacheError::OtherCacheDirty`] if that cache has dirty blocks, unless they are discarded;
/// [`CacheError::DirtyUnreadable`] if this one may have some.
pub(super) fn after_other_cache(
    verdict: Verdict,
    superblock: &Superblock,
    other: &OtherCache,
    discard_dirty: bool,
) -> Result<Verdict, CacheError> {
    if other.dirty && !discard_dirty {
        return Err(CacheError::OtherCacheDirty {
            expected: other.clone(),
            found: superblock.uuid,
        });
    }
    if superblock.state == State::Empty {
        return Ok(verdict);
    }
    let why = Untrusted::OtherCache(other.clone());
    if superblock.dirty {
        return Err(CacheError::DirtyUnreadable { why: why.into() });
    }
    Ok(Verdict::cold(why))
}
