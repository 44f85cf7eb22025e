//! The list of codecs. To add a codec, write its file and list it here.

use std::fmt::{self, Write as _};

use crate::codec::{Codec, CodecId, DecodeError, Decoder, Levels};
use crate::dictionary::{Dictionaries, Dictionary};
use crate::work;
use crate::{lz4, lzo, none, zlib, zstd};

/// All codecs, by their numbers.
pub(crate) static REGISTRY: [&Codec; 5] =
    [&none::CODEC, &lz4::CODEC, &zstd::CODEC, &zlib::CODEC, &lzo::CODEC];

pub(crate) fn by_id(id: CodecId) -> Option<&'static Codec> {
    REGISTRY.iter().copied().find(|codec| codec.id == id)
}

pub(crate) fn by_name(name: &str) -> Option<&'static Codec> {
    REGISTRY.iter().copied().find(|codec| codec.name == name)
}

impl CodecId {
    /// The name of the codec, with a dictionary or without one, if one has this number.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let codec = self.dictionary().map_or(self, |_| Self::ZSTD);
        by_id(codec).map(|codec| codec.name)
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.dictionary()) {
            (Some(name), None) => f.pad(name),
            (Some(name), Some(_)) => f.pad(&format!("{name} with dictionary")),
            (None, _) => write!(f, "codec {}", self.0),
        }
    }
}

/// The numbers of all codecs, in ascending order without gaps.
pub fn ids() -> impl ExactSizeIterator<Item = CodecId> {
    REGISTRY.iter().map(|codec| codec.id)
}

/// All codecs with their levels, for a sentence: `none, lz4, zstd[:LEVEL] (-7 to 19, default 1), .. or lzo`.
#[must_use]
pub fn choices() -> String {
    let mut text = String::new();
    for (n, codec) in REGISTRY.iter().enumerate() {
        let joint = match n {
            0 => "",
            _ if n + 1 == REGISTRY.len() => " or ",
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

/// Decoders of all codecs, each created when it is first needed. One per thread.
#[derive(Default)]
pub struct Decoders {
    made: [Option<Box<dyn Decoder + Send>>; REGISTRY.len()],
    with_dictionary: Option<zstd::ZstdDecoder>,
    dictionaries: Dictionaries,
}

impl Decoders {
    /// No decoder yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Restores blocks that were compressed with these dictionaries, too.
    pub fn set_dictionaries(&mut self, dictionaries: Dictionaries) {
        self.dictionaries = dictionaries;
    }

    /// Decompresses the output of codec `id` into the whole of `block`.
    ///
    /// # Errors
    /// As [`Decoder::decompress`], and if no codec has that number, or the dictionary is not there.
    pub fn decompress(&mut self, id: CodecId, input: &[u8], block: &mut [u8]) -> Result<(), DecodeError> {
        work::restored(id, 1);
        match self.dictionary(id)? {
            Some((decoder, dictionary)) => decoder.restore(input, block, Some(dictionary)),
            None => self.decoder(id)?.decompress(input, block),
        }
    }

    /// Decompresses the first blocks of a group of codec `id`, as many as `blocks` has room for.
    ///
    /// # Errors
    /// As [`Decoder::decompress_first`], and if no codec has that number, or the dictionary is not there.
    pub fn decompress_first(
        &mut self,
        id: CodecId,
        input: &[u8],
        block_bytes: usize,
        blocks: &mut [u8],
    ) -> Result<(), DecodeError> {
        work::restored(id, (blocks.len() / block_bytes.max(1)) as u64);
        match self.dictionary(id)? {
            Some((decoder, dictionary)) => {
                decoder.restore_first(input, block_bytes, blocks, Some(dictionary))
            }
            None => self.decoder(id)?.decompress_first(input, block_bytes, blocks),
        }
    }

    /// The dictionary that `id` names, and a decoder for it.
    fn dictionary(
        &mut self,
        id: CodecId,
    ) -> Result<Option<(&mut zstd::ZstdDecoder, &Dictionary)>, DecodeError> {
        let Some(number) = id.dictionary() else {
            return Ok(None);
        };
        let dictionary = self.dictionaries[usize::from(number)].as_deref();
        let dictionary = dictionary.ok_or(DecodeError::NoDictionary(number))?;
        let decoder = self.with_dictionary.get_or_insert_with(zstd::ZstdDecoder::new);
        Ok(Some((decoder, dictionary)))
    }

    fn decoder(&mut self, id: CodecId) -> Result<&mut Box<dyn Decoder + Send>, DecodeError> {
        let place = REGISTRY
            .iter()
            .position(|codec| codec.id == id)
            .ok_or(DecodeError::UnknownCodec(id.0))?;
        Ok(self.made[place].get_or_insert_with(REGISTRY[place].decoder))
    }
}

impl fmt::Debug for Decoders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decoders")
    }
}
