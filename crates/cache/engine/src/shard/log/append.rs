//! The kinds of records of the log: fragments, same-filled blocks, and records without contents.

use flaz_codec::CodecId;

use super::lsn::Lsn;
use crate::format::extent::{FragmentHeader, FragmentIdentity, fragment_bytes};
use crate::format::group::Members;
use crate::index::Entry;
use crate::shard::fragment::checksums_bytes;

/// The source of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Class {
    /// Clients, admission and the writeback worker: they wait for space.
    Client,
    /// Reclaim, which may take the reserved region and queue twice as many writes.
    Reclaim,
}

/// The result of an append.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Appended {
    /// The index entry (meaningless for a record without contents).
    pub(in crate::shard) entry: Entry,
    /// The extent that the record is in.
    pub(in crate::shard) lsn: Lsn,
}

/// A record to append.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) enum Append<'a> {
    /// A fragment of freshly packed bytes: `plain_crc` is the CRC-32C of the 4096 bytes.
    Packed {
        codec: CodecId,
        stored: &'a [u8],
        plain_crc: u32,
        dirty: bool,
    },
    /// A moved fragment: header and stored bytes unchanged, and its old record.
    Moved {
        header: FragmentHeader,
        stored: &'a [u8],
        from: FragmentIdentity,
        dirty: bool,
    },
    /// Freshly packed blocks of an aligned four, clean: with the CRC-32C of each.
    Group {
        codec: CodecId,
        stream: &'a [u8],
        members: Members,
        plain_crcs: &'a [u32],
        /// Those that the record is about: the others have changed since.
        live: Members,
    },
    /// A moved group. `from`: of any of its blocks.
    MovedGroup {
        header: FragmentHeader,
        stored: &'a [u8],
        from: FragmentIdentity,
        /// Those that the record is about.
        live: Members,
    },
    /// A same-filled block.
    SameFilled { value: u8, dirty: bool },
    /// The block is no longer cached.
    Tombstone,
    /// The origin has the contents of the block's latest record.
    Cleaned,
}

impl Append<'_> {
    /// A dirty block whose contents are lost: a fragment that no decoder accepts, so that every read of the block fails.
    pub(in crate::shard) const LOST: Self = Self::Packed {
        codec: CodecId::LOST,
        stored: &[0],
        plain_crc: 0,
        dirty: true,
    };

    pub(super) fn is_dirty(&self) -> bool {
        match *self {
            Self::Packed { dirty, .. } | Self::Moved { dirty, .. } | Self::SameFilled { dirty, .. } => dirty,
            Self::Group { .. } | Self::MovedGroup { .. } | Self::Tombstone | Self::Cleaned => false,
        }
    }

    /// The dictionary that its fragment needs.
    pub(super) fn dictionary(&self) -> Option<u8> {
        let codec = match self {
            Self::Packed { codec, .. } | Self::Group { codec, .. } => *codec,
            Self::Moved { header, .. } | Self::MovedGroup { header, .. } => CodecId(header.codec),
            Self::SameFilled { .. } | Self::Tombstone | Self::Cleaned => return None,
        };
        codec.dictionary()
    }

    pub(super) fn is_group(&self) -> bool {
        matches!(self, Self::Group { .. } | Self::MovedGroup { .. })
    }

    pub(in crate::shard) fn fragment_bytes(&self) -> usize {
        match self {
            Self::Packed { stored, .. } | Self::Moved { stored, .. } | Self::MovedGroup { stored, .. } => {
                fragment_bytes(stored.len())
            }
            Self::Group {
                stream, plain_crcs, ..
            } => fragment_bytes(checksums_bytes(plain_crcs.len()) + stream.len()),
            Self::SameFilled { .. } | Self::Tombstone | Self::Cleaned => 0,
        }
    }
}
