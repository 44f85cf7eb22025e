//! The decoder: accepts every valid stream, and never reads or writes outside the two slices.

/// Copies of up to this many bytes always copy exactly this many if there is space: a copy of fixed length is faster.
const SHORT: usize = 16;

/// Decodes the whole of `input` into the front of `block` and returns the decoded length, or `None` if the stream is
/// damaged or longer than the block; the contents of the block are then unspecified.
pub(super) fn decompress(input: &[u8], block: &mut [u8]) -> Option<usize> {
    decode(&mut Source { input }, &mut Output { block, len: 0 })
}

fn decode(source: &mut Source<'_>, output: &mut Output<'_>) -> Option<usize> {
    let mut instruction = source.byte()?;
    // Number of literals of the previous instruction; 4 means more than three.
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

    /// A length whose lower part, `short`, is in the instruction; zero means that the length continues from `base`.
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
        // Most runs are short. The next instruction overwrites the excess bytes.
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
        // The output repeats with the distance: double the copied part until it is long enough.
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
