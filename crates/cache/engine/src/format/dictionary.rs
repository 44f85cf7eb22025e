//! Dictionaries: what blocks of a shard have in common, for the second codec.
//!
//! A slot has a header, and then the contents. Only clean blocks are compressed with a dictionary, so its loss costs misses.

use std::mem::size_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::{FormatError, checksum_without};

const MAGIC: u64 = u64::from_le_bytes(*b"FLAZDICT");
const WHAT: &str = "dictionary";
/// Where the checksum is.
const CHECKSUM_AT: usize = 8;
/// Bytes of the header.
pub const DICTIONARY_HEADER_BYTES: usize = size_of::<RawHeader>();

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U64,
    checksum: U32,
    cache: U32,
    shard: U32,
    number: U32,
    generation: U32,
    len: U32,
}

const _: () = assert!(DICTIONARY_HEADER_BYTES == 32);

/// Which dictionary a slot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DictionarySlot {
    /// First four bytes of the cache's UUID.
    pub cache: u32,
    /// The shard.
    pub shard: u32,
    /// Its number in the shard: 0 or 1.
    pub number: u8,
}

/// A dictionary in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDictionary {
    /// Blocks are compressed with the one of the highest generation.
    pub generation: u32,
    /// As the codec trained it.
    pub contents: Vec<u8>,
}

impl StoredDictionary {
    /// The on-disk form.
    #[must_use]
    pub fn to_bytes(&self, slot: DictionarySlot) -> Vec<u8> {
        let header = RawHeader {
            magic: U64::new(MAGIC),
            checksum: U32::new(0),
            cache: U32::new(slot.cache),
            shard: U32::new(slot.shard),
            number: U32::new(slot.number.into()),
            generation: U32::new(self.generation),
            len: U32::new(self.contents.len() as u32),
        };
        let mut bytes = [header.as_bytes(), &self.contents].concat();
        let checksum = checksum_without(&bytes, CHECKSUM_AT);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses the bytes of a slot. `None`: no dictionary was written there since the cache was created.
    ///
    /// # Errors
    /// [`FormatError`] if it is damaged or belongs to another slot.
    pub fn parse(bytes: &[u8], slot: DictionarySlot) -> Result<Option<Self>, FormatError> {
        let (header, _) = RawHeader::read_from_prefix(bytes)
            .map_err(|_| FormatError::field(WHAT, "bytes", DICTIONARY_HEADER_BYTES, bytes.len()))?;
        if header.magic.get() != MAGIC || header.cache.get() != slot.cache {
            return Ok(None);
        }
        let room = bytes.len() - DICTIONARY_HEADER_BYTES;
        let len = header.len.get() as usize;
        if len > room {
            return Err(FormatError::field(WHAT, "length", format!("at most {room}"), len));
        }
        let bytes = &bytes[..DICTIONARY_HEADER_BYTES + len];
        let computed = checksum_without(bytes, CHECKSUM_AT);
        if header.checksum.get() != computed {
            return Err(FormatError::Checksum {
                what: WHAT,
                stored: header.checksum.get(),
                computed,
            });
        }
        let found = (header.shard.get(), header.number.get());
        let expected = (slot.shard, u32::from(slot.number));
        if found != expected {
            return Err(FormatError::field(
                WHAT,
                "shard and number",
                format!("{expected:?}"),
                format!("{found:?}"),
            ));
        }
        Ok(Some(Self {
            generation: header.generation.get(),
            contents: bytes[DICTIONARY_HEADER_BYTES..].to_vec(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_reads_back_and_each_wrong_bit_is_found() {
        let slot = DictionarySlot {
            cache: 0x1234_5678,
            shard: 3,
            number: 1,
        };
        let stored = StoredDictionary {
            generation: 7,
            contents: (0..200).collect(),
        };
        let mut bytes = stored.to_bytes(slot);
        bytes.resize(512, 0);
        assert_eq!(StoredDictionary::parse(&bytes, slot), Ok(Some(stored.clone())));
        for bit in 0..(DICTIONARY_HEADER_BYTES + 200) * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let found = StoredDictionary::parse(&wrong, slot);
            assert!(!matches!(found, Ok(Some(_))), "bit {bit}: {found:?}");
        }
        for other in [
            DictionarySlot { shard: 2, ..slot },
            DictionarySlot { number: 0, ..slot },
        ] {
            assert!(StoredDictionary::parse(&bytes, other).is_err());
        }
        let other = DictionarySlot { cache: 1, ..slot };
        assert_eq!(
            StoredDictionary::parse(&bytes, other),
            Ok(None),
            "of an earlier cache"
        );
        assert_eq!(StoredDictionary::parse(&[0; 512], slot), Ok(None));
        assert!(StoredDictionary::parse(&bytes[..100], slot).is_err());
        assert!(StoredDictionary::parse(&bytes[..10], slot).is_err());
    }
}
