//! LZO1X, which FlaZ used.

use lzokay::compress::{Dict, compress_no_alloc};
use lzokay::decompress::decompress;

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, exactly};

pub(super) static CODEC: Codec = Codec {
    id: CodecId::LZO,
    name: "lzo",
    levels: None,
    encoder: |_| Box::new(LzoEncoder(Dict::new())),
    decoder: || Box::new(LzoDecoder),
};

struct LzoEncoder(Box<Dict>);

struct LzoDecoder;

impl Encoder for LzoEncoder {
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        compress_no_alloc(block, out, &mut self.0).ok()
    }
}

impl Decoder for LzoDecoder {
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        let damaged = DecodeError::Damaged {
            codec: CodecId::LZO,
            input_bytes: input.len(),
        };
        let found = decompress(input, block).map_err(|_| damaged)?;
        exactly(CodecId::LZO, block.len(), found)
    }
}
