//! The superblock's steps: what it says before, while and after a cache is served.

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, DeviceOp, Env, IoBuf};

use super::error::CacheError;
use crate::format::FormatError;
use crate::format::geometry::{SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use crate::format::superblock::{EPOCH_END, State, Superblock};
use crate::planted::{PlantedBug, planted};
use crate::settings::AfterCrash;
use crate::shard::OriginWrites;
use crate::units::Epoch;

/// Times that a slot is read which does not check.
const SLOT_READS_MAX: u32 = 4;

/// Reads the superblock that counts.
///
/// # Errors
/// [`CacheError`] when there is none.
pub async fn read_superblock<C: Device>(cache: &C) -> Result<Superblock, CacheError> {
    let needed = SUPERBLOCK_SLOTS[1] + SUPERBLOCK_BYTES as u64;
    if cache.len() < needed {
        return Err(CacheError::TooSmall {
            expected: needed,
            found: cache.len(),
        });
    }
    // A slot that cannot be read is one that is damaged, if the other is there.
    let mut unreadable = None;
    let mut slots = Vec::new();
    for slot in SUPERBLOCK_SLOTS {
        slots.push(match read_slot(cache, slot).await {
            Ok(parsed) => parsed,
            Err(error) => {
                tracing::warn!(%error, "one of the two superblocks cannot be read");
                unreadable = Some(error);
                Superblock::parse(&[0; SUPERBLOCK_BYTES], cache.len())
            }
        });
    }
    let second = slots.pop().expect("two slots");
    let first = slots.pop().expect("two slots");
    let superblock = match (first, second) {
        (Err(_), Err(_)) if let Some(error) = unreadable => return Err(error.into()),
        (Ok(first), Ok(second)) => {
            if second.generation > first.generation {
                second
            } else {
                first
            }
        }
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => one,
        (Err(first), Err(second)) => return Err(CacheError::NoSuperblock { first, second }),
    };
    let (expected, found) = (superblock.geometry.sector_bytes, cache.alignment());
    if !expected.is_multiple_of(found) {
        return Err(CacheError::Sectors { expected, found });
    }
    Ok(superblock)
}

async fn read_slot<C: Device>(cache: &C, slot: u64) -> Result<Result<Superblock, FormatError>, DeviceError> {
    let mut tries = 0;
    loop {
        let (page, result) = cache.read_at(slot, IoBuf::zeroed(SUPERBLOCK_BYTES)).await;
        let found = result.map(|()| Superblock::parse(&page, cache.len()));
        tries += 1;
        // Without the newer one the cache would look older than it is, and without both there is none: it may have been read
        // wrong for once, or could not be read for a moment.
        if matches!(&found, Ok(Ok(_))) || found.as_ref().is_err_and(is_timeout) || tries == SLOT_READS_MAX {
            return found;
        }
    }
}

/// Times that a damaged slot is written before the only good one is.
const SPARE_WRITES_MAX: u64 = 3;

/// Writes the next generation of the superblock into both slots, one after the other: with one alone, losing that sector
/// would bring back what was before, and that is either an older cache to whoever remembers this one, or a wrong one. After a
/// failure one slot is good, with this generation or the one before, and what is in the other is not known: that one is
/// written first the next time.
///
/// # Errors
/// [`CacheError`] when the device fails.
pub async fn write_superblock<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    let page = write_first_slot(cache, superblock).await?;
    Ok(write_second_slot(cache, superblock, page).await?)
}

async fn write_first_slot<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<IoBuf, CacheError> {
    let before = superblock.generation;
    superblock.generation = before.wrapping_add(1);
    assert!(superblock.generation > before, "generations grow");
    let mut spare_writes = 0;
    if is_alone(cache, slot_of(superblock.generation), before).await {
        superblock.generation = superblock.generation.wrapping_add(1);
        spare_writes = SPARE_WRITES_MAX;
    }
    loop {
        let page = IoBuf::copy_of(&superblock.to_bytes()?);
        let written = async {
            if is_flushed(superblock) {
                cache.flush().await?;
            }
            write_slot(cache, superblock, superblock.generation, IoBuf::copy_of(&page)).await
        };
        let Err(error) = written.await else {
            return Ok(page);
        };
        // Not the same number once more, for what failed may have landed.
        superblock.generation = superblock.generation.wrapping_add(1);
        if spare_writes == 0 || error.op != DeviceOp::Write || is_timeout(&error) {
            return Err(error.into());
        }
        spare_writes -= 1;
        if spare_writes > 0 {
            // Of the same slot.
            superblock.generation = superblock.generation.wrapping_add(1);
        }
        // Otherwise the damaged slot takes nothing any more: the next number is for the other one.
    }
}

/// Whether the other slot has been damaged, perhaps only now, so that this one, torn, would leave none. Not if it is older
/// than what was written last: then the other one is what counts, and is read wrong.
async fn is_alone<C: Device>(cache: &C, slot: usize, generation: u64) -> bool {
    let damaged = match read_slot(cache, SUPERBLOCK_SLOTS[1 - slot]).await {
        Ok(parsed) => parsed.is_err(),
        Err(error) => !is_timeout(&error),
    };
    damaged
        && read_slot(cache, SUPERBLOCK_SLOTS[slot])
            .await
            .is_ok_and(|found| found.is_ok_and(|found| found.generation >= generation))
}

/// The slot that a generation is written to first.
fn slot_of(generation: u64) -> usize {
    (generation % 2) as usize
}

async fn write_second_slot<C: Device>(
    cache: &C,
    superblock: &Superblock,
    page: IoBuf,
) -> Result<(), DeviceError> {
    write_slot(cache, superblock, superblock.generation.wrapping_add(1), page).await
}

async fn write_slot<C: Device>(
    cache: &C,
    superblock: &Superblock,
    slot: u64,
    page: IoBuf,
) -> Result<(), DeviceError> {
    let place = SUPERBLOCK_SLOTS[slot_of(slot)];
    cache.write_at(place, page, false).await.1?;
    if is_flushed(superblock) {
        cache.flush().await?;
    }
    Ok(())
}

fn is_flushed(superblock: &Superblock) -> bool {
    superblock.state != State::Open || !planted(PlantedBug::OpenMarkNotFlushed)
}

/// The epoch of the next opening.
pub(super) fn next_epoch(superblock: &Superblock) -> Result<Epoch, FormatError> {
    let epoch = superblock.epoch.0;
    let next = epoch.checked_add(1).filter(|&next| next < EPOCH_END).map(Epoch);
    next.ok_or_else(|| FormatError::field("superblock", "epoch", format!("below {}", EPOCH_END - 1), epoch))
}

/// Says on the cache device that blocks may be dirty from now on. Before the first one is.
///
/// # Errors
/// [`CacheError::ColdWriteBack`], or [`CacheError`] when the device fails.
pub(super) async fn mark_dirty<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    if superblock.after_crash == AfterCrash::Cold {
        return Err(CacheError::ColdWriteBack);
    }
    if !superblock.dirty {
        superblock.dirty = true;
        let written = write_superblock(cache, superblock).await;
        // Who asks again must not be told that it is done.
        superblock.dirty = written.is_ok();
        written?;
    }
    Ok(())
}

/// The same while shards are served from the device: they hear of a flush that fails, and this one believes the device
/// as little as they do once one of theirs has failed.
///
/// # Errors
/// As for [`mark_dirty`].
pub(super) async fn mark_dirty_served<C: Device, E: Env>(
    env: &E,
    cache: &C,
    superblock: &mut Superblock,
    writes: &OriginWrites,
) -> Result<(), CacheError> {
    if superblock.dirty {
        return Ok(());
    }
    let marked = async {
        match mark_dirty(cache, superblock).await {
            Err(CacheError::Device(error)) if error.op == DeviceOp::Flush => Err(error),
            outcome => Ok(outcome),
        }
    };
    let marked = writes.cache_flushed(env, marked).await;
    superblock.dirty = matches!(marked, Ok(Ok(())));
    marked?
}

/// Gives up what earlier openings stored: when the user says so, or when what is needed to trust it is damaged.
///
/// # Errors
/// [`CacheError`] when the device fails.
pub(super) async fn start_cold<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    // Shards that were thrown away may have written in this one.
    superblock.epoch = next_epoch(superblock)?;
    superblock.valid_from_epoch = superblock.epoch;
    superblock.dirty = false;
    write_superblock(cache, superblock).await?;
    let geometry = superblock.geometry;
    let len = geometry.shard_offset(geometry.shard_count) - geometry.data_offset();
    cache.discard(geometry.data_offset(), len).await?;
    Ok(())
}

/// Marks what is on a cache device that failed while it was served as never to be used again.
///
/// # Errors
/// [`CacheError`] when the device fails again.
pub async fn mark_void<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    superblock.valid_from_epoch = Epoch(superblock.epoch.0.saturating_add(1));
    write_superblock(cache, superblock).await
}

/// Marks the cache as stopped in order. Every shard must have been saved, and the fingerprint of the origin be in the
/// superblock.
///
/// # Errors
/// [`CacheError`] when the device fails.
pub async fn mark_clean<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    superblock.state = State::Clean;
    let page = write_first_slot(cache, superblock).await?;
    let again = IoBuf::copy_of(&page);
    let mut written = write_second_slot(cache, superblock, page).await;
    if written.is_err() {
        written = write_second_slot(cache, superblock, again).await;
    }
    if let Err(error) = written {
        // The first says it. Losing that one too would make the cache look older than the host remembers.
        tracing::warn!(%error, "one of the two superblocks cannot be written");
    }
    Ok(())
}

/// Marks a stopped cache as holding nothing, and nothing that was ever on it as valid.
///
/// # Errors
/// [`CacheError`] when the device fails.
pub async fn mark_empty<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    superblock.state = State::Empty;
    superblock.dirty = false;
    superblock.valid_from_epoch = Epoch(superblock.epoch.0.saturating_add(1));
    write_superblock(cache, superblock).await
}
