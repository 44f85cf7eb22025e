//! The random generator of simulations, whose sequence recorded failing seeds depend on.

pub use flaz_random::{Xoshiro as Rng, splitmix as mix};
