//! Which blocks are cached, and which stay: admission and reclaim.
//!
//! The engine keeps a shard's blocks in two rings of regions and asks a [`Policy`] three things: may this block
//! enter, and where ([`Policy::admit`]); which ring gives up its oldest region ([`Policy::victim`]); and what
//! becomes of each block of that region ([`Policy::reclaim`]). A policy sees no bytes, no addresses and no devices,
//! and is owned by one shard. Adding one is one file and a line in [`PolicyKind`].
//!
//! Invariants every policy keeps, for the engine relies on them:
//! - A block that is kept goes to [`Ring::Main`], so a reclaim needs room in one ring only.
//! - However hot the cache is, at least one of eight reclaimed blocks is dropped in the long run (see `reinsertion`),
//!   so reclaiming ends.
//! - Memory that grows with the cache is below 1.55 bytes a cached block.
//! - Blocks of either ring can be reclaimed, whichever policy put them there: the policy may change between two
//!   openings of a cache.

mod allowance;
mod fifo;
mod ghost;
mod reinsertion;
mod s3_fifo;
mod second_touch;
mod sequential;

use std::fmt;

pub use allowance::Allowance;
pub use fifo::Fifo;
pub use ghost::{FALSE_POSITIVES_MAX, Ghost};
pub use s3_fifo::S3Fifo;
pub use second_touch::SecondTouch;
pub use sequential::{STREAMS_MAX, SequentialDetector};

use crate::choice::choice;

/// The largest number of uses that is counted for a cached block.
pub const HITS_MAX: u8 = 3;

/// What it costs to store a block again, in uses: 2 for a block that takes at least twice the mean, else 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price(u8);

impl Price {
    /// Of a block that takes the mean, or less.
    pub const USUAL: Price = Price(1);
    /// Of a block that takes twice the mean, or more.
    pub const DOUBLE: Price = Price(2);

    /// The price of a block that takes `bytes` of the cache device, among blocks that take `mean` bytes on average.
    #[must_use]
    pub fn of(bytes: u64, mean: u64) -> Price {
        if mean > 0 && bytes / mean >= 2 {
            Price::DOUBLE
        } else {
            Price::USUAL
        }
    }

    /// One use more, to write less.
    #[must_use]
    pub fn raised(self) -> Price {
        Price(self.0 + 1)
    }

    /// Whether so many uses pay it.
    #[must_use]
    pub fn is_paid_by(self, hits: u8) -> bool {
        hits >= self.0
    }
}

/// A [`Policy::window`] is at most the shard's regions divided by this.
pub const WINDOW_SHARE: u64 = 32;

/// One of the two rings of regions of a shard. The numbers are those on the cache device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ring {
    /// Blocks that are new.
    Probation = 0,
    /// Blocks that have been used again.
    Main = 1,
}

impl Ring {
    /// Both, in the order of their numbers.
    pub const ALL: [Ring; 2] = [Ring::Probation, Ring::Main];

    /// The ring of a number read from the cache device; `None` where there is none.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Ring> {
        match number {
            0 => Some(Ring::Probation),
            1 => Some(Ring::Main),
            _ => None,
        }
    }

    /// The number on the cache device.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// For arrays with an element for each ring.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.number())
    }

    /// The other one.
    #[must_use]
    pub fn other(self) -> Ring {
        match self {
            Ring::Probation => Ring::Main,
            Ring::Main => Ring::Probation,
        }
    }
}

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ring::Probation => "probation",
            Ring::Main => "main",
        })
    }
}

/// Whether a block may enter the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It enters this ring.
    To(Ring),
    /// It enters this ring, because the policy's ghost remembered it.
    Remembered(Ring),
    /// It stays outside.
    Refuse,
    /// It stays outside to save writes.
    OverBudget,
}

/// What becomes of a cached block whose region is reclaimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It leaves the cache.
    Drop,
    /// It is written again.
    Keep {
        /// To the open region of this ring.
        ring: Ring,
        /// Uses it starts with, 0 to [`HITS_MAX`].
        hits: u8,
    },
}

/// How large the rings of a shard are, in bytes of regions. Open regions count whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSizes {
    /// Regions of the probation ring.
    pub probation: u64,
    /// Regions of the main ring.
    pub main: u64,
    /// All regions of the shard, free ones as well.
    pub total: u64,
}

/// Decides what enters the cache and what stays. One a shard; see the module's text.
pub trait Policy: Send {
    /// A block that is not cached was read or written: may it enter, and where to?
    ///
    /// `key` is a well-mixed hash of the block, or of its group, see [`Policy::key`]. Ask once
    /// for each miss: a policy remembers that it was asked.
    fn admit(&mut self, key: u64) -> Admission;

    /// The same, to save writes: only a block that is remembered may enter. Without a memory, none may.
    fn admit_remembered(&mut self, _key: u64) -> Admission {
        Admission::OverBudget
    }

    /// A block that is not cached was read or written, and nothing may be stored: it may be remembered.
    fn refused(&mut self, _key: u64) {}

    /// The fate of a cached block whose region is reclaimed. `hits`: uses since it was stored, at most
    /// [`HITS_MAX`]; `price`: what it costs to store it again.
    fn reclaim(&mut self, ring: Ring, key: u64, hits: u8, price: Price) -> Fate;

    /// Which ring gives up its oldest region next. Where that ring has none but an open one, take the other.
    fn victim(&self, sizes: RingSizes) -> Ring;

    /// The length of the correlation window, in bytes: a read of a block does not count while probation has been given less than
    /// that since the block was stored there. At most a part of all regions: see [`WINDOW_SHARE`].
    fn window(&self, _sizes: RingSizes) -> u64 {
        0
    }

    /// The shard's regions hold at least so many blocks from now on: see [`PolicyKind::build`].
    fn capacity(&mut self, _blocks: u64) {}

    /// How many blocks the shard caches now. Bounds the policy's memory; to be called at the reclaim of each region.
    fn cached_blocks(&mut self, blocks: u64);

    /// Bounds the memory that the policy takes, for all its life, in a shard whose regions hold `blocks` blocks: before any other call.
    fn limit_memory(&mut self, _bytes: u64, _blocks: u64) {}

    /// The key by which the policy knows a block ([`block_key`]). With little memory, neighbours may share a key.
    fn key(&self, block: u64) -> u64 {
        block_key(block)
    }

    /// Memory the policy takes, in bytes.
    fn memory_bytes(&self) -> usize;

    /// Its name, as [`PolicyKind`] reads and prints it.
    fn name(&self) -> &'static str;
}

/// The policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PolicyKind {
    /// [`S3Fifo`]: the best hit ratio.
    #[default]
    S3Fifo,
    /// [`SecondTouch`]: the fewest writes to the SSD.
    SecondTouch,
    /// [`Fifo`]: the simplest; no block is written twice.
    Fifo,
}

choice!(PolicyKind, "policy", {
    S3Fifo => "s3-fifo",
    SecondTouch => "second-touch",
    Fifo => "fifo",
});

impl PolicyKind {
    /// The policy, for a shard whose regions hold at least `blocks` blocks: its capacity in bytes divided by 4 KiB. With blocks
    /// that compress it holds more; see [`Policy::cached_blocks`].
    #[must_use]
    pub fn build(self, blocks: u64) -> Box<dyn Policy> {
        match self {
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(blocks)),
            PolicyKind::SecondTouch => Box::new(SecondTouch::new(blocks)),
            PolicyKind::Fifo => Box::new(Fifo),
        }
    }
}

/// The key by which policies know a block: every bit of it depends on every bit of the block's number.
///
/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). It can be undone, so no two blocks share a key.
#[must_use]
pub fn block_key(block: u64) -> u64 {
    let mut key = block.wrapping_add(0x9e37_79b9_7f4a_7c15);
    key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

/// Policies with one ring leave probation to what another policy put there: it goes first.
fn single_ring_victim(sizes: RingSizes) -> Ring {
    if sizes.probation > 0 {
        Ring::Probation
    } else {
        Ring::Main
    }
}

#[cfg(test)]
mod tests;
