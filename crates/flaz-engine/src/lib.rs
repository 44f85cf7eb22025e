//! The compressed cache engine.
#![forbid(unsafe_code)]

pub mod codec;
pub mod volume;
