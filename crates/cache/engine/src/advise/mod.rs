//! What would more cache be worth? A live estimate of the hit ratio that other capacities and codecs would have.
//!
//! Each shard simulates small caches of 1/4 to 4 times its capacity on a sample of its blocks, chosen by a hash of their numbers
//! (miniature simulation: Waldspurger et al., USENIX ATC 2017). All references to a sampled block are followed, so its reuse is
//! seen as it is; a cache of a 1000th of the blocks on a 1000th of the references has the hit ratio of the whole. The caches
//! obey the shard's own [`Policy`](crate::policy::Policy), over rings of regions as in the engine. Other codecs change how many
//! blocks fit, so they are points of the same curve, but for two that have a simulated cache each: with uncompressed blocks, because
//! a reclaim prefers those that compress well; and as `auto` would store them, because blocks then shrink only when a reclaim keeps
//! them.
//!
//! A block has two sizes: as a new one in probation, and as one that stays in main, where `auto` compresses it again. What the real cache
//! has not stored yet is estimated, from the blocks that its reclaims kept, and from codec samples as long as these are few: a smaller
//! cache reclaims while the real one still fills.
//!
//! A larger cache turns as large a share of the measured misses into hits as its simulation does of the misses of the simulated cache
//! with the real capacity; a smaller one loses a share of the hits. What is wrong with both simulations cancels out: a sample with too
//! many references to the hottest blocks, or caches that began empty.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | [`Advisor`]: the sample of a shard, followed |
//! | `table` | the sampled blocks |
//! | `cache` | a simulated cache |
//! | `codecs` | what other codecs make of stored blocks |
//! | `trial` | what a dictionary would save |
//! | `shared` | the codec samples of all shards |
//! | `estimate` | [`Observed`], what was counted, and the estimates from it |
//!
//! Invariants: the sample of all shards takes at most [`MEMORY_BYTES_MAX`]; a block that is not in it costs a hash and a
//! comparison; nothing is allocated for a reference, unless blocks leave the sample.

mod cache;
mod codecs;
mod estimate;
mod shared;
mod table;
#[cfg(test)]
mod tests;
mod trial;

use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};
use std::time::Duration;

use flaz_device::Nanos;

pub use cache::{AutoSizes, Source};
pub use codecs::{
    AUTO, CODECS, CodecSampler, CodecSamples, Common, Compressed, FORMS, LZ4, NONE, codecs, fragment_bytes,
};
pub use estimate::{CodecEstimate, Estimate, Observed};
pub use shared::SharedSamples;
pub use trial::{History, Trial};

use self::cache::{SimulatedCache, Sizing};
use self::table::{Sizes, Table, scaled, to_size};
use crate::policy::{PolicyKind, Ring};
use crate::units::BLOCK_BYTES;

/// Memory of the simulated caches of all shards, and of a [`History`], in bytes.
pub const MEMORY_BYTES_MAX: usize = 1 << 20;
/// Shards that follow a sample. Of more, the first ones do: blocks map to shards by stripe, so they see all kinds of blocks.
pub const SHARDS_MAX: u32 = 8;
/// Blocks in the sample, of all shards.
const SLOTS_MAX: usize = 10_200;
/// Number of simulated caches, at most.
pub const CACHES: usize = 11;
/// The one with uncompressed blocks, of the real capacity.
const UNCOMPRESSED: usize = CACHES - 2;
/// The one with blocks as `auto` would store them, of the real capacity.
const STORED_BY_AUTO: usize = CACHES - 1;
/// The capacities of the others, in units of the real one.
pub const MULTIPLES: [f64; UNCOMPRESSED] = [
    0.25,
    SQRT_2 / 4.0,
    0.5,
    FRAC_1_SQRT_2,
    1.0,
    SQRT_2,
    2.0,
    2.0 * SQRT_2,
    4.0,
];
/// The one with the real capacity.
const REAL: usize = 4;
/// Parts of the sample, whose differences give the interval of an estimate.
pub const GROUPS: usize = 8;
/// Unit of the size of a stored block, in bytes.
const SIZE_UNIT: u64 = 32;
/// The sample has at most one block in 2^this: what it costs must stay below 1 % of what a request costs.
const SHIFT_MIN: u32 = 3;
/// And at least one in 2^this: enough for a shard of 1 TiB with blocks that compress 64:1.
const SHIFT_MAX: u32 = 26;
/// What was counted this long ago counts half.
pub const HALF_LIFE: Duration = Duration::from_secs(12 * 3600);

/// The space of a shard for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes of a region that fragments can take.
    pub region_bytes: u64,
    /// Number of regions.
    pub regions: u64,
}

impl Space {
    fn blocks(self) -> u64 {
        self.region_bytes * self.regions / BLOCK_BYTES as u64
    }
}

/// What a write leaves in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The new contents, if the block was cached before or the policy admits it.
    Admitted,
    /// The new contents, if the block was cached before.
    IfCached,
    /// Nothing.
    Dropped,
}

/// How a block was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredAs {
    /// After a miss, as a new block or, in main, as one that stays.
    Read(Ring),
    /// By a client's write: the contents are new.
    Written(Ring),
    /// Again, by a reclaim.
    Kept,
    /// Again in main, as large as a new block: by a reclaim that may not compress it again, because it is dirty, or because hits should be
    /// quick.
    Moved,
}

/// Which caches an advisor simulates, and on how large a sample.
#[derive(Clone, Copy, Debug)]
pub struct Simulation {
    /// Their capacities, in units of the real one, ascending: at most [`CACHES`].
    pub multiples: &'static [f64],
    /// There are two more caches, of the real capacity, with other codecs. Then `multiples` must be [`MULTIPLES`].
    pub codecs: bool,
    /// Regions of a simulated cache, at most. A larger one has larger regions.
    pub regions_max: u64,
    /// Blocks in the sample, at most: [`Simulation::SLOTS_LIMIT`] or less.
    pub slots: usize,
    /// The sample has at most one block in 2^this.
    pub shift_min: u32,
}

impl Simulation {
    /// The most slots: entries of a ring have numbers of 16 bits.
    pub const SLOTS_LIMIT: usize = 48_000;

    /// That of a shard of a live cache with so many, or of [`SHARDS_MAX`].
    fn live(shards: u32) -> Self {
        Self {
            multiples: &MULTIPLES,
            codecs: true,
            regions_max: u64::MAX,
            slots: SLOTS_MAX / shards.clamp(1, SHARDS_MAX) as usize,
            shift_min: SHIFT_MIN,
        }
    }

    fn largest(&self) -> f64 {
        self.multiples.last().copied().unwrap_or(1.0)
    }

    /// The number of caches.
    fn caches(&self) -> usize {
        match self.codecs {
            true => CACHES,
            false => self.multiples.len(),
        }
    }

    /// The capacity of a cache, in units of the real one, and how large its blocks are.
    fn cache(&self, number: usize) -> (f64, Sizing) {
        match (self.multiples.get(number), number) {
            (Some(multiple), _) => (*multiple, Sizing::Real),
            (None, UNCOMPRESSED) => (1.0, Sizing::Uncompressed),
            (None, _) => (1.0, Sizing::Auto(AutoSizes::default())),
        }
    }

    /// How many blocks may be sampled, if none compresses. When they do, half of them leave.
    fn shift_for(&self, space: Space) -> u32 {
        let largest = space.blocks() as f64 * self.largest() * 1.1;
        let shift = (largest / self.slots as f64).max(1.0).log2().ceil() as u32;
        shift.clamp(self.shift_min, SHIFT_MAX)
    }
}

/// Follows the sample of a shard.
#[derive(Debug)]
pub struct Advisor {
    kind: PolicyKind,
    simulation: Simulation,
    space: Space,
    /// The sample has one block in 2^`shift`.
    shift: u32,
    table: Table,
    caches: Vec<SimulatedCache>,
    /// Mean size of new and written blocks, times 2^[`MEAN_SHIFT`]: that of a block of unknown size.
    mean_size: u64,
    /// The latest blocks that a reclaim kept.
    kept: Kept,
    /// The sizes that blocks would have with `auto`, if it is not in use.
    auto: Option<AutoSizes>,
    observed: Observed,
    /// When the counts began.
    began: Nanos,
    /// When older counts were halved last.
    faded: Nanos,
    /// The real cache was not empty when the simulated ones were. Then counts begin anew when the cache with the real capacity is
    /// full, and when the largest is.
    warm: bool,
    /// Caches whose being full was noticed.
    full: usize,
}

/// Decay of the mean size.
const MEAN_SHIFT: u32 = 6;
/// By how much reclaim shrinks the blocks that it keeps.
#[derive(Debug)]
struct Kept {
    /// Number of blocks; older ones count less.
    blocks: f64,
    /// Their sizes as new blocks, added up.
    new: f64,
    /// Their sizes after reclaim, added up.
    kept: f64,
    /// The expected ratio of the two.
    expected: f64,
}

impl Kept {
    /// Blocks that count.
    const MEMORY: f64 = 1000.0;
    /// The expected ratio counts as much as this number of blocks.
    const EXPECTED_WEIGHT: f64 = 20.0;

    fn new() -> Self {
        Self {
            blocks: 0.0,
            new: 0.0,
            kept: 0.0,
            expected: 1.0,
        }
    }

    fn add(&mut self, new: u8, kept: u8) {
        let fade = 1.0 - 1.0 / Self::MEMORY;
        self.blocks = self.blocks * fade + 1.0;
        self.new = self.new * fade + f64::from(new);
        self.kept = self.kept * fade + f64::from(kept);
    }

    /// Size after reclaim, as a share of the size as a new block.
    fn ratio(&self) -> f64 {
        let measured = if self.new > 0.0 {
            self.kept / self.new
        } else {
            self.expected
        };
        let weight = Self::EXPECTED_WEIGHT;
        (measured * self.blocks + self.expected * weight) / (self.blocks + weight)
    }
}

impl Advisor {
    /// For a shard of a cache with so many, or of [`SHARDS_MAX`]. `warm`: the shard has blocks.
    #[must_use]
    pub fn new(kind: PolicyKind, space: Space, shards: u32, warm: bool, now: Nanos) -> Self {
        Self::simulating(Simulation::live(shards), kind, space, warm, now)
    }

    /// With other simulated caches, or another sample, than the advisors of a live cache.
    ///
    /// # Panics
    /// If the sample has more than [`Simulation::SLOTS_LIMIT`] slots, or the simulation other caches than it may have.
    #[must_use]
    pub fn simulating(
        simulation: Simulation,
        kind: PolicyKind,
        space: Space,
        warm: bool,
        now: Nanos,
    ) -> Self {
        let (slots, multiples) = (simulation.slots, simulation.multiples);
        assert!(slots <= Simulation::SLOTS_LIMIT, "{slots} slots");
        let is_live = multiples == MULTIPLES;
        assert!(
            is_live || !simulation.codecs && multiples.len() <= CACHES,
            "{multiples:?}"
        );
        let mut advisor = Self {
            kind,
            simulation,
            space,
            shift: simulation.shift_for(space),
            table: Table::new(simulation.slots),
            caches: Vec::new(),
            mean_size: u64::from(to_size(BLOCK_BYTES as u64)) << MEAN_SHIFT,
            kept: Kept::new(),
            auto: Some(AutoSizes::default()),
            observed: Observed::default(),
            began: now,
            faded: now,
            warm,
            full: 0,
        };
        advisor.build();
        advisor
    }

    /// The simulated caches, empty.
    fn build(&mut self) {
        self.table = Table::new(self.simulation.slots);
        let cache = |number| SimulatedCache::new(number, &self.simulation, self.kind, self.space, self.shift);
        self.caches = (0..self.simulation.caches()).map(cache).collect();
        self.set_auto_sizes();
        self.full = 0;
    }

    /// Whether blocks with this mask of their keys are in the sample: those where it leaves 0.
    #[must_use]
    pub fn mask(&self) -> u64 {
        (1 << self.shift) - 1
    }

    /// The shard has another space, or policy.
    pub fn fit(&mut self, kind: PolicyKind, space: Space, now: Nanos) {
        if kind == self.kind && space == self.space {
            return;
        }
        let finer = self.simulation.shift_for(space) + 2 <= self.shift;
        let anew = kind != self.kind || finer && space.blocks() < self.space.blocks() / 4;
        if !anew {
            // Before the ghosts grow.
            while self.shift < self.simulation.shift_for(space) {
                self.thin_out();
            }
        }
        (self.kind, self.space) = (kind, space);
        if anew {
            self.shift = self.simulation.shift_for(space);
            self.warm = true;
            self.begin_counting(now);
            self.build();
            return;
        }
        for cache in &mut self.caches {
            cache.fit(space, self.shift);
        }
    }

    /// Counts the blocks of a read, sampled or not.
    pub fn count(&mut self, hits: u64, misses: u64) {
        self.observed.hits += hits as f64;
        self.observed.reads += (hits + misses) as f64;
    }

    /// A read of a sampled block, which is admitted if it is not cached and the policy admits it, but for reads that `bypass`.
    pub fn read(&mut self, key: u64, bypass: bool, now: Nanos) {
        self.fade(now);
        let Some(slot) = self.slot(key) else { return };
        let group = group_of(key);
        let weight = (1_u64 << self.shift) as f64;
        self.observed.sampled += 1.0;
        self.observed.group_reads[group] += weight;
        for (cache, hits) in self.caches.iter_mut().zip(&mut self.observed.cache_hits) {
            if cache.read(&mut self.table, slot, !bypass, self.shift) {
                hits[group] += weight;
            }
        }
        self.table.release(slot);
        self.keep_small();
        let capacities = self.simulation.multiples.len();
        while self.caches[..capacities]
            .get(self.full)
            .is_some_and(SimulatedCache::was_full)
        {
            self.full += 1;
            if self.warm && (self.full == REAL + 1 || self.full == capacities) {
                self.begin_counting(now);
            }
        }
    }

    /// Counts begin anew.
    fn begin_counting(&mut self, now: Nanos) {
        self.observed = Observed::default();
        (self.began, self.faded) = (now, now);
    }

    /// A write of a sampled block.
    pub fn write(&mut self, key: u64, written: Written) {
        let Some(slot) = self.slot(key) else { return };
        for cache in &mut self.caches {
            match written {
                Written::Dropped => cache.drop_block(&mut self.table, slot),
                Written::Admitted => cache.write(&mut self.table, slot, true, self.shift),
                Written::IfCached => cache.write(&mut self.table, slot, false, self.shift),
            }
        }
        self.table.release(slot);
        self.keep_small();
    }

    /// A sampled block was stored, and takes so many bytes.
    ///
    /// A simulated cache may have it in another ring than the real one. Its size there is estimated, from what a reclaim makes of other
    /// blocks, until it is known.
    pub fn stored(&mut self, key: u64, bytes: u64, stored_as: StoredAs) {
        let is = to_size(bytes);
        if matches!(stored_as, StoredAs::Read(Ring::Probation) | StoredAs::Written(_)) {
            self.mean_size = self.mean_size + u64::from(is) - (self.mean_size >> MEAN_SHIFT);
        }
        let Some(slot) = self.table.find(key) else { return };
        let (was, ratio) = (self.table.sizes(slot), self.kept.ratio());
        let as_new = was.with(Ring::Probation, is);
        let are = match stored_as {
            StoredAs::Read(Ring::Probation) => match was.reclaimed() {
                // The contents are the same.
                Some(_) if was.known(Ring::Probation).is_none_or(|new| new == is) => as_new,
                _ => as_new.with_estimate(Ring::Main, scaled(is, ratio)),
            },
            StoredAs::Read(Ring::Main) => match was.known(Ring::Probation) {
                Some(_) => was.with(Ring::Main, is),
                None => (was.with(Ring::Main, is)).with_estimate(Ring::Probation, scaled(is, 1.0 / ratio)),
            },
            StoredAs::Written(Ring::Probation) => as_new.with_estimate(Ring::Main, scaled(is, ratio)),
            StoredAs::Written(Ring::Main) => as_new.with_new_in_main(is),
            StoredAs::Kept => was.with_reclaimed(is),
            StoredAs::Moved => was.with_new_in_main(is),
        };
        let are = match (stored_as, was.known(Ring::Probation)) {
            (StoredAs::Kept, None) => are.with_estimate(Ring::Probation, scaled(is, 1.0 / ratio)),
            (StoredAs::Moved, None) => are.with_estimate(Ring::Probation, is),
            _ => are,
        };
        let are = are.of_one_value(bytes == 0);
        if stored_as == StoredAs::Kept
            && let Some(new) = was.known(Ring::Probation)
        {
            self.kept.add(new, is);
        }
        self.set_sizes(slot, was, are);
    }

    /// Sets the size of a kept block that is expected, as a share of its size as a new block, until enough blocks were kept. It is 1
    /// unless reclaim compresses blocks again.
    pub fn expect_kept(&mut self, ratio: f64) {
        self.kept.expected = ratio;
    }

    /// Sets the sizes that blocks would have with `auto`. `None`: it is in use.
    ///
    /// If their source changes, the hits counted so far are replaced by those of the curve at the corresponding capacity.
    pub fn expect_auto(&mut self, sizes: Option<AutoSizes>) {
        let before = std::mem::replace(&mut self.auto, sizes);
        self.set_auto_sizes();
        let source = |sizes: Option<AutoSizes>| sizes.map(|sizes| sizes.source);
        if source(before) != source(sizes) {
            let factor = 1.0 / sizes.unwrap_or_default().mean();
            self.observed.cache_hits[STORED_BY_AUTO] = self.observed.hits_at(factor);
        }
    }

    fn set_auto_sizes(&mut self) {
        if let (true, Some(cache)) = (self.simulation.codecs, self.caches.get_mut(STORED_BY_AUTO)) {
            cache.set_sizing(self.auto.map_or(Sizing::Real, Sizing::Auto));
        }
    }

    fn set_sizes(&mut self, slot: u16, was: Sizes, are: Sizes) {
        if was != are {
            for cache in &mut self.caches {
                cache.resized(&self.table, slot, are, self.shift);
            }
            self.table.set_sizes(slot, are);
        }
    }

    /// What was counted, for [`Observed`].
    #[must_use]
    pub fn observed(&self, now: Nanos) -> Observed {
        Observed {
            age_s: now.since(self.began).as_secs_f64(),
            seconds: self.observed.seconds + now.since(self.faded).as_secs_f64(),
            sampled_reads: self.observed.reads,
            shift: self.shift,
            full: self.full as u32,
            memory_bytes: self.memory_bytes() as u64,
            warm: self.warm,
            ..self.observed
        }
    }

    /// Bytes of the blocks in the simulated cache of the present capacity.
    #[cfg(test)]
    pub fn bytes_held(&self) -> u64 {
        self.caches[REAL].bytes_held(self.shift)
    }

    /// Checks the sums of the simulated caches.
    #[cfg(test)]
    fn check(&self) {
        self.caches
            .iter()
            .for_each(|cache| cache.check(&self.table, self.shift));
    }

    /// Memory that it takes, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let caches: usize = self.caches.iter().map(SimulatedCache::memory_bytes).sum();
        size_of::<Self>() + self.table.memory_bytes() + caches + size_of_val(&*self.caches)
    }

    /// The slot of a block, held until it is released.
    fn slot(&mut self, key: u64) -> Option<u16> {
        let slot = match self.table.find(key) {
            Some(slot) => {
                // By what is known now.
                let sizes = self.table.sizes(slot);
                if sizes.known(Ring::Main).is_none() {
                    let estimate = match sizes.known(Ring::Probation) {
                        Some(new) => sizes.with_estimate(Ring::Main, scaled(new, self.kept.ratio())),
                        None => self.estimate(),
                    };
                    self.set_sizes(slot, sizes, estimate);
                }
                Some(slot)
            }
            None => self.table.insert(key, self.estimate()),
        }?;
        self.table.hold(slot);
        Some(slot)
    }

    /// The sizes of a block of which nothing is known.
    fn estimate(&self) -> Sizes {
        let size = (self.mean_size >> MEAN_SHIFT) as u8;
        Sizes::estimated(size, scaled(size, self.kept.ratio()))
    }

    /// With too many blocks, half of them leave the sample. If the sample is as small as it can be, the simulation starts over.
    fn keep_small(&mut self) {
        let is_full = self.table.is_full() || self.caches.iter().any(SimulatedCache::is_crowded);
        match is_full {
            true if self.shift == SHIFT_MAX => {
                self.warm = true;
                self.begin_counting(self.faded);
                self.build();
            }
            true => self.thin_out(),
            false => {}
        }
    }

    /// Half of the blocks leave the sample.
    fn thin_out(&mut self) {
        self.shift += 1;
        let mask = self.mask();
        for cache in &mut self.caches {
            let gone = |key| key & mask != 0;
            cache.thin_out(&mut self.table, gone, self.space, self.shift);
        }
    }

    /// Halves what was counted, once in a [`HALF_LIFE`].
    fn fade(&mut self, now: Nanos) {
        while now.since(self.faded) >= HALF_LIFE {
            self.faded = self.faded.after(HALF_LIFE);
            self.observed.seconds += HALF_LIFE.as_secs_f64();
            self.observed.halve();
        }
    }
}

/// The part of the sample that a block belongs to.
fn group_of(key: u64) -> usize {
    (key >> SHIFT_MAX) as usize % GROUPS
}
