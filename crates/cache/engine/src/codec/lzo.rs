//! LZO1X, which FlaZ used: decompresses faster than anything but LZ4. The stream is the crate `flaz-lzo`.

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, exactly};

impl CodecId {
    /// LZO1X stream.
    pub const LZO: Self = Self(4);
}

pub(super) static CODEC: Codec = Codec {
    id: CodecId::LZO,
    name: "lzo",
    levels: None,
    encoder: |_| Box::new(LzoEncoder(flaz_lzo::Encoder::default())),
    decoder: || Box::new(LzoDecoder),
};

struct LzoEncoder(flaz_lzo::Encoder);

impl Encoder for LzoEncoder {
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        self.0.compress(block, out)
    }
}

struct LzoDecoder;

impl Decoder for LzoDecoder {
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        let damaged = DecodeError::Damaged {
            codec: CodecId::LZO,
            input_bytes: input.len(),
        };
        let found = flaz_lzo::decompress(input, block).ok_or(damaged)?;
        exactly(CodecId::LZO, block.len(), found)
    }
}
