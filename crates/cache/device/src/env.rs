//! Time, tasks and computing: what the engine uses besides devices.

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

/// The queue in which a codec job waits: reads go first (FlaZ, section on parallelism).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A client waits for the result.
    Read,
    /// A client waits for its write, the cache is filled, or blocks that stay are compressed again.
    Write,
}

/// How much of the time of the machine's processors is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Load {
    /// Little: there is time for work that gains little for its cost.
    Low,
    /// Some.
    #[default]
    Medium,
    /// Nearly all: work that can be left out should be.
    High,
}

/// The environment of one engine thread.
///
/// Implementations: the io_uring runtime of `flaz-runtime`, and the seeded executor of `flaz-sim`.
#[expect(
    async_fn_in_trait,
    reason = "an environment belongs to one thread; no Send bound is wanted"
)]
pub trait Env: Clone + 'static {
    /// The current time.
    fn now(&self) -> Nanos;

    /// Waits for `duration`.
    async fn sleep(&self, duration: Duration);

    /// Lets every other ready task run once.
    async fn yield_now(&self);

    /// Runs `task` on this thread until it ends.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);

    /// Runs `job` on any core, through the queue of `priority`, and returns its result.
    async fn compute<T: Send + 'static>(
        &self,
        priority: Priority,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T;

    /// Runs a `job` that no client waits for, in processor time that is left. Returns its result, and how long it took once it had begun.
    async fn compute_spare<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> (T, Duration);

    /// Runs a `job` that takes up to a few seconds, apart from the jobs of [`Env::compute`], and returns its result.
    async fn compute_long<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T;

    /// Number of cores that [`Env::compute`] can use; 1 means that splitting work gains nothing.
    fn parallelism(&self) -> usize;

    /// How much of the processors' time was in use lately. Cheap.
    fn load(&self) -> Load;

    /// For how long this thread has run, or waited for a processor. Zero if that is unknown. Takes some microseconds.
    fn thread_time(&self) -> Duration {
        Duration::ZERO
    }
}

/// [`Env::compute_spare`] of an environment whose cores serve all jobs alike: its waiting time counts.
pub async fn compute_timed<E: Env, T: Send + 'static>(
    env: &E,
    job: impl FnOnce() -> T + Send + 'static,
) -> (T, Duration) {
    let began = env.now();
    let result = env.compute(Priority::Write, job).await;
    (result, env.now().since(began))
}
