//! The encoder: greedy, with one table.

use std::fmt;

use crate::codec::Encoder;
use crate::memory::Counted;

const HASH_BITS: u32 = 13;
const NEAR_DISTANCE_MAX: usize = 2048;
const NEAR_LEN_MAX: usize = 8;
const MIDDLE_DISTANCE_MAX: usize = 16_384;
const MIDDLE_MARK: u8 = 0b0010_0000;
/// Longest copy whose length fits the instruction.
const MIDDLE_LEN_SHORT_MAX: usize = 33;
/// A far copy from exactly 16 KiB back.
const END: [u8; 3] = [0b0001_0001, 0, 0];
/// Most literals that the very first byte can announce.
const FIRST_LITERALS_MAX: usize = 238;
/// Number of positions tried without a match before the encoder begins to skip some, as a power of two.
const SKIP_BITS: usize = 5;

/// Compresses blocks one after the other and keeps its table between them.
pub(super) struct LzoEncoder {
    /// Position where three bytes with this hash were last seen, plus `base`. Entries below `base` belong to an earlier
    /// block, so the table need not be cleared between blocks.
    places: Box<[u32; 1 << HASH_BITS]>,
    base: u32,
    _memory: Counted,
}

impl fmt::Debug for LzoEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LzoEncoder").finish_non_exhaustive()
    }
}

impl Default for LzoEncoder {
    fn default() -> Self {
        Self {
            places: Box::new([0; 1 << HASH_BITS]),
            base: 1,
            _memory: Counted::new(size_of::<[u32; 1 << HASH_BITS]>()),
        }
    }
}

impl Encoder for LzoEncoder {
    /// Returns `None` for a block of 4 GiB or more, too.
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        let len = u32::try_from(block.len()).ok()?;
        if self.base.checked_add(len).is_none() {
            self.places.fill(0);
            self.base = 1;
        }
        let used = self.encode(block, out);
        self.base += len;
        used
    }
}

impl LzoEncoder {
    fn encode(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        let mut sink = Sink { out, len: 0 };
        let mut literals_from = 0;
        let mut at = 0;
        while let Some(word) = block.get(at..at + 4) {
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let hash = ((word << 8).wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize;
            let place = std::mem::replace(&mut self.places[hash], self.base + at as u32);
            let found = place.checked_sub(self.base).map_or(at, |place| place as usize);
            let distance = at - found;
            let len = if (1..=MIDDLE_DISTANCE_MAX).contains(&distance) {
                common(&block[found..], &block[at..])
            } else {
                0
            };
            // A middle copy of three bytes saves nothing.
            if len < 3 || (len == 3 && distance > NEAR_DISTANCE_MAX) {
                at += 1 + ((at - literals_from) >> SKIP_BITS);
                continue;
            }
            sink.literals(&block[literals_from..at])?;
            sink.copy(distance, len)?;
            at += len;
            literals_from = at;
        }
        sink.literals(&block[literals_from..])?;
        sink.put(&END)?;
        Some(sink.len)
    }
}

/// Number of equal bytes at the start of both.
fn common(earlier: &[u8], later: &[u8]) -> usize {
    let mut len = 0;
    for (a, b) in earlier.chunks_exact(8).zip(later.chunks_exact(8)) {
        let differing = word(a) ^ word(b);
        if differing != 0 {
            return len + differing.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    len + earlier[len..]
        .iter()
        .zip(&later[len..])
        .take_while(|(a, b)| a == b)
        .count()
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// Output slice that may be too small.
struct Sink<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl Sink<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.len + bytes.len();
        self.out.get_mut(self.len..end)?.copy_from_slice(bytes);
        self.len = end;
        Some(())
    }

    fn literals(&mut self, bytes: &[u8]) -> Option<()> {
        let count = bytes.len();
        if count == 0 {
            return Some(());
        }
        if self.len == 0 && count <= FIRST_LITERALS_MAX {
            self.put(&[count as u8 + 17])?;
        } else if self.len > 0 && count <= 3 {
            // The low bits of the second last byte of the last copy, for all kinds of copies.
            self.out[self.len - 2] |= count as u8;
        } else if count <= 18 {
            self.put(&[count as u8 - 3])?;
        } else {
            self.put(&[0])?;
            self.long(count - 18)?;
        }
        self.put(bytes)
    }

    /// A length that does not fit into an instruction: 255 for each zero, then the rest, which is not zero.
    fn long(&mut self, mut rest: usize) -> Option<()> {
        while rest > 255 {
            self.put(&[0])?;
            rest -= 255;
        }
        self.put(&[rest as u8])
    }

    fn copy(&mut self, distance: usize, len: usize) -> Option<()> {
        if len <= NEAR_LEN_MAX && distance <= NEAR_DISTANCE_MAX {
            let back = distance - 1;
            return self.put(&[((len - 1) << 5 | (back & 7) << 2) as u8, (back >> 3) as u8]);
        }
        if len <= MIDDLE_LEN_SHORT_MAX {
            self.put(&[MIDDLE_MARK | (len - 2) as u8])?;
        } else {
            self.put(&[MIDDLE_MARK])?;
            self.long(len - MIDDLE_LEN_SHORT_MAX)?;
        }
        self.put(&(((distance - 1) << 2) as u16).to_le_bytes())
    }
}
