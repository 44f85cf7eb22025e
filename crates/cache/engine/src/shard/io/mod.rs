//! The two devices of a shard: their health, their flushes, and what is counted and timed of them.
//!
//! | module | part |
//! |---|---|
//! | [`cache`] | the cache device, and whether it is fenced |
//! | [`origin`], [`mean`] | the origin, and how long its reads take |
//! | [`flushes`] | which flushes of a device failed, for all shards |
//! | [`watch`], [`noting`] | what the origin begins with, and noting it |
//! | [`error_log`] | errors of both, in the log |
//! | [`counts`] | what the shards of a cache count together |
//! | [`turns`], [`pace`] | which writeback run is next, and how many there may be |
//!
//! Nothing here knows what the bytes mean.

mod cache;
mod counts;
mod error_log;
mod flushes;
mod mean;
mod noting;
mod origin;
mod pace;
#[cfg(test)]
mod tests;
mod turns;
mod watch;

use std::pin::Pin;

use flaz_device::Env;

use crate::stats::{Latencies, Latency, Stats};

pub use cache::CACHE_ERRORS_MAX;
pub(super) use cache::CacheIo;
pub use counts::OriginWrites;
pub(super) use error_log::Failed;
pub(super) use noting::Noted;
pub(super) use origin::OriginIo;
pub(super) use turns::Turn;

/// Awaits an operation, and records how long it took. It is passed by reference, because a future that is passed on is moved.
async fn timed<T>(
    env: &impl Env,
    stats: &Stats,
    latency: impl FnOnce(&mut Latencies) -> &mut Latency,
    operation: Pin<&mut impl Future<Output = T>>,
) -> T {
    let started = env.now();
    let result = operation.await;
    let took = env.now().since(started);
    latency(&mut stats.latencies.borrow_mut()).record(took);
    result
}
