//! The places of index pages on the device: which of them are free.
//!
//! Slots are in rows of eight. Seven are for pages; the fourth one is for the changes of these seven (see [`super::rows`]), so a page and
//! its changes are read at once.

/// Slots per chunk.
pub const CHUNK_SLOTS: u32 = u8::BITS;
/// Slots of a row.
pub(super) const ROW_SLOTS: u32 = 8;
/// The slot of a row that no page is in.
pub(super) const CHANGES_SLOT: u32 = 3;
/// In a word, the slots that no page is in; the same for a chunk, which is a row.
const NO_PAGE: u64 = NO_PAGE_OF_CHUNK * 0x0101_0101_0101_0101;
const NO_PAGE_OF_CHUNK: u64 = 1 << CHANGES_SLOT;
/// Pages that fit in a chunk.
const CHUNK_PAGES: u32 = CHUNK_SLOTS - 1;
const _: () = assert!(CHUNK_SLOTS == ROW_SLOTS);

/// One bit for each slot; set: in use, or no page is ever there.
#[derive(Debug)]
pub(super) struct Slots {
    words: Vec<u64>,
    /// Slots, and those for pages.
    count: u32,
    pages: u32,
    /// Those of them that are in use.
    in_use: u32,
    /// No slot is free in the words before this one. Pages are near the begin of the area, so rows are full.
    next: usize,
    /// The search for a free chunk begins with this word and goes down.
    next_chunk: usize,
}

impl Slots {
    /// Of so many slots.
    pub(super) fn new(count: u32) -> Self {
        let mut words = vec![NO_PAGE; count.div_ceil(64) as usize];
        // Bits behind the last slot are never free.
        if let Some(last) = words.last_mut()
            && !count.is_multiple_of(64)
        {
            *last |= u64::MAX << (count % 64);
        }
        Self {
            count,
            pages: words.iter().map(|word| word.count_zeros()).sum(),
            words,
            in_use: 0,
            next: 0,
            next_chunk: (count.div_ceil(64) as usize).saturating_sub(1),
        }
    }

    /// Slots of the area.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Takes the first free slot.
    pub(super) fn take(&mut self) -> Option<u32> {
        let mut words = self.next..self.words.len();
        let Some(word) = words.find(|word| self.words[*word] != u64::MAX) else {
            self.next = self.words.len();
            return None;
        };
        let bit = self.words[word].trailing_ones();
        self.words[word] |= 1 << bit;
        (self.next, self.in_use) = (word, self.in_use + 1);
        Some(word as u32 * 64 + bit)
    }

    /// Takes this slot; false if it is in use, or no page can be there.
    pub(super) fn claim(&mut self, slot: u32) -> bool {
        let bit = 1 << (slot % 64);
        let word = self.words.get_mut(slot as usize / 64);
        let Some(word) = word.filter(|word| **word & bit == 0) else {
            return false;
        };
        *word |= bit;
        self.in_use += 1;
        true
    }

    /// Whether there is a page in this slot, or will be.
    pub(super) fn is_in_use(&self, slot: u32) -> bool {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        slot < self.count && bit & NO_PAGE == 0 && self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        assert!(bit & NO_PAGE == 0, "a page can be in slot {slot}");
        assert!(self.words[word] & bit != 0, "slot {slot} is in use");
        self.words[word] &= !bit;
        self.in_use -= 1;
        self.next = self.next.min(word);
    }

    /// Whether more than half of all are free.
    pub(super) fn can_lend(&self) -> bool {
        self.pages - self.in_use > self.pages / 2
    }

    /// Takes a chunk of consecutive slots where no page is, at the far end from [`Self::take`]. Returns the first. `None`: there is no such
    /// chunk, or at most half of all slots are free.
    pub(super) fn take_chunk(&mut self) -> Option<u32> {
        if !self.can_lend() {
            return None;
        }
        let free = |word: u64| {
            (0..u64::BITS / CHUNK_SLOTS)
                .rev()
                .find(|n| word >> (n * CHUNK_SLOTS) & 0xff == NO_PAGE_OF_CHUNK)
        };
        let len = self.words.len();
        let mut words = (0..len).map(|n| (self.next_chunk + len - n) % len);
        let found = words.find_map(|at| Some((at, free(self.words[at])? * CHUNK_SLOTS)));
        let (at, bit) = found?;
        self.words[at] |= 0xff << bit;
        (self.next_chunk, self.in_use) = (at, self.in_use + CHUNK_PAGES);
        Some(at as u32 * u64::BITS + bit)
    }

    pub(super) fn give_back_chunk(&mut self, first: u32) {
        let slots = first..first + CHUNK_SLOTS;
        let of_pages = slots.filter(|slot| slot % ROW_SLOTS != CHANGES_SLOT);
        of_pages.for_each(|slot| self.give_back(slot));
    }

    #[cfg(test)]
    pub(super) fn in_use(&self) -> u32 {
        self.in_use
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slots of so many that pages can be in.
    fn of_pages(count: u32) -> Vec<u32> {
        (0..count)
            .filter(|slot| slot % ROW_SLOTS != CHANGES_SLOT)
            .collect()
    }

    #[test]
    fn each_slot_is_taken_once_and_again_after_it_is_free() {
        for count in [1, 5, 63, 64, 65, 200] {
            let mut slots = Slots::new(count);
            let taken: Vec<u32> = std::iter::from_fn(|| slots.take()).collect();
            assert_eq!(taken, of_pages(count), "the first one that is free");
            let one = taken[taken.len() / 2];
            slots.give_back(one);
            assert_eq!(slots.in_use() as usize, taken.len() - 1);
            assert_eq!((slots.take(), slots.take()), (Some(one), None));
        }
    }

    #[test]
    fn a_slot_is_claimed_once() {
        let mut slots = Slots::new(70);
        assert!(slots.claim(68) && !slots.claim(68) && !slots.claim(70) && !slots.claim(1000));
        assert!(!slots.claim(3) && !slots.claim(67), "no page is there");
        let taken: Vec<u32> = std::iter::from_fn(|| slots.take()).collect();
        let others = of_pages(70).into_iter().filter(|slot| *slot != 68);
        assert_eq!(taken, others.collect::<Vec<_>>());
        slots.give_back(7);
        assert!(slots.is_in_use(6) && !slots.is_in_use(7) && !slots.is_in_use(3) && !slots.is_in_use(70));
        assert!(slots.claim(7) && slots.take().is_none());
    }

    #[test]
    fn chunks_are_of_free_slots_and_leave_half() {
        for count in [0, 7, 16, 63, 64, 65, 200, 1000] {
            let mut slots = Slots::new(count);
            let first = slots.take();
            let chunks: Vec<u32> = std::iter::from_fn(|| slots.take_chunk()).collect();
            let taken = slots.in_use() - first.map_or(0, |_| 1);
            assert_eq!(taken, chunks.len() as u32 * CHUNK_PAGES);
            assert!(
                taken <= count / 2 + CHUNK_SLOTS && !slots.can_lend() || count < 16,
                "{count}"
            );
            assert!(
                chunks
                    .iter()
                    .all(|chunk| *chunk > 0 && chunk + CHUNK_SLOTS <= count)
            );
            let mut others: Vec<u32> = std::iter::from_fn(|| slots.take()).collect();
            others.extend(first);
            let lent = chunks.iter().flat_map(|chunk| *chunk..chunk + CHUNK_SLOTS);
            others.extend(lent.filter(|slot| slot % ROW_SLOTS != CHANGES_SLOT));
            others.sort_unstable();
            assert_eq!(others, of_pages(count));
            chunks.iter().for_each(|chunk| slots.give_back_chunk(*chunk));
            assert_eq!(slots.in_use() as usize, of_pages(count).len() - taken as usize);
        }
    }

    #[test]
    #[should_panic(expected = "slot 5 is in use")]
    fn a_free_slot_is_not_given_back() {
        Slots::new(64).give_back(5);
    }
}
