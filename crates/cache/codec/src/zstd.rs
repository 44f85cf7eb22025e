//! Zstandard: better ratios, levels from -7 (fast) to 19 (slow).
//!
//! Frames have no magic number, content size or checksum, which saves 5 bytes per block: the extent's header has the same
//! information.

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, DParameter, FrameFormat};

use crate::codec::{Codec, CodecId, DecodeError, Decoder, Encoder, Levels, exactly};

impl CodecId {
    /// One Zstandard frame (RFC 8878) without magic number, content size and checksum.
    pub const ZSTD: Self = Self(2);
}

/// Default level.
pub(crate) const LEVEL_DEFAULT: i8 = 1;

pub(crate) static CODEC: Codec = Codec {
    id: CodecId::ZSTD,
    name: "zstd",
    levels: Some(Levels {
        range: -7..=19,
        default: LEVEL_DEFAULT,
    }),
    encoder: |level| Box::new(ZstdEncoder(compressor(level))),
    decoder: || Box::new(ZstdDecoder(decompressor())),
};

struct ZstdEncoder(Compressor<'static>);

struct ZstdDecoder(Decompressor<'static>);

fn compressor(level: i8) -> Compressor<'static> {
    let mut made = Compressor::new(level.into()).expect("the library has memory for a compressor");
    for parameter in [
        CParameter::ContentSizeFlag(false),
        CParameter::ChecksumFlag(false),
        CParameter::DictIdFlag(false),
        CParameter::Format(FrameFormat::Magicless),
    ] {
        made.set_parameter(parameter)
            .expect("the library knows the parameter");
    }
    made
}

fn decompressor() -> Decompressor<'static> {
    let mut made = Decompressor::new().expect("the library has memory for a decompressor");
    made.set_parameter(DParameter::Format(FrameFormat::Magicless))
        .expect("the library knows the parameter");
    made
}

impl Encoder for ZstdEncoder {
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        self.0.compress_to_buffer(block, out).ok()
    }
}

impl Decoder for ZstdDecoder {
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        let damaged = DecodeError::damaged(&CODEC, input);
        let found = self.0.decompress_to_buffer(input, block).map_err(|_| damaged)?;
        exactly(&CODEC, block.len(), found)
    }
}
