//! The two ways to execute operations: io_uring, and threads if io_uring is forbidden.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Backend, Config};
use crate::request::{Completion, Keep, OPS_MAX, Request};
use crate::ring::Ring;
use crate::task::Shared;
use crate::threads::Threads;

#[expect(
    clippy::large_enum_variant,
    reason = "there is one per thread, and the large variant is the usual one"
)]
pub(crate) enum Driver {
    Uring(Ring),
    Threads(Threads),
}

impl Driver {
    /// # Errors
    /// io_uring was requested explicitly and is not available.
    pub(crate) fn new(config: &Config, shared: &Arc<Shared>) -> io::Result<Self> {
        if config.backend == Backend::Threads {
            return Ok(Self::Threads(Threads::new(Arc::clone(shared))));
        }
        let cq_entries = (2 * OPS_MAX as u32).max(2 * config.sq_entries);
        match Ring::new(config.sq_entries, cq_entries) {
            Ok(ring) => Ok(Self::Uring(ring)),
            Err(error) if config.backend == Backend::IoUring => Err(error),
            Err(error) => {
                static SAID: std::sync::Once = std::sync::Once::new();
                SAID.call_once(|| {
                    tracing::warn!("{error}; using blocking threads instead: every operation costs more");
                });
                Ok(Self::Threads(Threads::new(Arc::clone(shared))))
            }
        }
    }

    pub(crate) fn backend(&self) -> Backend {
        match self {
            Self::Uring(_) => Backend::IoUring,
            Self::Threads(_) => Backend::Threads,
        }
    }

    /// Adds a request. The kernel may not see it before the next submission.
    pub(crate) fn push(&self, request: Request, user_data: u64, keep: Option<Keep>) {
        match self {
            Self::Uring(ring) => ring.push(request, user_data),
            Self::Threads(threads) => threads.push(request, user_data, keep),
        }
    }

    /// Cancels an operation. It completes in any case.
    pub(crate) fn cancel(&self, user_data: u64) {
        match self {
            Self::Uring(ring) => ring.cancel(user_data),
            Self::Threads(threads) => threads.cancel(user_data),
        }
    }

    /// On return, the descriptors of all operations pushed so far may be closed.
    pub(crate) fn submit_all(&self) {
        match self {
            Self::Uring(ring) => ring.submit_all(),
            // Sockets are used on this thread, and files stay open.
            Self::Threads(_) => {}
        }
    }

    /// Makes progress without waiting.
    pub(crate) fn submit_and_poll(&self) {
        match self {
            Self::Uring(ring) => ring.submit_and_poll(),
            Self::Threads(threads) => threads.poll(),
        }
    }

    /// Waits for a completion or a wake from another thread, at most for `timeout`.
    pub(crate) fn submit_and_wait(&self, timeout: Option<Duration>, shared: &Shared) {
        match self {
            Self::Uring(ring) => {
                ring.arm_wake(shared.eventfd());
                ring.submit_and_wait(timeout);
            }
            Self::Threads(threads) => threads.wait(timeout),
        }
    }

    /// Returns completions, at most one batch.
    pub(crate) fn completions(&self, out: &mut Vec<Completion>) {
        match self {
            Self::Uring(ring) => ring.completions(out),
            Self::Threads(threads) => threads.completions(out),
        }
    }

    /// Begins the end: disables wakes from other threads.
    pub(crate) fn close(&self) {
        if let Self::Uring(ring) = self {
            ring.cancel_wake();
            ring.submit_all();
        }
    }

    /// Waits for a completion, after [`Driver::close`].
    pub(crate) fn wait_closed(&self, timeout: Duration) {
        match self {
            Self::Uring(ring) => ring.submit_and_wait(Some(timeout)),
            Self::Threads(threads) => threads.wait(Some(timeout)),
        }
    }

    /// Whether, after [`Driver::close`], the kernel no longer uses any memory of the driver itself.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Uring(ring) => !ring.wake_armed(),
            Self::Threads(_) => true,
        }
    }

    /// Leaks memory that the kernel may still use: the last resort.
    pub(crate) fn leak(&self) {
        if let Self::Uring(ring) = self {
            ring.leak();
        }
    }
}
