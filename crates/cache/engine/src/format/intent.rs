//! Sectors of the intent bitmap: which stripes may have a write in flight to the origin.
//!
//! Each sector is written whole and has its own checksum, so a torn write of several sectors damages no sector. A sector
//! that fails its checks counts as all ones: its stripes may have had writes in flight.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::{FormatError, checksum_without};

/// Bytes of the bitmap in each sector.
pub const INTENT_BITS_BYTES: usize = 496;
/// Stripes that one sector covers.
pub const INTENT_STRIPES: u64 = INTENT_BITS_BYTES as u64 * 8;
const MAGIC: u32 = u32::from_le_bytes(*b"FLZI");

/// One 512-byte sector of the intent bitmap.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IntentSector {
    magic: U32,
    checksum: U32,
    /// Number of this sector in the bitmap: detects misdirected writes.
    pub number: U32,
    /// Epoch of the opening that wrote the sector.
    pub epoch: U32,
    /// One bit a stripe, starting with the lowest bit of the first byte.
    pub bits: [u8; INTENT_BITS_BYTES],
}

const _: () = assert!(size_of::<IntentSector>() == 512);

impl IntentSector {
    /// A sector with no bit set.
    #[must_use]
    pub fn clear(number: u32, epoch: u32) -> Self {
        let mut sector = Self {
            magic: U32::new(MAGIC),
            checksum: U32::new(0),
            number: U32::new(number),
            epoch: U32::new(epoch),
            bits: [0; INTENT_BITS_BYTES],
        };
        sector.seal();
        sector
    }

    /// Sets bit `at`. Call [`Self::seal`] afterwards.
    pub fn set(&mut self, at: u64) {
        self.bits[(at / 8) as usize] |= 1 << (at % 8);
    }

    /// Whether bit `at` is set.
    #[must_use]
    pub fn has(&self, at: u64) -> bool {
        self.bits[(at / 8) as usize] >> (at % 8) & 1 == 1
    }

    /// Number of bits that are set.
    #[must_use]
    pub fn set_count(&self) -> u64 {
        let ones = self.bits.iter().map(|byte| u64::from(byte.count_ones()));
        ones.sum()
    }

    /// Computes the checksum after a change.
    pub fn seal(&mut self) {
        self.checksum = U32::new(checksum_without(self.as_bytes(), 4));
    }

    /// Parses sector `number`.
    ///
    /// # Errors
    /// [`FormatError`] if it is not a sector of the bitmap, or a different one.
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
        let mut sector = IntentSector::clear(7, 3);
        sector.bits[495] = 0x80;
        sector.seal();
        let bytes: [u8; 512] = sector.as_bytes().try_into().expect("512 bytes");
        assert_eq!(IntentSector::parse(&bytes, 7).expect("valid").bits[495], 0x80);
        assert!(IntentSector::parse(&bytes, 8).is_err());
        for at in 0..512 {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert!(IntentSector::parse(&bad, 7).is_err(), "byte {at}");
        }
    }
}
