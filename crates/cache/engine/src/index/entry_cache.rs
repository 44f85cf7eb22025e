//! Entries of blocks that are read often, in memory while their index pages are not.
//!
//! Where used blocks are scattered over the whole device, a page has few of them, and each lookup would read its page. A part of the
//! memory for the index holds single entries instead: of the blocks that are read most, whatever their neighbours are.
//!
//! Replacement: the uses of an entry are counted (to 3 at most). An entry that finds no place in its set takes one use from each of the
//! others there, or replaces one without uses. Of a Zipf distribution, this finds more than a CLOCK that lets each block in.
//!
//! Invariant: an entry here is the one that its page would give, with its changes and without what was retired. So each change of an
//! entry in the index removes it here.

use super::entry::Entry;
use crate::units::LocalBlock;

/// Entries of a set.
const WAYS: usize = 8;
/// Counted uses of an entry, at most: what fits in its hits.
const USES_MAX: u8 = 3;

/// An entry that is zero is not one of a cached block.
const VACANT: Slot = Slot {
    block: LocalBlock(0),
    entry: Entry(0),
};

/// A block and its entry, whose hits count its uses here.
#[derive(Clone, Copy, Debug)]
struct Slot {
    block: LocalBlock,
    entry: Entry,
}

impl Slot {
    fn is_vacant(&self) -> bool {
        self.entry.0 == 0
    }

    fn has(&self, block: LocalBlock) -> bool {
        self.block == block && !self.is_vacant()
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct EntryCache {
    sets: usize,
    /// Sets one after the other. Empty until there is an entry.
    slots: Vec<[Slot; WAYS]>,
}

impl EntryCache {
    /// An empty cache in so many bytes of memory, which are not allocated yet.
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            sets: bytes as usize / size_of::<[Slot; WAYS]>(),
            slots: Vec::new(),
        }
    }

    fn set_mut(&mut self, block: LocalBlock) -> Option<&mut [Slot; WAYS]> {
        let hash = block.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let set = (u128::from(hash) * self.slots.len() as u128) >> 64;
        self.slots.get_mut(set as usize)
    }

    /// The entry of a block, without hits.
    pub(super) fn get(&mut self, block: LocalBlock) -> Option<Entry> {
        let set = self.set_mut(block)?;
        let slot = set.iter_mut().find(|slot| slot.has(block))?;
        let uses = slot.entry.hits();
        slot.entry = slot.entry.with_hits((uses + 1).min(USES_MAX));
        Some(slot.entry.with_hits(0))
    }

    /// A block was read whose page was not in memory: has its entry from now on, unless all others in its set have uses left.
    pub(super) fn put(&mut self, block: LocalBlock, entry: Entry) {
        if self.slots.is_empty() {
            self.slots = vec![[VACANT; WAYS]; self.sets];
        }
        let Some(set) = self.set_mut(block) else { return };
        let new = Slot {
            block,
            entry: entry.with_hits(0),
        };
        let rank = |slot: &Slot| (!slot.has(block), !slot.is_vacant(), slot.entry.hits());
        let place = set
            .iter_mut()
            .min_by_key(|slot| rank(slot))
            .expect("a set has slots");
        if place.has(block) {
            place.entry = entry.with_hits(place.entry.hits());
            return;
        }
        if place.is_vacant() || place.entry.hits() == 0 {
            *place = new;
            return;
        }
        for slot in set {
            slot.entry = slot.entry.with_hits(slot.entry.hits() - 1);
        }
    }

    /// The entry of a block changes.
    pub(super) fn remove(&mut self, block: LocalBlock) {
        if let Some(set) = self.set_mut(block) {
            set.iter_mut()
                .filter(|slot| slot.has(block))
                .for_each(|slot| *slot = VACANT);
        }
    }

    /// Keeps the entries that are still valid.
    pub(super) fn retain(&mut self, is_valid: impl Fn(Entry) -> bool) {
        let slots = self.slots.iter_mut().flatten();
        for slot in slots.filter(|slot| !slot.is_vacant() && !is_valid(slot.entry)) {
            *slot = VACANT;
        }
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        self.slots = Vec::new();
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<[Slot; WAYS]>()
    }
}

#[cfg(test)]
mod tests {
    use flaz_random::Random;

    use super::*;
    use crate::units::Location;

    const BYTES: u64 = 16 << 10;
    const FAR: u64 = (1 << 40) + 5;

    fn entry(block: u64) -> Entry {
        Entry::fragment(Location(block % (1 << 30) + 1), 100)
    }

    #[test]
    fn an_entry_is_there_until_it_changes() {
        let mut cache = EntryCache::new(BYTES);
        assert_eq!((cache.get(LocalBlock(0)), cache.memory_bytes()), (None, 0));
        for block in [0, 1, FAR] {
            cache.put(LocalBlock(block), entry(block).with_hits(2));
            assert_eq!(cache.get(LocalBlock(block)), Some(entry(block)));
        }
        assert_eq!(cache.memory_bytes() as u64, BYTES);
        cache.put(LocalBlock(1), entry(7));
        assert_eq!(cache.get(LocalBlock(1)), Some(entry(7)));
        cache.remove(LocalBlock(1));
        cache.remove(LocalBlock(1));
        assert_eq!(cache.get(LocalBlock(1)), None);
        cache.retain(|kept| kept.location() != entry(0).location());
        assert_eq!(cache.get(LocalBlock(0)), None);
        assert_eq!(cache.get(LocalBlock(FAR)), Some(entry(FAR)));
        cache.clear();
        assert_eq!((cache.get(LocalBlock(FAR)), cache.memory_bytes()), (None, 0));
    }

    #[test]
    fn without_memory_nothing_is_kept() {
        let mut cache = EntryCache::new(100);
        cache.put(LocalBlock(1), entry(1));
        cache.remove(LocalBlock(1));
        assert_eq!((cache.get(LocalBlock(1)), cache.memory_bytes()), (None, 0));
    }

    /// Ten times as many blocks are read once in turn, between reads of others that fit.
    #[test]
    fn blocks_that_are_read_often_stay() {
        let entries = BYTES / 16;
        let mut cache = EntryCache::new(BYTES);
        let mut random = Random::new(1);
        let (mut found, mut read) = (0, 0);
        let mut look_up = |block: u64| {
            let is_found = cache.get(LocalBlock(block)).is_some();
            if !is_found {
                cache.put(LocalBlock(block), entry(block));
            }
            u64::from(is_found)
        };
        for step in 0..100 * entries {
            look_up((1 << 20) + step % (10 * entries));
            let found_now = look_up(random.below(entries / 2));
            if step > 50 * entries {
                (found, read) = (found + found_now, read + 1);
            }
        }
        assert!(found * 10 > read * 8, "{found} of {read}");
    }
}
