//! One index entry: where a block's fragment lies, in 64 bits.
//!
//! ```text
//! 63..46  45     44     43..42  41    40..37     36..0
//! tag     moved  dirty  hits    same  sectors-1  location
//! ```
//! For a same-filled block, `location` is that of its extent (a multiple of 64 units) and the low six location bits with
//! two bits of `sectors` hold the value; the other two are 0. In a member of a group they are not: these two bits less one, and
//! the low three location bits, are the number of sectors less one, because groups begin at multiples of eight units. An entry of
//! a cached block is never zero: location 0 is an extent header, and blocks of the other two kinds have the bit *same* set.

use crate::format::extent::{FRAGMENT_HEADER_BYTES, Record, RecordKind};
use crate::format::group::{GROUP_ALIGN_BYTES, GROUP_SECTORS_MAX};
use crate::units::{Location, UNIT_BYTES};

pub(super) const TAG_BITS: u32 = 18;
pub(super) const TAG_SHIFT: u32 = 64 - TAG_BITS;
pub(super) const MOVED_BIT: u64 = 1 << 45;
const DIRTY_BIT: u64 = 1 << 44;
const HITS_SHIFT: u32 = 42;
const HITS_MASK: u64 = 3 << HITS_SHIFT;
const SAME_FILLED_BIT: u64 = 1 << 41;
const SECTORS_SHIFT: u32 = 37;
const LOCATION_MASK: u64 = (1 << SECTORS_SHIFT) - 1;
/// All bits that are the entry's own, not the table's.
pub(super) const VALUE_MASK: u64 = MOVED_BIT - 1;
/// Where the bytes are. Never all zero.
pub(super) const PLACE_MASK: u64 = SAME_FILLED_BIT | 0xf << SECTORS_SHIFT | LOCATION_MASK;
/// Extents start at multiples of this many units (512 bytes).
const EXTENT_UNITS: u64 = 64;
/// Groups start at multiples of this many units (64 bytes).
const GROUP_UNITS: u64 = GROUP_ALIGN_BYTES as u64 / UNIT_BYTES;
/// With *same*, and not 0: a member of a group.
const GROUP_SHIFT: u32 = SECTORS_SHIFT + 2;
const _: () = assert!(GROUP_SECTORS_MAX == 3 * GROUP_UNITS);

/// What the index says about a cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub(super) u64);

/// Where a cached block's bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A fragment that starts here and whose last byte is in the `sectors`-th 512-byte sector from the one it
    /// starts in.
    Fragment {
        /// Of the fragment's header.
        location: Location,
        /// 512-byte sectors it touches.
        sectors: u32,
    },
    /// Every byte has this value.
    SameFilled {
        /// Of the extent that has the record.
        extent: Location,
        /// The value.
        value: u8,
    },
}

impl Entry {
    /// An entry for a fragment of `bytes` bytes (header included) at `location`.
    ///
    /// # Panics
    /// If the location or the length is out of range.
    #[must_use]
    pub fn fragment(location: Location, bytes: usize) -> Self {
        let start = location.offset();
        let sectors = (start + bytes as u64).div_ceil(512) - start / 512;
        assert!(location <= Location::MAX && location.0 > 0 && (1..=16).contains(&sectors));
        Self(location.0 | (sectors - 1) << SECTORS_SHIFT)
    }

    /// An entry for a member of a group of `bytes` bytes (header included) at `location`.
    ///
    /// # Panics
    /// If the location or the length is out of range, or the location is not one of a group.
    #[must_use]
    pub fn group(location: Location, bytes: usize) -> Self {
        let start = location.offset();
        let sectors = (start + bytes as u64).div_ceil(512) - start / 512;
        assert!(location <= Location::MAX && location.0.is_multiple_of(GROUP_UNITS));
        assert!((1..=GROUP_SECTORS_MAX).contains(&sectors));
        let (high, low) = ((sectors - 1) / GROUP_UNITS + 1, (sectors - 1) % GROUP_UNITS);
        Self(SAME_FILLED_BIT | high << GROUP_SHIFT | location.0 | low)
    }

    /// Whether the block is stored together with others.
    #[must_use]
    pub fn is_group(self) -> bool {
        self.0 & SAME_FILLED_BIT != 0 && self.0 >> GROUP_SHIFT & 3 != 0
    }

    /// An entry for a block whose bytes all have `value`, recorded in `extent`.
    ///
    /// # Panics
    /// If the extent is out of range or not at a sector.
    #[must_use]
    pub fn same_filled(extent: Location, value: u8) -> Self {
        assert!(extent <= Location::MAX && extent.0.is_multiple_of(EXTENT_UNITS));
        let value = u64::from(value);
        Self(SAME_FILLED_BIT | extent.0 | (value & 0x3f) | (value >> 6) << SECTORS_SHIFT)
    }

    /// The entry of the blocks that a record is about, if it says that they are cached. Its extent is at `extent`, its fragment at
    /// `fragment`.
    #[must_use]
    pub fn of_record(record: Record, extent: Location, fragment: Location) -> Option<Self> {
        match record.kind {
            RecordKind::Fragment { stored, dirty } => {
                let bytes = FRAGMENT_HEADER_BYTES + usize::from(stored);
                Some(Self::fragment(fragment, bytes).with_dirty(dirty))
            }
            RecordKind::Group { stored, .. } => {
                let bytes = FRAGMENT_HEADER_BYTES + usize::from(stored);
                Some(Self::group(fragment, bytes))
            }
            RecordKind::SameFilled { value, dirty } => {
                Some(Self::same_filled(extent, value).with_dirty(dirty))
            }
            RecordKind::Tombstone | RecordKind::Cleaned => None,
        }
    }

    /// The entry with a hit counter of `hits` (0 to 3).
    #[must_use]
    pub fn with_hits(self, hits: u8) -> Self {
        Self(self.0 & !HITS_MASK | u64::from(hits.min(3)) << HITS_SHIFT)
    }

    /// The entry with its dirty bit set or cleared.
    #[must_use]
    pub fn with_dirty(self, dirty: bool) -> Self {
        Self(self.0 & !DIRTY_BIT | if dirty { DIRTY_BIT } else { 0 })
    }

    /// Uses since the block was stored, saturating at 3.
    #[must_use]
    pub fn hits(self) -> u8 {
        ((self.0 & HITS_MASK) >> HITS_SHIFT) as u8
    }

    /// Newer than the origin.
    #[must_use]
    pub fn dirty(self) -> bool {
        self.0 & DIRTY_BIT != 0
    }

    /// Where the bytes are.
    #[must_use]
    pub fn place(self) -> Place {
        let location = self.0 & LOCATION_MASK;
        let sectors = (self.0 >> SECTORS_SHIFT) & 0xf;
        if self.0 & SAME_FILLED_BIT == 0 {
            Place::Fragment {
                location: Location(location),
                sectors: sectors as u32 + 1,
            }
        } else if self.is_group() {
            let (high, low) = ((sectors >> 2) - 1, location % GROUP_UNITS);
            Place::Fragment {
                location: Location(location - low),
                sectors: (high * GROUP_UNITS + low) as u32 + 1,
            }
        } else {
            let value = (location & 0x3f) | (sectors & 3) << 6;
            Place::SameFilled {
                extent: Location(location & !0x3f),
                value: value as u8,
            }
        }
    }

    /// A location in the region that the entry lives in.
    #[must_use]
    pub fn location(self) -> Location {
        match self.place() {
            Place::Fragment { location, .. } => location,
            Place::SameFilled { extent, .. } => extent,
        }
    }

    /// The first unit of the sector in which the fragment ends; of a same-filled block, its extent.
    pub(super) fn last_sector_unit(self) -> u64 {
        match self.place() {
            Place::Fragment { location, sectors } => {
                (location.0 / EXTENT_UNITS + u64::from(sectors) - 1) * EXTENT_UNITS
            }
            Place::SameFilled { extent, .. } => extent.0,
        }
    }

    /// Whether both entries lie at the same place, whatever their counters.
    #[must_use]
    pub fn same_place(self, other: Self) -> bool {
        (self.0 ^ other.0) & PLACE_MASK == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_what_they_are_given() {
        for value in 0..=255 {
            let entry = Entry::same_filled(Location(64 * 12_345), value).with_hits(2);
            assert_eq!(
                entry.place(),
                Place::SameFilled {
                    extent: Location(64 * 12_345),
                    value
                }
            );
            assert_eq!(entry.hits(), 2);
        }
        assert_ne!(Entry::same_filled(Location(0), 0).0, 0);
        let entry = Entry::fragment(Location::MAX, 8).with_hits(9).with_dirty(true);
        assert_eq!(
            entry.place(),
            Place::Fragment {
                location: Location::MAX,
                sectors: 1
            }
        );
        assert_eq!((entry.hits(), entry.dirty()), (3, true));
        for sectors in 1..=GROUP_SECTORS_MAX {
            let bytes = sectors as usize * 512 - 448;
            let location = Location(64 * 99 + 56);
            let entry = Entry::group(location, bytes).with_hits(3);
            assert!(entry.is_group());
            let place = Place::Fragment {
                location,
                sectors: sectors as u32,
            };
            assert_eq!((entry.place(), entry.location()), (place, location));
        }
        assert!(
            !Entry::fragment(Location(8), 4104).is_group()
                && !Entry::same_filled(Location(0), 255).is_group()
        );
        // 4104 bytes from the last unit of a sector touch nine sectors.
        let Place::Fragment { sectors, .. } = Entry::fragment(Location(63), 4104).place() else {
            panic!()
        };
        assert_eq!(sectors, 9);
    }
}
