//! Requests for the volume, and their share of the limits while they are in flight.

use flaz_engine::router::PIECES_MAX;
use flaz_engine::volume::{STRIPE_BYTES, Segments};

use crate::limits::{PAYLOAD_BYTES_MAX, STATUS_EXTENTS_MAX};
use crate::request::Command;

/// Maximum share of the byte limit that a request without data takes: the stripes that the router processes at a time.
const RANGE_WEIGHT_BYTES_MAX: usize = PIECES_MAX * STRIPE_BYTES as usize;

// No request counts for more than a payload, so that each fits the limit of a connection.
const _: () = assert!(RANGE_WEIGHT_BYTES_MAX <= PAYLOAD_BYTES_MAX as usize);
const _: () = assert!(STATUS_EXTENTS_MAX * 8 <= PAYLOAD_BYTES_MAX as usize);

/// A request for the volume.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) command: Command,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
    /// Data of a write, cut as the volume requires.
    pub(super) data: Segments,
}

impl Job {
    /// Bytes for which the job counts while it is in flight.
    pub(super) fn weight_bytes(command: Command, len: u32) -> usize {
        match command {
            Command::Read | Command::Write { .. } => len as usize,
            Command::BlockStatus { .. } => status_extents_max(command) * 8,
            // The volume processes only some stripes of such a range at a time. A trim of dirty blocks writes zeroes,
            // which need buffers.
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

/// The share of the limits that a request takes while it is in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weight {
    pub(super) requests: usize,
    pub(super) bytes: usize,
}
