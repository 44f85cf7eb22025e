//! The places of index pages on the device: which of them are free.

/// Slots per chunk.
pub const CHUNK_SLOTS: u32 = u8::BITS;

/// One bit for each slot; set: in use.
#[derive(Debug)]
pub(super) struct Slots {
    words: Vec<u64>,
    count: u32,
    in_use: u32,
    /// The search for a free one begins with this word, so that pages that are written together are near each other.
    next: usize,
    /// The search for a free chunk begins with this word and goes down.
    next_chunk: usize,
}

impl Slots {
    pub(super) fn new(count: u32) -> Self {
        let mut words = vec![0; count.div_ceil(64) as usize];
        // Bits behind the last slot are never free.
        if let Some(last) = words.last_mut()
            && !count.is_multiple_of(64)
        {
            *last = u64::MAX << (count % 64);
        }
        Self {
            words,
            count,
            in_use: 0,
            next: 0,
            next_chunk: (count.div_ceil(64) as usize).saturating_sub(1),
        }
    }

    /// Takes a free slot.
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.in_use == self.count {
            return None;
        }
        let len = self.words.len();
        let mut words = (0..len).map(|n| (self.next + n) % len);
        let word = words
            .find(|word| self.words[*word] != u64::MAX)
            .expect("one is free");
        let bit = self.words[word].trailing_ones();
        self.words[word] |= 1 << bit;
        (self.next, self.in_use) = (word, self.in_use + 1);
        Some(word as u32 * 64 + bit)
    }

    /// Takes this slot; false if it is in use, or there is none.
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

    pub(super) fn give_back(&mut self, slot: u32) {
        assert!(slot < self.count, "slot {slot} of {}", self.count);
        let (word, bit) = (&mut self.words[slot as usize / 64], 1 << (slot % 64));
        assert!(*word & bit != 0, "slot {slot} is in use");
        *word &= !bit;
        self.in_use -= 1;
    }

    /// Whether more than half of all are free.
    pub(super) fn can_lend(&self) -> bool {
        self.count - self.in_use > self.count / 2
    }

    /// Takes a chunk of consecutive free slots, at the far end from [`Self::take`]. Returns the first. `None`: no chunk is free, or at most
    /// half of all slots are.
    pub(super) fn take_chunk(&mut self) -> Option<u32> {
        if !self.can_lend() {
            return None;
        }
        let free = |word: u64| {
            (0..u64::BITS / CHUNK_SLOTS)
                .rev()
                .find(|n| word >> (n * CHUNK_SLOTS) & 0xff == 0)
        };
        let len = self.words.len();
        let mut words = (0..len).map(|n| (self.next_chunk + len - n) % len);
        let found = words.find_map(|at| Some((at, free(self.words[at])? * CHUNK_SLOTS)));
        let (at, bit) = found?;
        self.words[at] |= 0xff << bit;
        (self.next_chunk, self.in_use) = (at, self.in_use + CHUNK_SLOTS);
        Some(at as u32 * u64::BITS + bit)
    }

    pub(super) fn give_back_chunk(&mut self, first: u32) {
        (first..first + CHUNK_SLOTS).for_each(|slot| self.give_back(slot));
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

    #[test]
    fn each_slot_is_taken_once_and_again_after_it_is_free() {
        for count in [1, 63, 64, 65, 200] {
            let mut slots = Slots::new(count);
            let mut taken: Vec<u32> = (0..count).map_while(|_| slots.take()).collect();
            assert_eq!(slots.take(), None);
            taken.sort_unstable();
            assert_eq!(taken, (0..count).collect::<Vec<_>>());
            slots.give_back(count / 2);
            assert_eq!((slots.in_use(), slots.take()), (count - 1, Some(count / 2)));
        }
    }

    #[test]
    fn a_slot_is_claimed_once() {
        let mut slots = Slots::new(70);
        assert!(slots.claim(69) && !slots.claim(69) && !slots.claim(70) && !slots.claim(1000));
        let taken: Vec<u32> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(taken, (0..69).collect::<Vec<_>>());
        slots.give_back(7);
        assert!(slots.claim(7) && slots.take().is_none());
    }

    #[test]
    fn chunks_are_of_free_slots_and_leave_half() {
        for count in [0, 7, 16, 63, 64, 65, 200, 1000] {
            let mut slots = Slots::new(count);
            let first = slots.take();
            let chunks: Vec<u32> = std::iter::from_fn(|| slots.take_chunk()).collect();
            let taken = chunks.len() as u32 * CHUNK_SLOTS;
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
            others.extend(chunks.iter().flat_map(|chunk| *chunk..chunk + CHUNK_SLOTS));
            others.sort_unstable();
            assert_eq!(others, (0..count).collect::<Vec<_>>());
            chunks.iter().for_each(|chunk| slots.give_back_chunk(*chunk));
            assert_eq!(slots.in_use(), count - taken);
        }
    }

    #[test]
    #[should_panic(expected = "slot 3 is in use")]
    fn a_free_slot_is_not_given_back() {
        Slots::new(64).give_back(3);
    }
}
