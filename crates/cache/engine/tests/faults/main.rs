//! Devices that fail: a test by name for each row of the fault table and for each ordering that the contract rests on.
//!
//! The simulation of crashes (`tests/crash`) finds what nobody thought of; these tests say one thing each, on disks that
//! fail exactly where they are told to. `docs/testing.md` has the table of rows and the tests for each.
//!
//! | module | what fails |
//! |---|---|
//! | `world`, `host` | nothing: two disks, a witness, a cache, and blocks that say which write they are from |
//! | `crashes` | the process or the power, at every event of a start, of a reclaim |
//! | `damage` | bits, places of writes, parts of extents |
//! | `errors` | single writes and flushes of the cache device |
//! | `full` | room: on the device, in the queues |
//! | `stalls` | a device stops answering, and comes back or does not |
//! | `origin` | the origin fails, goes and comes back |
//! | `changed` | nothing: somebody writes to the origin past the cache while it is off |
//! | `lost` | the cache device is away, another one, an older one, back after it was given up |
//! | `random` | both devices, at any time, then the process or the power |
//! | `orderings` | nothing: what must come before what, and what a crash in between leaves |
//! | `seen` | nothing: the engine breaks orderings on purpose, and their tests must fail |
//! | `back` | the same rows and orderings in write-back |
//!
//! Every test runs in every mode of [`world::MODES`] in which its row makes sense.

mod back;
mod changed;
mod crashes;
mod damage;
mod errors;
mod flushes;
mod full;
#[path = "../support/host.rs"]
mod host;
mod lives;
mod lost;
mod orderings;
mod origin;
mod random;
mod refills;
#[cfg(feature = "planted-bugs")]
mod seen;
mod stalls;
mod stops;
mod world;
