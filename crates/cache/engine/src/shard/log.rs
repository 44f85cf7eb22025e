//! The log: open extents that take fragments, sealed extents on their way to the device, regions being filled.
//!
//! Appending is synchronous: a fragment's location is fixed when it is appended, and until its extent has
//! landed it is served from memory. Writing is somebody else's task: [`Log::take_write`] hands out sealed
//! extents and region summaries, [`Log::written`] takes the news back.
//!
//! Invariants: one open extent and one open region a ring at most; extents of a region lie back to back in
//! sequence order; space for the summary is kept free at the region's end.

mod append;

use std::collections::VecDeque;

use flaz_codec::CodecId;
use flaz_device::IoBuf;

use crate::format::extent::{
    EXTENT_HEADER_BYTES, ExtentHeader, FRAGMENT_HEADER_BYTES, FragmentHeader, FragmentIdentity, RECORD_BYTES,
    Record, RecordKind,
};
use crate::format::geometry::Geometry;
use crate::format::intent::DurableMark;
use crate::format::summary::{Summary, SummaryExtent, summary_bytes};
use crate::index::Entry;
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::shard::regions::{FREE_REGIONS_RESERVED, RegionState, Regions};
use crate::units::{Epoch, Location, Sequence};
use zerocopy::IntoBytes;

pub(super) use append::Append;

/// Sealed extents and summaries that may be on their way to the device at a time.
pub const WRITES_IN_FLIGHT_MAX: usize = 8;
/// Share of an open region from which the next one is seen to: three quarters.
const NEARLY_FULL: (u64, u64) = (3, 4);

#[derive(Debug)]
struct OpenExtent {
    /// Byte offset in the region.
    offset: u32,
    landing: Landing,
    buf: IoBuf,
    used: usize,
    records: Vec<u64>,
}

#[derive(Debug)]
struct OpenRegion {
    number: u32,
    /// Bytes from its start that are known to be stable.
    stable_bytes: u32,
    extents: Vec<SummaryExtent>,
    records: Vec<u64>,
    extent: Option<OpenExtent>,
}

/// An extent, by its region and the order in which extents were opened. See [`Log::landed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Landing {
    region: u32,
    number: u64,
    /// Where in the region it begins.
    offset: u32,
}

/// An extent that is open or on its way, or that will never be sent.
#[derive(Debug)]
struct Airborne {
    landing: Landing,
    /// The device has been given it.
    sent: bool,
    /// Dirty blocks move here: where they were may not be looked for any more.
    moves_dirty: bool,
}

/// A write that waits for the device.
#[derive(Debug)]
pub(super) struct PendingWrite {
    pub(super) region: u32,
    /// Byte offset on the cache device.
    pub(super) position: u64,
    /// Where the extent starts in the shard's part; `None` for a summary.
    pub(super) extent: Option<Location>,
    pub(super) buf: IoBuf,
    /// Order in which it was queued.
    pub(super) ticket: u64,
    /// Which extent it is; `None` for a summary.
    pub(super) landing: Option<Landing>,
}

/// An extent that is sealed and not yet on the device: still read from memory.
#[derive(Debug)]
struct Flushing {
    start: u64,
    buf: IoBuf,
}

/// Identity of the shard for what it writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogIdentity {
    pub(super) cache: u32,
    pub(super) shard: u32,
    pub(super) epoch: Epoch,
}

#[derive(Debug)]
pub(super) struct Log {
    geometry: Geometry,
    identity: LogIdentity,
    pub(super) regions: Regions,
    pub(super) next_sequence: Sequence,
    open: [Option<OpenRegion>; 2],
    flushing: Vec<Flushing>,
    queue: VecDeque<PendingWrite>,
    /// Summaries that wait until their region's extents are written.
    summaries: VecDeque<PendingWrite>,
    writes_in_flight: usize,
    /// Tickets of the writes that are queued or in flight, ascending.
    outstanding: VecDeque<u64>,
    last_ticket: u64,
    last_abandoned: u64,
    /// In the order in which they were opened.
    airborne: Vec<Airborne>,
    last_opened: u64,
    /// Reclaim moves what may not be dropped: once it has taken the reserved region, what is left is its own.
    pub(super) held_for_reclaim: bool,
    finishing: VecDeque<u32>,
    /// Somebody waits for a region.
    starving: bool,
}

impl Log {
    pub(super) fn new(geometry: Geometry, identity: LogIdentity) -> Self {
        Self {
            geometry,
            identity,
            regions: Regions::all_free(geometry.regions_per_shard),
            // Unlike that of any earlier epoch, so that what a cold start leaves on the medium never fits.
            next_sequence: Sequence(Sequence::first_of(identity.epoch).0 | 1),
            open: [None, None],
            flushing: Vec::new(),
            queue: VecDeque::new(),
            summaries: VecDeque::new(),
            writes_in_flight: 0,
            outstanding: VecDeque::new(),
            last_ticket: 0,
            last_abandoned: 0,
            airborne: Vec::new(),
            last_opened: 0,
            held_for_reclaim: false,
            finishing: VecDeque::new(),
            starving: false,
        }
    }

    pub(super) fn region_of(&self, location: Location) -> u32 {
        (location.offset() / self.geometry.region_bytes) as u32
    }

    /// The identity that a fragment of `block` has (or would have) at `location`.
    pub(super) fn identity_at(
        &self,
        block: crate::units::BlockNumber,
        location: Location,
    ) -> FragmentIdentity {
        let fill = self.regions.fill_of(self.region_of(location));
        FragmentIdentity {
            cache: self.identity.cache,
            volume: 0,
            block,
            location,
            fill,
        }
    }

    /// Appends to `ring`. `None`: no room now, because no region is free or too many writes are in flight.
    /// Returns the index entry (meaningless for a tombstone).
    pub(super) fn append(
        &mut self,
        ring: Ring,
        block: crate::units::BlockNumber,
        what: Append<'_>,
        for_reclaim: bool,
    ) -> Option<Entry> {
        if self.held_for_reclaim && !for_reclaim && self.regions.free_len() < FREE_REGIONS_RESERVED {
            return None;
        }
        let bytes = what.fragment_bytes();
        self.make_room(ring, bytes, for_reclaim)?;
        let slot = usize::from(ring.number());
        let open = self.open[slot].as_mut().expect("room was made");
        let extent = open.extent.as_mut().expect("room was made");
        let extent_start = u64::from(open.number) * self.geometry.region_bytes + u64::from(extent.offset);
        let location = Location::at(extent_start + extent.used as u64);
        let fill = self.regions.fill_of(open.number);
        let identity = FragmentIdentity {
            cache: self.identity.cache,
            volume: 0,
            block,
            location,
            fill,
        };
        let place = &mut extent.buf[extent.used..extent.used + bytes];
        let (kind, entry) = match what {
            Append::Packed {
                codec,
                stored,
                plain_crc,
                dirty,
            } => {
                let len = stored.len() as u16;
                let checksum = crate::format::extent::fragment_checksum(&identity, len, codec, plain_crc);
                write_fragment(place, checksum, codec, stored);
                (
                    RecordKind::Fragment { stored: len, dirty },
                    Entry::fragment(location, FRAGMENT_HEADER_BYTES + stored.len()),
                )
            }
            Append::Moved {
                header,
                stored,
                from,
                dirty,
            } => {
                let checksum = crate::format::extent::moved_checksum(&header, &from, &identity);
                write_fragment(place, checksum, CodecId(header.codec), stored);
                let len = stored.len() as u16;
                (
                    RecordKind::Fragment { stored: len, dirty },
                    Entry::fragment(location, FRAGMENT_HEADER_BYTES + stored.len()),
                )
            }
            Append::Fill { value, dirty } => (
                RecordKind::Fill { value, dirty },
                Entry::fill(Location::at(extent_start), value),
            ),
            Append::Tombstone => (RecordKind::Tombstone, Entry::fill(Location::at(extent_start), 0)),
            Append::Cleaned => (RecordKind::Cleaned, Entry::fill(Location::at(extent_start), 0)),
        };
        if for_reclaim && what.is_dirty() {
            let landing = extent.landing;
            let airborne = self.airborne.iter_mut().rfind(|other| other.landing == landing);
            airborne.expect("it is open").moves_dirty = true;
        }
        extent.used += bytes;
        extent.records.push(
            Record {
                volume: 0,
                block,
                kind,
            }
            .pack(),
        );
        Some(entry)
    }

    /// Makes sure that the open extent of `ring` takes one more record and `bytes` bytes.
    fn make_room(&mut self, ring: Ring, bytes: usize, for_reclaim: bool) -> Option<()> {
        let slot = usize::from(ring.number());
        let header_bytes = self.geometry.header_bytes();
        let records_max = (header_bytes - EXTENT_HEADER_BYTES) / RECORD_BYTES;
        loop {
            if let Some(open) = &self.open[slot] {
                if let Some(extent) = &open.extent {
                    if extent.records.len() < records_max && extent.used + bytes <= extent.buf.len() {
                        return Some(());
                    }
                    if !self.may_write(for_reclaim) {
                        return None;
                    }
                    self.seal(ring);
                    continue;
                }
                if self.open_extent(ring, bytes) {
                    continue;
                }
                if !self.may_write(for_reclaim) {
                    return None;
                }
                self.close_region(ring);
                continue;
            }
            let taken = self.regions.take(ring, self.next_sequence, for_reclaim);
            self.starving |= taken.is_none();
            let number = taken?;
            self.next_sequence = Sequence(self.next_sequence.0 + 1);
            self.starving = false;
            self.open[slot] = Some(OpenRegion {
                number,
                stable_bytes: 0,
                extents: Vec::new(),
                records: Vec::new(),
                extent: None,
            });
        }
    }

    /// Whether a region must be reclaimed now: none is left but the reserved one, and one will be needed soon.
    ///
    /// Not earlier: a region that is free longer than it must be is cache that holds nothing.
    pub(super) fn wants_reclaim(&self) -> bool {
        if self.regions.free_len() > FREE_REGIONS_RESERVED {
            return false;
        }
        let nearly_full = |open: &OpenRegion| {
            u64::from(self.regions.at(open.number).used) * NEARLY_FULL.1
                >= self.geometry.region_bytes * NEARLY_FULL.0
        };
        self.starving || self.open.iter().flatten().any(nearly_full)
    }

    /// Reclaim may queue twice as much, so that it never waits behind what waits for it.
    fn may_write(&self, for_reclaim: bool) -> bool {
        let limit = if for_reclaim {
            2 * WRITES_IN_FLIGHT_MAX
        } else {
            WRITES_IN_FLIGHT_MAX
        };
        self.writes_in_flight() < limit
    }

    /// Opens the next extent of the open region of `ring`, for `bytes` bytes at least; false if the region is full.
    fn open_extent(&mut self, ring: Ring, bytes: usize) -> bool {
        let geometry = &self.geometry;
        let header_bytes = geometry.header_bytes();
        let records_max = (header_bytes - EXTENT_HEADER_BYTES) / RECORD_BYTES;
        let open = self.open[usize::from(ring.number())]
            .as_mut()
            .expect("a region is open");
        let used = u64::from(self.regions.at(open.number).used);
        let summary = summary_bytes(
            open.extents.len() + 1,
            open.records.len() + records_max,
            geometry.sector_bytes,
        );
        let room = geometry
            .region_bytes
            .saturating_sub(used + summary)
            .min(u64::from(geometry.extent_bytes));
        let room = room as usize / geometry.sector_bytes as usize * geometry.sector_bytes as usize;
        if room < header_bytes + bytes || open.records.len() + records_max > geometry.region_records_max() {
            return false;
        }
        self.last_opened += 1;
        let landing = Landing {
            region: open.number,
            number: self.last_opened,
            offset: used as u32,
        };
        self.airborne.push(Airborne {
            landing,
            sent: false,
            moves_dirty: false,
        });
        open.extent = Some(OpenExtent {
            offset: used as u32,
            landing,
            buf: IoBuf::new(room),
            used: header_bytes,
            records: Vec::with_capacity(records_max),
        });
        true
    }

    /// Closes the open extent of `ring` and queues it for writing.
    fn seal(&mut self, ring: Ring) {
        let geometry = self.geometry;
        let Some(open) = self.open[usize::from(ring.number())].as_mut() else {
            return;
        };
        let Some(mut extent) = open.extent.take() else {
            return;
        };
        let len = extent.used.next_multiple_of(geometry.sector_bytes as usize);
        extent.buf[extent.used..len].fill(0);
        extent.buf.set_len(len);
        let start = u64::from(open.number) * geometry.region_bytes + u64::from(extent.offset);
        let position = geometry.shard_offset(self.identity.shard) + start;
        let sequence = self.next_sequence;
        self.next_sequence = Sequence(sequence.0 + 1);
        let header = ExtentHeader {
            cache: self.identity.cache,
            extent_bytes: len as u32,
            sequence,
            fill: self.regions.fill_of(open.number),
            position,
            flushes: 0,
            epoch: self.identity.epoch,
            record_count: extent.records.len() as u16,
            shard: self.identity.shard as u16,
            ring,
            stable_bytes: open.stable_bytes,
        };
        header.write(&extent.records, geometry.header_bytes(), &mut extent.buf);
        self.regions.add_used(open.number, len as u32);
        self.regions.write_queued(open.number);
        open.extents.push(SummaryExtent {
            offset: extent.offset,
            len: len as u32,
            sequence,
            epoch: self.identity.epoch,
            record_count: extent.records.len() as u16,
        });
        // A quarter more at a time: doubling would hold twice what a small cache needs.
        if open.records.capacity() - open.records.len() < extent.records.len() {
            open.records
                .reserve_exact(extent.records.len().max(open.records.len() / 4));
        }
        open.records.extend_from_slice(&extent.records);
        let copy = IoBuf::copy_of(&extent.buf);
        let ticket = take_ticket(&mut self.last_ticket, &mut self.outstanding);
        self.flushing.push(Flushing {
            start,
            buf: extent.buf,
        });
        self.queue.push_back(PendingWrite {
            region: open.number,
            position,
            extent: Some(Location::at(start)),
            buf: copy,
            ticket,
            landing: Some(extent.landing),
        });
    }

    /// Ends the open region of `ring`: its summary is queued, and it enters the ring when all is written.
    fn close_region(&mut self, ring: Ring) {
        let Some(open) = self.open[usize::from(ring.number())].take() else {
            return;
        };
        let geometry = &self.geometry;
        let start = u64::from(open.number) * geometry.region_bytes;
        let len = summary_bytes(open.extents.len(), open.records.len(), geometry.sector_bytes);
        let summary = Summary {
            cache: self.identity.cache,
            shard: self.identity.shard,
            ring,
            fill: self.regions.fill_of(open.number),
            position: geometry.shard_offset(self.identity.shard) + start,
            extents: open.extents,
            records: open.records,
        };
        let mut buf = IoBuf::new(len as usize);
        summary.write(&mut buf);
        self.regions.write_queued(open.number);
        self.finishing.push_back(open.number);
        let ticket = take_ticket(&mut self.last_ticket, &mut self.outstanding);
        self.summaries.push_back(PendingWrite {
            region: open.number,
            position: summary.position + geometry.region_bytes - len,
            extent: None,
            buf,
            ticket,
            landing: None,
        });
    }

    /// Ends both regions that are being filled. Neither must wait for room: a summary has its place.
    pub(super) fn close_regions(&mut self) {
        for ring in Ring::ALL {
            self.seal_ring(ring);
            // A region without an extent is as good as a new one, and no summary of nothing would be believed.
            let open = self.open[ring.index()].as_ref();
            if open.is_some_and(|open| !open.extents.is_empty()) {
                self.close_region(ring);
            }
        }
    }

    /// Ends a region that is being filled, wherever it is.
    pub(super) fn abandon(&mut self, region: u32) {
        let ring = Ring::ALL.into_iter().find(|ring| {
            self.open[ring.index()]
                .as_ref()
                .is_some_and(|open| open.number == region)
        });
        if let Some(ring) = ring {
            self.seal_ring(ring);
            self.close_region(ring);
        }
        // It may have been ended before: then its summary waits for its last extents.
        let summary = self.summaries.iter().rfind(|summary| summary.region == region);
        if let Some(summary) = summary {
            self.last_abandoned = self.last_abandoned.max(summary.ticket);
        }
    }

    /// The ticket of the summary of the region that was abandoned last. Before it is there, recovery finds nothing of what
    /// comes behind the missing extent.
    pub(super) fn last_abandoned(&self) -> u64 {
        self.last_abandoned
    }

    /// The ticket of the write that was queued last.
    pub(super) fn last_queued(&self) -> u64 {
        self.last_ticket
    }

    /// Whether every write up to `ticket` has ended.
    pub(super) fn all_written(&self, ticket: u64) -> bool {
        self.outstanding.front().is_none_or(|&oldest| oldest > ticket)
    }

    /// The regions that are being filled, by ring.
    pub(super) fn open_numbers(&self) -> [Option<u32>; 2] {
        Ring::ALL.map(|ring| self.open[ring.index()].as_ref().map(|open| open.number))
    }

    /// How far the open regions are filled with sealed extents.
    pub(super) fn durable_marks(&self) -> [DurableMark; 2] {
        Ring::ALL.map(|ring| {
            self.open[ring.index()]
                .as_ref()
                .map_or_else(DurableMark::default, |open| {
                    let region = self.regions.at(open.number);
                    DurableMark {
                        fill: region.fill,
                        used: region.used,
                    }
                })
        })
    }

    /// How far the open regions are filled with extents that are on the device, one behind the other.
    pub(super) fn landed_marks(&self) -> [DurableMark; 2] {
        let mut marks = self.durable_marks();
        for (mark, open) in marks.iter_mut().zip(&self.open) {
            let airborne = (self.airborne.iter().map(|other| other.landing))
                .filter(|landing| open.as_ref().is_some_and(|open| open.number == landing.region));
            mark.used = airborne.map(|landing| landing.offset).fold(mark.used, u32::min);
        }
        marks
    }

    /// Rings of which a region has ended that is not on the device yet, summary and all: a mark of a later one would say that it
    /// is.
    pub(super) fn rings_behind(&self) -> [bool; 2] {
        Ring::ALL.map(|ring| {
            let mut ended = self.finishing.iter();
            ended.any(|&number| self.regions.ring_of(number) == ring)
        })
    }

    /// What these marks say is stable: extents that are closed from now on say so, too.
    pub(super) fn note_stable(&mut self, marks: [DurableMark; 2]) {
        for (open, mark) in self.open.iter_mut().zip(marks) {
            if let Some(open) = open
                && self.regions.fill_of(open.number) == mark.fill
            {
                open.stable_bytes = open.stable_bytes.max(mark.used);
            }
        }
    }

    /// Seals both open extents, however full.
    pub(super) fn seal_all(&mut self) {
        for ring in Ring::ALL {
            self.seal_ring(ring);
        }
    }

    /// Seals the open extent of `ring`, however full.
    pub(super) fn seal_ring(&mut self, ring: Ring) {
        let has_records = self.open[ring.index()]
            .as_ref()
            .and_then(|open| open.extent.as_ref())
            .is_some_and(|extent| !extent.records.is_empty());
        if has_records {
            self.seal(ring);
        } else if let Some(open) = self.open[ring.index()].as_mut()
            && let Some(empty) = open.extent.take()
        {
            self.airborne.retain(|other| other.landing != empty.landing);
        }
    }

    /// The next write for the device, if the limit allows one. Before a summary the device must be flushed: recovery
    /// believes that what a summary lists is there.
    pub(super) fn take_write(&mut self) -> Option<PendingWrite> {
        if self.writes_in_flight >= WRITES_IN_FLIGHT_MAX {
            return None;
        }
        let alone = |summary: &PendingWrite| self.regions.writes_of(summary.region) == 1;
        let ready = self.summaries.iter().position(alone);
        let write = match ready {
            Some(at) => self.summaries.remove(at)?,
            None => self.queue.pop_front()?,
        };
        self.writes_in_flight += 1;
        Some(write)
    }

    /// Whether an extent goes to the device also when that has been given up.
    pub(super) fn must_be_sent(&self, landing: Landing) -> bool {
        (self.airborne.iter()).any(|other| other.landing == landing && other.moves_dirty)
    }

    /// The device is given an extent.
    pub(super) fn note_sent(&mut self, landing: Landing) {
        if let Some(other) = self.airborne.iter_mut().find(|other| other.landing == landing) {
            other.sent = true;
        }
    }

    /// Whether the device has not been given an extent, and never will be once it was given up: reclaim moves nothing dirty then.
    pub(super) fn is_unsent(&self, landing: Landing) -> bool {
        let mut airborne = self.airborne.iter();
        airborne.any(|other| other.landing == landing && !other.sent && !other.moves_dirty)
    }

    /// A write has ended, well or not, or will never be sent.
    pub(super) fn written(
        &mut self,
        region: u32,
        extent: Option<Location>,
        ticket: u64,
        landing: Option<Landing>,
    ) {
        self.writes_in_flight -= 1;
        self.outstanding.retain(|&other| other != ticket);
        self.airborne
            .retain(|other| Some(other.landing) != landing || !other.sent);
        if let Some(start) = extent
            && !planted(PlantedBug::ExtentOutlivesRegion)
        {
            self.flushing.retain(|flushing| flushing.start != start.offset());
        }
        self.regions.write_ended(region);
        // In the order of filling, whatever the order of completion: a ring's oldest region must be reclaimed first.
        while let Some(&oldest) = self.finishing.front()
            && !self.regions.being_written(oldest)
        {
            self.finishing.pop_front();
            self.regions.finish(oldest);
        }
    }

    /// The ring whose open extent has a record of `block`. A newer record must follow it there: extents get their
    /// sequence when they are sealed, and the other ring's might be sealed first.
    pub(super) fn ring_of_open_record(&self, block: crate::units::BlockNumber) -> Option<Ring> {
        Ring::ALL.into_iter().find(|ring| {
            let open = self.open[ring.index()].as_ref();
            let extent = open.and_then(|open| open.extent.as_ref());
            extent.is_some_and(|extent| {
                let mut records = extent.records.iter();
                records.any(|&bits| Record::unpack(bits).is_ok_and(|record| record.block == block))
            })
        })
    }

    /// The extent that the last append to `ring` went to. To be asked right after it.
    pub(super) fn landing_of(&self, ring: Ring) -> Option<Landing> {
        let open = self.open[ring.index()].as_ref()?;
        open.extent.as_ref().map(|extent| extent.landing)
    }

    /// Whether an extent is on the device, and every one before it in its region too: recovery finds the extents of a
    /// region one after the other, so one that has landed counts only if those before it have.
    pub(super) fn landed(&self, landing: Landing) -> bool {
        self.airborne
            .iter()
            .map(|other| other.landing)
            .all(|other| other.region != landing.region || other.number > landing.number)
    }

    /// Seals an extent if it is still open; gives its bytes on the device and its records.
    pub(super) fn seal_open(&mut self, landing: Landing) -> Option<(u64, u64)> {
        let ring = Ring::ALL
            .into_iter()
            .find(|ring| self.landing_of(*ring) == Some(landing))?;
        let extent = self.open[ring.index()].as_ref()?.extent.as_ref()?;
        let len = extent.used.next_multiple_of(self.geometry.sector_bytes as usize);
        let records = extent.records.len();
        self.seal(ring);
        Some((len as u64, records as u64))
    }

    /// Whether writes are queued or on their way.
    pub(super) fn writing(&self) -> bool {
        self.writes_in_flight() > 0
    }

    pub(super) fn writes_in_flight(&self) -> usize {
        self.writes_in_flight + self.queue.len() + self.summaries.len()
    }

    /// The bytes from `location` on to the end of its extent, if the extent is still in memory.
    pub(super) fn in_memory(&self, location: Location) -> Option<&[u8]> {
        let number = self.region_of(location);
        if self.regions.at(number).state != RegionState::Open {
            return None;
        }
        let offset = location.offset();
        let find = |start: u64, buf: &'_ IoBuf| {
            (start..start + buf.len() as u64)
                .contains(&offset)
                .then(|| (offset - start) as usize)
        };
        for open in self.open.iter().flatten().filter(|open| open.number == number) {
            if let Some(extent) = &open.extent {
                let start = u64::from(number) * self.geometry.region_bytes + u64::from(extent.offset);
                if let Some(at) = find(start, &extent.buf) {
                    return Some(&extent.buf[at..]);
                }
            }
        }
        self.flushing
            .iter()
            .find_map(|flushing| find(flushing.start, &flushing.buf).map(|at| &flushing.buf[at..]))
    }

    /// The packed records of an extent of an open region, for dropping what a failed write lost.
    pub(super) fn records_of(&self, extent: Location) -> Vec<u64> {
        self.flushing
            .iter()
            .find(|flushing| flushing.start == extent.offset())
            .and_then(|flushing| {
                let header = ExtentHeader::parse(&flushing.buf, self.geometry.header_bytes()).ok()?;
                Some(crate::format::extent::records(&flushing.buf, header.record_count).collect())
            })
            .unwrap_or_default()
    }

    /// Open regions with their extents and records, for the index image.
    pub(super) fn open_regions(&self) -> impl Iterator<Item = (u32, &[SummaryExtent], &[u64])> {
        self.open
            .iter()
            .flatten()
            .map(|open| (open.number, &open.extents[..], &open.records[..]))
    }

    /// Somebody needs a region, and none is free.
    pub(super) fn starve(&mut self) {
        self.starving = true;
    }

    /// Takes an open region over from an index image, or from recovery.
    pub(super) fn reopen(&mut self, ring: Ring, number: u32, extents: Vec<SummaryExtent>, records: Vec<u64>) {
        self.open[usize::from(ring.number())] = Some(OpenRegion {
            number,
            stable_bytes: self.regions.at(number).used,
            extents,
            records,
            extent: None,
        });
    }

    /// Memory that grows with the cache (not the bounded buffers).
    pub(super) fn memory_bytes(&self) -> usize {
        self.regions.memory_bytes()
            + self
                .open
                .iter()
                .flatten()
                .map(|o| {
                    o.records.capacity() * RECORD_BYTES + o.extents.capacity() * size_of::<SummaryExtent>()
                })
                .sum::<usize>()
    }
}

fn take_ticket(last: &mut u64, outstanding: &mut VecDeque<u64>) -> u64 {
    *last += 1;
    outstanding.push_back(*last);
    *last
}

fn write_fragment(place: &mut [u8], checksum: u32, codec: CodecId, stored: &[u8]) {
    let header = FragmentHeader {
        checksum: checksum.into(),
        stored: (stored.len() as u16).into(),
        codec: codec.0,
        flags: 0,
    };
    place[..FRAGMENT_HEADER_BYTES].copy_from_slice(header.as_bytes());
    let (bytes, padding) = place[FRAGMENT_HEADER_BYTES..].split_at_mut(stored.len());
    bytes.copy_from_slice(stored);
    padding.fill(0);
}
