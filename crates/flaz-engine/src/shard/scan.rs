//! Finding what is on the medium, region by region, for recovery.
//!
//! A region is read by its summary, or, where there is none, by walking the headers of its extents.

use std::cell::Cell;

use std::rc::Rc;

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, IoBuf};
use futures_util::future::join;
use futures_util::stream::{StreamExt, iter};

use super::fragment;
use super::recover::{RecoverError, Recovered};
use super::{Platform, Shard};
use crate::codec::CodecId;
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

/// What an extent must follow to be of a filling.
#[derive(Clone, Copy)]
struct Filling {
    ring: Ring,
    fill: Sequence,
    /// Of the extent before it.
    last: Sequence,
}

impl Filling {
    fn of(header: &ExtentHeader) -> Self {
        Self {
            ring: header.ring,
            fill: header.fill,
            last: header.sequence,
        }
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
        let shard = self.number;
        let guess = Guess::default();
        let guess = &guess;
        let scans = (0..self.geometry.regions_per_shard)
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
        let position = self.position_of(number);
        let voided = VoidMark::parse(&head, self.cache_id, position).ok();
        let mut bytes_read = end.bytes_read;
        // A later filling's summary counts: its first extent never landed, and the mark is what was there before.
        let refilled = |voided: Sequence| end.summary.as_ref().is_some_and(|summary| summary.fill > voided);
        if let Some(voided) = voided.filter(|voided| !refilled(*voided)) {
            // What cannot be read now may be a summary for the next one who reads it.
            return Ok(Scan {
                found: None,
                to_void: (!end.blank).then_some((number, voided)),
                torn: None,
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
                self.geometry.sector_bytes,
            ));
        } else {
            let has_rotted;
            (found, has_rotted) = self.walk(number, &head, valid_from, marks).await?;
            bytes_read += self.geometry.header_bytes() as u64;
            bytes_read += found.as_ref().map_or(0, |found| found.bytes_read);
            // Voiding leaves a blank end, behind which a first extent may be torn.
            if has_rotted {
                torn = Some(format!(
                    "region {number} has a damaged extent header, and what that extent had may have been flushed"
                ));
            } else if (!blank || found.is_some())
                && self
                    .hides_stable(number, found.as_ref(), promise, valid_from, marks)
                    .await?
            {
                torn = Some(format!("region {number} lacks extents that were stable"));
            }
        }
        let empty = blank && head.iter().all(|byte| *byte == 0);
        // Above all fillings that there were, below those to come.
        let earlier = Sequence(u64::from(self.epoch.0) << 32);
        Ok(Scan {
            to_void: (found.is_none() && !empty).then_some((number, earlier)),
            torn,
            found,
            bytes_read,
        })
    }

    /// Looks for a summary at a region's end.
    async fn read_end(&self, number: u32, guess: u64) -> Result<End, DeviceError> {
        let (region_bytes, sector) = (self.geometry.region_bytes, u64::from(self.geometry.sector_bytes));
        let tail = self.read_region(number, region_bytes - guess, guess).await?;
        let mut bytes_read = guess;
        let position = self.position_of(number);
        let summary = match Summary::parse_len(&tail, summary_bytes_max(&self.geometry)) {
            Ok(len) if len as u64 <= guess => Summary::parse(&tail).ok(),
            Ok(len) => {
                let len = (len as u64).next_multiple_of(sector);
                bytes_read += len;
                Summary::parse(&self.read_region(number, region_bytes - len, len).await?).ok()
            }
            Err(_) => None,
        };
        Ok(End {
            promise: Promise::parse(&tail, self.cache_id, self.number, position),
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

    /// Where a region begins on the device.
    pub(super) fn position_of(&self, region: u32) -> u64 {
        self.geometry.shard_offset(self.number) + u64::from(region) * self.geometry.region_bytes
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
        let position = self.position_of(number);
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
    /// order. Of what was known to be stable nothing may be missing, see [`Shard::check_marks`]. And where blocks may be dirty, not
    /// one extent whose header has rotted, which is the second answer: what it had may have been flushed.
    async fn walk(
        &self,
        number: u32,
        head: &[u8],
        valid_from: Epoch,
        marks: [DurableMark; 2],
    ) -> Result<(Option<Found>, bool), DeviceError> {
        let geometry = &self.geometry;
        let header_bytes = geometry.header_bytes();
        let mut has_rotted = false;
        let mut found: Option<Found> = None;
        let mut filling: Option<Filling> = None;
        let mut at = 0;
        while at + header_bytes as u64 <= geometry.region_bytes {
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
                    cache: self.cache_id,
                    shard: self.number as u16,
                    position: self.position_of(number) + at,
                    fill: filling.map(|filling| filling.fill),
                };
                has_rotted =
                    atomic && self.may_be_dirty && ExtentHeader::has_rotted(&bytes, header_bytes, &place);
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

    /// Whether a region without a readable summary has extents that were stable, and that the walk did not come to: one before
    /// them is damaged. Older copies of their blocks would come back.
    ///
    /// What is left of the summary may say so, or the headers of extents behind the damaged one. Where the first header is
    /// missing the latter say nothing: what a discard leaves may be anything.
    async fn hides_stable(
        &self,
        number: u32,
        found: Option<&Found>,
        promise: Option<Promise>,
        valid_from: Epoch,
        marks: [DurableMark; 2],
    ) -> Result<bool, DeviceError> {
        let whole = |ring: Ring, fill| is_stable(marks[ring.index()], fill, self.geometry.region_bytes);
        if let Some(promise) = promise.filter(|promise| whole(promise.ring, promise.fill)) {
            let counts = promise.fill >= Sequence::first_of(valid_from);
            let (extents, records) = found.map_or((0, 0), |found| (found.extents.len(), found.records.len()));
            let same = found.is_none_or(|found| found.fill == promise.fill);
            // Either of them may be what is damaged of the summary.
            if counts && same && promise.extents as usize > extents && promise.records as usize > records {
                return Ok(true);
            }
        }
        let Some(found) = found else { return Ok(false) };
        let filling = Filling {
            ring: found.ring,
            fill: found.fill,
            last: found.last_sequence(),
        };
        let used = u64::from(found.used);
        let told = self.told_stable(number, used, filling, valid_from).await?;
        Ok(told.is_some_and(|told| whole(found.ring, found.fill) || told > used))
    }

    /// Up to where a region was stable, as the headers of this filling tell that can be found from `from` on; nothing, if there
    /// is none. Each of them is looked for as far as an extent and a header reach.
    async fn told_stable(
        &self,
        number: u32,
        from: u64,
        mut filling: Filling,
        valid_from: Epoch,
    ) -> Result<Option<u64>, DeviceError> {
        let (region_bytes, sector) = (self.geometry.region_bytes, u64::from(self.geometry.sector_bytes));
        let mut told = None;
        let mut from = from;
        while from < region_bytes {
            let len = self.hidden_bytes_max().min(region_bytes - from);
            let bytes = match self.read_region(number, from, len).await {
                Ok(bytes) => bytes,
                Err(error) if is_timeout(&error) => return Err(error),
                // It may be where the summary was. What the walk needs, it has read.
                Err(_) => break,
            };
            let header_at = |at: u64| {
                self.header_at(
                    number,
                    from + at,
                    &bytes[at as usize..],
                    valid_from,
                    Some(filling),
                )
            };
            let header = (0..len)
                .step_by(sector as usize)
                .find_map(|at| Some((at, header_at(at)?)));
            let Some((at, header)) = header else { break };
            told = told.max(Some(u64::from(header.stable_bytes)));
            filling = Filling::of(&header);
            from += at + u64::from(header.extent_bytes);
        }
        Ok(told)
    }

    /// How far behind a damaged header the next one ends.
    pub(super) fn hidden_bytes_max(&self) -> u64 {
        let bytes = u64::from(self.geometry.extent_bytes) + self.geometry.header_bytes() as u64;
        bytes.next_multiple_of(u64::from(self.geometry.sector_bytes))
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
                let lost = fragment::split(fragment).is_ok_and(|(header, stored)| {
                    let len = stored.len() as u16;
                    let checksum = fragment_checksum(&identity, len, CodecId::LOST, 0);
                    header.codec == CodecId::LOST.0 && header.checksum.get() == checksum
                });
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
        filling: Option<Filling>,
    ) -> Option<ExtentHeader> {
        let geometry = &self.geometry;
        let header = ExtentHeader::parse(bytes, geometry.header_bytes()).ok()?;
        let position = self.position_of(number) + at;
        let ours = header.cache == self.cache_id
            && u32::from(header.shard) == self.number
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

/// Whether what ends at `end` in filling `fill` was stable when the mark was written, which goes with its summary: all fillings
/// of that ring before it were.
fn is_stable(mark: DurableMark, fill: Sequence, end: u64) -> bool {
    fill < mark.fill || fill == mark.fill && end <= u64::from(mark.used)
}

#[cfg(test)]
mod tests {
    use flaz_sim::Rng;

    use super::*;
    use crate::format::geometry::GeometryWish;
    use crate::shard::log::Append;
    use crate::shard::simulated::{Disks, append, contents, raw};

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
                let note = first.log.borrow().durable_marks()[Ring::Main.index()].used;
                append(&first, Ring::Main, 0, Append::LOST);
                assert!(first.make_log_stable().await);
                if damaged {
                    let region = first.log.borrow().open_numbers()[Ring::Main.index()];
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

    /// What is damaged of a region that was full and stable.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Damage {
        /// A byte of its summary that is not in the trailer.
        Summary,
        /// The trailer.
        Trailer,
        /// A bit of the header of its extent of this number.
        Header(u32),
        /// All of that header.
        Gone(u32),
        /// The fragment of that one.
        Fragment(u32),
    }
    use Damage::{Fragment, Gone, Header, Summary as List, Trailer};

    /// Recovery after a region of three extents, with one dirty block each, was damaged in this way, and whether it finds them,
    /// and a fourth one that was stored after them: in another region, if this one was closed before.
    fn recovery_after(closed: bool, damage: &[Damage]) -> Result<Vec<bool>, RecoverError> {
        let disks = Disks::new(8 << 20, GeometryWish::default());
        let data: Vec<Vec<u8>> = (0..4)
            .map(|seed| {
                let mut data = vec![0; BLOCK_BYTES];
                Rng::new(seed).fill(&mut data);
                data
            })
            .collect();
        let (start, extents) = disks.sim.block_on(async {
            let first = disks.shard(1);
            let mut extents = Vec::new();
            for block in 0..3 {
                extents.push(first.log.borrow().durable_marks()[Ring::Main.index()].used);
                append(&first, Ring::Main, block, raw(&data[block as usize]));
                assert!(first.make_log_stable().await);
            }
            let region = first.log.borrow().open_numbers()[Ring::Main.index()].expect("one is open");
            if closed {
                first.log.borrow_mut().close_regions();
            }
            let last = first.log.borrow().durable_marks()[Ring::Main.index()].used;
            extents.push(if closed { 0 } else { last });
            append(&first, Ring::Main, 3, raw(&data[3]));
            assert!(first.make_log_stable().await);
            if closed {
                first.write_intents(0, &[], true).await.expect("it is well");
            }
            (disks.region(region), extents)
        });
        disks.sim.kill_tasks();
        let end = start + disks.geometry.region_bytes;
        for damage in damage {
            let position = match *damage {
                List => end - 80,
                Trailer => end - 64,
                Header(extent) => start + u64::from(extents[extent as usize]) + 8,
                Gone(extent) => {
                    let header = start + u64::from(extents[extent as usize]);
                    disks.cache.poke(header, &[0; 512]);
                    continue;
                }
                Fragment(extent) => {
                    start + u64::from(extents[extent as usize]) + disks.geometry.header_bytes() as u64 + 100
                }
            };
            disks.cache.flip_bit(position, 0);
        }
        disks.sim.block_on(async {
            let second = disks.shard(2);
            second.recover(|| ()).await?;
            let mut found = Vec::new();
            for (block, data) in data.iter().enumerate() {
                found.push(contents(&second, block as u64).await.as_ref() == Some(data));
            }
            Ok(found)
        })
    }

    /// Older copies of what such an extent hides would come back.
    #[test]
    fn a_damaged_header_hides_nothing_that_was_stable_beside_a_damaged_summary() {
        for summary in [List, Trailer] {
            let found = recovery_after(true, &[summary]).expect("the extents say the same");
            assert_eq!(found, [true; 4], "{summary:?}");
            for extent in 0..3 {
                // Of the first and the last one only the summary knows.
                if summary == List || extent == 1 {
                    let outcome = recovery_after(true, &[summary, Gone(extent)]);
                    assert!(
                        matches!(outcome, Err(RecoverError::Damaged { .. })),
                        "{summary:?}, extent {extent}: {outcome:?}"
                    );
                }
                // It is told when it is read.
                let found = recovery_after(true, &[summary, Fragment(extent)])
                    .expect("the headers say what is there");
                let expected: Vec<bool> = (0..4).map(|block| block != extent).collect();
                assert_eq!(found, expected, "{summary:?}, extent {extent}");
            }
        }
    }

    /// No mark tells that it was stable, but what was stored behind it does.
    #[test]
    fn a_damaged_header_hides_nothing_that_was_stable_in_a_region_that_is_being_filled() {
        for extent in 0..4 {
            let outcome = recovery_after(false, &[Header(extent)]);
            assert!(
                matches!(outcome, Err(RecoverError::Damaged { .. })),
                "extent {extent}: {outcome:?}"
            );
        }
        // Nothing of it is there: what lies behind tells, unless it is the first one of its region.
        for extent in 1..3 {
            let outcome = recovery_after(false, &[Gone(extent)]);
            assert!(
                matches!(outcome, Err(RecoverError::Damaged { .. })),
                "extent {extent}: {outcome:?}"
            );
        }
        for extent in 0..3 {
            let found = recovery_after(false, &[Fragment(extent)]).expect("the headers say what is there");
            let expected: Vec<bool> = (0..4).map(|block| block != extent).collect();
            assert_eq!(found, expected, "extent {extent}");
        }
    }

    /// What a crash has left behind a hole was never stable, and recovery has closed the region before it. That must not be
    /// taken for something that damage hides, should the summary be damaged later.
    #[test]
    fn what_a_crash_left_behind_a_hole_is_not_missed_later() {
        let disks = Disks::new(8 << 20, GeometryWish::default());
        let hole = disks.sim.block_on(async {
            let first = disks.shard(1);
            let mut hole = 0;
            // On their way together: none of them says that one before it was stable.
            for block in 0..3 {
                if block == 1 {
                    hole = first.log.borrow().durable_marks()[Ring::Main.index()].used;
                }
                append(
                    &first,
                    Ring::Main,
                    block,
                    Append::Fill {
                        value: 1,
                        dirty: true,
                    },
                );
                first.log.borrow_mut().seal_all();
            }
            assert!(first.make_log_stable().await);
            u64::from(hole)
        });
        disks.sim.kill_tasks();
        let start = disks.region(0);
        disks.cache.poke(start + hole, &[0; 512]);
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            append(
                &second,
                Ring::Main,
                3,
                Append::Fill {
                    value: 1,
                    dirty: true,
                },
            );
            assert!(second.make_log_stable().await);
            second.write_intents(0, &[], true).await.expect("it is well");
        });
        disks.sim.kill_tasks();
        disks.cache.flip_bit(start + disks.geometry.region_bytes - 80, 0);
        disks.sim.block_on(async {
            let third = disks.recovered(3).await;
            for (block, value) in [(0, 1), (1, 0), (2, 0), (3, 1)] {
                assert_eq!(
                    contents(&third, block).await,
                    Some(vec![value; BLOCK_BYTES]),
                    "block {block}"
                );
            }
        });
    }

    /// A region of which the end alone cannot be read, and that is full up to there.
    #[test]
    fn an_unreadable_summary_of_a_full_region_is_done_without() {
        let disks = Disks::new(8 << 20, GeometryWish::default());
        let mut data = vec![0; BLOCK_BYTES];
        Rng::new(1).fill(&mut data);
        let (region, blocks) = disks.sim.block_on(async {
            let first = disks.shard(1);
            let open = || first.log.borrow().open_numbers()[Ring::Main.index()];
            append(&first, Ring::Main, 0, raw(&data));
            let region = open().expect("one is open");
            let mut blocks = 1;
            while open() == Some(region) {
                append(&first, Ring::Main, blocks, raw(&data));
                blocks += 1;
                if blocks % 8 == 0 {
                    assert!(first.make_log_stable().await);
                }
            }
            assert!(first.make_log_stable().await);
            first.write_intents(0, &[], true).await.expect("it is well");
            (disks.region(region), blocks)
        });
        disks.sim.kill_tasks();
        let sector = u64::from(disks.geometry.sector_bytes);
        disks
            .cache
            .mark_bad(region + disks.geometry.region_bytes - sector, sector);
        disks.sim.block_on(async {
            let second = disks.recovered(2).await;
            for block in 0..blocks {
                assert_eq!(
                    contents(&second, block).await.as_ref(),
                    Some(&data),
                    "block {block}"
                );
            }
        });
    }
}
