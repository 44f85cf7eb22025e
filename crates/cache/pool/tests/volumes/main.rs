//! Caches of several volumes on one device.
//!
//! | module | contents |
//! |---|---|
//! | `sectors` | of the crash simulation of the engine: contents that identify the write they are from |
//! | `world` | disks, a pool, and the caches of its volumes |
//! | `sharing` | chunks move from one volume to another |

#[path = "../../../engine/tests/crash/sectors.rs"]
mod sectors;
mod sharing;
mod world;
