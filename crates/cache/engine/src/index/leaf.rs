//! One page of a paged index: the entries of neighbouring blocks, sorted by block.
//!
//! ```text
//! word 0       first block (bits 0..40), number of entries (bits 40..50)
//! word 1       mark of the opening that wrote it
//! words 2..    entries: distance from the first block (19 bits), then the 45 bits of an `Entry`
//! ```
//! Invariants: entries ascend, each block once; the first block is a multiple of four, so a group is in one page; words behind the
//! last entry are zero, so equal contents have equal bytes.

use super::entry::{Entry, VALUE_MASK};
use crate::format::group::GROUP_BLOCKS_MAX;
use crate::units::LocalBlock;

/// Bytes of a page on the device.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of it that are not of the leaf: see [`super::paged`].
pub(super) const STAMP_BYTES: usize = 8;
const WORDS: usize = (PAGE_BYTES - STAMP_BYTES) / 8;
const HEAD_WORDS: usize = 2;
/// Most entries of a page.
pub const ENTRIES_MAX: usize = WORDS - HEAD_WORDS;
const KEY_SHIFT: u32 = VALUE_MASK.count_ones();
/// Blocks that a page can name, from its first one on.
pub(super) const RANGE_BLOCKS: u64 = 1 << (64 - KEY_SHIFT);
const FIRST_BITS: u32 = 40;

/// The first block of a page that may begin with `block`.
pub(super) fn aligned(block: LocalBlock) -> LocalBlock {
    LocalBlock(block.0 - block.0 % GROUP_BLOCKS_MAX as u64)
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    first: LocalBlock,
    len: usize,
    words: Box<[u64; WORDS]>,
}

impl Leaf {
    pub(super) fn new(first: LocalBlock) -> Self {
        assert!(first == aligned(first) && first.0 >> FIRST_BITS == 0);
        Self {
            first,
            len: 0,
            words: Box::new([0; WORDS]),
        }
    }

    pub(super) fn first(&self) -> LocalBlock {
        self.first
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether a page with this first block can name `block`.
    pub(super) fn is_in_range(first: LocalBlock, block: LocalBlock) -> bool {
        block >= first && block.0 - first.0 < RANGE_BLOCKS
    }

    fn words(&self) -> &[u64] {
        &self.words[HEAD_WORDS..HEAD_WORDS + self.len]
    }

    fn block_of(&self, word: u64) -> LocalBlock {
        LocalBlock(self.first.0 + (word >> KEY_SHIFT))
    }

    /// Where the entry of a block is, or would be.
    fn find(&self, block: LocalBlock) -> Result<usize, usize> {
        if !Self::is_in_range(self.first, block) {
            return Err(self.len);
        }
        let key = block.0 - self.first.0;
        self.words().binary_search_by_key(&key, |word| word >> KEY_SHIFT)
    }

    fn word(&self, block: LocalBlock, entry: Entry) -> u64 {
        debug_assert!(Self::is_in_range(self.first, block));
        (block.0 - self.first.0) << KEY_SHIFT | entry.0 & VALUE_MASK
    }

    pub(super) fn get(&self, block: LocalBlock) -> Option<Entry> {
        let at = self.find(block).ok()?;
        Some(Entry(self.words()[at] & VALUE_MASK))
    }

    /// Sets the entry of a block; returns the one that it had. There is room, or the block has an entry.
    pub(super) fn insert(&mut self, block: LocalBlock, entry: Entry) -> Option<Entry> {
        assert!(
            Self::is_in_range(self.first, block),
            "the page can name the block"
        );
        let word = self.word(block, entry);
        match self.find(block) {
            Ok(at) => {
                let place = &mut self.words[HEAD_WORDS + at];
                Some(Entry(std::mem::replace(place, word) & VALUE_MASK))
            }
            Err(at) => {
                assert!(self.len < ENTRIES_MAX, "the page has room");
                self.len += 1;
                let rest = &mut self.words[HEAD_WORDS + at..HEAD_WORDS + self.len];
                rest.rotate_right(1);
                rest[0] = word;
                None
            }
        }
    }

    pub(super) fn remove(&mut self, block: LocalBlock) -> Option<Entry> {
        let at = self.find(block).ok()?;
        let rest = &mut self.words[HEAD_WORDS + at..HEAD_WORDS + self.len];
        let old = Entry(rest[0] & VALUE_MASK);
        rest.rotate_left(1);
        self.len -= 1;
        self.words[HEAD_WORDS + self.len] = 0;
        Some(old)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (LocalBlock, Entry)> + '_ {
        let entry = |word: &u64| (self.block_of(*word), Entry(word & VALUE_MASK));
        self.words().iter().map(entry)
    }

    /// The last block with an entry.
    pub(super) fn last(&self) -> Option<LocalBlock> {
        self.words().last().map(|word| self.block_of(*word))
    }

    /// Moves the upper half of a page of eight entries or more to a new one. If `block` is behind all entries, the new one is empty and
    /// begins there: blocks that are stored in order would otherwise leave all pages half empty.
    pub(super) fn split(&mut self, block: LocalBlock) -> Self {
        let behind = self.last().is_some_and(|last| aligned(block) > last);
        let first = match behind {
            true => aligned(block),
            false => aligned(self.block_of(self.words()[self.len / 2])),
        };
        assert!(first > self.first, "the page has more than one group");
        let at = self.find(first).unwrap_or_else(|at| at);
        let mut upper = Self::new(first);
        for (block, entry) in self.entries().skip(at) {
            upper.words[HEAD_WORDS + upper.len] = upper.word(block, entry);
            upper.len += 1;
        }
        self.words[HEAD_WORDS + at..HEAD_WORDS + self.len].fill(0);
        self.len = at;
        upper
    }

    /// Whether the next page has no entries, or they fit as well and there are `most` at most then.
    pub(super) fn can_take(&self, next: &Self, most: usize) -> bool {
        next.last()
            .is_none_or(|last| self.len + next.len <= most && Self::is_in_range(self.first, last))
    }

    /// Adds the entries of the next page.
    pub(super) fn take(&mut self, next: &Self) {
        for (block, entry) in next.entries() {
            self.words[HEAD_WORDS + self.len] = self.word(block, entry);
            self.len += 1;
        }
    }

    /// Removes the entries that `stays` refuses.
    pub(super) fn retain(&mut self, stays: impl Fn(Entry) -> bool) {
        let (before, mut kept) = (self.len, 0);
        for at in 0..before {
            let word = self.words[HEAD_WORDS + at];
            if stays(Entry(word & VALUE_MASK)) {
                self.words[HEAD_WORDS + kept] = word;
                kept += 1;
            }
        }
        self.words[HEAD_WORDS + kept..HEAD_WORDS + before].fill(0);
        self.len = kept;
    }

    /// Whether a block is dirty.
    pub(super) fn any_dirty(&self) -> bool {
        self.words().iter().any(|word| Entry(word & VALUE_MASK).dirty())
    }

    /// The leaf as it is on the device, in so many `bytes`: a page without its stamp, or fewer in tests.
    pub(super) fn to_bytes(&self, mark: u64, bytes: usize) -> Vec<u8> {
        let head = [self.first.0 | (self.len as u64) << FIRST_BITS, mark];
        let words = head.iter().chain(&self.words[HEAD_WORDS..bytes / 8]);
        words.flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The page that begins with `first`, in bytes whose checksum is right.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(super) fn parse(bytes: &[u8], first: LocalBlock, mark: u64) -> Result<Self, String> {
        let (words, rest) = bytes.as_chunks::<8>();
        if !(HEAD_WORDS..=WORDS).contains(&words.len()) || !rest.is_empty() {
            let expected = WORDS * 8;
            return Err(format!("{} bytes, expected {expected}", bytes.len()));
        }
        let mut leaf = Self::new(first);
        for (word, bytes) in leaf.words.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [head, marked, ..] = *leaf.words;
        let (begins, len) = (head & ((1 << FIRST_BITS) - 1), head >> FIRST_BITS);
        if begins != first.0 || marked != mark {
            return Err(format!(
                "block {begins} and mark {marked:#x}, expected {} and {mark:#x}",
                first.0
            ));
        }
        let most = words.len() - HEAD_WORDS;
        if len > most as u64 {
            return Err(format!("{len} entries, expected {most} at most"));
        }
        leaf.len = len as usize;
        let keys = leaf.words().iter().map(|word| word >> KEY_SHIFT);
        if !keys.is_sorted_by(|a, b| a < b) {
            return Err("its blocks do not ascend".to_owned());
        }
        Ok(leaf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Location;

    fn entry(n: u64) -> Entry {
        Entry::fragment(Location(n + 1), 2000)
    }

    fn full(step: u64) -> Leaf {
        let mut leaf = Leaf::new(LocalBlock(8));
        for n in 0..ENTRIES_MAX as u64 {
            assert_eq!(leaf.insert(LocalBlock(8 + n * step), entry(n)), None);
        }
        leaf
    }

    #[test]
    fn entries_are_found_replaced_and_removed() {
        let mut leaf = full(3);
        assert_eq!(leaf.get(LocalBlock(8 + 9)), Some(entry(3)));
        assert_eq!(leaf.get(LocalBlock(8 + 10)), None);
        assert_eq!(
            (leaf.get(LocalBlock(7)), leaf.get(LocalBlock(8 + RANGE_BLOCKS))),
            (None, None)
        );
        assert_eq!(leaf.insert(LocalBlock(8 + 9), entry(70)), Some(entry(3)));
        assert_eq!(leaf.remove(LocalBlock(8 + 9)), Some(entry(70)));
        assert_eq!(leaf.remove(LocalBlock(8 + 9)), None);
        assert_eq!(leaf.len(), ENTRIES_MAX - 1);
        let blocks = leaf.entries().map(|(block, _)| block);
        assert!(blocks.is_sorted() && leaf.entries().count() == leaf.len());
    }

    #[test]
    fn a_page_can_name_the_last_block_of_its_range() {
        let mut leaf = Leaf::new(LocalBlock(8));
        let last = LocalBlock(8 + RANGE_BLOCKS - 1);
        leaf.insert(last, entry(1).with_dirty(true).with_hits(3));
        let found: Vec<_> = leaf.entries().collect();
        assert_eq!(found, [(last, entry(1).with_dirty(true).with_hits(3))]);
    }

    #[test]
    fn a_full_page_is_split_at_a_group() {
        for step in 1..6 {
            let mut leaf = full(step);
            let all: Vec<_> = leaf.entries().collect();
            let upper = leaf.split(LocalBlock(9));
            assert_eq!(upper.first().0 % 4, 0);
            assert!(leaf.last() < Some(upper.first()) && upper.len() >= ENTRIES_MAX / 2);
            let both: Vec<_> = leaf.entries().chain(upper.entries()).collect();
            assert_eq!(both, all);
        }
    }

    #[test]
    fn blocks_in_order_fill_pages() {
        let mut leaf = full(4);
        let next = LocalBlock(leaf.last().expect("full").0 + 4);
        let upper = leaf.split(next);
        assert_eq!((leaf.len(), upper.len(), upper.first()), (ENTRIES_MAX, 0, next));
    }

    #[test]
    fn pages_that_are_half_empty_together_become_one() {
        let (mut low, mut high) = (Leaf::new(LocalBlock(0)), Leaf::new(LocalBlock(400)));
        for n in 0..120 {
            low.insert(LocalBlock(n), entry(n));
            high.insert(LocalBlock(400 + n), entry(n));
        }
        assert!(low.can_take(&high, 240) && !low.can_take(&high, 239));
        let all: Vec<_> = low.entries().chain(high.entries()).collect();
        low.take(&high);
        assert_eq!(low.entries().collect::<Vec<_>>(), all);
        let far = Leaf::new(LocalBlock(RANGE_BLOCKS));
        let mut other = far.clone();
        other.insert(LocalBlock(RANGE_BLOCKS + 1), entry(1));
        let low = Leaf::new(LocalBlock(0));
        assert!(
            low.can_take(&far, 100) && !low.can_take(&other, 100),
            "out of range"
        );
    }

    #[test]
    fn pages_read_back_and_hostile_ones_are_refused() {
        let leaf = full(3);
        let bytes = leaf.to_bytes(77, WORDS * 8);
        let again = Leaf::parse(&bytes, LocalBlock(8), 77).expect("it is whole");
        assert!(again.entries().eq(leaf.entries()));
        assert!(
            Leaf::parse(&bytes, LocalBlock(12), 77).is_err(),
            "of other blocks"
        );
        assert!(
            Leaf::parse(&bytes, LocalBlock(8), 78).is_err(),
            "of another opening"
        );
        assert!(Leaf::parse(&bytes[1..], LocalBlock(8), 77).is_err(), "too short");
        let mut bad = bytes.clone();
        bad[6] = 0xff;
        assert!(Leaf::parse(&bad, LocalBlock(8), 77).is_err(), "too many entries");
        bad = bytes;
        bad.copy_within(24..32, 16);
        assert!(Leaf::parse(&bad, LocalBlock(8), 77).is_err(), "a block twice");
    }

    #[test]
    fn refused_entries_leave_nothing_behind() {
        let mut leaf = full(2);
        let all: Vec<_> = leaf.entries().collect();
        let stays = |entry: Entry| !entry.location().0.is_multiple_of(3);
        leaf.retain(stays);
        let kept: Vec<_> = all.into_iter().filter(|(_, entry)| stays(*entry)).collect();
        assert!((ENTRIES_MAX / 2..ENTRIES_MAX).contains(&kept.len()));
        assert_eq!(leaf.entries().collect::<Vec<_>>(), kept);
        let mut same = Leaf::new(leaf.first());
        for (block, entry) in &kept {
            same.insert(*block, *entry);
        }
        assert_eq!(leaf.to_bytes(1, WORDS * 8), same.to_bytes(1, WORDS * 8));
        leaf.retain(|_| false);
        assert_eq!(leaf.len(), 0);
    }

    #[test]
    fn equal_contents_have_equal_bytes() {
        let (mut one, mut other) = (full(1), full(1));
        one.remove(LocalBlock(20));
        one.split(LocalBlock(9));
        other.split(LocalBlock(9));
        other.remove(LocalBlock(20));
        one.insert(LocalBlock(20), entry(1));
        other.insert(LocalBlock(20), entry(1));
        assert_eq!(one.to_bytes(1, WORDS * 8), other.to_bytes(1, WORDS * 8));
    }
}
