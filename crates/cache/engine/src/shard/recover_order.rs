//! The extents of all regions in the order of their sequences, with the records of few regions in memory.
//!
//! Regions are added in the order of their generations. A region gets its generation from the sequence counter when it is opened, so its
//! extents have higher sequences (`region_reader` refuses others). An extent below the generation of the next region is therefore older
//! than all extents still to come. Both rings fill at the same time: a region that stays open for long is in memory beside each region
//! of the other ring in turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use super::region_reader::RegionContents;
use crate::planted::{PlantedBug, planted};
use crate::units::Sequence;

/// An extent whose turn it is.
pub(super) struct Next {
    /// Number of its region.
    pub(super) region: u32,
    pub(super) contents: Rc<RegionContents>,
    /// Number of the extent in the region, and of its first record.
    pub(super) extent: usize,
    pub(super) first: usize,
}

/// A region with extents that have not had their turn.
struct Waiting {
    number: u32,
    contents: Rc<RegionContents>,
    /// The next extent, and its first record.
    extent: usize,
    first: usize,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Merge {
    waiting: Vec<Option<Waiting>>,
    /// Sequence of the next extent of each of them.
    order: BinaryHeap<Reverse<(Sequence, usize)>>,
}

impl Merge {
    /// Adds a region, younger than all before.
    pub(super) fn add(&mut self, number: u32, contents: Rc<RegionContents>) {
        let Some(first) = contents.extents.first() else {
            return;
        };
        let waiting = Some(Waiting {
            number,
            extent: 0,
            first: 0,
            contents: Rc::clone(&contents),
        });
        let place = match self.waiting.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                self.waiting.push(None);
                self.waiting.len() - 1
            }
        };
        self.waiting[place] = waiting;
        self.order.push(Reverse((key(first.sequence), place)));
    }

    /// The next extent, if it comes before a region of generation `next`. `None`: no region follows.
    pub(super) fn next_before(&mut self, next: Option<Sequence>) -> Option<Next> {
        let Reverse((sequence, place)) = *self.order.peek()?;
        if next.is_some_and(|next| sequence >= key_of_region(next)) {
            return None;
        }
        self.order.pop();
        let waiting = self.waiting[place].as_mut().expect("it is in the order");
        let Waiting {
            number,
            extent,
            first,
            ..
        } = *waiting;
        let contents = Rc::clone(&waiting.contents);
        waiting.first += usize::from(contents.extents[extent].record_count);
        waiting.extent += 1;
        match contents.extents.get(extent + 1) {
            Some(then) => self.order.push(Reverse((key(then.sequence), place))),
            None => self.waiting[place] = None,
        }
        Some(Next {
            region: number,
            contents,
            extent,
            first,
        })
    }
}

fn key(sequence: Sequence) -> Sequence {
    match planted(PlantedBug::RecordsOutOfOrder) {
        true => Sequence(u64::MAX - sequence.0),
        false => sequence,
    }
}

/// No extent comes before one that is added later, if they are out of order.
fn key_of_region(generation: Sequence) -> Sequence {
    match planted(PlantedBug::RecordsOutOfOrder) {
        true => Sequence(0),
        false => generation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::summary::SummaryExtent;
    use crate::units::Epoch;

    fn region(sequences: &[u64]) -> Rc<RegionContents> {
        let extent = |sequence: &u64| SummaryExtent {
            offset: 0,
            len: 512,
            sequence: Sequence(*sequence),
            epoch: Epoch(1),
            record_count: 2,
            header_bytes: 128,
        };
        Rc::new(RegionContents {
            extents: sequences.iter().map(extent).collect(),
            used: 512,
            ..RegionContents::default()
        })
    }

    /// A region of main is open for long, and several of probation meanwhile.
    #[test]
    fn extents_come_in_the_order_of_their_sequences() {
        let mut merge = Merge::default();
        let regions = [
            (1, vec![2, 4, 30, 55]),
            (3, vec![5, 6, 7]),
            (8, vec![9, 31, 32]),
            (33, vec![]),
            (34, vec![35, 54, 56]),
        ];
        let (mut order, mut most) = (Vec::new(), 0);
        for (at, (_, sequences)) in regions.iter().enumerate() {
            merge.add(at as u32, region(sequences));
            most = most.max(merge.waiting.iter().flatten().count());
            let next = regions.get(at + 1).map(|(generation, _)| Sequence(*generation));
            while let Some(next) = merge.next_before(next) {
                assert_eq!(next.first, 2 * next.extent);
                order.push(next.contents.extents[next.extent].sequence.0);
            }
        }
        let mut expected: Vec<u64> = regions.into_iter().flat_map(|(_, sequences)| sequences).collect();
        expected.sort_unstable();
        assert_eq!((order, most), (expected, 2));
        assert!(merge.waiting.iter().all(Option::is_none));
    }
}
