//! Zstandard: better ratios, levels from -7 (fast) to 19 (slow).
//!
//! Frames have no magic number, content size or checksum, which saves 5 bytes per block: the extent's header has the same
//! information.

use zstd::bulk::Compressor;
use zstd::zstd_safe::{CParameter, DCtx, DParameter, FrameFormat};

use crate::codec::{Codec, CodecId, DecodeError, Decoder, Encoder, Levels, exactly};
use crate::memory::Counted;

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
    encoder: |level| {
        let made = compressor(level);
        // The library allocates its tables with the first block.
        let memory = Counted::new(0);
        Box::new(ZstdEncoder { made, memory })
    },
    decoder: || Box::new(ZstdDecoder::new()),
};

struct ZstdEncoder {
    made: Compressor<'static>,
    memory: Counted,
}

struct ZstdDecoder {
    context: DCtx<'static>,
    memory: Counted,
}

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

impl ZstdDecoder {
    fn new() -> Self {
        let mut context = DCtx::try_create().expect("the library has memory for a decompressor");
        context
            .set_parameter(DParameter::Format(FrameFormat::Magicless))
            .expect("the library knows the parameter");
        let memory = Counted::new(context.sizeof());
        Self { context, memory }
    }
}

impl Encoder for ZstdEncoder {
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize> {
        let len = self.made.compress_to_buffer(block, out).ok();
        self.memory.set(self.made.context_mut().sizeof());
        len
    }
}

impl Decoder for ZstdDecoder {
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        let damaged = DecodeError::damaged(&CODEC, input);
        let found = self.context.decompress(block, input).map_err(|_| damaged)?;
        self.memory.set(self.context.sizeof());
        exactly(&CODEC, block.len(), found)
    }
}
