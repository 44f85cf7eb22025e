//! Contents of blocks: each compresses as its recorded sizes say.
//!
//! Blocks of the same sizes share a few contents, of which the number of the block chooses one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use flaz_data::distribution::{Distribution, Row, SCHEMA, Size};
use flaz_data::{DataSpec, Family, Generator, Level};
use flaz_engine::units::BLOCK_BYTES;
use flaz_random::mix;
use flaz_trace::recording::{GRANULES, Recorded, Sizes, Stored};

/// A block.
pub type Block = [u8; BLOCK_BYTES];

/// Contents of the same sizes.
const VARIANTS: usize = 4;
/// Largest share that a generated block saves, in percent: more would be a block of one value.
const SAVED_PERCENT_MAX: f64 = 98.0;

type Variants = Arc<[Box<Block>; VARIANTS]>;

/// Contents by sizes. All threads share those that exist.
#[derive(Debug, Default)]
pub struct Contents {
    made: Mutex<HashMap<Sizes, Variants>>,
}

thread_local! {
    /// Those that this thread has used, without a lock.
    static USED: RefCell<HashMap<Sizes, Variants>> = RefCell::default();
}

impl Contents {
    /// Fills `out` with contents of `sizes`, the same for the same `number` and sizes.
    pub fn fill(&self, number: u64, sizes: Sizes, out: &mut Block) {
        if sizes[0] == Stored::SINGLE_VALUE {
            out.fill(0);
            return;
        }
        let variant = (mix(number) % VARIANTS as u64) as usize;
        USED.with_borrow_mut(|used| {
            let variants = used.entry(sizes).or_insert_with(|| self.variants(sizes));
            out.copy_from_slice(&variants[variant][..]);
        });
    }

    /// The bytes that a recorded write writes.
    #[must_use]
    pub fn of_write(&self, recorded: &Recorded) -> Vec<u8> {
        let (offset, len) = (recorded.request.offset, recorded.request.len);
        let first = offset / BLOCK_BYTES as u64;
        let mut bytes = vec![0; recorded.sizes.len() * BLOCK_BYTES];
        let (blocks, _) = bytes.as_chunks_mut::<BLOCK_BYTES>();
        for (number, (block, sizes)) in blocks.iter_mut().zip(&recorded.sizes).enumerate() {
            self.fill(first + number as u64, *sizes, block);
        }
        bytes.drain(..(offset - first * BLOCK_BYTES as u64) as usize);
        bytes.truncate(len as usize);
        bytes
    }

    fn variants(&self, sizes: Sizes) -> Variants {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(made.entry(sizes).or_insert_with(|| Arc::new(generate(sizes))))
    }
}

/// Share that is saved, in percent. A recorded size is rounded up, so half a granule is taken off.
fn saved_percent(size: Stored) -> f64 {
    match size.granules() {
        GRANULES => 0.0,
        granules => {
            (100.0 * (1.0 - (f64::from(granules) - 0.5) / f64::from(GRANULES))).min(SAVED_PERCENT_MAX)
        }
    }
}

fn generate(sizes: Sizes) -> [Box<Block>; VARIANTS] {
    let matched_percent = saved_percent(sizes[0]);
    let row = Row {
        matched_percent,
        // The generator's order: an entropy coder saves no less than matches do.
        entropy_percent: saved_percent(sizes[1]).max(matched_percent),
        chunks: 1,
    };
    let distribution = Distribution {
        schema: SCHEMA.to_owned(),
        source: "a recording".to_owned(),
        measured_bytes: BLOCK_BYTES as u64,
        duplicate_percent: 0.0,
        sizes: vec![Size {
            chunk_bytes: BLOCK_BYTES as u64,
            zero_chunks: 0,
            rows: vec![row],
        }],
    };
    let spec = DataSpec::new(Family::Replay(Arc::new(distribution)), Level::ZERO);
    let generator = Generator::new(spec).expect("a distribution with a chunk of a block");
    std::array::from_fn(|variant| {
        let mut block = Box::new([0; BLOCK_BYTES]);
        generator.fill((variant * BLOCK_BYTES) as u64, &mut block[..]);
        block
    })
}

#[cfg(test)]
mod tests {
    use flaz_codec::{CodecSpec, Meter};

    use super::*;

    #[test]
    fn contents_compress_as_recorded() {
        let contents = Contents::default();
        let mut lz4 = Meter::new(CodecSpec::LZ4);
        let mut zstd = Meter::new(CodecSpec::ZSTD);
        let mut block = [0; BLOCK_BYTES];
        for (fast, entropy) in [(64, 64), (50, 40), (33, 25), (20, 15), (8, 6)] {
            let sizes = [fast, entropy].map(|granules| Stored::bytes(granules * 64));
            contents.fill(7, sizes, &mut block);
            let found = [lz4.stored_bytes(&block), zstd.stored_bytes(&block)];
            for (found, granules) in found.into_iter().zip([fast, entropy]) {
                let off = found as f64 / 64.0 - granules as f64;
                assert!(off.abs() < 4.0, "{fast} and {entropy}: {found} bytes");
            }
            let first = block;
            contents.fill(7, sizes, &mut block);
            assert_eq!(first, block);
        }
    }
}
