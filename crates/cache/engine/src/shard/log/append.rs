//! What the log takes: fragments, blocks of equal bytes, and records without contents.

use flaz_codec::CodecId;

use super::lsn::Lsn;
use crate::format::extent::{FragmentHeader, FragmentIdentity, fragment_bytes};
use crate::index::Entry;

/// Who appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Class {
    /// Clients, admission and the writeback worker: they wait for room.
    Client,
    /// Reclaim, which may take the reserved region and queue twice as many writes.
    Reclaim,
}

/// What came of an append.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Appended {
    /// The index entry (meaningless for a record without contents).
    pub(in crate::shard) entry: Entry,
    /// The extent that the record is in.
    pub(in crate::shard) lsn: Lsn,
}

/// What is appended.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) enum Append<'a> {
    /// A fragment of freshly packed bytes: `plain_crc` is the CRC-32C of the 4096 bytes.
    Packed {
        codec: CodecId,
        stored: &'a [u8],
        plain_crc: u32,
        dirty: bool,
    },
    /// A fragment that moves here: header and stored bytes as they were, and what it was.
    Moved {
        header: FragmentHeader,
        stored: &'a [u8],
        from: FragmentIdentity,
        dirty: bool,
    },
    /// A block of equal bytes.
    SameFilled { value: u8, dirty: bool },
    /// The block is no longer cached.
    Tombstone,
    /// The origin has what the latest record of the block says.
    Cleaned,
}

impl Append<'_> {
    /// A dirty block whose contents are lost: a fragment that no decoder takes, so that every read of the block fails.
    pub(in crate::shard) const LOST: Self = Self::Packed {
        codec: CodecId::LOST,
        stored: &[0],
        plain_crc: 0,
        dirty: true,
    };

    pub(super) fn is_dirty(&self) -> bool {
        match *self {
            Self::Packed { dirty, .. } | Self::Moved { dirty, .. } | Self::SameFilled { dirty, .. } => dirty,
            Self::Tombstone | Self::Cleaned => false,
        }
    }

    pub(super) fn fragment_bytes(&self) -> usize {
        match self {
            Self::Packed { stored, .. } | Self::Moved { stored, .. } => fragment_bytes(stored.len()),
            Self::SameFilled { .. } | Self::Tombstone | Self::Cleaned => 0,
        }
    }
}
