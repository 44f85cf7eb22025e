//! What is done to a device while the clock runs: the tests of `flaz bench run`, and campaigns of them.
//!
//! Independent of the cache engine. Data comes from `flaz-data`, made before the clock starts; results are campaigns of
//! `flaz-bench`. `docs/bench.md` has the definitions.
//!
//! | module | what it holds |
//! |---|---|
//! | [`test`] | the 13 tests of throughput and the four of operations a second, as data |
//! | [`pattern`], [`shuffle`] | which records in which order: pure |
//! | [`medium`] | the seam: a part of a file or device, or a recorder in its place |
//! | [`mod@pass`], [`queue`], [`writers`] | doing a pattern to a medium: synchronously, with a queue, by several at a time |
//! | [`plan`] | what is asked for, from a file and options |
//! | [`target`] | folder, file or device: size, direct I/O, caches |
//! | [`data`] | the bytes, other ones for each pass |
//! | [`schedule`], [`visit`] | the order of everything, and the steps that a cell takes |
//! | [`campaign`] | rounds until it is done; the file after each visit; going on after an interruption |
//! | [`forecast`] | how long the rest will take |
//! | [`flags`], [`summary`] | outliers, drift, steady state; a page for people |
//! | [`detect`] | writing data of different kinds, to find what a device does to them |
//! | [`mod@environment`] | where it is measured |
//! | [`error`] | what can be wrong with all that |
//!
//! Unsafe code is in `uring` alone.

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
pub mod writers;
