//! Recovery: the index from what a crash left on the medium.
//!
//! Follows the rules of `docs/format.md`: every region is read by its summary, or, where there is none, by walking
//! the headers of its extents; of all records of a block the one of the highest sequence counts; what lies in stripes
//! with a set intent is dropped, and gets tombstones. A region that was being filled is closed with a summary.
//!
//! Recovery writes nothing that changes what another recovery of the same medium would find, so a crash in it is a
//! crash before it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, Env, IoBuf};
use futures_util::future::join;
use futures_util::stream::{StreamExt, iter};

use super::fragment;
use super::log::Append;
use super::regions::{Region, RegionState, Regions};
use super::{Platform, Shard};
use crate::codec::CodecId;
use crate::format::extent::{
    ExtentHeader, FRAGMENT_HEADER_BYTES, FragmentIdentity, Record, RecordKind, records,
};
use crate::format::intent::DurableMark;
use crate::format::summary::{Summary, SummaryExtent, TRAILER_BYTES, check_extents, summary_bytes};
use crate::format::void::VoidMark;
use crate::index::{Bulk, Change, Entry};
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::shard::log::WRITES_IN_FLIGHT_MAX;
use crate::stats::count;
use crate::units::{BLOCK_BYTES, Epoch, LocalBlock, Location, STRIPE_BLOCKS, Sequence};

/// Regions that are read at a time.
const SCANS_MAX: usize = 8;
/// First read of a region's end, in bytes: for the first regions, and at least and at most for those after them, which are
/// read as far as the longest summary so far.
const SUMMARY_GUESS_BYTES: u64 = 64 << 10;
const SUMMARY_GUESS_MIN: u64 = 4 << 10;
const SUMMARY_GUESS_MAX: u64 = 512 << 10;
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

/// A region as the medium has it.
#[derive(Debug)]
struct Found {
    number: u32,
    ring: Ring,
    fill: Sequence,
    used: u32,
    extents: Vec<SummaryExtent>,
    records: Vec<u64>,
    has_summary: bool,
    bytes_read: u64,
}

impl Found {
    /// The highest number in it.
    fn last_sequence(&self) -> Sequence {
        let extents = self.extents.iter().map(|extent| extent.sequence);
        extents.chain([self.fill]).max().unwrap_or_default()
    }
}

/// What one region turned out to be.
struct Scan {
    found: Option<Found>,
    /// Nothing, and yet something is there that may count for the next one who reads it: the region, and up to which
    /// filling it is void.
    to_void: Option<(u32, Sequence)>,
    bytes_read: u64,
}

/// What is at a region's end. Nothing, where it cannot be read.
#[derive(Default)]
struct End {
    summary: Option<Summary>,
    /// Zeroes, as voiding a region leaves there.
    blank: bool,
    bytes_read: u64,
}

/// How long summaries are.
#[derive(Default)]
struct Guess {
    longest: Cell<u64>,
    seen: Cell<usize>,
}

impl Guess {
    /// What to read of a region's end.
    fn bytes(&self) -> u64 {
        if self.seen.get() < SCANS_MAX {
            return SUMMARY_GUESS_BYTES;
        }
        self.longest
            .get()
            .next_multiple_of(SUMMARY_GUESS_MIN)
            .clamp(SUMMARY_GUESS_MIN, SUMMARY_GUESS_MAX)
    }

    /// A summary was this long.
    fn learn(&self, bytes: u64) {
        self.longest.set(self.longest.get().max(bytes));
        self.seen.set(self.seen.get() + 1);
    }
}

impl<P: Platform> Shard<P> {
    /// Rebuilds the index of a shard that has not been started. `tell` hears of every region that was looked at.
    ///
    /// # Errors
    /// [`RecoverError`]: the shard is then to be thrown away, and the cache to start cold.
    pub async fn recover(self: &Rc<Self>, tell: impl Fn()) -> Result<Recovered, RecoverError> {
        let (shard, valid_from) = (self.number, self.valid_from);
        let device = |source| RecoverError::Device { shard, source };
        let marks = self.load_intents().await.map_err(device)?;
        let mut outcome = Recovered {
            stripes: self.intents.set_count(),
            ..Recovered::default()
        };
        let (mut found, to_void) = self
            .scan(valid_from, marks, &mut outcome, tell)
            .await
            .map_err(device)?;
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
        self.take_over_regions(&found);
        self.take_over_records(&found).await;
        // A summary is believed, so what it lists must be stable before.
        if found.iter().any(|region| !region.has_summary) {
            self.flush_cache().await.map_err(device)?;
        }
        let mut closed = false;
        for region in found.iter().filter(|region| !region.has_summary) {
            self.write_summary(region).await.map_err(device)?;
            closed = true;
        }
        // The marks of these regions go with the next page of intents. Without a mark and without a summary one damaged
        // extent would hide all that are behind it.
        if closed && !planted(PlantedBug::SummaryAfterMark) {
            self.flush_cache().await.map_err(device)?;
        }
        drop(found);
        self.inherit_dirty();
        outcome.dropped = self.drop_intended().await?;
        outcome.blocks = self.index.borrow().len() as u64;
        outcome.dirty = self.index.borrow().dirty_blocks();
        Ok(outcome)
    }

    async fn scan(
        self: &Rc<Self>,
        valid_from: Epoch,
        marks: [DurableMark; 2],
        outcome: &mut Recovered,
        tell: impl Fn(),
    ) -> Result<(Vec<Found>, Vec<(u32, Sequence)>), DeviceError> {
        let guess = Guess::default();
        let guess = &guess;
        let scans = (0..self.geometry.regions_per_shard)
            .map(|number| self.scan_region(number, valid_from, marks, guess));
        let mut scans = iter(scans).buffer_unordered(SCANS_MAX);
        let mut all = Vec::new();
        let mut to_void = Vec::new();
        while let Some(result) = scans.next().await {
            tell();
            let scan = result?;
            outcome.bytes_read += scan.bytes_read;
            to_void.extend(scan.to_void);
            if let Some(found) = scan.found {
                outcome.regions += 1;
                outcome.records += found.records.len() as u64;
                all.push(found);
            }
        }
        Ok((all, to_void))
    }

    async fn scan_region(
        &self,
        number: u32,
        valid_from: Epoch,
        marks: [DurableMark; 2],
        guesses: &Guess,
    ) -> Result<Scan, DeviceError> {
        let guess = guesses.bytes().min(self.geometry.region_bytes);
        // Of a region that was being made void only the first sector may have been.
        let sector = u64::from(self.geometry.sector_bytes);
        let (end, head) = join(self.read_end(number, guess), self.read_region(number, 0, sector)).await;
        // A summary that cannot be read is one that is damaged: the extents say the same.
        let mut end = end.or_else(|error| self.unreadable(number, error).map(|()| End::default()))?;
        let head = head?;
        if end.summary.is_none() && !end.blank {
            // It may be all that says what is here, and have been read wrong for once.
            end = match self.read_end(number, guess).await {
                Err(error) if is_timeout(&error) => return Err(error),
                again => again.unwrap_or_default(),
            };
        }
        let position =
            self.geometry.shard_offset(self.number) + u64::from(number) * self.geometry.region_bytes;
        let voided = VoidMark::parse(&head, self.cache_id, position).ok();
        let mut bytes_read = end.bytes_read;
        // A later filling's summary counts: its first extent never landed, and the mark is what was there before.
        let refilled = |voided: Sequence| end.summary.as_ref().is_some_and(|summary| summary.fill > voided);
        if let Some(voided) = voided.filter(|voided| !refilled(*voided)) {
            // What cannot be read now may be a summary for the next one who reads it.
            return Ok(Scan {
                found: None,
                to_void: (!end.blank).then_some((number, voided)),
                bytes_read: bytes_read + sector,
            });
        }
        let blank = end.blank;
        let mut found = end
            .summary
            .and_then(|summary| self.by_summary(number, summary, valid_from));
        if let Some(found) = &found {
            guesses.learn(summary_bytes(
                found.extents.len(),
                found.records.len(),
                self.geometry.sector_bytes,
            ));
        } else {
            found = self.walk(number, valid_from, marks).await?;
            bytes_read += self.geometry.header_bytes() as u64;
            bytes_read += found.as_ref().map_or(0, |found| found.bytes_read);
        }
        let empty = blank && head.iter().all(|byte| *byte == 0);
        // Above all fillings that there were, below those to come.
        let earlier = Sequence(u64::from(self.epoch.0) << 32);
        Ok(Scan {
            to_void: (found.is_none() && !empty).then_some((number, earlier)),
            found,
            bytes_read,
        })
    }

    /// Looks for a summary at a region's end.
    async fn read_end(&self, number: u32, guess: u64) -> Result<End, DeviceError> {
        let (region_bytes, sector) = (self.geometry.region_bytes, u64::from(self.geometry.sector_bytes));
        let tail = self.read_region(number, region_bytes - guess, guess).await?;
        let mut bytes_read = guess;
        let summary = match Summary::parse_len(&tail, region_bytes) {
            Ok(len) if len as u64 <= guess => Summary::parse(&tail).ok(),
            Ok(len) => {
                let len = (len as u64).next_multiple_of(sector);
                bytes_read += len;
                Summary::parse(&self.read_region(number, region_bytes - len, len).await?).ok()
            }
            Err(_) => None,
        };
        Ok(End {
            summary,
            blank: tail[tail.len() - sector as usize..].iter().all(|byte| *byte == 0),
            bytes_read,
        })
    }

    /// A summary cannot be read: recovery goes on without it, unless the device answers nothing.
    fn unreadable(&self, region: u32, error: DeviceError) -> Result<(), DeviceError> {
        if is_timeout(&error) {
            return Err(error);
        }
        count(&self.stats.counters.cache_read_errors, 1);
        tracing::warn!(shard = self.number, region, %error, "a summary cannot be read: the region's extents are");
        Ok(())
    }

    /// Reads part of a region, widened to the device's alignment at its end.
    async fn read_region(&self, number: u32, offset: u64, len: u64) -> Result<IoBuf, DeviceError> {
        let position =
            self.geometry.shard_offset(self.number) + u64::from(number) * self.geometry.region_bytes + offset;
        let align = u64::from(self.cache.alignment());
        let wide = len.next_multiple_of(align);
        let (mut buf, result) = self.cache.read_at(position, IoBuf::new(wide as usize)).await;
        result?;
        buf.set_len(len as usize);
        Ok(buf)
    }

    fn by_summary(&self, number: u32, summary: Summary, valid_from: Epoch) -> Option<Found> {
        let position =
            self.geometry.shard_offset(self.number) + u64::from(number) * self.geometry.region_bytes;
        let used = check_extents(&summary.extents, &self.geometry).ok()?;
        let ascending = summary.extents.is_sorted_by(|a, b| a.sequence < b.sequence);
        let ours =
            summary.cache == self.cache_id && summary.shard == self.number && summary.position == position;
        let valid = summary
            .extents
            .iter()
            .all(|extent| self.can_be_of(extent.epoch, valid_from));
        let few = summary.records.len() <= self.geometry.region_records_max();
        (ours && ascending && valid && few && !summary.extents.is_empty()).then_some(Found {
            number,
            ring: summary.ring,
            fill: summary.fill,
            used: used as u32,
            extents: summary.extents,
            records: summary.records,
            has_summary: true,
            bytes_read: 0,
        })
    }

    /// Reads the headers of a region's extents, from its start to the first place without one.
    ///
    /// What lies behind a missing one is lost with it: extents that were on their way together may have landed in any
    /// order. Of what was known to be stable nothing may be missing, see [`Shard::check_marks`].
    async fn walk(
        &self,
        number: u32,
        valid_from: Epoch,
        marks: [DurableMark; 2],
    ) -> Result<Option<Found>, DeviceError> {
        let geometry = &self.geometry;
        let header_bytes = geometry.header_bytes();
        let mut found: Option<Found> = None;
        let mut at = 0;
        while at + header_bytes as u64 <= geometry.region_bytes {
            let mut bytes = self.read_region(number, at, header_bytes as u64).await?;
            let mut header = self.header_at(number, at, &bytes, valid_from, found.as_ref());
            if header.is_none() && bytes.iter().any(|byte| *byte != 0) {
                // What ends the region hides what is behind it, and may have been read wrong for once.
                bytes = self.read_region(number, at, header_bytes as u64).await?;
                header = self.header_at(number, at, &bytes, valid_from, found.as_ref());
            }
            let Some(header) = header else { break };
            let region = found.get_or_insert_with(|| Found {
                number,
                ring: header.ring,
                fill: header.fill,
                used: 0,
                extents: Vec::new(),
                records: Vec::new(),
                has_summary: false,
                bytes_read: 0,
            });
            let count = usize::from(header.record_count);
            let end = at + u64::from(header.extent_bytes);
            let summary = summary_bytes(
                region.extents.len() + 1,
                region.records.len() + count,
                geometry.sector_bytes,
            );
            // Writers keep room for a summary: more than that was not written by one.
            if end + summary > geometry.region_bytes
                || region.records.len() + count > geometry.region_records_max()
            {
                break;
            }
            let mark = marks[header.ring.index()];
            let stable = mark.fill == header.fill && end <= u64::from(mark.used);
            region.bytes_read += header_bytes as u64;
            if !stable {
                region.bytes_read += u64::from(header.extent_bytes);
                let whole = self.is_whole(number, at, &header).await?;
                if !whole && !self.is_whole(number, at, &header).await? {
                    break;
                }
            }
            region.extents.push(SummaryExtent {
                offset: at as u32,
                len: header.extent_bytes,
                sequence: header.sequence,
                epoch: header.epoch,
                record_count: header.record_count,
            });
            region.records.extend(records(&bytes, header.record_count));
            region.used = end as u32;
            at = end;
        }
        Ok(found.filter(|found| !found.extents.is_empty()))
    }

    /// Whether every fragment of an extent is what its header promises: a header may have landed without them.
    async fn is_whole(&self, number: u32, at: u64, header: &ExtentHeader) -> Result<bool, DeviceError> {
        let bytes = self
            .read_region(number, at, u64::from(header.extent_bytes))
            .await?;
        let start = u64::from(number) * self.geometry.region_bytes + at;
        let mut within = self.geometry.header_bytes();
        let mut block = IoBuf::new(BLOCK_BYTES);
        for bits in records(&bytes, header.record_count) {
            let Ok(record) = Record::unpack(bits) else {
                return Ok(false);
            };
            let end = within + record.fragment_bytes();
            let Some(fragment) = bytes.get(within..end) else {
                return Ok(false);
            };
            if let RecordKind::Fragment { .. } = record.kind {
                let identity = FragmentIdentity {
                    cache: self.cache_id,
                    volume: record.volume,
                    block: record.block,
                    location: Location::at(start + within as u64),
                    fill: header.fill,
                };
                let lost = fragment::split(fragment).is_ok_and(|(header, _)| header.codec == CodecId::LOST.0);
                let decoders = &mut self.decoders.borrow_mut();
                if !lost && fragment::unpack(decoders, fragment, &identity, &mut block).is_err() {
                    return Ok(false);
                }
            }
            within = end;
        }
        Ok(true)
    }

    /// Whether an earlier opening that counts can have written this: not one from before a cold start, and not one that
    /// is yet to come.
    fn can_be_of(&self, epoch: Epoch, valid_from: Epoch) -> bool {
        (valid_from..self.epoch).contains(&epoch)
    }

    /// The header at `at`, if it is one of this filling of the region.
    fn header_at(
        &self,
        number: u32,
        at: u64,
        bytes: &[u8],
        valid_from: Epoch,
        found: Option<&Found>,
    ) -> Option<ExtentHeader> {
        let geometry = &self.geometry;
        let header = ExtentHeader::parse(bytes, geometry.header_bytes()).ok()?;
        let position = geometry.shard_offset(self.number) + u64::from(number) * geometry.region_bytes + at;
        let ours = header.cache == self.cache_id
            && u32::from(header.shard) == self.number
            && header.position == position
            && self.can_be_of(header.epoch, valid_from);
        let length = header.extent_bytes.is_multiple_of(geometry.sector_bytes)
            && header.extent_bytes as usize >= geometry.header_bytes()
            && header.extent_bytes <= geometry.extent_bytes;
        let follows = found.is_none_or(|found| {
            let last = found.extents.last().map_or(Sequence(0), |extent| extent.sequence);
            header.fill == found.fill && header.ring == found.ring && header.sequence > last
        });
        (ours && length && follows).then_some(header)
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
                // It has been reclaimed since, if younger ones are there.
                None if same_ring.any(|region| region.fill > mark.fill) => continue,
                None if mark.used == 0 => continue,
                None => format!("the {ring} region of filling {} is gone", mark.fill.0),
            };
            let shard = self.number;
            return Err(RecoverError::Damaged { shard, what });
        }
        Ok(())
    }

    /// Numbers that no cache reaches were not written by one, and new ones must stay above all that are there.
    fn check_sequences(&self, found: &[Found]) -> Result<(), RecoverError> {
        let shard = self.number;
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

    fn take_over_regions(&self, found: &[Found]) {
        let mut table = vec![Region::FREE; self.geometry.regions_per_shard as usize];
        for region in found {
            table[region.number as usize] = Region {
                state: RegionState::Full,
                ring: region.ring,
                fill: region.fill,
                used: region.used,
                live: 0,
            };
        }
        let mut regions = Regions::from_table(&table);
        for region in found {
            regions.enter_ring(region.number);
        }
        let last = found.iter().map(Found::last_sequence).max().unwrap_or_default();
        let mut log = self.log.borrow_mut();
        log.regions = regions;
        // Those of this epoch are above all that an earlier one can have used, seen or not.
        log.next_sequence = log.next_sequence.max(Sequence(last.0 + 1));
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
            let at = self.geometry.header_bytes() as u64;
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
        let total = found.iter().map(|region| region.records.len()).sum();
        self.index.borrow_mut().reserve(total);
        let oldest = self.oldest_contents(found);
        let mut dropped: BTreeMap<LocalBlock, Ring> = BTreeMap::new();
        let room = total.min(BATCH_RECORDS + usize::from(u16::MAX));
        let mut bulk = Bulk::new(&self.index.borrow(), room);
        for (_, region, extent, first) in order {
            let region = &found[region as usize];
            let extent = &region.extents[extent as usize];
            let start = u64::from(region.number) * self.geometry.region_bytes + u64::from(extent.offset);
            let mut at = start + self.geometry.header_bytes() as u64;
            let end = start + u64::from(extent.len);
            for &bits in &region.records[first..first + usize::from(extent.record_count)] {
                let Ok(record) = Record::unpack(bits) else { break };
                if at + record.fragment_bytes() as u64 > end {
                    break;
                }
                if let Some((block, change)) = self.change_of(record, start, at) {
                    if matches!(change, Change::Drop) && oldest.iter().any(|blocks| blocks.contains(&block)) {
                        dropped.insert(block, region.ring);
                    }
                    bulk.push(block, change);
                }
                at += record.fragment_bytes() as u64;
            }
            if bulk.len() >= BATCH_RECORDS {
                self.index.borrow_mut().apply(&mut bulk);
                self.env.yield_now().await;
            }
        }
        let mut index = self.index.borrow_mut();
        index.apply(&mut bulk);
        drop(bulk);
        index.fit();
        let log = &mut *self.log.borrow_mut();
        let mut live = vec![0i32; self.geometry.regions_per_shard as usize];
        for entry in index.values() {
            live[log.region_of(entry.location()) as usize] += 1;
        }
        for (number, live) in live.into_iter().enumerate().filter(|(_, live)| *live > 0) {
            log.regions.count_live(number as u32, live);
        }
        let newest = |block: &LocalBlock| match index.get(*block) {
            Some(entry) => Some(log.regions.ring_of(log.region_of(entry.location()))),
            None => dropped.get(block).copied(),
        };
        let unfinished = Ring::ALL.into_iter().find(|ring| {
            let mut blocks = oldest[ring.index()].iter();
            blocks.any(|block| newest(block).is_some_and(|newest| newest != *ring))
        });
        self.unfinished.set(unfinished);
    }

    /// What a record does to the index: the block, and its entry if it is cached now.
    fn change_of(&self, record: Record, extent: u64, at: u64) -> Option<(LocalBlock, Change)> {
        let (shard, block) = record.block.in_shard(self.geometry.shard_count);
        if record.volume != 0 || record.block.0 >= self.whole_blocks() || shard != self.number {
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
        let start =
            self.geometry.shard_offset(self.number) + u64::from(region.number) * self.geometry.region_bytes;
        let len = summary_bytes(
            region.extents.len(),
            region.records.len(),
            self.geometry.sector_bytes,
        );
        debug_assert!(len as usize >= TRAILER_BYTES);
        let summary = Summary {
            cache: self.cache_id,
            shard: self.number,
            ring: region.ring,
            fill: region.fill,
            position: start,
            extents: region.extents.clone(),
            records: region.records.clone(),
        };
        let mut buf = IoBuf::new(len as usize);
        summary.write(&mut buf);
        let position = start + self.geometry.region_bytes - len;
        self.cache.write_at(position, buf, false).await.1
    }

    /// The clean blocks of stripes whose intent is set, and where they lie, in the order of addresses: the log is read by
    /// people. And what counts as dirty though there can be none such: the record that it was cleaned is damaged, or this
    /// one forged, and the origin has what is right.
    fn intended(&self) -> Vec<(LocalBlock, Ring)> {
        let index = self.index.borrow();
        let unknown = index.dirty_blocks() > 0 && !self.may_be_dirty;
        let intended = |block: LocalBlock, entry: Entry| {
            if unknown && entry.dirty() {
                return Some((block, self.ring_of(entry)));
            }
            let set = self.intents.is_set(block) && !planted(PlantedBug::IntendedKept);
            // Nothing newer than a dirty block went to the origin, intent or not.
            let clean = !entry.dirty() || planted(PlantedBug::IntendedDirtyDropped);
            (set && clean).then(|| (block, self.ring_of(entry)))
        };
        // Few stripes are looked up block by block. Where most are set, that would take longer than all that is cached.
        if !unknown && self.intents.set_count() < index.len() as u64 / STRIPE_BLOCKS {
            let stripes = self.intents.set_stripes().into_iter();
            return stripes
                .flat_map(|stripe| (stripe * STRIPE_BLOCKS..).take(STRIPE_BLOCKS as usize))
                .map(LocalBlock)
                .filter_map(|block| intended(block, index.get(block)?))
                .collect();
        }
        let all = index.iter();
        let mut found: Vec<_> = all.filter_map(|(block, entry)| intended(block, entry)).collect();
        found.sort_unstable_by_key(|(block, _)| *block);
        found
    }

    /// Drops the blocks of stripes whose intent is set, and says so in the log. The bits stay until a round of
    /// clearing finds that stable. Nothing is on its way to the device on return.
    pub(super) async fn drop_intended(self: &Rc<Self>) -> Result<u64, RecoverError> {
        let mut dropped = self.append_intended().await;
        // Before anything newer of these blocks: see `Shard::ring_of_old`.
        if matches!(dropped, Ok(1..)) && !self.make_log_stable().await {
            let (shard, what) = (self.number, "the cache device failed".to_owned());
            dropped = Err(RecoverError::Damaged { shard, what });
        }
        // The shard may be thrown away now, for its own failure or that of another one. What it writes must not land in
        // what the next one has written at the same place.
        while self.log.borrow().writing() {
            self.idle.notified().await;
        }
        while self.intents.marking.get() {
            self.intents.changed.notified().await;
        }
        dropped
    }

    async fn append_intended(self: &Rc<Self>) -> Result<u64, RecoverError> {
        let intended = self.intended();
        for (block, _) in &intended {
            self.remove_entry(*block);
        }
        for (block, ring) in &intended {
            loop {
                let appended =
                    self.log
                        .borrow_mut()
                        .append(*ring, self.global(*block), Append::Tombstone, false);
                if appended.is_some() {
                    break;
                }
                self.pump_writes();
                if self.failed.get() {
                    let (shard, what) = (self.number, "the cache device failed".to_owned());
                    return Err(RecoverError::Damaged { shard, what });
                }
                if self.log.borrow().writes_in_flight() >= WRITES_IN_FLIGHT_MAX {
                    self.room.notified().await;
                } else if !self.reclaim_one(true).await {
                    let what = "no region can be freed: the origin takes no writes, or blocks newer than it are damaged and \
                                there is no room to note that"
                        .to_owned();
                    let shard = self.number;
                    return Err(RecoverError::Damaged { shard, what });
                }
            }
        }
        self.pump_writes();
        Ok(intended.len() as u64)
    }
}
