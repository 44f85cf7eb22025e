//! Sector contents that identify the write they are from.
//!
//! A write has a number, its *version*; a sector is filled from (its own number, version) and nothing else, so 512 bytes
//! are enough to see which write they are from, or that they were never written. Depending on the version's last digits the
//! contents are incompressible, compressible, or same-filled.

use std::sync::OnceLock;

use flaz_sim::Rng;
use flaz_sim::rng::splitmix;

/// Bytes of a sector.
pub const SECTOR: usize = 512;
/// Sectors of a block.
pub const BLOCK_SECTORS: u64 = 8;

const BODY_BYTES: usize = SECTOR - 16;
const POOL_BYTES: usize = 1 << 20;
const MAGIC: u64 = 0xf1a2_c0de_0000_0000;

/// The identity of a sector's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Print(u64);

impl Print {
    /// All zeroes.
    pub const ZERO: Self = Self(0);
    /// As the model's answer: any contents (the sector was trimmed).
    pub const ANY: Self = Self(u64::MAX);
    const EQUAL_BYTES: u64 = 1 << 62;
    const GARBAGE: u64 = 1 << 63;

    /// The print of a sector of this version.
    pub fn of_version(version: u64) -> Self {
        match equal_byte(version) {
            Some(byte) => Self(Self::EQUAL_BYTES | u64::from(byte)),
            None => Self(version + 1),
        }
    }
}

impl std::fmt::Display for Print {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::ZERO => f.write_str("zeroes"),
            Self::ANY => f.write_str("anything"),
            Self(bits) if bits & Self::GARBAGE != 0 => write!(f, "garbage {:#x}", bits & !Self::GARBAGE),
            Self(bits) if bits & Self::EQUAL_BYTES != 0 => write!(f, "bytes {:#04x}", bits as u8),
            Self(bits) => write!(f, "version {}", bits - 1),
        }
    }
}

fn equal_byte(version: u64) -> Option<u8> {
    (version % 8 == 7).then(|| (version / 8 % 255 + 1) as u8)
}

/// Random bytes that the bodies of sectors are taken from, at offsets that depend on sector and version: checking is then
/// one comparison of memory.
fn pool() -> &'static [u8] {
    static POOL: OnceLock<Vec<u8>> = OnceLock::new();
    POOL.get_or_init(|| {
        let mut bytes = vec![0; POOL_BYTES];
        Rng::new(0x9001).fill(&mut bytes);
        bytes
    })
}

/// The bytes after the two words of the header: bytes of the pool, or the first of them repeated if the version is
/// compressible.
fn body(sector: u64, version: u64) -> &'static [u8] {
    let places = (POOL_BYTES - BODY_BYTES) / 8;
    let at = splitmix(sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version) as usize % places * 8;
    &pool()[at..at + BODY_BYTES]
}

/// Before the first write, runs of this many sectors alternate between compressible and incompressible contents.
const COMPRESSIBLE_RUN: u64 = 2048;

/// Number of distinct bytes at the start of the body.
fn distinct_bytes(sector: u64, version: u64) -> usize {
    let before = version == 0 && (sector / COMPRESSIBLE_RUN).is_multiple_of(2);
    if version % 8 < 4 && !before {
        BODY_BYTES
    } else {
        BODY_BYTES / 6 / 8 * 8
    }
}

/// Fills `out`, which starts at `sector` of the device.
pub fn fill(sector: u64, version: u64, out: &mut [u8]) {
    if let Some(byte) = equal_byte(version) {
        out.fill(byte);
        return;
    }
    let distinct = distinct_bytes(sector, version);
    for (number, bytes) in (sector..).zip(out.chunks_exact_mut(SECTOR)) {
        bytes[..8].copy_from_slice(&(MAGIC ^ number).to_le_bytes());
        bytes[8..16].copy_from_slice(&version.to_le_bytes());
        bytes[16..16 + distinct].copy_from_slice(&body(number, version)[..distinct]);
        bytes[16 + distinct..].fill(version as u8);
    }
}

fn all_equal(bytes: &[u8], byte: u8) -> bool {
    // Each byte equals the previous one: one comparison of memory.
    match bytes {
        [] => true,
        [first, rest @ ..] => *first == byte && bytes[..rest.len()] == *rest,
    }
}

/// The print of the bytes of sector number `sector`.
pub fn print_of(sector: u64, bytes: &[u8]) -> Print {
    let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
    if word(0) == MAGIC ^ sector {
        let version = word(1);
        let distinct = distinct_bytes(sector, version);
        let (first, rest) = bytes[16..].split_at(distinct);
        let whole = first == &body(sector, version)[..distinct] && all_equal(rest, version as u8);
        if whole && equal_byte(version).is_none() {
            return Print::of_version(version);
        }
    } else if all_equal(bytes, bytes[0]) {
        return match bytes[0] {
            0 => Print::ZERO,
            byte => Print(Print::EQUAL_BYTES | u64::from(byte)),
        };
    }
    let hash = (0..SECTOR / 8).fold(0, |hash, at| splitmix(hash ^ word(at)));
    Print(Print::GARBAGE | hash >> 2)
}

/// Describes unknown contents: the sector they belong to, if any.
pub fn describe(sector: u64, bytes: &[u8]) -> String {
    let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
    let (claimed, print) = (word(0) ^ MAGIC, print_of(sector, bytes));
    if claimed == sector || claimed >> 32 != 0 {
        return print.to_string();
    }
    format!("{} of sector {claimed}", print_of(claimed, bytes))
}

#[test]
fn every_version_is_known_again_and_nothing_else_is() {
    for version in 0..32 {
        let mut bytes = vec![0; 2 * SECTOR];
        fill(77, version, &mut bytes);
        assert_eq!(print_of(77, &bytes[..SECTOR]), Print::of_version(version));
        assert_eq!(print_of(78, &bytes[SECTOR..]), Print::of_version(version));
        if equal_byte(version).is_none() {
            assert_ne!(print_of(78, &bytes[..SECTOR]), Print::of_version(version));
            bytes[300] ^= 1;
            assert_ne!(print_of(77, &bytes[..SECTOR]), Print::of_version(version));
            assert!(describe(79, &bytes[SECTOR..]).contains("of sector 78"));
        }
    }
}
