//! Time, tasks and computing: everything the engine may ask of its surroundings besides devices.

use std::future::Future;
use std::time::Duration;

/// Nanoseconds since an arbitrary start, monotonic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment plus `d`.
    #[must_use]
    pub fn after(self, d: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

/// Which of the two codec queues a job waits in: reads go first (FlaZ, section on parallelism).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Somebody waits for the result.
    Read,
    /// Background work: filling the cache.
    Write,
}

/// The surroundings of one engine thread.
///
/// Implementations: the io_uring runtime of `flaz-runtime`, and the seeded executor of `flaz-sim`.
#[expect(
    async_fn_in_trait,
    reason = "an environment belongs to one thread; no Send bound is wanted"
)]
pub trait Env: Clone + 'static {
    /// The present moment.
    fn now(&self) -> Nanos;

    /// Waits for `duration`.
    async fn sleep(&self, duration: Duration);

    /// Lets every other task that can run do so once.
    async fn yield_now(&self);

    /// Runs `task` on this thread until it ends.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);

    /// Runs `job` on some core, through the queue of `priority`, and returns what it gives.
    async fn compute<T: Send + 'static>(
        &self,
        priority: Priority,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T;

    /// How many cores [`Env::compute`] can use at a time; 1 means that splitting work gains nothing.
    fn parallelism(&self) -> usize;
}
