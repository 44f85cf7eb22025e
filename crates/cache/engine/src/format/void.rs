//! The mark of a region that has been reclaimed: written over its first extent's header.
//!
//! Without it a region of which only the first header was overwritten before the power went could not be told from
//! one whose first header went bad.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::{FormatError, checksum_without};
use crate::units::Sequence;

const MAGIC: u32 = u32::from_le_bytes(*b"FLZV");
const WHAT: &str = "void mark";
/// Bytes of the mark.
pub const VOID_MARK_BYTES: usize = 64;

/// Says that a filling of a region is no more.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VoidMark {
    magic: U32,
    checksum: U32,
    cache: U32,
    reserved: U32,
    fill: U64,
    position: U64,
    zero: [u8; 32],
}

const _: () = assert!(size_of::<VoidMark>() == VOID_MARK_BYTES);

impl VoidMark {
    /// The mark for the region at `position` of the device, which was filled as `fill`.
    #[must_use]
    pub fn new(cache: u32, fill: Sequence, position: u64) -> Self {
        let mut mark = Self {
            magic: U32::new(MAGIC),
            checksum: U32::new(0),
            cache: U32::new(cache),
            reserved: U32::new(0),
            fill: U64::new(fill.0),
            position: U64::new(position),
            zero: [0; 32],
        };
        mark.checksum = U32::new(checksum_without(mark.as_bytes(), 4));
        mark
    }

    /// Reads the mark at the start of `bytes`, if it is one of this cache and place. Gives the filling that ended.
    ///
    /// # Errors
    /// [`FormatError`] when there is none.
    pub fn parse(bytes: &[u8], cache: u32, position: u64) -> Result<Sequence, FormatError> {
        let Ok((mark, _)) = Self::read_from_prefix(bytes) else {
            return Err(FormatError::field(WHAT, "bytes", VOID_MARK_BYTES, bytes.len()));
        };
        let fill = Sequence(mark.fill.get());
        let expected = Self::new(cache, fill, position);
        if mark.as_bytes() == expected.as_bytes() {
            Ok(fill)
        } else {
            Err(FormatError::Magic {
                what: WHAT,
                expected: u64::from(MAGIC),
                found: u64::from(mark.magic.get()),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_known_and_every_other_byte_string_is_not() {
        let mark = VoidMark::new(7, Sequence(99), 1 << 20);
        assert_eq!(
            VoidMark::parse(mark.as_bytes(), 7, 1 << 20).expect("a mark"),
            Sequence(99)
        );
        assert!(VoidMark::parse(mark.as_bytes(), 8, 1 << 20).is_err());
        assert!(VoidMark::parse(mark.as_bytes(), 7, 2 << 20).is_err());
        for at in 0..VOID_MARK_BYTES {
            let mut bytes = [0; VOID_MARK_BYTES];
            bytes.copy_from_slice(mark.as_bytes());
            bytes[at] ^= 1;
            assert!(VoidMark::parse(&bytes, 7, 1 << 20).is_err(), "byte {at}");
        }
    }
}
