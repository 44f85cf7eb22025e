//! Appending records, and closing extents and regions.

use super::{OpenExtent, OpenRegion, State, WRITES_IN_FLIGHT_MAX};
use crate::shard::log::Awaited;
use crate::shard::log::append::{Append, Appended, Class};
use crate::shard::log::in_flight::{EndedRegion, Extent, Stage, SummaryStage};
use crate::shard::log::lsn::{Lsn, Positions};
use crate::shard::log::regions::FREE_REGIONS_RESERVED;

use flaz_device::IoBuf;
use zerocopy::IntoBytes;

use crate::format::extent::{
    ExtentHeader, FragmentHeader, FragmentIdentity, Packing, RECORD_BYTES, Record, RecordKind,
    fragment_checksum, header_bytes_for, header_copy_bytes, moved_checksum, records_max,
};
use crate::format::group::GROUP_ALIGN_BYTES;
use crate::format::summary::{Summary, SummaryExtent, summary_bytes};
use crate::index::Entry;
use crate::policy::Ring;
use crate::shard::fragment::{Group, checksums_bytes};
use crate::units::{BlockNumber, Location, Sequence};

impl State {
    /// Appends to `ring`. `None`: no space now, because no region is free or too many writes are in flight.
    pub(in crate::shard::log) fn append(
        &mut self,
        ring: Ring,
        block: BlockNumber,
        what: Append<'_>,
        class: Class,
    ) -> Option<Appended> {
        let for_reclaim = class == Class::Reclaim;
        let held = self.held_for_reclaim && self.regions.free_for_reclaim() < FREE_REGIONS_RESERVED;
        // Recovery ignores this region until the reclaim has ended.
        let ignored = self.awaits_reclaim();
        if !for_reclaim && (held || ignored) {
            // Wakes reclaim, which must end first.
            self.starving |= ignored;
            return None;
        }
        let bytes = what.fragment_bytes();
        let align = if what.is_group() { GROUP_ALIGN_BYTES } else { 1 };
        self.make_room(ring, bytes + align - 1, for_reclaim)?;
        let slot = usize::from(ring.number());
        let open = self.open[slot].as_mut().expect("room was made");
        let extent = open.extent.as_mut().expect("room was made");
        let extent_start = u64::from(open.number) * self.layout.region_bytes + u64::from(extent.offset);
        let start = extent.used.next_multiple_of(align);
        let location = Location::at(extent_start + start as u64);
        let generation = self.regions.generation_of(open.number);
        let identity = FragmentIdentity {
            cache: self.identity.cache,
            block,
            location,
            generation,
        };
        if let Some(number) = what.dictionary() {
            debug_assert!(
                !matches!(what, Append::Packed { dirty: true, .. }),
                "dirty data needs no dictionary"
            );
            self.dictionary_uses.note(number, generation);
        }
        assert!(start + bytes <= extent.buf.len(), "room was made in the extent");
        extent.buf[extent.used..start].fill(0);
        let kind = write_fragment(&mut extent.buf[start..start + bytes], what, &identity);
        let record = Record { block, kind };
        let extent_location = Location::at(extent_start);
        let entry = Entry::of_record(record, extent_location, location);
        let entry = entry.unwrap_or_else(|| Entry::same_filled(extent_location, 0));
        let bytes = start + bytes - extent.used;
        extent.moves_dirty |= for_reclaim && what.is_dirty();
        extent.used += bytes;
        extent.records.push(record.pack());
        self.filling.fragment_bytes += bytes as u64;
        let counted = match (class, what) {
            (_, Append::Tombstone | Append::Cleaned) => None,
            (Class::Client, what) if what.is_dirty() => Some(&mut self.appended_bytes.dirty),
            (Class::Client, _) => Some(&mut self.appended_bytes.admitted),
            (Class::Reclaim, what) if what.is_dirty() => Some(&mut self.appended_bytes.moved_dirty),
            (Class::Reclaim, _) => Some(&mut self.appended_bytes.reinserted),
        };
        if let Some(counted) = counted {
            *counted += (bytes + RECORD_BYTES) as u64;
        }
        let lsn = extent.lsn;
        Some(Appended { entry, lsn })
    }

    /// Makes sure that the open extent of `ring` takes one more record and `bytes` bytes.
    pub(super) fn make_room(&mut self, ring: Ring, bytes: usize, for_reclaim: bool) -> Option<()> {
        let slot = usize::from(ring.number());
        loop {
            if let Some(open) = &self.open[slot] {
                if let Some(extent) = &open.extent {
                    if extent.records.len() < records_max(extent.header_bytes) && extent.has_room(bytes) {
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
            // Clean blocks need no space after a crash. If regions have become free since there is one that does not count, what moves to
            // them counts at once: the victim has it, too, and the first one stays free after a crash.
            let is_last = self.held_for_reclaim && self.regions.free_for_reclaim() == 0;
            if is_last && self.reclaim.recovering.is_none() {
                self.reclaim.recovering = Some(number);
            }
            self.marks.opened(number, generation);
            if ring == Ring::Probation {
                self.newest.opened(generation, self.regions.len());
            }
            self.in_flight.push_opening(number);
            self.open[slot] = Some(OpenRegion {
                number,
                extents: Vec::new(),
                records: Vec::new(),
                extent: None,
            });
        }
    }

    /// Reclaim may queue twice as much, so that it never waits for writers that wait for it.
    pub(super) fn may_write(&self, for_reclaim: bool) -> bool {
        let limit = if for_reclaim {
            2 * WRITES_IN_FLIGHT_MAX
        } else {
            WRITES_IN_FLIGHT_MAX
        };
        self.writes_in_flight() < limit
    }

    /// Opens the next extent of the open region of `ring`, for at least `bytes` bytes; false if the region is full.
    pub(super) fn open_extent(&mut self, ring: Ring, bytes: usize) -> bool {
        let layout = &self.layout;
        let open = self.open[usize::from(ring.number())]
            .as_mut()
            .expect("a region is open");
        // Space for twice the records of the last extent: short headers for a single writer, soon the longest for many.
        let last = open.extents.last();
        let header_bytes = last.map_or(layout.header_bytes(), |last| {
            header_bytes_for(2 * usize::from(last.record_count), layout.header_bytes())
        });
        let records_max = records_max(header_bytes);
        let used = u64::from(self.regions.at(open.number).used);
        let summary = summary_bytes(
            open.extents.len() + 1,
            open.records.len() + records_max,
            layout.sector_bytes,
        );
        let room = layout
            .region_bytes
            .saturating_sub(used + summary)
            .min(u64::from(layout.extent_bytes));
        let room = room as usize / layout.sector_bytes as usize * layout.sector_bytes as usize;
        let least = (header_bytes + bytes + header_copy_bytes(1)).max(layout.header_bytes());
        if room < least || open.records.len() + records_max > layout.region_records_max() {
            return false;
        }
        assert!(open.extent.is_none(), "one open extent a ring");
        self.appended = self.appended.next();
        open.extent = Some(OpenExtent {
            lsn: self.appended,
            offset: used as u32,
            buf: IoBuf::new(room),
            used: header_bytes,
            header_bytes,
            records: Vec::with_capacity(records_max),
            moves_dirty: false,
        });
        true
    }

    /// Closes the open extent of `ring` and queues it for writing.
    pub(super) fn seal(&mut self, ring: Ring) {
        let layout = self.layout;
        let Some(open) = self.open[usize::from(ring.number())].as_mut() else {
            return;
        };
        let Some(mut extent) = open.extent.take() else {
            return;
        };
        assert!(!extent.records.is_empty(), "an extent says something");
        let len = extent.sealed_bytes(&layout);
        assert!(
            len <= layout.extent_bytes as usize,
            "an extent has its size at most"
        );
        extent.buf[extent.used..len].fill(0);
        extent.buf.set_len(len);
        let start = u64::from(open.number) * layout.region_bytes + u64::from(extent.offset);
        let position = layout.position(self.identity.shard, Location::at(start));
        let sequence = self.next_sequence;
        self.next_sequence = Sequence(sequence.0 + 1);
        let header = ExtentHeader {
            cache: self.identity.cache,
            extent_bytes: len as u32,
            sequence,
            generation: self.regions.generation_of(open.number),
            position,
            flushes: 0,
            epoch: self.identity.epoch,
            record_count: extent.records.len() as u16,
            shard: self.identity.shard as u16,
            ring,
            header_bytes: extent.header_bytes as u16,
            contents_checksum: 0,
        };
        header.write(&extent.records, &mut extent.buf);
        self.regions.add_used(open.number, len as u32);
        open.extents.push(SummaryExtent {
            offset: extent.offset,
            len: len as u32,
            sequence,
            epoch: self.identity.epoch,
            record_count: header.record_count,
            header_bytes: header.header_bytes,
        });
        // Grows by a quarter: doubling would take twice the memory that a small cache needs.
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

    /// Closes the open region of `ring`: queues its summary. The region enters the ring when all is written.
    pub(super) fn close_region(&mut self, ring: Ring) {
        let Some(open) = self.open[usize::from(ring.number())].take() else {
            return;
        };
        self.damaged[ring.index()] = false;
        self.filling.closed += 1;
        let layout = &self.layout;
        let len = summary_bytes(open.extents.len(), open.records.len(), layout.sector_bytes);
        assert!(!open.extents.is_empty(), "a summary lists something");
        assert!(
            u64::from(self.regions.at(open.number).used) + len <= layout.region_bytes,
            "room for the summary was kept"
        );
        let summary = Summary {
            cache: self.identity.cache,
            shard: self.identity.shard,
            ring,
            generation: self.regions.generation_of(open.number),
            position: layout.region_offset(self.identity.shard, open.number),
            extents: open.extents,
            records: open.records,
        };
        self.in_flight.push_ended(EndedRegion {
            region: open.number,
            ring,
            at: self.appended,
            missing: None,
            place: (summary.position + layout.region_bytes - len, len as usize),
            contents: summary,
            stage: SummaryStage::Queued,
        });
    }

    /// Closes both open regions. Neither waits for space: that of the summary is reserved.
    #[cfg(test)]
    pub(in crate::shard::log) fn close_regions(&mut self) {
        for ring in Ring::ALL {
            self.close_if_used(ring);
        }
    }

    /// Closes the open region of `ring`. One without extents stays open: an empty summary would be refused.
    pub(in crate::shard::log) fn close_if_used(&mut self, ring: Ring) {
        self.seal_ring(ring);
        let open = self.open[ring.index()].as_ref();
        if open.is_some_and(|open| !open.extents.is_empty()) {
            self.close_region(ring);
        }
    }

    /// There is damage at a location. If its region is open, it is closed as soon as another one is free: now, or after the next
    /// reclaim. Returns whether it was closed now.
    pub(in crate::shard::log) fn note_damage(&mut self, location: Location) -> bool {
        if let Some(ring) = self.ring_of_open_region(self.region_of(location)) {
            self.damaged[ring.index()] = true;
        }
        self.close_damaged()
    }

    /// Closes regions with damage, as far as that leaves a free one for what follows.
    pub(in crate::shard::log) fn close_damaged(&mut self) -> bool {
        let mut closed = false;
        for ring in Ring::ALL {
            let may = self.reclaim.victim.is_none() && self.regions.free_len() > FREE_REGIONS_RESERVED;
            if may && self.damaged[ring.index()] {
                self.seal_ring(ring);
                self.close_region(ring);
                closed = true;
            }
        }
        closed
    }

    /// The ring of an open region that has extents on the device.
    fn ring_of_open_region(&self, region: u32) -> Option<Ring> {
        let is_it = |open: &OpenRegion| open.number == region && !open.extents.is_empty();
        (Ring::ALL.into_iter()).find(|ring| self.open[ring.index()].as_ref().is_some_and(is_it))
    }

    /// An extent is lost: closes its region, because recovery finds later extents only by a summary.
    pub(in crate::shard::log) fn abandon(&mut self, lost: Lsn) {
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
        // It may already be closed: then its summary waits for its last extents.
        self.in_flight.note_missing(region, lost);
    }

    /// Seals both open extents, however full.
    pub(in crate::shard::log) fn seal_all(&mut self) {
        for ring in Ring::ALL {
            self.seal_ring(ring);
        }
    }

    /// Seals the open extent of `ring`, however full.
    pub(in crate::shard::log) fn seal_ring(&mut self, ring: Ring) {
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

    /// A writer waits for everything up to these positions.
    pub(in crate::shard::log) fn want(&mut self, upto: &Positions) {
        assert!(
            Positions::both(self.appended).covers(upto),
            "what was appended is sealed"
        );
        self.wanted.raise_all(upto);
    }

    /// The open extents that writers wait for; `None`: no writer waits for one.
    pub(in crate::shard::log) fn awaited(&self) -> Option<Awaited> {
        let (sealed, landed) = (self.sealed(), self.landed());
        if sealed.covers(&self.wanted) {
            return None;
        }
        let in_flight = Ring::ALL.into_iter().any(|ring| {
            let awaited = self.wanted.at(ring).min(sealed.at(ring));
            landed.at(ring) < awaited
        });
        let open = self.open.iter().flatten().flat_map(|open| &open.extent);
        Some(Awaited {
            records: open.map(|extent| extent.records.len()).sum(),
            in_flight,
            may_send: self.writes_in_flight() < WRITES_IN_FLIGHT_MAX,
        })
    }

    /// Seals the open extent of `ring` if a writer waits for it; returns its bytes on the device and its records.
    pub(in crate::shard::log) fn seal_wanted(&mut self, ring: Ring) -> Option<(u64, u64)> {
        let extent = self.open[ring.index()].as_ref()?.extent.as_ref()?;
        if extent.lsn > self.wanted.at(ring) {
            return None;
        }
        let len = extent.sealed_bytes(&self.layout);
        let records = extent.records.len();
        self.seal(ring);
        Some((len as u64, records as u64))
    }
}

/// Writes the fragment of a record, if it has one, to its place. Returns what the record says.
fn write_fragment(place: &mut [u8], what: Append<'_>, identity: &FragmentIdentity) -> RecordKind {
    match what {
        Append::Packed {
            codec,
            stored,
            plain_crc,
            dirty,
        } => {
            let packing = Packing::of_one(stored.len() as u16, codec);
            let checksum = fragment_checksum(identity, packing, plain_crc);
            write_parts(place, FragmentHeader::new(checksum, packing), &[], stored);
            let stored = packing.stored;
            RecordKind::Fragment { stored, dirty }
        }
        Append::Moved {
            header,
            stored,
            from,
            dirty,
        } => {
            let packing = header.packing();
            let checksum = moved_checksum(header.checksum.get(), packing, &from, identity);
            write_parts(place, FragmentHeader::new(checksum, packing), &[], stored);
            let stored = packing.stored;
            RecordKind::Fragment { stored, dirty }
        }
        Append::Group {
            codec,
            stream,
            members,
            plain_crcs,
            live,
        } => {
            assert!(members.contains(live) && members.count() == plain_crcs.len());
            let packing = Packing {
                stored: (checksums_bytes(plain_crcs.len()) + stream.len()) as u16,
                codec,
                members: members.bits(),
            };
            let blocks = members.blocks(identity.block).zip(plain_crcs);
            let checksums =
                blocks.map(|(block, crc)| fragment_checksum(&identity.with_block(block), packing, *crc));
            write_group(place, packing, checksums, stream);
            let stored = packing.stored;
            RecordKind::Group {
                members: live,
                stored,
            }
        }
        Append::MovedGroup {
            header,
            stored,
            from,
            live,
        } => {
            let (packing, group) = (header.packing(), Group::of(header, stored).expect("a group"));
            assert!(group.members.contains(live));
            let blocks = group.members.blocks(identity.block).zip(group.checksums());
            let checksums = blocks.map(|(block, checksum)| {
                let (from, to) = (from.with_block(block), identity.with_block(block));
                moved_checksum(checksum, packing, &from, &to)
            });
            write_group(place, packing, checksums, group.stream());
            let stored = packing.stored;
            RecordKind::Group {
                members: live,
                stored,
            }
        }
        Append::SameFilled { value, dirty } => RecordKind::SameFilled { value, dirty },
        Append::Tombstone => RecordKind::Tombstone,
        Append::Cleaned => RecordKind::Cleaned,
    }
}

fn write_group(place: &mut [u8], packing: Packing, mut checksums: impl Iterator<Item = u32>, stream: &[u8]) {
    let first = checksums.next().expect("a group has members");
    let others: Vec<u8> = checksums.flat_map(u32::to_le_bytes).collect();
    write_parts(place, FragmentHeader::new(first, packing), &others, stream);
}

fn write_parts(place: &mut [u8], header: FragmentHeader, checksums: &[u8], stored: &[u8]) {
    let mut rest = place;
    for part in [header.as_bytes(), checksums, stored] {
        let (here, after) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = after;
    }
    rest.fill(0);
}
