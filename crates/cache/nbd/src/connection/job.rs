//! Requests for the volume, and what they count for while they are in flight.

use flaz_engine::router::PIECES_MAX;
use flaz_engine::volume::{STRIPE_BYTES, Segments};

use crate::limits::{PAYLOAD_BYTES_MAX, STATUS_EXTENTS_MAX};
use crate::request::Command;

/// What a request about a range weighs at most, in bytes: the stripes of it that the router has under way at a time.
const RANGE_WEIGHT_BYTES_MAX: usize = PIECES_MAX * STRIPE_BYTES as usize;

// No request weighs more than a payload, so that each fits the limit of a connection.
const _: () = assert!(RANGE_WEIGHT_BYTES_MAX <= PAYLOAD_BYTES_MAX as usize);
const _: () = assert!(STATUS_EXTENTS_MAX * 8 <= PAYLOAD_BYTES_MAX as usize);

/// A request for the volume.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) command: Command,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
    /// Data of a write, cut as the volume wants it.
    pub(super) data: Segments,
}

impl Job {
    /// Bytes that the job counts for while it is in flight.
    pub(super) fn weight_bytes(command: Command, len: u32) -> usize {
        match command {
            Command::Read | Command::Write { .. } => len as usize,
            Command::BlockStatus { .. } => status_extents_max(command) * 8,
            // The volume works on some stripes of such a range at a time. A trim over dirty blocks writes zeroes.
            Command::Cache | Command::Trim { .. } | Command::WriteZeroes { .. } => {
                (len as usize).min(RANGE_WEIGHT_BYTES_MAX)
            }
            Command::Flush | Command::Disconnect => 0,
        }
    }
}

pub(super) fn status_extents_max(command: Command) -> usize {
    if command == (Command::BlockStatus { one: true }) {
        1
    } else {
        STATUS_EXTENTS_MAX
    }
}

/// What a request counts for while it is in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weight {
    pub(super) requests: usize,
    pub(super) bytes: usize,
}
