//! Groups: blocks of an aligned 16 KiB that are compressed together, as one fragment.

use super::extent::FRAGMENT_HEADER_BYTES;
use crate::units::{BlockNumber, LocalBlock};

/// Most blocks in a group: those of an aligned 16 KiB.
pub const GROUP_BLOCKS_MAX: usize = 4;
/// Groups begin at multiples of this in their extent.
pub const GROUP_ALIGN_BYTES: usize = 64;
/// Most stored bytes of a group, checksums included. With its header it touches at most [`GROUP_SECTORS_MAX`] sectors, which an
/// index entry can tell.
pub const GROUP_STORED_MAX: usize =
    GROUP_SECTORS_MAX as usize * 512 + GROUP_ALIGN_BYTES - 512 - FRAGMENT_HEADER_BYTES;
/// Most sectors of 512 bytes that a group touches.
pub const GROUP_SECTORS_MAX: u64 = 24;
/// Bytes of the checksum of a group's member.
pub const MEMBER_CHECKSUM_BYTES: usize = 4;

/// Which blocks of an aligned four a group has. At least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Members(u8);

impl Members {
    /// The members that bits 0 to 3 name. `None`: no bit is set, or another one.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<Self> {
        (1..=0xf).contains(&bits).then_some(Self(bits))
    }

    /// These blocks. `None`: there are none.
    pub(crate) fn of(blocks: impl Iterator<Item = LocalBlock>) -> Option<Self> {
        Self::from_bits(blocks.fold(0, |bits, block| bits | 1 << (block.0 % GROUP_BLOCKS_MAX as u64)))
    }

    /// Bit `n`: the block that is `n` after the first one of the four.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// How many there are.
    #[must_use]
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether all `others` are among them.
    #[must_use]
    pub fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// The blocks, in order, of the four that `any` of them is in.
    pub fn blocks(self, any: BlockNumber) -> impl Iterator<Item = BlockNumber> {
        let first = group_of(any);
        (0..GROUP_BLOCKS_MAX as u64)
            .filter(move |n| self.0 >> n & 1 == 1)
            .map(move |n| BlockNumber(first.0 + n))
    }

    /// How many members are before `block`, if it is a member.
    #[must_use]
    pub fn ordinal(self, block: BlockNumber) -> Option<usize> {
        let bit = 1 << (block.0 % GROUP_BLOCKS_MAX as u64);
        (self.0 & bit != 0).then(|| (self.0 & (bit - 1)).count_ones() as usize)
    }
}

/// The first block of the aligned four that a block is in.
#[must_use]
pub fn group_of(block: BlockNumber) -> BlockNumber {
    BlockNumber(block.0 / GROUP_BLOCKS_MAX as u64 * GROUP_BLOCKS_MAX as u64)
}
