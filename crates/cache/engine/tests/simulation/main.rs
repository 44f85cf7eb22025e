//! The engine on simulated devices, in virtual time.
//!
//! One program, because each test program compiles the engine for its devices again, in about a minute. For the same
//! reason all tests open caches on devices of one type, [`platform::AnyDevice`].
//!
//! | module | contents |
//! |---|---|
//! | [`crash`] | crashes at every moment of random workloads |
//! | [`faults`] | devices that fail: a test for each row of the fault table and for each ordering |
//! | [`model`] | random operations against a model |
//! | [`whole_cache`] | format, hostile images, memory, full disks, warm starts |
//! | [`writeback`] | write-back over time |
//! | [`host`] | a host that keeps the records of a cache |
//! | [`platform`] | the devices below a cache |

mod crash;
mod faults;
mod host;
mod model;
mod platform;
mod whole_cache;
mod writeback;
