//! What other codecs would make of the blocks that are stored: measured on a sample.
//!
//! Invariant: each block of a sample counts for every codec, so their sizes compare.

use std::time::Duration;

use flaz_codec::{CodecId, CodecSpec, encoder};
use flaz_device::Nanos;

use super::GROUPS;
use crate::format::extent::FRAGMENT_HEADER_BYTES;
use crate::units::BLOCK_BYTES;

/// Number of codecs that are measured.
pub const CODECS: usize = 4;
/// Of the blocks that are stored, one in so many is sampled.
const BLOCKS_PER_SAMPLE: u32 = 256;
/// Time between two samples of a cache, at least: a sample takes about 0.1 ms of a processor.
const PAUSE: Duration = Duration::from_millis(10);
/// Samples of a shard that count. With as many, all of them count half from then on.
const SAMPLES_MAX: f64 = 8192.0;

/// The codecs, from the fastest.
#[must_use]
pub fn codecs() -> [CodecSpec; CODECS] {
    let zstd = |level| CodecSpec::new(CodecId::ZSTD, Some(level)).expect("zstd has this level");
    [CodecSpec::NONE, CodecSpec::LZ4, zstd(1), zstd(3)]
}

/// A block as every codec stores it.
#[derive(Debug)]
pub struct Compressed {
    /// Its compressed forms; `None`: stored as it is.
    forms: [Option<Vec<u8>>; CODECS],
}

impl Compressed {
    /// Compresses a block with every codec. Takes some 50 us.
    #[must_use]
    pub fn of(block: &[u8]) -> Self {
        let mut out = vec![0; BLOCK_BYTES - 1];
        let forms = codecs().map(|codec| {
            let len = (codec != CodecSpec::NONE).then(|| encoder(codec).compress(block, &mut out))??;
            Some(out[..len].to_vec())
        });
        Self { forms }
    }

    /// The bytes that a codec makes of it.
    #[must_use]
    pub fn form(&self, codec: usize) -> Option<&[u8]> {
        self.forms[codec].as_deref()
    }
}

/// Bytes of the cache device for a block of which `stored` bytes are stored.
#[must_use]
pub fn fragment_bytes(stored: u64) -> u64 {
    (stored + FRAGMENT_HEADER_BYTES as u64).next_multiple_of(8)
}

/// Sizes and times of the sampled blocks, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CodecSamples {
    /// Number of blocks, by group.
    pub blocks: [f64; GROUPS],
    /// Bytes that they took when they were stored, by group.
    pub now_bytes: [f64; GROUPS],
    /// Bytes that they take with each codec, by group.
    pub bytes: [[f64; GROUPS]; CODECS],
    /// Nanoseconds to restore them, by codec.
    pub decode_ns: [f64; CODECS],
}

impl CodecSamples {
    /// Number of blocks.
    #[must_use]
    pub fn count(&self) -> f64 {
        self.blocks.iter().sum()
    }

    /// Adds a block: `now` bytes are stored of it, and each codec took so long to restore it.
    pub fn sample(&mut self, compressed: &Compressed, now: u64, took: [Duration; CODECS]) {
        if self.count() >= SAMPLES_MAX {
            let counts = self.bytes.iter_mut().flatten().chain(&mut self.blocks);
            counts
                .chain(&mut self.now_bytes)
                .chain(&mut self.decode_ns)
                .for_each(|count| *count /= 2.0);
        }
        // In turn: a group has blocks of all times.
        let fewest = |group: &usize| self.blocks[*group] as u64;
        let group = (0..GROUPS).min_by_key(fewest).expect("there are groups");
        self.blocks[group] += 1.0;
        self.now_bytes[group] += fragment_bytes(now) as f64;
        for (codec, took) in took.iter().enumerate() {
            let stored = compressed.form(codec).map_or(BLOCK_BYTES, <[u8]>::len);
            self.bytes[codec][group] += fragment_bytes(stored as u64) as f64;
            self.decode_ns[codec] += took.as_nanos() as f64;
        }
    }

    /// Adds the samples of another shard.
    pub fn add(&mut self, other: &Self) {
        let others = other
            .bytes
            .iter()
            .flatten()
            .chain(&other.blocks)
            .chain(&other.now_bytes)
            .chain(&other.decode_ns);
        let counts = self.bytes.iter_mut().flatten().chain(&mut self.blocks);
        let counts = counts.chain(&mut self.now_bytes).chain(&mut self.decode_ns);
        counts.zip(others).for_each(|(count, other)| *count += other);
    }

    /// How many times as many blocks a cache would have with a codec, from sizes by group: the value without each group in turn
    /// gives the standard error (jackknife).
    #[must_use]
    pub fn capacity_factor(&self, codec: usize) -> (f64, f64) {
        let ratio = |without: Option<usize>| {
            let sum = |bytes: &[f64; GROUPS]| -> f64 {
                (bytes.iter().enumerate())
                    .filter(|(group, _)| Some(*group) != without)
                    .map(|(_, it)| it)
                    .sum()
            };
            sum(&self.now_bytes) / sum(&self.bytes[codec]).max(1.0)
        };
        let whole = ratio(None);
        let parts: [f64; GROUPS] = std::array::from_fn(|group| ratio(Some(group)));
        let mean = parts.iter().sum::<f64>() / GROUPS as f64;
        let squares: f64 = parts.iter().map(|part| (part - mean).powi(2)).sum();
        let groups = GROUPS as f64;
        (whole, ((groups - 1.0) / groups * squares).sqrt())
    }
}

/// Says which blocks are sampled.
#[derive(Debug, Default)]
pub struct CodecSampler {
    stored: u32,
    last: Nanos,
}

impl CodecSampler {
    /// A block is stored by one of `shards` shards: whether it is sampled.
    pub fn wants(&mut self, shards: u32, now: impl FnOnce() -> Nanos) -> bool {
        self.stored += 1;
        if self.stored < BLOCKS_PER_SAMPLE {
            return false;
        }
        let now = now();
        if now.since(self.last) < PAUSE * shards {
            return false;
        }
        (self.stored, self.last) = (0, now);
        true
    }
}
