//! Finding what is on the medium, region by region, for recovery.
//!
//! A region is read by its summary, or, where there is none, by walking the headers of its extents.

use std::cell::Cell;

use std::rc::Rc;

use flaz_codec::CodecId;
use flaz_device::deadline::is_timeout;
use flaz_device::{DeviceError, IoBuf};
use futures_util::future::join;
use futures_util::stream::{StreamExt, iter};

use super::fragment;
use super::missing::{Filling, is_stable};
use super::recover::{RecoverError, Recovered};
use super::{Platform, Shard};
use crate::format::extent::{
    ExtentHeader, FragmentIdentity, HeaderPlace, Record, RecordKind, fragment_checksum, records,
};
use crate::format::intent::DurableMark;
use crate::format::summary::{
    Promise, Summary, SummaryExtent, check_extents, summary_bytes, summary_bytes_max,
};
use crate::format::void::VoidMark;
use crate::policy::Ring;
use crate::stats::count;
use crate::units::{BLOCK_BYTES, Epoch, Location, Sequence};

/// Regions that are read at a time.
const SCANS_MAX: usize = 8;
/// First read of a region's end, in bytes: for the first regions, and at least and at most for those after them, which are
/// read as far as the longest summary so far.
const SUMMARY_GUESS_BYTES: u64 = 64 << 10;
const SUMMARY_GUESS_MIN: u64 = 4 << 10;
const SUMMARY_GUESS_MAX: u64 = 512 << 10;

/// A region as the medium has it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) number: u32,
    pub(super) ring: Ring,
    pub(super) fill: Sequence,
    pub(super) used: u32,
    pub(super) extents: Vec<SummaryExtent>,
    pub(super) records: Vec<u64>,
    pub(super) has_summary: bool,
    bytes_read: u64,
}

impl Found {
    /// The highest number in it.
    pub(super) fn last_sequence(&self) -> Sequence {
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
    /// What is missing, if that was stable, or may have been.
    torn: Option<String>,
    bytes_read: u64,
}

/// What is at a region's end. Nothing, where it cannot be read.
#[derive(Default)]
struct End {
    summary: Option<Summary>,
    /// What there was, where it is damaged.
    promise: Option<Promise>,
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

fn unless_timeout(error: DeviceError) -> Result<End, DeviceError> {
    match is_timeout(&error) {
        true => Err(error),
        false => Ok(End::default()),
    }
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
    /// Looks at every region: what is in it, and those that must be made void.
    pub(super) async fn scan(
        self: &Rc<Self>,
        valid_from: Epoch,
        marks: [DurableMark; 2],
        outcome: &mut Recovered,
        tell: impl Fn(),
    ) -> Result<(Vec<Found>, Vec<(u32, Sequence)>), RecoverError> {
        let shard = self.id.number;
        let guess = Guess::default();
        let guess = &guess;
        let scans = (0..self.id.geometry.regions_per_shard)
            .map(|number| self.scan_region(number, valid_from, marks, guess));
        let mut scans = iter(scans).buffer_unordered(SCANS_MAX);
        let mut all = Vec::new();
        let mut to_void = Vec::new();
        while let Some(result) = scans.next().await {
            tell();
            let scan = result.map_err(|source| RecoverError::Device { shard, source })?;
            outcome.bytes_read += scan.bytes_read;
            if let Some(what) = scan.torn {
                return Err(RecoverError::Damaged { shard, what });
            }
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
        let guess = guesses.bytes().min(self.id.geometry.region_bytes);
        // Of a region that was being made void only the first sector may have been.
        let sector = u64::from(self.id.geometry.sector_bytes);
        let (end, head) = join(self.read_end(number, guess), self.read_region(number, 0, sector)).await;
        let mut readable = guess;
        let mut end = match end {
            Ok(end) => end,
            Err(error) => {
                self.unreadable(number, error)?;
                // Of what is before it nothing is needed. One that cannot be read is one that is damaged: the extents say the
                // same.
                readable = sector;
                self.read_end(number, readable).await.or_else(unless_timeout)?
            }
        };
        let head = match head {
            // That sector is not needed either: this is what there was before it was made void, if it was.
            Err(error) if end.summary.is_some() && !is_timeout(&error) => {
                self.unreadable(number, error)?;
                let mut damaged = IoBuf::zeroed(sector as usize);
                damaged.fill(0xff);
                damaged
            }
            head => head?,
        };
        let is_blank = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let position = self.position_of(number);
        let voided = VoidMark::parse(&head, self.id.cache_id, position).ok();
        let empty = end.blank && is_blank(&head);
        if end.summary.is_none() && !empty {
            // It may be all that says what is here, and have been read wrong for once.
            end = match self.read_end(number, readable).await {
                Err(error) if is_timeout(&error) => return Err(error),
                // It may have been, or be, zeroes for once.
                Ok(again) => End {
                    blank: again.blank && end.blank,
                    promise: again.promise.or(end.promise),
                    ..again
                },
                Err(_) => End { blank: false, ..end },
            };
        }
        let mut bytes_read = end.bytes_read;
        // A later filling's summary counts: its first extent never landed, and the mark is what was there before.
        let refilled = |voided: Sequence| end.summary.as_ref().is_some_and(|summary| summary.fill > voided);
        if let Some(voided) = voided.filter(|voided| !refilled(*voided)) {
            // And so does what is left of it.
            let later = end.promise.filter(|promise| promise.fill > voided);
            let hides = later.is_some() && self.hides_stable(number, None, later, valid_from, marks).await?;
            // What cannot be read now may be a summary for the next one who reads it.
            return Ok(Scan {
                found: None,
                to_void: (!end.blank).then_some((number, voided)),
                torn: hides.then(|| format!("region {number} lacks extents that were stable")),
                bytes_read: bytes_read + sector,
            });
        }
        let (blank, promise) = (end.blank, end.promise);
        let mut torn = None;
        let mut found = end
            .summary
            .and_then(|summary| self.by_summary(number, summary, valid_from));
        if let Some(found) = &found {
            guesses.learn(summary_bytes(
                found.extents.len(),
                found.records.len(),
                self.id.geometry.sector_bytes,
            ));
        } else {
            let has_rotted;
            (found, has_rotted) = self.walk(number, &head, valid_from, marks).await?;
            bytes_read += self.id.geometry.header_bytes() as u64;
            bytes_read += found.as_ref().map_or(0, |found| found.bytes_read);
            // Voiding leaves a blank end, behind which a first extent may be torn.
            let may_hide = !blank || found.is_some();
            if has_rotted {
                torn = Some(format!(
                    "region {number} has a damaged extent header, and what that extent had may have been flushed"
                ));
            } else if may_hide
                && self
                    .hides_stable(number, found.as_ref(), promise, valid_from, marks)
                    .await?
            {
                torn = Some(format!("region {number} lacks extents that were stable"));
            }
        }
        let empty = blank && is_blank(&head);
        // Above all fillings that there were, below those to come.
        let earlier = Sequence::first_of(self.id.epoch);
        Ok(Scan {
            to_void: (found.is_none() && !empty).then_some((number, earlier)),
            torn,
            found,
            bytes_read,
        })
    }

    /// Looks for a summary at a region's end.
    async fn read_end(&self, number: u32, guess: u64) -> Result<End, DeviceError> {
        let (region_bytes, sector) = (
            self.id.geometry.region_bytes,
            u64::from(self.id.geometry.sector_bytes),
        );
        let tail = self.read_region(number, region_bytes - guess, guess).await?;
        let mut bytes_read = guess;
        let position = self.position_of(number);
        let summary = match Summary::parse_len(&tail, summary_bytes_max(&self.id.geometry)) {
            Ok(len) if len as u64 <= guess => Summary::parse(&tail).ok(),
            Ok(len) => {
                let len = (len as u64).next_multiple_of(sector);
                bytes_read += len;
                match self.read_region(number, region_bytes - len, len).await {
                    Ok(bytes) => Summary::parse(&bytes).ok(),
                    Err(error) if is_timeout(&error) => return Err(error),
                    // Its trailer can, and says how much there must be.
                    Err(_) => None,
                }
            }
            Err(_) => None,
        };
        Ok(End {
            promise: Promise::parse(&tail, self.id.cache_id, self.id.number, position),
            summary,
            blank: tail[tail.len() - sector as usize..].iter().all(|byte| *byte == 0),
            bytes_read,
        })
    }

    /// What a region begins or ends with cannot be read: recovery goes on without it, unless the device answers nothing.
    fn unreadable(&self, region: u32, error: DeviceError) -> Result<(), DeviceError> {
        if is_timeout(&error) {
            return Err(error);
        }
        count(&self.stats.counters.cache_read_errors, 1);
        tracing::warn!(shard = self.id.number, region, %error, "a sector cannot be read that a region begins or ends with");
        Ok(())
    }

    /// Where a region begins on the device.
    pub(super) fn position_of(&self, region: u32) -> u64 {
        self.id.position_of(region)
    }

    /// Reads part of a region, widened to the device's alignment at its end.
    pub(super) async fn read_region(&self, number: u32, offset: u64, len: u64) -> Result<IoBuf, DeviceError> {
        let position = self.position_of(number) + offset;
        self.cache.read_at(position, len).await
    }

    fn by_summary(&self, number: u32, summary: Summary, valid_from: Epoch) -> Option<Found> {
        let position = self.position_of(number);
        let used = check_extents(&summary.extents, &self.id.geometry).ok()?;
        let ascending = summary.extents.is_sorted_by(|a, b| a.sequence < b.sequence);
        let ours = summary.cache == self.id.cache_id
            && summary.shard == self.id.number
            && summary.position == position;
        let valid = summary
            .extents
            .iter()
            .all(|extent| self.can_be_of(extent.epoch, valid_from));
        let few = summary.records.len() <= self.id.geometry.region_records_max();
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
    /// order. Of what was known to be stable nothing may be missing, see [`Shard::check_marks`]. And where blocks may be dirty, not
    /// one extent whose header has rotted, which is the second answer: what it had may have been flushed.
    async fn walk(
        &self,
        number: u32,
        head: &[u8],
        valid_from: Epoch,
        marks: [DurableMark; 2],
    ) -> Result<(Option<Found>, bool), DeviceError> {
        let geometry = &self.id.geometry;
        let header_bytes = geometry.header_bytes();
        let mut has_rotted = false;
        let mut found: Option<Found> = None;
        let mut filling: Option<Filling> = None;
        let mut at = 0;
        // Where the summary would begin is no header, and may not be readable.
        let ends = |found: Option<&Found>| {
            let (extents, records) = found.map_or((0, 0), |found| (found.extents.len(), found.records.len()));
            summary_bytes(extents + 1, records, geometry.sector_bytes) + header_bytes as u64
        };
        while at + ends(found.as_ref()) <= geometry.region_bytes {
            let mut bytes = self.read_region(number, at, header_bytes as u64).await?;
            let mut header = self.header_at(number, at, &bytes, valid_from, filling);
            let is_blank = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
            if header.is_none() && !(at == 0 && is_blank(head) && is_blank(&bytes)) {
                // What ends the region hides what is behind it, and may have been read wrong for once. (Of a region that
                // was never filled `head` is the second look.)
                bytes = self.read_region(number, at, header_bytes as u64).await?;
                header = self.header_at(number, at, &bytes, valid_from, filling);
            }
            let Some(header) = header else {
                // A header in one sector is there or not, whatever fails while it is written.
                let atomic = header_bytes <= geometry.sector_bytes as usize;
                let place = HeaderPlace {
                    cache: self.id.cache_id,
                    shard: self.id.number as u16,
                    position: self.position_of(number) + at,
                    fill: filling.map(|filling| filling.fill),
                };
                has_rotted =
                    atomic && self.id.may_be_dirty && ExtentHeader::has_rotted(&bytes, header_bytes, &place);
                break;
            };
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
            let stable = is_stable(mark, header.fill, end);
            region.bytes_read += header_bytes as u64;
            if !stable {
                region.bytes_read += u64::from(header.extent_bytes);
                let whole = self.is_whole(number, at, &header).await?
                    || self.is_whole(number, at, &header).await?
                    // Then it was, and what is damaged is told when it is read.
                    || self.told_stable(number, end, Filling::of(&header), valid_from).await? >= Some(end);
                if !whole {
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
            filling = Some(Filling::of(&header));
            at = end;
        }
        Ok((found.filter(|found| !found.extents.is_empty()), has_rotted))
    }

    /// Whether every fragment of an extent is what its header promises: a header may have landed without them.
    async fn is_whole(&self, number: u32, at: u64, header: &ExtentHeader) -> Result<bool, DeviceError> {
        let bytes = self
            .read_region(number, at, u64::from(header.extent_bytes))
            .await?;
        let start = u64::from(number) * self.id.geometry.region_bytes + at;
        let mut within = self.id.geometry.header_bytes();
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
                    cache: self.id.cache_id,
                    volume: record.volume,
                    block: record.block,
                    location: Location::at(start + within as u64),
                    fill: header.fill,
                };
                let lost = fragment::split(fragment).is_ok_and(|(header, stored)| {
                    let len = stored.len() as u16;
                    let checksum = fragment_checksum(&identity, len, CodecId::LOST, 0);
                    header.codec == CodecId::LOST.0 && header.checksum.get() == checksum
                });
                if !lost && self.codecs.unpack(fragment, &identity, &mut block).is_err() {
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
        (valid_from..self.id.epoch).contains(&epoch)
    }

    /// The header at `at`, if it is one of this filling of the region.
    pub(super) fn header_at(
        &self,
        number: u32,
        at: u64,
        bytes: &[u8],
        valid_from: Epoch,
        filling: Option<Filling>,
    ) -> Option<ExtentHeader> {
        let geometry = &self.id.geometry;
        let header = ExtentHeader::parse(bytes, geometry.header_bytes()).ok()?;
        let position = self.position_of(number) + at;
        let ours = header.cache == self.id.cache_id
            && u32::from(header.shard) == self.id.number
            && header.position == position
            && self.can_be_of(header.epoch, valid_from);
        let length = header.extent_bytes.is_multiple_of(geometry.sector_bytes)
            && header.extent_bytes as usize >= geometry.header_bytes()
            && header.extent_bytes <= geometry.extent_bytes;
        let follows = filling.is_none_or(|filling| {
            header.fill == filling.fill && header.ring == filling.ring && header.sequence > filling.last
        });
        (ours && length && follows).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flaz_device::Env;
    use flaz_sim::Rng;

    use super::*;
    use crate::format::geometry::GeometryWish;
    use crate::shard::log::Append;
    use crate::shard::simulated::{Disks, append, contents, raw};

    /// A shard that has filled a region: with so many raw blocks, and then with blocks of one value. The number of records.
    async fn fill_region(disks: &Disks, raws: u64) -> (u32, u64) {
        let shard = disks.shard(1);
        let (mut region, mut number) = (None, 0);
        loop {
            let mut data = vec![0; BLOCK_BYTES];
            Rng::new(number).fill(&mut data);
            let what = match number < raws {
                true => raw(&data),
                false => Append::Fill {
                    value: number as u8,
                    dirty: true,
                },
            };
            append(&shard, Ring::Main, number, what);
            let now = shard.log.open_numbers()[Ring::Main.index()];
            if now != *region.get_or_insert(now) {
                break;
            }
            number += 1;
            shard.pump_writes();
            disks.env.sleep(Duration::from_millis(1)).await;
        }
        assert!(shard.make_log_stable().await);
        (region.flatten().expect("it was open"), number)
    }

    /// The extents say the same, and there may be no room between the last of them and what cannot be read.
    #[test]
    fn a_summary_whose_sectors_cannot_be_read_is_not_needed() {
        let (mut tight, mut raws) = (0, u64::MAX);
        for _ in 0..24 {
            let disks = Disks::new(8 << 20, GeometryWish::default());
            let (region, records) = disks.sim.block_on(fill_region(&disks, raws));
            disks.sim.kill_tasks();
            raws = raws.min(records) - 1;
            let end = disks.region(region) + disks.geometry.region_bytes;
            let tail = disks
                .cache
                .peek(end - SUMMARY_GUESS_BYTES, SUMMARY_GUESS_BYTES as usize);
            let len =
                Summary::parse_len(&tail, summary_bytes_max(&disks.geometry)).expect("it is full") as u64;
            let summary = Summary::parse(&disks.cache.peek(end - len, len as usize)).expect("it is whole");
            let used = check_extents(&summary.extents, &disks.geometry).expect("in order");
            let len = len.next_multiple_of(512);
            let gap = disks.geometry.region_bytes - len - used;
            tight += u32::from(gap < disks.geometry.header_bytes() as u64);
            disks.cache.mark_bad(end - len, len);
            disks.sim.block_on(async {
                let second = disks.recovered(2).await;
                for block in 0..records {
                    assert!(contents(&second, block).await.is_some(), "block {block}");
                }
            });
        }
        assert!(tight > 0, "there always is");
    }

    /// It is no fragment of this place then, but what another extent has left there.
    #[test]
    fn a_note_that_a_block_is_lost_counts_with_its_checksum_alone() {
        let mut data = vec![0; BLOCK_BYTES];
        Rng::new(1).fill(&mut data);
        for damaged in [false, true] {
            let disks = Disks::new(8 << 20, GeometryWish::default());
            disks.sim.block_on(async {
                let first = disks.shard(1);
                append(&first, Ring::Main, 0, raw(&data));
                assert!(first.make_log_stable().await);
                let note = first.log.durable_marks()[Ring::Main.index()].used;
                append(&first, Ring::Main, 0, Append::LOST);
                assert!(first.make_log_stable().await);
                if damaged {
                    let region = first.log.open_numbers()[Ring::Main.index()];
                    let extent = disks.region(region.expect("one is open")) + u64::from(note);
                    disks
                        .cache
                        .flip_bit(extent + disks.geometry.header_bytes() as u64, 0);
                }
                let second = disks.recovered(2).await;
                let expected = damaged.then(|| data.clone());
                assert_eq!(contents(&second, 0).await, expected);
            });
        }
    }
}
