//! DEFLATE by libdeflate, levels 1 to 12.
//!
//! The streams are raw DEFLATE. The 6 bytes of header and checksum that zlib adds are left out: the extent's header has a
//! checksum already.

use libdeflater::{CompressionLvl, Compressor, Decompressor};

use crate::codec::{Codec, CodecId, DecodeError, Decoder, Encoder, Levels, exactly};
use crate::memory::Counted;

impl CodecId {
    /// Raw DEFLATE stream (RFC 1951), without the header and checksum of zlib.
    pub const ZLIB: Self = Self(3);
}

/// Default level.
pub(crate) const LEVEL_DEFAULT: i8 = 6;

pub(crate) static CODEC: Codec = Codec {
    id: CodecId::ZLIB,
    name: "zlib",
    levels: Some(Levels {
        range: 1..=12,
        default: LEVEL_DEFAULT,
    }),
    encoder: |level| {
        let made = Compressor::new(CompressionLvl::new(level.into()).unwrap_or_default());
        Box::new(ZlibEncoder {
            made,
            _memory: Counted::new(encoder_bytes(level)),
        })
    },
    decoder: || {
        Box::new(ZlibDecoder {
            made: Decompressor::new(),
            _memory: Counted::new(DECODER_BYTES),
        })
    },
};

/// What libdeflate 1.2x allocates for a compressor: it does not say so itself.
const fn encoder_bytes(level: i8) -> usize {
    match level {
        ..=1 => 201 << 10,
        2..=9 => 656 << 10,
        10.. => 8804 << 10,
    }
}

/// And for a decompressor.
const DECODER_BYTES: usize = 11 << 10;

struct ZlibEncoder {
    made: Compressor,
    _memory: Counted,
}

struct ZlibDecoder {
    made: Decompressor,
    _memory: Counted,
}

impl Encoder for ZlibEncoder {
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        self.made.deflate_compress(block, out).ok()
    }
}

impl Decoder for ZlibDecoder {
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        let damaged = DecodeError::damaged(&CODEC, input);
        let found = self.made.deflate_decompress(input, block).map_err(|_| damaged)?;
        exactly(&CODEC, block.len(), found)
    }
}
