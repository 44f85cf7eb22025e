//! The codec samples of a cache, shared by its shards: only the first one tries what a dictionary would save, and a few samples of each
//! would say little.

#![expect(
    clippy::disallowed_types,
    reason = "shards on several threads share it; held for a few sums, four times a second"
)]

use std::sync::{Arc, Mutex, PoisonError};

use super::CodecSamples;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct SharedSamples(Arc<Mutex<CodecSamples>>);

impl SharedSamples {
    /// Calls `change` with the samples.
    pub fn with<T>(&self, change: impl FnOnce(&mut CodecSamples) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
