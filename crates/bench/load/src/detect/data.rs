//! The kinds of data, generated in memory. Two samples share no block; duplicates exist only within a sample.

use flaz_bench::detect::Pattern;
use flaz_data::{DataSpec, Family, Generator, Level, Seed};
use flaz_random::Random;

/// Block size that deduplication uses.
const BLOCK_BYTES: usize = 4096;
/// Number of different blocks among duplicates: equal ones are about 1 MiB apart, beyond the window of codecs.
const DISTINCT_BLOCKS: usize = 256;
/// Rotation of the copy of a half unit, so that no aligned block equals another.
const TURN_BYTES: usize = 1000;

/// Makes data.
#[derive(Debug)]
pub struct Maker {
    seed: u64,
    made: u64,
}

impl Maker {
    /// Created from a seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, made: 0 }
    }

    /// Fills `buffer`, a multiple of 128 KiB, with new data.
    pub fn fill(&mut self, pattern: Pattern, buffer: &mut [u8]) {
        self.made += 1;
        match pattern {
            Pattern::Random => self.generate(Family::Random, 0, buffer),
            Pattern::Level(percent) => self.generate(Family::Run, percent, buffer),
            Pattern::Zeros => buffer.fill(0),
            Pattern::Alphabet => self.generate(Family::Alphabet, 50, buffer),
            Pattern::Copy { distance_bytes } => {
                self.generate(Family::Random, 0, buffer);
                copy(buffer, distance_bytes as usize);
            }
            Pattern::Across { distance_bytes } => {
                self.generate(Family::Random, 0, buffer);
                copy(buffer, distance_bytes as usize);
                buffer.rotate_right(distance_bytes as usize);
            }
            Pattern::Duplicates => self.duplicates(buffer),
        }
    }

    fn generate(&self, family: Family, percent: u8, buffer: &mut [u8]) {
        let level = Level::new(f64::from(percent)).expect("percentages of patterns are below 100");
        let mut spec = DataSpec::new(family, level);
        spec.seed = Seed {
            campaign: self.seed,
            run: self.made,
        };
        Generator::new(spec)
            .expect("families of patterns need nothing but a level")
            .fill(0, buffer);
    }

    /// Each of the different blocks once in random order, then again in another order, and so on.
    fn duplicates(&self, buffer: &mut [u8]) {
        let mut distinct = vec![0; DISTINCT_BLOCKS * BLOCK_BYTES];
        self.generate(Family::Random, 0, &mut distinct);
        let mut random = Random::stream(self.seed, self.made);
        let mut order: Vec<usize> = (0..DISTINCT_BLOCKS).collect();
        for turn in buffer.chunks_mut(DISTINCT_BLOCKS * BLOCK_BYTES) {
            random.shuffle(&mut order);
            for (block, &which) in turn.chunks_mut(BLOCK_BYTES).zip(&order) {
                block.copy_from_slice(&distinct[which * BLOCK_BYTES..][..block.len()]);
            }
        }
    }
}

/// Copies the first half of each unit of twice the distance to its second half, rotated.
fn copy(buffer: &mut [u8], distance: usize) {
    for unit in buffer.chunks_exact_mut(2 * distance) {
        let (first, second) = unit.split_at_mut(distance);
        second.copy_from_slice(first);
        second.rotate_left(TURN_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use flaz_codec::{CodecSpec, Meter};

    use super::*;

    fn saved(codec: &str, unit: usize, pattern: Pattern) -> f64 {
        let mut buffer = vec![0; 2 << 20];
        Maker::new(7).fill(pattern, &mut buffer);
        let codec: CodecSpec = codec.parse().unwrap();
        let mut meter = Meter::new(codec);
        let units = buffer.chunks(unit);
        let count = units.len() as f64;
        units.map(|unit| meter.saved(unit)).sum::<f64>() / count
    }

    #[test]
    fn codecs_save_exactly_what_the_pattern_allows() {
        let copy = |kib: u64| Pattern::Copy {
            distance_bytes: kib << 10,
        };
        let across = |kib: u64| Pattern::Across {
            distance_bytes: kib << 10,
        };
        for (codec, unit_kib, pattern, share) in [
            ("lz4", 4, Pattern::Random, 0.0),
            ("lz4", 4, Pattern::Level(50), 0.5),
            ("zstd:1", 64, Pattern::Level(75), 0.75),
            ("lz4", 4, Pattern::Alphabet, 0.0),
            ("zstd:1", 4, Pattern::Alphabet, 0.5),
            ("lz4", 4, copy(2), 0.5),
            ("lz4", 4, copy(4), 0.0),
            ("lz4", 64, copy(32), 0.5),
            ("lz4", 32, copy(32), 0.0),
            ("zstd:1", 128, copy(64), 0.5),
            ("lz4", 4, across(2), 0.0),
            ("lz4", 8, across(2), 0.25),
            ("lz4", 128, across(2), 0.48),
            ("zstd:1", 128, across(64), 0.0),
            ("zlib:6", 256, copy(64), 0.0),
            ("zlib:6", 256, copy(16), 0.5),
            ("zlib:6", 256, across(16), 0.44),
            ("lz4", 64, Pattern::Duplicates, 0.0),
        ] {
            let found = saved(codec, unit_kib << 10, pattern);
            assert!(
                (found - share).abs() < 0.06,
                "{codec} at {unit_kib} KiB: {found} of {pattern}"
            );
        }
    }

    #[test]
    fn only_duplicates_have_equal_blocks() {
        let mut maker = Maker::new(3);
        let mut buffer = vec![0; 2 << 20];
        let mut seen = HashSet::new();
        for pattern in Pattern::all() {
            if pattern == Pattern::Zeros {
                continue;
            }
            maker.fill(pattern, &mut buffer);
            let blocks = buffer.chunks(BLOCK_BYTES).map(<[u8]>::to_vec);
            let new = blocks.filter(|block| seen.insert(block.clone())).count();
            let expected = if pattern == Pattern::Duplicates { 256 } else { 512 };
            assert_eq!(new, expected, "{pattern}");
        }
    }
}
