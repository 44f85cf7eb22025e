//! What every codec defines: a number on disk, a name, levels, an encoder and a decoder.

use std::ops::RangeInclusive;

/// Number of a codec on disk. Each codec's file defines its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodecId(pub u8);

impl CodecId {
    /// No codec: the fragment of a dirty block whose contents were lost. Never decoded.
    pub const LOST: Self = Self(u8::MAX);
}

/// Entry of a codec in the registry.
pub(crate) struct Codec {
    pub(crate) id: CodecId,
    pub(crate) name: &'static str,
    /// `None` if the codec has no levels.
    pub(crate) levels: Option<Levels>,
    pub(crate) encoder: fn(level: i8) -> Box<dyn Encoder + Send>,
    pub(crate) decoder: fn() -> Box<dyn Decoder + Send>,
}

/// Levels of a codec, and its default level.
pub(crate) struct Levels {
    pub(crate) range: RangeInclusive<i8>,
    pub(crate) default: i8,
}

/// Compresses blocks.
pub trait Encoder {
    /// Compresses `block` into `out` and returns the number of bytes used, or `None` if they do not fit. `out` is as large as
    /// the caller is willing to store, so that an encoder can stop early. After `None`, the contents of `out` are unspecified.
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize>;

    /// Compresses neighbouring blocks of `block_bytes` each together, so that each may refer to those before it, and the first ones
    /// can be restored alone: see [`Decoder::decompress_first`]. `None` if they do not fit, or the codec has no such form.
    fn compress_group(&mut self, _blocks: &[u8], _block_bytes: usize, _out: &mut [u8]) -> Option<usize> {
        None
    }
}

/// Decompresses the output of the encoder of the same codec.
pub trait Decoder {
    /// Decompresses `input` into the whole of `block`.
    ///
    /// # Errors
    /// [`DecodeError`] if the input is damaged or does not produce exactly `block.len()` bytes; the contents of the
    /// block are then unspecified.
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError>;

    /// Decompresses the first blocks of [`Encoder::compress_group`], as many as `blocks` has room for, without the work for the
    /// others.
    ///
    /// # Errors
    /// As [`Self::decompress`], and if the codec has no such form.
    fn decompress_first(
        &mut self,
        _input: &[u8],
        _block_bytes: usize,
        _blocks: &mut [u8],
    ) -> Result<(), DecodeError> {
        Err(DecodeError::NoGroups)
    }
}

/// Why a fragment could not be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The stream violates its format, or produces more bytes than the block holds.
    #[error("{codec} stream of {input_bytes} bytes is damaged")]
    Damaged {
        /// Name of the codec.
        codec: &'static str,
        /// Length of the stream.
        input_bytes: usize,
    },
    /// The stream is valid but has another length.
    #[error("{codec} stream has {found} bytes: expected a block of {expected}")]
    Length {
        /// Name of the codec.
        codec: &'static str,
        /// Length of the block.
        expected: usize,
        /// Length of the decompressed stream.
        found: usize,
    },
    /// The codec does not compress blocks together.
    #[error("several blocks in one stream, of a codec that does not compress blocks together")]
    NoGroups,
    /// The dictionary that the block was compressed with is not there.
    #[error("compressed with dictionary {0}, which the cache does not have")]
    NoDictionary(u8),
    /// No codec of this version has this number.
    #[error("no codec has the number {0}: written by a newer version, or damaged")]
    UnknownCodec(u8),
}

impl DecodeError {
    pub(crate) fn damaged(codec: &Codec, input: &[u8]) -> Self {
        Self::Damaged {
            codec: codec.name,
            input_bytes: input.len(),
        }
    }
}

/// Checks the length of a decompressed stream.
pub(crate) fn exactly(codec: &Codec, expected: usize, found: usize) -> Result<(), DecodeError> {
    if found == expected {
        Ok(())
    } else {
        Err(DecodeError::Length {
            codec: codec.name,
            expected,
            found,
        })
    }
}
