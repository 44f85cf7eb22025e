//! Measurements for `flaz bench detect`: writes different kinds of data, and lists the layers between file system and
//! medium. [`flaz_bench::detect`] evaluates them.

pub mod data;
pub mod file_system;
pub mod layers;
pub mod measure;
#[cfg(test)]
mod models;
