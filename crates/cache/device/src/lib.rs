//! The interface below the engine: traits for devices, time and tasks, and the buffer that they exchange.
//!
//! The engine depends on this crate alone, so the same engine code runs on `flaz-runtime` (io_uring, files, threads) in
//! production and on `flaz-sim` (simulated disks, a seeded executor) in tests. Nothing here makes a system call.
//!
//! | module | contents |
//! |---|---|
//! | [`buf`] | aligned, pooled I/O buffers |
//! | [`device`] | the [`Device`] trait and its error |
//! | [`deadline`] | devices with a time limit |
//! | [`mod@env`] | the [`Env`] trait: time, tasks, computing on other cores |
//! | [`local`] | synchronisation inside one thread |

#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "aligned memory with a pool of its own")]
pub mod buf;
pub mod deadline;
pub mod device;
pub mod env;
pub mod local;

pub use buf::IoBuf;
pub use device::{Device, DeviceError, DeviceOp};
pub use env::{Env, Load, Nanos, Priority, compute_timed};
