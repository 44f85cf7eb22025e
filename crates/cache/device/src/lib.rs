//! What the engine stands on: buffers, devices, time, and the machinery that drives them.
//!
//! The engine sees only the traits of this crate ([`Device`], [`Env`]) and the buffer [`IoBuf`], so the
//! same engine code runs on io_uring in production and on simulated disks in a seeded executor in tests.
//!
//! | module | what it holds |
//! |---|---|
//! | [`buf`] | aligned, pooled I/O buffers |
//! | [`device`] | the [`Device`] trait and its error |
//! | [`deadline`] | devices that must answer in time |
//! | [`emulate`] | slow devices out of fast ones |
//! | [`mod@env`] | the [`Env`] trait: time, tasks, randomness, computing on other cores |
//! | [`mod@file`] | files and block devices on io_uring |
//! | [`rt`] | the production runtime: executor, sockets, queues between threads |
//! | [`local`] | waiting inside one thread |

pub mod buf;
pub mod deadline;
pub mod device;
pub mod emulate;
pub mod env;
pub mod file;
pub mod local;
pub mod rt;

pub use buf::IoBuf;
pub use device::{Device, DeviceError, DeviceOp};
pub use env::{Env, Nanos, Priority};
