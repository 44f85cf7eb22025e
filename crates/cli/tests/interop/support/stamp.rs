//! Contents of sectors for a [`Ledger`](super::Ledger): each identifies its write and its place.
//!
//! A write has a number, its *version*. The contents of a sector depend only on its own number and the version, so old
//! data, data of another sector and damaged data can be distinguished. Every third version compresses badly.

use std::fmt;

use flaz_random::Random;

/// Bytes of a sector.
pub const SECTOR: usize = 512;
const MAGIC: u64 = 0x464c_415a_4c45_4447;
/// Magic, sector, version.
const HEADER_BYTES: usize = 24;

/// Contents found in a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Print {
    /// All zeroes: never written, zeroed, or trimmed.
    Zero,
    /// All of it is from this write.
    Version(u64),
    /// Trimmed: zeroes, or any earlier contents of the sector.
    Trimmed,
    /// Data that was never written there.
    Garbage,
}

impl Print {
    /// Whether a sector with the expected contents `self` may be read as `seen`.
    pub fn allows(self, seen: Self) -> bool {
        self == seen || (self == Self::Trimmed && seen != Self::Garbage)
    }
}

impl fmt::Display for Print {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("zeroes"),
            Self::Version(version) => write!(f, "write {version}"),
            Self::Trimmed => f.write_str("anything it has held (trimmed)"),
            Self::Garbage => f.write_str("data that was never written there"),
        }
    }
}

/// Fills `out`, which begins at `sector` of the device, with the data of write number `version`.
pub fn fill(sector: u64, version: u64, out: &mut [u8]) {
    for (number, bytes) in (sector..).zip(out.chunks_exact_mut(SECTOR)) {
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        bytes[16..HEADER_BYTES].copy_from_slice(&version.to_le_bytes());
        let mut numbers = Random::new(number.rotate_left(32) ^ version);
        let mut word = numbers.bits();
        for piece in bytes[HEADER_BYTES..].chunks_mut(8) {
            if version.is_multiple_of(3) {
                word = numbers.bits();
            }
            piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
        }
    }
}

/// Identifies the contents of sector number `sector`. Versions up to `newest` were written.
pub fn print_of(sector: u64, bytes: &[u8], newest: u64) -> Print {
    if bytes.iter().all(|byte| *byte == 0) {
        return Print::Zero;
    }
    let version = u64::from_le_bytes(bytes[16..HEADER_BYTES].try_into().expect("eight bytes"));
    let mut wanted = [0; SECTOR];
    fill(sector, version, &mut wanted);
    if version <= newest && bytes == wanted {
        Print::Version(version)
    } else {
        Print::Garbage
    }
}
