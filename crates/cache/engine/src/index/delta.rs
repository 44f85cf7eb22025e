//! The changes of a page since its last write. If they are small, the page is evicted without a write, and only they stay in memory. With
//! those of its neighbours on the device, they may be written there, too (see `super::rows`); then those since that write stay in memory.
//!
//! ```text
//! varint    twice the retirement at which the entries were checked (see `super::retired`), and 1 if blocks were removed
//! varint    number of removed blocks, if there are some
//! varint    for each: distance from the first block of the page, or from the block behind the preceding one
//! codes     entries that were set (see `super::code`), the first one without an entry before it
//! ```
//! Varints are LEB128: 7 bits in each byte, the low ones first, the top bit is set if another byte follows.
//!
//! Invariants:
//! - Changes override the page on the device: the entry that it has of a changed block never counts.
//! - If the entry of a changed block is dropped because its region was freed, the block counts as removed: the page on the device may have
//!   an older entry of it, in a region that is in use.
//! - Blocks ascend. A block is either removed or set.

use std::ops::Range;

use super::code::{BLOCK_BITS, Context, GAP_BYTES_MAX, read_varint, write_varint};
use super::entry::Entry;
use super::leaf::Leaf;
use super::retired::Retired;
use crate::planted::{PlantedBug, planted};
use crate::units::LocalBlock;

/// Maximum size of the changes of a page: those of a page of changes that could not be written, and those since. Together, each may take up
/// to 13 bytes.
pub(super) const DELTA_BYTES_MAX: usize = 32 << 10;
/// Most blocks of [`Touched`].
const BLOCKS_MAX: usize = 512;
const NUMBER_BYTES_MAX: usize = u64::BITS.div_ceil(7) as usize;
/// Slots whose changes are in one vector.
const GROUP_SLOTS: u32 = 256;
/// Memory of a group is a multiple of this.
const ROOM_STEP: usize = 64;

const LEN_BYTES_MAX: usize = 3;

const _: () = assert!(DELTA_BYTES_MAX < 1 << (7 * LEN_BYTES_MAX) && GROUP_SLOTS <= 1 << u8::BITS);

/// Of an element of [`Touched::blocks`]: the change is not in the page of changes on the device.
const RECENT: u32 = 1;

/// Which changes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// All since the last write of the page.
    All,
    /// Those since the last write of its changes.
    Recent,
}

/// The blocks of a page that changed since its last write began, up to a maximum number.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Twice the distances from the first block of the page, and [`RECENT`]. They ascend.
    blocks: Vec<u32>,
    /// There are more than the maximum, or the page was never written: it must be written as a whole.
    is_all: bool,
}

impl Touched {
    /// Most memory.
    pub(super) const MEMORY_MAX: usize = BLOCKS_MAX * size_of::<u32>();

    pub(super) fn all() -> Self {
        let blocks = Vec::new();
        Self { blocks, is_all: true }
    }

    /// A block changed, at this distance from the first one of its page.
    pub(super) fn note(&mut self, distance: u64) {
        if self.is_all {
            return;
        }
        let doubled = distance
            .checked_mul(2)
            .and_then(|doubled| u32::try_from(doubled).ok());
        let Some(doubled) = doubled else {
            *self = Self::all();
            return;
        };
        match self
            .blocks
            .binary_search_by_key(&doubled, |block| *block & !RECENT)
        {
            Ok(at) => self.blocks[at] |= RECENT,
            Err(_) if self.blocks.len() == BLOCKS_MAX => *self = Self::all(),
            Err(at) => self.blocks.insert(at, doubled | RECENT),
        }
    }

    /// The page must be written as a whole.
    pub(super) fn is_all(&self) -> bool {
        self.is_all
    }

    /// The changes so far are, or are not, in the page of changes on the device.
    pub(super) fn set_stored(&mut self, stored: bool) {
        for block in &mut self.blocks {
            *block = *block & !RECENT | if stored { 0 } else { RECENT };
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<u32>()
    }

    /// Encodes changes of a page that was `checked` at this retirement. `None`: they take more than `most` bytes.
    pub(super) fn encode(&self, which: Which, leaf: &Leaf, checked: u64, most: usize) -> Option<Vec<u8>> {
        let is_wanted = |block: &&u32| which == Which::All || **block & RECENT != 0;
        let wanted = self.blocks.iter().filter(is_wanted);
        // A change takes at least a byte.
        if self.is_all || wanted.clone().count() > most {
            return None;
        }
        let mut delta = Delta {
            checked,
            removed: Vec::new(),
            set: Vec::new(),
        };
        for doubled in wanted {
            let block = LocalBlock(leaf.first().0 + u64::from(doubled / 2));
            match leaf.get(block) {
                Some(entry) => delta.set.push((block, entry)),
                None if planted(PlantedBug::DeferredRemovalLost) => {}
                None => delta.removed.push(block),
            }
        }
        delta.encode(leaf.first(), most)
    }
}

/// Changes of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delta {
    /// The retirement at which the entries were checked.
    pub(super) checked: u64,
    pub(super) removed: Vec<LocalBlock>,
    pub(super) set: Vec<(LocalBlock, Entry)>,
}

impl Delta {
    /// The changes of the page that begins with `first`.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(super) fn decode(bytes: &[u8], first: LocalBlock) -> Result<Self, String> {
        let mut at = 0;
        let mut number = |most| {
            let found = read_varint(bytes, &mut at, most);
            found.ok_or_else(|| format!("no number in {bytes:02x?}"))
        };
        let checked = number(NUMBER_BYTES_MAX)?;
        let count = match checked & 1 {
            0 => 0,
            _ => number(GAP_BYTES_MAX)?,
        };
        let (mut removed, mut next) = (Vec::new(), first.0);
        for _ in 0..count {
            let block = next + number(GAP_BYTES_MAX)?;
            if block >> BLOCK_BITS != 0 {
                return Err(format!("block {block} is removed"));
            }
            removed.push(LocalBlock(block));
            next = block + 1;
        }
        let (mut set, mut codes) = (Vec::new(), &bytes[at..]);
        let mut context = Context::start(first);
        while !codes.is_empty() {
            let read = context.read(codes).filter(|_| context.is_valid());
            let Some(len) = read else {
                return Err(format!("no entry in {codes:02x?}"));
            };
            if removed.binary_search(&context.block()).is_ok() {
                return Err(format!("block {} is removed and set", context.block().0));
            }
            set.push((context.block(), context.entry()));
            codes = &codes[len..];
        }
        Ok(Self {
            checked: checked >> 1,
            removed,
            set,
        })
    }

    /// Encodes the changes of the page that begins with `first`. `None`: they take more than `most` bytes.
    pub(super) fn encode(&self, first: LocalBlock, most: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        write_varint(
            self.checked << 1 | u64::from(!self.removed.is_empty()),
            &mut bytes,
        );
        if !self.removed.is_empty() {
            write_varint(self.removed.len() as u64, &mut bytes);
        }
        let mut next = first.0;
        for block in &self.removed {
            write_varint(block.0 - next, &mut bytes);
            next = block.0 + 1;
        }
        let mut context = Context::start(first);
        for (block, entry) in &self.set {
            context.write(*block, *entry, &mut bytes);
            if bytes.len() > most {
                return None;
            }
        }
        (bytes.len() <= most).then_some(bytes)
    }

    /// These changes, then later ones. Entries that are not valid any more count as removed, so all are checked now.
    pub(super) fn then(mut self, later: Self, retired: &Retired) -> Self {
        self.removed.retain(|block| !later.has(*block));
        self.set.retain(|(block, _)| !later.has(*block));
        let mut all = Self {
            checked: retired.count(),
            removed: self
                .removed
                .into_iter()
                .chain(later.removed.iter().copied())
                .collect(),
            set: Vec::new(),
        };
        for (checked, set) in [(self.checked, self.set), (later.checked, later.set)] {
            for (block, entry) in set {
                match retired.is_valid(entry.location(), checked) {
                    true => all.set.push((block, entry)),
                    false => all.removed.push(block),
                }
            }
        }
        all.removed.sort_unstable();
        all.set.sort_unstable_by_key(|(block, _)| *block);
        all
    }

    /// Whether a block is among the changes.
    pub(super) fn has(&self, block: LocalBlock) -> bool {
        let set = || self.set.binary_search_by_key(&block, |(block, _)| *block);
        self.removed.binary_search(&block).is_ok() || set().is_ok()
    }

    /// All blocks: first the removed ones, then those that were set.
    pub(super) fn blocks(&self) -> impl Iterator<Item = LocalBlock> + '_ {
        let set = self.set.iter().map(|(block, _)| *block);
        self.removed.iter().copied().chain(set)
    }

    /// The last block.
    pub(super) fn last(&self) -> Option<LocalBlock> {
        let set = self.set.last().map(|(block, _)| *block);
        set.max(self.removed.last().copied())
    }
}

/// Changes of pages that are not in memory, by the slots of these pages.
#[derive(Debug, Default)]
pub(super) struct Deltas {
    /// For each group of slots: slot within the group (1 byte), length (a varint), changes.
    groups: Vec<Vec<u8>>,
    /// Memory of these.
    room: usize,
    /// Number of pages.
    len: usize,
    /// Bytes of changes.
    bytes: usize,
}

impl Deltas {
    /// Number of pages with changes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of all changes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.room + self.groups.capacity() * size_of::<Vec<u8>>()
    }

    /// Where the changes of a slot are, in their group: with what is in front of them, and without.
    fn find(&self, slot: u32) -> Option<(Range<usize>, Range<usize>)> {
        let group = self.groups.get((slot / GROUP_SLOTS) as usize)?;
        let mut start = 0;
        while let Some(number) = group.get(start) {
            let mut at = start + 1;
            let len = read_varint(group, &mut at, LEN_BYTES_MAX).expect("a length");
            let end = at + len as usize;
            if u32::from(*number) == slot % GROUP_SLOTS {
                return Some((start..end, at..end));
            }
            start = end;
        }
        None
    }

    /// Bytes of the changes of the page in a slot.
    pub(super) fn len_of(&self, slot: u32) -> usize {
        self.find(slot).map_or(0, |(_, delta)| delta.len())
    }

    /// The changes of the page in a slot.
    pub(super) fn get(&self, slot: u32) -> Option<&[u8]> {
        let (_, delta) = self.find(slot)?;
        Some(&self.groups[(slot / GROUP_SLOTS) as usize][delta])
    }

    /// Adds those of a page that has none, [`DELTA_BYTES_MAX`] at most.
    pub(super) fn put(&mut self, slot: u32, delta: &[u8]) {
        assert!(self.find(slot).is_none(), "slot {slot} has changes");
        let group = (slot / GROUP_SLOTS) as usize;
        if group >= self.groups.len() {
            self.groups.resize_with(group + 1, Vec::new);
        }
        let group = &mut self.groups[group];
        let mut head = vec![(slot % GROUP_SLOTS) as u8];
        write_varint(delta.len() as u64, &mut head);
        let (before, len) = (group.capacity(), group.len() + head.len() + delta.len());
        if len > group.capacity() {
            let more = len.next_multiple_of(ROOM_STEP) - group.len();
            group.reserve_exact(more);
        }
        group.extend(head);
        group.extend(delta);
        self.room = self.room + group.capacity() - before;
        self.len += 1;
        self.bytes += delta.len();
    }

    /// Removes the changes of the page in a slot, and returns them.
    pub(super) fn take(&mut self, slot: u32) -> Option<Vec<u8>> {
        let (with_head, delta) = self.find(slot)?;
        let group = &mut self.groups[(slot / GROUP_SLOTS) as usize];
        let (before, taken) = (group.capacity(), group[delta].to_vec());
        group.drain(with_head);
        let room = group.len().next_multiple_of(ROOM_STEP);
        if group.capacity() > room + ROOM_STEP {
            group.shrink_to(room);
        }
        self.room = self.room + group.capacity() - before;
        self.len -= 1;
        self.bytes -= taken.len();
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flaz_random::Random;

    use super::*;
    use crate::units::Location;

    fn leaf(first: LocalBlock, blocks: impl Iterator<Item = u64>) -> Leaf {
        let entry = |block| Entry::fragment(Location(1 + block * 7919 % 100_000), 900);
        Leaf::of(first, blocks.map(|block| (LocalBlock(block), entry(block))))
    }

    #[test]
    fn changes_read_back() {
        let mut random = Random::new(3);
        for turn in 0..500_u64 {
            let first = LocalBlock(4 * random.below(1 << 30));
            let mut there: Vec<u64> = (0..200).map(|_| first.0 + random.below(3000)).collect();
            there.sort_unstable();
            there.dedup();
            let leaf = leaf(first, there.iter().copied());
            let mut touched = Touched::default();
            let mut blocks: Vec<u64> = (0..random.below(40)).map(|_| random.below(3000)).collect();
            blocks.iter().for_each(|distance| touched.note(*distance));
            blocks.sort_unstable();
            blocks.dedup();
            let checked = turn * 1_000_003;
            let bytes = touched
                .encode(Which::All, &leaf, checked, 1000)
                .expect("they fit");
            assert_eq!(
                touched.encode(Which::All, &leaf, checked, bytes.len()).as_ref(),
                Some(&bytes)
            );
            assert_eq!(touched.encode(Which::All, &leaf, checked, bytes.len() - 1), None);
            let delta = Delta::decode(&bytes, first).expect("they are right");
            assert_eq!(delta.checked, checked);
            assert_eq!(delta.removed.len() + delta.set.len(), blocks.len());
            for distance in &blocks {
                let block = LocalBlock(first.0 + distance);
                let set = delta.set.iter().find(|(set, _)| *set == block);
                assert_eq!(set.map(|(_, entry)| *entry), leaf.get(block));
                assert_eq!(delta.removed.contains(&block), leaf.get(block).is_none());
                assert!(delta.has(block));
            }
            assert_eq!(delta.last().map(|last| last.0 - first.0), blocks.last().copied());
        }
    }

    #[test]
    fn many_changes_are_not_kept() {
        let leaf = leaf(LocalBlock(0), 0..10);
        let mut touched = Touched::default();
        for distance in 0..BLOCKS_MAX as u64 {
            touched.note(distance);
            touched.note(distance / 2);
        }
        assert!(touched.encode(Which::All, &leaf, 0, 1000).is_some());
        touched.note(BLOCKS_MAX as u64);
        assert_eq!(
            (touched.encode(Which::All, &leaf, 0, 1000), touched.memory_bytes()),
            (None, 0)
        );
        let mut touched = Touched::default();
        touched.note(1 << 32);
        assert_eq!(touched.encode(Which::All, &leaf, 0, 1000), None, "it is far away");
        assert_eq!(Touched::all().encode(Which::All, &leaf, 0, 1000), None);
    }

    #[test]
    fn any_bytes_are_changes_or_refused() {
        let mut random = Random::new(4);
        let mut read = 0;
        for _ in 0..200_000 {
            let small = random.below(2) == 0;
            let byte = |random: &mut Random| random.below(if small { 8 } else { 256 }) as u8;
            let bytes: Vec<u8> = (0..random.below(30)).map(|_| byte(&mut random)).collect();
            let first = LocalBlock(4 * random.below(1 << 38));
            let Ok(delta) = Delta::decode(&bytes, first) else {
                continue;
            };
            read += 1;
            assert!(delta.removed.is_sorted_by(|a, b| a < b));
            assert!(delta.set.is_sorted_by(|(a, _), (b, _)| a < b));
            let blocks = delta.set.iter().map(|(block, _)| block).chain(&delta.removed);
            assert!(
                blocks
                    .clone()
                    .all(|block| *block >= first && block.0 >> BLOCK_BITS == 0)
            );
        }
        assert!(read > 1000, "{read}");
    }

    #[test]
    fn the_store_agrees_with_a_map() {
        let (mut deltas, mut model) = (Deltas::default(), BTreeMap::new());
        let mut random = Random::new(5);
        for _ in 0..20_000 {
            let slot = random.below(1000) as u32;
            assert_eq!(deltas.get(slot), model.get(&slot).map(Vec::as_slice));
            if random.below(2) == 0 {
                assert_eq!(deltas.take(slot), model.remove(&slot));
            } else {
                model.entry(slot).or_insert_with(|| {
                    let delta = vec![slot as u8; 1 + random.index(1000)];
                    deltas.put(slot, &delta);
                    delta
                });
            }
            assert_eq!(deltas.len(), model.len());
            assert_eq!(deltas.bytes(), model.values().map(Vec::len).sum::<usize>());
        }
        let least = deltas.bytes() + 3 * deltas.len();
        assert!(
            deltas.memory_bytes() < least + 4 * 200,
            "{}",
            deltas.memory_bytes()
        );
        for slot in 0..1000 {
            deltas.take(slot);
        }
        assert!(deltas.memory_bytes() < 4 * 200, "{}", deltas.memory_bytes());
    }
}
