//! Regions that were freed while pages of a paged index still had entries in them.
//!
//! When a region is freed, all its blocks leave the index at once, but their entries stay in their pages until these are *checked*. The
//! retirements of regions are numbered. A page has the number of the last retirement at which it was checked, and a region that of its
//! last retirement: an entry is valid if its region was not retired since its page was checked.
//!
//! Invariants:
//! - The valid entries of a page are those of blocks that are cached. So each lookup compares the numbers.
//! - An entry is added only to a page that was checked at the last retirement: otherwise it would look like one of an earlier use of its
//!   region.
//! - A dirty block is never retired.
//! - The counts of a region are those of its valid entries. The members of a group are in one region, so they leave at once.
//!
//! No older version of a block appears again when an entry is dropped late: the page of a block has one entry of it, that of the newest
//! record, because each change of the block loads the page first. A region is retired when all that leaves it has been stored elsewhere,
//! and before anything in it is overwritten. Regions that are removed from a shard, and come back when it grows, keep their numbers here.

use super::entry::Entry;
use super::{Place, bytes_of};
use crate::units::Location;

/// More retirements than there can be.
const COUNT_MAX: u64 = 1 << 63;

/// What is known of a region.
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    /// The number of its last retirement.
    retired_at: u64,
    left: Left,
}

/// The valid entries in a region, as in [`super::Fragments`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// Blocks with a fragment.
    pub(super) blocks: u32,
    /// Bytes of these fragments.
    pub(super) bytes: u32,
    pub(super) dirty_blocks: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Retired {
    region_bytes: u64,
    /// By region, as far as entries were ever in one.
    regions: Vec<Region>,
    /// Number of retirements.
    count: u64,
}

impl Retired {
    /// For regions of so many bytes.
    pub(super) fn new(region_bytes: u64) -> Self {
        Self {
            region_bytes,
            regions: Vec::new(),
            count: 0,
        }
    }

    /// Number of retirements.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    fn region_of(&self, location: Location) -> usize {
        (location.offset() / self.region_bytes) as usize
    }

    /// Whether an entry at a location is valid, in a page that was `checked` at that retirement.
    pub(super) fn is_valid(&self, location: Location, checked: u64) -> bool {
        let region = self.regions.get(self.region_of(location));
        region.is_none_or(|region| region.retired_at <= checked)
    }

    fn left_mut(&mut self, entry: Entry) -> &mut Left {
        let region = self.region_of(entry.location());
        if region >= self.regions.len() {
            self.regions.resize(region + 1, Region::default());
        }
        &mut self.regions[region].left
    }

    /// Whether the region of an entry can have one more: the fragments that it has together are not twice as large as it is.
    pub(super) fn can_add(&self, entry: Entry) -> bool {
        let region = self.regions.get(self.region_of(entry.location()));
        let bytes = region.map_or(0, |region| u64::from(region.left.bytes)) + bytes_of(entry);
        bytes <= (2 * self.region_bytes).min(u32::MAX.into())
    }

    /// Counts an entry that was added. `counted`: its fragment already counts, for others.
    pub(super) fn add(&mut self, entry: Entry, counted: bool) {
        let left = self.left_mut(entry);
        left.blocks += u32::from(has_fragment(entry));
        left.bytes += if counted { 0 } else { bytes_of(entry) as u32 };
        left.dirty_blocks += u32::from(entry.dirty());
    }

    /// The opposite.
    pub(super) fn remove(&mut self, entry: Entry, counted: bool) {
        let left = self.left_mut(entry);
        left.blocks -= u32::from(has_fragment(entry));
        left.bytes -= if counted { 0 } else { bytes_of(entry) as u32 };
        left.dirty_blocks -= u32::from(entry.dirty());
    }

    /// A dirty block became clean.
    pub(super) fn clean(&mut self, entry: Entry) {
        self.left_mut(entry).dirty_blocks -= 1;
    }

    /// Number of dirty blocks in a region.
    pub(super) fn dirty_in(&self, region: u32) -> u32 {
        let region = self.regions.get(region as usize);
        region.map_or(0, |region| region.left.dirty_blocks)
    }

    /// A region is freed: its entries are not valid any more. Returns what was left in it.
    pub(super) fn retire(&mut self, region: u32) -> Left {
        self.count += 1;
        let count = self.count;
        let region = self.regions.get_mut(region as usize);
        region.map_or(Left::default(), |region| {
            region.retired_at = count;
            std::mem::take(&mut region.left)
        })
    }

    /// Number of regions that an image has.
    pub(super) fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Appends the numbers of retirements.
    pub(super) fn write_image(&self, out: &mut Vec<u8>) {
        for region in &self.regions {
            out.extend(region.retired_at.to_le_bytes());
        }
    }

    /// From the number of retirements, which is below 2^63, and that of the last one of each region. No entry is counted.
    ///
    /// # Errors
    /// They contradict each other; how, in words.
    pub(super) fn read_image(
        region_bytes: u64,
        count: u64,
        numbers: impl Iterator<Item = u64>,
    ) -> Result<Self, String> {
        if count >= COUNT_MAX {
            return Err(format!("{count} retirements"));
        }
        let mut this = Self::new(region_bytes);
        this.count = count;
        for retired_at in numbers {
            if retired_at > count {
                return Err(format!("retirement {retired_at} of {count}"));
            }
            this.regions.push(Region {
                retired_at,
                left: Left::default(),
            });
        }
        Ok(this)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.regions.capacity() * size_of::<Region>()
    }
}

fn has_fragment(entry: Entry) -> bool {
    matches!(entry.place(), Place::Fragment { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION_BYTES: u64 = 128 << 10;

    fn at(region: u64) -> Location {
        Location::at(region * REGION_BYTES + 512)
    }

    #[test]
    fn an_entry_is_valid_until_its_region_is_retired_after_the_check() {
        let mut retired = Retired::new(REGION_BYTES);
        for region in [1, 2] {
            retired.add(Entry::fragment(at(region), 100), false);
        }
        assert!(retired.is_valid(at(1), 0) && retired.is_valid(at(9), 0));
        retired.retire(1);
        retired.retire(2);
        let valid = |region, checked| retired.is_valid(at(region), checked);
        assert!(!valid(1, 0) && valid(1, 1) && valid(1, 2));
        assert!(!valid(2, 1) && valid(2, 2));
        assert!(valid(0, 0), "another region");
    }

    #[test]
    fn counts_of_a_region_are_of_what_is_valid() {
        let mut retired = Retired::new(REGION_BYTES);
        let (one, same) = (Entry::fragment(at(3), 1000), Entry::same_filled(Location(0), 7));
        retired.add(one, false);
        retired.add(one, true);
        retired.add(same.with_dirty(true), false);
        assert_eq!(
            (retired.dirty_in(0), retired.dirty_in(3), retired.dirty_in(9)),
            (1, 0, 0)
        );
        retired.clean(same.with_dirty(true));
        assert_eq!(retired.dirty_in(0), 0);
        retired.remove(one, true);
        let (left, bytes) = (retired.retire(3), bytes_of(one) as u32);
        assert_eq!((left.blocks, left.bytes, left.dirty_blocks), (1, bytes, 0));
        assert_eq!(retired.retire(3), Left::default());
        assert_eq!((retired.retire(1000), retired.count()), (Left::default(), 3));
    }
}
