//! The codecs that data is measured with: the libraries and the settings that the cache uses.
//!
//! Only lengths are of interest here. "Saved" is what a device gains that stores a chunk compressed where that is
//! smaller and as it is where it is not: it is never negative.

use std::fmt;
use std::str::FromStr;

use zstd::zstd_safe::{CParameter, FrameFormat};

/// A codec and its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Codec {
    /// LZ4 block format.
    Lz4,
    /// One Zstandard frame without magic number, content size and checksum; levels -7 to 19.
    Zstd(i8),
    /// Raw DEFLATE by libdeflate; levels 1 to 12.
    Zlib(u8),
    /// LZO1X.
    Lzo,
}

impl Codec {
    /// The codecs that generated data is calibrated for.
    pub const CALIBRATED: [Self; 3] = [Self::Lz4, Self::Zstd(1), Self::Zlib(6)];
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lz4 => f.pad("lz4"),
            Self::Zstd(level) => f.pad(&format!("zstd:{level}")),
            Self::Zlib(level) => f.pad(&format!("zlib:{level}")),
            Self::Lzo => f.pad("lzo"),
        }
    }
}

/// A text that names no codec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no codec here: expected lz4, lzo, zstd[:LEVEL] (-7 to 19, 1 if left out) or zlib[:LEVEL] (1 to 12, 6 if left out)"
)]
pub struct CodecError(String);

impl FromStr for Codec {
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Self, CodecError> {
        let unknown = || CodecError(text.to_owned());
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level.parse::<i8>().map_err(|_| unknown())?)),
            None => (text, None),
        };
        match (name, level) {
            ("lz4", None) => Ok(Self::Lz4),
            ("lzo", None) => Ok(Self::Lzo),
            ("zstd", level @ (None | Some(-7..=19))) => Ok(Self::Zstd(level.unwrap_or(1))),
            ("zlib", level @ (None | Some(1..=12))) => Ok(Self::Zlib(level.unwrap_or(6) as u8)),
            _ => Err(unknown()),
        }
    }
}

/// Compresses to learn the length. Keeps its tables and its output buffer: one a thread.
pub struct Meter {
    codec: Codec,
    engine: Engine,
    out: Vec<u8>,
}

enum Engine {
    Lz4,
    Zstd(Box<zstd::bulk::Compressor<'static>>),
    Zlib(Box<libdeflater::Compressor>),
    Lzo(flaz_lzo::Encoder),
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meter({})", self.codec)
    }
}

impl Meter {
    /// A meter for `codec`.
    ///
    /// # Panics
    /// When the library has no memory for its tables.
    #[must_use]
    pub fn new(codec: Codec) -> Self {
        let engine = match codec {
            Codec::Lz4 => Engine::Lz4,
            Codec::Zstd(level) => Engine::Zstd(Box::new(zstd_compressor(level))),
            Codec::Zlib(level) => {
                let level = libdeflater::CompressionLvl::new(level.into()).unwrap_or_default();
                Engine::Zlib(Box::new(libdeflater::Compressor::new(level)))
            }
            Codec::Lzo => Engine::Lzo(flaz_lzo::Encoder::default()),
        };
        Self {
            codec,
            engine,
            out: Vec::new(),
        }
    }

    /// The codec.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Length of `chunk` as a device would store it: compressed, or as it is where that is not smaller.
    pub fn stored_bytes(&mut self, chunk: &[u8]) -> usize {
        // One byte less than the chunk: what does not fit is not worth storing compressed.
        let most = chunk.len().saturating_sub(1);
        if self.out.len() < most {
            self.out.resize(most, 0);
        }
        let out = &mut self.out[..most];
        let compressed = match &mut self.engine {
            Engine::Lz4 => lz4::block::compress_to_buffer(chunk, None, false, out).ok(),
            Engine::Zstd(engine) => engine.compress_to_buffer(chunk, out).ok(),
            Engine::Zlib(engine) => engine.deflate_compress(chunk, out).ok(),
            Engine::Lzo(engine) => engine.compress(chunk, out),
        };
        compressed.unwrap_or(chunk.len())
    }

    /// Share of `chunk` that is saved, 0 to 1; 0 of an empty one.
    pub fn saved(&mut self, chunk: &[u8]) -> f64 {
        if chunk.is_empty() {
            return 0.0;
        }
        1.0 - self.stored_bytes(chunk) as f64 / chunk.len() as f64
    }
}

fn zstd_compressor(level: i8) -> zstd::bulk::Compressor<'static> {
    let mut made =
        zstd::bulk::Compressor::new(level.into()).expect("the library has memory for a compressor");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataSpec, Family, Generator, Level};

    #[test]
    fn names_read_back() {
        for name in ["lz4", "lzo", "zstd:-7", "zstd:19", "zlib:12"] {
            assert_eq!(name.parse::<Codec>().unwrap().to_string(), name);
        }
        for name in ["lzo:1", "lz4:3", "zstd:20", "zlib:0", "brotli"] {
            let refused = name.parse::<Codec>().unwrap_err().to_string();
            assert!(refused.contains("expected lz4, lzo, zstd"), "{refused}");
        }
    }

    #[test]
    fn what_does_not_shrink_is_stored_as_it_is() {
        let mut noise = vec![0; 4096];
        let random = Generator::new(DataSpec::new(Family::Random, Level::ZERO)).unwrap();
        random.fill(0, &mut noise);
        let mut half = noise.clone();
        half[..2048].fill(7);
        for name in ["lz4", "lzo", "zstd:1", "zlib:6"] {
            let mut meter = Meter::new(name.parse().unwrap());
            let saved = meter.saved(&half);
            assert!((0.44..0.56).contains(&saved), "{name}: {saved}");
            assert_eq!(meter.stored_bytes(&noise), noise.len(), "{name}");
            assert_eq!(meter.stored_bytes(&[]), 0, "{name}");
        }
    }
}
