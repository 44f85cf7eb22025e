//! The state of the log: open extents, open regions, writes in flight, and positions.
//!
//! | module | part |
//! |---|---|
//! | [`append`] | appending records, closing extents and regions |
//! | [`victim`] | manifest entries, and the region that is being reclaimed |
//!
//! Appending is synchronous: a fragment's location is fixed when it is appended, and until its extent has
//! landed it is served from memory.
//!
//! Invariants: each ring has at most one open extent and one open region; extents of a region are contiguous and in sequence
//! order; space for the summary is reserved at the region's end; `appended >= landed >= stable` in each ring; the contents of
//! a manifest entry ([`State::entry`]) shrink only in a reclaim.

mod append;
mod victim;

use std::collections::BTreeMap;

use flaz_codec::DICTIONARIES_MAX;
use flaz_device::IoBuf;

use super::UsedRegion;
use super::age::{Newest, Oldest};
use super::in_flight::{InFlight, PendingWrite, Stage, WriteId};
use super::lsn::{Lsn, Positions};
use super::marks::{AtFlush, Length, Marks};
use super::reclaimed::ReclaimedRegions;
use super::regions::{FREE_REGIONS_RESERVED, Region, RegionState, Regions};
use crate::format::extent::{ExtentHeader, FragmentIdentity, RECORD_BYTES, Record, header_copy_bytes};
use crate::format::geometry::Geometry;
use crate::format::layout::Layout;
use crate::format::manifest::{ManifestEntry, RegionUse};
use crate::format::summary::SummaryExtent;
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::stats::AppendedBytes;
use crate::units::{BlockNumber, Epoch, Location, Sequence};

/// Maximum number of sealed extents and summaries in flight to the device.
pub const WRITES_IN_FLIGHT_MAX: usize = 8;
/// Maximum number of extents of a shard in memory: those that are queued or in flight, of which reclaim may have twice as many as
/// clients, and for each ring one that is open and one that is closed with its region.
pub const EXTENTS_IN_MEMORY_MAX: usize = 2 * WRITES_IN_FLIGHT_MAX + 4;
/// Used share of an open region from which the next one is prepared: three quarters.
const NEARLY_FULL: (u64, u64) = (3, 4);
/// Regions that are closed before the share of fragments in them is known.
const REGIONS_MEASURED_MIN: u64 = 4;

/// The extent of a ring that takes records.
#[derive(Debug)]
struct OpenExtent {
    lsn: Lsn,
    /// Byte offset in the region.
    offset: u32,
    buf: IoBuf,
    used: usize,
    /// Space for the header and the records.
    header_bytes: usize,
    records: Vec<u64>,
    /// See [`Extent::moves_dirty`].
    moves_dirty: bool,
}

impl OpenExtent {
    /// Whether it takes one more record, with a fragment of `bytes` bytes, and still the copy of its header.
    fn has_room(&self, bytes: usize) -> bool {
        self.used + bytes + header_copy_bytes(self.records.len() + 1) <= self.buf.len()
    }

    /// Bytes that it takes on the device if it is closed now.
    fn sealed_bytes(&self, layout: &Layout) -> usize {
        let least = self.used + header_copy_bytes(self.records.len());
        least
            .max(layout.header_bytes())
            .next_multiple_of(layout.sector_bytes as usize)
    }
}

/// The open region of a ring.
#[derive(Debug)]
struct OpenRegion {
    number: u32,
    extents: Vec<SummaryExtent>,
    records: Vec<u64>,
    extent: Option<OpenExtent>,
}

impl OpenRegion {
    /// All that was appended to it. Its open extent will get a higher sequence than all others have.
    fn contents(&self, epoch: Epoch) -> (Vec<SummaryExtent>, Vec<u64>) {
        let (mut extents, mut records) = (self.extents.clone(), self.records.clone());
        if let Some(open) = &self.extent {
            extents.push(SummaryExtent {
                offset: open.offset,
                len: open.used as u32,
                sequence: Sequence(u64::MAX),
                epoch,
                record_count: open.records.len() as u16,
                header_bytes: open.header_bytes as u16,
            });
            records.extend_from_slice(&open.records);
        }
        (extents, records)
    }
}

/// Identity of the shard for what it writes.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct LogIdentity {
    pub(in crate::shard) cache: u32,
    pub(in crate::shard) shard: u32,
    pub(in crate::shard) epoch: Epoch,
}

/// The point that a flush of the cache device makes stable.
#[derive(Clone, Debug)]
pub(in crate::shard) struct FlushPoint {
    landed: Positions,
    regions: Vec<AtFlush>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct State {
    layout: Layout,
    identity: LogIdentity,
    pub(super) regions: Regions,
    next_sequence: Sequence,
    open: [Option<OpenRegion>; 2],
    in_flight: InFlight,
    marks: Marks,
    reclaim: ReclaimedRegions,
    /// The extent that was opened last.
    appended: Lsn,
    appended_bytes: AppendedBytes,
    filling: Filling,
    /// Everything up to here is stable.
    stable: Positions,
    /// Dirty blocks up to here are acknowledged.
    promised: Positions,
    /// Writers wait for everything up to here to land.
    wanted: Positions,
    /// Reclaim moves dirty blocks: once it has taken the reserved region, only reclaim may use what is left.
    held_for_reclaim: bool,
    /// A task waits for a region.
    starving: bool,
    /// The rings whose open region has damage: it is closed when another one is free.
    damaged: [bool; 2],
    newest: Newest,
    oldest: Oldest,
    dictionary_uses: DictionaryUses,
}

/// What the regions have that this opening has filled, also those that it has reopened.
#[derive(Clone, Copy, Debug, Default)]
struct Filling {
    /// Bytes of their fragments.
    fragment_bytes: u64,
    /// Regions that were closed.
    closed: u64,
}

/// The last region that may have fragments of each dictionary, by its generation.
#[derive(Clone, Copy, Debug, Default)]
struct DictionaryUses([Sequence; DICTIONARIES_MAX]);

impl DictionaryUses {
    /// A fragment goes to a region.
    fn note(&mut self, number: u8, generation: Sequence) {
        let last = &mut self.0[usize::from(number)];
        *last = generation.max(*last);
    }
}

impl State {
    pub(super) fn new(geometry: Geometry, identity: LogIdentity) -> Self {
        Self {
            layout: geometry.layout,
            identity,
            regions: Regions::all_free(geometry.regions_per_shard),
            // Differs from any earlier epoch, so that data from before a cold start is never accepted.
            next_sequence: Sequence(Sequence::first_of(identity.epoch).0 | 1),
            open: [None, None],
            in_flight: InFlight::default(),
            marks: Marks::default(),
            reclaim: ReclaimedRegions::default(),
            appended: Lsn::INHERITED,
            appended_bytes: AppendedBytes::default(),
            filling: Filling::default(),
            stable: Positions::default(),
            promised: Positions::default(),
            wanted: Positions::default(),
            held_for_reclaim: false,
            starving: false,
            damaged: [false; 2],
            newest: Newest::default(),
            oldest: Oldest::default(),
            dictionary_uses: DictionaryUses::default(),
        }
    }

    /// Whether no region may have fragments of a dictionary.
    pub(super) fn is_dictionary_unused(&self, number: u8) -> bool {
        let last = self.dictionary_uses.0[usize::from(number)];
        let mut used = self
            .regions
            .iter()
            .filter(|region| region.state != RegionState::Free);
        used.all(|region| region.generation > last)
    }

    /// Location and identity of the shard.
    pub(super) fn place(&self) -> (&Layout, LogIdentity) {
        (&self.layout, self.identity)
    }

    fn region_of(&self, location: Location) -> u32 {
        self.layout.region_of(location)
    }

    /// The identity that a fragment of `block` has (or would have) at `location`.
    pub(super) fn identity_at(&self, block: BlockNumber, location: Location) -> FragmentIdentity {
        let generation = self.regions.generation_of(self.region_of(location));
        FragmentIdentity {
            cache: self.identity.cache,
            block,
            location,
            generation,
        }
    }

    /// Whether a region is needed: only the reserved one is free, and one will be needed soon.
    ///
    /// Not earlier: a free region is unused cache.
    pub(super) fn wants_space(&self) -> bool {
        if self.regions.free_len() > FREE_REGIONS_RESERVED {
            return false;
        }
        let nearly_full = |open: &OpenRegion| {
            u64::from(self.regions.at(open.number).used) * NEARLY_FULL.1
                >= self.layout.region_bytes * NEARLY_FULL.0
        };
        self.starving || self.damaged.contains(&true) || self.open.iter().flatten().any(nearly_full)
    }

    /// The open regions, by ring.
    #[cfg(test)]
    pub(super) fn open_numbers(&self) -> [Option<u32>; 2] {
        Ring::ALL.map(|ring| self.open[ring.index()].as_ref().map(|open| open.number))
    }

    /// The position up to which everything of a ring has landed.
    pub(super) fn landed(&self) -> Positions {
        let sealed = self.sealed();
        Positions::of(|ring| {
            let sealed = sealed.at(ring);
            let first = self.in_flight.first_not_landed(ring);
            first.map_or(sealed, |lsn| lsn.before().min(sealed))
        })
    }

    /// The position up to which every extent of a ring is sealed.
    fn sealed(&self) -> Positions {
        Positions::of(|ring| {
            let open = self.open[ring.index()].as_ref();
            let extent = open.and_then(|open| open.extent.as_ref());
            extent.map_or(self.appended, |extent| extent.lsn.before())
        })
    }

    /// Seals the open extents. A flush makes the returned point stable once [`State::has_ended`] is true for it.
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

    /// Whether no write that `point` covers is in flight.
    pub(super) fn has_ended(&self, point: &FlushPoint) -> bool {
        let [upto, other] = Ring::ALL.map(|ring| point.landed.at(ring));
        assert_eq!(upto, other, "a point of `seal_for_flush` covers both rings alike");
        self.in_flight.all_ended(upto)
    }

    /// The point that a flush beginning now makes stable, without sealing.
    pub(super) fn landed_point(&self) -> FlushPoint {
        FlushPoint {
            landed: self.landed(),
            regions: self.marks.at_flush(|region| self.landed_in(region)),
        }
    }

    /// A flush that began at `point` has succeeded: landed extents are stable.
    pub(super) fn note_flushed(&mut self, point: &FlushPoint) {
        self.marks.flushed(&point.regions);
    }

    /// The same, for the manifest only.
    pub(super) fn note_manifest_flushed(&mut self, point: &FlushPoint) {
        self.marks.manifest_flushed(&point.regions);
    }

    /// A flush has made a closed region and its summary stable.
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

    /// A flush that began at `point` has succeeded, and so have the writes that must follow it.
    pub(super) fn raise_stable(&mut self, point: &FlushPoint) {
        self.stable.raise_all(&point.landed);
        assert!(self.landed().covers(&self.stable), "what is stable has landed");
    }

    pub(super) fn is_stable(&self, ring: Ring, lsn: Lsn) -> bool {
        lsn <= self.stable.at(ring)
    }

    /// Whether everything appended so far is stable, and every region that was closed has its summary: reclaim closes regions
    /// with damage, without appending.
    pub(super) fn is_all_stable(&self) -> bool {
        let open = |region| self.open.iter().flatten().any(|open| open.number == region);
        self.stable.covers(&Positions::both(self.appended)) && self.marks.regions().all(open)
    }

    /// Dirty blocks up to these positions are acknowledged to writers.
    pub(super) fn promise(&mut self, upto: &Positions) {
        self.promised.raise_all(upto);
        assert!(
            Positions::both(self.appended).covers(&self.promised),
            "what was appended is promised"
        );
    }

    /// Whether everything acknowledged is stable.
    pub(super) fn keeps_promises(&self) -> bool {
        self.stable.covers(&self.promised)
    }

    /// The next write for the device, if the limit allows one. The device must be flushed before a summary, because recovery
    /// relies on the records that a summary lists.
    pub(super) fn take_write(&mut self) -> Option<PendingWrite> {
        if self.in_flight.taken() >= WRITES_IN_FLIGHT_MAX {
            return None;
        }
        self.in_flight.take()
    }

    /// A write is about to be sent; false: it is withheld because the device is `fenced`. Extents with moved dirty blocks are not
    /// withheld: the old copies may be unreadable by now.
    pub(super) fn begin_write(&mut self, id: WriteId, fenced: bool) -> bool {
        let WriteId::Extent(lsn) = id else { return !fenced };
        let extent = self.in_flight.get_mut(lsn).expect("a write was taken");
        assert!(extent.stage == Stage::Taken, "an extent is sent once");
        let withheld = fenced && !extent.moves_dirty;
        extent.stage = if withheld { Stage::Withheld } else { Stage::Sent };
        !withheld
    }

    /// Whether an extent has not been sent, and never will be once the device is fenced.
    pub(super) fn is_unsent(&self, lsn: Lsn) -> bool {
        let mut open = self.open.iter().flatten().flat_map(|open| &open.extent);
        open.any(|extent| extent.lsn == lsn && !extent.moves_dirty)
            || (self.in_flight.get(lsn))
                .is_some_and(|extent| extent.stage != Stage::Sent && !extent.moves_dirty)
    }

    /// A write has succeeded or failed, or is withheld.
    pub(super) fn end_write(&mut self, id: WriteId) {
        match id {
            WriteId::Extent(lsn) if planted(PlantedBug::ExtentOutlivesRegion) => {
                let extent = self.in_flight.get_mut(lsn).expect("a write was taken");
                (extent.lsn, extent.stage) = (Lsn::MAX, Stage::Withheld);
            }
            id => self.in_flight.end_write(id),
        }
        while let Some(region) = self.in_flight.pop_ended() {
            self.finish(region);
        }
    }

    /// A closed region without writes in flight enters its ring.
    pub(super) fn finish(&mut self, region: u32) {
        assert!(
            !self.in_flight.is_writing(region),
            "region {region} is being written"
        );
        self.regions.finish(region);
    }

    /// The ring whose open extent has a record of `block`. A newer record must follow it there: extents get their
    /// sequence when they are sealed, and the other ring's might be sealed first.
    pub(super) fn ring_of_open_record(&self, block: BlockNumber) -> Option<Ring> {
        Ring::ALL.into_iter().find(|ring| {
            let open = self.open[ring.index()].as_ref();
            let extent = open.and_then(|open| open.extent.as_ref());
            extent.is_some_and(|extent| {
                let mut records = extent.records.iter();
                let is_about = |record: Record| record.blocks().any(|one| one == block);
                records.any(|&bits| Record::unpack(bits).is_ok_and(is_about))
            })
        })
    }

    /// Bytes that were appended and have not landed.
    pub(super) fn unwritten_bytes(&self) -> u64 {
        let open = self.open.iter().flatten().flat_map(|open| &open.extent);
        let open = open.map(|extent| extent.sealed_bytes(&self.layout) as u64);
        open.sum::<u64>() + self.in_flight.bytes()
    }

    /// Memory of the extents that are open, queued or in flight.
    pub(super) fn buffer_bytes(&self) -> usize {
        let open = self.open.iter().flatten().flat_map(|open| &open.extent);
        open.map(|extent| extent.buf.capacity()).sum::<usize>() + self.in_flight.buffer_bytes()
    }

    /// Bytes of records that were appended, by who caused them.
    pub(super) fn appended_bytes(&self) -> AppendedBytes {
        self.appended_bytes
    }

    /// The share of its regions' bytes that fragments take; the rest are headers, summaries, and what is lost at the ends of extents and
    /// regions. `None` before a few regions were closed.
    pub(super) fn fragment_share(&self) -> Option<f64> {
        let Filling {
            fragment_bytes,
            closed,
        } = self.filling;
        let in_open = |open: &OpenRegion| {
            let extent = open.extent.as_ref().map_or(0, |extent| extent.used);
            u64::from(self.regions.at(open.number).used) + extent as u64
        };
        let bytes = closed * self.layout.region_bytes + self.open.iter().flatten().map(in_open).sum::<u64>();
        (closed >= REGIONS_MEASURED_MIN).then(|| fragment_bytes as f64 / bytes as f64)
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
                let start = u64::from(number) * self.layout.region_bytes + u64::from(extent.offset);
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

    /// The ring, location and packed records of an extent in flight: used to drop its blocks after a failed write.
    pub(super) fn records_of(&self, lsn: Lsn) -> Option<(Ring, Location, Vec<u64>)> {
        let extent = self.in_flight.get(lsn)?;
        let buf = extent.buf.as_ref()?;
        let header = ExtentHeader::parse(buf, self.layout.header_bytes()).ok()?;
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

    /// The entry of a region with all that was appended to it. `None`: nothing there counts.
    pub(super) fn whole_entry(&self, number: u32) -> Option<ManifestEntry> {
        let region = self.regions.get(number)?;
        let is_emptied = self.reclaim.victim == Some(number) && self.reclaim.emptied;
        (region.state != RegionState::Free && !is_emptied).then_some(ManifestEntry {
            state: RegionUse::Full,
            ring: region.ring,
            generation: region.generation,
            len: region.used,
        })
    }

    /// The regions in use. The device may lack contents of those that are not in their rings: they are given.
    pub(super) fn used_regions(&self) -> Vec<UsedRegion> {
        let ended = self.in_flight.ended();
        let ended = ended.map(|(number, all)| (number, (all.extents.clone(), all.records.clone())));
        let open = self.open.iter().flatten();
        let open = open.map(|open| (open.number, open.contents(self.identity.epoch)));
        let mut in_memory: BTreeMap<_, _> = ended.chain(open).collect();
        let used = (0..).zip(self.regions.iter()).filter_map(|(number, region)| {
            Some(UsedRegion {
                number,
                entry: self.whole_entry(number)?,
                live: region.live,
                contents: in_memory.remove(&number),
            })
        });
        used.collect()
    }

    /// Restores the regions of an earlier opening, and the first free sequence.
    pub(super) fn inherit(&mut self, regions: Regions, next_sequence: Sequence) {
        assert!(
            self.open.iter().all(Option::is_none),
            "nothing was appended before"
        );
        assert!(next_sequence > Sequence(0), "numbers begin with 1");
        let probation = |region: &Region| region.state != RegionState::Free && region.ring == Ring::Probation;
        let generations = regions.iter().filter(probation).map(|region| region.generation);
        self.newest = Newest::inherited(generations.collect(), regions.len());
        self.regions = regions;
        self.next_sequence = next_sequence;
        // What earlier openings stored is not known.
        self.dictionary_uses = DictionaryUses([Sequence(next_sequence.0 - 1); DICTIONARIES_MAX]);
    }

    pub(super) fn next_sequence(&self) -> Sequence {
        self.next_sequence
    }

    /// Reserves the last space for reclaim.
    pub(super) fn hold_for_reclaim(&mut self, hold: bool) {
        self.held_for_reclaim = hold;
    }

    /// See [`SegmentLog::age_in_probation`](super::SegmentLog::age_in_probation).
    pub(super) fn age_in_probation(&self, location: Location) -> Option<u64> {
        let number = self.region_of(location);
        if self.regions.ring_of(number) != Ring::Probation {
            return None;
        }
        let regions = self.newest.opened_after(self.regions.generation_of(number))?;
        let region_bytes = self.layout.region_bytes;
        let offset = location.offset() - u64::from(number) * region_bytes;
        let filled = match &self.open[Ring::Probation.index()] {
            Some(open) => match &open.extent {
                Some(extent) => u64::from(extent.offset) + extent.used as u64,
                None => u64::from(self.regions.at(open.number).used),
            },
            None => region_bytes,
        };
        // An image may name an open region that is not the newest.
        Some((regions * region_bytes + filled).saturating_sub(offset))
    }

    /// See [`SegmentLog::is_young_in_main`](super::SegmentLog::is_young_in_main).
    pub(super) fn is_young_in_main(&mut self, location: Location) -> bool {
        let number = self.region_of(location);
        self.regions.ring_of(number) == Ring::Main
            && !self.oldest.has(&self.regions, self.regions.generation_of(number))
    }

    /// The region of a location in use.
    pub(super) fn region_at(&self, location: Location) -> Region {
        self.regions.at(self.region_of(location))
    }

    /// Closes the open regions that are given up: they are reclaimed like the others.
    pub(super) fn close_given_up(&mut self) {
        for ring in Ring::ALL {
            let open = self.open[ring.index()].as_ref().map(|open| open.number);
            if open.is_some_and(|number| self.regions.is_given_up(number)) {
                self.close_if_used(ring);
            }
        }
    }

    /// Seals the regions that are given up if they are free. Returns whether they are sealed. Not while the last free region takes
    /// what is moved: it is needed for that.
    pub(super) fn seal_given_up(&mut self) -> bool {
        self.reclaim.recovering.is_none() && self.regions.seal()
    }

    /// Restores an open region from an index image.
    pub(super) fn reopen(&mut self, number: u32, extents: Vec<SummaryExtent>, records: Vec<u64>) {
        let (ring, region) = (self.regions.ring_of(number), self.regions.at(number));
        assert!(self.open[ring.index()].is_none(), "one open region a ring");
        assert_eq!(region.state, RegionState::Open);
        self.marks.reopened(number, region.generation, region.used);
        let known = records.iter().filter_map(|&record| Record::unpack(record).ok());
        self.filling.fragment_bytes += known.map(|record| record.fragment_bytes() as u64).sum::<u64>();
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
            + self.newest.memory_bytes()
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
