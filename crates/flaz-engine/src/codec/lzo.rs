//! LZO1X, which FlaZ used: decompresses faster than anything but LZ4.
//!
//! Written from the description of the stream in the Linux kernel's documentation (`lzo.rst`). A stream is a
//! run of instructions, each a copy from earlier output followed by 0 to 3 literals, or a longer run of
//! literals; the bits of an instruction mean different things by the number of literals before it (`state`).
//!
//! | first byte | copies | from |
//! |---|---|---|
//! | `1LLDDDSS` | 5 to 8 bytes | up to 2 KiB back: "near" |
//! | `01LDDDSS` | 3 or 4 bytes | up to 2 KiB back: "near" |
//! | `001LLLLL` | any number | up to 16 KiB back: "middle" |
//! | `0001HLLL` | any number | 16 to 48 KiB back: "far"; a distance of exactly 16 KiB ends the stream |
//! | `0000....` | a run of literals in state 0; else 2 or 3 bytes | - ; up to 1 KiB, from 2 to 3 KiB back |
//!
//! The encoder is greedy with one table, uses near and middle copies only, and gives up as soon as the output
//! is full. The decoder takes every valid stream.

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, exactly};

pub(super) static CODEC: Codec = Codec {
    id: CodecId::LZO,
    name: "lzo",
    levels: None,
    encoder: |_| {
        Box::new(LzoEncoder {
            places: Box::new([0; 1 << HASH_BITS]),
            base: 1,
        })
    },
    decoder: || Box::new(LzoDecoder),
};

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
/// Copies of up to this many bytes are made at full length where there is room.
const SHORT: usize = 16;
/// Positions looked at before the encoder begins to skip some, as a power of two.
const PATIENCE_BITS: usize = 5;

struct LzoEncoder {
    /// Where three bytes of this hash were last seen, plus `base`; what lies below `base` is of an earlier
    /// block, so nothing need be cleared between blocks.
    places: Box<[u32; 1 << HASH_BITS]>,
    base: u32,
}

impl Encoder for LzoEncoder {
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
                at += 1 + ((at - literals_from) >> PATIENCE_BITS);
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

/// Output that may be too small.
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
            // The low bits of the last copy's second last byte, whichever copy it was.
            self.out[self.len - 2] |= count as u8;
        } else if count <= 18 {
            self.put(&[count as u8 - 3])?;
        } else {
            self.put(&[0])?;
            self.long(count - 18)?;
        }
        self.put(bytes)
    }

    /// A length beyond what fits an instruction: 255 for each zero, then the rest, which is not zero.
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

struct LzoDecoder;

impl Decoder for LzoDecoder {
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        let damaged = DecodeError::Damaged {
            codec: CodecId::LZO,
            input_bytes: input.len(),
        };
        let found = decode(&mut Source { input }, &mut Output { block, len: 0 }).ok_or(damaged)?;
        exactly(CodecId::LZO, block.len(), found)
    }
}

/// Decodes a whole stream; gives the length that came out, or `None` if the stream is damaged.
fn decode(source: &mut Source<'_>, output: &mut Output<'_>) -> Option<usize> {
    let mut instruction = source.byte()?;
    // Literals that the instruction before announced; 4 stands for more than three.
    let mut state = 0;
    if instruction > 17 {
        let count = usize::from(instruction) - 17;
        output.literals(source, count)?;
        state = count.min(4);
        instruction = source.byte()?;
    }
    loop {
        let byte = usize::from(instruction);
        let (distance, len, literals) = match instruction {
            0x40.. => {
                let back = usize::from(source.byte()?) << 3 | byte >> 2 & 7;
                (back + 1, (byte >> 5) + 1, byte & 3)
            }
            0x20.. => {
                let len = source.len(byte & 31, 31)? + 2;
                let tail = source.pair()?;
                ((tail >> 2) + 1, len, tail & 3)
            }
            0x10.. => {
                let len = source.len(byte & 7, 7)? + 2;
                let tail = source.pair()?;
                let back = (byte & 8) << 11 | tail >> 2;
                if back == 0 {
                    let whole = len == 3 && tail == 0 && source.input.is_empty();
                    return whole.then_some(output.len);
                }
                (back + 16_384, len, tail & 3)
            }
            _ if state == 0 => {
                let count = source.len(byte, 15)? + 3;
                output.literals(source, count)?;
                state = 4;
                instruction = source.byte()?;
                continue;
            }
            _ => {
                let back = usize::from(source.byte()?) << 2 | byte >> 2;
                if state == 4 {
                    (back + 2049, 3, byte & 3)
                } else {
                    (back + 1, 2, byte & 3)
                }
            }
        };
        output.copy(distance, len)?;
        if literals > 0 {
            output.literals(source, literals)?;
        }
        state = literals;
        instruction = source.byte()?;
    }
}

struct Source<'a> {
    input: &'a [u8],
}

impl<'a> Source<'a> {
    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.input.split_first()?;
        self.input = rest;
        Some(*first)
    }

    /// A little-endian number of two bytes.
    #[inline]
    fn pair(&mut self) -> Option<usize> {
        let (pair, rest) = self.input.split_first_chunk::<2>()?;
        self.input = rest;
        Some(usize::from(u16::from_le_bytes(*pair)))
    }

    #[inline]
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.input.split_at_checked(count)?;
        self.input = rest;
        Some(taken)
    }

    /// A length of which the instruction held `short`: zero means that it goes on from `base`.
    #[inline]
    fn len(&mut self, short: usize, base: usize) -> Option<usize> {
        if short > 0 {
            return Some(short);
        }
        let zeros = self.input.iter().take_while(|byte| **byte == 0).count();
        self.input = &self.input[zeros..];
        // No overflow: `zeros` is at most the length of a slice in memory.
        zeros
            .checked_mul(255)?
            .checked_add(base + usize::from(self.byte()?))
    }
}

struct Output<'a> {
    block: &'a mut [u8],
    len: usize,
}

impl Output<'_> {
    #[inline]
    fn literals(&mut self, source: &mut Source<'_>, count: usize) -> Option<()> {
        let end = self.len.checked_add(count)?;
        // Short runs are the rule: a copy of fixed length costs less, and what is too much is overwritten.
        if count <= SHORT
            && let Some(bytes) = source.input.first_chunk::<SHORT>()
            && let Some(area) = self.block.get_mut(self.len..self.len + SHORT)
        {
            area.copy_from_slice(bytes);
            source.input = &source.input[count..];
        } else {
            let bytes = source.take(count)?;
            self.block.get_mut(self.len..end)?.copy_from_slice(bytes);
        }
        self.len = end;
        Some(())
    }

    #[inline]
    fn copy(&mut self, distance: usize, len: usize) -> Option<()> {
        let from = self.len.checked_sub(distance)?;
        let end = self.len.checked_add(len)?;
        if len <= SHORT
            && distance >= SHORT
            && let Some(area) = self.block.get_mut(from..self.len + SHORT)
            && let Some(bytes) = area.first_chunk::<SHORT>().copied()
        {
            area[distance..].copy_from_slice(&bytes);
            self.len = end;
            return Some(());
        }
        let area = self.block.get_mut(from..end)?;
        // What is copied repeats with the distance: double the copied part until it is long enough.
        let mut ready = distance;
        while ready < area.len() {
            let step = ready.min(area.len() - ready);
            area.copy_within(..step, ready);
            ready += step;
        }
        self.len = end;
        Some(())
    }
}
