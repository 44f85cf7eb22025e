//! The benchmark of flaz.
pub mod random;
pub mod statistics;
