//! The log of a shard: open extents, extents in flight to the device, regions and their rings.
//!
//! | module | part |
//! |---|---|
//! | [`append`] | the kinds of records |
//! | [`lsn`] | positions |
//! | [`age`] | how long ago a block entered probation, and which regions of main are reclaimed next |
//! | [`state`] | open extents and regions: appending, sealing, closing |
//! | [`in_flight`] | writes in flight |
//! | [`landings`] | writers that wait until their records have landed |
//! | [`regions`] | which regions are free, open, full, being reclaimed |
//! | [`space`] | regions with and without space |
//! | [`marks`] | stable lengths of regions, and those in the manifest |
//! | [`manifest`], [`copies`] | writing the manifest |
//! | [`reclaimed`] | the region that is being reclaimed |
//! | [`image`] | the regions' part of an index image |
//!
//! Invariants:
//! - In each ring `appended >= landed >= stable`: appended records have a location, landed ones survive a kill of the process,
//!   stable ones survive a power cut.
//! - One open extent and one open region a ring; one list of extents in flight.
//! - A pinned region is not freed.
//! - Whoever closes an extent calls `Shard::pump_writes` afterwards: nothing else sends it, and a writer may wait for it.
//! - An extent is sent after the manifest has its region. A region is opened again after its state *free* is stable in the
//!   manifest. A block leaves a region after its state *reclaiming* is stable in the manifest.

mod age;
mod append;
mod copies;
mod image;
mod in_flight;
mod landings;
mod lsn;
mod manifest;
mod marks;
mod reclaimed;
mod regions;
mod space;
mod state;

use std::cell::RefCell;

use flaz_device::local::Notify;

use crate::format::extent::FragmentIdentity;
use crate::format::geometry::Geometry;
use crate::format::layout::Layout;
use crate::format::manifest::{ManifestEntry, RegionUse};
use crate::format::summary::SummaryExtent;
use crate::planted::{PlantedBug, planted};
use crate::policy::Ring;
use crate::stats::AppendedBytes;
use crate::units::{BlockNumber, Location, Sequence};
use copies::Manifest;
use landings::Landings;
use state::State;

pub(super) use append::{Append, Appended, Class};
pub(super) use copies::Copies;
pub(super) use in_flight::{PendingWrite, WriteId};
pub(super) use lsn::{Lsn, Positions};
pub(crate) use regions::{Region, RegionState, Regions};
pub use state::{EXTENTS_IN_MEMORY_MAX, WRITES_IN_FLIGHT_MAX};
pub(super) use state::{FlushPoint, LogIdentity};

/// A region that is being reclaimed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim {
    pub(super) region: u32,
    pub(super) ring: Ring,
}

/// A region in use, for a reader of its records.
#[derive(Debug)]
pub(super) struct UsedRegion {
    pub(super) number: u32,
    /// As of a full region.
    pub(super) entry: ManifestEntry,
    /// Number of index entries that point here.
    pub(super) live: u32,
    /// Its extents and their packed records, if they are in memory.
    pub(super) contents: Option<(Vec<SummaryExtent>, Vec<u64>)>,
}

/// The open extents that writers wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    /// Records in open extents.
    pub(super) records: usize,
    /// Writers wait for another extent, which is in flight.
    pub(super) in_flight: bool,
    /// Fewer writes than the most are in flight.
    pub(super) may_send: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct SegmentLog {
    layout: Layout,
    state: RefCell<State>,
    manifest: Manifest,
    /// A write has ended.
    written: Notify,
    landings: Landings,
    /// There may be more space than before.
    space: Notify,
    unpinned: Notify,
    /// A client's flush was acknowledged and is not in the manifest yet.
    flush_answered: Notify,
}

/// A region that must not be discarded while its data is being read.
#[derive(Debug)]
pub(super) struct RegionPin<'a> {
    log: &'a SegmentLog,
    region: u32,
}

impl Drop for RegionPin<'_> {
    fn drop(&mut self) {
        if self.log.state.borrow_mut().regions.unpin(self.region) {
            self.log.unpinned.notify_all();
        }
    }
}

impl SegmentLog {
    pub(super) fn new(geometry: Geometry, identity: LogIdentity) -> Self {
        Self {
            layout: geometry.layout,
            state: RefCell::new(State::new(geometry, identity)),
            manifest: Manifest::new(&geometry),
            written: Notify::new(),
            landings: Landings::default(),
            space: Notify::new(),
            unpinned: Notify::new(),
            flush_answered: Notify::new(),
        }
    }

    // Appending, and locations of records.

    /// Appends to `ring`. `None`: no space now, because no region is free or too many writes are in flight.
    pub(super) fn append(
        &self,
        ring: Ring,
        block: BlockNumber,
        what: Append<'_>,
        class: Class,
    ) -> Option<Appended> {
        self.state.borrow_mut().append(ring, block, what, class)
    }

    pub(super) fn region_of(&self, location: Location) -> u32 {
        self.layout.region_of(location)
    }

    pub(super) fn ring_at(&self, location: Location) -> Ring {
        self.state.borrow().region_at(location).ring
    }

    /// How many bytes probation was given after the block at a location, regions counted whole. `None`: it is in main, or has been
    /// in probation for longer than any [`Policy::window`](crate::policy::Policy::window).
    pub(super) fn age_in_probation(&self, location: Location) -> Option<u64> {
        self.state.borrow().age_in_probation(location)
    }

    /// Whether a location is in main, and not in one of the regions that are reclaimed next: see [`age::Oldest`].
    pub(super) fn is_young_in_main(&self, location: Location) -> bool {
        self.state.borrow_mut().is_young_in_main(location)
    }

    /// Whether no region may have fragments of a dictionary: another one may take its number.
    pub(super) fn is_dictionary_unused(&self, number: u8) -> bool {
        self.state.borrow().is_dictionary_unused(number)
    }

    /// The generation of the region that a location is in.
    pub(super) fn generation_at(&self, location: Location) -> Sequence {
        self.state.borrow().region_at(location).generation
    }

    /// The identity that a fragment of `block` has (or would have) at `location`.
    pub(super) fn identity_at(&self, block: BlockNumber, location: Location) -> FragmentIdentity {
        self.state.borrow().identity_at(block, location)
    }

    /// The ring whose open extent has a record of `block`. A newer record must follow it there.
    pub(super) fn ring_of_open_record(&self, block: BlockNumber) -> Option<Ring> {
        self.state.borrow().ring_of_open_record(block)
    }

    /// Gives `read` the bytes from `location` on to the end of its extent and the identity that a fragment of `block` has
    /// there, if the extent is still in memory.
    pub(super) fn in_memory<T>(
        &self,
        block: BlockNumber,
        location: Location,
        read: impl FnOnce(&[u8], FragmentIdentity) -> T,
    ) -> Option<T> {
        let state = self.state.borrow();
        let bytes = state.in_memory(location)?;
        Some(read(bytes, state.identity_at(block, location)))
    }

    /// Pins the region of `location`, so that it is not freed while it is read.
    pub(super) fn pin(&self, location: Location) -> RegionPin<'_> {
        let region = self.region_of(location);
        self.state.borrow_mut().regions.pin(region);
        RegionPin { log: self, region }
    }

    /// Adjusts the number of index entries in the region of `location`.
    pub(super) fn count_live(&self, location: Location, by: i32) {
        let region = self.region_of(location);
        self.state.borrow_mut().regions.count_live(region, by);
    }

    // Sealing and writing.

    /// Seals both open extents, however full.
    pub(super) fn seal_all(&self) {
        self.state.borrow_mut().seal_all();
    }

    /// Seals the open extent of `ring`, however full.
    pub(super) fn seal_ring(&self, ring: Ring) {
        self.state.borrow_mut().seal_ring(ring);
    }

    /// A writer waits for everything up to these positions.
    pub(super) fn want(&self, upto: &Positions) {
        self.state.borrow_mut().want(upto);
    }

    /// The open extents that writers wait for; `None`: no writer waits for one.
    pub(super) fn awaited(&self) -> Option<Awaited> {
        self.state.borrow().awaited()
    }

    /// Seals the open extents that writers wait for. Returns for each its bytes on the device and its records.
    pub(super) fn seal_wanted(&self) -> [Option<(u64, u64)>; 2] {
        let mut state = self.state.borrow_mut();
        Ring::ALL.map(|ring| state.seal_wanted(ring))
    }

    /// Closes both open regions. Neither waits for space: that of the summary is reserved.
    #[cfg(test)]
    pub(super) fn close_regions(&self) {
        self.state.borrow_mut().close_regions();
    }

    /// There is damage at a location. If its region is open, it is closed as soon as another one is free. Returns whether it was
    /// closed now; otherwise a reclaim may be wanted.
    pub(super) fn note_damage(&self, location: Location) -> bool {
        self.state.borrow_mut().note_damage(location)
    }

    /// The next write for the device, if the limit allows one. Before a summary the device must be flushed.
    pub(super) fn take_write(&self) -> Option<PendingWrite> {
        self.state.borrow_mut().take_write()
    }

    /// A write is about to be sent; false: it is withheld because the device is `fenced`.
    pub(super) fn begin_write(&self, id: WriteId, fenced: bool) -> bool {
        self.state.borrow_mut().begin_write(id, fenced)
    }

    /// The ring, location and packed records of a lost extent.
    pub(super) fn records_of(&self, lsn: Lsn) -> Option<(Ring, Location, Vec<u64>)> {
        self.state.borrow().records_of(lsn)
    }

    /// An extent is lost: closes its region.
    pub(super) fn abandon(&self, lost: Lsn) {
        self.state.borrow_mut().abandon(lost);
    }

    /// A write has succeeded or failed, or is withheld. Wakes the writers whose records have landed.
    pub(super) fn end_write(&self, id: WriteId) {
        let mut state = self.state.borrow_mut();
        state.end_write(id);
        let landed = state.landed();
        drop(state);
        self.landings.wake(&landed);
        self.written.notify_all();
        self.space.notify_all();
    }

    /// Number of writes queued or in flight.
    pub(super) fn writes_in_flight(&self) -> usize {
        self.state.borrow().writes_in_flight()
    }

    /// Bytes that were appended and have not landed.
    pub(super) fn unwritten_bytes(&self) -> u64 {
        self.state.borrow().unwritten_bytes()
    }

    /// Bytes of records that were appended, by who caused them.
    pub(super) fn appended_bytes(&self) -> AppendedBytes {
        self.state.borrow().appended_bytes()
    }

    /// See [`State::fragment_share`].
    pub(super) fn fragment_share(&self) -> Option<f64> {
        self.state.borrow().fragment_share()
    }

    /// Whether writes are queued or in flight.
    pub(super) fn writing(&self) -> bool {
        self.writes_in_flight() > 0
    }

    // Positions.

    /// Whether everything up to these positions has landed.
    pub(super) fn has_landed(&self, upto: &Positions) -> bool {
        self.state.borrow().landed().covers(upto)
    }

    /// Whether an extent has not been sent, and never will be once the device is fenced.
    pub(super) fn is_unsent(&self, lsn: Lsn) -> bool {
        self.state.borrow().is_unsent(lsn)
    }

    /// Whether everything of `ring` up to `lsn` is stable.
    pub(super) fn is_stable(&self, ring: Ring, lsn: Lsn) -> bool {
        self.state.borrow().is_stable(ring, lsn)
    }

    /// Whether everything appended so far is stable, and the manifest says so.
    pub(super) fn is_all_stable(&self) -> bool {
        self.state.borrow().is_all_stable() && self.unmarked(true).is_empty()
    }

    /// Dirty blocks up to these positions are acknowledged to writers: they have landed.
    pub(super) fn promise(&self, upto: &Positions) {
        assert!(
            self.has_landed(upto) || planted(PlantedBug::AcknowledgedBeforeLanding),
            "only what has landed is promised"
        );
        self.state.borrow_mut().promise(upto);
    }

    /// Dirty blocks of earlier openings may be acknowledged and not stable.
    pub(super) fn promise_inherited(&self) {
        self.promise(&Positions::both(Lsn::INHERITED));
    }

    /// Whether everything acknowledged is stable.
    pub(super) fn keeps_promises(&self) -> bool {
        self.state.borrow().keeps_promises()
    }

    /// Seals the open extents. A flush makes the returned point stable once [`SegmentLog::has_ended`] is true for it.
    pub(super) fn seal_for_flush(&self) -> FlushPoint {
        self.state.borrow_mut().seal_for_flush()
    }

    /// Whether no write that `point` covers is in flight.
    pub(super) fn has_ended(&self, point: &FlushPoint) -> bool {
        self.state.borrow().has_ended(point)
    }

    /// The point that a flush beginning now makes stable, without sealing.
    pub(super) fn landed_point(&self) -> FlushPoint {
        self.state.borrow().landed_point()
    }

    /// A flush that began at `point` has succeeded: landed extents and written manifest sectors are stable.
    pub(super) fn note_flushed(&self, point: &FlushPoint) {
        self.state.borrow_mut().note_flushed(point);
    }

    /// The same, for the manifest only.
    pub(super) fn note_manifest_flushed(&self, point: &FlushPoint) {
        self.state.borrow_mut().note_manifest_flushed(point);
    }

    /// A flush has made a closed region and its summary stable.
    pub(super) fn note_whole(&self, region: u32) {
        self.state.borrow_mut().note_whole(region);
    }

    /// A flush that began at `point` has succeeded, and so have the writes that must follow it: `stable` moves up to there.
    pub(super) fn raise_stable(&self, point: &FlushPoint) {
        self.state.borrow_mut().raise_stable(point);
    }

    // Events.

    /// Everything up to these positions has landed, or the device is fenced.
    pub(super) async fn landed(&self, upto: &Positions) {
        self.landings.wait(upto).await;
    }

    /// A write ends, or the device is fenced.
    pub(super) async fn write_ended(&self) {
        self.written.notified().await;
    }

    /// There may be more space than before.
    pub(super) async fn room(&self) {
        self.space.notified().await;
    }

    /// A flush was acknowledged and the manifest must be updated, or the shard stops.
    pub(super) async fn flush_answered(&self) {
        self.flush_answered.notified().await;
    }

    /// Requests a manifest update for the flush that is being acknowledged.
    pub(super) fn note_answered(&self) {
        self.flush_answered.notify_one();
    }

    /// Wakes all that wait for space.
    pub(super) fn wake_room(&self) {
        self.space.notify_all();
    }

    /// The device is fenced: wakes all that wait for a write or for space.
    pub(super) fn wake_all(&self) {
        self.landings.wake(&Positions::both(Lsn::MAX));
        self.written.notify_all();
        self.space.notify_all();
    }

    // Regions.

    /// Whether a region must be reclaimed now: one will be needed soon and only the reserved one is free, or the log shrinks, or gives
    /// space back.
    pub(super) fn wants_reclaim(&self) -> bool {
        self.wants_space() || self.must_free() || self.must_give()
    }

    /// Whether clients append nothing until a reclaim has ended, running or put back.
    pub(super) fn awaits_reclaim(&self) -> bool {
        self.state.borrow().awaits_reclaim()
    }

    /// Whether only the reserved region is free, and one will be needed soon.
    pub(super) fn wants_space(&self) -> bool {
        self.state.borrow().wants_space()
    }

    /// The oldest full region of `ring`, for reclaim.
    pub(super) fn take_oldest(&self, ring: Ring) -> Option<Victim> {
        let mut state = self.state.borrow_mut();
        let region = state.take_oldest(ring)?;
        Some(Victim { region, ring })
    }

    /// The manifest entry of a region that is being reclaimed.
    pub(super) fn entry_of(&self, victim: Victim) -> ManifestEntry {
        let entry = self.state.borrow().entry(victim.region);
        assert!(entry.state == RegionUse::Reclaiming, "it is being reclaimed");
        entry
    }

    /// Puts a region that could not be reclaimed back as the oldest of its ring.
    pub(super) fn put_back(&self, victim: Victim) {
        self.state.borrow_mut().put_back(victim.region);
    }

    /// Waits until a region that is being reclaimed has no readers.
    pub(super) async fn unpinned(&self, victim: Victim) {
        while self.state.borrow().regions.pinned(victim.region) && !planted(PlantedBug::RegionNotPinned) {
            self.unpinned.notified().await;
        }
    }

    /// All blocks of the victim that stay are stable elsewhere. Returns the region that took them, if its state in the manifest
    /// must change before the victim is free.
    pub(super) fn end_recovering(&self) -> Option<u32> {
        self.state.borrow_mut().end_recovering()
    }

    /// The victim is empty: the next write of the manifest says so.
    pub(super) fn empty_victim(&self) {
        self.state.borrow_mut().empty_victim();
    }

    /// A reclaimed region becomes free.
    pub(super) fn free(&self, victim: Victim) {
        assert_eq!(self.victim(), Some(victim.region), "it was reclaimed");
        self.state.borrow_mut().release(victim.region);
        self.wake_room();
    }

    /// No index entry is in a region any more. Returns how many there were.
    pub(super) fn retire_live(&self, region: u32) -> u32 {
        self.state.borrow_mut().regions.retire_live(region)
    }

    /// Number of index entries in a region.
    pub(super) fn live_in(&self, region: u32) -> u32 {
        self.state.borrow().regions.at(region).live
    }

    /// While the value is held, only reclaim gets the last space.
    pub(super) fn hold_for_reclaim(&self, hold: bool) {
        self.state.borrow_mut().hold_for_reclaim(hold);
    }

    /// Number of regions, whatever their use.
    pub(super) fn region_count(&self) -> u64 {
        u64::from(self.state.borrow().regions.len())
    }

    /// Number of regions of `ring`, including the open one.
    pub(super) fn regions_of(&self, ring: Ring) -> u64 {
        self.state.borrow().regions.count(ring)
    }

    pub(super) fn free_regions(&self) -> usize {
        self.state.borrow().regions.free_len()
    }

    /// Number of free regions with space, and without. Regions that are being removed are included.
    pub(super) fn unused_regions(&self) -> (usize, usize) {
        self.state.borrow().regions.unused()
    }

    // Growing and shrinking: see `regions::shrink`.

    /// Appends regions, so that there are `count`. Their entries in the manifest on the device must be free.
    pub(super) fn grow(&self, count: u32, withheld: bool) {
        let mut state = self.state.borrow_mut();
        state.regions.grow(count, withheld);
        state.close_damaged();
        drop(state);
        self.wake_room();
    }

    /// Only `count` regions shall remain.
    pub(super) fn plan_shrink(&self, count: u32) {
        self.state.borrow_mut().regions.plan_shrink(count);
    }

    /// Number of regions that shall remain: all of them, but in a shrink.
    pub(super) fn regions_remaining(&self) -> u32 {
        self.state.borrow().regions.remaining()
    }

    /// Whether a shrink is under way.
    pub(super) fn is_shrink_planned(&self) -> bool {
        self.state.borrow().regions.is_shrink_planned()
    }

    /// Whether the regions to be removed are sealed: all free, and not opened again.
    pub(super) fn is_sealed(&self) -> bool {
        self.state.borrow().regions.is_sealed()
    }

    /// Gives up the regions that shall not remain. False: that has begun before.
    pub(super) fn give_up(&self) -> bool {
        self.state.borrow_mut().regions.give_up()
    }

    /// Whether reclaim must go on for the shrink.
    pub(super) fn must_free(&self) -> bool {
        self.state.borrow().regions.must_free()
    }

    /// Calls the shrink off, if one is under way.
    pub(super) fn keep_all(&self) {
        let mut state = self.state.borrow_mut();
        state.regions.keep_all();
        state.close_damaged();
        drop(state);
        self.wake_room();
    }

    /// Closes open regions that are being removed.
    pub(super) fn close_given_up(&self) {
        self.state.borrow_mut().close_given_up();
    }

    /// Number of regions in use that shall not remain.
    pub(super) fn given_up_used(&self) -> u32 {
        self.state.borrow().regions.given_up_used()
    }

    /// Seals the regions to be removed if all are free. Returns whether they are sealed.
    pub(super) fn seal_given_up(&self) -> bool {
        self.state.borrow_mut().seal_given_up()
    }

    /// Removes the sealed regions from the table.
    pub(super) fn cut(&self) {
        self.state.borrow_mut().regions.cut();
    }

    /// The ring to reclaim, where the policy wants `wanted`.
    pub(super) fn ring_to_free(&self, wanted: Ring) -> Ring {
        self.state.borrow().regions.ring_to_free(wanted)
    }

    /// Whether reclaim keeps clean blocks as the policy says; otherwise it drops them.
    pub(super) fn keeps_clean(&self) -> bool {
        self.state.borrow().regions.keeps_clean()
    }

    /// The first free regions, up to a maximum.
    pub(super) fn first_free(&self, most: usize) -> Vec<u32> {
        self.state.borrow().regions.free().take(most).collect()
    }

    /// Used bytes of all regions.
    pub(super) fn used_bytes(&self) -> u64 {
        let state = self.state.borrow();
        state.regions.iter().map(|region| u64::from(region.used)).sum()
    }

    /// Memory of the extents that are open, queued or in flight.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.state.borrow().buffer_bytes()
    }

    /// Memory that grows with the cache (not the bounded buffers).
    pub(super) fn memory_bytes(&self) -> usize {
        self.state.borrow().memory_bytes()
    }

    // Reading all records.

    /// The regions in use: those whose contents are given, and those that the device has.
    pub(super) fn used_regions(&self) -> Vec<UsedRegion> {
        self.state.borrow().used_regions()
    }

    /// The entry of a region with all that was appended to it. `None`: nothing there counts.
    pub(super) fn whole_entry(&self, region: u32) -> Option<ManifestEntry> {
        self.state.borrow().whole_entry(region)
    }

    // Restoring the state of an earlier opening.

    pub(super) fn next_sequence(&self) -> Sequence {
        self.state.borrow().next_sequence()
    }

    /// Restores the regions of an earlier opening. Extents and generations are numbered from `next_sequence` on.
    pub(super) fn inherit(&self, regions: Regions, next_sequence: Sequence) {
        self.state.borrow_mut().inherit(regions, next_sequence);
    }

    /// Adds restored index entries to the counts of their regions.
    pub(super) fn inherit_live(&self, live: &[u32]) {
        assert_eq!(live.len() as u64, self.region_count());
        let mut state = self.state.borrow_mut();
        for (number, &live) in live.iter().enumerate().filter(|(_, live)| **live > 0) {
            state.regions.count_live(number as u32, live as i32);
        }
    }

    /// Continues an open region of an earlier opening.
    pub(super) fn reopen(&self, number: u32, extents: Vec<SummaryExtent>, records: Vec<u64>) {
        self.state.borrow_mut().reopen(number, extents, records);
    }

    /// The region whose reclaim is running or unfinished.
    pub(super) fn victim(&self) -> Option<u32> {
        self.state.borrow().victim()
    }

    /// The oldest region of its ring was being reclaimed when an earlier opening ended.
    pub(super) fn inherit_victim(&self, region: u32) {
        self.state.borrow_mut().inherit_victim(region);
    }
}

#[cfg(test)]
impl SegmentLog {
    /// Whether a region is pinned.
    pub(super) fn is_pinned(&self, region: u32) -> bool {
        self.state.borrow().regions.pinned(region)
    }

    /// Bytes of sealed extents in the open region of a ring.
    pub(super) fn used_of_open(&self, ring: Ring) -> u32 {
        let state = self.state.borrow();
        state.open_numbers()[ring.index()].map_or(0, |region| state.regions.at(region).used)
    }

    /// The entry that the manifest should have for a region.
    pub(super) fn entry(&self, region: u32) -> ManifestEntry {
        self.state.borrow().entry(region)
    }

    /// Full regions of `ring`.
    pub(super) fn full_regions(&self, ring: Ring) -> u32 {
        self.state.borrow().regions.ring_len(ring)
    }

    /// The open regions, by ring.
    pub(super) fn open_numbers(&self) -> [Option<u32>; 2] {
        self.state.borrow().open_numbers()
    }

    /// Whether an extent is not on the device yet.
    pub(super) fn is_under_way(&self, lsn: Lsn) -> bool {
        self.state.borrow().is_under_way(lsn)
    }
}

#[cfg(test)]
mod tests;
