//! A simulated cache: the two rings of a shard, filled with sampled blocks, under the shard's own policy.
//!
//! A ring counts bytes of a real cache: a sampled block stands for 2^`shift` blocks. So regions begin, age and leave as in the
//! engine, also where a region has only a few sampled blocks, or less than one.
//!
//! Invariant: the slots that have this cache as a user are those whose place names an entry of a ring.

use std::collections::VecDeque;
use std::fmt;

use super::codecs::NEW_SHARE;
use super::table::{Place, Sizes, Table, scaled, to_size};
use super::{SIZE_UNIT, Simulation, Space, fragment_bytes};
use crate::policy::{Admission, Fate, Policy, PolicyKind, Price, Ring, RingSizes};
use crate::units::BLOCK_BYTES;

/// Regions that the engine keeps free: the reserved one. It reclaims another only shortly before that is needed.
const REGIONS_FREE: u64 = 1;
/// Smaller caches have smaller regions, not fewer, down to this number.
const REGIONS_MIN: u64 = 64;
/// Regions that are reclaimed in so many steps, at most: a step of a large cache takes several.
const STEPS: u64 = 256;
/// Of an entry that only takes space.
const NO_SLOT: u16 = u16::MAX;
/// Entries of both rings for each block of the table, in the largest cache: old versions of written blocks have entries as well.
const ENTRIES_PER_SLOT: f64 = 1.25;
/// Entries that are appended before the sample is thinned out, at most.
const ENTRIES_MORE: usize = 2;
const _: () = assert!(
    Simulation::SLOTS_LIMIT as f64 * ENTRIES_PER_SLOT + (REGIONS_MIN as usize + ENTRIES_MORE) as f64
        <= u16::MAX as f64,
    "numbers of entries do not wrap within a ring"
);

/// How large the blocks of a cache are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sizing {
    /// As in the real cache.
    Real,
    /// Uncompressed, but for those of one value.
    Uncompressed,
    /// As `auto` would store them.
    Auto(AutoSizes),
}

/// How large blocks would be with `auto`, in units of a new block of the real cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoSizes {
    /// As new blocks.
    pub new: f64,
    /// When they stay.
    pub stay: f64,
    /// What they were estimated from.
    pub source: Source,
}

/// What sizes were estimated from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The codec in use, if it is in the comparison of codecs.
    pub in_use: Option<usize>,
    /// There were enough samples.
    pub samples: bool,
    /// What a dictionary saves was tried with enough blocks.
    pub trials: bool,
}

impl AutoSizes {
    /// The mean size.
    #[must_use]
    pub fn mean(self) -> f64 {
        NEW_SHARE * self.new + (1.0 - NEW_SHARE) * self.stay
    }

    /// The size of a block that stays, as a share of its size as a new block.
    #[must_use]
    pub fn kept_ratio(self) -> f64 {
        self.stay / self.new
    }
}

impl Default for AutoSizes {
    /// Nothing is known.
    fn default() -> Self {
        Self {
            new: 1.0,
            stay: 1.0,
            source: Source::default(),
        }
    }
}

/// An entry of a ring.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The number of the slot, in bytes: so an entry takes three.
    slot: [u8; 2],
    /// The size that this entry counts: of the block, or of an earlier version of it.
    size: u8,
}

impl Entry {
    fn new(slot: u16, size: u8) -> Self {
        Self {
            slot: slot.to_ne_bytes(),
            size,
        }
    }

    fn slot(self) -> u16 {
        u16::from_ne_bytes(self.slot)
    }

    /// The bytes that it counts.
    fn bytes(self, shift: u32) -> u64 {
        (u64::from(self.size) * SIZE_UNIT) << shift
    }
}

/// A ring. Positions are in bytes from its first entry ever.
#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// Number of the first entry.
    first: u64,
    /// Position of the first entry.
    start: u64,
    /// Position of the next one.
    end: u64,
    /// The oldest region begins here.
    reclaimed: u64,
    /// The first entry in the correlation window, and its position.
    window: (u64, u64),
}

impl Queue {
    fn new(entries_max: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(entries_max + ENTRIES_MORE),
            ..Self::default()
        }
    }

    /// Bytes of the regions in use, the open one as a whole.
    fn used(&self, region: u64) -> u64 {
        self.end.next_multiple_of(region) - self.reclaimed
    }

    fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// The index of the entry of a block in this ring.
    fn index_of(&self, place: Place) -> usize {
        // Numbers wrap: no ring has as many entries.
        let back = (self.next() as u16).wrapping_sub(place.sequence);
        (self.entries.len().checked_sub(usize::from(back))).expect("the ring has the block")
    }

    /// Moves the window up to the newest `length` bytes.
    fn follow(&mut self, length: u64, shift: u32) {
        let limit = self.end.saturating_sub(length);
        let (mut number, mut position) = self.window;
        if number < self.first {
            (number, position) = (self.first, self.start);
        }
        while let Some(entry) = self.entries.get((number - self.first) as usize)
            && position + entry.bytes(shift) <= limit
        {
            position += entry.bytes(shift);
            number += 1;
        }
        self.window = (number, position);
    }
}

/// See the module's documentation.
pub(super) struct SimulatedCache {
    /// Its number, in the places of a slot.
    number: usize,
    /// Its capacity in units of the real one.
    multiple: f64,
    sizing: Sizing,
    regions_max: u64,
    policy: Box<dyn Policy>,
    rings: [Queue; 2],
    /// Bytes of a region.
    region: u64,
    regions: u64,
    blocks: u64,
    /// Sizes in the entries of its blocks, added up.
    sizes: u64,
    reclaimed: bool,
    /// Entries of both rings. Each has room for all of them: while a cache fills, all of it is probation.
    entries_max: usize,
}

impl fmt::Debug for SimulatedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f.debug_struct("SimulatedCache"))
            .field("rings", &self.sizes_of_rings())
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}

impl SimulatedCache {
    /// The table has slots for the blocks of the largest cache.
    pub fn new(number: usize, simulation: &Simulation, kind: PolicyKind, space: Space, shift: u32) -> Self {
        let (multiple, sizing) = simulation.cache(number);
        let share = match sizing {
            Sizing::Real | Sizing::Uncompressed => multiple / simulation.largest(),
            // It may have several times as many blocks as the real cache.
            Sizing::Auto(_) => 1.0,
        };
        let entries_max =
            (simulation.slots as f64 * ENTRIES_PER_SLOT * share) as usize + REGIONS_MIN as usize;
        let mut cache = Self {
            number,
            multiple,
            sizing,
            regions_max: simulation.regions_max,
            policy: kind.build(0),
            rings: [Queue::new(entries_max), Queue::new(entries_max)],
            region: 1,
            regions: REGIONS_MIN,
            blocks: 0,
            sizes: 0,
            reclaimed: false,
            entries_max,
        };
        cache.fit(space, shift);
        cache.policy = kind.build(cache.policy_blocks(shift));
        cache
    }

    /// The space is another from now on; the cache has its multiple of it.
    pub fn fit(&mut self, space: Space, shift: u32) {
        let total = (space.region_bytes * space.regions) as f64 * self.multiple;
        let least = REGIONS_MIN.min(space.regions).max(1);
        let regions = (space.regions as f64 * self.multiple).round() as u64;
        self.regions = regions.min(self.regions_max).max(least);
        self.region = ((total / self.regions as f64) as u64).max(1);
        self.policy.capacity(self.policy_blocks(shift));
    }

    /// Space that the policy sees: uncompressed blocks of the sample.
    fn policy_blocks(&self, shift: u32) -> u64 {
        (self.regions * self.region / BLOCK_BYTES as u64) >> shift
    }

    pub fn memory_bytes(&self) -> usize {
        let entries: usize = self.rings.iter().map(|ring| ring.entries.capacity()).sum();
        entries * size_of::<Entry>() + self.policy.memory_bytes()
    }

    /// Whether the rings have as many entries as they may.
    pub fn is_crowded(&self) -> bool {
        let entries: usize = self.rings.iter().map(|ring| ring.entries.len()).sum();
        entries >= self.entries_max
    }

    /// Whether a region was ever reclaimed, so that the cache is as full as it can be.
    pub fn was_full(&self) -> bool {
        self.reclaimed
    }

    /// A read of a block; `admit`: a miss may be admitted. Returns whether it is a hit.
    pub fn read(&mut self, table: &mut Table, slot: u16, admit: bool, shift: u32) -> bool {
        let mut place = table.place(slot, self.number);
        match place.ring() {
            Some(ring) => {
                // Numbers wrap: no ring has as many entries.
                let window = &self.rings[Ring::Probation.index()];
                let back = (window.next() as u16).wrapping_sub(place.sequence);
                let in_window = ring == Ring::Probation && u64::from(back) <= window.next() - window.window.0;
                if !in_window {
                    place.touch();
                    table.set_place(slot, self.number, place);
                }
                if let Sizing::Auto(_) = self.sizing {
                    // By what is known now.
                    self.resized(table, slot, table.sizes(slot), shift);
                }
                true
            }
            None => {
                if admit {
                    self.admit(table, slot, shift);
                }
                false
            }
        }
    }

    /// A write of a block that the cache keeps, with its new contents.
    pub fn write(&mut self, table: &mut Table, slot: u16, admit: bool, shift: u32) {
        let place = table.place(slot, self.number);
        match place.ring() {
            Some(ring) => {
                let mut used = place;
                used.touch();
                self.forget(table, slot);
                self.append(table, slot, ring, used.hits(), shift);
                self.make_room(table, shift);
            }
            None if admit => self.admit(table, slot, shift),
            None => {}
        }
    }

    /// The block is no longer cached.
    pub fn drop_block(&mut self, table: &mut Table, slot: u16) {
        if table.place(slot, self.number).ring().is_some() {
            self.forget(table, slot);
        }
    }

    /// Sets the sizes of blocks that are stored from now on. With `auto`, a cached block gets its new size when it is read.
    pub fn set_sizing(&mut self, sizing: Sizing) {
        self.sizing = sizing;
    }

    /// The sizes of the block are `are` from now on.
    pub fn resized(&mut self, table: &Table, slot: u16, are: Sizes, shift: u32) {
        let place = table.place(slot, self.number);
        let Some(ring) = place.ring() else { return };
        let is = Entry::new(slot, self.size_of(are, ring));
        let ring = &mut self.rings[ring.index()];
        let index = ring.index_of(place);
        let was = std::mem::replace(&mut ring.entries[index], is);
        if was.size == is.size {
            return;
        }
        self.sizes = self.sizes + u64::from(is.size) - u64::from(was.size);
        let moved = |position: u64| position + is.bytes(shift) - was.bytes(shift);
        ring.end = moved(ring.end);
        if ring.first + (index as u64) < ring.window.0 {
            ring.window.1 = moved(ring.window.1);
        }
    }

    fn admit(&mut self, table: &mut Table, slot: u16, shift: u32) {
        match self.policy.admit(table.key(slot)) {
            Admission::To(ring) | Admission::Remembered(ring) => {
                self.append(table, slot, ring, 0, shift);
                self.make_room(table, shift);
            }
            Admission::Refuse | Admission::OverBudget => {}
        }
    }

    fn append(&mut self, table: &mut Table, slot: u16, ring: Ring, hits: u8, shift: u32) {
        let size = self.size_of(table.sizes(slot), ring);
        let window = match ring {
            Ring::Probation => self.policy.window(self.sizes_of_rings()),
            Ring::Main => 0,
        };
        let queue = &mut self.rings[ring.index()];
        let sequence = queue.next() as u16;
        let entry = Entry::new(slot, size);
        queue.entries.push_back(entry);
        queue.end += entry.bytes(shift);
        if ring == Ring::Probation {
            queue.follow(window, shift);
        }
        table.set_place(slot, self.number, Place::cached(ring, hits, sequence));
        table.hold(slot);
        self.blocks += 1;
        self.sizes += u64::from(size);
    }

    fn forget(&mut self, table: &mut Table, slot: u16) {
        let place = table.place(slot, self.number);
        let ring = &self.rings[place.ring().expect("it has the block").index()];
        let entry = ring.entries[ring.index_of(place)];
        self.leave(table, entry);
    }

    /// The block of an entry is no longer cached.
    fn leave(&mut self, table: &mut Table, entry: Entry) {
        table.set_place(entry.slot(), self.number, Place::default());
        self.blocks -= 1;
        self.sizes -= u64::from(entry.size);
        table.release(entry.slot());
    }

    /// The size that a block with these sizes has in a ring of this cache. With any codec, or none, a block of one value takes no more.
    pub fn size_of(&self, sizes: Sizes, ring: Ring) -> u8 {
        match self.sizing {
            _ if sizes.has_one_value() => sizes.of(ring),
            Sizing::Real => sizes.of(ring),
            Sizing::Uncompressed => to_size(fragment_bytes(BLOCK_BYTES as u64)),
            Sizing::Auto(AutoSizes { new, stay, .. }) => {
                let is_new = ring == Ring::Probation || sizes.is_new_in_main();
                let ratio = if is_new { new } else { stay };
                scaled(sizes.of(Ring::Probation), ratio)
            }
        }
    }

    /// Bytes of its blocks.
    #[cfg(test)]
    pub fn bytes_held(&self, shift: u32) -> u64 {
        (self.sizes * SIZE_UNIT) << shift
    }

    /// Checks that the sums are those of the entries.
    #[cfg(test)]
    pub fn check(&self, table: &Table, shift: u32) {
        let (mut blocks, mut sizes) = (0, 0);
        for ring in Ring::ALL {
            let queue = &self.rings[ring.index()];
            let bytes: u64 = queue.entries.iter().map(|entry| entry.bytes(shift)).sum();
            assert_eq!(queue.start + bytes, queue.end, "{self:?}");
            let before = (queue.window.0 - queue.first.min(queue.window.0)) as usize;
            let bytes: u64 = queue
                .entries
                .iter()
                .take(before)
                .map(|entry| entry.bytes(shift))
                .sum();
            assert!(before == 0 || queue.start + bytes == queue.window.1, "{self:?}");
            for (number, entry) in (queue.first..).zip(&queue.entries) {
                let slot = entry.slot();
                let place = (slot != NO_SLOT).then(|| table.place(slot, self.number));
                if place.is_some_and(|it| it.ring() == Some(ring) && it.sequence == number as u16) {
                    blocks += 1;
                    sizes += u64::from(entry.size);
                }
            }
        }
        assert_eq!((blocks, sizes), (self.blocks, self.sizes), "{self:?}");
    }

    fn sizes_of_rings(&self) -> RingSizes {
        RingSizes {
            probation: self.rings[Ring::Probation.index()].used(self.region),
            main: self.rings[Ring::Main.index()].used(self.region),
            total: self.region * self.regions,
        }
    }

    /// Reclaims regions until one is free.
    fn make_room(&mut self, table: &mut Table, shift: u32) {
        loop {
            let sizes = self.sizes_of_rings();
            let free = sizes.total.saturating_sub(sizes.probation + sizes.main);
            if free >= REGIONS_FREE * self.region || !self.reclaim(table, sizes, shift) {
                return;
            }
        }
    }

    /// Reclaims the oldest region of a ring; false if there is none but open ones.
    fn reclaim(&mut self, table: &mut Table, sizes: RingSizes, shift: u32) -> bool {
        let step = self.region * self.regions.div_ceil(STEPS);
        let has_region = |ring: &Ring| {
            let queue = &self.rings[ring.index()];
            queue.reclaimed + self.region <= queue.end
        };
        let victim = self.policy.victim(sizes);
        let Some(ring) = [victim, victim.other()].into_iter().find(has_region) else {
            return false;
        };
        self.reclaimed = true;
        self.policy.cached_blocks(self.blocks);
        let queue = &mut self.rings[ring.index()];
        // The open region stays.
        let full = (queue.end - queue.reclaimed) / self.region * self.region;
        queue.reclaimed += step.min(full);
        // What is appended now, to main, is newer than all that leaves.
        let (until, last) = (queue.reclaimed, queue.next());
        let mean = (self.sizes * SIZE_UNIT).checked_div(self.blocks).unwrap_or(0);
        loop {
            let queue = &mut self.rings[ring.index()];
            if queue.start >= until || queue.first >= last {
                return true;
            }
            let number = queue.first as u16;
            let Some(entry) = queue.entries.pop_front() else {
                return true;
            };
            queue.first += 1;
            queue.start += entry.bytes(shift);
            let slot = entry.slot();
            if slot == NO_SLOT {
                continue;
            }
            let place = table.place(slot, self.number);
            if place.ring() != Some(ring) || place.sequence != number {
                continue;
            }
            let price = Price::of(u64::from(entry.size) * SIZE_UNIT, mean);
            match self.policy.reclaim(ring, table.key(slot), place.hits(), price) {
                Fate::Keep { ring, hits } => {
                    table.hold(slot);
                    self.leave(table, entry);
                    self.append(table, slot, ring, hits, shift);
                    table.release(slot);
                }
                Fate::Drop => self.leave(table, entry),
            }
        }
    }

    /// Half of the blocks leave the sample, those for which `gone` says so; the others count as twice as many.
    pub fn thin_out(&mut self, table: &mut Table, gone: impl Fn(u64) -> bool, space: Space, shift: u32) {
        for ring in Ring::ALL {
            let queue = &mut self.rings[ring.index()];
            let entries = std::mem::take(&mut queue.entries);
            let (first, start) = (queue.first, queue.start);
            queue.end = start;
            queue.window = (first, start);
            let mut kept = VecDeque::with_capacity(entries.capacity());
            for (number, entry) in (first..).zip(entries) {
                let slot = entry.slot();
                let is_stale = slot == NO_SLOT || {
                    let place = table.place(slot, self.number);
                    place.ring() != Some(ring) || place.sequence != number as u16
                };
                let slot = match is_stale {
                    // Of stale entries, half of the space remains as well.
                    true if number.is_multiple_of(2) => NO_SLOT,
                    true => continue,
                    false if gone(table.key(slot)) => {
                        self.leave(table, entry);
                        continue;
                    }
                    false => {
                        let mut place = table.place(slot, self.number);
                        place.sequence = (first + kept.len() as u64) as u16;
                        table.set_place(slot, self.number, place);
                        slot
                    }
                };
                let entry = Entry {
                    slot: slot.to_ne_bytes(),
                    ..entry
                };
                kept.push_back(entry);
                self.rings[ring.index()].end += entry.bytes(shift);
            }
            self.rings[ring.index()].entries = kept;
        }
        self.fit(space, shift);
        self.policy.cached_blocks(self.blocks);
        self.make_room(table, shift);
    }
}
