//! Data whose compressibility is known, and the compressibility of data that is there.
//!
//! Two halves that meet in a file: [`Generator`] makes data of a wanted compressibility, for benchmarks of devices
//! that compress; [`study`] measures what real data saves, by sampling; the [`Distribution`] that a study writes is
//! what the generator replays. Nothing here knows the cache.
//!
//! | module | what it holds |
//! |---|---|
//! | [`spec`], [`level`] | what is asked for: family, level, chunk size, duplicates, seed |
//! | [`generator`] | every byte as a function of seed and offset; verification |
//! | [`layout`], [`alphabet`], [`masks`] | how a unit is laid out so that codecs save what was asked, calibrated |
//! | [`pool`] | data in memory before the clock starts |
//! | [`achieved`] | what the codecs of `flaz-codec` make of it |
//! | [`duplicates`] | how much of it repeats |
//! | [`distribution`] | the measured distribution of chunks, as a file |
//! | [`mod@study`] | measuring real data |
//! | [`output`], [`page`] | generated data to a file or pipe; requested against achieved |
//! | [`human`] | numbers as people read them |

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
