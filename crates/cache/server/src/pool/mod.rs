//! A cache device that several volumes share, as the processes of this host use it. ([`flaz_pool`] lays it out.)
//!
//! | module | contents |
//! |---|---|
//! | [`place`] | where a cache lies: on a whole device or file, or in a volume's part of one |
//! | [`client`] | the thread that changes the pool |
//! | [`file_system`] | file systems that cannot be used |
//! | [`budget`] | credit from the write budget of all volumes |
//! | [`failures`] | failed flushes, told to all processes |
//! | [`member`] | the cache device of one volume, open and held |
//! | [`manage`] | making a shared device; adding, removing and listing volumes |
//! | [`shrink`] | a device that becomes smaller |
//!
//! One process serves one volume; commands change the pool while volumes are served. Locks of single bytes of the device keep them
//! apart, and end with the process and its requests in flight:
//!
//! | byte | who holds it |
//! |---|---|
//! | [`MEMBERS`] | all processes that use the pool, shared; a command that overwrites the device, alone |
//! | [`TABLE`] | the process that reads (shared) or changes (alone) the superblock and the table |
//! | [`RESIZE`] | the command that changes the size of the device |
//! | [`volume_byte`] | the process that uses a volume |
//! | [`request_byte`] | requests to a volume's part of the device, also those of a process that was killed |
//! | 0 | all these requests, and those to the table, shared; a process that overwrites the device waits for them |
//!
//! Invariants: a process changes the chunks of a volume only while it holds the volume. What a process knows of the table may be out
//! of date, but for the volume that it holds, until it takes [`TABLE`] and reads it again.

pub(crate) mod budget;
mod client;
mod failures;
mod file_system;
pub mod manage;
mod member;
pub mod place;
pub mod shrink;

pub(crate) use budget::Credit;
pub(crate) use client::{HostPool, PoolClient};
pub(crate) use member::{Member, Part, in_use, peek};
pub use place::Place;

/// The first of the bytes that are locked: beyond the end of any device.
const LOCKS: u64 = 1 << 62;
/// Held by all users of the pool.
pub(crate) const MEMBERS: u64 = LOCKS;
/// Held while the superblock and the table are read or changed.
pub(crate) const TABLE: u64 = LOCKS + 1;

/// Held by the command that changes the size: a shrink whose command has gone is called off.
pub(crate) const RESIZE: u64 = LOCKS + 2;

/// Held by the user of a volume.
pub(crate) fn volume_byte(number: u32) -> u64 {
    LOCKS + (1 << 33) + u64::from(number)
}

/// Held by requests to the part of a volume.
pub(crate) fn request_byte(number: u32) -> u64 {
    LOCKS + (1 << 34) + u64::from(number)
}
