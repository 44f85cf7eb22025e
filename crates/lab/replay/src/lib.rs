//! How large a cache does a load need? Replays a trace through the engine on modelled devices, in virtual time.
//!
//! A trace is read once, as a stream. A sample of it stays in memory, with a bounded number of requests and blocks, and is replayed with
//! each size, codec and policy on a cache that is smaller by the same factor. Meanwhile the simulated caches of the engine's advisor
//! give the hit ratio at all sizes. `docs/lab-replay.md` has the method and its errors.
//!
//! | module | contents |
//! |---|---|
//! | [`sizing`] | the whole: from a trace and options to a report |
//! | [`sample`] | one pass over a trace: what it contains, and a sample of it |
//! | [`curve`] | the hit ratio at all sizes, from the same pass |
//! | [`contents`] | contents of blocks, of fixed compressibility |
//! | [`engine`] | one combination of size, codec and policy: the engine on simulated disks |
//! | [`model`] | how long a device takes |
//! | [`latency`] | latencies of requests, weighted |
//! | [`combination`] | from a replay of a sample to figures of the trace |
//! | [`report`], [`text`], [`html`] | results, as JSON, as text, as a page |
//! | [`studies`] | development studies of the policies, on known traces |
//!
//! Invariants: memory does not depend on the length of the trace; the same trace and options give the same figures.

pub mod combination;
pub mod contents;
pub mod curve;
pub mod engine;
pub mod html;
pub mod latency;
pub mod model;
pub mod report;
pub mod sample;
pub mod sizing;
pub mod studies;
pub mod text;
