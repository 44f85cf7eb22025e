//! Seeded random numbers. The same seed gives the same numbers on every machine and in every version. Not for secrets.
//!
//! There are three algorithms because the sequence of each must not change:
//!
//! | type | algorithm | used by |
//! |---|---|---|
//! | [`Random`] | SplitMix64 | campaigns, intervals by resampling, the demo: seeds in their results |
//! | [`Key`] | wyrand, by position | benchmark data, which is verified by offset and generated again from its seed |
//! | [`Xoshiro`] | xoshiro256++ | the simulation: recorded seeds of past failures |
//!
//! New code uses [`Random`].
#![forbid(unsafe_code)]

mod keyed;
mod splitmix;
mod xoshiro;

pub use keyed::Key;
pub use splitmix::{Random, mix, splitmix};
pub use xoshiro::Xoshiro;

/// Converts random bits to a number below `limit`, all equally likely to within 2^-32 for limits below 2^32; 0 if the
/// limit is 0.
#[inline]
#[must_use]
pub fn scale(bits: u64, limit: u64) -> u64 {
    ((u128::from(bits) * u128::from(limit)) >> 64) as u64
}

/// Converts random bits to a number in 0 <= x < 1.
#[inline]
#[must_use]
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}
