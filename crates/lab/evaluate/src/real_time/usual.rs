//! The environment of the engine in real time.

use std::future::Future;
use std::time::Duration;

use flaz_device::{Env, Load, Nanos, Priority};
use flaz_runtime::Rt;

/// The runtime, whose load is never low: contents are generated to recorded sizes, so high effort would take time and save nothing, and
/// virtual time does not have it either.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usual;

impl Env for Usual {
    fn now(&self) -> Nanos {
        Rt.now()
    }

    async fn sleep(&self, duration: Duration) {
        Rt.sleep(duration).await;
    }

    async fn yield_now(&self) {
        Rt.yield_now().await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        Rt.spawn(task);
    }

    async fn compute<T: Send + 'static>(
        &self,
        priority: Priority,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        Rt.compute(priority, job).await
    }

    async fn compute_spare<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> (T, Duration) {
        Rt.compute_spare(job).await
    }

    async fn compute_long<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        Rt.compute_long(job).await
    }

    fn parallelism(&self) -> usize {
        Rt.parallelism()
    }

    fn load(&self) -> Load {
        Rt.load().max(Load::Medium)
    }

    fn thread_time(&self) -> Duration {
        Rt.thread_time()
    }
}
