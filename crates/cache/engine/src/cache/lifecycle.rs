//! The life of a whole cache: the order of the steps that open it, permit write-back and close it.
//!
//! The daemon, the offline commands and the simulation all open and close caches here. The shards may live on this thread
//! or on others ([`ShardSet`]).
//!
//! Opening:
//! 1. Decide how far the device is trusted: host record, other caches of the same origin.
//! 2. Compare the origin with the one that was served last.
//! 3. Mark the cache open, in a new epoch.
//! 4. Build the shards; load the index images, or recover from the log, or start cold.
//! 5. If the cache starts empty, flush the origin. Take the origin's fingerprint.
//! 6. Mark the cache dirty if the mode is write-back. Not earlier: a start that is refused in step 5 leaves a cache that
//!    may be discarded as before.
//! 7. Write the host record.
//! 8. Permit write-back to the shards, and start them.
//!
//! Closing:
//! 1. Stop the shards.
//! 2. If a shard was fenced and no block is dirty, mark the cache void. Before step 3, which takes long: writes went past
//!    the cache, and a power cut during step 3 must not leave a cache that recovery would use.
//! 3. Write the index images. If a shard was fenced meanwhile, mark the cache void now.
//! 4. Take the origin's fingerprint; nothing was written since the last flush.
//! 5. Mark the cache clean (or empty, after a detach), then write the host record.
//!
//! Invariants:
//! - The superblock says *open* before anything else is written, and *clean* after everything else is stable.
//! - While shards run, the superblock is written to permit and withdraw write-back, to store settings, to change the size of the
//!   cache ([`super::resize`]), and for an origin that has grown, nothing else.
//! - The superblock says *dirty* before the first block can become dirty, and the host record before the first shard runs. It
//!   stops saying so when no shard has a dirty block or may get one.

mod growth;

use std::time::Duration;

use flaz_codec::CodecChoice;
use flaz_device::{Device, Env};

use super::error::{CacheError, Unreadable, Untrusted};
use super::origin::{check, settle, take_fingerprint};
use super::shard_set::{ShardSet, ShardsState};
use super::start::{Start, open_superblock};
use super::superblock::{
    mark_clean, mark_dirty, mark_dirty_served, mark_empty, mark_not_dirty, mark_void, next_epoch, start_cold,
    store_settings_served, write_superblock,
};
use super::surroundings::Surroundings;
use super::trust::{Trust, Verdict, after_other_cache, of_device};
use crate::format::geometry::Geometry;
use crate::format::superblock::Superblock;
use crate::host_record::{HostRecord, NotedOrigin, OtherCache};
use crate::planted::{PlantedBug, planted};
use crate::settings::{AfterCrash, StoredSettings};
use crate::shard::{ImageError, Platform, Recovered, ResizeStep};

/// What to do with the contents of a cache at its opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// Keep them.
    #[default]
    Nothing,
    /// Discard them; refuse if blocks may be dirty.
    Clean,
    /// Discard them, dirty blocks included.
    All,
}

/// How to open a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// The mode is write-back.
    pub write_back: bool,
    /// State of the cache after a crash of this opening.
    pub after_crash: AfterCrash,
    /// What to do with the contents.
    pub discard: Discard,
}

/// How an opening went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// How the cache started.
    pub start: Start,
    /// What recovery found, after a crash.
    pub recovered: Recovered,
    /// How long it took to build the shards and fill their indexes.
    pub restored_in: Duration,
}

/// The state in which a close leaves the cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The contents, for the next opening.
    Contents,
    /// An empty cache, unless blocks are dirty.
    Empty,
}

/// A cache that is open.
#[derive(Debug)]
pub struct Lifecycle {
    pub(super) superblock: Superblock,
    /// The sizes after the shrink under way.
    pub(super) shrink: Option<Geometry>,
    /// The shards give space back.
    pub(super) giving: bool,
    /// Not every shard may have heard of the sizes in the superblock.
    pub(super) unsettled: bool,
}

impl Lifecycle {
    /// Opens a cache whose superblock was read: warm after a clean stop or a crash, cold where the contents are damaged or
    /// not trusted. The shards run on return.
    ///
    /// # Errors
    /// [`CacheError`]: the cache is not open. No shard was started.
    pub async fn open<P: Platform, S: ShardSet>(
        around: &Surroundings<P>,
        mut superblock: Superblock,
        options: OpenOptions,
        shards: &S,
    ) -> Result<(Self, Opened), CacheError> {
        let expected = superblock.geometry.origin_len;
        if around.origin.len() < expected {
            let found = around.origin.len();
            return Err(CacheError::OriginTooSmall { expected, found });
        }
        superblock.after_crash = options.after_crash;
        let trust = decide_trust(around, &mut superblock, options).await?;
        if superblock.contradicted && trust != Trust::Nothing {
            let why = Unreadable::Contradicted;
            return Err(CacheError::DirtyUnreadable { why });
        }
        let start = open_superblock(&*around.cache, &mut superblock, trust).await?;
        let mut opening = Opening {
            around,
            superblock,
            shards,
        };
        let opened = opening.restore(start, trust).await?;
        let mut superblock = opening.superblock;
        if options.write_back && planted(PlantedBug::DirtyMarkedEarly) {
            mark_dirty(&*around.cache, &mut superblock).await?;
        }
        if !opened.start.keeps_contents() {
            settle(&*around.origin).await?;
        }
        if around.host_records.is_some() {
            let writes = shards.origin_writes();
            if let Some(found) = take_fingerprint(&*around.origin, writes, &mut superblock).await {
                writes.watch_from(&found);
            }
        }
        if options.write_back {
            mark_dirty(&*around.cache, &mut superblock).await?;
        }
        if let Some(records) = &around.host_records {
            records.note(HostRecord::of(&superblock)).await;
            records.note_cache_of(&superblock.origin_identity).await;
        }
        shards.permit_write_back(superblock.dirty).await?;
        shards.start().await?;
        if around.cache.shares_space() {
            // A crash after a shrink may have left space to regions that do not exist.
            let regions = superblock.geometry.regions_per_shard;
            shards.resize(ResizeStep::EndShrink(regions)).await?;
        }
        let this = Self {
            superblock,
            shrink: None,
            giving: false,
            unsettled: false,
        };
        Ok((this, opened))
    }

    /// The superblock as it was written last.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Permits the mode to become write-back while the cache is served.
    ///
    /// # Errors
    /// [`CacheError`] when the device fails, or the cache was opened to be cold after a crash. Then the mode stays.
    pub async fn permit_write_back<P: Platform, S: ShardSet>(
        &mut self,
        around: &Surroundings<P>,
        shards: &S,
    ) -> Result<(), CacheError> {
        let writes = shards.origin_writes();
        mark_dirty_served(&around.env, &*around.cache, &mut self.superblock, writes).await?;
        if let Some(records) = &around.host_records {
            records.note_dirty(true, self.superblock.generation).await;
        }
        Ok(shards.permit_write_back(true).await?)
    }

    /// Stores settings in the superblock, for the next openings; they are stable on return. The settings of this opening do
    /// not change. The host record is not written: the device may be ahead of it.
    ///
    /// # Errors
    /// [`CacheError`] when the device fails, or was fenced. The device may have the old settings or these.
    pub async fn store_settings<P: Platform, S: ShardSet>(
        &mut self,
        around: &Surroundings<P>,
        shards: &S,
        settings: StoredSettings,
        codec: CodecChoice,
    ) -> Result<(), CacheError> {
        if shards.state().await?.fenced {
            return Err(CacheError::Fenced);
        }
        let (cache, writes) = (&*around.cache, shards.origin_writes());
        let stored = (settings, codec);
        store_settings_served(&around.env, cache, &mut self.superblock, writes, stored).await
    }

    /// Withdraws the permission for write-back, and marks the cache as not dirty if the origin has every block: damage to the
    /// cache then never refuses a start. Returns whether the cache is marked. The mode of the shards is another one.
    ///
    /// A shard without the permission, without dirty blocks and without a write that may leave one stays like that. The origin
    /// holds all that was dirty, stable, so recovery may drop what it still finds of it.
    ///
    /// # Errors
    /// [`CacheError`] when the device fails. It may then say either; [`Lifecycle::permit_write_back`] marks it again.
    pub async fn withdraw_write_back<P: Platform, S: ShardSet>(
        &mut self,
        around: &Surroundings<P>,
        shards: &S,
    ) -> Result<bool, CacheError> {
        if !self.superblock.dirty {
            return Ok(true);
        }
        shards.permit_write_back(false).await?;
        let state = shards.state().await?;
        if state.fenced || state.dirty_blocks > 0 || state.dirty_writes > 0 {
            return Ok(false);
        }
        let writes = shards.origin_writes();
        mark_not_dirty(&around.env, &*around.cache, &mut self.superblock, writes).await?;
        if let Some(records) = &around.host_records {
            records.note_dirty(false, self.superblock.generation).await;
        }
        Ok(true)
    }

    /// Stops the shards and closes the cache. No requests arrive any more. Returns the number of blocks that the origin
    /// lacks.
    ///
    /// # Errors
    /// [`CacheError`]: the cache is not marked clean; the next opening recovers it, or starts cold if the device was
    /// fenced.
    pub async fn close<P: Platform, S: ShardSet>(
        &mut self,
        around: &Surroundings<P>,
        shards: &S,
        leave: Leave,
    ) -> Result<u64, CacheError> {
        // The shards would call a shrink off too. Those that cannot be reached fail the stop.
        let called_off = self.cancel_resize(shards).await;
        self.shrink = None;
        shards.stop().await?;
        called_off?;
        let mut voided = Ok(false);
        if !planted(PlantedBug::VoidedAfterSave) {
            voided = self.void_if_fenced(around, shards.state().await?).await;
        }
        if planted(PlantedBug::CleanBeforeImage) {
            mark_clean(&*around.cache, &mut self.superblock).await?;
        }
        let saved = shards.save().await?;
        // Saving may have written back the last dirty blocks, or have fenced the device.
        let state = shards.state().await?;
        if matches!(voided, Ok(false)) {
            voided = self.void_if_fenced(around, state).await;
        }
        take_fingerprint(&*around.origin, shards.origin_writes(), &mut self.superblock).await;
        let fenced = if state.fenced {
            Err(CacheError::Fenced)
        } else {
            Ok(())
        };
        if let Err(error) = voided.and(saved.map_err(CacheError::from)).and(fenced) {
            if let Some(records) = &around.host_records {
                records.note_stopped(NotedOrigin::of(&self.superblock)).await;
            }
            return Err(error);
        }
        self.superblock.dirty = state.dirty_blocks > 0;
        self.superblock.budget_used = Some(state.budget_used);
        if leave == Leave::Empty && !self.superblock.dirty {
            mark_empty(&*around.cache, &mut self.superblock).await?;
        } else if !planted(PlantedBug::CleanBeforeImage) {
            mark_clean(&*around.cache, &mut self.superblock).await?;
        }
        if let Some(records) = &around.host_records {
            records.note(HostRecord::of(&self.superblock)).await;
        }
        Ok(state.dirty_blocks)
    }

    /// Marks the contents as void if writes went past them. With dirty blocks the log is still needed; the fenced shard's
    /// intents, all of them set, void its clean blocks. Returns whether the cache was marked.
    async fn void_if_fenced<P: Platform>(
        &mut self,
        around: &Surroundings<P>,
        state: ShardsState,
    ) -> Result<bool, CacheError> {
        let void = state.fenced && state.dirty_blocks == 0;
        if void {
            mark_void(&*around.cache, &mut self.superblock).await?;
        }
        Ok(void)
    }
}

/// Applies `discard`, and decides how far the device is trusted: whether anything on it will be used. What is lost is logged
/// only if nothing refuses the start.
async fn decide_trust<P: Platform>(
    around: &Surroundings<P>,
    superblock: &mut Superblock,
    options: OpenOptions,
) -> Result<Trust, CacheError> {
    let discard = options.discard;
    let mut record = match &around.host_records {
        Some(records) => records.recall().await,
        None => None,
    };
    if discard == Discard::Clean && superblock.dirty {
        return Err(CacheError::Dirty);
    }
    let was_dirty =
        discard == Discard::All && (superblock.dirty || record.is_some_and(|record| record.dirty));
    if discard != Discard::Nothing {
        superblock.dirty = false;
    }
    if discard == Discard::All
        && let Some(record) = &mut record
    {
        record.dirty = false;
    }
    if options.after_crash == AfterCrash::Cold {
        if options.write_back {
            return Err(CacheError::ColdWriteBack);
        }
        if superblock.dirty {
            return Err(CacheError::ColdDirty);
        }
    }
    let (Verdict { trust, why }, other) = judge(around, superblock, record, discard).await?;
    if discard != Discard::Nothing {
        report_discard(was_dirty, other.filter(|other| other.dirty).as_ref());
        return Ok(Trust::Nothing);
    }
    match why {
        Some(why) if trust == Trust::Nothing => {
            tracing::error!("the cache starts cold (no data is lost): {why}");
        }
        Some(why) => tracing::error!("only dirty blocks are kept: {why}"),
        None => {}
    }
    Ok(trust)
}

/// How far the device is trusted, and the cache that served the origin last, if it is another one.
///
/// # Errors
/// The start is refused.
async fn judge<P: Platform>(
    around: &Surroundings<P>,
    superblock: &mut Superblock,
    record: Option<HostRecord>,
    discard: Discard,
) -> Result<(Verdict, Option<OtherCache>), CacheError> {
    let mut verdict = of_device(superblock, record)?;
    let other = match &around.host_records {
        Some(records) => records.other_cache(&superblock.origin_identity).await,
        None => None,
    };
    if let Some(other) = &other {
        verdict = after_other_cache(verdict, superblock, other, discard == Discard::All)?;
    }
    if discard == Discard::Nothing && verdict.trust != Trust::Nothing {
        check(&*around.cache, &*around.origin, superblock, record).await?;
    }
    Ok((verdict, other))
}

/// Makes the checks of [`Lifecycle::open`] that come before its first write, for a report about an idle cache. Returns why clean
/// blocks would not be used, if they would not.
///
/// # Errors
/// [`CacheError`]: the opening would be refused.
pub async fn foresee<P: Platform>(
    around: &Surroundings<P>,
    mut superblock: Superblock,
) -> Result<Option<Untrusted>, CacheError> {
    let (expected, found) = (superblock.geometry.origin_len, around.origin.len());
    if found < expected {
        return Err(CacheError::OriginTooSmall { expected, found });
    }
    let record = match &around.host_records {
        Some(records) => records.recall().await,
        None => None,
    };
    let judged = judge(around, &mut superblock, record, Discard::Nothing).await?;
    Ok(judged.0.why)
}

/// Logs what a start discards at the user's request: the contents of this cache, which `was_dirty`, and the dirty blocks of
/// another one.
fn report_discard(was_dirty: bool, other: Option<&OtherCache>) {
    if was_dirty {
        tracing::warn!(
            "--discard-cache --discard-dirty: the cache starts empty; its dirty blocks, writes that have not reached the \
             origin, are lost"
        );
    } else {
        tracing::warn!("--discard-cache: the cache starts empty; it had no dirty blocks");
    }
    if let Some(other) = other {
        tracing::warn!(
            "--discard-dirty: the dirty blocks of another cache ({other}), writes that have not reached the origin, are lost"
        );
    }
}

/// A cache that is being opened.
struct Opening<'a, P: Platform, S> {
    around: &'a Surroundings<P>,
    superblock: Superblock,
    shards: &'a S,
}

impl<P: Platform, S: ShardSet> Opening<'_, P, S> {
    /// Builds the shards and fills their indexes as well as the contents permit.
    async fn restore(&mut self, start: Start, trust: Trust) -> Result<Opened, CacheError> {
        let mut opened = Opened {
            start,
            recovered: Recovered::default(),
            restored_in: Duration::ZERO,
        };
        let begun = self.around.env.now();
        self.shards.build(&self.superblock).await?;
        let mut from_log = start == Start::Recovered;
        if let Start::Warm(epoch) = opened.start {
            match self.shards.load_images(epoch).await? {
                Ok(0) => {}
                Ok(refused) => tracing::warn!("{refused} index entries were invalid and were skipped"),
                Err(error) => {
                    let is_absent = matches!(error, ImageError::Absent { .. });
                    let instead = self.without_images(error).await?;
                    from_log = instead == Start::Recovered;
                    if !is_absent {
                        opened.start = instead;
                    }
                }
            }
        }
        if from_log {
            match self.shards.recover(trust).await? {
                Ok(recovered) => {
                    opened.recovered = recovered;
                    report_recovery(&recovered, self.around.env.now().since(begun));
                }
                Err(why) if self.superblock.dirty => {
                    return Err(CacheError::DirtyUnreadable {
                        why: Unreadable::Recovery(why),
                    });
                }
                Err(why) => opened.start = cold(&why),
            }
        }
        if opened.start == Start::Cold {
            start_cold(&*self.around.cache, &mut self.superblock).await?;
            self.shards.build(&self.superblock).await?;
        }
        opened.restored_in = self.around.env.now().since(begun);
        Ok(opened)
    }

    /// How to start without usable index images. Where the log has the same contents, and where blocks may be dirty, from the log, in a new
    /// epoch: shards that had loaded their image and are dropped now may have written to the log in this one, and moved dirty blocks. If an image and the
    /// manifest contradict each other, the log that the manifest describes may lack the newest versions, so the cache is not
    /// opened.
    async fn without_images(&mut self, error: ImageError) -> Result<Start, CacheError> {
        let is_absent = matches!(error, ImageError::Absent { .. });
        let log_has_all = is_absent || matches!(error, ImageError::Damaged { .. });
        if !self.superblock.dirty && !log_has_all {
            return Ok(cold(&error));
        }
        if let ImageError::Contradiction { .. } = error {
            // The state page counts for this opening alone: the next one would follow the log.
            self.superblock.contradicted = true;
            write_superblock(&*self.around.cache, &mut self.superblock).await?;
            let why = Unreadable::Image(error);
            return Err(CacheError::DirtyUnreadable { why });
        }
        match is_absent {
            true => tracing::info!("the log is read: {error}"),
            false => tracing::warn!(%error, "the log is read instead"),
        }
        self.superblock.epoch = next_epoch(&self.superblock)?;
        write_superblock(&*self.around.cache, &mut self.superblock).await?;
        self.shards.build(&self.superblock).await?;
        Ok(Start::Recovered)
    }
}

fn cold(why: &dyn std::fmt::Display) -> Start {
    tracing::warn!("the cache starts cold (no data is lost): {why}");
    Start::Cold
}

fn report_recovery(recovered: &Recovered, took: Duration) {
    let seconds = took.as_secs_f64();
    tracing::warn!(
        "recovered from the log in {seconds:.3} s: regions: {}, cached blocks: {}, dirty ones: {}; stripes with writes in flight: {}, \
         clean blocks dropped for them: {}; those are read from the origin",
        recovered.regions,
        recovered.blocks,
        recovered.dirty,
        recovered.stripes,
        recovered.dropped
    );
}
