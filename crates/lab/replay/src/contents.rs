//! Contents of blocks: drawn from a distribution, the same each time for a block.
//!
//! Blocks share a pool of contents, chosen by a hash of the block's number. Neighbours are drawn independently, as in the distribution.

use std::sync::Arc;

use flaz_codec::{CodecChoice, CodecSpec, Effort, encoder};
use flaz_data::distribution::{Distribution, Row, SCHEMA};
use flaz_data::{DataSpec, Family, Generator, Level};
use flaz_device::IoBuf;
use flaz_engine::advise::fragment_bytes;
use flaz_engine::policy::block_key;
use flaz_engine::units::BLOCK_BYTES;

/// Number of contents in the pool, as a power of two: 16 MiB.
const POOL_BITS: u32 = 12;
/// What is used without a measured distribution.
const DEFAULT: &str = include_str!("default-distribution.json");

/// A block.
pub type Block = [u8; BLOCK_BYTES];

/// See the module's documentation. Clones share the pool.
#[derive(Clone)]
pub struct Contents {
    pool: Arc<Vec<Block>>,
    source: String,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contents")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl Contents {
    /// Contents of a distribution that was measured.
    ///
    /// # Errors
    /// The distribution has no chunks of 4 KiB.
    pub fn measured(distribution: Distribution) -> Result<Self, String> {
        let source = distribution.source.clone();
        let spec = DataSpec::new(Family::Replay(Arc::new(distribution)), Level::ZERO);
        let generator = Generator::new(spec).map_err(|error| error.to_string())?;
        let mut pool = vec![[0; BLOCK_BYTES]; 1 << POOL_BITS];
        for (number, block) in pool.iter_mut().enumerate() {
            generator.fill((number * BLOCK_BYTES) as u64, block);
        }
        Ok(Self {
            pool: Arc::new(pool),
            source,
        })
    }

    /// Contents of the built-in distribution.
    ///
    /// # Panics
    /// If the built-in distribution is invalid, which a test excludes.
    #[must_use]
    pub fn usual() -> Self {
        let parsed = Distribution::parse(DEFAULT.as_bytes());
        let distribution = parsed.expect("the built-in distribution is valid");
        debug_assert_eq!(distribution.schema, SCHEMA);
        Self::measured(distribution).expect("the built-in distribution has chunks of 4 KiB")
    }

    /// Rows of the built-in distribution at 4 KiB.
    ///
    /// # Panics
    /// As [`Self::usual`].
    #[must_use]
    pub fn usual_rows() -> Vec<Row> {
        let parsed = Distribution::parse(DEFAULT.as_bytes()).expect("the built-in distribution is valid");
        let size = parsed.size(BLOCK_BYTES as u64);
        size.map(|size| size.rows.clone()).unwrap_or_default()
    }

    /// What was measured.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The contents of a block of the trace.
    #[must_use]
    pub fn of(&self, block: u64) -> &Block {
        &self.pool[number_of(block)]
    }

    /// How many bytes of a cache a block takes, for each of the contents in the pool.
    #[must_use]
    pub fn sizes(&self, codec: CodecChoice) -> Sizes {
        // The codec `auto` stores the blocks that stay with its second codec, and most of a cache is blocks that stay.
        let codec = codec.second(Effort::Usual, false).unwrap_or(codec.first());
        let mut encoder = encoder(codec);
        let mut out = IoBuf::zeroed(BLOCK_BYTES - 1);
        let bytes = self.pool.iter().map(|block| {
            if block.iter().all(|byte| *byte == block[0]) {
                return 0;
            }
            let stored = match codec {
                CodecSpec::NONE => None,
                _ => encoder.compress(block, &mut out),
            };
            fragment_bytes(stored.unwrap_or(BLOCK_BYTES) as u64) as u16
        });
        Sizes {
            bytes: bytes.collect(),
        }
    }
}

/// Bytes of a cache that blocks take with one codec.
#[derive(Clone, Debug)]
pub struct Sizes {
    bytes: Vec<u16>,
}

impl Sizes {
    /// The bytes of a block of the trace.
    #[must_use]
    pub fn of(&self, block: u64) -> u64 {
        u64::from(self.bytes[number_of(block)])
    }

    /// By how much blocks compress.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        let sum: u64 = self.bytes.iter().map(|bytes| u64::from(*bytes)).sum();
        (self.bytes.len() * BLOCK_BYTES) as f64 / sum.max(1) as f64
    }
}

/// The number of a block's contents in the pool: the high bits of the key, of which the low ones choose samples.
fn number_of(block: u64) -> usize {
    (block_key(block) >> (u64::BITS - POOL_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_distribution_compresses_as_it_says() {
        let contents = Contents::usual();
        let distribution = Distribution::parse(DEFAULT.as_bytes()).expect("valid");
        let (lz4, zstd) = distribution.size(4096).expect("4 KiB").means_percent();
        for (codec, saved) in [("lz4", lz4), ("zstd:1", zstd)] {
            let sizes = contents.sizes(codec.parse().expect("a codec"));
            // Headers and rounding take some 10 bytes for each block.
            assert!(
                (1.0 - 1.0 / sizes.ratio() - saved / 100.0).abs() < 0.03,
                "{codec}: {}",
                sizes.ratio()
            );
        }
        assert_eq!(contents.of(7), contents.of(7));
    }
}
