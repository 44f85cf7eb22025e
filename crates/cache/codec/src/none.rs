//! No compression: every block is stored raw.

use crate::codec::{Codec, CodecId, DecodeError, Decoder, Encoder, exactly};

impl CodecId {
    /// Stored uncompressed.
    pub const RAW: Self = Self(0);
}

pub(crate) static CODEC: Codec = Codec {
    id: CodecId::RAW,
    name: "none",
    levels: None,
    encoder: |_| Box::new(Raw),
    decoder: || Box::new(Raw),
};

struct Raw;

impl Encoder for Raw {
    fn compress(&mut self, _block: &[u8], _out: &mut [u8]) -> Option<usize> {
        None
    }
}

impl Decoder for Raw {
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        exactly(&CODEC, block.len(), input.len())?;
        block.copy_from_slice(input);
        Ok(())
    }
}
