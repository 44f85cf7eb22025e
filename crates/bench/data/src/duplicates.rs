//! Measures the duplicates in generated data: what a device that deduplicates finds, independent of the request.
//!
//! The bytes themselves are compared, so that unrequested duplicates, such as zeroes, are counted as well.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::generator::Generator;
use crate::study::window::{BLOCK_BYTES, fingerprint};

/// Amount of data that a thread processes at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// Number of distinct blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicates {
    /// Size of a block.
    pub block_bytes: u64,
    /// Blocks examined: the complete blocks of the data.
    pub blocks: u64,
    /// Distinct blocks among them.
    pub distinct: u64,
}

impl Duplicates {
    /// Share of the blocks that equal an earlier one, in percent.
    #[must_use]
    pub fn percent(&self) -> f64 {
        self.percent_repeated(self.blocks * self.block_bytes)
    }

    /// The share if the data is repeated until there are `bytes` bytes of it, at least its own length.
    #[must_use]
    pub fn percent_repeated(&self, bytes: u64) -> f64 {
        let blocks = bytes / self.block_bytes;
        if blocks == 0 {
            return 0.0;
        }
        100.0 * blocks.saturating_sub(self.distinct) as f64 / blocks as f64
    }
}

/// Compares all blocks of the first `size_bytes` bytes of the generator's data: blocks of [`BLOCK_BYTES`], or chunks if
/// these are smaller. Needs eight bytes of memory per block.
#[must_use]
pub fn count(generator: &Generator, size_bytes: u64, threads: NonZeroUsize) -> Duplicates {
    let block_bytes = BLOCK_BYTES.min(generator.spec().chunk_bytes);
    let blocks = size_bytes / block_bytes;
    let end = blocks * block_bytes;
    let next = AtomicU64::new(0);
    let found = Mutex::new(Vec::with_capacity(blocks as usize));
    thread::scope(|scope| {
        for _ in 0..threads.get() {
            scope.spawn(|| {
                let mut buffer = vec![0; PIECE_BYTES as usize];
                loop {
                    let offset = next.fetch_add(PIECE_BYTES, Ordering::Relaxed);
                    if offset >= end {
                        break;
                    }
                    let piece = &mut buffer[..PIECE_BYTES.min(end - offset) as usize];
                    generator.fill(offset, piece);
                    let prints: Vec<u64> = piece.chunks(block_bytes as usize).map(fingerprint).collect();
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    found.extend(prints);
                }
            });
        }
    });
    let mut prints: Vec<u64> = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    prints.sort_unstable();
    prints.dedup();
    Duplicates {
        block_bytes,
        blocks,
        distinct: prints.len() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::Level;
    use crate::spec::{DataSpec, Family};

    const TWO: NonZeroUsize = NonZeroUsize::new(2).unwrap();

    fn of(family: Family, dedup: f64, chunk_bytes: u64, size_bytes: u64) -> Duplicates {
        let mut spec = DataSpec::new(family, Level::HALF);
        spec.dedup = Level::new(dedup).unwrap();
        spec.chunk_bytes = chunk_bytes;
        count(&Generator::new(spec).unwrap(), size_bytes, TWO)
    }

    #[test]
    fn unrequested_duplicates_are_counted_as_well() {
        let random = of(Family::Random, 0.0, 4096, (2 << 20) + 4095);
        assert_eq!((random.blocks, random.distinct), (512, 512));
        assert_eq!(random.percent(), 0.0);
        let zeros = of(Family::Zeros, 0.0, 64 << 10, 2 << 20);
        assert_eq!((zeros.block_bytes, zeros.blocks, zeros.distinct), (4096, 512, 1));
        // The first 4 MiB of 16 contain no duplicates.
        for chunk_bytes in [512, 4096, 64 << 10] {
            let half = of(Family::Run, 50.0, chunk_bytes, 16 << 20);
            assert_eq!(half.block_bytes, chunk_bytes.min(4096));
            assert!((half.percent() - 37.5).abs() < 6.0, "{chunk_bytes}: {half:?}");
        }
        let none = of(Family::Random, 0.0, 4096, 4095);
        assert_eq!((none.blocks, none.percent()), (0, 0.0));
    }

    #[test]
    fn repeated_data_counts_as_duplicates() {
        let once = of(Family::Random, 0.0, 4096, 1 << 20);
        assert_eq!(once.percent_repeated(1 << 20), 0.0);
        assert_eq!(once.percent_repeated(4 << 20), 75.0);
        let half = Duplicates {
            distinct: 128,
            ..once
        };
        assert_eq!((half.percent(), half.percent_repeated(4 << 20)), (50.0, 87.5));
    }
}
