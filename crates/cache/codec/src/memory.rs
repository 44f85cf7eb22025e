//! The memory of encoders and decoders is counted, over all threads.

use std::sync::atomic::{AtomicU64, Ordering};

static BYTES: AtomicU64 = AtomicU64::new(0);

/// Memory of all encoders and decoders, in bytes. Those of LZ4 have none: their tables are on the stack.
#[must_use]
pub fn context_bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// The memory of one of them. Counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(usize);

impl Counted {
    pub(crate) fn new(bytes: usize) -> Self {
        BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
        Self(bytes)
    }

    /// It takes so much now. Cheap if that has not changed.
    pub(crate) fn set(&mut self, bytes: usize) {
        if self.0 != bytes {
            *self = Self::new(bytes);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.0 as u64, Ordering::Relaxed);
    }
}
