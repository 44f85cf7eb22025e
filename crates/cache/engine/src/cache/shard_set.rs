//! All shards of a cache, on this thread or on others, as the lifecycle drives them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::future::join_all;

use super::error::ShardsUnreachable;
use super::surroundings::Surroundings;
use super::trust::Trust;
use crate::advise::SharedSamples;
use crate::format::superblock::Superblock;
use crate::settings::Settings;
use crate::shard::{
    ImageError, OriginWrites, Platform, RecoverError, Recovered, ResizeStep, Shard, ShardParts, Shrinking,
};
use crate::stats::StatsSnapshot;
use crate::units::Epoch;

/// The outcome of a request to all shards: the outer error means that shards could not be reached.
pub type Reached<T> = Result<T, ShardsUnreachable>;

/// Sums of the states of all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardsState {
    /// Number of dirty blocks.
    pub dirty_blocks: u64,
    /// Number of writes in flight that may leave dirty blocks.
    pub dirty_writes: u64,
    /// The cache device failed a shard, and writes may have bypassed it.
    pub fenced: bool,
    /// Bytes taken from the write budget that time has not refilled yet.
    pub budget_used: u64,
}

impl ShardsState {
    /// Adds the state of other shards.
    pub fn add(&mut self, other: Self) {
        self.dirty_blocks += other.dirty_blocks;
        self.dirty_writes += other.dirty_writes;
        self.fenced |= other.fenced;
        self.budget_used = self.budget_used.saturating_add(other.budget_used);
    }
}

/// All shards of a cache. Each step is complete in every shard on return.
#[expect(
    async_fn_in_trait,
    reason = "a lifecycle belongs to one thread; no Send bound is wanted"
)]
pub trait ShardSet {
    /// Replaces the shards with new, empty ones that are not started.
    async fn build(&self, superblock: &Superblock) -> Reached<()>;

    /// Loads the index images of the clean stop that ended `epoch`. Returns the number of refused entries.
    async fn load_images(&self, epoch: Epoch) -> Reached<Result<u64, ImageError>>;

    /// Recovers from the log after a crash; with [`Trust::DirtyOnly`] clean blocks are dropped.
    async fn recover(&self, trust: Trust) -> Reached<Result<Recovered, RecoverError>>;

    /// Sets whether the superblock permits dirty blocks.
    async fn permit_write_back(&self, permitted: bool) -> Reached<()>;

    /// Starts the tasks of the shards.
    async fn start(&self) -> Reached<()>;

    /// Stops the shards; everything admitted is on the cache device on return.
    async fn stop(&self) -> Reached<()>;

    /// Writes the index images.
    async fn save(&self) -> Reached<Result<(), ImageError>>;

    /// Dirty blocks, writes that may leave some, and whether the cache device is still in use.
    async fn state(&self) -> Reached<ShardsState>;

    /// Takes a step of a change of the number of regions. Returns the sum of how far the shards are.
    async fn resize(&self, step: ResizeStep) -> Reached<Shrinking>;

    /// Serves an origin that has grown to `len` bytes from now on. The superblock says so, stable.
    async fn grow_origin(&self, len: u64) -> Reached<()>;

    /// The counts that all shards share.
    fn origin_writes(&self) -> &OriginWrites;
}

/// Combines the outcomes of saving: a failed cache device takes precedence over other errors.
pub fn worst_save(outcomes: impl IntoIterator<Item = Result<(), ImageError>>) -> Result<(), ImageError> {
    let mut worst = Ok(());
    for outcome in outcomes {
        if worst.is_ok() || matches!(outcome, Err(ImageError::Failed { .. })) {
            worst = outcome;
        }
    }
    worst
}

/// Combines the results of loading the images of several shards: the number of refused entries, or the worst error. A contradiction is the
/// worst, because the log must not be read then. Least is an image that is missing or damaged in a shard whose log has the same contents: that
/// says nothing of the logs of the others.
pub fn worst_load(outcomes: impl IntoIterator<Item = Result<u64, ImageError>>) -> Result<u64, ImageError> {
    let rank = |error: &ImageError| match error {
        ImageError::Absent { .. } => 0,
        ImageError::Damaged { .. } => 1,
        ImageError::Contradiction { .. } => 3,
        _ => 2,
    };
    let (mut refused, mut worst) = (0, None);
    for outcome in outcomes {
        match outcome {
            Ok(count) => refused += count,
            Err(error) if worst.as_ref().is_none_or(|worst| rank(worst) < rank(&error)) => {
                worst = Some(error)
            }
            Err(_) => {}
        }
    }
    worst.map_or(Ok(refused), Err)
}

/// The shards of a group: those whose number modulo `step` is `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of the first shard.
    pub first: u32,
    /// Number of groups.
    pub step: u32,
}

impl Share {
    /// All shards of a cache.
    pub const ALL: Self = Self { first: 0, step: 1 };

    /// Whether a shard belongs to the share.
    #[must_use]
    pub fn has(self, number: u32) -> bool {
        number % self.step == self.first
    }
}

/// The parts that the shards of a group are built from.
pub struct GroupParts<P: Platform> {
    /// The share of the group.
    pub share: Share,
    /// Devices, time, and host records.
    pub around: Surroundings<P>,
    /// Shared by all shards of the cache.
    pub origin_writes: OriginWrites,
    /// Shared by all shards of the cache.
    pub codec_samples: SharedSamples,
    /// Memory for the index and all else that grows with the cache: see [`ShardParts::index_memory`].
    pub index_memory: Option<u64>,
}

/// The shards of one thread, in the order of their numbers.
///
/// Invariant: all shards of a group are built from the same superblock and have the same settings.
pub struct ShardGroup<P: Platform> {
    parts: GroupParts<P>,
    settings: RefCell<Settings>,
    shards: RefCell<Rc<[Rc<Shard<P>>]>>,
    shard_count: Cell<u32>,
}

impl<P: Platform> ShardGroup<P> {
    /// A group without shards; [`ShardSet::build`] creates them.
    #[must_use]
    pub fn new(parts: GroupParts<P>, settings: Settings) -> Self {
        assert!(parts.share.first < parts.share.step, "{:?}", parts.share);
        Self {
            parts,
            settings: RefCell::new(settings),
            shards: RefCell::new(Rc::from([])),
            shard_count: Cell::new(0),
        }
    }

    /// The group's shards.
    #[must_use]
    pub fn shards(&self) -> Rc<[Rc<Shard<P>>]> {
        Rc::clone(&self.shards.borrow())
    }

    /// A shard of the group.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<Rc<Shard<P>>> {
        let share = self.parts.share;
        let at = (number / share.step) as usize;
        share
            .has(number)
            .then(|| self.shards.borrow().get(at).cloned())
            .flatten()
    }

    /// Number of shards of the whole cache; 0 before they are built.
    #[must_use]
    pub fn shard_count(&self) -> u32 {
        self.shard_count.get()
    }

    /// Changes the settings of all shards, including shards that are built later.
    pub fn set(&self, settings: &Settings) {
        self.settings.replace(settings.clone());
        for shard in self.shards().iter() {
            shard.set(settings);
        }
    }

    /// Sums of the counts and holdings of all shards.
    #[must_use]
    pub fn stats(&self) -> StatsSnapshot {
        let mut total = StatsSnapshot::default();
        for shard in self.shards().iter() {
            total.add(&shard.stats());
        }
        total
    }

    /// Drops the shards. Shards and their tasks refer to each other, so this comes before the end of the runtime.
    pub fn clear(&self) {
        self.shards.replace(Rc::from([]));
    }

    /// As [`ShardSet::load_images`]; calls `region_done` as often as a shard has regions while its index pages are read.
    ///
    /// # Errors
    /// The worst [`ImageError`]: all shards must then be built again.
    pub async fn load_images_with(&self, epoch: Epoch, region_done: impl Fn()) -> Result<u64, ImageError> {
        let mut outcomes = Vec::new();
        for shard in self.shards().iter() {
            let refused = shard.load_image(epoch, &region_done).await;
            outcomes.push(refused.map(|refused| refused as u64));
        }
        worst_load(outcomes)
    }

    /// As [`ShardSet::recover`]; calls `region_done` after each region that was read.
    ///
    /// # Errors
    /// [`RecoverError`] of the first shard that fails: all shards must then be built again.
    pub async fn recover_with(
        &self,
        trust: Trust,
        region_done: impl Fn(),
    ) -> Result<Recovered, RecoverError> {
        let region_done = &region_done;
        let shards = self.shards();
        // Concurrently: while one waits for the device, another uses the processor.
        let parts = join_all(shards.iter().map(|shard| async move {
            if trust == Trust::DirtyOnly
                && let Err(source) = shard.mark_fenced().await
            {
                let shard = shard.number();
                return Err(RecoverError::Device { shard, source });
            }
            shard.recover(region_done).await
        }));
        let parts = parts.await;
        for shard in shards.iter() {
            // If any shard failed, all are dropped.
            shard.pages_written().await;
        }
        let mut total = Recovered::default();
        for part in parts {
            total.add(&part?);
        }
        Ok(total)
    }
}

impl<P: Platform> ShardSet for ShardGroup<P> {
    async fn build(&self, superblock: &Superblock) -> Reached<()> {
        let count = superblock.geometry.shard_count;
        let share = self.parts.share;
        let settings = self.settings.borrow().clone();
        let around = &self.parts.around;
        let shards = (share.first..count).step_by(share.step as usize).map(|number| {
            Shard::new(ShardParts {
                number,
                geometry: superblock.geometry,
                cache_id: superblock.cache_id(),
                epoch: superblock.epoch,
                valid_from: superblock.valid_from_epoch,
                may_be_dirty: superblock.dirty,
                after_crash: superblock.after_crash,
                env: around.env.clone(),
                cache: Rc::clone(&around.cache),
                origin: Rc::clone(&around.origin),
                settings: settings.clone(),
                budget_used: superblock.budget_used.map(|bytes| bytes / u64::from(count)),
                origin_writes: self.parts.origin_writes.clone(),
                codec_samples: self.parts.codec_samples.clone(),
                host_records: around.host_records.clone(),
                shared_budget: around.shared_budget.clone(),
                index_memory: self.parts.index_memory,
            })
        });
        self.shards.replace(shards.collect());
        self.shard_count.set(count);
        for shard in self.shards().iter() {
            shard.load_dictionaries().await;
        }
        Ok(())
    }

    async fn load_images(&self, epoch: Epoch) -> Reached<Result<u64, ImageError>> {
        Ok(self.load_images_with(epoch, || ()).await)
    }

    async fn recover(&self, trust: Trust) -> Reached<Result<Recovered, RecoverError>> {
        Ok(self.recover_with(trust, || ()).await)
    }

    async fn permit_write_back(&self, permitted: bool) -> Reached<()> {
        for shard in self.shards().iter() {
            shard.permit_write_back(permitted);
        }
        Ok(())
    }

    async fn start(&self) -> Reached<()> {
        self.shards().iter().for_each(Shard::start);
        Ok(())
    }

    async fn stop(&self) -> Reached<()> {
        for shard in self.shards().iter() {
            shard.stop().await;
        }
        Ok(())
    }

    async fn save(&self) -> Reached<Result<(), ImageError>> {
        let mut outcomes = Vec::new();
        for shard in self.shards().iter() {
            outcomes.push(shard.save().await);
        }
        Ok(worst_save(outcomes))
    }

    async fn state(&self) -> Reached<ShardsState> {
        let mut total = ShardsState::default();
        for shard in self.shards().iter() {
            total.add(ShardsState {
                dirty_blocks: shard.dirty_blocks(),
                dirty_writes: shard.dirty_writes(),
                fenced: shard.is_fenced(),
                budget_used: shard.budget_used_bytes(),
            });
        }
        Ok(total)
    }

    async fn resize(&self, step: ResizeStep) -> Reached<Shrinking> {
        let mut total = Shrinking::default();
        for shard in self.shards().iter() {
            total.add(shard.resize(step).await);
        }
        Ok(total)
    }

    async fn grow_origin(&self, len: u64) -> Reached<()> {
        self.shards().iter().for_each(|shard| shard.grow_origin(len));
        Ok(())
    }

    fn origin_writes(&self) -> &OriginWrites {
        &self.parts.origin_writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the manifests of shards that are warm, or whose image is absent or damaged, are known to be those of the stop.
    #[test]
    fn a_shard_whose_log_is_not_known_to_be_whole_decides() {
        let (shard, what) = (0, String::new);
        let absent = || Err(ImageError::Absent { shard, what: what() });
        let damaged = || Err(ImageError::Damaged { shard, what: what() });
        let contents = || Err(ImageError::Contents { shard, what: what() });
        let contradiction = || Err(ImageError::Contradiction { shard, what: what() });
        type Outcome<'a> = &'a dyn Fn() -> Result<u64, ImageError>;
        let ranked: [Outcome<'_>; 4] = [&absent, &damaged, &contents, &contradiction];
        for (rank, worse) in ranked.iter().enumerate() {
            for better in &ranked[..=rank] {
                for pair in [[better(), worse()], [worse(), better()], [Ok(1), worse()]] {
                    let found = worst_load(pair).expect_err("one has failed");
                    let expected = worse().expect_err("it has failed");
                    assert_eq!(std::mem::discriminant(&found), std::mem::discriminant(&expected));
                }
            }
        }
        assert_eq!(worst_load([Ok(1), Ok(2)]).expect("both are warm"), 3);
    }
}
