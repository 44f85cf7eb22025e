//! Sectors of the intent bitmap: which stripes may have a write in flight to the origin.
//!
//! A sector is written whole and checks itself, so that a torn write of several sectors loses none. A sector
//! that does not check counts as all ones: its stripes may have had writes in flight.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::{FormatError, checksum_without};
use crate::units::Sequence;

/// Bytes of the bitmap in one sector.
pub const INTENT_BITS_BYTES: usize = 464;
/// Stripes that one sector covers.
pub const INTENT_STRIPES: u64 = INTENT_BITS_BYTES as u64 * 8;
const MAGIC: u32 = u32::from_le_bytes(*b"FLZI");

/// How much of the open region of a ring was stable when a sector was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurableMark {
    /// The region's fill; 0: no region was open.
    pub fill: Sequence,
    /// Bytes from the region's start.
    pub used: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawMark {
    fill: U64,
    used: U32,
}

/// One 512-byte sector of the intent bitmap.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IntentSector {
    magic: U32,
    checksum: U32,
    /// Number of this sector in the bitmap: finds misdirected writes.
    pub number: U32,
    /// Opening of the cache that wrote the sector.
    pub epoch: U32,
    /// Grows with every write of a sector of the shard.
    pub generation: U64,
    durable: [RawMark; 2],
    /// One bit a stripe, lowest bit of the first byte first.
    pub bits: [u8; INTENT_BITS_BYTES],
}

const _: () = assert!(size_of::<IntentSector>() == 512);

impl IntentSector {
    /// A sector with no bit set.
    #[must_use]
    pub fn clear(number: u32, epoch: u32, generation: u64) -> Self {
        let mut sector = Self {
            magic: U32::new(MAGIC),
            checksum: U32::new(0),
            number: U32::new(number),
            epoch: U32::new(epoch),
            generation: U64::new(generation),
            durable: [RawMark {
                fill: U64::new(0),
                used: U32::new(0),
            }; 2],
            bits: [0; INTENT_BITS_BYTES],
        };
        sector.seal();
        sector
    }

    /// Of two sectors of a shard the later one is above: it is of a later opening, or was written later in the same one.
    /// Not by generation alone: an opening that could not read the latest page begins with lower ones.
    #[must_use]
    pub fn age(&self) -> (u32, u64) {
        (self.epoch.get(), self.generation.get())
    }

    /// The marks of both rings.
    #[must_use]
    pub fn durable(&self) -> [DurableMark; 2] {
        self.durable.map(|raw| DurableMark {
            fill: Sequence(raw.fill.get()),
            used: raw.used.get(),
        })
    }

    /// Sets the marks of both rings; to be sealed.
    pub fn set_durable(&mut self, marks: [DurableMark; 2]) {
        self.durable = marks.map(|mark| RawMark {
            fill: U64::new(mark.fill.0),
            used: U32::new(mark.used),
        });
    }

    /// Sets bit `at`; to be sealed.
    pub fn set(&mut self, at: u64) {
        self.bits[(at / 8) as usize] |= 1 << (at % 8);
    }

    /// Whether bit `at` is set.
    #[must_use]
    pub fn has(&self, at: u64) -> bool {
        self.bits[(at / 8) as usize] >> (at % 8) & 1 == 1
    }

    /// Computes the checksum after a change.
    pub fn seal(&mut self) {
        self.checksum = U32::new(checksum_without(self.as_bytes(), 4));
    }

    /// Reads sector `number`.
    ///
    /// # Errors
    /// [`FormatError`] when the sector is not one, or another one.
    pub fn parse(bytes: &[u8; 512], number: u32) -> Result<Self, FormatError> {
        let sector = Self::read_from_bytes(bytes).expect("sizes are equal");
        if sector.magic.get() != MAGIC {
            return Err(FormatError::Magic {
                what: "intent sector",
                expected: u64::from(MAGIC),
                found: u64::from(sector.magic.get()),
            });
        }
        let computed = checksum_without(bytes, 4);
        if sector.checksum.get() != computed {
            return Err(FormatError::Checksum {
                what: "intent sector",
                stored: sector.checksum.get(),
                computed,
            });
        }
        if sector.number.get() != number {
            return Err(FormatError::field(
                "intent sector",
                "number",
                number,
                sector.number.get(),
            ));
        }
        Ok(sector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_reads_back_and_finds_damage_and_misdirection() {
        let mut sector = IntentSector::clear(7, 3, 1);
        sector.bits[463] = 0x80;
        sector.seal();
        let bytes: [u8; 512] = sector.as_bytes().try_into().expect("512 bytes");
        assert_eq!(IntentSector::parse(&bytes, 7).expect("valid").bits[463], 0x80);
        assert!(IntentSector::parse(&bytes, 8).is_err());
        for at in 0..512 {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert!(IntentSector::parse(&bad, 7).is_err(), "byte {at}");
        }
    }
}
