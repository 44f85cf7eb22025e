//! Reading the superblock, and its states before, while and after a cache is served.

use flaz_codec::CodecChoice;
use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, DeviceOp, Env, IoBuf};

use super::error::CacheError;
use crate::format::FormatError;
use crate::format::geometry::{Geometry, SUPERBLOCK_BYTES, SUPERBLOCK_SLOTS};
use crate::format::superblock::{EPOCH_END, State, Superblock};
use crate::planted::{PlantedBug, planted};
use crate::settings::{AfterCrash, StoredSettings};
use crate::shard::OriginWrites;
use crate::units::Epoch;

/// Attempts to read a slot that fails its checks.
const SLOT_READS_MAX: u32 = 4;

/// Reads the valid superblock with the highest generation.
///
/// # Errors
/// [`CacheError`] if there is none.
pub async fn read_superblock<C: Device>(cache: &C) -> Result<Superblock, CacheError> {
    let needed = SUPERBLOCK_SLOTS[1] + SUPERBLOCK_BYTES as u64;
    if cache.len() < needed {
        return Err(CacheError::TooSmall {
            expected: needed,
            found: cache.len(),
        });
    }
    // An unreadable slot counts as damaged, if the other slot is valid.
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
        // Without the newer slot the cache would look older than it is, and without both there is no cache: retry, because
        // a single read may be wrong or fail.
        if matches!(&found, Ok(Ok(_))) || found.as_ref().is_err_and(is_timeout) || tries == SLOT_READS_MAX {
            return found;
        }
    }
}

/// Attempts to write a damaged slot before the only good one is written.
const SPARE_WRITES_MAX: u64 = 3;

/// Writes the next generation of the superblock into both slots, one after the other. If only one had it, losing that
/// sector would bring back the previous superblock: an older cache than in the host record, or one in the wrong state.
/// After a failure one slot is good, with this generation or the previous one, and the contents of the other are unknown:
/// the other is written first the next time.
///
/// # Errors
/// [`CacheError`] if the device fails.
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
        // Never reuse this generation, because the failed write may have landed.
        superblock.generation = superblock.generation.wrapping_add(1);
        if spare_writes == 0 || error.op != DeviceOp::Write || is_timeout(&error) {
            return Err(error.into());
        }
        spare_writes -= 1;
        if spare_writes > 0 {
            // Retry the same slot.
            superblock.generation = superblock.generation.wrapping_add(1);
        }
        // Otherwise the damaged slot cannot be written: the next generation goes to the other one.
    }
}

/// Whether the other slot is damaged, perhaps only recently, so that a torn write of this one would leave none. Not if this
/// one is older than the last generation written: then the other one is valid, and was misread.
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

/// Records on the cache device that blocks may be dirty from now on. Called before the first one is.
///
/// # Errors
/// [`CacheError::ColdWriteBack`], or [`CacheError`] if the device fails.
pub(super) async fn mark_dirty<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    if superblock.after_crash == AfterCrash::Cold {
        return Err(CacheError::ColdWriteBack);
    }
    if !superblock.dirty {
        superblock.dirty = true;
        let written = write_superblock(cache, superblock).await;
        // After a failure, a retry must not find it already set.
        superblock.dirty = written.is_ok();
        written?;
    }
    Ok(())
}

/// The same while shards are served from the device: they are informed if this flush fails, and this flush does not count
/// if one of theirs has failed.
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
    let marked = while_served(env, writes, mark_dirty(cache, superblock)).await;
    superblock.dirty = marked.is_ok();
    marked
}

/// Stores settings in the superblock while shards are served from the device. After an error the device may have the old
/// settings or the new ones.
///
/// # Errors
/// [`CacheError`] if the device fails, or a setting cannot be stored.
pub(super) async fn store_settings_served<C: Device, E: Env>(
    env: &E,
    cache: &C,
    superblock: &mut Superblock,
    writes: &OriginWrites,
    (settings, codec): (StoredSettings, CodecChoice),
) -> Result<(), CacheError> {
    let before = (superblock.settings, superblock.codec);
    if before == (settings, codec) {
        return Ok(());
    }
    (superblock.settings, superblock.codec) = (settings, codec);
    let stored = while_served(env, writes, write_superblock(cache, superblock)).await;
    if stored.is_err() {
        (superblock.settings, superblock.codec) = before;
    }
    stored
}

/// Writes other sizes of the cache to the superblock while shards are served from the device. After an error the device may have
/// either.
///
/// # Errors
/// [`CacheError`] if the device fails.
pub(super) async fn store_sizes_served<C: Device, E: Env>(
    env: &E,
    cache: &C,
    superblock: &mut Superblock,
    writes: &OriginWrites,
    sizes: Geometry,
) -> Result<(), CacheError> {
    assert_eq!(superblock.geometry.layout, sizes.layout, "nothing moves");
    superblock.geometry = sizes;
    while_served(env, writes, write_superblock(cache, superblock)).await
}

/// Stores the size and the identity of an origin that has grown while shards are served from the device. After an error the
/// device may have the old ones or the new ones.
///
/// # Errors
/// [`CacheError`] if the device fails.
pub(super) async fn store_origin_served<C: Device, E: Env>(
    env: &E,
    cache: &C,
    superblock: &mut Superblock,
    writes: &OriginWrites,
    (len, identity): (u64, &str),
) -> Result<(), CacheError> {
    let before = superblock.clone();
    superblock.geometry.origin_len = len;
    superblock.origin_identity = identity.to_owned();
    // It is of the old length, and is taken again at the stop.
    superblock.origin_fingerprint = None;
    let stored = while_served(env, writes, write_superblock(cache, superblock)).await;
    if stored.is_err() {
        // Generations are not used again.
        *superblock = Superblock {
            generation: superblock.generation,
            ..before
        };
    }
    stored
}

/// Awaits a write of the superblock while shards are served: a flush that fails is reported to them, and a flush of theirs
/// that has failed is an error here.
async fn while_served<E: Env>(
    env: &E,
    writes: &OriginWrites,
    written: impl Future<Output = Result<(), CacheError>>,
) -> Result<(), CacheError> {
    let written = async {
        match written.await {
            Err(CacheError::Device(error)) if error.op == DeviceOp::Flush => Err(error),
            outcome => Ok(outcome),
        }
    };
    writes.cache_flushed(env, written).await?
}

/// Records on the cache device, while shards are served from it, that no block is dirty from now on. The caller has made sure of
/// that. After an error the device may say either, so `superblock` says what requires it to be written again before a block
/// becomes dirty.
///
/// # Errors
/// [`CacheError`] if the device fails.
pub(super) async fn mark_not_dirty<C: Device, E: Env>(
    env: &E,
    cache: &C,
    superblock: &mut Superblock,
    writes: &OriginWrites,
) -> Result<(), CacheError> {
    superblock.dirty = false;
    while_served(env, writes, write_superblock(cache, superblock)).await
}

/// Discards the contents of earlier openings: at the user's request, or if structures needed to trust them are damaged.
///
/// # Errors
/// [`CacheError`] if the device fails.
pub(super) async fn start_cold<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    // Shards that were dropped may have written in the current epoch.
    superblock.epoch = next_epoch(superblock)?;
    superblock.valid_from_epoch = superblock.epoch;
    superblock.dirty = false;
    write_superblock(cache, superblock).await?;
    let geometry = superblock.geometry;
    let len = geometry.end() - geometry.data_offset();
    cache.discard(geometry.data_offset(), len).await?;
    Ok(())
}

/// Marks the contents of a cache device as void, because the device failed while it was served.
///
/// # Errors
/// [`CacheError`] if the device fails again.
pub async fn mark_void<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    superblock.valid_from_epoch = Epoch(superblock.epoch.0.saturating_add(1));
    write_superblock(cache, superblock).await
}

/// Marks the cache as stopped cleanly. Every shard must have been saved, and the superblock must have the origin's
/// fingerprint.
///
/// # Errors
/// [`CacheError`] if the device fails.
pub async fn mark_clean<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    superblock.state = State::Clean;
    let page = write_first_slot(cache, superblock).await?;
    let again = IoBuf::copy_of(&page);
    let mut written = write_second_slot(cache, superblock, page).await;
    if written.is_err() {
        written = write_second_slot(cache, superblock, again).await;
    }
    if let Err(error) = written {
        // The first slot has the clean state. If that slot were lost too, the cache would look older than its host record.
        tracing::warn!(%error, "one of the two superblocks cannot be written");
    }
    Ok(())
}

/// Marks a stopped cache as empty, and everything that was ever on it as void.
///
/// # Errors
/// [`CacheError`] if the device fails.
pub async fn mark_empty<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    superblock.state = State::Empty;
    superblock.dirty = false;
    superblock.valid_from_epoch = Epoch(superblock.epoch.0.saturating_add(1));
    write_superblock(cache, superblock).await
}
