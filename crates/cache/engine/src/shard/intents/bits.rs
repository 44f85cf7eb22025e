//! The bits of a shard's stripes, and which of them may be cleared.
//!
//! Invariants:
//! - A stripe that was written since the round of clearing began keeps its bit.
//! - A stripe whose writes may have been lost in a failed flush of the origin keeps its bit until the cache is closed.

use std::ops::Range;

use crate::format::intent::INTENT_STRIPES;
use crate::settings::AfterCrash;

/// The bits of a sector are whole words of a set.
const _: () = assert!(INTENT_STRIPES.is_multiple_of(64));

/// Words of a page of memory.
const PAGE_WORDS: usize = 4096 / size_of::<u64>();

/// A set of stripes.
///
/// Invariant: words of a page that was not touched are zero, and have no memory yet.
#[derive(Debug)]
struct Stripes {
    words: Box<[u64]>,
    len: usize,
    /// Pages of `words` that had a stripe.
    touched: Box<[bool]>,
    touched_words: usize,
}

impl Stripes {
    fn none(count: u64) -> Self {
        let words = vec![0; count.div_ceil(64) as usize].into_boxed_slice();
        Self {
            touched: vec![false; words.len().div_ceil(PAGE_WORDS)].into_boxed_slice(),
            words,
            len: 0,
            touched_words: 0,
        }
    }

    fn has(&self, stripe: u64) -> bool {
        debug_assert!(stripe < self.words.len() as u64 * 64);
        self.words[(stripe / 64) as usize] >> (stripe % 64) & 1 == 1
    }

    fn set(&mut self, stripe: u64) {
        let word = (stripe / 64) as usize;
        let page = word / PAGE_WORDS;
        if !self.touched[page] {
            self.touched[page] = true;
            self.touched_words += self.page(page).len();
        }
        self.len += usize::from(!self.has(stripe));
        self.words[word] |= 1 << (stripe % 64);
    }

    /// The words of a page.
    fn page(&self, page: usize) -> Range<usize> {
        let start = page * PAGE_WORDS;
        start..self.words.len().min(start + PAGE_WORDS)
    }

    /// Memory that is in use: of pages that had a stripe.
    fn memory_bytes(&self) -> usize {
        self.touched_words * size_of::<u64>() + self.touched.len()
    }

    fn clear(&mut self, stripe: u64) {
        self.len -= usize::from(self.has(stripe));
        self.words[(stripe / 64) as usize] &= !(1 << (stripe % 64));
    }

    fn clear_all(&mut self) {
        for page in 0..self.touched.len() {
            if self.touched[page] {
                let words = self.page(page);
                self.words[words].fill(0);
            }
        }
        self.len = 0;
    }

    fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.within(0..self.words.len() as u64 * 64)
    }

    /// The stripes of a range that begins and ends at word boundaries, or ends after the last word.
    fn within(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        assert!(range.start.is_multiple_of(64));
        let (first, end) = ((range.start / 64) as usize, range.end.div_ceil(64) as usize);
        let words = self.words[first..end].iter().zip(first as u64..);
        words.filter(|(word, _)| **word != 0).flat_map(|(&word, at)| {
            (0..64)
                .filter(move |bit| word >> bit & 1 == 1)
                .map(move |bit| at * 64 + bit)
        })
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Bits {
    stripes: u64,
    /// Stripes whose bit is set on the device, or is being cleared there and was set again.
    set: Stripes,
    /// Stripes written since the last round began; if no intents are used, since the cache was opened.
    written: Stripes,
    /// Stripes whose writes may have been lost in a failed flush.
    doubtful: Stripes,
    /// Writes in flight, by stripe.
    in_flight: Vec<(u64, u32)>,
    /// Failed flushes of the origin, at the last check.
    failures: u64,
}

impl Bits {
    pub(super) fn new(stripes: u64) -> Self {
        Self {
            stripes,
            set: Stripes::none(stripes),
            written: Stripes::none(stripes),
            doubtful: Stripes::none(stripes),
            in_flight: Vec::new(),
            failures: 0,
        }
    }

    /// Number of stripes.
    pub(super) fn stripes(&self) -> u64 {
        self.stripes
    }

    /// Bytes of memory of the bits.
    pub(super) fn memory_bytes(&self) -> usize {
        let sets = [&self.set, &self.written, &self.doubtful];
        sets.map(Stripes::memory_bytes).into_iter().sum()
    }

    pub(super) fn is_set(&self, stripe: u64) -> bool {
        self.set.has(stripe)
    }

    /// Stripes whose bit is set.
    pub(super) fn set_count(&self) -> u64 {
        self.set.len as u64
    }

    /// Whether every bit is set.
    pub(super) fn is_full(&self) -> bool {
        self.set_count() == self.stripes
    }

    /// The stripes whose bit is set, in order.
    pub(super) fn all_set(&self) -> impl Iterator<Item = u64> + '_ {
        self.set.iter()
    }

    /// The stripes whose bit is set in the range of one sector of the bitmap.
    pub(super) fn set_within(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        self.set.within(range)
    }

    pub(super) fn set(&mut self, stripe: u64) {
        assert!(stripe < self.stripes, "the stripe is of this shard");
        self.set.set(stripe);
    }

    pub(super) fn set_all(&mut self) {
        (0..self.stripes).for_each(|stripe| self.set.set(stripe));
    }

    /// A write to a stripe begins: its bit is not cleared from now on.
    pub(super) fn write_begins(&mut self, stripe: u64) {
        assert!(stripe < self.stripes, "the stripe is of this shard");
        match self.in_flight.iter_mut().find(|(other, _)| *other == stripe) {
            Some((_, count)) => *count += 1,
            None => self.in_flight.push((stripe, 1)),
        }
        self.written.set(stripe);
    }

    /// A write to a stripe has ended. The flush of a round that has begun does not cover it; a later one does.
    pub(super) fn write_ends(&mut self, stripe: u64) {
        let mut writes = self.in_flight.iter();
        let at = writes.position(|(other, _)| *other == stripe);
        let at = at.expect("writes begin and end in pairs");
        self.in_flight[at].1 -= 1;
        if self.in_flight[at].1 == 0 {
            self.in_flight.swap_remove(at);
        }
        self.written.set(stripe);
    }

    /// The stripes whose bit is set, without those written since the last round began, or doubtful.
    pub(super) fn idle(&self) -> impl Iterator<Item = u64> + '_ {
        (self.set.iter()).filter(|&stripe| !self.written.has(stripe) && !self.doubtful.has(stripe))
    }

    /// A round of clearing begins. If a crash leaves nothing of the cache, the written stripes are all remembered.
    pub(super) fn begin_round(&mut self, after_crash: AfterCrash) {
        if after_crash == AfterCrash::Warm {
            self.written.clear_all();
        }
        for (stripe, _) in &self.in_flight {
            self.written.set(*stripe);
        }
    }

    /// Clears the bit of a stripe, unless the stripe was written since the round began.
    pub(super) fn clear_if_idle(&mut self, stripe: u64) -> bool {
        let idle = !self.written.has(stripe);
        if idle {
            let writes = self.in_flight.iter().any(|(other, _)| *other == stripe);
            assert!(!writes, "stripe {stripe} is being written");
            self.set.clear(stripe);
        }
        idle
    }

    /// If flushes of the origin have failed since the last check, all stripes whose writes may be lost become doubtful.
    pub(super) fn note_failures(&mut self, failures: u64, after_crash: AfterCrash) {
        if std::mem::replace(&mut self.failures, failures) == failures {
            return;
        }
        let touched = match after_crash {
            AfterCrash::Warm => &self.set,
            AfterCrash::Cold => &self.written,
        };
        touched.iter().for_each(|stripe| self.doubtful.set(stripe));
    }

    /// Clears all bits except those of doubtful stripes and of `kept`. Returns the stripes whose bit may have changed.
    pub(super) fn clear_for_stop(&mut self, kept: Vec<u64>) -> Vec<u64> {
        assert!(
            self.in_flight.is_empty(),
            "nothing is being written when a shard has stopped"
        );
        let touched = self.set.iter().chain(self.doubtful.iter()).collect();
        self.set.clear_all();
        let kept = kept.into_iter().chain(self.doubtful.iter());
        kept.for_each(|stripe| self.set.set(stripe));
        touched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIPES: u64 = 100;

    fn idle(bits: &Bits) -> Vec<u64> {
        bits.idle().collect()
    }

    #[test]
    fn a_stripe_written_since_the_round_began_keeps_its_bit() {
        let mut bits = Bits::new(STRIPES);
        for stripe in [3, 64, 99] {
            bits.set(stripe);
            bits.write_begins(stripe);
        }
        bits.write_ends(3);
        bits.write_ends(64);
        assert!(idle(&bits).is_empty());
        bits.begin_round(AfterCrash::Warm);
        assert_eq!(idle(&bits), [3, 64], "99 is being written");
        bits.write_begins(64);
        assert!(bits.clear_if_idle(3) && !bits.clear_if_idle(64));
        assert_eq!(bits.all_set().collect::<Vec<_>>(), [64, 99]);
    }

    /// One page of memory has the bits of 32 GiB.
    #[test]
    fn memory_is_used_where_a_stripe_was_written() {
        let mut bits = Bits::new(1 << 20);
        let without = bits.memory_bytes();
        assert!(without < 4096, "{without} bytes without a stripe");
        for stripe in [0, 5, (1 << 20) - 1] {
            bits.set(stripe);
        }
        assert_eq!(bits.memory_bytes(), without + 2 * 4096);
        bits.set.clear_all();
        assert_eq!(bits.all_set().count(), 0);
        assert_eq!(bits.memory_bytes(), without + 2 * 4096, "it is not given back");
        let mut small = Bits::new(STRIPES);
        small.set(70);
        assert_eq!(small.memory_bytes(), 16 + 3, "two words");
    }

    #[test]
    fn a_write_that_ends_in_a_round_keeps_its_bit() {
        let mut bits = Bits::new(STRIPES);
        bits.set(7);
        bits.write_begins(7);
        bits.begin_round(AfterCrash::Warm);
        bits.write_ends(7);
        assert!(!bits.clear_if_idle(7));
        bits.begin_round(AfterCrash::Warm);
        assert!(bits.clear_if_idle(7));
    }

    #[test]
    fn a_failed_flush_keeps_the_bits_of_what_it_may_have_lost() {
        for after_crash in [AfterCrash::Warm, AfterCrash::Cold] {
            let mut bits = Bits::new(STRIPES);
            bits.write_begins(5);
            bits.write_ends(5);
            if after_crash == AfterCrash::Warm {
                bits.set(5);
            }
            bits.note_failures(0, after_crash);
            bits.note_failures(1, after_crash);
            bits.set(6);
            bits.note_failures(1, after_crash);
            bits.begin_round(AfterCrash::Warm);
            assert_eq!(idle(&bits), [6]);
            bits.clear_for_stop(vec![8]);
            assert_eq!(bits.all_set().collect::<Vec<_>>(), [5, 8]);
        }
    }

    #[test]
    fn set_all_sets_every_stripe() {
        let mut bits = Bits::new(STRIPES);
        bits.set_all();
        assert!(bits.is_full());
    }
}
