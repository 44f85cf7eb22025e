//! LZO1X, which FlaZ used: only LZ4 decompresses faster.
//!
//! Written from the description of the stream in the Linux kernel's documentation (`lzo.rst`). A stream is a sequence of
//! instructions. Each is a copy from earlier output followed by 0 to 3 literals, or a longer run of literals. The meaning of the
//! bits of an instruction depends on the number of literals before it (`state`).
//!
//! | first byte | copies | from |
//! |---|---|---|
//! | `1LLDDDSS` | 5 to 8 bytes | up to 2 KiB back: "near" |
//! | `01LDDDSS` | 3 or 4 bytes | up to 2 KiB back: "near" |
//! | `001LLLLL` | any number | up to 16 KiB back: "middle" |
//! | `0001HLLL` | any number | 16 to 48 KiB back: "far"; a distance of exactly 16 KiB ends the stream |
//! | `0000....` | a run of literals in state 0; else 2 or 3 bytes | - ; up to 1 KiB, from 2 to 3 KiB back |
//!
//! The encoder is greedy with one table, uses near and middle copies only, and stops as soon as the output is full. The decoder
//! accepts every valid stream.
//!
//! Invariants: a valid stream gives the data that was compressed. An invalid one makes the decoder fail or give wrong bytes of
//! some length; it never causes a panic, an endless loop or an allocation. The only allocation is the encoder's table, once.

mod decode;
mod encode;

use self::decode::decompress;
use self::encode::LzoEncoder;
use crate::codec::{Codec, CodecId, DecodeError, Decoder, exactly};

impl CodecId {
    /// LZO1X stream.
    pub const LZO: Self = Self(4);
}

pub(crate) static CODEC: Codec = Codec {
    id: CodecId::LZO,
    name: "lzo",
    levels: None,
    encoder: |_| Box::new(LzoEncoder::default()),
    decoder: || Box::new(LzoDecoder),
};

struct LzoDecoder;

impl Decoder for LzoDecoder {
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        let found = decompress(input, block).ok_or_else(|| DecodeError::damaged(&CODEC, input))?;
        exactly(&CODEC, block.len(), found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Encoder as _;

    fn there_and_back(block: &[u8]) -> usize {
        let mut out = vec![0; block.len() + block.len() / 16 + 64];
        let len = LzoEncoder::default().compress(block, &mut out).unwrap();
        let mut back = vec![0; block.len()];
        assert_eq!(decompress(&out[..len], &mut back), Some(block.len()));
        assert!(back == block);
        len
    }

    #[test]
    fn large_blocks_round_trip() {
        for len in [0, 1, 100, 4096, 65_536, 1 << 20] {
            let text: Vec<u8> = (0..len).map(|at: usize| (at / 7 % 251) as u8).collect();
            assert!(there_and_back(&text) < len / 2 + 64, "{len}");
        }
    }

    #[test]
    fn output_that_does_not_fit_is_refused() {
        let noise: Vec<u8> = (0..4096u32)
            .map(|at| (at.wrapping_mul(0x9e37_79b1) >> 23) as u8)
            .collect();
        assert_eq!(LzoEncoder::default().compress(&noise, &mut [0; 512]), None);
        assert_eq!(decompress(&[0x40, 0], &mut [0; 16]), None);
    }
}
