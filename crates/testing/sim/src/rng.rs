//! The random generator of simulations. Recorded failing seeds depend on its sequence.

pub use flaz_random::{Xoshiro as Rng, splitmix};
