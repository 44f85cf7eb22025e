//! The sampled blocks: what the simulated caches know of each.
//!
//! Invariants: a block has one slot; a slot is in use as long as one of the caches has the block, or the reference to it lasts; no
//! more than [`Table::new`] got are in use. Memory is allocated once.

use super::{CACHES, SHIFT_MAX, SIZE_UNIT, fragment_bytes};
use crate::policy::{HITS_MAX, Ring};
use crate::units::BLOCK_BYTES;

/// An empty place of the hash index.
const EMPTY: u16 = u16::MAX;

/// What one cache knows of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Of the entry in the ring that has the block, the low bits.
    pub sequence: u16,
    /// 0: not cached. Otherwise 1 and the ring, and the uses above.
    state: u8,
}

impl Place {
    pub fn cached(ring: Ring, hits: u8, sequence: u16) -> Self {
        Self {
            sequence,
            state: 1 | ring.number() << 1 | hits << 2,
        }
    }

    pub fn ring(self) -> Option<Ring> {
        (self.state != 0).then(|| Ring::ALL[usize::from(self.state >> 1 & 1)])
    }

    pub fn hits(self) -> u8 {
        self.state >> 2
    }

    /// Counts a use.
    pub fn touch(&mut self) {
        if self.hits() < HITS_MAX {
            self.state += 1 << 2;
        }
    }
}

/// Bits of a state.
const STATE_MASK: u8 = 0xf;
const _: () = assert!(HITS_MAX <= STATE_MASK >> 2, "uses have two bits");

/// Where in the byte of two caches the state of one is.
fn shift_of(cache: usize) -> usize {
    cache % 2 * 4
}

/// A sampled block.
#[derive(Clone, Copy, Debug)]
struct Slot {
    key: u64,
    /// A [`Place`] in each cache, in two arrays: a state has four bits.
    sequences: [u16; CACHES],
    states: [u8; CACHES.div_ceil(2)],
    /// Number of caches that have it, and one while it is referenced.
    users: u8,
    /// Bytes of the cache device that it takes.
    sizes: Sizes,
}

/// Bytes of the cache device that a block takes, in units of [`SIZE_UNIT`], by [`Ring::index`]: blocks that stay may be compressed again.
/// Those that the cache has not stored yet are estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    bytes: [u8; 2],
    flags: u8,
}

/// The size in probation was stored, not estimated. Shifted left by one: that in main.
const KNOWN: u8 = 1;
/// A reclaim has made the block as large as it is in main, so it will do so again.
const RECLAIMED: u8 = 4;
/// All bytes of the block have one value: it takes no space, with any codec or none.
const ONE_VALUE: u8 = 8;
/// In main it is as large as a new block: a client wrote it there, or it is dirty.
const NEW_IN_MAIN: u8 = 16;

impl Sizes {
    /// Both are estimated.
    pub fn estimated(new: u8, kept: u8) -> Self {
        Self {
            bytes: [new, kept],
            flags: 0,
        }
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn set(&mut self, flag: u8, to: bool) {
        self.flags = match to {
            true => self.flags | flag,
            false => self.flags & !flag,
        };
    }

    pub fn has_one_value(self) -> bool {
        self.has(ONE_VALUE)
    }

    /// With contents that take no space, or others.
    pub fn of_one_value(mut self, one_value: bool) -> Self {
        self.set(ONE_VALUE, one_value);
        self
    }

    /// Whether the block is as large in main as a new one.
    pub fn is_new_in_main(self) -> bool {
        self.has(NEW_IN_MAIN)
    }

    /// With the size that the cache has stored in main, that of a new block.
    pub fn with_new_in_main(self, size: u8) -> Self {
        let mut sizes = self.with(Ring::Main, size);
        sizes.set(NEW_IN_MAIN, true);
        sizes
    }

    /// The size in main, if a reclaim has made it so.
    pub fn reclaimed(self) -> Option<u8> {
        self.has(RECLAIMED).then(|| self.of(Ring::Main))
    }

    /// With the size that a reclaim has made of it.
    pub fn with_reclaimed(self, size: u8) -> Self {
        let mut sizes = self.with(Ring::Main, size);
        sizes.set(RECLAIMED, true);
        sizes
    }

    pub fn of(self, ring: Ring) -> u8 {
        self.bytes[ring.index()]
    }

    /// The size in a ring if the cache has stored the block there.
    pub fn known(self, ring: Ring) -> Option<u8> {
        self.has(KNOWN << ring.index()).then(|| self.of(ring))
    }

    /// With the size that the cache has stored.
    pub fn with(self, ring: Ring, size: u8) -> Self {
        self.changed(ring, size, true)
    }

    /// With an estimated size.
    pub fn with_estimate(self, ring: Ring, size: u8) -> Self {
        self.changed(ring, size, false)
    }

    fn changed(mut self, ring: Ring, size: u8, known: bool) -> Self {
        self.bytes[ring.index()] = size;
        self.set(KNOWN << ring.index(), known);
        if ring == Ring::Main {
            self.set(RECLAIMED | NEW_IN_MAIN, false);
        }
        self
    }
}

const FREE: Slot = Slot {
    key: 0,
    sequences: [0; CACHES],
    states: [0; CACHES.div_ceil(2)],
    users: 0,
    sizes: Sizes {
        bytes: [0; 2],
        flags: 0,
    },
};

const _: () = assert!(size_of::<Slot>() == 40, "the memory of the sample depends on it");

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Table {
    slots: Box<[Slot]>,
    /// Slots of blocks, by their key: open addressing, linear probing.
    index: Box<[u16]>,
    /// Slots that are not in use.
    free: Vec<u16>,
}

impl Table {
    /// Room for so many blocks, below 65,535.
    pub fn new(slots: usize) -> Self {
        assert!(slots < usize::from(EMPTY), "a slot has a number of 16 bits");
        Self {
            slots: vec![FREE; slots].into_boxed_slice(),
            index: vec![EMPTY; (slots + slots / 2).next_power_of_two()].into_boxed_slice(),
            free: (0..slots as u16).rev().collect(),
        }
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub fn memory_bytes(&self) -> usize {
        size_of_val::<[Slot]>(&self.slots)
            + size_of_val::<[u16]>(&self.index)
            + self.free.capacity() * size_of::<u16>()
    }

    /// The low bits of a key choose the sample, the high ones the place in a ghost: these are others.
    fn home(&self, key: u64) -> usize {
        (key >> SHIFT_MAX) as usize & (self.index.len() - 1)
    }

    pub fn find(&self, key: u64) -> Option<u16> {
        let mask = self.index.len() - 1;
        let mut at = self.home(key);
        loop {
            match self.index[at] {
                EMPTY => return None,
                slot if self.slots[usize::from(slot)].key == key => return Some(slot),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// A slot for a block that has none.
    pub fn insert(&mut self, key: u64, sizes: Sizes) -> Option<u16> {
        let slot = self.free.pop()?;
        let mask = self.index.len() - 1;
        let mut at = self.home(key);
        while self.index[at] != EMPTY {
            at = (at + 1) & mask;
        }
        self.index[at] = slot;
        self.slots[usize::from(slot)] = Slot { key, sizes, ..FREE };
        Some(slot)
    }

    pub fn key(&self, slot: u16) -> u64 {
        self.slots[usize::from(slot)].key
    }

    pub fn sizes(&self, slot: u16) -> Sizes {
        self.slots[usize::from(slot)].sizes
    }

    pub fn set_sizes(&mut self, slot: u16, sizes: Sizes) {
        self.slots[usize::from(slot)].sizes = sizes;
    }

    pub fn place(&self, slot: u16, cache: usize) -> Place {
        let slot = &self.slots[usize::from(slot)];
        Place {
            sequence: slot.sequences[cache],
            state: slot.states[cache / 2] >> shift_of(cache) & STATE_MASK,
        }
    }

    pub fn set_place(&mut self, slot: u16, cache: usize, place: Place) {
        let slot = &mut self.slots[usize::from(slot)];
        slot.sequences[cache] = place.sequence;
        let states = &mut slot.states[cache / 2];
        *states = *states & !(STATE_MASK << shift_of(cache)) | place.state << shift_of(cache);
    }

    /// One more user of the slot.
    pub fn hold(&mut self, slot: u16) {
        self.slots[usize::from(slot)].users += 1;
    }

    /// One user less; the last one frees the slot.
    pub fn release(&mut self, slot: u16) {
        let users = &mut self.slots[usize::from(slot)].users;
        assert!(*users > 0, "slot {slot} is in use");
        *users -= 1;
        if *users == 0 {
            self.remove(slot);
        }
    }

    /// Takes a block out of the index, and closes the gap.
    fn remove(&mut self, slot: u16) {
        let mask = self.index.len() - 1;
        let mut gap = self.home(self.key(slot));
        while self.index[gap] != slot {
            gap = (gap + 1) & mask;
        }
        let mut next = (gap + 1) & mask;
        while self.index[next] != EMPTY {
            let home = self.home(self.key(self.index[next]));
            // It may move to the gap if its home is not between the two.
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(gap) & mask) {
                self.index[gap] = self.index[next];
                gap = next;
            }
            next = (next + 1) & mask;
        }
        self.index[gap] = EMPTY;
        self.free.push(slot);
    }
}

/// Bytes in units of a table's sizes, rounded to the nearest: right on average, where sizes differ.
pub(super) fn to_size(bytes: u64) -> u8 {
    ((bytes + SIZE_UNIT / 2) / SIZE_UNIT).clamp(1, 255) as u8
}

/// A size times a ratio: at most that of a block that does not compress.
pub(super) fn scaled(size: u8, ratio: f64) -> u8 {
    let most = to_size(fragment_bytes(BLOCK_BYTES as u64));
    (f64::from(size) * ratio).round().clamp(1.0, f64::from(most)) as u8
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flaz_random::Random;

    use super::*;
    use crate::policy::block_key;

    #[test]
    fn a_place_counts_uses() {
        let mut place = Place::cached(Ring::Main, 1, 7);
        assert_eq!((place.ring(), place.hits()), (Some(Ring::Main), 1));
        for hits in [2, 3, 3] {
            place.touch();
            assert_eq!(
                (place.ring(), place.hits(), place.sequence),
                (Some(Ring::Main), hits, 7)
            );
        }
        assert_eq!(Place::default().ring(), None);
        assert_eq!(Place::cached(Ring::Probation, 0, 0).ring(), Some(Ring::Probation));
    }

    /// Blocks are found as long as somebody uses them, however the table is filled and emptied.
    #[test]
    fn blocks_are_found_until_they_are_released() {
        let (mut table, mut random) = (Table::new(100), Random::new(3));
        let memory = table.memory_bytes();
        let mut model: BTreeMap<u64, u16> = BTreeMap::new();
        for _ in 0..50_000 {
            let key = block_key((random.unit() * 200.0) as u64);
            assert_eq!(table.find(key), model.get(&key).copied());
            match model.remove(&key) {
                Some(slot) => table.release(slot),
                None => match table.insert(key, Sizes::estimated(3, 3)) {
                    Some(slot) => {
                        table.hold(slot);
                        model.insert(key, slot);
                    }
                    None => assert_eq!(model.len(), 100, "it is full"),
                },
            }
        }
        assert_eq!(table.memory_bytes(), memory);
    }
}
