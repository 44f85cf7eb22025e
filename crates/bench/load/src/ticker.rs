//! Progress of a pass, and the request to stop it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Progress and stop request, shared with the observers of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Ticker<'a> {
    /// Bytes done by all writers.
    pub done: &'a AtomicU64,
    /// Set when all writers are to stop.
    pub stop: &'a AtomicBool,
}

impl Ticker<'_> {
    /// Counts a record.
    #[inline]
    pub(crate) fn add(&self, bytes: usize) {
        self.done.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// # Errors
    /// [`interrupted`], when all writers are to stop.
    #[inline]
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            Err(interrupted())
        } else {
            Ok(())
        }
    }
}

/// The error of a pass that was stopped.
#[must_use]
pub fn interrupted() -> io::Error {
    io::Error::other(Interrupted)
}

/// Whether an error is [`interrupted`].
#[must_use]
pub fn is_interrupted(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Interrupted>())
}

#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
struct Interrupted;
