//! Devices that fail: a test by name for each row of the fault table and for each ordering that the contract rests on.
//!
//! The crash simulation (`crash`) finds unexpected defects; these tests check one property each, on disks with exact
//! faults. `docs/testing.md` has the table of rows and the tests for each.
//!
//! | module | what fails |
//! |---|---|
//! | `world` | nothing: two disks, a host record, a cache, and blocks that identify the write they are from |
//! | `crashes` | the process or the power, at every event of a start, of a reclaim |
//! | `damage` | bits, locations of writes, parts of extents |
//! | `errors` | single writes and flushes of the cache device |
//! | `growth` | nothing: the origin grows |
//! | `full` | space: on the device, in the queues |
//! | `stalls` | a device stops responding, and recovers or does not |
//! | `origin` | the origin fails, disappears and returns |
//! | `origin_changed` | nothing: the origin is written without the cache while the cache is off |
//! | `cache_lost` | the cache device is absent, a different one, an older copy, or returns after a fence |
//! | `random` | both devices, at any time, then the process or the power |
//! | `resize` | the process or the power, at every event of a cache that grows or shrinks |
//! | `orderings` | nothing: the required order of events, and the state after a crash in between |
//! | `index_pages` | index pages on the cache device that are damaged, rolled back, or cannot be read or written |
//! | `planted` | nothing: the engine breaks orderings deliberately, and their tests must fail |
//! | `write_back` | the same rows and orderings in write-back |
//!
//! Every test runs in every mode of [`world::MODES`] in which its row makes sense.

mod cache_lost;
mod crashes;
mod damage;
mod errors;
pub mod flushes;
mod full;
mod growth;
#[cfg(feature = "planted-bugs")]
mod index_pages;
mod lifecycle;
mod orderings;
mod origin;
mod origin_changed;
#[cfg(feature = "planted-bugs")]
mod planted;
mod random;
mod region_reuse;
mod reopen;
mod resize;
mod stalls;
mod stops;
mod world;
mod write_back;
