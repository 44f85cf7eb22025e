//! Packing blocks into fragments and unpacking them. Pure: bytes in, bytes out.

use flaz_codec::compressibility::{Detector, single_value};
use flaz_codec::{CodecId, CodecSpec, Decoders, Encoder, encoder};
use zerocopy::FromBytes;

use crate::format::extent::{FRAGMENT_HEADER_BYTES, FragmentHeader, FragmentIdentity, fragment_checksum};
use crate::planted::{PlantedBug, planted};
use crate::units::BLOCK_BYTES;

/// A block that does not shrink by at least this much is stored raw.
const SAVING_BYTES_MIN: usize = 64;

/// The packed form of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packed {
    /// All bytes are equal.
    SameFilled(u8),
    /// `len` bytes from `start` of the batch's output.
    Compressed {
        codec: CodecId,
        start: usize,
        len: usize,
        plain_crc: u32,
    },
    /// Uncompressed.
    Raw { plain_crc: u32 },
}

/// An encoder, with its statistics about earlier blocks.
pub(super) struct Packer {
    codec: CodecSpec,
    encoder: Box<dyn Encoder + Send>,
    detector: Detector,
}

impl Packer {
    pub(super) fn new(codec: CodecSpec) -> Self {
        Self {
            codec,
            encoder: encoder(codec),
            detector: Detector::new(),
        }
    }

    pub(super) fn codec(&self) -> CodecSpec {
        self.codec
    }

    /// The next block belongs to another request.
    pub(super) fn next_request(&mut self) {
        self.detector.next_request();
    }

    /// Packs one block, appending the codec's output to `out`.
    pub(super) fn pack(&mut self, block: &[u8], out: &mut Vec<u8>) -> Packed {
        if let Some(value) = single_value(block) {
            return Packed::SameFilled(value);
        }
        let plain_crc = crc32c::crc32c(block);
        let codec = self.codec.id();
        if codec == CodecId::RAW {
            return Packed::Raw { plain_crc };
        }
        let start = out.len();
        let len = if self.detector.incompressible(block) {
            None
        } else {
            out.resize(start + BLOCK_BYTES - SAVING_BYTES_MIN, 0);
            self.encoder.compress(block, &mut out[start..])
        };
        self.detector.note(len.is_none());
        out.truncate(start + len.unwrap_or(0));
        match len {
            Some(len) => Packed::Compressed {
                codec,
                start,
                len,
                plain_crc,
            },
            None => Packed::Raw { plain_crc },
        }
    }
}

/// Why a fragment does not match the index.
#[derive(Debug, thiserror::Error)]
pub enum FragmentError {
    /// It is truncated.
    #[error("fragment ends after {found} bytes, expected {expected}")]
    Truncated {
        /// Bytes according to its header.
        expected: usize,
        /// Bytes present.
        found: usize,
    },
    /// The stored length is invalid.
    #[error("fragment has an impossible length of {0} bytes")]
    Length(u16),
    /// The flags are unknown.
    #[error("fragment has unknown flags {0:#x}")]
    Flags(u8),
    /// Its codec cannot decode it.
    #[error("fragment does not decode: {0}")]
    Codec(String),
    /// It is damaged, or belongs to another block, location, generation or cache.
    #[error("fragment checksum mismatch (stored {stored:#010x}, computed {computed:#010x})")]
    Checksum {
        /// The checksum in its header.
        stored: u32,
        /// The checksum of its contents.
        computed: u32,
    },
}

/// The header and the stored bytes of the fragment at the start of `bytes`.
pub(super) fn split(bytes: &[u8]) -> Result<(FragmentHeader, &[u8]), FragmentError> {
    let truncated = |expected| FragmentError::Truncated {
        expected,
        found: bytes.len(),
    };
    let (header, rest) =
        FragmentHeader::read_from_prefix(bytes).map_err(|_| truncated(FRAGMENT_HEADER_BYTES))?;
    let stored = header.stored.get();
    if header.flags != 0 {
        return Err(FragmentError::Flags(header.flags));
    }
    if stored == 0 || usize::from(stored) > BLOCK_BYTES {
        return Err(FragmentError::Length(stored));
    }
    let stored = rest
        .get(..usize::from(stored))
        .ok_or_else(|| truncated(FRAGMENT_HEADER_BYTES + usize::from(header.stored.get())))?;
    Ok((header, stored))
}

/// Restores a block from the fragment at the start of `bytes` and verifies its checksum. `block` has 4096 bytes.
///
/// # Errors
/// [`FragmentError`]; the contents of `block` must then not be used.
pub fn unpack(
    decoders: &mut Decoders,
    bytes: &[u8],
    identity: &FragmentIdentity,
    block: &mut [u8],
) -> Result<(), FragmentError> {
    let (header, stored) = split(bytes)?;
    let codec = CodecId(header.codec);
    if codec == CodecId::RAW {
        if stored.len() != BLOCK_BYTES {
            return Err(FragmentError::Length(header.stored.get()));
        }
        block.copy_from_slice(stored);
    } else {
        decoders
            .decompress(codec, stored, block)
            .map_err(|error| FragmentError::Codec(error.to_string()))?;
    }
    let computed = fragment_checksum(identity, header.stored.get(), codec, crc32c::crc32c(block));
    if computed != header.checksum.get() && !planted(PlantedBug::ChecksumNotCompared) {
        return Err(FragmentError::Checksum {
            stored: header.checksum.get(),
            computed,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::units::{BlockNumber, Location, Sequence};

    const IDENTITY: FragmentIdentity = FragmentIdentity {
        cache: 0x1234_5678,
        block: BlockNumber(42),
        location: Location(7),
        generation: Sequence(9),
    };

    /// A fragment in its on-disk form.
    fn fragment(codec: &str, block: &[u8]) -> Vec<u8> {
        let mut packer = Packer::new(codec.parse().expect("a codec"));
        let mut out = Vec::new();
        let (codec, stored, plain_crc) = match packer.pack(block, &mut out) {
            Packed::Compressed {
                codec,
                start,
                len,
                plain_crc,
            } => (codec, out[start..start + len].to_vec(), plain_crc),
            Packed::Raw { plain_crc } => (CodecId::RAW, block.to_vec(), plain_crc),
            Packed::SameFilled(_) => unreachable!("no block here is of one value"),
        };
        let header = FragmentHeader {
            checksum: fragment_checksum(&IDENTITY, stored.len() as u16, codec, plain_crc).into(),
            stored: (stored.len() as u16).into(),
            codec: codec.0,
            flags: 0,
        };
        [header.as_bytes(), &stored].concat()
    }

    fn blocks() -> [Vec<u8>; 3] {
        let text = b"a line of text, as in every other file; "
            .iter()
            .copied()
            .cycle();
        let mut state = 1u32;
        let noise = std::iter::repeat_with(move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        let half: Vec<u8> = noise.take(1500).chain(text.clone()).take(BLOCK_BYTES).collect();
        [
            text.take(BLOCK_BYTES).collect(),
            half,
            noise.take(BLOCK_BYTES).collect(),
        ]
    }

    /// With each codec, a flipped bit gives an error or the same block (a block can have several encodings).
    #[test]
    fn every_bit_of_a_fragment_may_be_wrong() {
        for codec in ["none", "lz4", "lzo", "zlib", "zstd"] {
            let mut refused = 0;
            for block in blocks() {
                let whole = fragment(codec, &block);
                let (mut decoders, mut found) = (Decoders::default(), vec![0; BLOCK_BYTES]);
                unpack(&mut decoders, &whole, &IDENTITY, &mut found).expect("it is as it was written");
                assert!(found == block, "{codec}");
                for bit in 0..whole.len() * 8 {
                    let mut wrong = whole.clone();
                    wrong[bit / 8] ^= 1 << (bit % 8);
                    match unpack(&mut decoders, &wrong, &IDENTITY, &mut found) {
                        Ok(()) => assert!(found == block, "{codec}: bit {bit} gives another block"),
                        Err(_) => refused += 1,
                    }
                }
                for len in 0..whole.len() {
                    unpack(&mut decoders, &whole[..len], &IDENTITY, &mut found).expect_err("cut short");
                }
            }
            assert!(refused > 10_000, "{codec}: only {refused} were refused");
        }
    }

    #[test]
    fn a_fragment_of_another_place_or_cache_is_refused() {
        let [block, ..] = blocks();
        let whole = fragment("lz4", &block);
        let others = [
            FragmentIdentity { cache: 1, ..IDENTITY },
            FragmentIdentity {
                block: BlockNumber(43),
                ..IDENTITY
            },
            FragmentIdentity {
                location: Location(8),
                ..IDENTITY
            },
            FragmentIdentity {
                generation: Sequence(10),
                ..IDENTITY
            },
        ];
        for other in others {
            let mut found = vec![0; BLOCK_BYTES];
            let error = unpack(&mut Decoders::default(), &whole, &other, &mut found).expect_err("another");
            assert!(
                matches!(error, FragmentError::Checksum { .. }),
                "{other:?}: {error}"
            );
        }
    }
}
