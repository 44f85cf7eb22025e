//! Shows the advisor what it follows: reads and writes of blocks in the sample, and how many bytes they take.
//!
//! See [`crate::advise`]. The advisor sees each reference once, in order, before the shard acts on it.
//!
//! Invariant: `mask` is that of the advisor; without one, no block is in the sample.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use flaz_codec::{CodecChoice, Effort};
use flaz_device::{Env, IoBuf, Nanos, Priority};

use super::{Platform, Shard};
use crate::advise::{
    Advisor, AutoSizes, CodecSampler, Common, Compressed, History, Observed, SHARDS_MAX, SharedSamples,
    Space, StoredAs, Written, codecs, fragment_bytes,
};
use crate::format::group::GROUP_BLOCKS_MAX;
use crate::policy::{PolicyKind, block_key};
use crate::units::{BLOCK_BYTES, LocalBlock};

/// Mask of a shard that follows no sample: no key leaves 0. (One does, of 2^64.)
const NONE: u64 = u64::MAX;

/// What the sample of a shard depends on.
pub(super) struct Followed {
    pub(super) policy: PolicyKind,
    pub(super) codec: CodecChoice,
    /// Blocks that stay are compressed again.
    pub(super) compresses_again: bool,
    pub(super) space: Space,
}

/// See the module's documentation.
pub(super) struct Following {
    mask: Cell<u64>,
    advisor: RefCell<Option<Advisor>>,
    sampler: RefCell<CodecSampler>,
    /// Of all shards.
    samples: SharedSamples,
    /// Of the first shard, for all.
    history: RefCell<History>,
}

impl Following {
    pub(super) fn new(samples: SharedSamples) -> Self {
        Self {
            mask: Cell::new(NONE),
            advisor: RefCell::new(None),
            sampler: RefCell::default(),
            samples,
            history: RefCell::default(),
        }
    }

    /// Calls `show` if the block is in the sample.
    fn show(&self, block: LocalBlock, show: impl FnOnce(&mut Advisor, u64)) {
        let key = block_key(block.0);
        if key & self.mask.get() == 0 {
            self.with(|advisor| show(advisor, key));
        }
    }

    /// What the advisor counted; in the first shard, with the codec samples of all.
    pub(super) fn observed(&self, is_first: bool, now: Nanos) -> Observed {
        let advisor = self.advisor.borrow();
        let mut observed = advisor
            .as_ref()
            .map(|advisor| advisor.observed(now))
            .unwrap_or_default();
        if is_first {
            observed.codecs = self.samples.with(|samples| *samples);
        }
        observed.memory_bytes += self.history.borrow().memory_bytes() as u64;
        observed
    }

    /// Adapts the advisor to the present state of the shard.
    pub(super) fn fit(&self, shard: &Followed, now: Nanos) {
        let is_auto = shard.codec == CodecChoice::Auto;
        let in_use = codecs().iter().position(|codec| *codec == shard.codec);
        let sizes = self.samples.with(|samples| samples.auto_sizes(in_use));
        self.with(|advisor| {
            advisor.fit(shard.policy, shard.space, now);
            let kept = sizes
                .filter(|_| shard.compresses_again)
                .map(AutoSizes::kept_ratio);
            advisor.expect_kept(kept.unwrap_or(1.0));
            advisor.expect_auto((!is_auto).then_some(sizes.unwrap_or_default()));
        });
    }

    fn with(&self, change: impl FnOnce(&mut Advisor)) {
        if let Some(advisor) = &mut *self.advisor.borrow_mut() {
            change(advisor);
            self.mask.set(advisor.mask());
        }
    }
}

impl<P: Platform> Shard<P> {
    /// Begins to follow a sample, when the shard starts.
    pub(super) fn start_following(&self) {
        if self.id.number >= SHARDS_MAX {
            return;
        }
        let (kind, warm) = (self.tuning.settings().policy, self.map.len() > 0);
        let advisor = Advisor::new(
            kind,
            self.fragment_space(),
            self.id.layout.shard_count,
            warm,
            self.env.now(),
        );
        *self.following.advisor.borrow_mut() = Some(advisor);
        self.following.with(|_| ());
    }

    /// What the sample depends on may have changed.
    pub(super) fn follow_changes(&self) {
        self.following.fit(&self.followed(), self.env.now());
    }

    /// Blocks are read; those that are not cached will be admitted, but for reads that `bypass`.
    pub(super) fn follow_read(&self, blocks: Range<LocalBlock>, bypass: bool) {
        for block in blocks.start.0..blocks.end.0 {
            let show = |advisor: &mut Advisor, key| advisor.read(key, bypass, self.env.now());
            self.following.show(LocalBlock(block), show);
        }
    }

    /// The outcome of a read.
    pub(super) fn follow_outcome(&self, hits: u64, misses: u64) {
        if let Some(advisor) = &mut *self.following.advisor.borrow_mut() {
            advisor.count(hits, misses);
        }
    }

    /// A block is written.
    pub(super) fn follow_write(&self, block: LocalBlock, written: Written) {
        self.following
            .show(block, |advisor, key| advisor.write(key, written));
    }

    /// A block was stored, with so many bytes behind the header; none if it has a single value.
    pub(super) fn follow_stored(&self, block: LocalBlock, stored: u64, stored_as: StoredAs) {
        let bytes = if stored == 0 { 0 } else { fragment_bytes(stored) };
        self.following
            .show(block, |advisor, key| advisor.stored(key, bytes, stored_as));
    }

    /// A block was stored again, and takes so many bytes of a fragment, which it may share with others.
    pub(super) fn follow_kept(&self, block: LocalBlock, bytes: u64, stored_as: StoredAs) {
        self.following
            .show(block, |advisor, key| advisor.stored(key, bytes, stored_as));
    }

    /// Block `index` of `data` was stored in the background, `stored` bytes of it: once in a while, measures what other codecs make of
    /// it. The data begins at block `first`.
    pub(super) async fn sample_codecs(&self, first: LocalBlock, data: &IoBuf, index: usize, stored: u64) {
        let now = || self.env.now();
        let wanted = |sampler: &mut CodecSampler| sampler.wants(self.id.layout.shard_count, now);
        if stored == 0 || !wanted(&mut self.following.sampler.borrow_mut()) {
            return;
        }
        let four = four_of(first, data, index).map(IoBuf::copy_of);
        let copy = IoBuf::copy_of(&data[index * BLOCK_BYTES..][..BLOCK_BYTES]);
        let common = self.in_common(LocalBlock(first.0 + index as u64), &copy);
        let effort = self.effort();
        let job = move || Compressed::of(&copy, four.as_deref(), effort.unwrap_or_default(), &common);
        // Other blocks wait to be stored after this one.
        let compressed = match effort {
            Some(Effort::High) => self.env.compute_spare(job).await.0,
            Some(Effort::Usual) | None => self.env.compute(Priority::Write, job).await,
        };
        let mut out = IoBuf::new(GROUP_BLOCKS_MAX * BLOCK_BYTES);
        let took = std::array::from_fn(|form| {
            let started = self.env.now();
            self.codecs
                .decode(|decoders| compressed.restore(form, decoders, &mut out));
            self.env.now().since(started)
        });
        self.following.samples.with(|samples| {
            samples.dictionary_bytes = f64::from(self.id.layout.dictionary_bytes);
            samples.sample(&compressed, stored, took);
        });
        self.follow_changes();
    }

    /// What a sampled block may have in common with others: the dictionary, or for a trial the blocks that were sampled before it.
    fn in_common(&self, number: LocalBlock, block: &[u8]) -> Common {
        let mut history = self.following.history.borrow_mut();
        let is_auto = self.tuning.settings().codec == CodecChoice::Auto;
        if let Some(current) = self.codecs.current().filter(|_| is_auto) {
            history.clear();
            return Common::Dictionary(current.number, current.dictionary);
        }
        // With one core, a trial keeps this thread from serving clients.
        if self.id.number > 0 || self.id.layout.dictionary_bytes == 0 || self.env.parallelism() == 1 {
            return Common::Nothing;
        }
        let common = history.for_trial(number.0);
        history.add(number.0, block);
        common.map_or(Common::Nothing, Common::History)
    }
}

/// The aligned four blocks around block `index` of `data`, if it has all of them. It begins at block `first`.
fn four_of(first: LocalBlock, data: &[u8], index: usize) -> Option<&[u8]> {
    let before = (first.0 + index as u64) as usize % GROUP_BLOCKS_MAX;
    let start = index.checked_sub(before)? * BLOCK_BYTES;
    data.get(start..start + GROUP_BLOCKS_MAX * BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use flaz_device::Device;
    use flaz_sim::Rng;

    use super::*;
    use crate::policy::Ring;
    use crate::shard::simulated::{Disks, Simulated};
    use crate::units::Epoch;

    const BLOCKS: u64 = 4096;

    async fn read_one(shard: &Rc<Shard<Simulated>>, rng: &mut Rng) {
        let hottest = 1 + rng.below(BLOCKS);
        let block = rng.below(hottest);
        let read = shard.read(block * BLOCK_BYTES as u64, BLOCK_BYTES, false).await;
        read.expect("the devices work");
    }

    /// Reads through a full cache, and adds up the bytes of the blocks in it, and in the simulated cache of the same capacity.
    async fn bytes_held(disks: &Disks, shard: &Rc<Shard<Simulated>>) -> [u64; 2] {
        let mut rng = Rng::new(1);
        let mut data = vec![0; BLOCKS as usize * BLOCK_BYTES];
        for block in data.chunks_exact_mut(BLOCK_BYTES) {
            // Half of it compresses.
            rng.fill(&mut block[..BLOCK_BYTES / 2]);
        }
        let (_, written) = disks.origin.write_at(0, IoBuf::copy_of(&data), false).await;
        written.expect("it is well");
        let mut held = [0; 2];
        for turn in 0..40_000 {
            read_one(shard, &mut rng).await;
            if turn > 10_000 && turn % 100 == 0 {
                let advisor = shard.following.advisor.borrow();
                held[0] += shard.map.fragment_bytes();
                held[1] += advisor.as_ref().expect("it follows a sample").bytes_held();
            }
        }
        assert!(shard.log.regions_of(Ring::Main) > 10, "it keeps blocks");
        held
    }

    /// The simulated cache leaves as much space free as the real one, which loses some to headers and summaries.
    #[test]
    fn the_simulated_cache_is_as_full_as_the_real_one() {
        let disks = Disks::of_small_regions(30);
        disks.sim.block_on(async {
            let shard = disks.shard_with_s3_fifo();
            shard.start();
            let [real, simulated] = bytes_held(&disks, &shard).await;
            let ratio = simulated as f64 / real as f64;
            assert!((0.98..1.02).contains(&ratio), "{ratio}");
        });
    }

    /// The open regions that a clean start continues count with what they had.
    #[test]
    fn the_share_of_fragments_is_right_after_a_clean_start() {
        let disks = Disks::of_small_regions(30);
        let before = disks.sim.block_on(async {
            let shard = disks.shard_with_s3_fifo();
            shard.start();
            bytes_held(&disks, &shard).await;
            let before = shard.log.fragment_share().expect("regions were closed");
            shard.stop().await;
            shard.save().await.expect("stops in order");
            before
        });
        disks.sim.kill_tasks();
        disks.sim.block_on(async {
            let second = disks.shard(2);
            let loaded = second.load_image(Epoch(1), || ()).await;
            loaded.expect("the stop was clean");
            assert_eq!(second.log.fragment_share(), None);
            second.start();
            let mut rng = Rng::new(2);
            let share = loop {
                read_one(&second, &mut rng).await;
                if let Some(share) = second.log.fragment_share() {
                    break share;
                }
            };
            assert!((share - before).abs() < 0.02, "{share}, before {before}");
        });
    }
}
