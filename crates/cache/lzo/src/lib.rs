//! LZO1X, which FlaZ used: decompresses faster than anything but LZ4. The cache stores with it, and `flaz study` measures
//! with it.
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
//!
//! Invariants: a stream that is valid gives what was compressed; one that is not makes the decoder fail or give wrong bytes
//! of some length, never panic, loop or allocate; both allocate nothing but the encoder's table, once.

mod decode;
mod encode;

pub use decode::decompress;
pub use encode::Encoder;

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(block: &[u8]) -> usize {
        let mut out = vec![0; block.len() + block.len() / 16 + 64];
        let len = Encoder::default().compress(block, &mut out).unwrap();
        let mut back = vec![0; block.len()];
        assert_eq!(decompress(&out[..len], &mut back), Some(block.len()));
        assert!(back == block);
        len
    }

    #[test]
    fn large_blocks_come_back() {
        for len in [0, 1, 100, 4096, 65_536, 1 << 20] {
            let text: Vec<u8> = (0..len).map(|at: usize| (at / 7 % 251) as u8).collect();
            assert!(there_and_back(&text) < len / 2 + 64, "{len}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let noise: Vec<u8> = (0..4096u32)
            .map(|at| (at.wrapping_mul(0x9e37_79b1) >> 23) as u8)
            .collect();
        assert_eq!(Encoder::default().compress(&noise, &mut [0; 512]), None);
        assert_eq!(decompress(&[0x40, 0], &mut [0; 16]), None);
    }
}
