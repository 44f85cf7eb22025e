//! Packing blocks into fragments and unpacking them. Pure: bytes in, bytes out.

use std::sync::Arc;

use flaz_codec::compressibility::{Detector, single_value};
use flaz_codec::{CodecId, CodecSpec, Decoders, Dictionary, Encoder, encoder, encoder_with, work};
use flaz_device::IoBuf;
use zerocopy::FromBytes;

use crate::format::extent::{FRAGMENT_HEADER_BYTES, FragmentHeader, FragmentIdentity, fragment_checksum};
use crate::format::group::{GROUP_STORED_MAX, MEMBER_CHECKSUM_BYTES, Members};
use crate::planted::{PlantedBug, planted};
use crate::units::{BLOCK_BYTES, BlockNumber};

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

/// Bytes of the checksums of all members but the first, which the header has.
pub(super) fn checksums_bytes(members: usize) -> usize {
    (members - 1) * MEMBER_CHECKSUM_BYTES
}

/// An encoder, with its statistics about earlier blocks.
pub(super) struct Packer {
    codec: CodecSpec,
    dictionary: Option<Numbered>,
    /// Created with the first block, on another thread, because preparing a dictionary takes up to 20 ms.
    encoder: Option<Box<dyn Encoder + Send>>,
    detector: Detector,
}

/// A dictionary and its number in the shard.
#[derive(Clone, Debug)]
pub(super) struct Numbered {
    pub(super) number: u8,
    pub(super) dictionary: Arc<Dictionary>,
}

impl Packer {
    /// A packer for a codec, with a dictionary if the codec supports it.
    pub(super) fn new(codec: CodecSpec, dictionary: Option<Numbered>) -> Self {
        Self {
            codec,
            dictionary,
            encoder: None,
            detector: Detector::new(),
        }
    }

    fn encoder(&mut self) -> &mut (dyn Encoder + Send) {
        let (codec, dictionary) = (self.codec, &mut self.dictionary);
        let made = self.encoder.get_or_insert_with(|| {
            let with = dictionary
                .as_ref()
                .and_then(|it| encoder_with(&it.dictionary, codec));
            with.unwrap_or_else(|| {
                // The contents are only good for decoding.
                *dictionary = None;
                encoder(codec)
            })
        });
        made.as_mut()
    }

    pub(super) fn codec(&self) -> CodecSpec {
        self.codec
    }

    /// Whether it uses this dictionary, or none.
    pub(super) fn uses(&self, dictionary: Option<&Numbered>) -> bool {
        match (&self.dictionary, dictionary) {
            (Some(own), Some(other)) => Arc::ptr_eq(&own.dictionary, &other.dictionary),
            (own, other) => own.is_none() && other.is_none(),
        }
    }

    /// What the headers of its fragments say.
    pub(super) fn packed_as(&self) -> CodecId {
        match &self.dictionary {
            Some(Numbered { number, .. }) => self.codec.id().with_dictionary(*number),
            None => self.codec.id(),
        }
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
            work::compressed(codec, 1);
            self.encoder().compress(block, &mut out[start..])
        };
        self.detector.note(len.is_none());
        out.truncate(start + len.unwrap_or(0));
        match len {
            Some(len) => Packed::Compressed {
                codec: self.packed_as(),
                start,
                len,
                plain_crc,
            },
            None => Packed::Raw { plain_crc },
        }
    }

    /// Packs some of an aligned four blocks together. `None`: the codec cannot, or it saves nothing, or the result is too long.
    pub(super) fn pack_group(&mut self, blocks: &[u8]) -> Option<Vec<u8>> {
        let count = blocks.len() / BLOCK_BYTES;
        work::compressed(self.codec.id(), count as u64);
        let saved = blocks.len() - count * SAVING_BYTES_MIN;
        let mut out = vec![0; saved.min(GROUP_STORED_MAX - checksums_bytes(count))];
        let len = (self.encoder()).compress_group(blocks, BLOCK_BYTES, &mut out)?;
        out.truncate(len);
        Some(out)
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
    /// It has none of the blocks that an aligned four can have, or not this one.
    #[error("fragment has the members {0:#x}, without this block")]
    Members(u8),
    /// Its codec cannot decode it.
    #[error("fragment cannot be decoded: {0}")]
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
    let lengths = match header.members {
        0 => 1..=BLOCK_BYTES,
        bits => {
            let members = Members::from_bits(bits).ok_or(FragmentError::Members(bits))?;
            checksums_bytes(members.count()) + 1..=GROUP_STORED_MAX
        }
    };
    if !lengths.contains(&usize::from(stored)) {
        return Err(FragmentError::Length(stored));
    }
    let stored = rest
        .get(..usize::from(stored))
        .ok_or_else(|| truncated(FRAGMENT_HEADER_BYTES + usize::from(header.stored.get())))?;
    Ok((header, stored))
}

/// What restores a block of a cache with two codecs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Restored {
    /// Nothing: it is not compressed.
    Raw,
    /// The first codec.
    ByFirst,
    /// The second codec: so many blocks, to get this one.
    BySecond(u64),
}

impl Restored {
    /// For this block of the fragment at the start of `bytes`.
    pub(super) fn of(bytes: &[u8], block: BlockNumber) -> Self {
        let Ok((header, _)) = FragmentHeader::read_from_prefix(bytes) else {
            return Self::Raw;
        };
        let codec = CodecId(header.codec);
        match Members::from_bits(header.members) {
            Some(members) => Self::BySecond(members.ordinal(block).map_or(0, |ordinal| ordinal as u64 + 1)),
            None if codec == CodecId::RAW => Self::Raw,
            None if codec == CodecId::ZSTD || codec.dictionary().is_some() => Self::BySecond(1),
            None => Self::ByFirst,
        }
    }
}

/// A group: which blocks it has, their checksums, and the codec's output.
pub(super) struct Group<'a> {
    pub(super) members: Members,
    header: FragmentHeader,
    checksums: &'a [u8],
    stream: &'a [u8],
}

impl<'a> Group<'a> {
    /// The group in a fragment that [`split`] has accepted. `None`: it has one block.
    pub(super) fn of(header: FragmentHeader, stored: &'a [u8]) -> Option<Self> {
        let members = Members::from_bits(header.members)?;
        let (checksums, stream) = stored.split_at(checksums_bytes(members.count()));
        Some(Self {
            members,
            header,
            checksums,
            stream,
        })
    }

    /// The checksums of the members, in order.
    pub(super) fn checksums(&self) -> impl Iterator<Item = u32> {
        let others = self.checksums.chunks_exact(MEMBER_CHECKSUM_BYTES);
        let others = others.map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")));
        std::iter::once(self.header.checksum.get()).chain(others)
    }

    /// The codec's output.
    pub(super) fn stream(&self) -> &'a [u8] {
        self.stream
    }

    /// Restores the first members, as many as there is room for.
    fn restore(&self, decoders: &mut Decoders, blocks: &mut [u8]) -> Result<(), FragmentError> {
        decoders
            .decompress_first(CodecId(self.header.codec), self.stream, BLOCK_BYTES, blocks)
            .map_err(|error| FragmentError::Codec(error.to_string()))
    }

    /// Verifies the member of this identity, which is the one of number `ordinal`.
    fn verify(&self, identity: &FragmentIdentity, ordinal: usize, block: &[u8]) -> Result<(), FragmentError> {
        let stored = self.checksums().nth(ordinal).expect("each member has one");
        verify(stored, &self.header, identity, block)
    }
}

fn verify(
    stored: u32,
    header: &FragmentHeader,
    identity: &FragmentIdentity,
    block: &[u8],
) -> Result<(), FragmentError> {
    let computed = fragment_checksum(identity, header.packing(), crc32c::crc32c(block));
    if computed != stored && !planted(PlantedBug::ChecksumNotCompared) {
        return Err(FragmentError::Checksum { stored, computed });
    }
    Ok(())
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
    if let Some(group) = Group::of(header, stored) {
        let ordinal = group.members.ordinal(identity.block);
        let ordinal = ordinal.ok_or(FragmentError::Members(header.members))?;
        if ordinal == 0 {
            group.restore(decoders, block)?;
        } else {
            let mut blocks = IoBuf::new((ordinal + 1) * BLOCK_BYTES);
            group.restore(decoders, &mut blocks)?;
            block.copy_from_slice(&blocks[ordinal * BLOCK_BYTES..]);
        }
        return group.verify(identity, ordinal, block);
    }
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
    verify(header.checksum.get(), &header, identity, block)
}

/// Restores the block of a fragment with a wrong checksum: for a planted defect.
pub(super) fn unpack_unverified(decoders: &mut Decoders, bytes: &[u8]) -> Result<IoBuf, FragmentError> {
    let (header, stored) = split(bytes)?;
    let mut block = IoBuf::new(BLOCK_BYTES);
    decoders
        .decompress(CodecId(header.codec), stored, &mut block)
        .map_err(|error| FragmentError::Codec(error.to_string()))?;
    Ok(block)
}

/// Restores several blocks of the fragment at the start of `bytes`, in the order of their numbers, with the work for the last of
/// them, and verifies each.
pub(super) fn unpack_members(
    decoders: &mut Decoders,
    bytes: &[u8],
    identities: &[FragmentIdentity],
) -> Vec<Result<IoBuf, FragmentError>> {
    let one_by_one = |decoders: &mut Decoders| {
        let unpack_one = |identity| {
            let mut block = IoBuf::new(BLOCK_BYTES);
            unpack(decoders, bytes, identity, &mut block).map(|()| block)
        };
        identities.iter().map(unpack_one).collect()
    };
    let Some(group) = (split(bytes).ok()).and_then(|(header, stored)| Group::of(header, stored)) else {
        return one_by_one(decoders);
    };
    let ordinals = || identities.iter().map(|of| group.members.ordinal(of.block));
    let last = ordinals().flatten().max().unwrap_or(0);
    let mut blocks = IoBuf::new((last + 1) * BLOCK_BYTES);
    if identities.len() == 1 || group.restore(decoders, &mut blocks).is_err() {
        // Those before the damage may be whole.
        return one_by_one(decoders);
    }
    (identities.iter().zip(ordinals()))
        .map(|(identity, ordinal)| {
            let ordinal = ordinal.ok_or(FragmentError::Members(group.members.bits()))?;
            let block = &blocks[ordinal * BLOCK_BYTES..][..BLOCK_BYTES];
            group.verify(identity, ordinal, block)?;
            Ok(IoBuf::copy_of(block))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::format::extent::Packing;
    use crate::units::{BlockNumber, Location, Sequence};

    const IDENTITY: FragmentIdentity = FragmentIdentity {
        cache: 0x1234_5678,
        block: BlockNumber(42),
        location: Location(7),
        generation: Sequence(9),
    };

    /// A fragment in its on-disk form.
    fn fragment(codec: &str, block: &[u8]) -> Vec<u8> {
        let mut packer = Packer::new(codec.parse().expect("a codec"), None);
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
        let packing = Packing::of_one(stored.len() as u16, codec);
        let header = FragmentHeader::new(fragment_checksum(&IDENTITY, packing, plain_crc), packing);
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

    /// A group of these blocks, and the identity of each.
    fn group(members: u8, data: &[Vec<u8>]) -> (Vec<u8>, Vec<FragmentIdentity>) {
        let members = Members::from_bits(members).expect("some");
        let identities: Vec<_> = (members.blocks(IDENTITY.block))
            .map(|block| IDENTITY.with_block(block))
            .collect();
        assert_eq!(identities.len(), data.len());
        let mut packer = Packer::new("zstd:6".parse().expect("a codec"), None);
        let stream = packer.pack_group(&data.concat()).expect("it compresses");
        let packing = Packing {
            stored: (checksums_bytes(data.len()) + stream.len()) as u16,
            codec: CodecId::ZSTD,
            members: members.bits(),
        };
        let mut checksums = (identities.iter().zip(data))
            .map(|(identity, block)| fragment_checksum(identity, packing, crc32c::crc32c(block)));
        let header = FragmentHeader::new(checksums.next().expect("one"), packing);
        let others: Vec<u8> = checksums.flat_map(u32::to_le_bytes).collect();
        ([header.as_bytes(), &others, &stream].concat(), identities)
    }

    fn members() -> Vec<Vec<u8>> {
        let [text, half, _] = blocks();
        let other: Vec<u8> = half.iter().map(|byte| byte.wrapping_add(1)).collect();
        vec![half, other, text]
    }

    /// A flipped bit gives an error or the same block, for each member, alone and with the others.
    #[test]
    fn every_bit_of_a_group_may_be_wrong() {
        let (data, mut refused) = (members(), 0);
        let (whole, identities) = group(0b1101, &data);
        let mut decoders = Decoders::default();
        for bit in 0..whole.len() * 8 {
            let mut wrong = whole.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let together = unpack_members(&mut decoders, &wrong, &identities);
            for ((identity, data), together) in identities.iter().zip(&data).zip(together) {
                let mut found = vec![0; BLOCK_BYTES];
                match unpack(&mut decoders, &wrong, identity, &mut found) {
                    Ok(()) => assert!(found == *data, "bit {bit} gives another block"),
                    Err(_) => refused += 1,
                }
                assert!(together.is_err() || together.is_ok_and(|found| found[..] == data[..]));
            }
        }
        assert!(refused > 10_000, "only {refused} were refused");
    }

    #[test]
    fn a_member_is_restored_alone_and_with_others() {
        let data = members();
        let (whole, identities) = group(0b1101, &data);
        let mut decoders = Decoders::default();
        for wanted in [&[0][..], &[1], &[2], &[0, 2], &[1, 2], &[0, 1, 2]] {
            let of: Vec<_> = wanted.iter().map(|&at| identities[at]).collect();
            let found = unpack_members(&mut decoders, &whole, &of);
            for (&at, found) in wanted.iter().zip(found) {
                assert!(found.expect("as written")[..] == data[at][..]);
            }
        }
        let mut found = vec![0; BLOCK_BYTES];
        let absent = IDENTITY.with_block(BlockNumber(41));
        let error = unpack(&mut decoders, &whole, &absent, &mut found).expect_err("no member");
        assert!(matches!(error, FragmentError::Members(0b1101)), "{error}");
        let moved = FragmentIdentity {
            location: Location(8),
            ..identities[1]
        };
        let error = unpack(&mut decoders, &whole, &moved, &mut found).expect_err("elsewhere");
        assert!(matches!(error, FragmentError::Checksum { .. }), "{error}");
    }
}
