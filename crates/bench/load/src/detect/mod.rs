//! What a device does to data: writing data of different kinds, and what is known of the way to the medium. The answer is
//! [`flaz_bench::detect`]'s.

pub mod data;
pub mod file_system;
pub mod layers;
pub mod measure;
#[cfg(test)]
mod models;
