//! A whole cache: created, opened, stopped; its superblock.
//!
//! [`LocalCache`] drives all shards on one thread (tests, trace replay). A host with several threads uses the same
//! steps: [`open_superblock`], [`Shard::load_image`] on each thread, [`Shard::stop`] and [`Shard::save`],
//! [`mark_clean`].

use std::rc::Rc;

use flaz_device::{Device, DeviceError, DeviceOp, Env, IoBuf};
use futures_util::future::join_all;
use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::codec::CodecSpec;
use crate::fingerprint::{FINGERPRINT_BYTES, Fingerprint, fingerprint};
use crate::format::FormatError;
use crate::format::geometry::{Geometry, GeometryWish, PAGE_BYTES, SUPERBLOCK_SLOTS};
use crate::format::intent::IntentSector;
use crate::format::superblock::{State, Superblock};
use crate::planted::{PlantedBug, planted};
use crate::router::LocalShards;
use crate::settings::{AfterCrash, Mode, Settings};
use crate::shard::{
    ImageError, OriginWrites, Platform, RecoverError, Recovered, Shard, ShardParts, any_intent,
};
use crate::stats::StatsSnapshot;
use crate::units::Epoch;
use crate::volume::IoError;
use crate::witness::{Distrust, Memory, Witness, judge};

/// Why a cache could not be created, opened or stopped.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The cache device failed.
    #[error("cache device: {0}")]
    Device(#[from] DeviceError),
    /// Neither superblock slot is valid.
    #[error(
        "not a usable flaz cache: slot 0: {first}; slot 1: {second} ({})",
        way_out(first, second)
    )]
    NoSuperblock {
        /// What is wrong with slot 0.
        first: FormatError,
        /// What is wrong with slot 1.
        second: FormatError,
    },
    /// The layout cannot be.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The device is too small to look at.
    #[error("the cache device has {found} bytes, a cache needs at least {expected}")]
    TooSmall {
        /// Bytes needed.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The cache device cannot be written in the sectors that the cache was created for.
    #[error(
        "the cache device has sectors of {found} bytes, the cache was created for {expected}: use a device with such \
         sectors, or create the cache anew"
    )]
    Sectors {
        /// Bytes of a sector in the superblock.
        expected: u32,
        /// The device's granularity.
        found: u32,
    },
    /// The origin is smaller than it was.
    #[error(
        "the origin has {found} bytes, the cache was created for one of {expected}: name the right origin, or create \
         the cache anew"
    )]
    OriginTooSmall {
        /// Bytes in the superblock.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The origin is not as it was when it was served last.
    #[error(
        "the origin has been changed since {since} (its first {bytes} bytes, and those of its partitions, have the \
         fingerprint {found:#010x}, expected {expected:#010x}): what is cached may be old{}, and never write to an origin \
         past its cache",
        if *dirty {
            ", and writes that have not reached the origin no longer fit it; start with --discard-cache --discard-dirty \
             to give all of it up"
        } else {
            "; start with --discard-cache to go on with an empty cache"
        }
    )]
    OriginChanged {
        /// Since when.
        since: Served,
        /// The cache may hold blocks that are newer than the origin.
        dirty: bool,
        /// Bytes that were compared at the start, and at that of each partition.
        bytes: u64,
        /// Fingerprint then.
        expected: u32,
        /// Fingerprint now.
        found: u32,
    },
    /// The origin cannot be read or flushed.
    #[error("origin: {0}")]
    Origin(#[source] DeviceError),
    /// Write-back without a recovery would lose what was acknowledged.
    #[error(
        "write-back needs a cache that is warm after a crash: what was acknowledged would be lost with the index; leave \
         out --after-crash cold"
    )]
    ColdWriteBack,
    /// What would be given up is newer than the origin.
    #[error(
        "the cache holds, or may hold, writes that have not reached the origin: giving it up would lose them. Serve it \
         once as it is, and run `flaz detach`; or give those writes up with --discard-dirty"
    )]
    Dirty,
    /// What is newer than the origin cannot be found again.
    #[error(
        "the cache may hold writes that have not reached the origin, and its log cannot be read: {why}; `flaz check` says \
         more. To serve the origin without them, give them up with --discard-cache --discard-dirty"
    )]
    DirtyUnreadable {
        /// What went wrong.
        why: String,
    },
    /// The index image of a shard could not be written.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// How serving a cache ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It was stopped in order.
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

/// What to do about two bad slots: a cache that was one may hold what the origin lacks.
fn way_out(first: &FormatError, second: &FormatError) -> &'static str {
    match (first, second) {
        (FormatError::Magic { .. }, FormatError::Magic { .. }) => "create one with `flaz create`",
        _ => {
            "it is a cache that is damaged, cut short or newer, and may hold writes that have not reached the origin: put \
             the device back as it was; make it anew only if those may be lost"
        }
    }
}

/// What a new cache is to be.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Its identity.
    pub uuid: Uuid,
    /// Now, seconds since 1970.
    pub created_unix_s: u64,
    /// Sizes that the user chose.
    pub wish: GeometryWish,
    /// Codec for new blocks.
    pub codec: CodecSpec,
    /// Size of the origin in bytes.
    pub origin_len: u64,
    /// What tells the origin from another one.
    pub origin_identity: String,
    /// Where the origin is.
    pub origin_path: String,
}

/// Lays out an empty cache. The old contents of the device are given up.
///
/// # Errors
/// [`CacheError`] when the layout cannot be (nothing is written then) or the device fails.
pub async fn create<C: Device>(cache: &C, options: CreateOptions) -> Result<Superblock, CacheError> {
    let sector_bytes = cache.alignment().max(512);
    let geometry = Geometry::plan(cache.len(), sector_bytes, options.origin_len, options.wish)?;
    let superblock = Superblock {
        uuid: options.uuid,
        generation: 1,
        created_unix_s: options.created_unix_s,
        geometry,
        state: State::Empty,
        epoch: Epoch(0),
        valid_from_epoch: Epoch(1),
        after_crash: AfterCrash::Warm,
        dirty: false,
        codec: options.codec,
        origin_fingerprint: None,
        origin_identity: options.origin_identity,
        origin_path: options.origin_path,
    };
    let page = superblock.to_bytes()?;
    // An old superblock must not survive a create that is cut short.
    for slot in SUPERBLOCK_SLOTS {
        cache.write_at(slot, IoBuf::zeroed(PAGE_BYTES), false).await.1?;
    }
    cache.flush().await?;
    for shard in 0..geometry.shard_count {
        cache
            .write_at(
                geometry.shard_state_offset(shard),
                IoBuf::zeroed(PAGE_BYTES),
                false,
            )
            .await
            .1?;
    }
    clear_intents(cache, &geometry).await?;
    cache
        .discard(
            geometry.data_offset(),
            geometry.shard_offset(geometry.shard_count) - geometry.data_offset(),
        )
        .await?;
    cache.flush().await?;
    for slot in SUPERBLOCK_SLOTS {
        cache.write_at(slot, IoBuf::copy_of(&page), false).await.1?;
        cache.flush().await?;
    }
    Ok(superblock)
}

async fn clear_intents<C: Device>(cache: &C, geometry: &Geometry) -> Result<(), DeviceError> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let mut at = 0;
    while at < geometry.intent_len() {
        let len = CHUNK_BYTES.min(geometry.intent_len() - at);
        let mut buf = IoBuf::new(len as usize);
        for (i, sector) in buf.chunks_exact_mut(512).enumerate() {
            let number = (at / 512) as u32 + i as u32;
            sector.copy_from_slice(IntentSector::clear(number, 0, 0).as_bytes());
        }
        cache
            .write_at(geometry.intent_offset() + at, buf, false)
            .await
            .1?;
        at += len;
    }
    Ok(())
}

/// Reads the superblock that counts.
///
/// # Errors
/// [`CacheError`] when there is none.
pub async fn read_superblock<C: Device>(cache: &C) -> Result<Superblock, CacheError> {
    let needed = SUPERBLOCK_SLOTS[1] + PAGE_BYTES as u64;
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
        let (page, result) = cache.read_at(slot, IoBuf::zeroed(PAGE_BYTES)).await;
        slots.push(match result {
            Ok(()) => Superblock::parse(&page, cache.len()),
            Err(error) => {
                tracing::warn!(%error, "one of the two superblocks cannot be read");
                unreadable = Some(error);
                Superblock::parse(&[0; PAGE_BYTES], cache.len())
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

/// Writes the next generation of the superblock into the slot of the older one, and flushes. After a failure, what is in
/// that slot is not known, and the other one alone is good: the next time the same slot is written again.
///
/// # Errors
/// [`CacheError`] when the device fails.
pub async fn write_superblock<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    superblock.generation = superblock.generation.wrapping_add(1);
    let written = write_slot(cache, superblock).await;
    if written.is_err() {
        // Not the same number once more, for what failed may have landed.
        superblock.generation = superblock.generation.wrapping_add(1);
    }
    written
}

/// Writes the superblock into the slot of its generation, and flushes before and after.
async fn write_slot<C: Device>(cache: &C, superblock: &Superblock) -> Result<(), CacheError> {
    let slot = SUPERBLOCK_SLOTS[(superblock.generation % 2) as usize];
    let page = superblock.to_bytes()?;
    let flushed = superblock.state != State::Open || !planted(PlantedBug::OpenMarkNotFlushed);
    if flushed {
        cache.flush().await?;
    }
    cache.write_at(slot, IoBuf::copy_of(&page), false).await.1?;
    if flushed {
        cache.flush().await?;
    }
    Ok(())
}

/// How a cache starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It was stopped in order: the index images of this epoch hold.
    Warm(Epoch),
    /// It was not stopped in order: the log is read back, but for stripes that had writes in flight.
    Recovered,
    /// Nothing of what was there is used.
    Cold,
    /// It was never served.
    Empty,
}

fn how_to_start(superblock: &Superblock) -> Start {
    match superblock.state {
        State::Clean => Start::Warm(superblock.epoch),
        // Given up: what is there has been overtaken by writes that went past it.
        State::Open if superblock.valid_from_epoch > superblock.epoch => Start::Cold,
        State::Open => Start::Recovered,
        State::Empty => Start::Empty,
    }
}

/// Marks the cache as being served, in a new epoch, and says how it starts, given how far it can be believed. What a crash
/// of this opening leaves is what the superblock was told before; of what is not believed, nothing.
///
/// # Errors
/// [`CacheError`] when the device fails.
pub async fn open_superblock<C: Device>(
    cache: &C,
    superblock: &mut Superblock,
    belief: Belief,
) -> Result<Start, CacheError> {
    let start = match (how_to_start(superblock), belief) {
        (Start::Empty, _) => Start::Empty,
        (_, Belief::Nothing) => Start::Cold,
        (_, Belief::DirtyAlone) => Start::Recovered,
        (start, Belief::Whole) => start,
    };
    superblock.state = State::Open;
    superblock.epoch = next_epoch(superblock)?;
    match start {
        Start::Empty => superblock.valid_from_epoch = superblock.epoch,
        // Not first at the cold start: its generation is ahead of what the host noted from now on, and its origin the one
        // that is there now, so that after a crash in between nothing would tell that it must not be believed.
        Start::Cold => superblock.valid_from_epoch = next_epoch(superblock)?,
        Start::Warm(_) | Start::Recovered => {}
    }
    // Into both slots: with one alone, losing that sector would bring the old *clean* back, and with it an index
    // from before everything that is written from now on.
    write_superblock(cache, superblock).await?;
    write_superblock(cache, superblock).await?;
    Ok(start)
}

fn next_epoch(superblock: &Superblock) -> Result<Epoch, FormatError> {
    let epoch = superblock.epoch.0;
    let next = epoch.checked_add(1).map(Epoch);
    next.ok_or_else(|| FormatError::field("superblock", "epoch", "below 4294967295", epoch))
}

/// Says on the cache device that blocks may be dirty from now on. Before the first one is.
///
/// # Errors
/// [`CacheError::ColdWriteBack`], or [`CacheError`] when the device fails.
pub async fn mark_dirty<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    if superblock.after_crash == AfterCrash::Cold {
        return Err(CacheError::ColdWriteBack);
    }
    if !superblock.dirty {
        superblock.dirty = true;
        // Into both slots, as at an opening.
        let mut written = write_superblock(cache, superblock).await;
        if written.is_ok() {
            written = write_superblock(cache, superblock).await;
        }
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
pub async fn mark_dirty_served<C: Device, E: Env>(
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
pub async fn start_cold<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    // Shards that were thrown away may have written in this one.
    superblock.epoch = next_epoch(superblock)?;
    superblock.valid_from_epoch = superblock.epoch;
    superblock.dirty = false;
    // Into both slots, as at an opening: with one alone, losing that sector would bring back what is given up.
    write_superblock(cache, superblock).await?;
    write_superblock(cache, superblock).await?;
    let geometry = superblock.geometry;
    let len = geometry.shard_offset(geometry.shard_count) - geometry.data_offset();
    cache.discard(geometry.data_offset(), len).await?;
    Ok(())
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

/// Marks what is on a cache device that failed while it was served as never to be used again.
///
/// # Errors
/// [`CacheError`] when the device fails again.
pub async fn mark_void<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    superblock.valid_from_epoch = Epoch(superblock.epoch.0.saturating_add(1));
    // Into both slots, as at an opening.
    write_superblock(cache, superblock).await?;
    write_superblock(cache, superblock).await
}

/// Whether the origin is what it was when it was served last, as far as that can be told: by the superblock after a clean
/// stop, after a crash by what the host remembers, unless clients may have been writing there. To be asked before
/// [`open_superblock`].
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
    let (since, expected) = match how_to_start(superblock) {
        Start::Warm(_) => (Served::UntilStop, superblock.origin_fingerprint),
        Start::Recovered => (Served::UntilCrash, noted.and_then(|memory| memory.origin)),
        Start::Cold | Start::Empty => return Ok(()),
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
    if found.value == expected {
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

/// Marks the cache as stopped in order. Every shard must have been saved, and the fingerprint of the origin be in the
/// superblock.
///
/// # Errors
/// [`CacheError`] when the device fails.
pub async fn mark_clean<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    superblock.state = State::Clean;
    write_superblock(cache, superblock).await
}

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
    // Into both slots, as at an opening.
    write_superblock(cache, superblock).await?;
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

/// Marks a stopped cache as holding nothing, and nothing that was ever on it as valid.
///
/// # Errors
/// [`CacheError`] when the device fails.
pub async fn mark_empty<C: Device>(cache: &C, superblock: &mut Superblock) -> Result<(), CacheError> {
    superblock.state = State::Empty;
    superblock.dirty = false;
    superblock.valid_from_epoch = Epoch(superblock.epoch.0.saturating_add(1));
    // Into both slots, as at an opening.
    write_superblock(cache, superblock).await?;
    write_superblock(cache, superblock).await
}

/// A cache whose shards all live on one thread.
pub struct LocalCache<P: Platform> {
    env: P::Env,
    cache: Rc<P::Cache>,
    origin: Rc<P::Origin>,
    witness: Option<Rc<dyn Witness>>,
    superblock: Superblock,
    shards: LocalShards<P>,
    /// How it started.
    pub start: Start,
    /// What was found after a crash.
    pub recovered: Recovered,
}

impl<P: Platform> LocalCache<P> {
    /// Opens a cache: warm after a clean stop or a crash; cold where what that needs is damaged.
    ///
    /// # Errors
    /// [`CacheError`] when there is no cache or the device fails.
    pub async fn open(
        env: P::Env,
        cache: Rc<P::Cache>,
        origin: Rc<P::Origin>,
        settings: Settings,
    ) -> Result<Self, CacheError> {
        Self::open_with(env, cache, origin, settings, AfterCrash::Warm).await
    }

    /// Opens a cache, and says what a crash of this opening leaves.
    ///
    /// # Errors
    /// [`CacheError`] when there is no cache or the device fails.
    pub async fn open_with(
        env: P::Env,
        cache: Rc<P::Cache>,
        origin: Rc<P::Origin>,
        settings: Settings,
        after_crash: AfterCrash,
    ) -> Result<Self, CacheError> {
        Self::open_witnessed(env, cache, origin, settings, after_crash, None).await
    }

    /// Opens a cache about which `witness` knows.
    ///
    /// # Errors
    /// [`CacheError`] when there is no cache or the device fails.
    pub async fn open_witnessed(
        env: P::Env,
        cache: Rc<P::Cache>,
        origin: Rc<P::Origin>,
        settings: Settings,
        after_crash: AfterCrash,
        witness: Option<Rc<dyn Witness>>,
    ) -> Result<Self, CacheError> {
        let mut superblock = read_superblock(&*cache).await?;
        superblock.after_crash = after_crash;
        let expected = superblock.geometry.origin_len;
        if origin.len() < expected {
            return Err(CacheError::OriginTooSmall {
                expected,
                found: origin.len(),
            });
        }
        let write_back = settings.mode == Mode::WriteBack;
        if after_crash == AfterCrash::Cold && (write_back || superblock.dirty) {
            return Err(CacheError::ColdWriteBack);
        }
        let origin_writes = OriginWrites::default();
        let memory = match &witness {
            Some(witness) => witness.recall().await,
            None => None,
        };
        let belief = believe(&mut superblock, memory)?;
        if belief == Belief::Whole {
            check_origin(&*cache, &*origin, &superblock, memory).await?;
        }
        let mut start = open_superblock(&*cache, &mut superblock, belief).await?;
        let mut recovered = Recovered::default();
        let build = |superblock: &Superblock| -> Vec<Rc<Shard<P>>> {
            (0..superblock.geometry.shard_count)
                .map(|number| {
                    Shard::new(ShardParts {
                        number,
                        geometry: superblock.geometry,
                        cache_id: superblock.cache_id(),
                        epoch: superblock.epoch,
                        valid_from: superblock.valid_from_epoch,
                        may_be_dirty: superblock.dirty,
                        after_crash: superblock.after_crash,
                        env: env.clone(),
                        cache: Rc::clone(&cache),
                        origin: Rc::clone(&origin),
                        settings: settings.clone(),
                        origin_writes: origin_writes.clone(),
                        witness: witness.clone(),
                    })
                })
                .collect()
        };
        let mut shards = build(&superblock);
        if let Start::Warm(epoch) = start {
            for shard in &shards {
                if let Err(error) = shard.load_image(epoch).await {
                    start = without_image(&*cache, &mut superblock, &error).await?;
                    shards = build(&superblock);
                    break;
                }
            }
        }
        if start == Start::Recovered {
            if belief == Belief::DirtyAlone {
                for shard in &shards {
                    shard.distrust().await?;
                }
            }
            // All at once, as on the threads of a host: what one waits for, others use.
            for part in join_all(shards.iter().map(|shard| shard.recover(|| ()))).await {
                match part {
                    Ok(part) => recovered.add(&part),
                    Err(error) => {
                        start = without_log(&superblock, &error)?;
                        break;
                    }
                }
            }
        }
        if start == Start::Cold {
            start_cold(&*cache, &mut superblock).await?;
            shards = build(&superblock);
        }
        if write_back {
            mark_dirty(&*cache, &mut superblock).await?;
        }
        if matches!(start, Start::Cold | Start::Empty) {
            settle_origin(&*origin).await?;
        }
        if let Some(witness) = &witness {
            let found = look_at_origin(&*origin, &origin_writes, &mut superblock).await;
            if let Some(found) = &found {
                origin_writes.watch_from(found);
            }
            witness.note(Memory::of(&superblock)).await;
        }
        for shard in &shards {
            shard.permit_write_back(superblock.dirty);
            shard.start();
        }
        Ok(Self {
            env,
            cache,
            origin,
            witness,
            superblock,
            shards: LocalShards::new(shards),
            start,
            recovered,
        })
    }

    /// Lets write-back be chosen with [`LocalCache::set`], if it was not when the cache was opened.
    ///
    /// # Errors
    /// [`CacheError`] as for [`mark_dirty`].
    pub async fn permit_write_back(&mut self) -> Result<(), CacheError> {
        if let Some(shard) = self.shards.iter().next() {
            let writes = shard.origin_writes();
            mark_dirty_served(&self.env, &*self.cache, &mut self.superblock, writes).await?;
        }
        if let Some(witness) = &self.witness {
            witness.note_dirty(self.superblock.generation).await;
        }
        for shard in self.shards.iter() {
            shard.permit_write_back(true);
        }
        Ok(())
    }

    /// Brings everything that is dirty to the origin.
    ///
    /// # Errors
    /// [`IoError`]: something stays dirty.
    pub async fn clean_all(&self) -> Result<(), IoError> {
        for shard in self.shards.iter() {
            shard.clean_all().await?;
        }
        Ok(())
    }

    /// The shards.
    #[must_use]
    pub fn shards(&self) -> LocalShards<P> {
        self.shards.clone()
    }

    /// The superblock of this opening.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Everything counted and held.
    #[must_use]
    pub fn stats(&self) -> StatsSnapshot {
        let mut total = StatsSnapshot::default();
        for shard in self.shards.iter() {
            total.add(&shard.stats());
        }
        total
    }

    /// Changes settings of all shards.
    pub fn set(&self, settings: &Settings) {
        for shard in self.shards.iter() {
            shard.set(settings);
        }
    }

    /// Waits until everything admitted so far has been stored and regions are free again.
    ///
    /// # Errors
    /// [`CacheError`] when the cache device fails; the next start is then cold.
    pub async fn stop(mut self) -> Result<Superblock, CacheError> {
        for shard in self.shards.iter() {
            shard.stop().await;
        }
        let dirty = self.shards.iter().any(|shard| shard.dirty_blocks() > 0);
        // Where blocks are dirty the intents, all of them set, make the others void.
        if !dirty && self.shards.iter().any(|shard| shard.failed()) {
            mark_void(&*self.cache, &mut self.superblock).await?;
        }
        if planted(PlantedBug::CleanBeforeImage) {
            mark_clean(&*self.cache, &mut self.superblock).await?;
        }
        for shard in self.shards.iter() {
            shard.save().await?;
        }
        // Nothing was written since the flush of the last shard.
        let writes = self
            .shards
            .iter()
            .next()
            .map(|shard| shard.origin_writes().clone());
        look_at_origin(&*self.origin, &writes.unwrap_or_default(), &mut self.superblock).await;
        // Saving may have cleaned the last ones.
        self.superblock.dirty = self.shards.iter().any(|shard| shard.dirty_blocks() > 0);
        if !planted(PlantedBug::CleanBeforeImage) {
            mark_clean(&*self.cache, &mut self.superblock).await?;
        }
        if let Some(witness) = &self.witness {
            witness.note(Memory::of(&self.superblock)).await;
        }
        Ok(self.superblock)
    }
}
