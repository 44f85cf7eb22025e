//! Recovery: the index from what a crash left on the medium.
//!
//! Follows the rules of `docs/format.md`: every region is read by its summary, or, where there is none, by walking
//! the headers of its extents; of all records of a block the one of the highest sequence counts; what lies in stripes
//! with a set intent is dropped, and gets tombstones. A region that was being filled is closed with a summary, or gone on
//! with: see [`resume`](super::resume).
//!
//! Recovery writes nothing that changes what another recovery of the same medium would find, so a crash in it is a
//! crash before it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use flaz_device::{DeviceError, Env, IoBuf};

use super::log::{Append, Class, Region, RegionState, Regions, WRITES_IN_FLIGHT_MAX};
use super::scan::Found;
use super::{Platform, Shard};
use crate::format::extent::{FRAGMENT_HEADER_BYTES, Record, RecordKind};
use crate::format::intent::DurableMark;
use crate::format::summary::{Summary, TRAILER_BYTES, summary_bytes};
use crate::index::{Change, Entry};
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::units::{LocalBlock, Location, STRIPE_BLOCKS, Sequence};

/// Records taken over at a time, sorted by segment of the index: each segment is then in the processor's cache for
/// thousands of records.
const BATCH_RECORDS: usize = 256 << 10;

/// Why a shard could not be recovered. It then starts cold.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The device failed.
    #[error("recovery of shard {shard}: {source}")]
    Device {
        /// The shard.
        shard: u32,
        /// What happened.
        source: DeviceError,
    },
    /// What was known to be stable is not there.
    #[error("recovery of shard {shard}: {what}")]
    Damaged {
        /// The shard.
        shard: u32,
        /// What is wrong.
        what: String,
    },
}

/// What a recovery found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Regions with something in them.
    pub regions: u64,
    /// Records read.
    pub records: u64,
    /// Blocks that are cached again.
    pub blocks: u64,
    /// Blocks dropped because a write to their stripe may have been in flight.
    pub dropped: u64,
    /// Those of them that are newer than the origin.
    pub dirty: u64,
    /// Stripes whose intent was set.
    pub stripes: u64,
    /// Bytes read from the cache device.
    pub bytes_read: u64,
}

impl Recovered {
    /// Adds what another shard found.
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

impl<P: Platform> Shard<P> {
    /// Rebuilds the index of a shard that has not been started. `tell` hears of every region that was looked at.
    ///
    /// # Errors
    /// [`RecoverError`]: the shard is then to be thrown away, and the cache to start cold.
    pub async fn recover(self: &Rc<Self>, tell: impl Fn()) -> Result<Recovered, RecoverError> {
        let (shard, valid_from) = (self.id.number, self.id.valid_from);
        let device = |source| RecoverError::Device { shard, source };
        let marks = self.load_intents().await.map_err(device)?;
        let mut outcome = Recovered {
            stripes: self.intents.set_count(),
            ..Recovered::default()
        };
        let (mut found, to_void) = self.scan(valid_from, marks, &mut outcome, tell).await?;
        // The order of filling is the order of the rings.
        found.sort_by_key(|region| region.fill);
        self.check_marks(&found, marks)?;
        self.check_sequences(&found)?;
        // What was not found must not come back: not with the power that fails while the region is being filled anew, nor
        // where it can be read the next time, behind writes that left no tombstone for it. Not before it is known that
        // nothing is missing that was stable.
        if !to_void.is_empty() {
            self.void_regions(&to_void).await.map_err(device)?;
        }
        let mut resumed = self.to_resume(&found);
        self.take_over_regions(&found, &resumed);
        self.take_over_records(&found).await;
        self.can_be_resumed(&mut resumed);
        let is_resumed = |region: &Found| resumed.contains(&region.number);
        self.end_regions(&found, &resumed).await.map_err(device)?;
        // A summary is believed, so what it lists must be stable before.
        if found.iter().any(|region| !region.has_summary) {
            self.cache.flush().await.map_err(device)?;
        }
        let mut closed = false;
        for region in found
            .iter()
            .filter(|region| !region.has_summary && !is_resumed(region))
        {
            self.write_summary(region).await.map_err(device)?;
            closed = true;
        }
        // The marks of these regions go with the next page of intents. Without a mark and without a summary one damaged
        // extent would hide all that are behind it.
        if closed && !planted(PlantedBug::SummaryAfterMark) {
            self.cache.flush().await.map_err(device)?;
        }
        if !resumed.is_empty() {
            self.resume(&mut found, &resumed);
        }
        drop(found);
        self.inherit_dirty();
        // What these regions have may have been flushed shortly before the crash, and not be marked yet.
        if !resumed.is_empty() {
            let wanted = self.stable_mark.wanted();
            self.write_marks(wanted, true).await.map_err(device)?;
        }
        outcome.dropped = self.drop_intended().await?;
        outcome.blocks = self.map.len() as u64;
        outcome.dirty = self.map.dirty_blocks();
        Ok(outcome)
    }

    /// What was stable when an intent was cleared must be there, or records are missing that made others void.
    fn check_marks(&self, found: &[Found], marks: [DurableMark; 2]) -> Result<(), RecoverError> {
        for (ring, mark) in Ring::ALL.into_iter().zip(marks) {
            if mark.fill == Sequence(0) {
                continue;
            }
            let mut same_ring = found.iter().filter(|region| region.ring == ring);
            let what = match same_ring.clone().find(|region| region.fill == mark.fill) {
                Some(region) if region.used >= mark.used => continue,
                Some(region) => format!(
                    "region {} has {} readable bytes of extents, {} were stable",
                    region.number, region.used, mark.used
                ),
                // It has been reclaimed since, if younger ones are there and the page may be missing that says so: a region
                // that the latest one names is not made void.
                None if self.intents.unread() && same_ring.any(|region| region.fill > mark.fill) => continue,
                None if mark.used == 0 => continue,
                None => format!("the {ring} region of filling {} is gone", mark.fill.0),
            };
            let shard = self.id.number;
            return Err(RecoverError::Damaged { shard, what });
        }
        Ok(())
    }

    /// Numbers that no cache reaches were not written by one, and new ones must stay above all that are there.
    fn check_sequences(&self, found: &[Found]) -> Result<(), RecoverError> {
        let shard = self.id.number;
        let last = found
            .iter()
            .map(|region| (region.last_sequence(), region.number))
            .max();
        match last {
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

    fn take_over_regions(&self, found: &[Found], resumed: &[u32]) {
        let mut table = vec![Region::FREE; self.id.geometry.regions_per_shard as usize];
        for region in found {
            table[region.number as usize] = Region {
                state: if resumed.contains(&region.number) {
                    RegionState::Open
                } else {
                    RegionState::Full
                },
                ring: region.ring,
                fill: region.fill,
                used: region.used,
                live: 0,
            };
        }
        let mut regions = Regions::from_table(&table);
        for region in found.iter().filter(|region| !resumed.contains(&region.number)) {
            regions.enter_ring(region.number);
        }
        let last = found.iter().map(Found::last_sequence).max().unwrap_or_default();
        // Those of this epoch are above all that an earlier one can have used, seen or not.
        let next_sequence = self.log.next_sequence().max(Sequence(last.0 + 1));
        self.log.inherit(regions, next_sequence);
    }

    /// Blocks of which the oldest region of each ring has contents, where there are regions in both rings.
    fn oldest_contents(&self, found: &[Found]) -> [BTreeSet<LocalBlock>; 2] {
        let oldest = Ring::ALL.map(|ring| found.iter().find(|region| region.ring == ring));
        if oldest.iter().any(Option::is_none) {
            return [BTreeSet::new(), BTreeSet::new()];
        }
        oldest.map(|region| {
            let records = region.into_iter().flat_map(|region| &region.records);
            // Where they lie does not matter here.
            let at = self.id.geometry.header_bytes() as u64;
            let changes = records.filter_map(|&bits| self.change_of(Record::unpack(bits).ok()?, 0, at));
            changes
                .filter_map(|(block, change)| matches!(change, Change::Set(_)).then_some(block))
                .collect()
        })
    }

    /// Takes records over in the order of their extents: the last one of a block stays.
    ///
    /// Of a region that was being reclaimed, the oldest of its ring, the blocks may have gone to the other ring by then, or
    /// been written anew there, while its own records are still to be found: it must go before those of the other ring do.
    /// (But for blocks that a tombstone of the same ring makes void: those may be anywhere.)
    async fn take_over_records(&self, found: &[Found]) {
        let mut order: Vec<(Sequence, u32, u32, usize)> = Vec::new();
        for (region, contents) in found.iter().enumerate() {
            let mut first = 0;
            for (extent, entry) in contents.extents.iter().enumerate() {
                order.push((entry.sequence, region as u32, extent as u32, first));
                first += usize::from(entry.record_count);
            }
        }
        order.sort_unstable();
        if planted(PlantedBug::RecordsOutOfOrder) {
            order.reverse();
        }
        let total: usize = found.iter().map(|region| region.records.len()).sum();
        let oldest = self.oldest_contents(found);
        let mut dropped: BTreeMap<LocalBlock, Ring> = BTreeMap::new();
        // Blocks of these whose last record in that ring is a tombstone, which cannot die before the copy.
        let mut gone = [BTreeSet::new(), BTreeSet::new()];
        let room = total.min(BATCH_RECORDS + usize::from(u16::MAX));
        let mut bulk = self.map.reserve(total, room);
        for (_, region, extent, first) in order {
            let region = &found[region as usize];
            let extent = &region.extents[extent as usize];
            let start = u64::from(region.number) * self.id.geometry.region_bytes + u64::from(extent.offset);
            let mut at = start + self.id.geometry.header_bytes() as u64;
            let end = start + u64::from(extent.len);
            for &bits in &region.records[first..first + usize::from(extent.record_count)] {
                let Ok(record) = Record::unpack(bits) else { break };
                if at + record.fragment_bytes() as u64 > end {
                    break;
                }
                if let Some((block, change)) = self.change_of(record, start, at) {
                    let gone = &mut gone[region.ring.index()];
                    if matches!(change, Change::Drop) {
                        if oldest.iter().any(|blocks| blocks.contains(&block)) {
                            dropped.insert(block, region.ring);
                            gone.insert(block);
                        }
                    } else if !gone.is_empty() && matches!(change, Change::Set(_)) {
                        gone.remove(&block);
                    }
                    bulk.push(block, change);
                }
                at += record.fragment_bytes() as u64;
            }
            if bulk.len() >= BATCH_RECORDS {
                self.map.apply(&mut bulk);
                self.env.yield_now().await;
            }
        }
        self.map.apply(&mut bulk);
        drop(bulk);
        self.map.rebuilt(&self.log, self.id.geometry.regions_per_shard);
        let newest = |block: &LocalBlock| match self.map.lookup(*block) {
            Some(entry) => Some(self.log.ring_at(entry.location())),
            None => dropped.get(block).copied(),
        };
        let unfinished = Ring::ALL.into_iter().find(|ring| {
            let gone = &gone[ring.index()];
            let mut blocks = oldest[ring.index()].iter().filter(|block| !gone.contains(block));
            blocks.any(|block| newest(block).is_some_and(|newest| newest != *ring))
        });
        if let Some(ring) = unfinished {
            self.reclaimer.note_unfinished(ring);
        }
    }

    /// What a record does to the index: the block, and its entry if it is cached now.
    fn change_of(&self, record: Record, extent: u64, at: u64) -> Option<(LocalBlock, Change)> {
        let (shard, block) = record.block.in_shard(self.id.geometry.shard_count);
        if record.volume != 0 || record.block.0 >= self.whole_blocks() || shard != self.id.number {
            return None;
        }
        let entry = match record.kind {
            RecordKind::Fragment { stored, dirty } => {
                Entry::fragment(Location::at(at), FRAGMENT_HEADER_BYTES + usize::from(stored))
                    .with_dirty(dirty)
            }
            RecordKind::Fill { value, dirty } => Entry::fill(Location::at(extent), value).with_dirty(dirty),
            RecordKind::Tombstone if planted(PlantedBug::TombstonesForgotten) => return None,
            RecordKind::Tombstone => return Some((block, Change::Drop)),
            RecordKind::Cleaned if planted(PlantedBug::CleanedForgotten) => return None,
            RecordKind::Cleaned => return Some((block, Change::Clean)),
        };
        Some((block, Change::Set(entry)))
    }

    /// Closes a region that was being filled, so that reclaim finds what is in it.
    async fn write_summary(&self, region: &Found) -> Result<(), DeviceError> {
        let start = self.position_of(region.number);
        let len = summary_bytes(
            region.extents.len(),
            region.records.len(),
            self.id.geometry.sector_bytes,
        );
        debug_assert!(len as usize >= TRAILER_BYTES);
        let summary = Summary {
            cache: self.id.cache_id,
            shard: self.id.number,
            ring: region.ring,
            fill: region.fill,
            position: start,
            extents: region.extents.clone(),
            records: region.records.clone(),
        };
        let mut buf = IoBuf::new(len as usize);
        summary.write(&mut buf);
        let position = start + self.id.geometry.region_bytes - len;
        self.cache.write_at(position, buf).await
    }

    /// The clean blocks of stripes whose intent is set, and where they lie, in the order of addresses: the log is read by
    /// people. And what counts as dirty though there can be none such: the record that it was cleaned is damaged, or this
    /// one forged, and the origin has what is right.
    fn intended(&self) -> Vec<(LocalBlock, Ring)> {
        let unknown = self.map.dirty_blocks() > 0 && !self.id.may_be_dirty;
        let intended = |block: LocalBlock, entry: Entry| {
            if unknown && entry.dirty() {
                return Some((block, self.log.ring_at(entry.location())));
            }
            let set = self.intents.is_set(block) && !planted(PlantedBug::IntendedKept);
            // Nothing newer than a dirty block went to the origin, intent or not.
            let clean = !entry.dirty() || planted(PlantedBug::IntendedDirtyDropped);
            (set && clean).then(|| (block, self.log.ring_at(entry.location())))
        };
        // Few stripes are looked up block by block. Where most are set, that would take longer than all that is cached.
        if !unknown && self.intents.set_count() < self.map.len() as u64 / STRIPE_BLOCKS {
            let stripes = self.intents.set_stripes().into_iter();
            return stripes
                .flat_map(|stripe| (stripe * STRIPE_BLOCKS..).take(STRIPE_BLOCKS as usize))
                .map(LocalBlock)
                .filter_map(|block| intended(block, self.map.lookup(block)?))
                .collect();
        }
        let mut found = self.map.pick(intended);
        found.sort_unstable_by_key(|(block, _)| *block);
        found
    }

    /// Drops the blocks of stripes whose intent is set, and says so in the log. The bits stay until a round of
    /// clearing finds that stable. Nothing is on its way to the device on return.
    pub(super) async fn drop_intended(self: &Rc<Self>) -> Result<u64, RecoverError> {
        let mut dropped = self.append_intended().await;
        // Before anything newer of these blocks: see `BlockMap::ring_for`.
        if matches!(dropped, Ok(1..)) && !self.make_log_stable().await {
            let (shard, what) = (self.id.number, "the cache device failed".to_owned());
            dropped = Err(RecoverError::Damaged { shard, what });
        }
        // The shard may be thrown away now, for its own failure or that of another one. What it writes must not land in
        // what the next one has written at the same place.
        while self.log.writing() {
            self.log.write_ended().await;
        }
        while self.cache.is_marking() {
            self.intents.changed().await;
        }
        dropped
    }

    async fn append_intended(self: &Rc<Self>) -> Result<u64, RecoverError> {
        let intended = self.intended();
        for (block, _) in &intended {
            self.map.remove(&self.log, *block);
        }
        for (block, ring) in &intended {
            loop {
                let global = self.global(*block);
                let appended = self.log.append(*ring, global, Append::Tombstone, Class::Client);
                if appended.is_some() {
                    break;
                }
                self.pump_writes();
                if self.cache.is_fenced() {
                    let (shard, what) = (self.id.number, "the cache device failed".to_owned());
                    return Err(RecoverError::Damaged { shard, what });
                }
                if self.log.writes_in_flight() >= WRITES_IN_FLIGHT_MAX {
                    self.log.room().await;
                } else if !self.reclaim_one(true).await {
                    let what = "no region can be freed: the origin takes no writes, or blocks newer than it are damaged and \
                                there is no room to note that"
                        .to_owned();
                    let shard = self.id.number;
                    return Err(RecoverError::Damaged { shard, what });
                }
            }
        }
        self.pump_writes();
        Ok(intended.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::geometry::GeometryWish;
    use crate::shard::simulated::{Disks, append};

    fn disks() -> Disks {
        Disks::new(8 << 20, GeometryWish::default())
    }

    fn fill(value: u8) -> Append<'static> {
        Append::Fill { value, dirty: false }
    }

    /// Its header has rotted, and the power failed before its summary was stable. That younger ones are there does not say
    /// that it was reclaimed, for then the latest page would not name it.
    #[test]
    fn a_region_that_a_mark_names_is_missed_beside_younger_ones() {
        let disks = disks();
        let lost = disks.sim.block_on(async {
            let first = disks.shard(1);
            append(&first, Ring::Main, 0, fill(1));
            assert!(first.make_log_stable().await);
            first.write_intents(0, &[], true).await.expect("it is well");
            let region = first.log.open_numbers()[Ring::Main.index()].expect("one is open");
            first.log.close_regions();
            append(&first, Ring::Main, 1, fill(1));
            assert!(first.make_log_stable().await);
            region
        });
        disks.sim.kill_tasks();
        let start = disks.region(lost);
        disks.cache.poke(start, &[0; 512]);
        disks
            .cache
            .poke(start + disks.geometry.region_bytes - 512, &[0; 512]);
        disks.sim.block_on(async {
            let outcome = disks.shard(2).recover(|| ()).await;
            assert!(
                matches!(outcome, Err(RecoverError::Damaged { .. })),
                "{outcome:?}"
            );
        });
    }

    /// A block of Probation was trimmed and written anew to Main. That is no sign of a reclaim, and must not hide the one of
    /// Main that a crash cut short: a block that it had dropped was read and written since.
    #[test]
    fn a_block_that_was_trimmed_hides_no_reclaim_that_was_cut_short() {
        let disks = disks();
        let (trimmed, moved) = (1, 2);
        disks.sim.block_on(async {
            let first = disks.shard(1);
            append(&first, Ring::Probation, trimmed, fill(1));
            append(&first, Ring::Main, moved, fill(1));
            first.log.close_regions();
            append(&first, Ring::Probation, trimmed, Append::Tombstone);
            append(&first, Ring::Probation, moved, fill(2));
            first.log.seal_all();
            append(&first, Ring::Main, trimmed, fill(2));
            assert!(first.make_log_stable().await);
        });
        disks.sim.kill_tasks();
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            assert_eq!(second.reclaimer.unfinished(), Some(Ring::Main));
        });
    }
}
