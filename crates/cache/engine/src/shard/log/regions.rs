//! The regions of a shard: free ones, open ones, and the two rings of full ones.
//!
//! Invariants: a region is in exactly one of: free list, withheld, open in one ring, a ring, being reclaimed, its space being taken
//! or given back. Its live count is the number of index entries that point to it. A withheld region is free in the manifest; it is not
//! opened, because the cache device may have no space for it. The table takes 16 bytes a region, including the lists: small
//! caches have small regions, and the table counts as memory that grows with the cache.
//!
//! The table grows at its end. To shrink it, its last regions are evacuated and removed: see [`shrink`]. On a device that several
//! caches share, it gives back the space of some: see [`giving`].

mod giving;
mod shrink;

use crate::format::group::GROUP_BLOCKS_MAX;
use crate::format::layout::REGION_RECORDS_MAX;
use crate::policy::Ring;
use crate::units::Sequence;
use giving::Giving;
use shrink::Shrink;

/// Number of free regions reserved for reclaim, so that it can always move blocks.
pub(crate) const FREE_REGIONS_RESERVED: usize = 1;

/// The use of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionState {
    Free,
    /// Open, or its last writes are in flight.
    Open,
    /// In its ring.
    Full,
    Reclaiming,
}

/// One region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) state: RegionState,
    pub(crate) ring: Ring,
    /// Differs for each use of the region.
    pub(crate) generation: Sequence,
    /// Used bytes from the region's start: whole sectors.
    pub(crate) used: u32,
    /// Number of index entries that point here.
    pub(crate) live: u32,
}

impl Region {
    pub(crate) const FREE: Self = Self {
        state: RegionState::Free,
        ring: Ring::Probation,
        generation: Sequence(0),
        used: 0,
        live: 0,
    };
}

/// One region as stored in the table: its generation, and everything else in 64 bits.
///
/// ```text
/// 63     43 42   41 40  39     20 19      0
/// | next    | ring | state | live | sectors |
/// ```
#[derive(Clone, Copy, Debug)]
struct Packed {
    generation: Sequence,
    bits: u64,
}

const SECTOR: u32 = 512;
const COUNT_BITS: u32 = 20;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const LIVE_SHIFT: u32 = COUNT_BITS;
const STATE_SHIFT: u32 = 2 * COUNT_BITS;
const RING_SHIFT: u32 = STATE_SHIFT + 2;
const NEXT_SHIFT: u32 = RING_SHIFT + 1;
/// End of a list.
const NONE: u32 = (1 << (64 - NEXT_SHIFT)) - 1;

const _: () = assert!(crate::format::geometry::REGIONS_MAX < NONE);
const _: () = assert!(*crate::format::geometry::REGION_BYTES.end() / SECTOR as u64 <= COUNT_MASK);
// Each record can be that of a group.
const _: () = assert!(REGION_RECORDS_MAX * GROUP_BLOCKS_MAX <= COUNT_MASK as usize);

impl Packed {
    fn new(region: Region, next: u32) -> Self {
        let state = match region.state {
            RegionState::Free => 0,
            RegionState::Open => 1,
            RegionState::Full => 2,
            RegionState::Reclaiming => 3,
        };
        debug_assert!(region.used.is_multiple_of(SECTOR));
        debug_assert!(u64::from(region.live) <= COUNT_MASK);
        Self {
            generation: region.generation,
            bits: u64::from(region.used / SECTOR)
                | u64::from(region.live) << LIVE_SHIFT
                | state << STATE_SHIFT
                | u64::from(region.ring.number()) << RING_SHIFT
                | u64::from(next) << NEXT_SHIFT,
        }
    }

    fn region(self) -> Region {
        Region {
            state: match self.bits >> STATE_SHIFT & 3 {
                0 => RegionState::Free,
                1 => RegionState::Open,
                2 => RegionState::Full,
                _ => RegionState::Reclaiming,
            },
            ring: self.ring(),
            generation: self.generation,
            used: (self.bits & COUNT_MASK) as u32 * SECTOR,
            live: (self.bits >> LIVE_SHIFT & COUNT_MASK) as u32,
        }
    }

    fn ring(self) -> Ring {
        Ring::from_number((self.bits >> RING_SHIFT & 1) as u8).expect("a bit")
    }

    fn next(self) -> u32 {
        (self.bits >> NEXT_SHIFT) as u32
    }
}

/// First in, first out; linked through the table.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        len: 0,
    };
}

/// A list that a region can be in.
#[derive(Clone, Copy, Debug)]
enum In {
    Free,
    Withheld,
    /// Free, but to be removed.
    Spare,
    /// Withheld, and to be removed.
    Apart,
    Ring(Ring),
}

/// All regions of a shard.
#[derive(Debug)]
pub(crate) struct Regions {
    table: Box<[Packed]>,
    free: List,
    /// Free regions whose space is not allocated.
    withheld: List,
    /// Free regions that are to be removed. Empty unless the table shrinks.
    spare: List,
    /// Withheld regions that are to be removed. Empty unless the table shrinks.
    apart: List,
    /// How many regions shall remain; `None`: all.
    remaining: Option<u32>,
    /// The others are being given up.
    shrink: Option<Shrink>,
    /// Regions whose space is being allocated or given back: they are in no list.
    moving: u32,
    /// The space of some regions is being given back.
    giving: Option<Giving>,
    /// Full regions, oldest first, by ring number.
    rings: [List; 2],
    /// Regions that are not free, by ring number.
    taken: [u32; 2],
    /// Regions with reads in flight: they must not be discarded.
    pins: Vec<(u32, u32)>,
}

impl Regions {
    pub(crate) fn all_free(count: u32) -> Self {
        let mut regions = Self {
            table: vec![Packed::new(Region::FREE, NONE); count as usize].into_boxed_slice(),
            free: List::EMPTY,
            withheld: List::EMPTY,
            spare: List::EMPTY,
            apart: List::EMPTY,
            remaining: None,
            shrink: None,
            moving: 0,
            giving: None,
            rings: [List::EMPTY; 2],
            taken: [0; 2],
            pins: Vec::new(),
        };
        for number in 0..count {
            regions.push_free(number);
        }
        regions
    }

    /// Regions with the given contents; the full ones are put in their rings by [`Regions::enter_ring`], in order.
    pub(crate) fn from_table(table: &[Region]) -> Self {
        let mut regions = Self {
            table: table.iter().map(|region| Packed::new(*region, NONE)).collect(),
            ..Self::all_free(0)
        };
        for (number, region) in table.iter().enumerate() {
            if region.state == RegionState::Free {
                regions.push_free(number as u32);
            } else {
                regions.taken[region.ring.index()] += 1;
            }
        }
        regions
    }

    /// Number of regions.
    pub(crate) fn len(&self) -> u32 {
        self.table.len() as u32
    }

    /// Region `number`, if there is one.
    pub(crate) fn get(&self, number: u32) -> Option<Region> {
        self.table.get(number as usize).map(|packed| packed.region())
    }

    /// Region `number`, which must exist.
    pub(crate) fn at(&self, number: u32) -> Region {
        self.table[number as usize].region()
    }

    pub(crate) fn ring_of(&self, number: u32) -> Ring {
        self.table[number as usize].ring()
    }

    pub(crate) fn generation_of(&self, number: u32) -> Sequence {
        self.table[number as usize].generation
    }

    /// Every region, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Region> {
        self.table.iter().map(|packed| packed.region())
    }

    fn update(&mut self, number: u32, change: impl FnOnce(&mut Region)) {
        let packed = &mut self.table[number as usize];
        let mut region = packed.region();
        change(&mut region);
        *packed = Packed::new(region, packed.next());
    }

    fn set_next(&mut self, number: u32, next: u32) {
        let packed = &mut self.table[number as usize];
        *packed = Packed::new(packed.region(), next);
    }

    /// Adjusts the number of index entries of a region.
    ///
    /// # Panics
    /// When the number becomes negative.
    pub(crate) fn count_live(&mut self, number: u32, by: i32) {
        self.update(number, |region| {
            region.live = region
                .live
                .checked_add_signed(by)
                .expect("live entries of a region are counted in pairs");
        });
    }

    /// Sets the number of index entries of a region to 0. Returns it.
    pub(crate) fn retire_live(&mut self, number: u32) -> u32 {
        let live = self.at(number).live;
        self.update(number, |region| region.live = 0);
        live
    }

    pub(crate) fn add_used(&mut self, number: u32, bytes: u32) {
        assert_eq!(self.at(number).state, RegionState::Open, "it is being filled");
        self.update(number, |region| region.used += bytes);
    }

    pub(crate) fn pin(&mut self, number: u32) {
        assert_ne!(
            self.at(number).state,
            RegionState::Free,
            "there is something to read"
        );
        add(&mut self.pins, number);
    }

    /// Removes a pin; true if it was the last one.
    pub(crate) fn unpin(&mut self, number: u32) -> bool {
        subtract(&mut self.pins, number)
    }

    pub(crate) fn pinned(&self, number: u32) -> bool {
        self.pins.iter().any(|&(other, _)| other == number)
    }

    fn list(&mut self, list: In) -> &mut List {
        match list {
            In::Free => &mut self.free,
            In::Withheld => &mut self.withheld,
            In::Spare => &mut self.spare,
            In::Apart => &mut self.apart,
            In::Ring(ring) => &mut self.rings[ring.index()],
        }
    }

    fn push(&mut self, to: In, number: u32) {
        self.set_next(number, NONE);
        let list = self.list(to);
        let tail = std::mem::replace(&mut list.tail, number);
        list.len += 1;
        if tail == NONE {
            list.head = number;
        } else {
            self.set_next(tail, number);
        }
    }

    fn pop_oldest(&mut self, from: In) -> Option<u32> {
        let number = self.list(from).head;
        let next = self.table.get(number as usize)?.next();
        let list = self.list(from);
        list.head = next;
        list.len -= 1;
        if next == NONE {
            list.tail = NONE;
        }
        Some(number)
    }

    fn push_free(&mut self, number: u32) {
        let list = if self.is_given_up(number) {
            In::Spare
        } else {
            In::Free
        };
        self.push(list, number);
    }

    /// Withholds the free regions without space. Withheld ones that have space become free.
    pub(crate) fn withhold(&mut self, has_space: impl Fn(u32) -> bool) {
        let unused: Vec<u32> = self.free().chain(self.walk(self.withheld.head)).collect();
        (self.free, self.withheld) = (List::EMPTY, List::EMPTY);
        for number in unused {
            match has_space(number) {
                true => self.push_free(number),
                false => self.push(In::Withheld, number),
            }
        }
    }

    /// Number of regions that have space.
    pub(crate) fn with_space(&self) -> u32 {
        self.len() - self.withheld.len - self.apart.len - self.moving
    }

    /// Number of withheld regions that may be allocated.
    pub(crate) fn withheld_len(&self) -> usize {
        self.withheld.len as usize
    }

    /// Takes the region that was withheld first.
    pub(crate) fn take_withheld(&mut self) -> Option<u32> {
        let number = self.pop_oldest(In::Withheld)?;
        self.moving += 1;
        Some(number)
    }

    /// The space of a region has been allocated: it becomes free.
    pub(crate) fn add_free(&mut self, number: u32) {
        self.end_move(number);
        self.push_free(number);
    }

    fn end_move(&mut self, number: u32) {
        assert_eq!(self.at(number).state, RegionState::Free);
        assert!(self.moving > 0, "its space was being allocated or given back");
        self.moving -= 1;
    }

    /// Withholds a region whose space could not be allocated, or was given back.
    pub(crate) fn withhold_again(&mut self, number: u32) {
        self.end_move(number);
        let list = if self.is_given_up(number) {
            In::Apart
        } else {
            In::Withheld
        };
        self.push(list, number);
    }

    /// Number of free regions, but for those that are given up.
    pub(crate) fn free_len(&self) -> usize {
        self.free.len as usize
    }

    /// The free regions, in the order in which they will be opened.
    pub(crate) fn free(&self) -> impl Iterator<Item = u32> + '_ {
        self.walk(self.free.head)
    }

    /// The full regions of `ring`, oldest first.
    #[cfg(test)]
    pub(crate) fn ring(&self, ring: Ring) -> impl Iterator<Item = u32> + '_ {
        self.walk(self.rings[ring.index()].head)
    }

    #[cfg(test)]
    pub(crate) fn ring_len(&self, ring: Ring) -> u32 {
        self.rings[ring.index()].len
    }

    /// The oldest full region of `ring` (meaningless without one), and their number: the ring has changed if these have.
    pub(crate) fn oldest(&self, ring: Ring) -> (u32, u32) {
        let list = &self.rings[ring.index()];
        (list.head, list.len)
    }

    /// The generation of the youngest of the `count` oldest full regions of `ring`.
    pub(crate) fn oldest_until(&self, ring: Ring, count: u32) -> Option<Sequence> {
        let oldest = self.walk(self.rings[ring.index()].head).take(count as usize);
        oldest.last().map(|number| self.generation_of(number))
    }

    fn walk(&self, head: u32) -> impl Iterator<Item = u32> + '_ {
        let known = |number: u32| (number != NONE).then_some(number);
        std::iter::successors(known(head), move |&number| {
            known(self.table[number as usize].next())
        })
    }

    /// Opens a free region. Only reclaim may take the last one.
    pub(crate) fn take(&mut self, ring: Ring, generation: Sequence, for_reclaim: bool) -> Option<u32> {
        let reserved = if for_reclaim { 0 } else { FREE_REGIONS_RESERVED };
        let number = if self.free_len() > reserved && (for_reclaim || self.spend_credit()) {
            self.pop_oldest(In::Free)?
        } else {
            self.take_given_up(for_reclaim)?
        };
        assert_eq!(self.at(number).state, RegionState::Free);
        self.update(number, |region| {
            *region = Region {
                state: RegionState::Open,
                ring,
                generation,
                ..Region::FREE
            };
        });
        self.taken[ring.index()] += 1;
        Some(number)
    }

    /// A closed region enters its ring once it has no writes in flight.
    pub(crate) fn finish(&mut self, number: u32) {
        assert_eq!(self.at(number).state, RegionState::Open);
        self.update(number, |region| region.state = RegionState::Full);
        self.enter_ring(number);
    }

    /// Makes a full region the youngest of its ring.
    pub(crate) fn enter_ring(&mut self, number: u32) {
        let region = self.at(number);
        assert_eq!(region.state, RegionState::Full);
        self.push(In::Ring(region.ring), number);
        self.note_full(number, 1);
    }

    /// The oldest region of `ring`, for reclaim.
    pub(crate) fn take_oldest(&mut self, ring: Ring) -> Option<u32> {
        let number = self.pop_oldest(In::Ring(ring))?;
        assert_eq!(self.at(number).state, RegionState::Full);
        self.note_full(number, -1);
        self.note_judged();
        self.update(number, |region| region.state = RegionState::Reclaiming);
        Some(number)
    }

    /// Puts a region that could not be reclaimed back as the oldest of its ring.
    pub(crate) fn put_back(&mut self, number: u32) {
        let ring = self.ring_of(number);
        self.update(number, |region| {
            assert_eq!(region.state, RegionState::Reclaiming);
            region.state = RegionState::Full;
        });
        let head = self.rings[ring.index()].head;
        self.set_next(number, head);
        let list = self.list(In::Ring(ring));
        list.head = number;
        list.len += 1;
        if head == NONE {
            list.tail = number;
        }
        self.note_full(number, 1);
    }

    /// A reclaimed region becomes free.
    pub(crate) fn release(&mut self, number: u32) {
        let region = self.at(number);
        assert_eq!(region.state, RegionState::Reclaiming);
        let in_use = region.live > 0 || self.pinned(number);
        assert!(!in_use, "region {number} is still in use");
        self.update(number, |region| *region = Region::FREE);
        self.taken[region.ring.index()] -= 1;
        self.push_free(number);
        self.note_released(number);
        self.earn_credit();
    }

    /// Number of regions of `ring`, including the open one.
    pub(crate) fn count(&self, ring: Ring) -> u64 {
        u64::from(self.taken[ring.index()])
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val::<[Packed]>(&self.table)
    }
}

/// Adds one to the count of `number`. A linear search is faster than a map for so few.
fn add(counts: &mut Vec<(u32, u32)>, number: u32) {
    match counts.iter_mut().find(|(other, _)| *other == number) {
        Some((_, count)) => *count += 1,
        None => counts.push((number, 1)),
    }
}

/// Subtracts one; true if none is left.
fn subtract(counts: &mut Vec<(u32, u32)>, number: u32) -> bool {
    let at = counts
        .iter()
        .position(|&(other, _)| other == number)
        .expect("counted in pairs");
    counts[at].1 -= 1;
    let last = counts[at].1 == 0;
    if last {
        counts.swap_remove(at);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_region_is_what_went_in() {
        for state in [
            RegionState::Free,
            RegionState::Open,
            RegionState::Full,
            RegionState::Reclaiming,
        ] {
            for ring in Ring::ALL {
                let region = Region {
                    state,
                    ring,
                    generation: Sequence(u64::MAX - 7),
                    used: 256 << 20,
                    live: 1 << 19,
                };
                let packed = Packed::new(region, NONE - 1);
                assert_eq!((packed.region(), packed.next()), (region, NONE - 1));
            }
        }
        assert_eq!(size_of::<Packed>(), 16);
    }

    #[test]
    fn regions_go_round_in_order() {
        let mut regions = Regions::all_free(5);
        let taken: Vec<u32> = (0..4)
            .map(|n| regions.take(Ring::Main, Sequence(n), false).expect("free"))
            .collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        assert_eq!(
            regions.take(Ring::Main, Sequence(9), false),
            None,
            "one is reserved"
        );
        for number in [2, 0, 3] {
            regions.finish(number);
        }
        assert_eq!(regions.ring(Ring::Main).collect::<Vec<_>>(), [2, 0, 3]);
        assert_eq!(regions.take_oldest(Ring::Main), Some(2));
        assert_eq!(regions.count(Ring::Main), 4);
        regions.release(2);
        assert_eq!(regions.free().collect::<Vec<_>>(), [4, 2]);
        assert_eq!((regions.count(Ring::Main), regions.ring_len(Ring::Main)), (3, 2));
        assert_eq!(regions.take_oldest(Ring::Probation), None);
    }

    #[test]
    fn withheld_regions_are_not_opened() {
        let mut regions = Regions::all_free(5);
        regions.withhold(|number| number < 2);
        assert_eq!((regions.free_len(), regions.withheld_len()), (2, 3));
        assert_eq!(regions.take(Ring::Main, Sequence(1), true), Some(0));
        assert_eq!(regions.take(Ring::Main, Sequence(2), true), Some(1));
        assert_eq!(regions.take(Ring::Main, Sequence(3), true), None);
        assert_eq!(regions.take_withheld(), Some(2));
        regions.withhold_again(2);
        assert_eq!(regions.take_withheld(), Some(3));
        regions.add_free(3);
        assert_eq!(regions.take(Ring::Main, Sequence(3), true), Some(3));
        assert_eq!(
            [regions.take_withheld(), regions.take_withheld()],
            [Some(4), Some(2)]
        );
        assert_eq!(regions.take_withheld(), None);
    }

    #[test]
    #[should_panic(expected = "still in use")]
    fn a_pinned_region_is_not_released() {
        let mut regions = Regions::all_free(3);
        let number = regions.take(Ring::Main, Sequence(1), false).expect("free");
        regions.finish(number);
        regions.take_oldest(Ring::Main);
        regions.pin(number);
        regions.release(number);
    }
}
