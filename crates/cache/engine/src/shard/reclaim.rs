//! Reclaim: freeing whole regions, oldest first, so that nothing is ever compacted.
//!
//! The policy says which ring gives up its oldest region and what becomes of each block in it: dropped, or
//! stored again because it was used. Stored again means copied as it is, without decoding: damage stays
//! visible (see [`crate::format::extent::moved_checksum`]). The region is discarded before it is reused.

use std::rc::Rc;
use std::time::Duration;

use flaz_device::{Device, DeviceError, Env, IoBuf};

use super::clean::Dirty;
use super::log::Append;
use super::tasks::Phase;
use super::{Platform, Shard, fragment};
use crate::format::FormatError;
use crate::format::extent::{FRAGMENT_HEADER_BYTES, Record, RecordKind};
use crate::format::summary::{Summary, summary_bytes_max};
use crate::format::void::{VOID_MARK_BYTES, VoidMark};
use crate::index::Entry;
use crate::planted::{PlantedBug, planted};
use crate::policy::{Fate, Ring};
use crate::stats::count;
use crate::units::{BLOCK_BYTES, BlockNumber, LocalBlock, Location, Sequence};
use zerocopy::IntoBytes;

/// Records judged before other tasks get their turn.
const JUDGE_YIELD_RECORDS: usize = 256;
/// Longest read that gathers fragments to store again, in bytes.
const GATHER_BYTES_MAX: u64 = 256 << 10;
/// Bytes between two such fragments that are read along rather than read apart.
const GATHER_GAP_MAX: u64 = 8 << 10;
/// Pause before reclaim tries again to bring dirty blocks to an origin that fails.
const RESCUE_PAUSE: Duration = Duration::from_secs(1);
/// How often the same is tried while the cache is being opened, when nobody can do anything about it: then it does not
/// open.
const RESCUE_TRIES_AT_START: u32 = 3;
/// How long after a read of a dirty block that failed it is read again, before it counts as lost. What was read and is not right
/// is read again at once.
const LOAD_AGAIN: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(5),
];
/// First read of a region's summary, in bytes: most summaries are shorter.
const SUMMARY_GUESS_BYTES: u64 = 64 << 10;

/// A block that is to be stored again.
#[derive(Clone, Copy, Debug)]
struct Survivor {
    block: LocalBlock,
    entry: Entry,
    ring: Ring,
    hits: u8,
    start: u64,
    end: u64,
}

impl<P: Platform> Shard<P> {
    pub(super) fn want_reclaim(&self) {
        if self.can_reclaim() {
            self.reclaimer.wake();
        }
    }

    /// Whether a region should be reclaimed, and none is.
    pub(super) fn can_reclaim(&self) -> bool {
        !self.reclaimer.is_running() && self.log.borrow().wants_reclaim()
    }

    /// Keeps regions free ahead of need, until the shard stops.
    pub(super) async fn reclaim_task(shard: Rc<Self>) {
        loop {
            while !shard.is_stopping() && !shard.failed.get() && shard.log.borrow().wants_reclaim() {
                if !shard.reclaim_one(true).await {
                    break;
                }
            }
            if shard.is_stopping() {
                return;
            }
            shard.reclaimer.wanted().await;
        }
    }

    /// Reclaims one region; false if no ring has one, or its dirty blocks can go nowhere. With `keep`, used blocks are
    /// stored again; dirty ones always are.
    pub(super) async fn reclaim_one(self: &Rc<Self>, keep: bool) -> bool {
        let unfinished = self.reclaimer.unfinished();
        let victim = unfinished.unwrap_or_else(|| self.policy.borrow().victim(self.ring_sizes()));
        let taken = {
            let mut log = self.log.borrow_mut();
            let other = if victim == Ring::Main {
                Ring::Probation
            } else {
                Ring::Main
            };
            let taken = log.regions.take_oldest(victim);
            // Nothing else goes before what a crash has left unfinished.
            taken.or_else(|| unfinished.is_none().then(|| log.regions.take_oldest(other))?)
        };
        let Some(number) = taken else { return false };
        let reclaim = self.reclaimer.begin();
        let cached = self.index.borrow().len() as u64;
        self.policy.borrow_mut().cached_blocks(cached);
        let ring = self.log.borrow().regions.ring_of(number);
        self.log.borrow_mut().held_for_reclaim = self.dirty_blocks() > 0;
        match self.read_summary(number).await {
            Ok(summary) => {
                let survivors = self.judge(number, ring, &summary, keep).await;
                self.store_again(&survivors).await;
            }
            Err(error) => {
                tracing::warn!(shard = self.number, region = number, %error, "dropped a region without a summary");
            }
        }
        let rescued = self.rescue(number).await;
        if rescued {
            self.sweep(number);
            self.free_region(number).await;
            self.log.borrow_mut().held_for_reclaim = false;
            reclaim.freed(ring);
        } else {
            self.log.borrow_mut().regions.put_back(number);
            self.log.borrow_mut().held_for_reclaim = false;
            reclaim.put_back(ring);
        }
        self.room.notify_all();
        rescued
    }

    /// Sees to the dirty blocks that are still in a region: those that no summary lists, or that found no room. They
    /// are stored again if they can be, and brought to the origin otherwise. False: neither works.
    async fn rescue(self: &Rc<Self>, number: u32) -> bool {
        let mut tries = 0_u32;
        loop {
            if self.log.borrow().regions.at(number).live == 0 || planted(PlantedBug::ReclaimedBeforeClean) {
                return true;
            }
            let left = self.dirty_in(number);
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
                shard = self.number,
                region = number,
                blocks = homeless.len(),
                "reclaim cleans what it cannot move"
            );
            homeless.sort_unstable_by_key(|dirty| dirty.block);
            let (written, outcome) = self.write_dirty(&homeless).await;
            let all = outcome.is_ok() && written.len() == homeless.len();
            if all {
                // All or none: their records are on the medium until the region is void, and a region that is put back
                // must have its entries.
                for dirty in written.iter().filter(|dirty| self.is_still(dirty)) {
                    self.remove_entry(dirty.block);
                    self.rescued.borrow_mut().insert(dirty.block);
                    count(&self.stats.counters.cleaned_blocks, 1);
                }
                self.writeback.note_step();
            } else {
                let why = outcome.err().map_or_else(
                    || "there is no room for what cannot be read".to_owned(),
                    |error| error.to_string(),
                );
                tries += 1;
                // An origin may be away for hours.
                if tries.is_power_of_two() {
                    tracing::warn!(
                        shard = self.number,
                        region = number,
                        tries,
                        why,
                        "reclaim waits: a dirty region cannot be cleaned"
                    );
                }
                let hopeless = self.tasks.phase() == Phase::Opening && tries == RESCUE_TRIES_AT_START;
                if self.is_stopping() || self.failed.get() || hopeless {
                    return false;
                }
                self.env.sleep(RESCUE_PAUSE).await;
            }
            if self.is_stopping() || self.failed.get() {
                return self.dirty_in(number).is_empty();
            }
        }
    }

    fn dirty_in(&self, number: u32) -> Vec<Dirty> {
        let (index, log) = (self.index.borrow(), self.log.borrow());
        if index.dirty_blocks() == 0 {
            return Vec::new();
        }
        index
            .iter()
            .filter(|(_, entry)| entry.dirty() && log.region_of(entry.location()) == number)
            .filter_map(|(block, entry)| self.dirty_now(block, entry, &log))
            .collect()
    }

    /// Stores a dirty block again by its contents, or that they are lost, for good: not before they have been read wrong again
    /// and again. False: there is no room, or the device was given up.
    async fn move_dirty(self: &Rc<Self>, dirty: &Dirty) -> bool {
        let mut data = IoBuf::new(BLOCK_BYTES);
        let errors = &self.stats.counters.cache_read_errors;
        let mut known = errors.get();
        let mut loaded = self.load(dirty.block, dirty.entry, &mut data).await;
        for pause in LOAD_AGAIN {
            if loaded.is_ok() || !self.is_still(dirty) || self.failed.get() {
                break;
            }
            if errors.get() != known {
                self.env.sleep(pause).await;
            }
            known = errors.get();
            loaded = self.load(dirty.block, dirty.entry, &mut data).await;
        }
        let (mut packer, mut bytes) = (self.take_packer(), Vec::new());
        packer.next_request();
        let packed = packer.pack(&data, &mut bytes);
        self.return_packer(packer);
        let what = match (&loaded, packed) {
            (Err(_) | Ok(false), _) => Append::LOST,
            (_, fragment::Packed::Fill(value)) => Append::Fill { value, dirty: true },
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
            if !self.is_still(dirty) {
                return true;
            }
            // Where it is it can be read; what is not sent any more cannot.
            if self.failed.get() {
                return false;
            }
            let global = self.global(dirty.block);
            let appended = self.log.borrow_mut().append(Ring::Main, global, what, true);
            if let Some(entry) = appended {
                self.set_entry(dirty.block, entry.with_hits(dirty.entry.hits()).with_dirty(true));
                count(&self.stats.counters.dirty_moved_blocks, 1);
                self.pump_writes();
                return true;
            }
            if self.failed.get() || !self.log.borrow().writing() {
                return false;
            }
            self.pump_writes();
            self.room.notified().await;
        }
    }

    async fn read_summary(self: &Rc<Self>, number: u32) -> Result<Summary, String> {
        let region_bytes = self.geometry.region_bytes;
        let end = (u64::from(number) + 1) * region_bytes;
        let guess = SUMMARY_GUESS_BYTES.min(region_bytes);
        let (buf, at) = self
            .read_cache(end - guess, guess)
            .await
            .map_err(|error| error.to_string())?;
        let tail = &buf[at..at + guess as usize];
        let most = summary_bytes_max(&self.geometry);
        let len = Summary::parse_len(tail, most).map_err(|error| error.to_string())? as u64;
        let parsed = if len <= guess {
            Summary::parse(tail)
        } else {
            let (buf, at) = self
                .read_cache(end - len, len)
                .await
                .map_err(|error| error.to_string())?;
            Summary::parse(&buf[at..at + len as usize])
        };
        let summary = parsed.map_err(|error| error.to_string())?;
        self.check_summary(number, &summary)
            .map_err(|error| error.to_string())?;
        Ok(summary)
    }

    /// Whether the summary is that of this filling of the region.
    fn check_summary(&self, number: u32, summary: &Summary) -> Result<(), FormatError> {
        const WHAT: &str = "region summary";
        let fill = self.log.borrow().regions.fill_of(number);
        let position =
            self.geometry.shard_offset(self.number) + u64::from(number) * self.geometry.region_bytes;
        if summary.cache != self.cache_id {
            return Err(FormatError::field(WHAT, "cache", self.cache_id, summary.cache));
        }
        if summary.position != position {
            return Err(FormatError::field(WHAT, "position", position, summary.position));
        }
        if summary.fill != fill {
            return Err(FormatError::field(WHAT, "fill", fill.0, summary.fill.0));
        }
        crate::format::summary::check_extents(&summary.extents, &self.geometry)?;
        Ok(())
    }

    /// Decides the fate of each block in the region. Those to be dropped are dropped.
    async fn judge(&self, number: u32, ring: Ring, summary: &Summary, keep: bool) -> Vec<Survivor> {
        let mut survivors = Vec::new();
        let mut records = summary.records.iter();
        let mut judged = 0;
        for extent in &summary.extents {
            let start = u64::from(number) * self.geometry.region_bytes + u64::from(extent.offset);
            let mut at = start + self.geometry.header_bytes() as u64;
            for &bits in records.by_ref().take(usize::from(extent.record_count)) {
                let Ok(record) = Record::unpack(bits) else { break };
                if at + record.fragment_bytes() as u64 > start + u64::from(extent.len) {
                    break;
                }
                if let Some(survivor) = self.judge_one(ring, record, start, at, keep) {
                    survivors.push(survivor);
                }
                at += record.fragment_bytes() as u64;
                judged += 1;
                if judged % JUDGE_YIELD_RECORDS == 0 {
                    self.env.yield_now().await;
                }
            }
        }
        survivors
    }

    fn judge_one(&self, ring: Ring, record: Record, extent: u64, at: u64, keep: bool) -> Option<Survivor> {
        let written = match record.kind {
            RecordKind::Fragment { stored, .. } => {
                Entry::fragment(Location::at(at), FRAGMENT_HEADER_BYTES + usize::from(stored))
            }
            RecordKind::Fill { value, .. } => Entry::fill(Location::at(extent), value),
            RecordKind::Tombstone | RecordKind::Cleaned => return None,
        };
        if record.block.0 >= self.whole_blocks()
            || record.block.in_shard(self.geometry.shard_count).0 != self.number
        {
            return None;
        }
        let block = self.local(record.block);
        let entry = self
            .index
            .borrow()
            .get(block)
            .filter(|entry| entry.same_place(written))?;
        let fate = if entry.dirty() && !planted(PlantedBug::ReclaimedBeforeClean) {
            // Not to be dropped: the origin has it not. Where it goes it is in nobody's way until it is cleaned.
            Fate::Keep {
                ring: Ring::Main,
                hits: entry.hits(),
            }
        } else if keep {
            self.policy
                .borrow_mut()
                .reclaim(ring, Self::key(block), entry.hits())
        } else {
            Fate::Drop
        };
        match fate {
            Fate::Drop => {
                self.remove_entry(block);
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

    /// Copies the surviving fragments to the open extents of their rings.
    async fn store_again(self: &Rc<Self>, survivors: &[Survivor]) {
        let mut rest = survivors;
        while let Some(first) = rest.first() {
            let mut end = first.end;
            let mut taken = 1;
            while let Some(next) = rest.get(taken) {
                if next.start > end + GATHER_GAP_MAX || next.end - first.start > GATHER_BYTES_MAX {
                    break;
                }
                end = end.max(next.end);
                taken += 1;
            }
            let (group, after) = rest.split_at(taken);
            rest = after;
            let only_fills = end == first.start;
            let read = if only_fills {
                None
            } else {
                self.read_cache(first.start, end - first.start).await.ok()
            };
            for survivor in group {
                let bytes = read.as_ref().map(|(buf, at)| {
                    let skip = at + (survivor.start - first.start) as usize;
                    &buf[skip..skip + (survivor.end - survivor.start) as usize]
                });
                self.store_one_again(survivor, bytes.unwrap_or_default()).await;
            }
        }
    }

    async fn store_one_again(self: &Rc<Self>, survivor: &Survivor, bytes: &[u8]) {
        let global: BlockNumber = self.global(survivor.block);
        let mut verified = false;
        loop {
            let still = self.index.borrow().get(survivor.block);
            let Some(entry) = still.filter(|entry| entry.same_place(survivor.entry)) else {
                return;
            };
            if self.failed.get() && entry.dirty() {
                return;
            }
            let what = match entry.place() {
                crate::index::Place::Fill { value, .. } => Append::Fill {
                    value,
                    dirty: entry.dirty(),
                },
                crate::index::Place::Fragment { location, .. } => {
                    let Ok((header, stored)) = fragment::split(bytes) else {
                        return;
                    };
                    let from = self.log.borrow().identity_at(global, location);
                    if self.must_be_whole() && !verified {
                        // Without this one the sweep drops the block, or finds it lost.
                        let mut block = IoBuf::new(BLOCK_BYTES);
                        if fragment::unpack(&mut self.decoders.borrow_mut(), bytes, &from, &mut block)
                            .is_err()
                        {
                            return;
                        }
                        verified = true;
                    }
                    Append::Moved {
                        header,
                        stored,
                        from,
                        dirty: entry.dirty(),
                    }
                }
            };
            let ring = self.ring_of(entry);
            if survivor.ring != ring && self.cleaned.borrow().contains_key(&survivor.block) {
                // That it was cleaned may stand in the open extent of the ring that it leaves. Extents get their sequence
                // when they are sealed: after a newer record of the block it would say so of that.
                self.log.borrow_mut().seal_ring(ring);
            }
            let appended = self.log.borrow_mut().append(survivor.ring, global, what, true);
            if let Some(new) = appended {
                // Hits that came since the verdict count for the next one.
                let hits = survivor
                    .hits
                    .max(entry.hits().saturating_sub(survivor.entry.hits()));
                self.set_entry(survivor.block, new.with_hits(hits).with_dirty(entry.dirty()));
                count(&self.stats.counters.reinserted_blocks, 1);
                count(&self.stats.counters.dirty_moved_blocks, u64::from(entry.dirty()));
                count(
                    &self.stats.counters.reinserted_bytes,
                    survivor.end - survivor.start,
                );
                self.pump_writes();
                return;
            }
            // Its own region is the next to become free: without one now there will be none. A clean block can go.
            if self.failed.get() || !self.log.borrow().writing() {
                return;
            }
            self.pump_writes();
            self.room.notified().await;
        }
    }

    /// Drops what the index still has in the region: blocks that no summary listed, or that could not be moved.
    fn sweep(&self, number: u32) {
        let live = self.log.borrow().regions.at(number).live;
        if live == 0 {
            return;
        }
        let left: Vec<LocalBlock> = {
            let (index, log) = (self.index.borrow(), self.log.borrow());
            index
                .iter()
                .filter(|(_, e)| log.region_of(e.location()) == number)
                .map(|(block, _)| block)
                .collect()
        };
        for block in left {
            self.remove_entry(block);
            count(&self.stats.counters.reclaimed_blocks, 1);
        }
    }

    /// Overwrites what recovery would find regions by: the first header and the summary's end. In this order, also when the
    /// power fails: without a summary, and not void, one damaged extent would hide all that are behind it.
    pub(super) async fn void_regions(&self, regions: &[(u32, Sequence)]) -> Result<(), DeviceError> {
        let (region_bytes, sector) = (self.geometry.region_bytes, self.geometry.sector_bytes as usize);
        let position =
            |number: u32| self.geometry.shard_offset(self.number) + u64::from(number) * region_bytes;
        for &(number, fill) in regions {
            let mark = VoidMark::new(self.cache_id, fill, position(number));
            let mut first = IoBuf::zeroed(sector);
            first[..VOID_MARK_BYTES].copy_from_slice(mark.as_bytes());
            self.cache.write_at(position(number), first, false).await.1?;
        }
        self.flush_cache().await?;
        for &(number, _) in regions {
            let last = position(number) + region_bytes - sector as u64;
            self.cache.write_at(last, IoBuf::zeroed(sector), false).await.1?;
        }
        self.flush_cache().await
    }

    /// Waits for readers, makes the region void, discards it and frees it.
    ///
    /// Void and stable before anything else is reclaimed: otherwise a newer record could die before an older one that
    /// is still in here. And before the discard, which need not change what can be read.
    async fn free_region(self: &Rc<Self>, number: u32) {
        while self.log.borrow().regions.pinned(number) && !planted(PlantedBug::RegionNotPinned) {
            self.unpinned.notified().await;
        }
        let region_bytes = self.geometry.region_bytes;
        let position = self.geometry.shard_offset(self.number) + u64::from(number) * region_bytes;
        if self.writeback.has_dirty_records() && !planted(PlantedBug::DirtyVoidedUnstable) {
            // What is newer than the dirty records in here must not be lost when these are gone. If it fails, the device
            // has been given up.
            self.make_log_stable().await;
        }
        if !self.failed.get() {
            let fill = self.log.borrow().regions.fill_of(number);
            let voided = if planted(PlantedBug::RegionNotVoided) {
                Ok(())
            } else {
                match self.forget_mark(fill).await {
                    Ok(()) => self.void_regions(&[(number, fill)]).await,
                    Err(error) => Err(error),
                }
            };
            match voided {
                Ok(()) => {
                    self.rescued.borrow_mut().clear();
                    if let Err(error) = self.cache.discard(position, region_bytes).await {
                        self.cache_error(&error);
                    }
                }
                Err(error) => {
                    self.cache_error(&error);
                    self.give_up("a reclaimed region could not be made void");
                }
            }
        }
        count(&self.stats.counters.discarded_bytes, region_bytes);
        count(&self.stats.counters.regions_reclaimed, 1);
        self.log.borrow_mut().regions.release(number);
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests;
