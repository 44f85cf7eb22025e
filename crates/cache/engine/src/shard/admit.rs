//! Admission: stores blocks in the background.
//!
//! Readers and writers offer jobs to a bounded queue (see [`super::queue`]). One task a shard packs the blocks and appends
//! them to the log. A block that was written since its data was read is dropped (see [`super::order`]).

use std::rc::Rc;
use std::sync::Arc;

use flaz_codec::{CodecChoice, CodecSpec};
use flaz_device::{Env, IoBuf};

use super::fragment::Packer;
use super::log::{Append, Appended, Class};
use super::order::Version;
use super::packing::{Batch, PACK_SPLIT_BLOCKS_MIN};
use super::queue::{Candidate, Job, Replaced};
use super::second_stage::ForMiss;
use super::{Platform, Shard, Shared};
use crate::advise::StoredAs;
use crate::planted::{PlantedBug, planted};
use crate::policy::{Admission, Allowance, Ring};
use crate::settings::Mode;
use crate::stats::count;
use crate::units::{BLOCK_BYTES, LocalBlock};

/// Blocks packed on this thread before other tasks run.
const PACK_YIELD_BLOCKS: usize = 8;

impl<P: Platform> Shard<P> {
    /// Offers blocks that were read from the origin. `versions` are from before the read, for blocks that were not cached then.
    pub(super) fn offer_read(&self, first: LocalBlock, versions: &[Option<Version>], data: &Shared) {
        if self.is_stopping() || self.mode() == Mode::PassThrough {
            return;
        }
        let counters = &self.stats.counters;
        let mut candidates = Vec::with_capacity(versions.len());
        let allowance = self.allowance();
        for (index, &version) in versions.iter().enumerate() {
            let block = LocalBlock(first.0 + index as u64);
            let Some(version) = version else {
                count(&counters.refused_present, 1);
                continue;
            };
            if !self.order.is_current(block, version) {
                count(&counters.refused_overtaken, 1);
                continue;
            }
            let admission = self.tuning.admit_within(block, allowance);
            match admission {
                Admission::To(ring) | Admission::Remembered(ring) => {
                    let remembered = matches!(admission, Admission::Remembered(_));
                    count(&counters.ghost_hits, u64::from(remembered));
                    candidates.push(Candidate {
                        index,
                        ring,
                        hits: 0,
                        written: false,
                        version,
                        replaces: None,
                    });
                }
                Admission::Refuse => count(&counters.refused_policy, 1),
                Admission::OverBudget => count(&counters.refused_budget, 1),
            }
        }
        if candidates.is_empty() {
            return;
        }
        let Some(slot) = self.queue.try_reserve(data.len()) else {
            count(&counters.admission_full, 1);
            count(&counters.refused_queue_full, candidates.len() as u64);
            return;
        };
        let job = Job::Store {
            first,
            data: Arc::clone(data),
            candidates,
            stale: Vec::new(),
        };
        self.queue.offer(slot, job, &self.stats);
    }

    /// Stores queued blocks in order, until the shard stops.
    pub(super) async fn admit_task(shard: Rc<Self>) {
        let worker = shard.queue.work();
        let mut scratch = Vec::new();
        loop {
            let Some((job, mut running)) = worker.take() else {
                if shard.is_stopping() {
                    return;
                }
                worker.wait().await;
                continue;
            };
            let stale = match job {
                Job::Store {
                    first,
                    data,
                    candidates,
                    stale,
                } => {
                    scratch = shard.store(first, data, candidates, scratch).await;
                    running.data_done();
                    stale
                }
                Job::WriteTombstones { blocks } => blocks,
            };
            for block in stale {
                shard.write_tombstone_if_stale(block).await;
            }
        }
    }

    async fn store(
        self: &Rc<Self>,
        first: LocalBlock,
        data: Shared,
        candidates: Vec<Candidate>,
        scratch: Vec<u8>,
    ) -> Vec<u8> {
        let mut candidates = self.not_overtaken(first, candidates).await;
        if let Some(replaced) = candidates.first().and_then(|one| one.replaces) {
            return self
                .store_again_with(replaced.codec, first, &data, candidates, scratch)
                .await;
        }
        let missed_to = |ring| move |candidate: &Candidate| !candidate.written && candidate.ring == ring;
        let count_to = |ring| candidates.iter().filter(|of| missed_to(ring)(of)).count();
        let second = match (count_to(Ring::Main), count_to(Ring::Probation)) {
            (0, 0) => ForMiss::default(),
            (staying, new) => self.second_for_miss(staying, new),
        };
        for (ring, second) in [(Ring::Main, second.stay), (Ring::Probation, second.new)] {
            let Some(second) = second else { continue };
            let missed: Vec<_>;
            (missed, candidates) = candidates.into_iter().partition(missed_to(ring));
            for batch in self.pack_second(&data, &missed, second).await {
                self.store_batch(first, &data, &batch).await;
                self.codecs.put_back(batch.packer);
            }
        }
        if candidates.len() >= PACK_SPLIT_BLOCKS_MIN && self.env.parallelism() > 1 {
            for batch in self.pack_spread(&data, &candidates).await {
                self.store_batch(first, &data, &batch).await;
                self.codecs.put_back(batch.packer);
            }
            return scratch;
        }
        let mut scratch = scratch;
        for chunk in candidates.chunks(PACK_YIELD_BLOCKS) {
            let started = self.env.now();
            let batch = Batch::pack(self.take_packer(), &data, chunk, scratch);
            self.count_packing(started);
            self.store_batch(first, &data, &batch).await;
            self.codecs.put_back(batch.packer);
            scratch = batch.bytes;
            if candidates.len() > PACK_YIELD_BLOCKS {
                self.env.yield_now().await;
            }
        }
        scratch
    }

    /// Stores cached blocks again, with a codec that may be the one that they have.
    async fn store_again_with(
        self: &Rc<Self>,
        codec: CodecSpec,
        first: LocalBlock,
        data: &Shared,
        mut candidates: Vec<Candidate>,
        mut scratch: Vec<u8>,
    ) -> Vec<u8> {
        let choice = self.tuning.settings().codec;
        if choice != CodecChoice::Auto {
            return scratch;
        }
        // Many reads of one block may have offered it.
        candidates.retain(|candidate| {
            let block = LocalBlock(first.0 + candidate.index as u64);
            let is_there = |replaced: Replaced| {
                self.map.is_at(block, replaced.entry) || planted(PlantedBug::UndoneOvertaken)
            };
            !self.map.is_loaded(block) || candidate.replaces.is_some_and(is_there)
        });
        for chunk in candidates.chunks(PACK_YIELD_BLOCKS) {
            let is_raw = codec == CodecSpec::NONE;
            let packer = match is_raw {
                true => Packer::new(codec, None),
                false => self.codecs.take(codec, choice),
            };
            let started = self.env.now();
            let batch = Batch::pack(packer, data, chunk, scratch);
            self.count_packing(started);
            self.store_batch(first, data, &batch).await;
            if !is_raw {
                self.codecs.put_back(batch.packer);
            }
            scratch = batch.bytes;
        }
        scratch
    }

    /// Drops the candidates that a write has overtaken while the job waited. If writers are faster than the cache device, these
    /// are most of them, and packing them would be wasted.
    async fn not_overtaken(
        self: &Rc<Self>,
        first: LocalBlock,
        mut candidates: Vec<Candidate>,
    ) -> Vec<Candidate> {
        let block_of = |candidate: &Candidate| LocalBlock(first.0 + candidate.index as u64);
        let mut overtaken = Vec::new();
        candidates.retain(|candidate| {
            let well = self.is_current(block_of(candidate), candidate);
            if !well {
                overtaken.push(block_of(candidate));
            }
            well
        });
        count(&self.stats.counters.refused_overtaken, overtaken.len() as u64);
        for block in overtaken {
            self.write_tombstone_if_stale(block).await;
        }
        candidates
    }

    /// Whether no write has overtaken the data of a candidate.
    fn is_current(&self, block: LocalBlock, candidate: &Candidate) -> bool {
        self.order.is_current(block, candidate.version)
            || candidate.replaces.is_some() && planted(PlantedBug::UndoneOvertaken)
    }

    async fn store_batch(self: &Rc<Self>, first: LocalBlock, data: &IoBuf, batch: &Batch) {
        for (candidate, packed) in &batch.items {
            let block = LocalBlock(first.0 + candidate.index as u64);
            let (what, stored) = batch.record(packed, data, candidate.index, false);
            if let Some(ring) = self.store_block(block, candidate, what).await {
                if let Some(replaced) = candidate.replaces {
                    self.count_stored(packed, stored);
                    if self.second_stage.balance.note_undone(replaced) {
                        count(&self.stats.counters.undone_blocks, 1);
                    }
                    if ring == Ring::Main {
                        self.follow_stored(block, stored, StoredAs::Moved);
                    }
                    continue;
                }
                self.count_admitted(packed, stored, candidate.written);
                let stored_as = match candidate.written {
                    true => StoredAs::Written(ring),
                    false => StoredAs::Read(ring),
                };
                self.follow_stored(block, stored, stored_as);
                if !candidate.written && (1..BLOCK_BYTES as u64).contains(&stored) {
                    self.offer_sample(block, &data[candidate.index * BLOCK_BYTES..][..BLOCK_BYTES]);
                }
                self.sample_codecs(first, data, candidate.index, stored).await;
            }
        }
    }

    /// A new block compresses: it may be a sample for the first dictionary.
    fn offer_sample(self: &Rc<Self>, block: LocalBlock, data: &[u8]) {
        if self.training.selects_new(block) && self.wants_sample() && self.second_codec().is_some() {
            self.add_sample(data);
        }
    }

    /// Appends one block, unless a write has overtaken it, or it is already cached, in another place than the one it replaces. Waits for
    /// space. Returns the ring.
    async fn store_block(
        self: &Rc<Self>,
        block: LocalBlock,
        candidate: &Candidate,
        what: Append<'_>,
    ) -> Option<Ring> {
        loop {
            if !planted(PlantedBug::PageNotLoaded) {
                self.load_page(block).await;
            }
            if self.cache.is_fenced() || (self.is_stopping() && self.reclaimer.is_stuck()) {
                return None;
            }
            // From here to `install` nothing may await: see `super::order` on the stale-admission race.
            if !self.is_current(block, candidate) {
                count(&self.stats.counters.refused_overtaken, 1);
                self.write_tombstone_if_stale(block).await;
                return None;
            }
            let now = self.map.lookup(block);
            let hits = match (now, candidate.replaces) {
                (None, None) => candidate.hits,
                // Its contents are the same: the version is.
                (Some(now), Some(old)) if now.same_place(old.entry) && !now.dirty() => now.hits(),
                (_, Some(_)) if planted(PlantedBug::UndoneOvertaken) => 0,
                // It was dropped, or moved by a reclaim.
                (_, Some(_)) => return None,
                (Some(_), None) => {
                    // Another admission of the same data came first: the version is still the same.
                    count(&self.stats.counters.refused_present, 1);
                    return None;
                }
            };
            if now.is_some() && self.map.is_newly_clean(block) {
                return None;
            }
            if self.allowance() == Allowance::Nothing {
                count(&self.stats.counters.refused_budget, 1);
                self.write_tombstone_if_stale(block).await;
                return None;
            }
            let old = self
                .ring_for(block)
                .filter(|_| !planted(PlantedBug::RingOfOldIgnored));
            let ring = old.unwrap_or(candidate.ring);
            let appended = self.log.append(ring, self.global(block), what, Class::Client);
            if let Some(Appended { entry, .. }) = appended {
                self.map.install(&self.log, block, entry.with_hits(hits));
                self.appended();
                return Some(ring);
            }
            self.wait_for_room().await;
        }
    }

    /// Appends a tombstone for a block whose copy on the device is stale, unless a newer record was appended meanwhile.
    pub(super) async fn write_tombstone_if_stale(self: &Rc<Self>, block: LocalBlock) {
        loop {
            let Some(ring) = self.map.stale_ring(block) else {
                return;
            };
            if self.cache.is_fenced() || planted(PlantedBug::TombstoneNotWritten) {
                self.map.forget_stale();
                return;
            }
            if self.is_stopping() && self.reclaimer.is_stuck() {
                // The block stays stale, so the stop is not clean, and the intent of its stripe stays set.
                return;
            }
            if self.map.is_full_of_tombstones() {
                // On failure the device has been fenced.
                self.make_log_stable().await;
                continue;
            }
            let global = self.global(block);
            let appended = self.log.append(ring, global, Append::Tombstone, Class::Client);
            if let Some(Appended { lsn, .. }) = appended {
                self.map.tombstone_appended(block, ring, lsn);
                count(&self.stats.counters.tombstones, 1);
                self.appended();
                return;
            }
            self.wait_for_room().await;
        }
    }
}
