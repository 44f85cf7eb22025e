//! The seam below the engine: devices, time and tasks as traits, and the buffer that travels through them.
//!
//! The engine depends on this crate alone, so the same engine code runs on `flaz-runtime` (io_uring, files, threads) in
//! production and on `flaz-sim` (simulated disks, a seeded executor) in tests. Nothing here makes a system call.
//!
//! | module | what it holds |
//! |---|---|
//! | [`buf`] | aligned, pooled I/O buffers |
//! | [`device`] | the [`Device`] trait and its error |
//! | [`deadline`] | devices that must answer in time |
//! | [`mod@env`] | the [`Env`] trait: time, tasks, computing on other cores |
//! | [`local`] | waiting inside one thread |

#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "aligned memory with a pool of its own")]
pub mod buf;
pub mod deadline;
pub mod device;
pub mod env;
pub mod local;

pub use buf::IoBuf;
pub use device::{Device, DeviceError, DeviceOp};
pub use env::{Env, Nanos, Priority};
