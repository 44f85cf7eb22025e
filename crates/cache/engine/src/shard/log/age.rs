//! How long ago a block entered probation: the bytes that probation was given since. And which regions of main are reclaimed next.
//!
//! A ring opens its regions in the order of their generations and fills each from start to end. So a location tells its age, and
//! the generations of the regions that probation opened last are all that must be noted.
//!
//! Invariants: the generations rise; no more are noted than a window can touch.

use std::collections::VecDeque;

use super::regions::Regions;
use crate::policy::{Ring, WINDOW_SHARE};
use crate::units::Sequence;

/// The regions that probation opened last.
#[derive(Debug, Default)]
pub(super) struct Newest {
    /// Their generations, oldest first. A region that was reclaimed since stays: what came after it is no younger for that.
    generations: VecDeque<Sequence>,
}

impl Newest {
    /// Those of an earlier opening, in any order. The shard has `regions` regions.
    pub(super) fn inherited(mut generations: Vec<Sequence>, regions: u32) -> Self {
        generations.sort_unstable();
        generations.dedup();
        let surplus = generations.len().saturating_sub(noted_max(regions));
        generations.drain(..surplus);
        // Not the memory that all of them took.
        let generations = generations.iter().copied().collect();
        Self { generations }
    }

    /// Probation opens a region.
    pub(super) fn opened(&mut self, generation: Sequence, regions: u32) {
        let last = self.generations.back();
        assert!(last.is_none_or(|last| *last < generation), "generations rise");
        while self.generations.len() >= noted_max(regions) {
            self.generations.pop_front();
        }
        self.generations.push_back(generation);
    }

    /// Number of regions that were opened after the one of this generation; `None`: more than are noted.
    pub(super) fn opened_after(&self, generation: Sequence) -> Option<u64> {
        // Most blocks in probation are older than all that is noted.
        if self.generations.front().is_none_or(|first| generation < *first) {
            return None;
        }
        let at = self.generations.binary_search(&generation).ok()?;
        Some((self.generations.len() - 1 - at) as u64)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.generations.capacity() * size_of::<Sequence>()
    }
}

/// One part in so many of the regions of main is the oldest one.
const OLDEST_SHARE: u32 = 4;

/// The oldest quarter of the full regions of main, and the region that is being reclaimed. Worked out again when the ring has changed.
#[derive(Debug, Default)]
pub(super) struct Oldest {
    /// The state of the ring: see [`Regions::oldest`].
    of: Option<(u32, u32)>,
    /// The generation of its youngest region.
    until: Option<Sequence>,
}

impl Oldest {
    /// Whether a region of main of this generation is one of them.
    pub(super) fn has(&mut self, regions: &Regions, generation: Sequence) -> bool {
        let now = regions.oldest(Ring::Main);
        if self.of.replace(now) != Some(now) {
            self.until = regions.oldest_until(Ring::Main, now.1.div_ceil(OLDEST_SHARE));
        }
        self.until.is_some_and(|until| generation <= until)
    }
}

/// Number of regions that the largest window touches: its own length, and a part of a region at each end.
fn noted_max(regions: u32) -> usize {
    (u64::from(regions) / WINDOW_SHARE + 2) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ages of the regions with these generations, in a shard of 64.
    fn ages(newest: &Newest, generations: &[u64]) -> Vec<Option<u64>> {
        let age = |&generation| newest.opened_after(Sequence(generation));
        generations.iter().map(age).collect()
    }

    #[test]
    fn a_region_is_as_old_as_those_opened_after_it() {
        let mut newest = Newest::default();
        assert_eq!(ages(&newest, &[0, 1]), [None, None]);
        for generation in [3, 7, 8, 20, 21, 30] {
            newest.opened(Sequence(generation), 64);
        }
        let expected = [None, None, Some(3), Some(2), Some(1), Some(0), None];
        assert_eq!(ages(&newest, &[3, 7, 8, 20, 21, 30, 31]), expected);
        assert_eq!(ages(&newest, &[9, 22]), [None, None], "regions of the other ring");
    }

    #[test]
    fn inherited_regions_have_the_ages_that_they_had() {
        let mut newest = Newest::default();
        let mut generations = Vec::new();
        for generation in (0..9).map(|n| Sequence(n * n)) {
            newest.opened(generation, 64);
            generations.insert(generations.len() / 2, generation);
        }
        let inherited = Newest::inherited(generations, 64);
        assert_eq!(inherited.generations, newest.generations);
        let twice = Newest::inherited(vec![Sequence(1), Sequence(2), Sequence(1)], 64);
        assert_eq!(ages(&twice, &[1, 2]), [Some(1), Some(0)]);
    }

    #[test]
    fn a_quarter_of_main_is_old() {
        let (mut regions, mut oldest) = (Regions::all_free(20), Oldest::default());
        let mut old = |regions: &Regions| -> Vec<u64> {
            let is_old = |generation: &u64| oldest.has(regions, Sequence(*generation));
            (0..20).filter(is_old).collect()
        };
        assert!(old(&regions).is_empty());
        for generation in 0..9 {
            let number = regions.take(Ring::Main, Sequence(generation), true);
            regions.finish(number.expect("free"));
        }
        let open = regions.take(Ring::Main, Sequence(9), true).expect("free");
        assert_eq!(old(&regions), [0, 1, 2]);
        let victim = regions.take_oldest(Ring::Main).expect("full");
        assert_eq!(old(&regions), [0, 1, 2], "two of eight, and the victim");
        regions.release(victim);
        regions.finish(open);
        assert_eq!(old(&regions)[1..], [1, 2, 3], "three of nine");
    }

    #[test]
    fn no_more_is_noted_than_a_window_touches() {
        for regions in [6, 64, 10_000] {
            let mut newest = Newest::default();
            for generation in 0..u64::from(2 * regions) {
                newest.opened(Sequence(generation), regions);
            }
            let noted = newest.generations.len() as u64;
            assert!(
                noted > u64::from(regions) / WINDOW_SHARE + 1,
                "{noted} of {regions}"
            );
            let bytes = newest.memory_bytes() as f64;
            // At least 32 blocks a region, so this is below 0.02 bytes a block.
            assert!(bytes <= f64::from(regions) * 0.6 + 64.0, "{bytes} for {regions}");
        }
    }
}
