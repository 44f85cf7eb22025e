//! What sectors hold: each says which write it is from.
//!
//! A write has a number, its *version*; a sector is filled from (its own number, version) and nothing else, so one
//! look at 512 bytes tells which write they are from, or that nobody wrote them. By the version's last digits the
//! contents are incompressible, compressible, or one byte over and over.

use flaz_sim::rng::mix;

/// Bytes of a sector.
pub const SECTOR: usize = 512;
/// Sectors of a block.
pub const BLOCK_SECTORS: u64 = 8;

const WORDS: usize = SECTOR / 8;
const MAGIC: u64 = 0xf1a2_c0de_0000_0000;
/// Words that differ, of compressible sectors.
const WORDS_OF_SMALL: usize = 12;

/// What was seen in a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Print(u64);

impl Print {
    /// All zeroes.
    pub const ZERO: Self = Self(0);
    /// As the answer of the model: anything at all (the sector was trimmed).
    pub const ANY: Self = Self(u64::MAX);
    const EQUAL_BYTES: u64 = 1 << 62;
    const GARBAGE: u64 = 1 << 63;

    /// What a sector of this version is seen as.
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

fn words(sector: u64, version: u64) -> impl Iterator<Item = u64> {
    let distinct = if version % 8 < 4 { WORDS } else { WORDS_OF_SMALL };
    let mut state = mix(sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version);
    (0..WORDS).map(move |index| match index {
        0 => MAGIC ^ sector,
        1 => version,
        _ if index < distinct => {
            state = state
                .wrapping_mul(0xd129_0a3f_7c4e_1b25)
                .wrapping_add(0x2545_f491_4f6c_dd1d);
            state ^ (state >> 29)
        }
        _ => !version,
    })
}

/// Fills `out`, which begins at `sector` of the device.
pub fn fill(sector: u64, version: u64, out: &mut [u8]) {
    if let Some(byte) = equal_byte(version) {
        out.fill(byte);
        return;
    }
    for (number, bytes) in (sector..).zip(out.chunks_exact_mut(SECTOR)) {
        for (place, word) in bytes.chunks_exact_mut(8).zip(words(number, version)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// What the bytes of sector number `sector` are.
pub fn print_of(sector: u64, bytes: &[u8]) -> Print {
    let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
    if word(0) == MAGIC ^ sector {
        let version = word(1);
        let expected = words(sector, version);
        let whole = bytes
            .chunks_exact(8)
            .zip(expected)
            .all(|(found, word)| found == word.to_le_bytes());
        if whole && equal_byte(version).is_none() {
            return Print::of_version(version);
        }
    } else if bytes.iter().all(|&byte| byte == bytes[0]) {
        return match bytes[0] {
            0 => Print::ZERO,
            byte => Print(Print::EQUAL_BYTES | u64::from(byte)),
        };
    }
    let hash = (0..WORDS).fold(0, |hash, at| mix(hash ^ word(at)));
    Print(Print::GARBAGE | hash >> 2)
}

/// Says more about garbage: whose sector it is, if it is somebody's.
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
