//! Positions in the log.

use crate::policy::Ring;

/// A position in the log: the number of an extent. Extents are numbered in the order in which they are opened, over
/// both rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) struct Lsn(u64);

impl Lsn {
    /// The position of everything that earlier openings wrote.
    pub(in crate::shard) const INHERITED: Self = Self(1);

    /// Later than every extent.
    pub(super) const MAX: Self = Self(u64::MAX);

    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The position of the previous extent.
    pub(super) fn before(self) -> Self {
        assert!(self > Self(0), "there is one before");
        Self(self.0 - 1)
    }
}

/// A position in each ring. Extents of one ring land in order; the two rings are independent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::shard) struct Positions([Lsn; 2]);

impl Positions {
    /// The same position in both rings.
    pub(super) fn both(lsn: Lsn) -> Self {
        Self([lsn; 2])
    }

    pub(super) fn of(position: impl FnMut(Ring) -> Lsn) -> Self {
        Self(Ring::ALL.map(position))
    }

    pub(in crate::shard) fn at(&self, ring: Ring) -> Lsn {
        self.0[ring.index()]
    }

    /// Moves the position of `ring` up to `lsn`, if it is lower.
    pub(in crate::shard) fn raise(&mut self, ring: Ring, lsn: Lsn) {
        let position = &mut self.0[ring.index()];
        *position = (*position).max(lsn);
    }

    /// Moves both positions up to those of `other` if they are lower.
    pub(in crate::shard) fn raise_all(&mut self, other: &Self) {
        for ring in Ring::ALL {
            self.raise(ring, other.at(ring));
        }
    }

    /// Whether each position is at least that of `other`.
    pub(in crate::shard) fn covers(&self, other: &Self) -> bool {
        Ring::ALL.into_iter().all(|ring| self.at(ring) >= other.at(ring))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_only_rise_and_cover_each_ring() {
        let [low, high] = [Lsn(2), Lsn(5)];
        let mut positions = Positions::both(low);
        positions.raise(Ring::Main, high);
        positions.raise(Ring::Main, low);
        assert_eq!(
            (positions.at(Ring::Probation), positions.at(Ring::Main)),
            (low, high)
        );
        assert!(positions.covers(&Positions::both(low)));
        assert!(!positions.covers(&Positions::both(high)));
        positions.raise_all(&Positions::both(high));
        assert!(positions.covers(&Positions::both(high)));
        assert_eq!(low.next().before(), low);
    }
}
