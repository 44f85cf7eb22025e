//! Self-describing data: every sector of the origin contains its number and a version, which also determine whether it
//! consists of equal bytes.

use flaz_sim::Rng;
use flaz_sim::rng::splitmix;

/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// The version of a trimmed sector: zeroes.
pub const TRIMMED: u32 = u32::MAX;

/// Contents of sector `number` of the origin in `version`.
#[must_use]
pub fn sector(number: u64, version: u32) -> [u8; SECTOR as usize] {
    if version == TRIMMED {
        return [0; 512];
    }
    let block = number / (BLOCK / SECTOR);
    let mut rng = Rng::new(splitmix(number << 32 | u64::from(version)));
    let word = rng.next_u64().to_le_bytes();
    // Blocks of four kinds: equal bytes, text that any codec shrinks, half of each, noise.
    let random = match (block + u64::from(version)) % 10 {
        0..6 => 24,
        6..8 => 260,
        8 => 512,
        _ => return [(block * 31 + u64::from(version) * 7) as u8; 512],
    };
    let mut out: [u8; 512] = std::array::from_fn(|at| word[at % 8]);
    rng.fill(&mut out[24..random]);
    out[..8].copy_from_slice(&number.to_le_bytes());
    out[8..16].copy_from_slice(b"sector, ");
    out[16..20].copy_from_slice(&version.to_le_bytes());
    out[20..24].copy_from_slice(&number.to_be_bytes()[4..]);
    out
}

/// `count` sectors from `first` on.
#[must_use]
pub fn sectors(first: u64, count: u64, version: u32) -> Vec<u8> {
    (first..first + count)
        .flat_map(|number| sector(number, version))
        .collect()
}

/// All versions that each sector ever had.
#[derive(Clone, Debug)]
pub struct History(Vec<Vec<u32>>);

impl History {
    /// The sectors of an origin of `len` bytes, with version 1.
    #[must_use]
    pub fn new(len: u64, version: u32) -> Self {
        Self(vec![vec![version]; (len / SECTOR) as usize])
    }

    /// Records that `count` sectors from `first` on are being written.
    pub fn write(&mut self, first: u64, count: u64, version: u32) {
        for versions in &mut self.0[first as usize..(first + count) as usize] {
            versions.push(version);
        }
    }

    /// Contents of the whole origin after the last write of each sector.
    #[must_use]
    pub fn latest(&self) -> Vec<u8> {
        let last = self.0.iter().map(|versions| versions[versions.len() - 1]);
        (0..)
            .zip(last)
            .flat_map(|(number, version)| sector(number, version))
            .collect()
    }

    /// Whether sector `number` ever had these contents.
    #[must_use]
    pub fn had(&self, number: u64, bytes: &[u8]) -> bool {
        self.0[number as usize]
            .iter()
            .any(|version| sector(number, *version) == bytes)
    }
}
