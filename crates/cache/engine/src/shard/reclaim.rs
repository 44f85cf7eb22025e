//! Reclaim: frees whole regions, oldest first; regions are never compacted.
//!
//! The policy chooses the ring whose oldest region is freed, and for each block in it: drop it, or store it again
//! because it was used: see [`super::keep`]. The region is discarded before it is reused.
//!
//! With a paged index, only the pages of blocks that may stay are loaded: those that were used, and those that may be dirty. All others
//! leave the index at once, when the blocks that stay have been moved: see [`BlockMap::retire`](super::map::BlockMap::retire).

use std::rc::Rc;
use std::time::Duration;

use flaz_device::{DeviceError, Env, IoBuf};
use futures_util::future::join;

use super::keep::Survivor;
use super::log::{Append, Appended, Class, Copies, Victim};
use super::region_reader::{Found, Guess, RegionContents, located, read_region};
use super::tasks::Phase;
use super::writeback_runs::{Dirty, WrittenBack};
use super::{Platform, Shard, fragment};
use crate::format::extent::Record;
use crate::index::Entry;
use crate::planted::{PlantedBug, planted};
use crate::policy::{Fate, Price, Ring};
use crate::stats::count;
use crate::units::{BLOCK_BYTES, BlockNumber, LocalBlock, Location};

/// Records judged before reclaim yields to other tasks.
const JUDGE_YIELD_RECORDS: usize = 256;
/// Pause before reclaim retries to write dirty blocks to a failing origin.
const EVACUATE_PAUSE: Duration = Duration::from_secs(1);
/// How long after a failed read of a dirty block the read is repeated, before the block counts as lost. After a checksum
/// mismatch it is repeated at once.
const LOAD_AGAIN: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(5),
];

impl<P: Platform> Shard<P> {
    pub(super) fn want_reclaim(&self) {
        if self.can_reclaim() {
            self.reclaimer.wake();
        }
    }

    /// Whether a region should be reclaimed and no reclaim is running.
    pub(super) fn can_reclaim(&self) -> bool {
        !self.reclaimer.is_running() && self.wants_reclaim()
    }

    /// Whether a region should be reclaimed. A reclaim that was put back must be finished, however many regions are free now, if clients
    /// wait for its end.
    fn wants_reclaim(&self) -> bool {
        let must_finish = !self.reclaimer.is_running() && self.log.awaits_reclaim();
        self.log.wants_reclaim() || must_finish
    }

    /// Frees regions before they are needed, until the shard stops.
    pub(super) async fn reclaim_task(shard: Rc<Self>) {
        loop {
            let is_wanted = || !shard.is_stopping() && !shard.cache.is_fenced() && shard.wants_reclaim();
            while is_wanted() {
                let lacks = shard.log.wants_space() || shard.log.free_regions() == 0;
                let helped = match shard.log.must_give() {
                    true => shard.give_one().await,
                    false => lacks && shard.allocate_one().await,
                };
                // Since that began, the shard may have begun to stop, and others may reclaim.
                if helped || !is_wanted() {
                    continue;
                }
                if !shard.reclaim_one(shard.log.keeps_clean()).await {
                    break;
                }
            }
            if shard.is_stopping() {
                return;
            }
            shard.reclaimer.wanted().await;
        }
    }

    /// Reclaims one region; false if no ring has one, or if there is no place for its dirty blocks. With `keep`, used blocks
    /// are stored again; dirty blocks always are.
    pub(super) async fn reclaim_one(self: &Rc<Self>, keep: bool) -> bool {
        let unfinished = self.reclaimer.unfinished();
        let wanted = || self.log.ring_to_free(self.tuning.victim(self.ring_sizes()));
        let victim = unfinished.unwrap_or_else(wanted);
        let other = victim.other();
        // A reclaim that a crash interrupted is finished first.
        let taken = (self.log.take_oldest(victim))
            .or_else(|| unfinished.is_none().then(|| self.log.take_oldest(other))?);
        let Some(victim) = taken else { return false };
        let reclaim = self.reclaimer.begin();
        let cached = self.map.len() as u64;
        self.tuning.reclaim_begins(cached);
        self.follow_changes();
        self.fit_pages();
        self.log.hold_for_reclaim(self.dirty_blocks() > 0);
        let (contents, ()) = join(self.contents_of(victim), self.tell_of_reclaim(victim)).await;
        let mut survivors = Vec::new();
        match contents {
            Ok(contents) => {
                survivors = self.judge(victim, &contents, keep).await;
                if self.map.is_paged() && planted(PlantedBug::RetiredEarly) {
                    self.map.retire(&self.log, victim.region);
                }
                self.store_again(&survivors).await;
            }
            Err(error) => {
                count(&self.stats.counters.regions_unreadable, 1);
                tracing::warn!(shard = self.id.number, region = victim.region, %error, "dropped a region that cannot be read");
            }
        }
        let evacuated = self.evacuate(victim.region).await && self.drop_rest(victim.region, &survivors).await;
        if evacuated {
            self.free_region(victim).await;
            self.log.hold_for_reclaim(false);
            self.log.wake_room();
            if !self.cache.is_fenced() && !self.is_stopping() {
                self.check_pages().await;
            }
            reclaim.freed(victim.ring);
        } else {
            self.log.put_back(victim);
            self.log.hold_for_reclaim(false);
            // What waits for space while the shard opens waits until it serves.
            let again = self.tasks.phase() == Phase::Opening && !self.cache.is_fenced();
            reclaim.put_back(victim.ring, again);
        }
        self.log.wake_room();
        evacuated
    }

    /// Moves the dirty blocks that are still in a region: blocks that no summary lists, or for which there was no space. They
    /// are stored again if possible, and written to the origin otherwise. False: neither works.
    async fn evacuate(self: &Rc<Self>, number: u32) -> bool {
        let mut tries = 0_u32;
        loop {
            let Some(left) = self.dirty_in(number).await else {
                return false;
            };
            let mut homeless = Vec::new();
            for dirty in left {
                if !self.move_dirty(&dirty).await {
                    homeless.push(dirty);
                }
            }
            if homeless.is_empty() {
                return true;
            }
            tracing::debug!(
                shard = self.id.number,
                region = number,
                blocks = homeless.len(),
                "reclaim writes back dirty blocks that it cannot move"
            );
            homeless.sort_unstable_by_key(|dirty| dirty.block);
            let WrittenBack {
                blocks: written,
                outcome,
                ..
            } = self.write_dirty(&homeless).await;
            let all = outcome.is_ok() && written.len() == homeless.len();
            if all {
                // All or none: their records are on the device until the region is free, and the entries of a region whose
                // reclaim is given up must stay.
                for dirty in &written {
                    if self.is_still(dirty).await {
                        self.map.evacuate(&self.log, dirty.block);
                        count(&self.stats.counters.cleaned_blocks, 1);
                    }
                }
                self.writeback.note_step();
            } else {
                let why = outcome.err().map_or_else(
                    || "no space for unreadable blocks".to_owned(),
                    |error| error.to_string(),
                );
                tries += 1;
                // An origin may be unavailable for hours.
                if tries.is_power_of_two() {
                    tracing::warn!(
                        shard = self.id.number,
                        region = number,
                        tries,
                        why,
                        "reclaim waits: dirty blocks of a region cannot be written back"
                    );
                }
                // A start does not wait for the origin.
                let opening = self.tasks.phase() == Phase::Opening;
                if self.is_stopping() || self.cache.is_fenced() || opening {
                    return false;
                }
                self.env.sleep(EVACUATE_PAUSE).await;
            }
            if self.is_stopping() || self.cache.is_fenced() {
                return self.dirty_in(number).await.is_some_and(|left| left.is_empty());
            }
        }
    }

    /// The dirty blocks of a region. `None`: index pages cannot be read, so it may have others.
    async fn dirty_in(self: &Rc<Self>, number: u32) -> Option<Vec<Dirty>> {
        let may_be_dirty = self.map.may_be_dirty_in(&self.log, number);
        if !may_be_dirty || planted(PlantedBug::ReclaimedBeforeClean) {
            return Some(Vec::new());
        }
        self.pick_blocks(true, |block, entry| {
            let is_here = entry.dirty() && self.log.region_of(entry.location()) == number;
            is_here.then(|| self.dirty_now(block, entry))?
        })
        .await
        .or_else(|| planted(PlantedBug::UnreadCountsAsClean).then(Vec::new))
    }

    /// Stores the contents of a dirty block again, or a record that the contents are lost. The latter only after repeated
    /// reads gave wrong data. False: there is no space, or the device was fenced.
    async fn move_dirty(self: &Rc<Self>, dirty: &Dirty) -> bool {
        let mut data = IoBuf::new(BLOCK_BYTES);
        let errors = &self.stats.counters.cache_read_errors;
        let mut known = errors.get();
        let mut loaded = self.load_block(dirty.block, dirty.entry, &mut data).await;
        for pause in LOAD_AGAIN {
            if loaded.is_ok() || !self.is_still(dirty).await || self.cache.is_fenced() {
                break;
            }
            if errors.get() != known {
                self.env.sleep(pause).await;
            }
            known = errors.get();
            loaded = self.load_block(dirty.block, dirty.entry, &mut data).await;
        }
        let (mut packer, mut bytes) = (self.take_packer(), Vec::new());
        packer.next_request();
        let packed = packer.pack(&data, &mut bytes);
        self.codecs.put_back(packer);
        let what = match (&loaded, packed) {
            (Err(_) | Ok(false), _) => Append::LOST,
            (_, fragment::Packed::SameFilled(value)) => Append::SameFilled { value, dirty: true },
            (
                _,
                fragment::Packed::Compressed {
                    codec,
                    start,
                    len,
                    plain_crc,
                },
            ) => Append::Packed {
                codec,
                stored: &bytes[start..start + len],
                plain_crc,
                dirty: true,
            },
            (_, fragment::Packed::Raw { plain_crc }) => Append::Packed {
                codec: flaz_codec::CodecId::RAW,
                stored: &data,
                plain_crc,
                dirty: true,
            },
        };
        loop {
            if !self.is_still(dirty).await {
                return true;
            }
            // The old copy can be read; a new copy that is not sent to the fenced device cannot.
            if self.cache.is_fenced() {
                return false;
            }
            let global = self.global(dirty.block);
            let appended = self.log.append(Ring::Main, global, what, Class::Reclaim);
            if let Some(Appended { entry, .. }) = appended {
                self.map.install(
                    &self.log,
                    dirty.block,
                    entry.with_hits(dirty.entry.hits()).with_dirty(true),
                );
                count(&self.stats.counters.dirty_moved_blocks, 1);
                self.pump_writes();
                return true;
            }
            if self.cache.is_fenced() || !self.log.writing() {
                return false;
            }
            self.pump_writes();
            self.log.room().await;
        }
    }

    /// The extents and records of the region that is being reclaimed.
    async fn contents_of(&self, victim: Victim) -> Result<RegionContents, String> {
        let place = self.id.region(victim.region);
        let read = read_region(
            self.cache.device(),
            &place,
            &self.log.entry_of(victim),
            &Guess::default(),
            &self.stats.counters.cache_read_errors,
        )
        .await;
        match read {
            Ok(Found::Contents(contents)) => Ok(contents),
            Ok(Found::Damaged(what)) => Err(what),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Decides for each block of the region whether it is dropped or moved. The former are dropped, from a paged index later.
    async fn judge(self: &Rc<Self>, victim: Victim, contents: &RegionContents, keep: bool) -> Vec<Survivor> {
        let mut survivors = Vec::new();
        let base = u64::from(victim.region) * self.id.layout.region_bytes;
        let mut judged = 0;
        for (extent, records) in contents.records_by_extent() {
            let start = base + u64::from(extent.offset);
            for (record, at) in located(extent, records) {
                let place = base + at;
                let written = Entry::of_record(record, Location::at(start), Location::at(place));
                let ours = record.blocks().find(|block| self.is_ours(*block));
                if let (Some(written), Some(ours)) = (written, ours) {
                    if self.may_stay(victim, written, keep) {
                        self.load_four(self.local(ours)).await;
                        self.count_divided(record, written);
                        survivors.extend(record.blocks().filter_map(|block| {
                            self.judge_one(victim.ring, record, block, written, place, keep)
                        }));
                    } else if keep {
                        self.note_unused(victim.ring, record);
                    }
                }
                judged += 1;
                if judged % JUDGE_YIELD_RECORDS == 0 {
                    self.env.yield_now().await;
                }
            }
        }
        survivors
    }

    /// Whether blocks of a record may stay, so that their index pages must be loaded.
    fn may_stay(&self, victim: Victim, written: Entry, keep: bool) -> bool {
        let is_used = || keep && self.map.uses_of(written) > 0;
        let is_dirty = || written.dirty() && self.map.may_be_dirty_in(&self.log, victim.region);
        !self.map.is_paged() || is_used() || is_dirty()
    }

    /// The blocks of a record leave without a use, as far as the record is still their latest one. Those of which it is not are cached
    /// elsewhere, or not any more; that the policy hears of them as well costs it some precision.
    fn note_unused(&self, ring: Ring, record: Record) {
        let allowance = self.allowance();
        for block in record.blocks().filter(|block| self.is_ours(*block)) {
            let fate = self
                .tuning
                .reclaim(ring, self.local(block), 0, Price::USUAL, allowance);
            assert_eq!(fate, Fate::Drop, "a use is the least price");
        }
    }

    /// Counts a group of which some blocks have changed or are gone.
    fn count_divided(&self, record: Record, written: Entry) {
        let ours = || record.blocks().filter(|block| self.is_ours(*block));
        let blocks = ours().count();
        if blocks > 1 {
            let still = |block: &BlockNumber| self.map.is_at(self.local(*block), written);
            let still = ours().filter(still).count();
            let divided = 0 < still && still < blocks;
            count(&self.stats.counters.groups_divided, u64::from(divided));
        }
    }

    /// Whether a block of a record belongs to this shard: a damaged or forged record may name any.
    fn is_ours(&self, block: BlockNumber) -> bool {
        let (shard, _) = block.in_shard(self.id.layout.shard_count);
        block.0 < self.whole_blocks() && shard == self.id.number
    }

    /// Decides for one block of a record, whose fragment is at `at`.
    fn judge_one(
        &self,
        ring: Ring,
        record: Record,
        number: BlockNumber,
        written: Entry,
        at: u64,
        keep: bool,
    ) -> Option<Survivor> {
        if !self.is_ours(number) {
            return None;
        }
        let block = self.local(number);
        let entry = self.map.lookup(block).filter(|entry| entry.same_place(written))?;
        let fate = if entry.dirty() && !planted(PlantedBug::ReclaimedBeforeClean) {
            // A dirty block is never dropped. In the ring that it goes to it is not judged again until it is clean.
            Fate::Keep {
                ring: Ring::Main,
                hits: entry.hits(),
            }
        } else if keep {
            let bytes = record.fragment_bytes() / record.blocks().count();
            let price = Price::of(bytes as u64, self.map.mean_fragment_bytes());
            let allowance = self.allowance();
            self.tuning.reclaim(ring, block, entry.hits(), price, allowance)
        } else {
            Fate::Drop
        };
        match fate {
            Fate::Drop if self.map.is_paged() => None,
            Fate::Drop => {
                self.map.remove(&self.log, block);
                count(&self.stats.counters.reclaimed_blocks, 1);
                None
            }
            Fate::Keep { ring, hits } => {
                let end = at + record.fragment_bytes() as u64;
                Some(Survivor {
                    block,
                    entry,
                    ring,
                    hits,
                    start: at,
                    end,
                })
            }
        }
    }

    /// Drops the clean blocks that are left in the region. False: it has dirty ones, whose index pages cannot be read.
    async fn drop_rest(self: &Rc<Self>, number: u32, survivors: &[Survivor]) -> bool {
        if !self.map.is_paged() {
            self.sweep(number, survivors).await;
            return self.log.live_in(number) == 0;
        }
        let drops_all = planted(PlantedBug::ReclaimedBeforeClean) || planted(PlantedBug::UnreadCountsAsClean);
        if self.map.may_be_dirty_in(&self.log, number) && !drops_all {
            return false;
        }
        let dropped = self.map.retire(&self.log, number);
        count(&self.stats.counters.reclaimed_blocks, dropped.into());
        true
    }

    /// Drops the clean blocks that a table still has in the region: those of `survivors` that could not be moved, and those that no
    /// summary listed.
    async fn sweep(self: &Rc<Self>, number: u32, survivors: &[Survivor]) {
        if self.log.live_in(number) == 0 {
            return;
        }
        self.drop_clean_in(number, survivors.iter().map(|survivor| survivor.block));
        // All of the index is searched for the others, so not without need.
        if self.log.live_in(number) > 0 {
            let here = |entry: Entry| self.log.region_of(entry.location()) == number;
            let left = self
                .pick_blocks(false, |block, entry| here(entry).then_some(block))
                .await;
            self.drop_clean_in(number, left.expect("a table is in memory").into_iter());
        }
    }

    /// Drops those of these blocks that are clean and in the region.
    fn drop_clean_in(self: &Rc<Self>, number: u32, blocks: impl Iterator<Item = LocalBlock>) {
        let clean = |entry: Entry| !entry.dirty() || planted(PlantedBug::ReclaimedBeforeClean);
        let here = |entry: Entry| self.log.region_of(entry.location()) == number;
        for block in blocks {
            if self
                .map
                .lookup(block)
                .is_some_and(|entry| here(entry) && clean(entry))
            {
                self.map.remove(&self.log, block);
                count(&self.stats.counters.reclaimed_blocks, 1);
            }
        }
    }

    /// Marks the region as *reclaiming* in the manifest before the first block leaves it. From then on recovery ignores its
    /// clean blocks, and blocks moved to the other ring cannot be reclaimed before this region is free.
    async fn tell_of_reclaim(self: &Rc<Self>, victim: Victim) {
        if self.cache.is_fenced() || planted(PlantedBug::ReclaimNotMarked) {
            return;
        }
        let regions = [victim.region];
        let told = self
            .log
            .write_manifest(&self.cache, &regions, Copies::BothStable)
            .await;
        if let Err(error) = told {
            self.cache_error(&error);
            self.fence("the manifest could not be written");
        }
    }

    /// Waits for readers, marks the region as *free* in the manifest, discards it and frees it.
    ///
    /// The mark is stable before anything else is reclaimed: otherwise a newer record could be lost before an older one that
    /// is still in this region. It is also stable before the region is opened again.
    async fn free_region(self: &Rc<Self>, victim: Victim) {
        assert_eq!(self.log.live_in(victim.region), 0, "no block is left in it");
        self.log.unpinned(victim).await;
        let region_bytes = self.id.layout.region_bytes;
        let position = self.id.position_of(victim.region);
        if self.writeback.has_dirty_records() && !planted(PlantedBug::DirtyVoidedUnstable) {
            // Newer versions of the dirty records in this region must be stable before the records are gone. On failure the
            // device has been fenced.
            self.make_log_stable().await;
        }
        if !self.cache.is_fenced() {
            match self.tell_of_free(victim).await {
                Ok(()) => {
                    self.map.evacuation_ended();
                    if let Err(error) = self.cache.discard(position, region_bytes).await {
                        self.cache_error(&error);
                    }
                }
                Err(error) => {
                    self.cache_error(&error);
                    self.fence("the manifest could not be written");
                }
            }
        }
        count(&self.stats.counters.discarded_bytes, region_bytes);
        count(&self.stats.counters.regions_reclaimed, 1);
        self.map.forget_uses(victim.region);
        self.log.free(victim);
        // A region with damage may have been closed.
        self.pump_writes();
    }

    /// The moved blocks count from now on, then the victim is free: the first mark is stable before the second, unless both
    /// are in one sector.
    async fn tell_of_free(&self, victim: Victim) -> Result<(), DeviceError> {
        let sector_of = |region| self.id.layout.manifest_sector_of(region);
        if let Some(region) = self.log.end_recovering()
            && sector_of(region) != sector_of(victim.region)
        {
            self.log
                .write_manifest(&self.cache, &[region], Copies::BothStable)
                .await?;
        }
        self.log.empty_victim();
        let given_early = self.log.must_give() && planted(PlantedBug::ChunkGivenBackEarly);
        if planted(PlantedBug::RegionNotVoided) || given_early {
            return Ok(());
        }
        self.log
            .write_manifest(&self.cache, &[victim.region], Copies::BothStable)
            .await
    }
}

#[cfg(test)]
mod tests;
