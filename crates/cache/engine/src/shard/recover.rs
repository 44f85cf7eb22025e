//! Recovery: rebuilds the index from the cache device after a crash.
//!
//! Follows the rules of `docs/format.md`: the manifest says what each region is used for; every region in use is read by its
//! summary, or by walking the headers of its extents; of all records of a block the one with the highest sequence counts.
//! Clean blocks are ignored if they are in a region that was being reclaimed, or in a stripe with a set intent; the latter
//! get tombstones. Open regions are closed.
//!
//! Until the manifest says that they are closed, recovery writes nothing that changes the result of another recovery of
//! the same device, so a crash during recovery is the same as a crash before it. The exception is a damaged page of intents:
//! its bits are written as set, and another recovery drops at least the same blocks.

use std::rc::Rc;

use flaz_device::{DeviceError, Env, IoBuf};
use futures_util::stream::{StreamExt, iter};

use super::errors::RecoverError;
use super::log::{Append, Class, Copies, Region, RegionState, Regions, WRITES_IN_FLIGHT_MAX};
use super::manifest_reader::{Manifest, ManifestError, ManifestPlace, read_manifest};
use super::queue::Job;
use super::recover_order::{Merge, Next};
use super::region_reader::{Found, Guess, RegionContents, located, read_region};
use super::{Platform, Shard};
use crate::format::extent::{Record, RecordKind};
use crate::format::manifest::{ManifestEntry, RegionUse};
use crate::format::summary::{Summary, summary_bytes};
use crate::index::{Bulk, Change, Entry};
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::units::{LocalBlock, Location, STRIPE_BLOCKS, Sequence};

/// Records inserted at a time, sorted by segment of the index, so that each segment stays in the processor's cache for
/// thousands of records.
const BATCH_RECORDS: usize = 256 << 10;
/// Regions read concurrently.
const SCANS_MAX: usize = 8;

/// The result of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Regions with contents.
    pub regions: u64,
    /// Records read.
    pub records: u64,
    /// Blocks that are cached again.
    pub blocks: u64,
    /// Blocks dropped because a write to their stripe may have been in flight.
    pub dropped: u64,
    /// Dirty blocks: newer than the origin.
    pub dirty: u64,
    /// Stripes whose intent was set.
    pub stripes: u64,
    /// Bytes read from the cache device.
    pub bytes_read: u64,
}

impl Recovered {
    /// Adds the result of another shard.
    pub fn add(&mut self, other: &Self) {
        self.regions += other.regions;
        self.records += other.records;
        self.blocks += other.blocks;
        self.dropped += other.dropped;
        self.dirty += other.dirty;
        self.stripes += other.stripes;
        self.bytes_read += other.bytes_read;
    }
}

/// A region in use, whose records have been taken over.
struct InUse {
    number: u32,
    entry: ManifestEntry,
    used: u32,
    last_sequence: Sequence,
    /// The contents of an open region: it must be closed or freed in the manifest.
    open: Option<Rc<RegionContents>>,
}

impl InUse {
    fn new(number: u32, entry: ManifestEntry, contents: &Rc<RegionContents>) -> Self {
        let last = contents.last_sequence().unwrap_or_default();
        let is_open = entry.state == RegionUse::Open;
        Self {
            number,
            entry,
            used: contents.used,
            last_sequence: last.max(entry.generation),
            open: is_open.then(|| Rc::clone(contents)),
        }
    }
}

impl<P: Platform> Shard<P> {
    /// Rebuilds the index of a shard that has not been started. `tell` is called for every region.
    ///
    /// # Errors
    /// [`RecoverError`]: drop the shard and start the cache cold.
    pub async fn recover(self: &Rc<Self>, tell: impl Fn()) -> Result<Recovered, RecoverError> {
        let shard = self.id.number;
        let device = |source| RecoverError::Device { shard, source };
        self.load_intents().await.map_err(device)?;
        let mut outcome = Recovered {
            stripes: self.intents.set_count(),
            ..Recovered::default()
        };
        let manifest = self.load_manifest().await?;
        outcome.bytes_read += manifest.bytes_read;
        let found = self.take_over_records(&manifest, &mut outcome, tell).await?;
        self.check_sequences(&found)?;
        self.check_victim(&found)?;
        self.take_over_regions(&found);
        let regions = self.id.opened.regions_per_shard;
        self.map.rebuilt(&self.cache, &self.log, regions).await;
        self.drop_reclaimed().await;
        self.close_regions(&found).await.map_err(device)?;
        drop(found);
        self.inherit_dirty();
        outcome.dropped = self.drop_intended().await?;
        if let Some(what) = self.map.failure() {
            return Err(RecoverError::Damaged { shard, what });
        }
        outcome.blocks = self.map.len() as u64;
        outcome.dirty = self.map.dirty_blocks();
        Ok(outcome)
    }

    /// Reads the manifest of the previous opening.
    pub(super) async fn load_manifest(&self) -> Result<Manifest, RecoverError> {
        let place = ManifestPlace {
            geometry: &self.id.opened,
            cache_id: self.id.cache_id,
            shard: self.id.number,
            valid_from: self.id.valid_from,
            until: self.id.epoch,
        };
        let shard = self.id.number;
        let manifest = read_manifest(self.cache.device(), &place).await;
        let manifest = manifest.map_err(|error| match error {
            ManifestError::Device(source) => RecoverError::Device { shard, source },
            damaged @ ManifestError::Damaged(..) => RecoverError::Damaged {
                shard,
                what: damaged.to_string(),
            },
        })?;
        for copy in &manifest.damaged {
            let (position, error) = (copy.position, &copy.error);
            tracing::warn!(
                shard,
                position,
                error,
                "one copy of a sector of the manifest is damaged"
            );
        }
        self.log.inherit_copies(&manifest.next_copies);
        Ok(manifest)
    }

    /// Reads every region in use, and inserts the records in the order of their extents, so the last record of a block wins. The regions
    /// are read in the order of their generations, which is also that of the rings; the records of a region are in memory from then on
    /// until the next one is younger than all of them.
    async fn take_over_records(
        &self,
        manifest: &Manifest,
        outcome: &mut Recovered,
        tell: impl Fn(),
    ) -> Result<Vec<InUse>, RecoverError> {
        let (shard, guess) = (self.id.number, Guess::default());
        let mut wanted: Vec<(u32, ManifestEntry)> = (0..).zip(manifest.entries.iter().copied()).collect();
        wanted.retain(|(_, entry)| !matches!(entry.state, RegionUse::Free | RegionUse::Recovering));
        (wanted.len()..manifest.entries.len()).for_each(|_| tell());
        wanted.sort_by_key(|(_, entry)| entry.generation);
        let bytes = wanted.iter().map(|(_, entry)| u64::from(entry.len)).sum();
        let (mut merge, mut found) = (Merge::new(self.map.bulk(), bytes), Vec::new());
        let guess = &guess;
        let reads = wanted.iter().map(async |&(number, entry)| {
            let place = self.id.region(number);
            (
                number,
                entry,
                read_region(self.cache.device(), &place, &entry, guess).await,
            )
        });
        let mut reads = iter(reads).buffered(SCANS_MAX);
        while let Some((number, entry, read)) = reads.next().await {
            tell();
            let contents = match read {
                Ok(Found::Contents(contents)) => Rc::new(contents),
                Ok(Found::Damaged(what)) => return Err(RecoverError::Damaged { shard, what }),
                Err(source) => return Err(RecoverError::Device { shard, source }),
            };
            outcome.bytes_read += contents.bytes_read;
            outcome.regions += u64::from(contents.used > 0);
            outcome.records += contents.records.len() as u64;
            found.push(InUse::new(number, entry, &contents));
            merge.add(number, contents);
            let next = wanted.get(found.len()).map(|(_, entry)| entry.generation);
            while let Some(extent) = merge.next_before(next) {
                self.take_over_extent(&extent, &mut merge.bulk);
                if merge.bulk.len() >= BATCH_RECORDS {
                    self.apply(&mut merge);
                    self.env.yield_now().await;
                }
            }
        }
        self.apply(&mut merge);
        Ok(found)
    }

    fn apply(&self, merge: &mut Merge) {
        if self.map.len() == 0 {
            self.map.reserve(merge.expected());
        }
        self.map.apply(&mut merge.bulk);
    }

    fn take_over_extent(
        &self,
        Next {
            region,
            contents,
            extent,
            first,
        }: &Next,
        bulk: &mut Bulk,
    ) {
        let extent = &contents.extents[*extent];
        let base = u64::from(*region) * self.id.layout.region_bytes;
        let start = base + u64::from(extent.offset);
        let records = &contents.records[*first..*first + usize::from(extent.record_count)];
        for (record, at) in located(extent, records) {
            let Some(change) = change_of(record, start, base + at) else {
                continue;
            };
            for block in record.blocks() {
                let (shard, local) = block.in_shard(self.id.layout.shard_count);
                if block.0 < self.whole_blocks() && shard == self.id.number {
                    bulk.push(local, change);
                }
            }
        }
    }

    /// Refuses numbers that no cache can reach: flaz did not write them, and new numbers must be higher than all existing ones.
    fn check_sequences(&self, found: &[InUse]) -> Result<(), RecoverError> {
        let shard = self.id.number;
        let last = found.iter().map(|region| (region.last_sequence, region.number));
        match last.max() {
            Some((last, region)) if last > Sequence::MAX_READ => Err(RecoverError::Damaged {
                shard,
                what: format!(
                    "region {region} has sequence {}, expected {} at most",
                    last.0,
                    Sequence::MAX_READ.0
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Checks that at most one region was being reclaimed, the oldest of its ring.
    fn check_victim(&self, found: &[InUse]) -> Result<(), RecoverError> {
        let used = || found.iter().filter(|region| region.used > 0);
        let mut victims = used().filter(|region| region.entry.state == RegionUse::Reclaiming);
        let Some(victim) = victims.next() else {
            return Ok(());
        };
        let oldest = used().find(|region| region.entry.ring == victim.entry.ring);
        if oldest.is_some_and(|oldest| oldest.number == victim.number) && victims.next().is_none() {
            return Ok(());
        }
        Err(RecoverError::Damaged {
            shard: self.id.number,
            what: format!(
                "region {} is being reclaimed, and is not the only one, or not the oldest of its ring",
                victim.number
            ),
        })
    }

    fn take_over_regions(&self, found: &[InUse]) {
        let used = || found.iter().filter(|region| region.used > 0);
        let mut table = vec![Region::FREE; self.id.opened.regions_per_shard as usize];
        for region in used() {
            table[region.number as usize] = Region {
                state: RegionState::Full,
                ring: region.entry.ring,
                generation: region.entry.generation,
                used: region.used,
                live: 0,
            };
        }
        assert!(
            found.is_sorted_by_key(|region| region.entry.generation),
            "the order of filling"
        );
        let mut regions = Regions::from_table(&table);
        for region in used() {
            regions.enter_ring(region.number);
        }
        let last = found
            .iter()
            .map(|region| region.last_sequence)
            .max()
            .unwrap_or_default();
        // The numbers of this epoch are higher than any that an earlier epoch can have used.
        let next_sequence = self.log.next_sequence().max(Sequence(last.0 + 1));
        self.log.inherit(regions, next_sequence);
        self.withhold_inherited();
        let victim = used().find(|region| region.entry.state == RegionUse::Reclaiming);
        if let Some(victim) = victim {
            self.inherit_victim(victim.number, victim.entry.ring);
        }
    }

    /// Registers an unfinished reclaim: it is finished before another one begins.
    pub(super) fn inherit_victim(&self, number: u32, ring: Ring) {
        self.log.inherit_victim(number);
        self.reclaimer.note_unfinished(ring);
    }

    /// Drops the clean blocks of a region that was being reclaimed: some may have been dropped before the crash and written
    /// to the origin since. No older record of them exists, because they are in the oldest region of their ring.
    async fn drop_reclaimed(self: &Rc<Self>) {
        let Some(victim) = self.log.victim() else { return };
        if planted(PlantedBug::ReclaimedKept) {
            return;
        }
        let clean = |entry: Entry| !entry.dirty() && self.log.region_of(entry.location()) == victim;
        let dropped = self
            .pick_blocks(false, |block, entry| clean(entry).then_some(block))
            .await;
        for block in dropped {
            self.load_page(block).await;
            self.map.remove(&self.log, block);
        }
    }

    /// Closes open regions: their contents are what was found now, whatever can be read the next time. Each gets a summary, so
    /// the next reader need not walk its extents.
    async fn close_regions(&self, found: &[InUse]) -> Result<(), DeviceError> {
        let contents = |region: &'_ InUse| {
            region
                .open
                .clone()
                .map(|contents| (region.number, region.entry, contents))
        };
        let open: Vec<_> = found.iter().filter_map(contents).collect();
        if open.is_empty() {
            return Ok(());
        }
        for (number, entry, contents) in open.iter().filter(|(.., contents)| contents.used > 0) {
            self.write_summary(*number, entry, contents).await?;
        }
        // The extents found may still be in the device's volatile cache, and the manifest is about to call them stable.
        self.cache.flush().await?;
        let regions: Vec<u32> = open.iter().map(|(number, ..)| *number).collect();
        self.log
            .write_manifest(&self.cache, &regions, Copies::BothStable)
            .await
    }

    async fn write_summary(
        &self,
        number: u32,
        entry: &ManifestEntry,
        contents: &RegionContents,
    ) -> Result<(), DeviceError> {
        let start = self.id.position_of(number);
        let len = summary_bytes(
            contents.extents.len(),
            contents.records.len(),
            self.id.layout.sector_bytes,
        );
        assert!(
            u64::from(contents.used) + len <= self.id.layout.region_bytes,
            "room was kept"
        );
        let summary = Summary {
            cache: self.id.cache_id,
            shard: self.id.number,
            ring: entry.ring,
            generation: entry.generation,
            position: start,
            extents: contents.extents.clone(),
            records: contents.records.clone(),
        };
        let mut buf = IoBuf::new(len as usize);
        summary.write(&mut buf);
        let position = start + self.id.layout.region_bytes - len;
        self.cache.write_at(position, buf).await
    }

    /// The clean blocks of stripes whose intent is set, and their locations, in address order, because they are logged. Also
    /// blocks that look dirty in a cache that has no dirty blocks: their *cleaned* record is damaged, or this record is forged,
    /// and the origin has the right data.
    async fn intended(self: &Rc<Self>) -> Vec<(LocalBlock, Ring)> {
        let unknown = self.map.dirty_blocks() > 0 && !self.id.may_be_dirty;
        let intended = |block: LocalBlock, entry: Entry| {
            if unknown && entry.dirty() {
                return Some((block, self.log.ring_at(entry.location())));
            }
            let set = self.intents.is_set(block) && !planted(PlantedBug::IntendedKept);
            // The origin has nothing newer than a dirty block, with or without an intent.
            let clean = !entry.dirty() || planted(PlantedBug::IntendedDirtyDropped);
            (set && clean).then(|| (block, self.log.ring_at(entry.location())))
        };
        // A few stripes are looked up block by block. If most are set, a pass over the index is faster.
        if !unknown && self.intents.set_count() < self.map.len() as u64 / STRIPE_BLOCKS {
            let mut found = Vec::new();
            for stripe in self.intents.set_stripes() {
                let blocks = stripe * STRIPE_BLOCKS..(stripe + 1) * STRIPE_BLOCKS;
                self.load_run(LocalBlock(blocks.start)..LocalBlock(blocks.end))
                    .await;
                let blocks = blocks.map(LocalBlock);
                found.extend(blocks.filter_map(|block| intended(block, self.map.lookup(block)?)));
            }
            return found;
        }
        let mut found = self.pick_blocks(false, intended).await;
        found.sort_unstable_by_key(|(block, _)| *block);
        found
    }

    /// Drops the blocks of stripes whose intent is set, and appends tombstones for them as far as there is space. The rest is
    /// left to the shard's tasks. The bits stay set until the tombstones are stable. No write is in flight on return.
    pub(super) async fn drop_intended(self: &Rc<Self>) -> Result<u64, RecoverError> {
        let intended = self.intended().await;
        for (block, _) in &intended {
            self.load_page(*block).await;
            self.map.remove(&self.log, *block);
        }
        let mut dropped = Ok(intended.len() as u64);
        let appended = self.append_tombstones(&intended).await;
        self.leave_tombstones(&intended[appended..]);
        // Must precede any newer record of these blocks: see `BlockMap::ring_for`.
        if appended > 0 && !self.make_log_stable().await || self.cache.is_fenced() {
            let (shard, what) = (self.id.number, "the cache device failed".to_owned());
            dropped = Err(RecoverError::Damaged { shard, what });
        }
        // The shard may be dropped now, if it or another one failed. Its writes must not land later, in data that its
        // successor has written to the same place.
        while self.log.writing() {
            self.log.write_ended().await;
        }
        while self.cache.is_marking() {
            self.intents.changed().await;
        }
        dropped
    }

    /// Appends tombstones, and frees regions for them where the origin is not needed. Returns how many were appended.
    async fn append_tombstones(self: &Rc<Self>, blocks: &[(LocalBlock, Ring)]) -> usize {
        for (at, (block, ring)) in blocks.iter().enumerate() {
            loop {
                let global = self.global(*block);
                let appended = self.log.append(*ring, global, Append::Tombstone, Class::Client);
                if appended.is_some() {
                    break;
                }
                self.pump_writes();
                if self.cache.is_fenced() {
                    return at;
                }
                if self.log.writes_in_flight() >= WRITES_IN_FLIGHT_MAX {
                    self.log.room().await;
                } else if !self.reclaim_one(true).await {
                    return at;
                }
            }
        }
        self.pump_writes();
        blocks.len()
    }

    /// Queues these tombstones for the shard's tasks.
    fn leave_tombstones(&self, blocks: &[(LocalBlock, Ring)]) {
        if blocks.is_empty() {
            return;
        }
        for (block, ring) in blocks {
            self.map.make_stale_again(*block, *ring);
        }
        let blocks = blocks.iter().map(|(block, _)| *block).collect();
        let slot = self
            .queue
            .try_reserve(0)
            .expect("nothing is queued before the start");
        self.queue
            .offer(slot, Job::WriteTombstones { blocks }, &self.stats);
    }
}

/// The effect of a record on the index entries of its blocks.
fn change_of(record: Record, extent: u64, at: u64) -> Option<Change> {
    match record.kind {
        RecordKind::Tombstone if planted(PlantedBug::TombstonesForgotten) => None,
        RecordKind::Tombstone => Some(Change::Drop),
        RecordKind::Cleaned if planted(PlantedBug::CleanedForgotten) => None,
        RecordKind::Cleaned => Some(Change::Clean),
        _ => Entry::of_record(record, Location::at(extent), Location::at(at)).map(Change::Set),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::GeometryOptions;
    use crate::shard::simulated::{Disks, append, contents};
    use crate::units::BLOCK_BYTES;

    fn disks() -> Disks {
        Disks::new(8 << 20, GeometryOptions::default())
    }

    fn same_filled(value: u8) -> Append<'static> {
        Append::SameFilled { value, dirty: false }
    }

    /// Once the manifest says that a region is being reclaimed, its clean blocks are ignored: a block that was dropped may
    /// have been written to the origin since.
    #[test]
    fn clean_blocks_of_a_region_being_reclaimed_are_not_recovered() {
        let disks = disks();
        disks.sim.block_on(async {
            let first = disks.shard(1);
            append(&first, Ring::Probation, 1, same_filled(1));
            append(
                &first,
                Ring::Probation,
                2,
                Append::SameFilled {
                    value: 2,
                    dirty: true,
                },
            );
            append(&first, Ring::Main, 3, same_filled(3));
            first.log.close_regions();
            assert!(first.make_log_stable().await);
            let victim = first.log.take_oldest(Ring::Probation).expect("one is full");
            let regions = [victim.region];
            let told = first
                .log
                .write_manifest(&first.cache, &regions, Copies::BothStable)
                .await;
            told.expect("it is well");
        });
        disks.sim.kill_tasks();
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            assert_eq!(second.reclaimer.unfinished(), Some(Ring::Probation));
            for (block, value) in [(1, 0), (2, 2), (3, 3)] {
                let expected = Some(vec![value; BLOCK_BYTES]);
                assert_eq!(contents(&second, block).await, expected, "block {block}");
            }
        });
    }

    /// An interrupted reclaim moves blocks to the last free region. After a crash in that reclaim, the region is free again
    /// and the blocks are where they were.
    #[test]
    fn a_reclaim_that_crashes_cut_short_twice_has_room() {
        let wish = GeometryOptions {
            extent_bytes: Some(32 << 10),
            region_bytes: Some(128 << 10),
            ..GeometryOptions::default()
        };
        let disks = Disks::new((192 << 10) + 8 * (128 << 10), wish);
        let blocks = disks.sim.block_on(async {
            let first = disks.shard(1);
            first.writeback.note_dirty_record();
            let mut block = 0;
            let dirty = |block: u64| Append::SameFilled {
                value: block as u8,
                dirty: true,
            };
            // Seven of eight regions, none empty.
            for _ in 0..7 {
                for _ in 0..10 {
                    append(&first, Ring::Main, block, dirty(block));
                    block += 1;
                }
                first.log.close_regions();
                assert!(first.make_log_stable().await);
            }
            assert_eq!(first.log.free_regions(), 1);
            let victim = first.log.take_oldest(Ring::Main).expect("one is full");
            let regions = [victim.region];
            let told = first
                .log
                .write_manifest(&first.cache, &regions, Copies::BothStable)
                .await;
            told.expect("it is well");
            block
        });
        disks.sim.kill_tasks();
        for epoch in 2..5 {
            disks.sim.block_on(async {
                let again = disks.recovered(epoch).await;
                assert_eq!(again.log.free_regions(), 1, "opening {epoch}");
                assert_eq!(again.dirty_blocks(), blocks);
                let victim = again.log.take_oldest(Ring::Main).expect("one is full");
                again.log.hold_for_reclaim(true);
                append(&again, Ring::Main, 0, Append::LOST);
                assert_eq!(again.log.free_regions(), 0);
                assert!(again.make_log_stable().await);
                again.log.put_back(victim);
            });
            disks.sim.kill_tasks();
        }
        disks.sim.block_on(async {
            let last = disks.recovered(5).await;
            assert!(last.reclaim_one(true).await, "it is finished");
            assert_eq!(last.log.free_regions(), 1);
            assert_eq!(last.dirty_blocks(), blocks);
        });
        disks.sim.kill_tasks();
        disks.sim.block_on(async {
            let last = disks.recovered(6).await;
            assert_eq!(last.reclaimer.unfinished(), None);
            for block in 0..blocks {
                let expected = Some(vec![block as u8; BLOCK_BYTES]);
                assert_eq!(contents(&last, block).await, expected, "block {block}");
            }
        });
    }

    /// One damaged copy of a manifest sector loses nothing. With both damaged, the shard is not recovered.
    #[test]
    fn one_damaged_copy_of_the_manifest_loses_nothing() {
        for damaged in [&[0][..], &[1], &[0, 1]] {
            let disks = disks();
            disks.sim.block_on(async {
                let first = disks.shard(1);
                append(&first, Ring::Main, 1, same_filled(1));
                first.log.close_regions();
                assert!(first.make_log_stable().await);
            });
            disks.sim.kill_tasks();
            for &copy in damaged {
                let position = disks.geometry.manifest_sector_offset(0, 0, copy);
                disks.cache.flip_bit(position + 100, 3);
            }
            disks.sim.block_on(async {
                let second = disks.shard(2);
                let outcome = second.recover(|| ()).await;
                if damaged.len() == 2 {
                    assert!(
                        matches!(outcome, Err(RecoverError::Damaged { .. })),
                        "{outcome:?}"
                    );
                    return;
                }
                outcome.expect("the other copy says the same");
                assert_eq!(
                    contents(&second, 1).await,
                    Some(vec![1; BLOCK_BYTES]),
                    "copy {damaged:?}"
                );
            });
        }
    }
}
