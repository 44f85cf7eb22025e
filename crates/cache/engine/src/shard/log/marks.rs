//! The stable length of regions that were filled recently, and the length in the manifest (the mark).
//!
//! Invariants, for each region on the list: `marked_stable <= marked <= stable`. No length ever shrinks. A region is on the
//! list from its opening until its state *full* is stable in the manifest, or until it is reclaimed.

use crate::units::Sequence;

/// The stable part of a region: bytes from its start, or all of it including the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Length {
    /// Nothing is stable, not even the region's state *open*.
    #[default]
    Nothing,
    Bytes(u32),
    Whole,
}

/// A region that was filled recently.
#[derive(Clone, Copy, Debug)]
struct RegionMark {
    region: u32,
    generation: Sequence,
    /// Stable length of the extents.
    stable: Length,
    /// Length in the manifest on the device, written but perhaps not stable.
    marked: Length,
    /// Length in the manifest that is stable.
    marked_stable: Length,
}

/// A region at the time of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AtFlush {
    pub(super) region: u32,
    pub(super) generation: Sequence,
    /// Length of its extents that had landed.
    pub(super) landed: Length,
    /// Length in the manifest on the device.
    marked: Length,
}

/// See the module's documentation. A few regions at most.
#[derive(Debug, Default)]
pub(super) struct Marks(Vec<RegionMark>);

impl Marks {
    /// A region was opened.
    pub(super) fn opened(&mut self, region: u32, generation: Sequence) {
        assert!(self.get(region).is_none(), "region {region} is marked as in use");
        self.0.push(RegionMark {
            region,
            generation,
            stable: Length::Bytes(0),
            marked: Length::Nothing,
            marked_stable: Length::Nothing,
        });
    }

    /// A region is still open from an earlier opening, with this length in the manifest.
    pub(super) fn reopened(&mut self, region: u32, generation: Sequence, bytes: u32) {
        self.opened(region, generation);
        let mark = self.0.last_mut().expect("it was pushed");
        assert_eq!(mark.region, region);
        mark.stable = Length::Bytes(bytes);
        (mark.marked, mark.marked_stable) = (mark.stable, mark.stable);
    }

    /// A region is being reclaimed: from now on the manifest has its state instead of a length.
    pub(super) fn remove(&mut self, region: u32) {
        self.0.retain(|mark| mark.region != region);
    }

    fn get(&self, region: u32) -> Option<&RegionMark> {
        self.0.iter().find(|mark| mark.region == region)
    }

    fn get_mut(&mut self, region: u32, generation: Sequence) -> Option<&mut RegionMark> {
        let mut marks = self.0.iter_mut();
        marks.find(|mark| mark.region == region && mark.generation == generation)
    }

    /// The regions on the list: the open ones, and those whose state *full* is not stable in the manifest.
    pub(super) fn regions(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|mark| mark.region)
    }

    /// Stable length of a region. `None`: it is not on the list.
    pub(super) fn stable(&self, region: u32) -> Option<Length> {
        self.get(region).map(|mark| mark.stable)
    }

    /// The regions on the list, with the lengths that a flush beginning now makes stable; `landed` returns how much of a
    /// region's extents have landed.
    pub(super) fn at_flush(&self, landed: impl Fn(u32) -> Length) -> Vec<AtFlush> {
        let at_flush = |mark: &RegionMark| AtFlush {
            region: mark.region,
            generation: mark.generation,
            landed: landed(mark.region),
            marked: mark.marked,
        };
        self.0.iter().map(at_flush).collect()
    }

    /// The flush that began at that time has succeeded: the extents are stable, and so are the lengths in the manifest.
    pub(super) fn flushed(&mut self, regions: &[AtFlush]) {
        for at in regions {
            if let Some(mark) = self.get_mut(at.region, at.generation) {
                mark.stable = mark.stable.max(at.landed);
            }
        }
        self.manifest_flushed(regions);
    }

    /// The same, for the lengths in the manifest only.
    pub(super) fn manifest_flushed(&mut self, regions: &[AtFlush]) {
        for at in regions {
            if let Some(mark) = self.get_mut(at.region, at.generation) {
                mark.marked_stable = mark.marked_stable.max(at.marked);
            }
        }
        self.0.retain(|mark| mark.marked_stable != Length::Whole);
    }

    /// The manifest is about to be written for the regions that are `among` these: returns the lengths it will have.
    pub(super) fn told(&self, among: impl Fn(u32) -> bool) -> Vec<AtFlush> {
        let mut all = self.at_flush(|_| Length::Nothing);
        for at in &mut all {
            at.marked = self.stable(at.region).unwrap_or_default();
        }
        all.retain(|at| among(at.region));
        all
    }

    /// The manifest on the device has these lengths, `stable` or not.
    pub(super) fn written(&mut self, told: &[AtFlush], stable: bool) {
        for at in told {
            if let Some(mark) = self.get_mut(at.region, at.generation) {
                assert!(at.marked <= mark.stable, "the manifest says what is stable");
                mark.marked = mark.marked.max(at.marked);
            }
        }
        if stable {
            self.manifest_flushed(told);
        }
        assert!(
            self.0
                .iter()
                .all(|mark| mark.marked_stable <= mark.marked && mark.marked <= mark.stable)
        );
    }

    /// Regions whose length in the manifest on the device is below the stable length. With `stable`, also those whose older
    /// length a power cut could bring back.
    pub(super) fn unmarked(&self, stable: bool) -> impl Iterator<Item = u32> {
        let lacks = move |mark: &&RegionMark| match stable {
            true => mark.marked_stable < mark.stable,
            false => mark.marked < mark.stable,
        };
        self.0.iter().filter(lacks).map(|mark| mark.region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unmarked(marks: &Marks, stable: bool) -> Vec<u32> {
        marks.unmarked(stable).collect()
    }

    #[test]
    fn a_region_is_listed_until_the_manifest_says_it_is_full() {
        let mut marks = Marks::default();
        marks.opened(3, Sequence(9));
        let told = marks.told(|_| true);
        marks.written(&told, false);
        assert!(unmarked(&marks, false).is_empty());
        assert_eq!(unmarked(&marks, true), [3]);
        marks.flushed(&marks.at_flush(|_| Length::Bytes(512)));
        assert_eq!(marks.stable(3), Some(Length::Bytes(512)));
        assert_eq!(unmarked(&marks, false), [3], "what is stable is not marked yet");
        let told = marks.told(|_| true);
        marks.flushed(&marks.at_flush(|_| Length::Whole));
        marks.written(&told, true);
        assert_eq!(unmarked(&marks, true), [3], "the mark is from before the flush");
        let told = marks.told(|_| true);
        marks.written(&told, true);
        assert_eq!(marks.stable(3), None);
    }

    #[test]
    fn nothing_is_noted_of_an_earlier_use_of_a_region() {
        let mut marks = Marks::default();
        marks.opened(3, Sequence(9));
        let old = marks.at_flush(|_| Length::Bytes(4096));
        marks.remove(3);
        marks.opened(3, Sequence(10));
        marks.flushed(&old);
        assert_eq!(marks.stable(3), Some(Length::Bytes(0)));
    }

    #[test]
    fn sectors_with_other_regions_say_nothing() {
        let mut marks = Marks::default();
        marks.opened(3, Sequence(9));
        marks.opened(50, Sequence(10));
        let told = marks.told(|region| region >= 40);
        marks.written(&told, true);
        assert_eq!(unmarked(&marks, true), [3]);
    }
}
