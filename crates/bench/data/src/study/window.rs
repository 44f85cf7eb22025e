//! Measurements of one window: stored bytes by codec and chunk size, zeroes, fingerprints, histograms.

use flaz_codec::compressibility::single_value;
use flaz_codec::{CodecSpec, Meter};
use flaz_random::{Key, mix};

use crate::distribution::ROWS_MAX;

/// Unit of compression in the cache, and of duplicates.
pub const BLOCK_BYTES: u64 = 4096;
/// Unit of sampling.
pub const WINDOW_BYTES: u64 = 1 << 20;
/// Chunk sizes that are compressed.
pub const CHUNK_BYTES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Whole percentages.
pub const BINS: usize = 101;

/// Sums of one window, which determine means and variances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowSums {
    /// Its length.
    pub bytes: u64,
    /// Blocks of zeroes.
    pub zero_blocks: u64,
    /// Blocks of one value, including zeroes.
    pub single_value_blocks: u64,
    /// `stored_bytes[size][codec]`: zeroes take no space.
    pub stored_bytes: [Vec<u64>; CHUNK_BYTES.len()],
    /// Bytes of its fragments in flaz, by codec.
    pub fragment_bytes: Vec<u64>,
}

/// Sums over all windows.
#[derive(Clone, Debug)]
pub struct Histograms {
    /// `saved[size][codec][percent]`: chunks without zeroes.
    pub saved: Vec<Vec<[u64; BINS]>>,
    /// Chunks of zeroes by size.
    pub zero_chunks: [u64; CHUNK_BYTES.len()],
    /// `joint[size][lz4 percent * BINS + zstd percent]`.
    pub joint: Vec<Vec<u64>>,
}

impl Histograms {
    /// Empty counts for this many codecs.
    #[must_use]
    pub fn new(codecs: usize) -> Self {
        Self {
            saved: vec![vec![[0; BINS]; codecs]; CHUNK_BYTES.len()],
            zero_chunks: [0; CHUNK_BYTES.len()],
            joint: vec![vec![0; ROWS_MAX]; CHUNK_BYTES.len()],
        }
    }

    /// Adds the counts of another thread.
    pub fn add(&mut self, other: &Self) {
        for (size, codecs) in other.saved.iter().enumerate() {
            self.zero_chunks[size] += other.zero_chunks[size];
            for (codec, bins) in codecs.iter().enumerate() {
                sum(&mut self.saved[size][codec], bins);
            }
            sum(&mut self.joint[size], &other.joint[size]);
        }
    }
}

fn sum(into: &mut [u64], from: &[u64]) {
    for (into, from) in into.iter_mut().zip(from) {
        *into += from;
    }
}

/// Kind of a chunk's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Zeroes,
    SingleValue,
    Data,
}

impl Kind {
    fn of(chunk: &[u8]) -> Self {
        match single_value(chunk) {
            Some(0) => Self::Zeroes,
            Some(_) => Self::SingleValue,
            None => Self::Data,
        }
    }
}

/// Measures windows. One per thread.
#[derive(Debug)]
pub struct WindowMeter {
    meters: Vec<Meter>,
    /// Indices of LZ4 and zstd:1 among the codecs.
    joint: (usize, usize),
    /// Results so far.
    pub histograms: Histograms,
    /// For the chunks of one size in the current window: their kind, and the whole percentages that the codecs saved of
    /// each, one codec after the other.
    kinds: Vec<Kind>,
    saved_percent: Vec<u8>,
}

impl WindowMeter {
    /// A meter for `codecs`; `joint` are the indices of LZ4 and zstd:1.
    #[must_use]
    pub fn new(codecs: &[CodecSpec], joint: (usize, usize)) -> Self {
        Self {
            meters: codecs.iter().map(|codec| Meter::new(*codec)).collect(),
            joint,
            histograms: Histograms::new(codecs.len()),
            kinds: Vec::new(),
            saved_percent: Vec::new(),
        }
    }

    /// Measures a window of whole blocks; the fingerprints of its blocks, without zeroes, are added to `fingerprints`.
    pub fn measure(&mut self, window: &[u8], fingerprints: &mut Vec<u64>) -> WindowSums {
        let codecs = self.meters.len();
        let mut sums = WindowSums {
            bytes: window.len() as u64,
            stored_bytes: std::array::from_fn(|_| vec![0; codecs]),
            fragment_bytes: vec![0; codecs],
            ..WindowSums::default()
        };
        for size in 0..CHUNK_BYTES.len() {
            self.chunks(size, window, &mut sums);
        }
        for block in window.chunks(BLOCK_BYTES as usize) {
            let kind = Kind::of(block);
            sums.zero_blocks += u64::from(kind == Kind::Zeroes);
            sums.single_value_blocks += u64::from(kind != Kind::Data);
            if kind != Kind::Zeroes {
                fingerprints.push(fingerprint(block));
            }
        }
        sums
    }

    /// Compresses the chunks of one size, codec by codec, so that each keeps its tables in the processor's cache.
    fn chunks(&mut self, size: usize, window: &[u8], sums: &mut WindowSums) {
        let chunks = || window.chunks(CHUNK_BYTES[size] as usize);
        self.kinds.clear();
        self.kinds.extend(chunks().map(Kind::of));
        self.saved_percent.clear();
        for (codec, meter) in self.meters.iter_mut().enumerate() {
            for (chunk, kind) in chunks().zip(&self.kinds) {
                if *kind == Kind::Zeroes {
                    self.saved_percent.push(0);
                    continue;
                }
                let stored = meter.stored_bytes(chunk);
                sums.stored_bytes[size][codec] += stored as u64;
                let saved = 1.0 - stored as f64 / chunk.len() as f64;
                let percent = (saved * 100.0).round() as u8;
                self.saved_percent.push(percent);
                self.histograms.saved[size][codec][usize::from(percent)] += 1;
                // Blocks of one value are index entries without a fragment.
                if size == 0 && *kind == Kind::Data {
                    sums.fragment_bytes[codec] += fragment_bytes(stored as u64);
                }
            }
        }
        let count = self.kinds.len();
        let (lz4, zstd) = self.joint;
        for (chunk, kind) in self.kinds.iter().enumerate() {
            if *kind == Kind::Zeroes {
                self.histograms.zero_chunks[size] += 1;
            } else {
                let percent = |codec: usize| usize::from(self.saved_percent[codec * count + chunk]);
                self.histograms.joint[size][percent(lz4) * BINS + percent(zstd)] += 1;
            }
        }
    }
}

/// Length of a fragment with `stored` bytes in an extent: see "Block records" in `docs/format.md`.
fn fragment_bytes(stored: u64) -> u64 {
    (8 + stored).next_multiple_of(8)
}

/// 64 bits that differ for different blocks, except for one pair in 2^64. Not for adversarial data.
#[must_use]
pub fn fingerprint(block: &[u8]) -> u64 {
    const LANES: usize = 4;
    let key = Key::new(0x5eed, block.len() as u64);
    let mut lanes: [u64; LANES] = std::array::from_fn(|lane| key.word(lane as u64) | 1);
    let (words, rest) = block.as_chunks::<8>();
    for group in words.chunks(2 * LANES) {
        for (lane, pair) in lanes.iter_mut().zip(group.chunks(2)) {
            let word = |at: usize| pair.get(at).map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let product = u128::from(word(0) ^ *lane) * u128::from(word(1) ^ SECRET ^ lane.rotate_left(32));
            *lane = lane.rotate_left(23) ^ (product >> 64) as u64 ^ product as u64;
        }
    }
    let tail = rest.iter().fold(1, |tail, byte| tail << 8 | u64::from(*byte));
    lanes
        .iter()
        .fold(mix(tail), |hash, lane| mix(hash.rotate_left(17) ^ lane))
}

/// Wyhash's second constant.
const SECRET: u64 = 0xe703_7ed1_a0b4_28db;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_depend_on_every_bit_and_position() {
        let mut block = vec![0_u8; 4096];
        Key::new(1, 2).fill(0, &mut block);
        let mut seen = std::collections::BTreeSet::from([fingerprint(&block)]);
        for bit in 0..4096 * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(fingerprint(&block)), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        block.swap(0, 64);
        assert!(seen.insert(fingerprint(&block)));
        assert_ne!(fingerprint(&[0; 4096]), fingerprint(&[0; 2048]));
    }
}
