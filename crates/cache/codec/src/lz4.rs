//! LZ4 by the C library: the fastest codec, and the default.
//!
//! Blocks are in LZ4's block format without a length prefix: the length is known.

use lz4::block::{compress_to_buffer, decompress_to_buffer};

use crate::codec::{Codec, CodecId, DecodeError, Decoder, Encoder, exactly};

impl CodecId {
    /// LZ4 block format.
    pub const LZ4: Self = Self(1);
}

pub(crate) static CODEC: Codec = Codec {
    id: CodecId::LZ4,
    name: "lz4",
    levels: None,
    encoder: |_| Box::new(Lz4),
    decoder: || Box::new(Lz4),
};

/// Has no state: the library's tables for blocks of this size are on the stack.
struct Lz4;

impl Encoder for Lz4 {
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        compress_to_buffer(block, None, false, out).ok()
    }
}

impl Decoder for Lz4 {
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        let damaged = DecodeError::damaged(&CODEC, input);
        let size = i32::try_from(block.len()).map_err(|_| damaged)?;
        let found = decompress_to_buffer(input, Some(size), block).map_err(|_| damaged)?;
        exactly(&CODEC, block.len(), found)
    }
}
