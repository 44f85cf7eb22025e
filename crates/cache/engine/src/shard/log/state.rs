//! What the log holds, and how records get into it: open extents, open regions, sealing and closing.
//!
//! Appending is synchronous: a fragment's location is fixed when it is appended, and until its extent has
//! landed it is served from memory.
//!
//! Invariants: one open extent and one open region a ring at most; extents of a region lie back to back in
//! sequence order; space for the summary is kept free at the region's end; `appended >= landed >= stable` in each ring; of
//! what the manifest says ([`State::entry`]) nothing shrinks but by a reclaim.

use flaz_codec::CodecId;
use flaz_device::IoBuf;

use super::append::{Append, Appended, Class};
use super::in_flight::{EndedRegion, Extent, InFlight, PendingWrite, Stage, SummaryStage, WriteId};
use super::lsn::{Lsn, Positions};
use super::marks::{AtFlush, Length, Marks};
use super::regions::{FREE_REGIONS_RESERVED, Region, RegionState, Regions};
use crate::format::extent::{
    EXTENT_HEADER_BYTES, ExtentHeader, FRAGMENT_HEADER_BYTES, FragmentHeader, FragmentIdentity, RECORD_BYTES,
    Record, RecordKind,
};
use crate::format::geometry::Geometry;
use crate::format::manifest::{ManifestEntry, RegionUse};
use crate::format::summary::{Summary, SummaryExtent, summary_bytes};
use crate::index::Entry;
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::units::{BlockNumber, Epoch, Location, Sequence};
use zerocopy::IntoBytes;

/// Sealed extents and summaries that may be on their way to the device at a time.
pub const WRITES_IN_FLIGHT_MAX: usize = 8;
/// Share of an open region from which the next one is seen to: three quarters.
const NEARLY_FULL: (u64, u64) = (3, 4);

/// The extent of a ring that takes records.
#[derive(Debug)]
struct OpenExtent {
    lsn: Lsn,
    /// Byte offset in the region.
    offset: u32,
    buf: IoBuf,
    used: usize,
    records: Vec<u64>,
    /// See [`Extent::moves_dirty`].
    moves_dirty: bool,
}

/// The region of a ring that is being filled.
#[derive(Debug)]
struct OpenRegion {
    number: u32,
    extents: Vec<SummaryExtent>,
    records: Vec<u64>,
    extent: Option<OpenExtent>,
}

/// Identity of the shard for what it writes.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct LogIdentity {
    pub(in crate::shard) cache: u32,
    pub(in crate::shard) shard: u32,
    pub(in crate::shard) epoch: Epoch,
}

/// What a flush of the cache device that begins now makes stable.
#[derive(Clone, Debug)]
pub(in crate::shard) struct FlushPoint {
    landed: Positions,
    regions: Vec<AtFlush>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct State {
    geometry: Geometry,
    identity: LogIdentity,
    pub(super) regions: Regions,
    next_sequence: Sequence,
    open: [Option<OpenRegion>; 2],
    in_flight: InFlight,
    marks: Marks,
    reclaim: ReclaimedRegions,
    /// The extent that was opened last.
    appended: Lsn,
    /// Recovery finds everything up to here, also after a power cut.
    stable: Positions,
    /// Up to here writers were told that recovery finds their dirty blocks.
    promised: Positions,
    /// Open extents up to here are to be sealed when the next write ends.
    wanted: Positions,
    /// Reclaim moves what may not be dropped: once it has taken the reserved region, what is left is its own.
    held_for_reclaim: bool,
    /// Somebody waits for a region.
    starving: bool,
}

/// Regions that a reclaim is about. They outlive it: one that could not be finished, now or before a crash, stays.
#[derive(Clone, Copy, Debug, Default)]
struct ReclaimedRegions {
    /// Its blocks are being dropped and moved.
    victim: Option<u32>,
    /// Nothing in the victim counts any more: the manifest is to say that it is free.
    emptied: bool,
    /// The last free region, which takes what is moved from the victim. Nothing of it counts while the victim does, so that a
    /// crash leaves it free: there is always room to finish a reclaim.
    recovering: Option<u32>,
}

impl State {
    pub(super) fn new(geometry: Geometry, identity: LogIdentity) -> Self {
        Self {
            geometry,
            identity,
            regions: Regions::all_free(geometry.regions_per_shard),
            // Unlike that of any earlier epoch, so that what a cold start leaves on the medium never fits.
            next_sequence: Sequence(Sequence::first_of(identity.epoch).0 | 1),
            open: [None, None],
            in_flight: InFlight::default(),
            marks: Marks::default(),
            reclaim: ReclaimedRegions::default(),
            appended: Lsn::INHERITED,
            stable: Positions::default(),
            promised: Positions::default(),
            wanted: Positions::default(),
            held_for_reclaim: false,
            starving: false,
        }
    }

    /// Where the shard lies, and what its structures name.
    pub(super) fn place(&self) -> (&Geometry, LogIdentity) {
        (&self.geometry, self.identity)
    }

    fn region_of(&self, location: Location) -> u32 {
        (location.offset() / self.geometry.region_bytes) as u32
    }

    /// The identity that a fragment of `block` has (or would have) at `location`.
    pub(super) fn identity_at(&self, block: BlockNumber, location: Location) -> FragmentIdentity {
        let fill = self.regions.fill_of(self.region_of(location));
        FragmentIdentity {
            cache: self.identity.cache,
            block,
            location,
            fill,
        }
    }

    /// Appends to `ring`. `None`: no room now, because no region is free or too many writes are in flight.
    pub(super) fn append(
        &mut self,
        ring: Ring,
        block: BlockNumber,
        what: Append<'_>,
        class: Class,
    ) -> Option<Appended> {
        let for_reclaim = class == Class::Reclaim;
        let held = self.held_for_reclaim && self.regions.free_len() < FREE_REGIONS_RESERVED;
        // Nothing counts there before the reclaim has ended.
        if !for_reclaim && (held || self.reclaim.recovering.is_some()) {
            // Somebody has to finish it.
            self.starving |= self.reclaim.recovering.is_some();
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
            block,
            location,
            fill,
        };
        assert!(
            extent.used + bytes <= extent.buf.len(),
            "room was made in the extent"
        );
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
        extent.moves_dirty |= for_reclaim && what.is_dirty();
        extent.used += bytes;
        extent.records.push(Record { block, kind }.pack());
        let lsn = extent.lsn;
        Some(Appended { entry, lsn })
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
            let generation = self.next_sequence;
            let taken = self.regions.take(ring, generation, for_reclaim);
            self.starving |= taken.is_none();
            let number = taken?;
            self.next_sequence = Sequence(generation.0 + 1);
            self.starving = false;
            // Clean blocks need no room after a crash.
            if self.held_for_reclaim && self.regions.free_len() == 0 {
                self.reclaim.recovering = Some(number);
            }
            self.marks.opened(number, generation);
            self.in_flight.push_opening(number);
            self.open[slot] = Some(OpenRegion {
                number,
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
        assert!(open.extent.is_none(), "one open extent a ring");
        self.appended = self.appended.next();
        open.extent = Some(OpenExtent {
            lsn: self.appended,
            offset: used as u32,
            buf: IoBuf::new(room),
            used: header_bytes,
            records: Vec::with_capacity(records_max),
            moves_dirty: false,
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
        assert!(!extent.records.is_empty(), "an extent says something");
        let len = extent.used.next_multiple_of(geometry.sector_bytes as usize);
        assert!(
            len <= geometry.extent_bytes as usize,
            "an extent has its size at most"
        );
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
        };
        header.write(&extent.records, geometry.header_bytes(), &mut extent.buf);
        self.regions.add_used(open.number, len as u32);
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
        self.in_flight.push(Extent {
            lsn: extent.lsn,
            ring,
            region: open.number,
            offset: extent.offset,
            start: Location::at(start),
            position,
            sequence,
            moves_dirty: extent.moves_dirty,
            stage: Stage::Queued,
            buf: Some(extent.buf),
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
        assert!(!open.extents.is_empty(), "a summary lists something");
        assert!(
            u64::from(self.regions.at(open.number).used) + len <= geometry.region_bytes,
            "room for the summary was kept"
        );
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
        self.in_flight.push_ended(EndedRegion {
            region: open.number,
            ring,
            at: self.appended,
            missing: None,
            summary: SummaryStage::Queued {
                position: summary.position + geometry.region_bytes - len,
                buf,
            },
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

    /// An extent is lost: ends its region, for recovery finds what is behind it only by a summary.
    pub(super) fn abandon(&mut self, lost: Lsn) {
        let Some(region) = self.in_flight.get(lost).map(|extent| extent.region) else {
            return;
        };
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
        self.in_flight.note_missing(region, lost);
    }

    /// The regions that are being filled, by ring.
    #[cfg(test)]
    pub(super) fn open_numbers(&self) -> [Option<u32>; 2] {
        Ring::ALL.map(|ring| self.open[ring.index()].as_ref().map(|open| open.number))
    }

    /// How far a region is filled with extents that are on the device, one behind the other.
    fn landed_in(&self, region: u32) -> Length {
        if self.regions.at(region).state != RegionState::Open {
            return Length::Whole;
        }
        let used = self.regions.at(region).used;
        Length::Bytes(self.in_flight.first_gap(region).map_or(used, |gap| gap.min(used)))
    }

    /// What the manifest is to say of a region.
    pub(super) fn entry(&self, number: u32) -> ManifestEntry {
        let region = self.regions.at(number);
        let mut entry = ManifestEntry {
            state: RegionUse::Full,
            ring: region.ring,
            generation: region.fill,
            len: region.used,
        };
        assert!(u64::from(entry.len) <= self.geometry.region_bytes);
        if self.reclaim.victim == Some(number) {
            entry.state = RegionUse::Reclaiming;
            return if self.reclaim.emptied {
                ManifestEntry::FREE
            } else {
                entry
            };
        }
        if region.state == RegionState::Free {
            return ManifestEntry::FREE;
        }
        match self.marks.stable(number) {
            Some(Length::Whole) | None => {}
            Some(length) => {
                entry.state = RegionUse::Open;
                entry.len = if let Length::Bytes(bytes) = length {
                    bytes
                } else {
                    0
                };
            }
        }
        if self.reclaim.recovering == Some(number) {
            entry.state = RegionUse::Recovering;
        }
        entry
    }

    /// The manifest is about to be written for regions that are `among` those: what it will say.
    pub(super) fn told(&self, among: impl Fn(u32) -> bool) -> Vec<AtFlush> {
        self.marks.told(among)
    }

    /// The manifest on the device says this, `stable` or not.
    pub(super) fn manifest_written(&mut self, told: &[AtFlush], stable: bool) {
        self.marks.written(told, stable);
    }

    /// Regions of which the manifest on the device says less than what is stable: see [`Marks::unmarked`].
    pub(super) fn unmarked(&self, stable: bool) -> Vec<u32> {
        self.marks.unmarked(stable).collect()
    }

    /// Up to where recovery would find everything in a ring, if the power stayed on.
    pub(super) fn landed(&self) -> Positions {
        Positions::of(|ring| {
            let open = self.open[ring.index()].as_ref();
            let open = open
                .and_then(|open| open.extent.as_ref())
                .map(|extent| extent.lsn);
            let first = self
                .in_flight
                .first_not_landed(ring)
                .into_iter()
                .chain(open)
                .min();
            first.map_or(self.appended, Lsn::before).min(self.appended)
        })
    }

    /// Seals what is open. What a flush makes stable once [`State::has_ended`] says so of the point.
    pub(super) fn seal_for_flush(&mut self) -> FlushPoint {
        self.seal_all();
        let used = |region| match self.regions.at(region).state {
            RegionState::Open => Length::Bytes(self.regions.at(region).used),
            _ => Length::Whole,
        };
        FlushPoint {
            landed: Positions::both(self.appended),
            regions: self.marks.at_flush(used),
        }
    }

    /// Whether nothing is under way that `point` is to make stable.
    pub(super) fn has_ended(&self, point: &FlushPoint) -> bool {
        let [upto, _] = Ring::ALL.map(|ring| point.landed.at(ring));
        self.in_flight.all_ended(upto)
    }

    /// What a flush that begins now makes stable, without sealing anything.
    pub(super) fn landed_point(&self) -> FlushPoint {
        FlushPoint {
            landed: self.landed(),
            regions: self.marks.at_flush(|region| self.landed_in(region)),
        }
    }

    /// A flush that began at `point` has succeeded: what had landed is stable.
    pub(super) fn note_flushed(&mut self, point: &FlushPoint) {
        self.marks.flushed(&point.regions);
    }

    /// The same, and only what the manifest said is noted.
    pub(super) fn note_manifest_flushed(&mut self, point: &FlushPoint) {
        self.marks.manifest_flushed(&point.regions);
    }

    /// A flush has made a region stable that was ended, summary and all.
    pub(super) fn note_whole(&mut self, region: u32) {
        assert_eq!(
            self.regions.at(region).state,
            RegionState::Open,
            "it enters its ring after this"
        );
        let mut all = self.marks.at_flush(|_| Length::Whole);
        all.retain(|at| at.region == region);
        self.marks.flushed(&all);
    }

    /// A flush that began at `point` has succeeded, and all that must follow it.
    pub(super) fn raise_stable(&mut self, point: &FlushPoint) {
        self.stable.raise_all(&point.landed);
        assert!(self.landed().covers(&self.stable), "what is stable has landed");
    }

    pub(super) fn is_stable(&self, ring: Ring, lsn: Lsn) -> bool {
        lsn <= self.stable.at(ring)
    }

    /// Whether everything appended so far is stable.
    pub(super) fn is_all_stable(&self) -> bool {
        self.stable.covers(&Positions::both(self.appended))
    }

    /// Writers were told that recovery finds their dirty blocks, up to here.
    pub(super) fn promise(&mut self, upto: &Positions) {
        self.promised.raise_all(upto);
        assert!(
            Positions::both(self.appended).covers(&self.promised),
            "what was appended is promised"
        );
    }

    /// Whether everything that was promised is stable.
    pub(super) fn keeps_promises(&self) -> bool {
        self.stable.covers(&self.promised)
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
        } else if let Some(open) = self.open[ring.index()].as_mut() {
            open.extent = None;
        }
    }

    /// The next write for the device, if the limit allows one. Before a summary the device must be flushed: recovery
    /// believes that what a summary lists is there.
    pub(super) fn take_write(&mut self) -> Option<PendingWrite> {
        if self.in_flight.taken() >= WRITES_IN_FLIGHT_MAX {
            return None;
        }
        self.in_flight.take()
    }

    /// The device is about to be given a write; false: it is withheld, for the device is `fenced`. Extents to which dirty
    /// blocks move are not: their old places may not be read any more.
    pub(super) fn begin_write(&mut self, id: WriteId, fenced: bool) -> bool {
        let WriteId::Extent(lsn) = id else { return !fenced };
        let extent = self.in_flight.get_mut(lsn).expect("a write was taken");
        assert!(extent.stage == Stage::Taken, "an extent is sent once");
        let withheld = fenced && !extent.moves_dirty;
        extent.stage = if withheld { Stage::Withheld } else { Stage::Sent };
        !withheld
    }

    /// Whether the device has not been given an extent, and never will be once it is fenced.
    pub(super) fn is_unsent(&self, lsn: Lsn) -> bool {
        let mut open = self.open.iter().flatten().flat_map(|open| &open.extent);
        open.any(|extent| extent.lsn == lsn && !extent.moves_dirty)
            || (self.in_flight.get(lsn))
                .is_some_and(|extent| extent.stage != Stage::Sent && !extent.moves_dirty)
    }

    /// A write has ended, well or not, or is withheld.
    pub(super) fn end_write(&mut self, id: WriteId) {
        match id {
            WriteId::Extent(lsn) if planted(PlantedBug::ExtentOutlivesRegion) => {
                let extent = self.in_flight.get_mut(lsn).expect("a write was taken");
                (extent.lsn, extent.stage) = (Lsn::MAX, Stage::Withheld);
            }
            id => self.in_flight.end(id),
        }
        while let Some(region) = self.in_flight.pop_ended() {
            self.finish(region);
        }
    }

    /// A region that is no longer filled, and to which nothing is being written, enters its ring.
    pub(super) fn finish(&mut self, region: u32) {
        assert!(
            !self.in_flight.is_writing(region),
            "region {region} is being written"
        );
        self.regions.finish(region);
    }

    /// Takes the oldest full region of `ring`, for reclaim.
    pub(super) fn take_oldest(&mut self, ring: Ring) -> Option<u32> {
        let region = self.regions.take_oldest(ring)?;
        assert!(!self.in_flight.is_writing(region), "it is full");
        let before = self.reclaim.victim;
        assert!(
            before.is_none_or(|before| before == region),
            "an unfinished reclaim is finished first"
        );
        self.reclaim.victim = Some(region);
        self.marks.remove(region);
        Some(region)
    }

    /// The region whose reclaim is under way, or was not finished.
    pub(super) fn victim(&self) -> Option<u32> {
        self.reclaim.victim
    }

    /// The oldest region of its ring was being reclaimed when an earlier opening ended.
    pub(super) fn inherit_victim(&mut self, region: u32) {
        assert!(self.regions.at(region).state == RegionState::Full);
        assert!(self.reclaim.victim.is_none(), "one reclaim was interrupted");
        self.reclaim.victim = Some(region);
    }

    /// A region that could not be reclaimed is the oldest of its ring again. What was dropped of it stays dropped, so the
    /// manifest goes on to say that it is being reclaimed.
    pub(super) fn put_back(&mut self, region: u32) {
        assert_eq!(self.reclaim.victim, Some(region), "it was being reclaimed");
        self.regions.put_back(region);
    }

    /// Everything that was in the victim, and is to stay, is stable elsewhere. Gives the region that took it, if that must
    /// count before the victim is free.
    pub(super) fn end_recovering(&mut self) -> Option<u32> {
        self.reclaim.recovering.take()
    }

    /// Nothing in the victim counts any more.
    pub(super) fn empty_victim(&mut self) {
        assert!(self.reclaim.recovering.is_none(), "what was moved counts");
        assert!(self.reclaim.victim.is_some(), "a region is being reclaimed");
        self.reclaim.emptied = true;
    }

    /// A reclaimed region becomes free.
    pub(super) fn release(&mut self, region: u32) {
        assert!(
            !self.in_flight.is_writing(region),
            "region {region} is being written"
        );
        assert!(
            self.reclaim.victim == Some(region),
            "region {region} was reclaimed"
        );
        self.regions.release(region);
        self.reclaim = ReclaimedRegions::default();
    }

    /// Notes that open extents up to these positions are to be sealed when the next write ends.
    pub(super) fn want_sealed(&mut self, upto: &Positions) {
        assert!(
            Positions::both(self.appended).covers(upto),
            "what was appended is sealed"
        );
        self.wanted.raise_all(upto);
    }

    /// What was wanted so far.
    pub(super) fn take_wanted(&mut self) -> Positions {
        std::mem::take(&mut self.wanted)
    }

    /// The ring whose open extent has a record of `block`. A newer record must follow it there: extents get their
    /// sequence when they are sealed, and the other ring's might be sealed first.
    pub(super) fn ring_of_open_record(&self, block: BlockNumber) -> Option<Ring> {
        Ring::ALL.into_iter().find(|ring| {
            let open = self.open[ring.index()].as_ref();
            let extent = open.and_then(|open| open.extent.as_ref());
            extent.is_some_and(|extent| {
                let mut records = extent.records.iter();
                records.any(|&bits| Record::unpack(bits).is_ok_and(|record| record.block == block))
            })
        })
    }

    /// Seals the open extent of `ring` if its position is at most `upto`; gives its bytes on the device and its records.
    pub(super) fn seal_upto(&mut self, ring: Ring, upto: Lsn) -> Option<(u64, u64)> {
        assert!(upto <= self.appended, "nothing was appended there");
        let extent = self.open[ring.index()].as_ref()?.extent.as_ref()?;
        if extent.lsn > upto {
            return None;
        }
        let len = extent.used.next_multiple_of(self.geometry.sector_bytes as usize);
        let records = extent.records.len();
        self.seal(ring);
        Some((len as u64, records as u64))
    }

    pub(super) fn writes_in_flight(&self) -> usize {
        self.in_flight.writes()
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
        self.in_flight.extents().find_map(|extent| {
            let buf = extent.buf.as_ref()?;
            find(extent.start.offset(), buf).map(|at| &buf[at..])
        })
    }

    /// The ring of an extent that is under way, where it begins, and its packed records: for dropping what a failed write
    /// lost.
    pub(super) fn records_of(&self, lsn: Lsn) -> Option<(Ring, Location, Vec<u64>)> {
        let extent = self.in_flight.get(lsn)?;
        let buf = extent.buf.as_ref()?;
        let header = ExtentHeader::parse(buf, self.geometry.header_bytes()).ok()?;
        let records = crate::format::extent::records(buf, header.record_count).collect();
        Some((extent.ring, extent.start, records))
    }

    #[cfg(test)]
    pub(super) fn is_under_way(&self, lsn: Lsn) -> bool {
        let mut open = self.open.iter().flatten().flat_map(|open| &open.extent);
        open.any(|extent| extent.lsn == lsn) || self.in_flight.get(lsn).is_some()
    }

    /// Open regions with their extents and records, for the index image.
    pub(super) fn open_regions(&self) -> impl Iterator<Item = (u32, &[SummaryExtent], &[u64])> {
        self.open
            .iter()
            .flatten()
            .map(|open| (open.number, &open.extents[..], &open.records[..]))
    }

    /// Takes over the regions that an earlier opening left, and from which sequence on numbers are free.
    pub(super) fn inherit(&mut self, regions: Regions, next_sequence: Sequence) {
        assert!(
            self.open.iter().all(Option::is_none),
            "nothing was appended before"
        );
        assert!(next_sequence > Sequence(0), "numbers begin with 1");
        self.regions = regions;
        self.next_sequence = next_sequence;
    }

    pub(super) fn next_sequence(&self) -> Sequence {
        self.next_sequence
    }

    /// Sees to it that nothing but reclaim gets the last of the room.
    pub(super) fn hold_for_reclaim(&mut self, hold: bool) {
        self.held_for_reclaim = hold;
    }

    /// Region of a location, which is in use.
    pub(super) fn region_at(&self, location: Location) -> Region {
        self.regions.at(self.region_of(location))
    }

    /// Takes an open region over from an index image.
    pub(super) fn reopen(&mut self, number: u32, extents: Vec<SummaryExtent>, records: Vec<u64>) {
        let (ring, region) = (self.regions.ring_of(number), self.regions.at(number));
        assert!(self.open[ring.index()].is_none(), "one open region a ring");
        assert_eq!(region.state, RegionState::Open);
        self.marks.reopened(number, region.fill, region.used);
        self.open[ring.index()] = Some(OpenRegion {
            number,
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
