//! Who owns each chunk, in memory. Pure.
//!
//! Invariants: a chunk has one owner at most; a part of a volume lies in one chunk at most; the counts are those of the table. While
//! the pool shrinks, the device may name a second chunk of a part, beyond the end: it is an older copy, and counts as free here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::error::PoolError;
use crate::format::Owner;

/// See the module's documentation.
#[derive(Debug)]
pub struct Table {
    chunks: Vec<Option<Owner>>,
    /// Free chunks below this are not looked for.
    search_from: u32,
    /// Chunks from here on are not handed out.
    usable: u32,
    used: u32,
    /// Chunks of each volume.
    owned: BTreeMap<u32, u32>,
    /// Chunks that the device may still name as parts which lie elsewhere.
    copies: BTreeSet<u32>,
}

impl Table {
    /// A table in which the chunks of unknown volumes are free. Those from `usable` on are not handed out.
    ///
    /// # Errors
    /// [`PoolError::Contradiction`]: two chunks are the same part of a volume, but for a copy that a shrink leaves at the end.
    pub fn new(
        owners: &[Option<Owner>],
        usable: u32,
        is_known: impl Fn(u32) -> bool,
    ) -> Result<Self, PoolError> {
        let mut table = Self {
            chunks: vec![None; owners.len()],
            search_from: 0,
            usable,
            used: 0,
            owned: BTreeMap::new(),
            copies: BTreeSet::new(),
        };
        let mut parts = BTreeMap::new();
        for (chunk, owner) in (0..).zip(owners) {
            let Some(owner) = owner.filter(|owner| is_known(owner.volume)) else {
                continue;
            };
            if let Some(&other) = parts.get(&owner) {
                if other < usable && chunk >= usable {
                    table.copies.insert(chunk);
                    continue;
                }
                return Err(PoolError::Contradiction(format!(
                    "chunks {other} and {chunk} are both part {} of volume {}",
                    owner.index, owner.volume
                )));
            }
            parts.insert(owner, chunk);
            table.set(chunk, Some(owner));
        }
        Ok(table)
    }

    /// Number of chunks.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.chunks.len() as u32
    }

    /// Whether there is no chunk.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Number of chunks that can be handed out. While the pool shrinks, chunks before its new end are kept for the parts beyond it.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.usable.saturating_sub(self.used)
    }

    /// Number of chunks that have an owner.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Chunks from `usable` on are not handed out any more, or are again.
    pub fn set_usable(&mut self, usable: u32) {
        self.usable = usable.min(self.len());
        self.search_from = 0;
    }

    /// Number of chunks of a volume.
    #[must_use]
    pub fn owned_by(&self, volume: u32) -> u32 {
        self.owned.get(&volume).copied().unwrap_or(0)
    }

    /// The owner of a chunk.
    #[must_use]
    pub fn owner(&self, chunk: u32) -> Option<Owner> {
        self.chunks[chunk as usize]
    }

    /// The chunks of a volume and what they are of it.
    pub fn of_volume(&self, volume: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..).zip(&self.chunks).filter_map(move |(chunk, owner)| {
            let owner = owner.filter(|owner| owner.volume == volume)?;
            Some((chunk, owner.index))
        })
    }

    /// The first free chunk.
    #[must_use]
    pub fn first_free(&mut self) -> Option<u32> {
        let (from, end) = (self.search_from as usize, self.usable as usize);
        let found = self.chunks[from.min(end)..end].iter().position(Option::is_none);
        self.search_from = found.map_or(self.usable, |at| (from + at) as u32);
        found.map(|at| (from + at) as u32)
    }

    /// A free chunk gets an owner.
    ///
    /// # Panics
    /// When it is not free.
    pub fn take(&mut self, chunk: u32, owner: Owner) {
        assert_eq!(self.owner(chunk), None, "chunk {chunk} is free");
        self.set(chunk, Some(owner));
    }

    /// A chunk becomes free.
    ///
    /// # Panics
    /// When it has no owner.
    pub fn give(&mut self, chunk: u32) {
        assert!(self.owner(chunk).is_some(), "chunk {chunk} has an owner");
        self.set(chunk, None);
    }

    /// A part lies in another chunk now, which it has already: this one is a copy, until its sector has been written.
    ///
    /// # Panics
    /// When it has no owner.
    pub fn leave(&mut self, chunk: u32) {
        self.give(chunk);
        self.copies.insert(chunk);
    }

    /// Chunks that the device may still name as parts which lie elsewhere.
    pub fn copies(&self) -> impl Iterator<Item = u32> + '_ {
        self.copies.iter().copied()
    }

    /// The device names no copies among these chunks any more.
    pub fn erased(&mut self, chunks: Range<u32>) {
        self.copies.retain(|chunk| !chunks.contains(chunk));
    }

    /// The chunks from the end of a shrink on that have an owner.
    pub fn beyond(&self) -> impl Iterator<Item = (u32, Owner)> + '_ {
        (self.usable..self.len()).filter_map(|chunk| Some((chunk, self.owner(chunk)?)))
    }

    /// All chunks of a volume become free.
    pub fn give_all(&mut self, volume: u32) -> Vec<u32> {
        let chunks: Vec<u32> = self.of_volume(volume).map(|(chunk, _)| chunk).collect();
        for &chunk in &chunks {
            self.give(chunk);
        }
        chunks
    }

    /// There are more chunks now, or fewer.
    ///
    /// # Panics
    /// When a chunk that is cut off is in use.
    pub fn resize(&mut self, chunks: u32) {
        let cut = self.chunks.get(chunks as usize..).unwrap_or_default();
        assert!(cut.iter().all(Option::is_none), "they are free");
        self.chunks.resize(chunks as usize, None);
        self.set_usable(chunks);
    }

    fn set(&mut self, chunk: u32, to: Option<Owner>) {
        match std::mem::replace(&mut self.chunks[chunk as usize], to) {
            None => self.used += 1,
            Some(owner) => {
                let count = self.owned.get_mut(&owner.volume).expect("counted in pairs");
                *count -= 1;
            }
        }
        match to {
            None => {
                self.used -= 1;
                self.search_from = self.search_from.min(chunk);
            }
            Some(owner) => *self.owned.entry(owner.volume).or_default() += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Owner = Owner { volume: 1, index: 0 };
    const B: Owner = Owner { volume: 2, index: 0 };

    #[test]
    fn chunks_are_taken_and_given_back() {
        let mut table = Table::new(&[None, Some(A), None, Some(B)], 4, |_| true).expect("no contradiction");
        assert_eq!((table.free(), table.owned_by(1), table.owned_by(2)), (2, 1, 1));
        assert_eq!(table.first_free(), Some(0));
        table.take(0, Owner { volume: 1, index: 1 });
        assert_eq!(table.first_free(), Some(2));
        assert_eq!(table.of_volume(1).collect::<Vec<_>>(), [(0, 1), (1, 0)]);
        table.give(1);
        assert_eq!(table.first_free(), Some(1));
        assert_eq!((table.free(), table.owned_by(1)), (2, 1));
        assert_eq!(table.give_all(1), [0]);
        table.resize(6);
        assert_eq!((table.free(), table.len()), (5, 6));
        table.resize(4);
        assert_eq!((table.free(), table.len()), (3, 4));
    }

    #[test]
    fn chunks_of_unknown_volumes_are_free() {
        let table = Table::new(&[Some(A), Some(B)], 2, |volume| volume == 2).expect("no contradiction");
        assert_eq!((table.owner(0), table.owner(1), table.free()), (None, Some(B), 1));
    }

    #[test]
    fn a_part_in_two_chunks_is_a_contradiction() {
        let error = Table::new(&[Some(A), None, Some(A)], 3, |_| true).expect_err("twice");
        assert!(
            error
                .to_string()
                .contains("chunks 0 and 2 are both part 0 of volume 1"),
            "{error}"
        );
    }

    #[test]
    fn chunks_beyond_the_end_of_a_shrink_are_left() {
        let owners = [None, Some(B), Some(A), None, Some(B)];
        let mut table = Table::new(&owners, 3, |_| true).expect("a copy at the end");
        assert_eq!((table.free(), table.used()), (1, 2));
        assert_eq!(
            (table.owner(4), table.copies().collect::<Vec<_>>()),
            (None, vec![4])
        );
        table.erased(0..5);
        assert_eq!(table.copies().count(), 0);
        table.set_usable(2);
        assert_eq!(table.beyond().collect::<Vec<_>>(), [(2, A)]);
        assert_eq!(
            (table.free(), table.first_free()),
            (0, Some(0)),
            "kept for that one"
        );
        table.take(0, A);
        table.leave(2);
        assert_eq!(
            (table.beyond().count(), table.copies().collect::<Vec<_>>()),
            (0, vec![2])
        );
        assert_eq!((table.first_free(), table.owned_by(1)), (None, 1));
        for usable in [1, 5] {
            let error = Table::new(&owners, usable, |_| true).expect_err("both on one side");
            assert!(error.to_string().contains("chunks 1 and 4"), "{error}");
        }
    }

    #[test]
    #[should_panic(expected = "they are free")]
    fn a_chunk_in_use_is_not_cut_off() {
        Table::new(&[None, Some(A)], 2, |_| true)
            .expect("no contradiction")
            .resize(1);
    }
}
