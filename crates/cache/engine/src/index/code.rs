//! The code of an entry in a page: 1 to 13 bytes, which depend on the entry before it.
//!
//! ```text
//! 01dggggg                     same     the place of the entry before it
//! 1dgggsss sppppppp            behind   a fragment near the end of the one before it
//! 00wwgggg tttttttt            other    any entry: bits 37..45 of it, then its low 37 bits
//!
//! d  dirty
//! s  sectors - 1
//! p  begin of the fragment, in units from the first unit of the sector in which the fragment before it ends
//! w  low bits: 0 to 2: difference from those of the entry before it, in 2 to 4 bytes, signed; 3: themselves, in 5 bytes
//! g  blocks between the block before it and this one; all ones: and as many more as follow, 7 bits in each byte, the
//!    low ones first, the top bit is set if another byte follows
//! ```
//! The first two bytes (one of *same*) are followed by the rest of `g`, then by the low bits.
//!
//! Entries have no hits. The dirty bit changes no length.
//!
//! Invariant: if an entry is removed, the code of the next one grows by at most the bytes that the removed one had: pages never grow by
//! a removal. So `behind` has few bits for `g`: two of them become an `other` of four bytes.

use super::entry::{Entry, PLACE_MASK, VALUE_MASK};
use crate::units::{LocalBlock, UNIT_BYTES};

/// Most bytes of a code.
pub(super) const CODE_MAX: usize = 2 + GAP_BYTES_MAX + LOW_BYTES;
/// Bits of a block number.
pub(super) const BLOCK_BITS: u32 = 40;
/// Most bytes of the rest of a gap.
pub(super) const GAP_BYTES_MAX: usize = BLOCK_BITS.div_ceil(7) as usize;

const BEHIND: u8 = 0x80;
const SAME: u8 = 0x40;
/// For each form, the largest number in the bits of the gap, which says that more follows.
const SAME_GAP: u64 = 31;
const BEHIND_GAP: u64 = 7;
const OTHER_GAP: u64 = 15;
const BEHIND_GAP_MASK: u8 = 7 << 3;
const BEHIND_UNITS: u64 = 128;

const SECTOR_UNITS: u64 = 512 / UNIT_BYTES;

const LOW_BYTES: usize = 5;
const LOW_BITS: u32 = 37;
const LOW_MASK: u64 = (1 << LOW_BITS) - 1;
const SECTORS_MASK: u64 = 0xf;
const DIRTY_OF_TOP: u64 = 0x80;
const HITS_OF_TOP: u64 = 0x60;

/// What a code depends on: the entry before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    /// The block behind that of the entry.
    next: u64,
    /// Its bits from 37 on, and those below.
    top: u64,
    low: u64,
    /// The first unit of the sector in which its fragment ends.
    end: u64,
}

impl Context {
    /// Of an entry without one before it, in a page that begins with `first`.
    pub(super) fn start(first: LocalBlock) -> Self {
        Self {
            next: first.0,
            top: 0,
            low: 0,
            end: 0,
        }
    }

    /// The block of the entry.
    pub(super) fn block(&self) -> LocalBlock {
        LocalBlock(self.next - 1)
    }

    pub(super) fn entry(&self) -> Entry {
        Entry(self.top << LOW_BITS | self.low)
    }

    /// Whether there can be such an entry.
    pub(super) fn is_valid(&self) -> bool {
        let fits = self.next <= 1 << BLOCK_BITS && self.low <= LOW_MASK && self.top & HITS_OF_TOP == 0;
        fits && self.entry().0 & PLACE_MASK != 0
    }

    fn put(&mut self, block: u64, entry: Entry) {
        self.next = block + 1;
        (self.top, self.low) = (entry.0 >> LOW_BITS, entry.0 & LOW_MASK);
        self.end = entry.last_sector_unit();
    }

    /// Reads a code at the begin of `bytes`: its length. From then on, this is the context of the next one. `None`: it is none. If the
    /// bytes may not be codes, [`Self::is_valid`] is to be asked afterwards.
    #[inline(always)]
    pub(super) fn read(&mut self, bytes: &[u8]) -> Option<usize> {
        match *bytes {
            [control, second, ..]
                if control & BEHIND != 0 && control & BEHIND_GAP_MASK != BEHIND_GAP_MASK =>
            {
                self.next += u64::from((control & BEHIND_GAP_MASK) >> 3) + 1;
                self.read_behind(control, second);
                Some(2)
            }
            _ => self.read_other(bytes),
        }
    }

    #[inline(always)]
    fn read_behind(&mut self, control: u8, second: u8) {
        let sectors = u64::from((control & 7) << 1 | second >> 7);
        self.top = u64::from((control & 0x40) << 1) | sectors;
        self.low = self.end + u64::from(second) % BEHIND_UNITS;
        self.end = self.low - self.low % SECTOR_UNITS + sectors * SECTOR_UNITS;
    }

    #[inline(never)]
    fn read_other(&mut self, bytes: &[u8]) -> Option<usize> {
        let (mut len, block) = self.read_block(bytes)?;
        let control = bytes[0];
        if control & BEHIND != 0 {
            self.read_behind(control, *bytes.get(1)?);
        } else if control & SAME != 0 {
            let dirty = u64::from(control & 0x20) << 2;
            self.top = dirty | self.top & !DIRTY_OF_TOP;
        } else {
            let top = u64::from(*bytes.get(1)?);
            let low = self.read_low(bytes, &mut len, control >> 4)?;
            self.put(block, Entry(top << LOW_BITS | low));
        }
        self.next = block + 1;
        Some(len)
    }

    /// The bytes of a code without those of low bits, and its block.
    #[inline]
    fn read_block(&self, bytes: &[u8]) -> Option<(usize, u64)> {
        let control = *bytes.first()?;
        let (gap, most, mut len) = if control & BEHIND != 0 {
            (u64::from((control & BEHIND_GAP_MASK) >> 3), BEHIND_GAP, 2)
        } else if control & SAME != 0 {
            (u64::from(control & 31), SAME_GAP, 1)
        } else {
            (u64::from(control & 15), OTHER_GAP, 2)
        };
        let rest = match gap == most {
            true => read_varint(bytes, &mut len, GAP_BYTES_MAX)?,
            false => 0,
        };
        Some((len, self.next + gap + rest))
    }

    /// The block of a code.
    pub(super) fn peek(&self, bytes: &[u8]) -> Option<LocalBlock> {
        self.read_block(bytes).map(|(_, block)| LocalBlock(block))
    }

    /// The low bits of an entry, in bytes from `at` on.
    #[inline]
    fn read_low(&self, bytes: &[u8], at: &mut usize, width: u8) -> Option<u64> {
        let count = usize::from(width) + 2;
        let from = bytes.get(*at..*at + count)?;
        *at += count;
        let byte = |n: usize| u64::from(from[n]) << (8 * n);
        let differs = |low: u64, unused: u32| {
            let difference = (low << unused).cast_signed() >> unused;
            self.low.wrapping_add_signed(difference)
        };
        let low = match count {
            2 => differs(byte(0) | byte(1), 48),
            3 => differs(byte(0) | byte(1) | byte(2), 40),
            4 => differs(byte(0) | byte(1) | byte(2) | byte(3), 32),
            _ => byte(0) | byte(1) | byte(2) | byte(3) | byte(4),
        };
        (low <= LOW_MASK).then_some(low)
    }

    /// Appends the code of an entry, whose block is behind the one before it.
    pub(super) fn write(&mut self, block: LocalBlock, entry: Entry, out: &mut Vec<u8>) {
        let value = entry.0 & VALUE_MASK;
        let gap = block.0 - self.next;
        let (top, low) = (value >> LOW_BITS, value & LOW_MASK);
        let dirty = u8::from(entry.dirty());
        let units = low.wrapping_sub(self.end);
        debug_assert_eq!(entry.hits(), 0);
        if entry.same_place(self.entry()) {
            out.push(SAME | dirty << 5 | gap.min(SAME_GAP) as u8);
            write_rest(gap, SAME_GAP, out);
        } else if top & !(DIRTY_OF_TOP | SECTORS_MASK) == 0 && units < BEHIND_UNITS {
            let sectors = (top & SECTORS_MASK) as u8;
            out.push(BEHIND | dirty << 6 | (gap.min(BEHIND_GAP) as u8) << 3 | sectors >> 1);
            out.push((sectors & 1) << 7 | units as u8);
            write_rest(gap, BEHIND_GAP, out);
        } else {
            let difference = low.cast_signed() - self.low.cast_signed();
            let fits = |count: &usize| (-1 << (8 * count - 1)..1 << (8 * count - 1)).contains(&difference);
            let count = (2..LOW_BYTES).find(fits).unwrap_or(LOW_BYTES);
            let low = match count {
                LOW_BYTES => low.cast_signed(),
                _ => difference,
            };
            out.push((count as u8 - 2) << 4 | gap.min(OTHER_GAP) as u8);
            out.push(top as u8);
            write_rest(gap, OTHER_GAP, out);
            out.extend(&low.to_le_bytes()[..count]);
        }
        self.put(block.0, Entry(value));
    }
}

/// A number in `most` bytes at most from `at` on: 7 bits in each byte, the low ones first, the top bit is set if another byte follows.
pub(super) fn read_varint(bytes: &[u8], at: &mut usize, most: usize) -> Option<u64> {
    let mut number = 0;
    for n in 0..most {
        let byte = u64::from(*bytes.get(*at)?);
        *at += 1;
        number |= (byte & 0x7f) << (7 * n);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Appends the rest of a gap, if it does not fit in the bits of the form.
fn write_rest(gap: u64, most: u64, out: &mut Vec<u8>) {
    if let Some(rest) = gap.checked_sub(most) {
        write_varint(rest, out);
    }
}

/// Appends a number: see [`read_varint`].
pub(super) fn write_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use flaz_random::Random;

    use super::*;
    use crate::units::Location;

    fn code(context: Context, block: u64, entry: Entry) -> Vec<u8> {
        let (mut after, mut bytes) = (context, Vec::new());
        after.write(LocalBlock(block), entry, &mut bytes);
        bytes
    }

    fn behind(block: u64, entry: Entry) -> Context {
        let mut context = Context::start(LocalBlock(block));
        context.put(block, entry);
        context
    }

    #[test]
    fn entries_that_were_written_one_after_another_are_short() {
        // 2000 bytes each, header included.
        let (one, two) = (Location(1001), Location(1251));
        let context = behind(7, Entry::fragment(one, 2000));
        let next = Entry::fragment(two, 2000);
        assert_eq!(code(context, 8, next).len(), 2);
        assert_eq!(code(context, 14, next.with_dirty(true)).len(), 2);
        assert_eq!(code(context, 15, next).len(), 3, "far away");
        let apart = Entry::fragment(Location(9000), 2000);
        assert_eq!(code(context, 8, apart).len(), 4);
        let far = Entry::fragment(Location::MAX, 100);
        assert_eq!(code(context, 8, far).len(), 7);
        assert_eq!(code(context, (1 << BLOCK_BITS) - 1, far).len(), CODE_MAX);
        for entry in [
            Entry::group(Location(640), 9000),
            Entry::same_filled(Location(64), 3),
        ] {
            assert_eq!(code(behind(7, entry), 8, entry).len(), 1);
            assert_eq!(code(behind(7, entry), 38, entry.with_dirty(true)).len(), 1);
        }
    }

    fn entry(random: &mut Random, near: Entry) -> Entry {
        let at = match random.below(4) {
            0 => 1 + random.below(Location::MAX.0),
            n => {
                let units = random.below(1 << [11, 17, 26][n as usize - 1]);
                (near.last_sector_unit() + units).clamp(1, Location::MAX.0)
            }
        };
        let bytes = 8 + random.below(4100) as usize;
        let entry = match random.below(8) {
            0 => Entry::group(Location(at - at % 8), 5000),
            1 => Entry::same_filled(Location(at - at % 64), random.below(256) as u8),
            2 | 3 => near,
            _ => Entry::fragment(Location(at), bytes),
        };
        entry.with_dirty(random.below(4) == 0)
    }

    fn gap(random: &mut Random) -> u64 {
        let bits = [0, 0, 2, 4, 6, 8, 15, 30][random.index(8)];
        random.below(1 << bits)
    }

    #[test]
    fn a_code_reads_back_and_never_a_prefix_of_it() {
        let mut random = Random::new(1);
        for _ in 0..200_000 {
            let near = Entry::fragment(Location(1 + random.below(1 << 30)), 700);
            let near = entry(&mut random, near);
            let context = behind(random.below(1 << 39), near);
            let (block, entry) = (context.next + gap(&mut random), entry(&mut random, near));
            let bytes = code(context, block, entry);
            assert!(bytes.len() <= CODE_MAX);
            let (mut again, mut cut) = (context, context);
            assert_eq!(again.read(&bytes), Some(bytes.len()), "{near:?}");
            assert_eq!((again.block(), again.entry()), (LocalBlock(block), entry));
            assert!(again.is_valid());
            assert_eq!(cut.read(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn a_removal_never_makes_codes_longer() {
        let mut random = Random::new(2);
        for _ in 0..300_000 {
            let start = Entry::fragment(Location(1 + random.below(1 << 30)), 700);
            let context = match random.below(8) {
                0 => Context::start(LocalBlock(random.below(1 << 30))),
                _ => behind(random.below(1 << 39), entry(&mut random, start)),
            };
            let one = entry(&mut random, context.entry());
            let two = entry(&mut random, one);
            let first = context.next + gap(&mut random);
            let second = first + 1 + gap(&mut random);
            let with = code(context, first, one).len() + code(behind(first, one), second, two).len();
            let without = code(context, second, two).len();
            assert!(without <= with, "{context:?} {one:?} {two:?} {first} {second}");
        }
    }

    #[test]
    fn any_bytes_are_a_code_or_none() {
        let mut random = Random::new(3);
        for _ in 0..300_000 {
            let bytes: Vec<u8> = (0..random.below(15)).map(|_| random.below(256) as u8).collect();
            let near = Entry(random.below(VALUE_MASK + 1));
            let mut context = behind(random.below(1 << 40), near);
            let Some(len) = context.read(&bytes) else {
                continue;
            };
            assert!(len <= bytes.len());
            if context.is_valid() {
                assert!(context.block().0 >> BLOCK_BITS == 0 && context.entry().0 & !VALUE_MASK == 0);
                assert_ne!(context.entry().0, 0);
            }
        }
    }
}
