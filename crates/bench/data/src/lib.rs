//! Generates data of known compressibility, and measures the compressibility of existing data.
//!
//! [`Generator`] generates data for benchmarks of devices that compress. [`study`] measures the savings on real data by
//! sampling. The generator can replay the [`Distribution`] that a study writes. This crate does not depend on the
//! cache.
//!
//! | module | contents |
//! |---|---|
//! | [`spec`], [`level`] | the requested data: family, level, chunk size, duplicates, seed |
//! | [`generator`] | every byte as a function of seed and offset; verification |
//! | [`layout`], [`alphabet`], [`masks`] | calibrated layouts of a unit, so that codecs save the requested share |
//! | [`pool`] | data in memory before the clock starts |
//! | [`achieved`] | the savings that codecs achieve on it |
//! | [`duplicates`] | the share of duplicates in it |
//! | [`distribution`] | the measured distribution of chunks, as a file |
//! | [`mod@study`] | measuring real data |
//! | [`output`], [`page`] | output of generated data to a file or pipe; the report on requested and achieved savings |
//! | [`human`] | formatting of numbers |

pub mod achieved;
pub mod alphabet;
pub mod distribution;
pub mod duplicates;
pub mod generator;
pub mod human;
pub mod layout;
pub mod level;
pub mod masks;
pub mod output;
pub mod page;
pub mod pool;
pub mod spec;
pub mod study;

pub use achieved::{Achieved, CALIBRATED, measure};
pub use distribution::Distribution;
pub use duplicates::Duplicates;
pub use generator::{Difference, Generator};
pub use level::{Level, Seed};
pub use pool::{FillSpeed, Pool};
pub use spec::{DataSpec, Family};
