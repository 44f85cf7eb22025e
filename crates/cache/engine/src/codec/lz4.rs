//! LZ4 by the C library: the fastest, and the default.
//!
//! Blocks are in LZ4's block format without the length in front: the length is known.

use lz4::block::{compress_to_buffer, decompress_to_buffer};

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, exactly};

impl CodecId {
    /// LZ4 block format.
    pub const LZ4: Self = Self(1);
}

pub(super) static CODEC: Codec = Codec {
    id: CodecId::LZ4,
    name: "lz4",
    levels: None,
    encoder: |_| Box::new(Lz4),
    decoder: || Box::new(Lz4),
};

/// Keeps nothing: the library's tables for blocks of this size lie on the stack.
struct Lz4;

impl Encoder for Lz4 {
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        compress_to_buffer(block, None, false, out).ok()
    }
}

impl Decoder for Lz4 {
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        let damaged = DecodeError::Damaged {
            codec: CodecId::LZ4,
            input_bytes: input.len(),
        };
        let size = i32::try_from(block.len()).map_err(|_| damaged)?;
        let found = decompress_to_buffer(input, Some(size), block).map_err(|_| damaged)?;
        exactly(CodecId::LZ4, block.len(), found)
    }
}
