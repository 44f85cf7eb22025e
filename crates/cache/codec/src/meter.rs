//! Compressed lengths, for benchmarks and studies: the compressed bytes are discarded.
//!
//! "Saved" is the gain of a device that stores a chunk compressed if that is smaller and uncompressed otherwise, so it
//! is never negative.

use std::fmt;

use crate::codec::Encoder;
use crate::spec::{CodecSpec, encoder};

/// Measures compressed lengths with one codec. Keeps its tables and its output buffer: create one per thread.
pub struct Meter {
    codec: CodecSpec,
    encoder: Box<dyn Encoder + Send>,
    out: Vec<u8>,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meter({})", self.codec)
    }
}

impl Meter {
    /// A meter for `codec`.
    ///
    /// # Panics
    /// If the library has no memory for its tables.
    #[must_use]
    pub fn new(codec: CodecSpec) -> Self {
        Self {
            codec,
            encoder: encoder(codec),
            out: Vec::new(),
        }
    }

    /// The codec.
    #[must_use]
    pub fn codec(&self) -> CodecSpec {
        self.codec
    }

    /// Length of `chunk` as a device would store it: compressed, or uncompressed if that is not larger.
    pub fn stored_bytes(&mut self, chunk: &[u8]) -> usize {
        // One byte less than the chunk: a longer output is not worth storing.
        let most = chunk.len().saturating_sub(1);
        if self.out.len() < most {
            self.out.resize(most, 0);
        }
        let compressed = self.encoder.compress(chunk, &mut self.out[..most]);
        compressed.unwrap_or(chunk.len())
    }

    /// Share of `chunk` that is saved, 0 to 1; 0 for an empty chunk.
    pub fn saved(&mut self, chunk: &[u8]) -> f64 {
        if chunk.is_empty() {
            return 0.0;
        }
        1.0 - self.stored_bytes(chunk) as f64 / chunk.len() as f64
    }
}
