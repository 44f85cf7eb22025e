//! One cache device, shared by the caches of several volumes.
//!
//! The device is divided into chunks of one region. A table says which volume has which chunk, and which part of the volume's own
//! cache lies there. So each volume has a cache device of its own ([`VolumeDevice`]), sparse and as large as the whole one, and its
//! cache knows nothing of the others: a failing origin, a damaged log or a detach concerns one volume. Chunks move from one volume
//! to another while both are served.
//!
//! | module | part |
//! |---|---|
//! | [`format`] | bytes of the superblock and of the table |
//! | [`budget`], `credit` | what all volumes may write, and changes of it |
//! | [`table`] | who owns each chunk, in memory |
//! | [`pool`], `reading`, [`chunks`] | opening, reading and changing a pool; the chunks of a volume |
//! | `shrink` | fewer chunks: those at the end are moved |
//! | [`device`] | the cache device of one volume |
//! | `gate` | requests to a part that moves wait |
//!
//! Invariants:
//! - A chunk has one owner at most. An owner is written to the table, stable, before the chunk is used, and it is stable that the
//!   chunk is free before the part of the volume that lay there gets another chunk. A shrink alone copies a part to another chunk:
//!   then both are in the table for a moment, and the lower one counts.
//! - Numbers of volumes are never used twice. A volume exists if the superblock lists it: chunks of other numbers are free. So a
//!   volume is added and removed by one write of the superblock.

pub mod budget;
pub mod chunks;
mod credit;
pub mod device;
pub mod error;
pub mod format;
mod gate;
pub mod planted;
pub mod pool;
mod reading;
mod shrink;
pub mod table;

pub use budget::{BudgetLeft, PoolBudget};
pub use device::{Chunks, VolumeDevice, VolumeMap};
pub use error::PoolError;
pub use format::{PoolLayout, PoolSuperblock, VolumeEntry};
pub use pool::{Pool, Tell, VolumeOptions};
