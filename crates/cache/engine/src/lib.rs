//! The engine of a transparent, compressed SSD cache for block devices.
//!
//! A [`volume::Volume`] is what front ends serve. [`router`] splits its requests by stripe over shards; a
//! [`shard`] looks blocks up in its [`index`], packs them with a codec of [`flaz_codec`] into extents, and keeps those in two
//! rings of regions on the cache device, whose bytes [`format`] describes. [`policy`] decides what enters and what
//! stays. [`cache`] creates, opens and stops a cache as a whole.
//!
//! No clock, thread, file or global randomness in here: everything comes in through the traits of
//! `flaz_device`, so the same code runs on io_uring and in a deterministic simulation.
#![forbid(unsafe_code)]

pub mod advise;
pub mod cache;
pub mod check;
pub mod choice;
pub mod fingerprint;
pub mod format;
pub mod host_record;
pub mod index;
pub mod index_memory;
pub mod planted;
pub mod policy;
pub mod router;
pub mod settings;
pub mod shard;
pub mod shared_budget;
pub mod stats;
pub mod units;
pub mod volume;
pub mod write_budget;
