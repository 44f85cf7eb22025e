//! Many changes of the index at once, in order: for recovery.
//!
//! One after the other they would go to all segments by turns, each time to memory that is in no processor's cache.
//! Here they are collected, sorted by segment, and made segment by segment; those of one block stay in order, and those
//! of different blocks do not depend on each other.

use super::entry::{Entry, VALUE_MASK};
use super::segment::Segment;
use super::{Fragments, Index, Scramble};
use crate::units::LocalBlock;

/// What happens to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is cached, and lies here.
    Set(Entry),
    /// It is not cached.
    Drop,
    /// What is cached is clean.
    Clean,
}

/// Drop and clean, in place of an entry: neither can be one.
pub(super) const DROP: u64 = 0;
pub(super) const CLEAN: u64 = VALUE_MASK + 1;

impl Change {
    /// One for tests, of record number `step`; `next` returns numbers below its argument.
    #[cfg(test)]
    pub(super) fn any(next: &mut impl FnMut(u64) -> u64, step: u64) -> Self {
        use crate::units::Location;
        let entry = match next(8) {
            0 => Entry::same_filled(Location(64 * step), step as u8),
            1 => Entry::group(Location(8 * step + 8), 9000),
            _ => Entry::fragment(Location(step + 1), 200 + next(3800) as usize),
        };
        match next(10) {
            0 => Self::Drop,
            1 | 2 => Self::Clean,
            _ => Self::Set(entry.with_dirty(next(3) == 0)),
        }
    }

    /// An entry's bits, [`DROP`] or [`CLEAN`].
    pub(super) fn pack(self) -> u64 {
        match self {
            Self::Set(entry) => entry.0 & VALUE_MASK,
            Self::Drop => DROP,
            Self::Clean => CLEAN,
        }
    }
}

/// Buckets for each change up to which all of a segment is fetched ahead: from there on the changes alone cost less.
const TOUCH_BUCKETS: usize = 4;

/// A block's scrambled number, and its entry or what happens to it.
type Packed = (u64, u64);

/// Changes that are not in the index yet. 32 bytes for each that there is room for.
#[derive(Debug)]
pub struct Bulk {
    changes: Vec<Packed>,
    sorted: Vec<Packed>,
    /// Changes of each segment, then where the next one goes.
    places: Vec<u32>,
    scramble: Scramble,
    key_bits: u32,
}

impl Bulk {
    /// None yet, with room for `room`, for [`Index::apply`] of `index`.
    #[must_use]
    pub fn new(index: &Index, room: usize) -> Self {
        Self {
            changes: Vec::with_capacity(room),
            sorted: Vec::new(),
            places: vec![0; index.segments.len()],
            scramble: index.scramble,
            key_bits: index.scramble.bits - index.segment_bits,
        }
    }

    /// Adds one, later than those that are there.
    pub fn push(&mut self, block: LocalBlock, change: Change) {
        let number = self.scramble.forward(block.0);
        self.places[(number >> self.key_bits) as usize] += 1;
        self.changes.push((number, change.pack()));
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Sorts them by segment, and makes `places` the end of each.
    fn sort(&mut self) {
        let mut before = 0;
        for place in &mut self.places {
            let count = *place;
            *place = before;
            before += count;
        }
        if self.sorted.len() < self.changes.len() {
            self.sorted.resize(self.changes.len(), (0, 0));
        }
        for &change in &self.changes {
            let place = &mut self.places[(change.0 >> self.key_bits) as usize];
            self.sorted[*place as usize] = change;
            *place += 1;
        }
        self.changes.clear();
    }
}

impl Index {
    /// Makes the changes, and leaves `bulk` empty. What is dropped keeps its room until [`Index::fit`], which must follow the last
    /// batch: until then the bytes of groups are not counted.
    pub fn apply(&mut self, bulk: &mut Bulk) {
        debug_assert_eq!(bulk.places.len(), self.segments.len());
        bulk.sort();
        let mask = (1 << bulk.key_bits) - 1;
        let mut begin = 0;
        for (segment, end) in self.segments.iter_mut().zip(&mut bulk.places) {
            let end = std::mem::take(end) as usize;
            let before = segment.len();
            if end - begin > segment.buckets().len() / TOUCH_BUCKETS {
                segment.touch();
            }
            for &(number, what) in &bulk.sorted[begin..end] {
                change(segment, &mut self.fragments, number & mask, what);
            }
            self.len = self.len + segment.len() - before;
            begin = end;
        }
    }
}

fn change(segment: &mut Segment, fragments: &mut Fragments, key: u64, what: u64) {
    match what {
        DROP => {
            if let Some(old) = segment.take(key) {
                fragments.remove(old, old.is_group());
            }
        }
        CLEAN => {
            if let Some(old) = segment.update(key, |entry| entry.with_dirty(false)) {
                fragments.clean(old);
            }
        }
        entry => {
            let entry = Entry(entry);
            fragments.add(entry, entry.is_group());
            if let Some(old) = segment.insert(key, entry) {
                fragments.remove(old, old.is_group());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_in_bulk_come_to_the_same_as_one_by_one() {
        let blocks = 1 << 20;
        let mut state = 11u64;
        let mut next = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for (room, reserved) in [(1, 0), (700, 20_000), (100_000, 60_000)] {
            let mut one_by_one = Index::new(LocalBlock(blocks), 100_000);
            let mut in_bulk = Index::new(LocalBlock(blocks), 100_000);
            in_bulk.reserve(reserved);
            let mut bulk = Bulk::new(&in_bulk, room);
            for step in 0..150_000u64 {
                let block = LocalBlock(next(40_000) * 26);
                let change = Change::any(&mut next, step);
                match change {
                    Change::Set(entry) => drop(one_by_one.insert(block, entry)),
                    Change::Drop => drop(one_by_one.remove(block)),
                    Change::Clean => drop(one_by_one.clean(block)),
                }
                bulk.push(block, change);
                if bulk.len() >= room {
                    in_bulk.apply(&mut bulk);
                    assert!(bulk.is_empty());
                }
            }
            in_bulk.apply(&mut bulk);
            in_bulk.fit();
            let all = |index: &Index| {
                let mut all: Vec<_> = index.iter().collect();
                all.sort_unstable_by_key(|(block, _)| *block);
                all
            };
            assert_eq!(all(&in_bulk), all(&one_by_one));
            assert_eq!(in_bulk.len(), one_by_one.len());
            assert_eq!(in_bulk.fragments, one_by_one.fragments);
            assert!(
                all(&in_bulk)
                    .iter()
                    .all(|(block, entry)| in_bulk.get(*block) == Some(*entry))
            );
            let mut values: Vec<_> = in_bulk.values().map(|entry| entry.0).collect();
            values.sort_unstable();
            let mut expected: Vec<_> = in_bulk.iter().map(|(_, entry)| entry.0).collect();
            expected.sort_unstable();
            assert_eq!(values, expected);
            let each = in_bulk.memory_bytes() as f64 / in_bulk.len() as f64;
            assert!(each <= 10.0, "{each} bytes each");
        }
    }
}
