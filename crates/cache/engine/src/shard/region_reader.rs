//! Reads the contents of a region: from its summary, or by walking the headers of its extents. Used by recovery, reclaim
//! and `flaz check`.
//!
//! The manifest says what must be present. A full region must be complete: without a readable summary the walk has to reach
//! its end. An open region must be complete up to the stable length. Beyond it the walk accepts whole extents up to the
//! first gap, because writes in flight may have landed in any order.

use std::cell::Cell;

use flaz_device::deadline::is_timeout;
use flaz_device::{Device, DeviceError, IoBuf};

use crate::format::extent::{ExtentHeader, Record, records};
use crate::format::layout::Layout;
use crate::format::manifest::{ManifestEntry, RegionUse};
use crate::format::summary::{Summary, SummaryExtent, check_extents, summary_bytes, summary_bytes_max};
use crate::planted::{PlantedBug, planted};
use crate::stats::count;
use crate::units::Sequence;

/// Bytes of the first read of a region's end: for the first regions, and the minimum and maximum for later ones, where the
/// longest summary so far is used.
const SUMMARY_GUESS_BYTES: u64 = 64 << 10;
const SUMMARY_GUESS_MIN: u64 = 4 << 10;
const SUMMARY_GUESS_MAX: u64 = 512 << 10;
/// Number of summaries from which the length of others is estimated.
const SUMMARIES_SEEN: usize = 8;
/// Attempts to read something that fails its checks: a single read may be wrong.
const READS_MAX: u32 = 2;

/// The region to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionPlace<'a> {
    pub(crate) layout: &'a Layout,
    /// First four bytes of the cache's UUID.
    pub(crate) cache_id: u32,
    pub(crate) shard: u32,
    pub(crate) number: u32,
}

impl RegionPlace<'_> {
    /// Start of the region on the device.
    pub(crate) fn device_offset(&self) -> u64 {
        self.layout.region_offset(self.shard, self.number)
    }
}

/// The contents of a region.
#[derive(Debug, Default)]
pub(crate) struct RegionContents {
    pub(crate) extents: Vec<SummaryExtent>,
    /// The packed records of all extents, in order.
    pub(crate) records: Vec<u64>,
    /// Used bytes from the region's start.
    pub(crate) used: u32,
    /// The summary was readable.
    pub(crate) has_summary: bool,
    pub(crate) bytes_read: u64,
}

impl RegionContents {
    /// The highest sequence in it.
    pub(crate) fn last_sequence(&self) -> Option<Sequence> {
        self.extents.last().map(|extent| extent.sequence)
    }

    /// Each extent with its packed records.
    pub(crate) fn records_by_extent(&self) -> impl Iterator<Item = (&SummaryExtent, &[u64])> {
        let mut rest = &self.records[..];
        self.extents.iter().map(move |extent| {
            let (records, behind) = rest.split_at(usize::from(extent.record_count));
            rest = behind;
            (extent, records)
        })
    }
}

/// The records of an extent up to the first invalid one, each with the offset of its fragment in the region.
pub(crate) fn located<'a>(
    extent: &SummaryExtent,
    records: &'a [u64],
) -> impl Iterator<Item = (Record, u64)> + use<'a> {
    let start = u64::from(extent.offset);
    let mut at = start + u64::from(extent.header_bytes);
    let end = start + u64::from(extent.len);
    records.iter().map_while(move |&bits| {
        let record = Record::unpack(bits).ok()?;
        let place = record.place((at - start) as usize);
        at = start + place.end as u64;
        (at <= end).then(|| (record, start + place.start as u64))
    })
}

/// The result of reading a region.
#[derive(Debug)]
pub(crate) enum Found {
    Contents(RegionContents),
    /// Stable data is missing.
    Damaged(String),
}

/// Lengths of summaries so far.
#[derive(Debug, Default)]
pub(crate) struct Guess {
    longest: Cell<u64>,
    seen: Cell<usize>,
}

impl Guess {
    /// The bytes of a region's end to read.
    fn bytes(&self) -> u64 {
        if self.seen.get() < SUMMARIES_SEEN {
            return SUMMARY_GUESS_BYTES;
        }
        self.longest
            .get()
            .next_multiple_of(SUMMARY_GUESS_MIN)
            .clamp(SUMMARY_GUESS_MIN, SUMMARY_GUESS_MAX)
    }

    fn learn(&self, bytes: u64) {
        self.longest.set(self.longest.get().max(bytes));
        self.seen.set(self.seen.get() + 1);
    }
}

/// Reads the extents and records of a region that is in use. Reads of the device that fail are added to `failed`, also if other
/// structures have what they were for.
///
/// # Errors
/// The device's, after several attempts, if no other structure has the contents: an unreadable extent may have been
/// acknowledged.
pub(crate) async fn read_region<D: Device>(
    device: &D,
    place: &RegionPlace<'_>,
    entry: &ManifestEntry,
    guess: &Guess,
    failed: &Cell<u64>,
) -> Result<Found, DeviceError> {
    assert!(entry.state != RegionUse::Free, "nothing is read of a free region");
    let mut reader = Reader {
        device,
        place,
        entry,
        failed,
        bytes_read: 0,
    };
    let is_full = matches!(entry.state, RegionUse::Full | RegionUse::Reclaiming);
    let mut contents = None;
    for _ in 0..READS_MAX {
        if is_full && contents.is_none() {
            contents = reader.by_summary(guess).await?;
        }
    }
    let contents = match contents {
        Some(contents) => contents,
        None => reader.walk(is_full).await?,
    };
    assert!(u64::from(contents.used) <= place.layout.region_bytes);
    assert!(contents.extents.is_sorted_by(|a, b| a.sequence < b.sequence));
    if contents.used < entry.len {
        return Ok(Found::Damaged(format!(
            "region {} has {} readable bytes of extents, {} were stable",
            place.number, contents.used, entry.len
        )));
    }
    Ok(Found::Contents(RegionContents {
        bytes_read: reader.bytes_read,
        ..contents
    }))
}

struct Reader<'a, D> {
    device: &'a D,
    place: &'a RegionPlace<'a>,
    entry: &'a ManifestEntry,
    failed: &'a Cell<u64>,
    bytes_read: u64,
}

impl<D: Device> Reader<'_, D> {
    /// Reads part of the region.
    async fn read(&mut self, offset: u64, len: u64) -> Result<IoBuf, DeviceError> {
        let wide = len.next_multiple_of(u64::from(self.device.alignment()));
        self.bytes_read += wide;
        let position = self.place.device_offset() + offset;
        let (mut buf, result) = self.device.read_at(position, IoBuf::new(wide as usize)).await;
        count(self.failed, u64::from(result.is_err()));
        result?;
        buf.set_len(len as usize);
        Ok(buf)
    }

    /// Reads redundant data. `None`: it cannot be read.
    async fn read_spare(&mut self, offset: u64, len: u64) -> Result<Option<IoBuf>, DeviceError> {
        match self.read(offset, len).await {
            Err(error) if !is_timeout(&error) => {
                let (shard, region) = (self.place.shard, self.place.number);
                tracing::warn!(shard, region, %error, "part of a region cannot be read");
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Reads part of the region by pieces. Those that cannot be read are zero.
    async fn read_pieces(&mut self, offset: u64, len: u64) -> Result<IoBuf, DeviceError> {
        let piece = self.place.layout.sector_bytes.max(self.device.alignment()) as usize;
        let mut bytes = IoBuf::zeroed(len as usize);
        for at in (0..bytes.len()).step_by(piece) {
            let end = (at + piece).min(bytes.len());
            match self.read(offset + at as u64, (end - at) as u64).await {
                Ok(read) => bytes[at..end].copy_from_slice(&read),
                Err(error) if is_timeout(&error) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(bytes)
    }

    async fn by_summary(&mut self, guess: &Guess) -> Result<Option<RegionContents>, DeviceError> {
        let geometry = self.place.layout;
        let (region_bytes, sector) = (geometry.region_bytes, u64::from(geometry.sector_bytes));
        let first = guess.bytes().min(region_bytes);
        let Some(mut tail) = self.read_spare(region_bytes - first, first).await? else {
            return Ok(None);
        };
        let Ok(len) = Summary::parse_len(&tail, summary_bytes_max(geometry)) else {
            return Ok(None);
        };
        if len as u64 > first {
            let len = (len as u64).next_multiple_of(sector);
            let Some(all) = self.read_spare(region_bytes - len, len).await? else {
                return Ok(None);
            };
            tail = all;
        }
        let contents = Summary::parse(&tail).ok().and_then(|summary| self.check(summary));
        if let Some(contents) = &contents {
            guess.learn(summary_bytes(
                contents.extents.len(),
                contents.records.len(),
                geometry.sector_bytes,
            ));
        }
        Ok(contents)
    }

    /// The records of a summary, if it belongs to this generation.
    fn check(&self, summary: Summary) -> Option<RegionContents> {
        let used = check_extents(&summary.extents, self.place.layout).ok()?;
        let ours = summary.cache == self.place.cache_id
            && summary.shard == self.place.shard
            && summary.position == self.place.device_offset()
            && summary.generation == self.entry.generation
            && summary.ring == self.entry.ring
            && used == u64::from(self.entry.len);
        // The generation is older than all extents of the region.
        let first = summary.extents.first().map(|extent| extent.sequence);
        let ascending = first.is_none_or(|first| first > self.entry.generation)
            && summary.extents.is_sorted_by(|a, b| a.sequence < b.sequence);
        let few = summary.records.len() <= self.place.layout.region_records_max();
        (ours && ascending && few).then_some(RegionContents {
            used: used as u32,
            extents: summary.extents,
            records: summary.records,
            has_summary: true,
            bytes_read: 0,
        })
    }

    /// Reads the headers of the extents, from the region's start to the first place without one.
    async fn walk(&mut self, is_full: bool) -> Result<RegionContents, DeviceError> {
        let geometry = self.place.layout;
        let header_bytes = geometry.header_bytes() as u64;
        let stable = u64::from(self.entry.len);
        let mut contents = RegionContents::default();
        loop {
            let at = u64::from(contents.used);
            // The place of the summary has no header and may be unreadable.
            let behind = summary_bytes(
                contents.extents.len() + 1,
                contents.records.len(),
                geometry.sector_bytes,
            );
            if at + header_bytes + behind > geometry.region_bytes || is_full && at >= stable {
                break;
            }
            let last = contents.last_sequence();
            let Some((header, list)) = self.header_or_copy(at, last).await? else {
                break;
            };
            let end = at + u64::from(header.extent_bytes);
            let records_now = contents.records.len() + list.len();
            let summary = summary_bytes(contents.extents.len() + 1, records_now, geometry.sector_bytes);
            // Writers reserve space for the summary, so extents beyond that were not written by flaz.
            if end + summary > geometry.region_bytes || records_now > geometry.region_records_max() {
                break;
            }
            if end > stable && !self.is_whole(at, &header).await? {
                break;
            }
            contents.extents.push(SummaryExtent {
                offset: at as u32,
                len: header.extent_bytes,
                sequence: header.sequence,
                epoch: header.epoch,
                record_count: header.record_count,
                header_bytes: header.header_bytes,
            });
            contents.records.extend(list);
            contents.used = end as u32;
        }
        Ok(contents)
    }

    /// The header at `at` and its records, if it belongs to this generation. Below the stable length, where an extent must be,
    /// its copy is as good. Behind it, an extent without a header has not landed.
    async fn header_or_copy(
        &mut self,
        at: u64,
        last: Option<Sequence>,
    ) -> Result<Option<(ExtentHeader, Vec<u64>)>, DeviceError> {
        let stable = u64::from(self.entry.len);
        match self.header_at(at, last).await {
            Err(error) if is_timeout(&error) => Err(error),
            Err(error) if at < stable => self
                .copy_behind(at, last)
                .await?
                .map_or(Err(error), |copy| Ok(Some(copy))),
            Ok(None) if at < stable => self.copy_behind(at, last).await,
            read => read,
        }
    }

    /// The copy of the header of the extent at `at`, which is damaged: at the end of a sector, because the length is unknown.
    async fn copy_behind(
        &mut self,
        at: u64,
        last: Option<Sequence>,
    ) -> Result<Option<(ExtentHeader, Vec<u64>)>, DeviceError> {
        let geometry = self.place.layout;
        let sector = geometry.sector_bytes as usize;
        let longest = u64::from(geometry.extent_bytes).min(u64::from(self.entry.len) - at);
        let bytes = match self.read_spare(at, longest).await? {
            Some(bytes) => bytes,
            None => self.read_pieces(at, longest).await?,
        };
        {
            for end in (sector..=bytes.len()).step_by(sector) {
                let Ok((header, list)) = ExtentHeader::parse_copy(&bytes[..end], geometry.header_bytes())
                else {
                    continue;
                };
                if self.is_ours(&header, at, last) && u64::from(header.extent_bytes) == end as u64 {
                    let (shard, region) = (self.place.shard, self.place.number);
                    tracing::warn!(
                        shard,
                        region,
                        at,
                        "the header of an extent is damaged; its copy is used"
                    );
                    return Ok(Some((header, list)));
                }
            }
        }
        Ok(None)
    }

    /// The header at `at` and its records, if it belongs to this generation.
    async fn header_at(
        &mut self,
        at: u64,
        last: Option<Sequence>,
    ) -> Result<Option<(ExtentHeader, Vec<u64>)>, DeviceError> {
        let header_bytes = self.place.layout.header_bytes();
        let mut unreadable = None;
        for _ in 0..READS_MAX {
            let bytes = match self.read(at, header_bytes as u64).await {
                Ok(bytes) => bytes,
                Err(error) if is_timeout(&error) => return Err(error),
                Err(error) => {
                    unreadable = Some(error);
                    continue;
                }
            };
            unreadable = None;
            let header = ExtentHeader::parse(&bytes, header_bytes).ok();
            if let Some(header) = header.filter(|header| self.is_ours(header, at, last)) {
                return Ok(Some((header, records(&bytes, header.record_count).collect())));
            }
        }
        unreadable.map_or(Ok(None), Err)
    }

    fn is_ours(&self, header: &ExtentHeader, at: u64, last: Option<Sequence>) -> bool {
        let geometry = self.place.layout;
        let placed = header.cache == self.place.cache_id
            && u32::from(header.shard) == self.place.shard
            && header.position == self.place.device_offset() + at
            && header.generation == self.entry.generation
            && header.ring == self.entry.ring;
        let length = header.extent_bytes.is_multiple_of(geometry.sector_bytes)
            && header.extent_bytes as usize >= geometry.header_bytes()
            && header.extent_bytes <= geometry.extent_bytes;
        // The generation is older than all extents of the region.
        placed && length && header.sequence > last.unwrap_or(self.entry.generation)
    }

    /// Whether an extent has its contents: a header may have landed without them.
    async fn is_whole(&mut self, at: u64, header: &ExtentHeader) -> Result<bool, DeviceError> {
        if planted(PlantedBug::TornExtentCounts) {
            return Ok(true);
        }
        let mut unreadable = None;
        for _ in 0..READS_MAX {
            match self.read(at, u64::from(header.extent_bytes)).await {
                Ok(bytes) if header.is_whole(&bytes) => return Ok(true),
                Ok(_) => unreadable = None,
                Err(error) if is_timeout(&error) => return Err(error),
                Err(error) => unreadable = Some(error),
            }
        }
        unreadable.map_or(Ok(false), Err)
    }
}

#[cfg(test)]
mod tests;
