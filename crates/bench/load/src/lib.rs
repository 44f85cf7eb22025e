//! The load on a device during a measurement: the tests of `flaz bench run`, and campaigns of them.
//!
//! This crate is independent of the cache engine. `flaz-data` generates the data before the clock starts; results are
//! campaigns of `flaz-bench`. `docs/bench.md` has the definitions.
//!
//! | module | contents |
//! |---|---|
//! | [`test`] | the 13 throughput tests and the four IOPS tests, as data |
//! | [`pattern`], [`shuffle`] | the order of records, without I/O |
//! | [`medium`] | an interface for a part of a file or device, or a recorder in tests |
//! | [`mod@pass`], [`queue`], [`writers`] | execution of a pattern on a medium: synchronously, with a queue, by several writers |
//! | [`plan`] | the plan, from a campaign file and options |
//! | [`target`] | directory, file or device: size, direct I/O, caches |
//! | [`data`] | the bytes, different for each pass |
//! | [`schedule`], [`visit`] | the order of visits, and the steps of a visit |
//! | [`campaign`] | rounds until the campaign is complete; its file; resuming it |
//! | [`forecast`] | estimate of the remaining time |
//! | [`flags`], [`summary`] | outliers, drift, steady state; the result as text |
//! | [`detect`] | detection of compression and deduplication |
//! | [`mod@environment`] | description of the machine |
//! | [`error`] | errors |
//!
//! Only `uring` has unsafe code.

pub mod campaign;
pub mod data;
pub mod detect;
pub mod environment;
pub mod error;
pub mod flags;
pub mod forecast;
pub mod medium;
pub mod pass;
pub mod pattern;
pub mod plan;
pub mod queue;
pub mod schedule;
pub mod shuffle;
pub mod source;
mod stream;
pub mod summary;
pub mod target;
pub mod test;
pub mod ticker;
mod uring;
pub mod visit;
mod word;
pub mod writers;
