//! Compression of single blocks, behind one small pair of traits.
//!
//! A codec is one file, its number on disk included, that is named in [`REGISTRY`] here. Everything else (names on the
//! command line and in its help, levels, decoding) follows from the file's `CODEC`.
//!
//! Invariants:
//! - a number on disk ([`CodecId`]) is never given to another format;
//! - a decoder fills exactly the block it is given or fails; hostile input makes it fail or gives wrong bytes
//!   of the right length (the fragment's checksum finds those), but never panics, loops, allocates by what
//!   the input says, or lets earlier contents of the block show through;
//! - encoders and decoders keep their tables between blocks: the steady state allocates nothing.
//!
//! | module | what it holds |
//! |---|---|
//! | [`compressibility`] | single-value blocks; a cheap look whether compressing can pay at all |
//! | [`spec`] | codec and level as the user names them |
//! | `none`, `lz4`, `zstd`, `zlib`, `lzo` | one codec each |

pub mod compressibility;
mod lz4;
mod lzo;
mod none;
pub mod spec;
mod zlib;
mod zstd;

use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;

pub use self::spec::{CodecSpec, SpecError};

/// All codecs. To add one, write its file and name it here.
static REGISTRY: [&Codec; 5] = [&none::CODEC, &lz4::CODEC, &zstd::CODEC, &zlib::CODEC, &lzo::CODEC];

/// Number of a codec on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodecId(pub u8);

impl CodecId {
    /// No codec: the fragment of a dirty block whose contents were lost. Never decoded.
    pub const LOST: Self = Self(u8::MAX);

    /// The name of the codec, if there is one of this number.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        find(self).map(|codec| codec.name)
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "codec {}", self.0),
        }
    }
}

/// What a codec file tells of itself.
struct Codec {
    id: CodecId,
    name: &'static str,
    /// Levels that exist and the one taken if none is named; `None`: there is only one way.
    levels: Option<Levels>,
    encoder: fn(level: i8) -> Box<dyn Encoder + Send>,
    decoder: fn() -> Box<dyn Decoder + Send>,
}

struct Levels {
    range: RangeInclusive<i8>,
    default: i8,
}

/// Compresses blocks.
pub trait Encoder {
    /// Compresses `block` into `out` and gives the number of bytes used; `None` if they do not fit. `out` is
    /// as large as the caller is willing to store, so an encoder can stop early; what `None` leaves in it is
    /// unspecified.
    fn compress(&mut self, block: &[u8], out: &mut [u8]) -> Option<usize>;
}

/// Decompresses what the encoder of the same codec made.
pub trait Decoder {
    /// Decompresses `input` into the whole of `block`.
    ///
    /// # Errors
    /// [`DecodeError`] if the input is damaged or does not give exactly `block.len()` bytes; the block's
    /// contents are then unspecified.
    fn decompress(&mut self, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError>;
}

/// Why a fragment could not be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The stream breaks the rules of its format, or gives more than the block holds.
    #[error("{codec} stream of {input_bytes} bytes is damaged")]
    Damaged {
        /// The codec that found it.
        codec: CodecId,
        /// Length of the stream.
        input_bytes: usize,
    },
    /// The stream ends well but gives another length.
    #[error("{codec} stream gives {found} bytes, expected a block of {expected}")]
    Length {
        /// The codec that found it.
        codec: CodecId,
        /// Length of the block.
        expected: usize,
        /// Length that came out.
        found: usize,
    },
    /// The number on disk belongs to no codec of this version.
    #[error("no codec has the number {0}: written by a newer version, or damaged")]
    UnknownCodec(u8),
}

/// Checks the length that came out of a stream.
fn exactly(codec: CodecId, expected: usize, found: usize) -> Result<(), DecodeError> {
    if found == expected {
        Ok(())
    } else {
        Err(DecodeError::Length {
            codec,
            expected,
            found,
        })
    }
}

/// All codecs with their levels, for a sentence: `none, lz4, zstd[:LEVEL] (-7 to 19, default 1) ..`.
#[must_use]
pub fn choices() -> String {
    let mut text = String::new();
    for (n, codec) in REGISTRY.iter().enumerate() {
        let joint = match n {
            0 => "",
            _ if n + 1 == REGISTRY.len() => " and ",
            _ => ", ",
        };
        text.push_str(joint);
        text.push_str(codec.name);
        if let Some(Levels { range, default }) = &codec.levels {
            let (low, high) = (range.start(), range.end());
            // Writing to a string cannot fail.
            let _ = write!(text, "[:LEVEL] ({low} to {high}, default {default})");
        }
    }
    text
}

fn find(id: CodecId) -> Option<&'static Codec> {
    REGISTRY.iter().copied().find(|codec| codec.id == id)
}

/// An encoder for `spec`. It keeps tables of up to some hundred KiB (zstd's high levels: a few MiB): make one
/// a thread.
#[must_use]
pub fn encoder(spec: CodecSpec) -> Box<dyn Encoder + Send> {
    (spec.codec().encoder)(spec.level())
}

/// Decoders of all codecs, each made when it is first needed. One a thread.
#[derive(Default)]
pub struct Decoders {
    made: [Option<Box<dyn Decoder + Send>>; REGISTRY.len()],
}

impl Decoders {
    /// No decoder yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decompresses `input`, which codec `id` made, into the whole of `block`.
    ///
    /// # Errors
    /// As [`Decoder::decompress`], and if there is no codec of that number.
    pub fn decompress(&mut self, id: CodecId, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        let place = REGISTRY.iter().position(|codec| codec.id == id);
        let Some(place) = place else {
            return Err(DecodeError::UnknownCodec(id.0));
        };
        self.made[place]
            .get_or_insert_with(REGISTRY[place].decoder)
            .decompress(input, block)
    }
}

impl fmt::Debug for Decoders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decoders")
    }
}

#[cfg(test)]
mod tests;
