//! A whole cache: created, opened, stopped; its superblock.
//!
//! [`LocalCache`] drives all shards on one thread (tests, trace replay). A host with several threads uses the same
//! steps: [`open_superblock`], [`Shard::load_image`] on each thread, [`Shard::stop`] and [`Shard::save`],
//! [`mark_clean`].

mod belief;
mod create;
mod error;
mod superblock;

use std::rc::Rc;

use flaz_device::Device;
use futures_util::future::join_all;

pub use belief::{Belief, believe, check_origin, look_at_origin, settle_origin, without_image, without_log};
pub use create::{CreateOptions, create};
pub use error::{CacheError, Served};
pub use superblock::{
    Start, mark_clean, mark_dirty, mark_dirty_served, mark_empty, mark_void, open_superblock,
    read_superblock, start_cold, write_superblock,
};

use crate::format::superblock::Superblock;
use crate::planted::{PlantedBug, planted};
use crate::router::LocalShards;
use crate::settings::{AfterCrash, Mode, Settings};
use crate::shard::{OriginWrites, Platform, Recovered, Shard, ShardParts};
use crate::stats::StatsSnapshot;
use crate::volume::IoError;
use crate::witness::{Memory, Witness};

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
        if belief != Belief::Nothing {
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
        let mut saved = Ok(());
        // Where blocks are dirty the intents, all of them set, make the others void.
        if !dirty && self.shards.iter().any(|shard| shard.failed()) {
            saved = mark_void(&*self.cache, &mut self.superblock).await;
        }
        if planted(PlantedBug::CleanBeforeImage) {
            mark_clean(&*self.cache, &mut self.superblock).await?;
        }
        for shard in self.shards.iter() {
            saved = saved.and(shard.save().await.map_err(CacheError::from));
        }
        // Nothing was written since the flush of the last shard.
        let writes = self
            .shards
            .iter()
            .next()
            .map(|shard| shard.origin_writes().clone());
        look_at_origin(&*self.origin, &writes.unwrap_or_default(), &mut self.superblock).await;
        if let (Err(_), Some(witness)) = (&saved, &self.witness) {
            witness.note_stopped(self.superblock.origin_fingerprint).await;
        }
        saved?;
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
